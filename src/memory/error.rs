//! What can go wrong with registered memory.

use crate::types::AccessFlags;

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
    /// The region was registered without the right that the access needs.
    #[error("the memory region was registered without the needed access right")]
    NoPermission,
    /// A word is not aligned to its size in host memory.
    #[error("the word is not aligned to its size")]
    Misaligned,
    /// The memory is no longer mapped, or not as it was. Part of a write may have been placed.
    #[error("the memory is no longer mapped")]
    Fault,
    /// The region was not registered as one that peers may invalidate.
    #[error("the memory region may not be invalidated by a peer")]
    NotInvalidatable,
}

/// Why a registration was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// `access` holds flags that this device does not know or support.
    #[error("access: unsupported flags {unsupported:?} in {given:?}; allowed: {allowed:?}")]
    UnsupportedAccess {
        /// What was asked for.
        given: AccessFlags,
        /// The flags among them that are refused.
        unsupported: AccessFlags,
        /// The flags that may be asked for.
        allowed: AccessFlags,
    },
    /// `access` lets peers change memory that the local side may not.
    #[error("access: {given:?} lets peers change the memory; REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    MissingLocalWrite {
        /// What was asked for.
        given: AccessFlags,
    },
    /// The memory has no bytes.
    #[error("length: 0 given; a memory region has at least 1 byte")]
    Empty,
    /// The addresses of the region pass the end of the 64-bit space.
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
    /// LOCAL_WRITE was asked for memory that is not writable.
    #[error("access: LOCAL_WRITE given for addr {address:#x} with length {length}, which is not all writable")]
    NotWritable {
        /// First byte in this process.
        address: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The kernel refuses the calls that make access to memory of others safe from signals.
    #[error(
        "raw ranges and file mappings need process_vm_readv and process_vm_writev, which this system refuses \
         (errno {errno}); memory of the library's own and vectors work without"
    )]
    NoFaultSafeCopy {
        /// What the kernel answered.
        errno: i32,
    },
    /// As many regions as the device holds are registered.
    #[error("max_mr: {limit} memory regions are registered, and that is the limit")]
    TooManyRegions {
        /// The device's limit.
        limit: usize,
    },
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
            RegisterError::TooManyRegions { .. } => libc::ENOMEM,
            RegisterError::NoRandomness => libc::EAGAIN,
        }
    }
}

/// A refused registration, with the memory that was to be registered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why it was refused.
    pub error: RegisterError,
    /// The memory, as it was given.
    pub backing: Backing,
}

impl From<Refused> for RegisterError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}
