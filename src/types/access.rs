//! Access flags of registered memory and queue pairs.

bitflags::bitflags! {
    /// Access flags of a memory region, a memory window or a queue pair. The bits are those of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AccessFlags: u32 {
        /// Local receives and READ responses may write to it.
        const LOCAL_WRITE = 1;
        /// A peer's WRITE requests may write to it. Requires [`AccessFlags::LOCAL_WRITE`] on a region.
        const REMOTE_WRITE = 1 << 1;
        /// A peer's READ requests may read it.
        const REMOTE_READ = 1 << 2;
        /// A peer's atomics may modify it. Requires [`AccessFlags::LOCAL_WRITE`] on a region.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MEMORY_WINDOW_BIND = 1 << 4;
        /// Addresses in requests are offsets from the region's start instead of virtual addresses.
        const ZERO_BASED = 1 << 5;
        /// Pages are looked up when they are accessed, not when the region is registered.
        const ON_DEMAND = 1 << 6;
        /// The memory is backed by huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may flush it to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush it to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// A hint that the order of writes does not matter; ignored by the software transport.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl AccessFlags {
    /// The flags that allow a peer's WRITEs, READs and atomics.
    pub const REMOTE: AccessFlags =
        AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);
    /// The flags that allow a peer's FLUSHes.
    pub const FLUSH: AccessFlags = AccessFlags::FLUSH_GLOBAL.union(AccessFlags::FLUSH_PERSISTENT);
}
