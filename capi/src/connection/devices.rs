//! The devices that connections use. Each is opened once and stays open, because programs compare the contexts of
//! identifiers, and share protection domains between them.

use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_verbs::provider::{ConnectionManager, abi};
use rdma_verbs::types::Gid;

use crate::context::open;
use crate::device::{addresses, device_called, device_of_address, list};
use crate::error::{Errno, Result, UNSUPPORTED, pointer};
use crate::object::{free_list, give_list, own};
use crate::protection_domain::alloc;
use crate::shared::{Shared, shared_of};
use crate::xrc;

/// The only port of a device.
pub(super) const PORT: u8 = 1;

/// An open device, with the protection domain of identifiers that have none of their own.
pub(super) struct Device {
    pub(super) context: *mut abi::Context,
    pub(super) pd: *mut abi::Pd,
    shared: Arc<Shared>,
    /// The XRC domain of identifiers that have none of their own; null until one needs it.
    xrc_domain: AtomicPtr<abi::Xrcd>,
    next: AtomicPtr<Device>,
}

// SAFETY: verbs may be called from any thread, and the addresses never change.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

/// The open devices, the latest first: a list without a lock, which a forked child could inherit taken.
static FIRST: AtomicPtr<Device> = AtomicPtr::new(null_mut());

impl Device {
    /// Returns the state of the device in this process.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns its connection manager.
    pub(super) fn manager(&self) -> Result<&dyn ConnectionManager> {
        self.shared.device.connection_manager().ok_or(UNSUPPORTED)
    }

    /// Returns the XRC domain of identifiers that have none of their own. It stays open as the device does.
    pub(super) fn xrc_domain(&self) -> Result<*mut abi::Xrcd> {
        let known = self.xrc_domain.load(Ordering::Acquire);
        if !known.is_null() {
            return Ok(known);
        }
        let new = xrc::open_new(&self.shared, self.context)?;
        match self.xrc_domain.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(new),
            Err(first) => {
                // SAFETY: this thread has opened it, and no other one knows it.
                unsafe { xrc::close_xrcd(new) };
                Ok(first)
            }
        }
    }

    /// Returns the index of an address in its GID table.
    pub(super) fn gid_index(&self, gid: Gid) -> Result<u8> {
        let table = self.shared.device.gid_table(PORT)?;
        let found = table.iter().find(|entry| entry.gid == gid).map(|entry| entry.gid_index);
        found.ok_or(Errno(libc::EADDRNOTAVAIL))
    }

    /// Returns whether it is the device, and was opened in this process.
    fn is(&self, device: *mut abi::Device) -> bool {
        // SAFETY: the context is never closed, and the field never changes.
        let own = unsafe { (*self.context).device };
        own == device && self.is_current()
    }

    /// Returns whether it was opened in this process.
    fn is_current(&self) -> bool {
        self.shared.check_process("open_device").is_ok()
    }
}

/// Returns the open devices.
fn opened() -> impl Iterator<Item = &'static Device> {
    // SAFETY: the devices in the list are never freed.
    let deref = |device: *mut Device| unsafe { device.as_ref() };
    std::iter::successors(deref(FIRST.load(Ordering::Acquire)), move |device| {
        deref(device.next.load(Ordering::Acquire))
    })
}

/// Opens a device, unless it is open in this process. If two threads open it at once, both use the first in the list.
fn opened_of(device: *mut abi::Device) -> Result<&'static Device> {
    if let Some(found) = opened().find(|known| known.is(device)) {
        return Ok(found);
    }
    let context = open(device)?;
    // SAFETY: the context that was just opened.
    let shared = Arc::clone(unsafe { shared_of(context) });
    let pd = alloc(&shared, context)?;
    let (xrc_domain, next) = (AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut()));
    let new = Box::into_raw(Box::new(Device { context, pd, shared, xrc_domain, next }));
    loop {
        let first = FIRST.load(Ordering::Acquire);
        if let Some(found) = opened().find(|known| known.is(device)) {
            // The other one stays open without a use, once in the life of a process at most.
            return Ok(found);
        }
        // SAFETY: just made, and not in the list yet.
        unsafe { (*new).next.store(first, Ordering::Release) };
        if FIRST.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // SAFETY: the devices in the list are never freed.
            return Ok(unsafe { &*new });
        }
    }
}

/// Returns the listed devices, opened.
pub(super) fn all() -> Result<Vec<&'static Device>> {
    let mut found = Vec::new();
    for device in list()?.into_iter().filter(|device| !device.is_null()) {
        match opened_of(device) {
            Ok(device) => found.push(device),
            Err(Errno(error)) => {
                // SAFETY: a device of this library.
                let name = &unsafe { own(device) }.provider_name;
                tracing::warn!(target: "rdma_verbs::c_library", device = name, error, "the device cannot be opened");
            }
        }
    }
    if found.is_empty() { Err(Errno(libc::ENODEV)) } else { Ok(found) }
}

/// Returns the device that has an address: one that is listed, or that of one loopback address.
pub(super) fn of_address(address: IpAddr) -> Result<&'static Device> {
    let gid = Gid::from(address);
    if let Some(found) = opened().find(|known| known.is_current() && known.gid_index(gid).is_ok()) {
        return Ok(found);
    }
    // This enters the devices into the list of those that are known.
    list()?;
    let listed = addresses()?.into_iter().find(|(_, own)| own.contains(&address));
    match listed {
        Some((name, _)) => opened_of(device_called(&name)?),
        None if address.is_loopback() => opened_of(device_of_address(address)),
        None => Err(Errno(libc::EADDRNOTAVAIL)),
    }
}

/// Returns the contexts of all devices, and a null pointer at the end. They are those of identifiers.
pub(super) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut abi::Context {
    pointer(all().map(|devices| {
        let contexts = devices.iter().map(|device| device.context).chain([null_mut()]);
        // SAFETY: the program's number, which may be written.
        unsafe { give_list(contexts.collect(), count) }
    }))
}

/// Frees a list of [`rdma_get_devices`]; the devices stay open.
pub(super) unsafe extern "C" fn rdma_free_devices(list: *mut *mut abi::Context) {
    // SAFETY: the list is null or one that `rdma_get_devices` gave, and the program gives it up.
    unsafe { free_list(list) };
}
