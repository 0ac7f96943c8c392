//! Memory that this process does not access: the adapter's own, and memory behind a descriptor.

use std::any::Any;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::device::Device;
use super::errors::{self, check_range};
use super::memory::Domain;
use super::sys;
use crate::memory::{Region, RegionInit, RegisterError};
use crate::provider::{DeviceMemory, DeviceMemoryInit, DmaBufInit, Error, ErrorKind, InvalidAttribute, Result};
use crate::types::{AccessFlags, AdviceFlags, MemoryAdvice, Sge};

/// Access flags that need pages of this process.
const NOT_OF_DEVICES: AccessFlags = AccessFlags::ON_DEMAND.union(AccessFlags::HUGETLB);

/// Device memory of an adapter.
pub(super) struct IbverbsDeviceMemory {
    sys: Arc<sys::DeviceMemory>,
    device: Arc<Device>,
}

impl IbverbsDeviceMemory {
    pub(super) fn new(device: &Arc<Device>, init: &DeviceMemoryInit) -> Result<Self> {
        let &DeviceMemoryInit { length, log_align_req } = init;
        let most = device.limits().max_dm_size;
        if most == 0 {
            let message = format!("max_dm_size of {} is 0: it has no memory; length is {length}", device.name());
            return Err(Error::new("alloc_dm", ErrorKind::Unsupported, message));
        }
        if length == 0 {
            let message = format!("length is 0; allowed are 1 to {most} bytes");
            return Err(Error::out_of_range("alloc_dm", "length", length, 1..=most, message));
        }
        check_range("alloc_dm", "log_align_req", log_align_req, 0..=63)?;
        if length > most {
            let message = format!("length is {length}; max_dm_size is {most}");
            return Err(Error::new("alloc_dm", ErrorKind::ResourceLimit, message));
        }
        let sys = sys::DeviceMemory::alloc(&device.sys, length, log_align_req).map_err(|error| {
            let asked = format!("{length} bytes aligned to 2^{log_align_req} (max_dm_size {most})");
            errors::from_errno("alloc_dm", asked, &error)
        })?;
        Ok(Self { sys, device: Arc::clone(device) })
    }

    fn copied(
        &self,
        verb: &'static str,
        dm_offset: u64,
        length: usize,
        copy: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<()> {
        self.device.check_process(verb)?;
        let given = format!("dm_offset is {dm_offset} and length {length}");
        if dm_offset.checked_add(length as u64).is_none_or(|end| end > self.length()) {
            let message = format!("{given}; the device memory has {} bytes", self.length());
            return Err(Error::unsuitable(verb, "dm_offset", message));
        }
        copy().map_err(|error| {
            let aligned = dm_offset.is_multiple_of(4) && length.is_multiple_of(4);
            let hint = if aligned { "" } else { "; some adapters copy whole words only, so try multiples of 4" };
            errors::from_errno(verb, format!("{given}{hint}"), &error)
        })
    }
}

impl DeviceMemory for IbverbsDeviceMemory {
    fn length(&self) -> u64 {
        self.sys.length()
    }

    fn copy_in(&self, dm_offset: u64, data: &[u8]) -> Result<()> {
        self.copied("memcpy_to_dm", dm_offset, data.len(), || self.sys.copy_in(dm_offset, data))
    }

