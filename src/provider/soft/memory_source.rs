//! Device memory, and memory behind descriptors.

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::device::Device;
use super::errors;
use super::limit::check_range;
use crate::memory::{AccessError, Backing, DeviceMemoryError, RegisterError};
use crate::provider::{DeviceMemory, DeviceMemoryInit, DmaBufInit, Error, ErrorKind, Result};
use crate::types::AccessFlags;

/// Largest `log_align_req`: every allocation begins at a page, and pages have at least 4 KiB.
const MAX_LOG_ALIGN: u32 = 12;

/// Access flags that device memory does not support, because it has no pages.
const NOT_OF_DEVICES: AccessFlags = AccessFlags::ON_DEMAND.union(AccessFlags::HUGETLB);

/// Device memory of a software device, which is host memory.
pub(super) struct SoftDeviceMemory {
    device: Arc<Device>,
    memory: Arc<crate::memory::DeviceMemory>,
}

impl SoftDeviceMemory {
    pub(super) fn new(device: &Arc<Device>, init: &DeviceMemoryInit) -> Result<Self> {
        check_range("alloc_dm", "log_align_req", init.log_align_req, 0..=MAX_LOG_ALIGN)?;
        let memory = device.device_memory.alloc(init.length).map_err(|error| {
            let message = error.to_string();
            match error {
                DeviceMemoryError::Empty => Error::out_of_range("alloc_dm", "length", 0_u32, 1..=u64::MAX, message),
                DeviceMemoryError::System { source, .. } => Error::from_io("alloc_dm", message, source),
                _ => Error::new("alloc_dm", ErrorKind::ResourceLimit, message),
            }
        })?;
        Ok(Self { device: Arc::clone(device), memory })
    }

    fn outside(&self, verb: &'static str, dm_offset: u64, length: usize) -> Error {
        let message =
            format!("dm_offset is {dm_offset} and length {length}; the device memory has {} bytes", self.memory.len());
        Error::unsuitable(verb, "dm_offset", message)
    }
}

impl DeviceMemory for SoftDeviceMemory {
    fn length(&self) -> u64 {
        self.memory.len()
    }

    fn copy_in(&self, dm_offset: u64, data: &[u8]) -> Result<()> {
        self.device.check_process("memcpy_to_dm")?;
        self.memory.copy_in(dm_offset, data).map_err(|_| self.outside("memcpy_to_dm", dm_offset, data.len()))
    }

    fn copy_out(&self, dm_offset: u64, out: &mut [u8]) -> Result<()> {
        self.device.check_process("memcpy_from_dm")?;
        let length = out.len();
        self.memory.copy_out(dm_offset, out).map_err(|_| self.outside("memcpy_from_dm", dm_offset, length))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the part of device memory to register in a domain of `device`.
pub(super) fn device_part(
    device: &Arc<Device>,
    memory: &Arc<dyn DeviceMemory>,
    dm_offset: u64,
    length: u64,
    access: AccessFlags,
) -> Result<Backing> {
    let memory = match memory.as_any().downcast_ref::<SoftDeviceMemory>() {
        Some(memory) if Arc::ptr_eq(&memory.device, device) => memory,
        _ => return Err(errors::foreign("reg_dm_mr", "dm")),
    };
    if access.intersects(NOT_OF_DEVICES) {
        let allowed = device.attributes.supported_access.difference(NOT_OF_DEVICES);
        let message = format!("access is {access:?}; device memory has no pages, so allowed are {allowed:?}");
        return Err(Error::unsuitable("reg_dm_mr", "access", message));
    }
    Backing::device(&memory.memory, dm_offset, length).map_err(|error: AccessError| {
        let message = format!(
            "dm_offset is {dm_offset} and length {length}: {error}; the device memory has {} bytes",
            memory.memory.len()
        );
        Error::unsuitable("reg_dm_mr", "dm_offset", message)
    })
}

/// Maps the memory behind a descriptor.
pub(super) fn map_descriptor(init: &DmaBufInit<'_>) -> Result<Backing> {
    let &DmaBufInit { fd, offset, length, access, .. } = init;
    let number = fd.as_raw_fd();
    let refused = |name: &'static str, message: String| Err(Error::unsuitable("reg_dmabuf_mr", name, message));
    let Some(len) = usize::try_from(length).ok().filter(|len| *len > 0) else {
        return refused("length", format!("length is {length}; allowed are 1 to {}", usize::MAX));
    };
    let Some(end) = offset.checked_add(length) else {
        return refused(
            "offset",
            format!("offset is {offset} and length {length}; their sum must not exceed 2^64 - 1"),
        );
    };
    // A descriptor without a length of its own fails when it is mapped, or when its pages are checked.
    let size = size_of(init).unwrap_or(0);
    if size > 0 && end > size {
        return refused("offset", format!("offset is {offset} and length {length}; fd {number} has {size} bytes"));
    }
    let writable = access.contains(AccessFlags::LOCAL_WRITE);
    Backing::descriptor(fd, offset, len, writable).map_err(|source| {
        let kind = match source.raw_os_error() {
            Some(libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO) => ErrorKind::Unsupported,
            Some(libc::EACCES | libc::EPERM) => ErrorKind::PermissionDenied,
            Some(libc::EINVAL | libc::EBADF) => ErrorKind::InvalidArgument,
            _ => ErrorKind::System,
        };
        let purpose = if writable { "reading and writing, for LOCAL_WRITE" } else { "reading" };
        let message = format!(
            "fd is {number}, and mmap of {length} bytes from offset {offset} for {purpose} failed; allowed are \
             descriptors that support this mapping: dma-bufs whose exporter lets the processor map them, memfds, files"
        );
        Error::from_source("reg_dmabuf_mr", kind, message, source)
    })
}

/// Returns the number of bytes that the descriptor reports.
fn size_of(init: &DmaBufInit<'_>) -> io::Result<u64> {
    Ok(File::from(init.fd.try_clone_to_owned()?).metadata()?.len())
}

/// Explains why mapped memory of a descriptor cannot be registered.
pub(super) fn from_register(init: &DmaBufInit<'_>, error: &RegisterError) -> Error {
    if !matches!(error, RegisterError::NotMapped { .. } | RegisterError::NotWritable { .. }) {
        return errors::from_register("reg_dmabuf_mr", error);
    }
    let message = format!(
        "fd is {}, and mmap took {} bytes from offset {}, but the kernel cannot copy them for the process; the range \
         must lie within the descriptor and consist of ordinary pages",
        init.fd.as_raw_fd(),
        init.length,
        init.offset
    );
    Error::new("reg_dmabuf_mr", ErrorKind::Unsupported, message)
}
