//! Memory outside the program: device memory, and memory behind a file descriptor.

use std::any::Any;
use std::os::fd::BorrowedFd;

use super::Result;
use crate::types::AccessFlags;

/// Options for allocating device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceMemoryInit {
    /// Length in bytes.
    pub length: u64,
    /// Binary logarithm of the alignment of its first address.
    pub log_align_req: u32,
}

/// Memory of a device.
pub trait DeviceMemory: Send + Sync {
    /// Returns the length in bytes.
    fn length(&self) -> u64;

    /// Copies bytes to the memory.
    fn copy_in(&self, dm_offset: u64, data: &[u8]) -> Result<()>;

    /// Copies bytes from the memory.
    fn copy_out(&self, dm_offset: u64, out: &mut [u8]) -> Result<()>;

    /// Returns the object for downcasting by the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// Options for registering memory behind a file descriptor.
#[derive(Clone, Copy, Debug)]
pub struct DmaBufInit<'a> {
    /// The dma-buf.
    pub fd: BorrowedFd<'a>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address that requests use for the first byte. `None`: the mapped address on software devices, `offset` on
    /// adapters.
    pub iova: Option<u64>,
    /// Access flags.
    pub access: AccessFlags,
}
