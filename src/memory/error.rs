//! Errors of registered memory.

use crate::types::{AccessFlags, Lkey};

use super::Backing;

/// Why an access to registered memory was refused, or failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// No valid region has this key.
    #[error("no valid memory region has this key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    WrongDomain,
    /// The range reaches outside the region.
    #[error("the range reaches outside the memory region")]
    OutOfBounds,
    /// The region was registered without an access flag that the access needs.
    #[error("the memory region was registered without the needed access flag")]
    NoPermission,
    /// A word is not aligned to its size in host memory (for atomics: IBTA 9.4.5).
    #[error("the word is not aligned to its size")]
    Misaligned,
    /// The memory is no longer mapped, or its protection changed. Part of a write may have been placed.
    #[error("the memory is no longer mapped")]
    Fault,
    /// The key cannot be invalidated: its region was not registered as invalidatable, windows are bound to the region,
    /// or it is the key of a type 1 window (IBTA o10-37.2.26).
    #[error("the key may not be invalidated")]
    NotInvalidatable,
    /// The window is bound to another queue pair.
    #[error("the memory window was bound by another queue pair")]
    WrongQueuePair,
    /// The memory is an adapter's, or behind a descriptor: the adapter can reach it, this process cannot.
    #[error("this process cannot reach the memory: it is the adapter's, or behind a descriptor")]
    Elsewhere,
}

/// Why a memory window was not bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// No window of this protection domain has this key.
    #[error("no memory window of this protection domain has this key")]
    UnknownWindow,
    /// A type 2 window must be invalidated before it is bound again (IBTA o10-37.2.30).
    #[error("the memory window of type 2 is bound already")]
    AlreadyBound,
    /// An access flag that windows cannot have, or a type 2 window of 0 bytes (IBTA o10-37.2.40).
    #[error("a memory window cannot be bound with these access flags or this length")]
    Arguments,
    /// The region's key, domain or bounds are wrong (IBTA C10-72 and C10-75).
    #[error("{0}")]
    Region(AccessError),
    /// The region was registered without MEMORY_WINDOW_BIND, or without a flag that the window needs (IBTA C10-73
    /// and C10-74).
    #[error("the memory region does not allow windows to be bound, or not with these access flags")]
    NotBindable,
}

/// Why advice about a range was not applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// The range does not lie in a region that may be used this way.
    #[error("sg_list: lkey {lkey}, addr {addr:#x} with length {length} given: {error}")]
    Range {
        /// First address, in the region's addresses.
        addr: u64,
        /// Number of bytes.
        length: u32,
        /// The region's key.
        lkey: Lkey,
        /// The reason.
        error: AccessError,
    },
    /// The region was registered without ON_DEMAND, with its pages present.
    #[error("sg_list: lkey {lkey} given, whose access is {access:?}; advice is for regions with ON_DEMAND")]
    NotOnDemand {
        /// The region's key.
        lkey: Lkey,
        /// Its access flags.
        access: AccessFlags,
    },
    /// Part of the range is not mapped or not readable.
    #[error("sg_list: addr {addr:#x} with length {length} given, which is not all mapped and readable")]
    NotMapped {
        /// First address, in the region's addresses.
        addr: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Part of the range is not writable.
    #[error("sg_list: addr {addr:#x} with length {length} given to be written, which is not all writable")]
    NotWritable {
        /// First address, in the region's addresses.
        addr: u64,
        /// Number of bytes.
        length: u32,
    },
    /// The kernel refuses the calls that access memory owned by others without raising signals.
    #[error("pages of on-demand regions need process_vm_readv, which this system refuses (errno {errno})")]
    NoFaultSafeCopy {
        /// The kernel's error number.
        errno: i32,
    },
}

/// Why faults are not recovered from; see [`super::recover_from_faults`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// Not available on this processor, or under Miri or a sanitizer.
    #[error("fault recovery works on x86-64 only, and not under Miri or a sanitizer; the kernel makes copies")]
    Unsupported,
    /// The kernel refused the handler.
    #[error("a handler of signal {signal} was refused (errno {errno}); the kernel makes copies")]
    Refused {
        /// The signal's number.
        signal: i32,
        /// The kernel's error number.
        errno: i32,
    },
    /// The program has installed another handler since.
    #[error("the handler of signal {signal} was replaced by the program; the kernel makes copies")]
    Replaced {
        /// The signal's number.
        signal: i32,
    },
}