    fn copy_out(&self, dm_offset: u64, out: &mut [u8]) -> Result<()> {
        self.copied("memcpy_from_dm", dm_offset, out.len(), || self.sys.copy_out(dm_offset, out))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn refused(verb: &'static str, error: &RegisterError) -> Error {
    let kind = match error {
        RegisterError::UnsupportedAccess { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(verb, kind, error.to_string()).with_attributes(InvalidAttribute::of_registration(error))
}

/// Creates a region of `length` bytes that only the adapter accesses.
fn region(verb: &'static str, domain: &Domain, length: u64, options: &RegionInit) -> Result<Arc<Region>> {
    if options.access.intersects(NOT_OF_DEVICES) {
        let access = options.access;
        let message =
            format!("access is {access:?}; this memory has no pages of the process: leave {NOT_OF_DEVICES:?}");
        return Err(Error::unsuitable(verb, "access", message));
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Region::elsewhere(domain.id, length, options).map_err(|error| refused(verb, &error))
}

/// Registers a part of device memory.
pub(super) fn register_device(
    domain: &Arc<Domain>,
    memory: &Arc<dyn DeviceMemory>,
    dm_offset: u64,
    length: u64,
    access: AccessFlags,
) -> Result<sys::MemoryRegion> {
    let memory = match memory.as_any().downcast_ref::<IbverbsDeviceMemory>() {
        Some(memory) if Arc::ptr_eq(&memory.device, &domain.device) => memory,
        _ => return Err(errors::foreign("reg_dm_mr", "dm")),
    };
    let given = format!("dm_offset is {dm_offset} and length {length}");
    if length == 0 || dm_offset.checked_add(length).is_none_or(|end| end > memory.length()) {
        let message = format!("{given}; the device memory has {} bytes", memory.length());
        return Err(Error::unsuitable("reg_dm_mr", "dm_offset", message));
    }
    let access = access | AccessFlags::ZERO_BASED;
    let options = RegionInit { access, ..RegionInit::default() };
    let region = region("reg_dm_mr", domain, length, &options)?;
    let bits = region.access().bits();
    let registered = sys::MemoryRegion::register_device(&domain.sys, &region, &memory.sys, dm_offset, bits);
    registered.map_err(|error| errors::from_errno("reg_dm_mr", format!("{given} with {access:?}"), &error))
}

/// Registers memory behind a descriptor, without a mapping.
pub(super) fn register_descriptor(domain: &Arc<Domain>, init: &DmaBufInit<'_>) -> Result<sys::MemoryRegion> {
    let &DmaBufInit { fd, offset, length, access, iova } = init;
    let number = fd.as_raw_fd();
    if offset.checked_add(length).is_none() {
        let message = format!("offset is {offset} and length {length}; their sum must not exceed 2^64 - 1");
        return Err(Error::unsuitable("reg_dmabuf_mr", "offset", message));
    }
    let options = RegionInit { access, iova: Some(iova.unwrap_or(offset)), ..RegionInit::default() };
    let region = region("reg_dmabuf_mr", domain, length, &options)?;
    let bits = region.access().difference(AccessFlags::ZERO_BASED).bits();
    let registered = sys::MemoryRegion::register_descriptor(&domain.sys, &region, fd, offset, bits);
    registered.map_err(|error| {
        let asked =
            format!("fd {number}, {length} bytes from offset {offset} with {access:?}; adapters accept only dma-bufs");
        errors::from_errno("reg_dmabuf_mr", asked, &error)
    })
}

/// Checks advice and passes it to the adapter.
pub(super) fn advise(domain: &Domain, advice: MemoryAdvice, flags: AdviceFlags, sg_list: &[Sge]) -> Result<()> {
    let refuse = |message: String| Err(Error::new("advise_mr", ErrorKind::InvalidArgument, message));
    if !AdviceFlags::all().contains(flags) {
        return refuse(format!("flags is {flags:?}; allowed are {:?} and none", AdviceFlags::all()));
    }
    for &Sge { addr, length, lkey } in sg_list {
        let given = format!("sg_list: lkey {lkey}, addr {addr:#x} with length {length} given");
        let region = match domain.device.region(lkey.0) {
            Some(region) if region.region().domain() == domain.id => region,
            _ => return refuse(format!("{given}: no memory region of this domain has this key")),
        };
        let access = region.region().access();
        if !access.contains(AccessFlags::ON_DEMAND) {
            return refuse(format!("{given}, whose access is {access:?}; advice is for regions with ON_DEMAND"));
        }
    }
    if sg_list.is_empty() {
        return Ok(());
    }
    domain.sys.advise(advice as u32, flags.bits(), sg_list).map_err(|error| {
        let ranges: Vec<String> =
            sg_list.iter().map(|sge| format!("{} bytes from {:#x} by {}", sge.length, sge.addr, sge.lkey)).collect();
        errors::from_errno("advise_mr", format!("{advice:?} for {}", ranges.join(", ")), &error)
    })
}
