//! Types of memory windows.

/// Type of a memory window. The numbers are those of `ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum MemoryWindowType {
    /// Bound by a verb, which chooses the key; accessible through every queue pair of its protection domain.
    Type1 = 1,
    /// Bound by a work request, which sets the lower eight bits of the key; accessible only through the queue pair that
    /// bound it (the standard's type 2B).
    Type2 = 2,
}