/// Why a registration was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// `access` holds flags that this device does not know or support.
    #[error("access: unsupported flags {unsupported:?} in {given:?}; allowed: {allowed:?}")]
    UnsupportedAccess {
        /// The requested flags.
        given: AccessFlags,
        /// The refused flags among them.
        unsupported: AccessFlags,
        /// The flags that may be requested.
        allowed: AccessFlags,
    },
    /// `access` lets peers change memory that local requests may not.
    #[error("access: {given:?} lets peers change the memory; REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    MissingLocalWrite {
        /// The requested flags.
        given: AccessFlags,
    },
    /// The memory has no bytes.
    #[error("length: 0 given; a memory region has at least 1 byte")]
    Empty,
    /// The region's addresses exceed the 64-bit address space.
    #[error("iova: {iova:#x} with length {length} given; their sum must not exceed 2^64 - 1")]
    AddressOverflow {
        /// First address of the region.
        iova: u64,
        /// Its length.
        length: u64,
    },
    /// Part of the memory is not mapped or not readable.
    #[error("addr: {address:#x} with length {length} given, which is not all mapped and readable")]
    NotMapped {
        /// First byte in this process.
        address: u64,
        /// Number of bytes.
        length: u64,
    },
    /// LOCAL_WRITE was requested for memory that is not writable.
    #[error("access: LOCAL_WRITE given for addr {address:#x} with length {length}, which is not all writable")]
    NotWritable {
        /// First byte in this process.
        address: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The kernel refuses the calls that access memory owned by others without raising signals.
    #[error(
        "raw ranges and file mappings need process_vm_readv and process_vm_writev, which this system refuses \
         (errno {errno}); the library's own memory and vectors work without them"
    )]
    NoFaultSafeCopy {
        /// The kernel's error number.
        errno: i32,
    },
    /// The device's limit of registered regions is reached.
    #[error("max_mr: {limit} memory regions are registered, and that is the limit")]
    TooManyRegions {
        /// The device's limit.
        limit: usize,
    },
    /// The device's limit of allocated windows is reached.
    #[error("max_mw: {limit} memory windows are allocated, and that is the limit")]
    TooManyWindows {
        /// The device's limit.
        limit: usize,
    },
    /// The region has bound windows (IBTA 10.6.7.2.6).
    #[error("the memory region has {windows} bound memory windows; unbind or invalidate them first")]
    Bound {
        /// Number of windows bound to it.
        windows: u32,
    },
    /// The region is no longer registered.
    #[error("the memory region was deregistered")]
    Deregistered,
    /// FLUSH_PERSISTENT was requested for memory that does not survive a power loss.
    #[error("access: FLUSH_PERSISTENT needs a file mapping; other memory does not outlast the process")]
    NotPersistent,
    /// The system's source of randomness failed, so no key can be made that peers cannot guess.
    #[error("no unpredictable key could be made: the system's source of randomness failed")]
    NoRandomness,
}

impl RegisterError {
    /// The error number that `ibv_reg_mr` reports for it.
    pub const fn errno(&self) -> i32 {
        match self {
            RegisterError::UnsupportedAccess { .. } => libc::EOPNOTSUPP,
            RegisterError::MissingLocalWrite { .. } | RegisterError::Empty | RegisterError::AddressOverflow { .. } => {
                libc::EINVAL
            }
            RegisterError::NotMapped { .. } | RegisterError::NotWritable { .. } => libc::EFAULT,
            RegisterError::NoFaultSafeCopy { .. } => libc::EOPNOTSUPP,
            RegisterError::TooManyRegions { .. } | RegisterError::TooManyWindows { .. } => libc::ENOMEM,
            RegisterError::Bound { .. } => libc::EBUSY,
            RegisterError::Deregistered | RegisterError::NotPersistent => libc::EINVAL,
            RegisterError::NoRandomness => libc::EAGAIN,
        }
    }
}

/// A refused registration, with the memory that was to be registered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedBacking {
    /// Why it was refused.
    pub error: RegisterError,
    /// The memory, as it was given.
    pub backing: Backing,
}

impl From<RefusedBacking> for RegisterError {
    fn from(refused: RefusedBacking) -> Self {
        refused.error
    }
}
