//! Memory that is not the program's own: a device's, and that behind a descriptor.

use std::any::Any;
use std::os::fd::BorrowedFd;

use super::Result;
use crate::types::AccessFlags;

/// What new device memory shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceMemoryInit {
    /// Bytes.
    pub length: u64,
    /// Its first address shall be a multiple of two to the power of this.
    pub log_align_req: u32,
}

/// Memory of a device.
pub trait DeviceMemory: Send + Sync {
    /// Number of bytes.
    fn length(&self) -> u64;

    /// Copies bytes to it.
    fn copy_in(&self, dm_offset: u64, data: &[u8]) -> Result<()>;

    /// Copies bytes from it.
    fn copy_out(&self, dm_offset: u64, out: &mut [u8]) -> Result<()>;

    /// For the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Which memory behind a descriptor is registered, and how.
#[derive(Clone, Copy, Debug)]
pub struct DmaBufInit<'a> {
    /// The dma-buf.
    pub fd: BorrowedFd<'a>,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// First address by which requests name them; `None`: where they are mapped.
    pub iova: Option<u64>,
    /// Access rights.
    pub access: AccessFlags,
}
