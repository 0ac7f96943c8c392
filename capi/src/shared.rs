//! The state that all objects of an open device share. The file of each kind of object builds on this one.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rdma_verbs::provider::{self, abi};
use rdma_verbs::types::{DeviceAttributes, EventObject};

use crate::error::{Errno, INVALID, Result};
use crate::event_objects::EventObjects;
use crate::object::{Object, own};
use crate::settings::settings;
use crate::xrc_domain::SharedDomains;

/// State shared by the objects of an open device, which keep it alive.
pub(crate) struct Shared {
    /// The device.
    pub(crate) device: Arc<dyn provider::Context>,
    /// Its limits and capabilities.
    pub(crate) attributes: DeviceAttributes,
    /// Its GUID, in host byte order.
    pub(crate) guid: u64,
    /// Objects that events can refer to.
    pub(crate) event_objects: EventObjects,
    /// XRC domains that are identified by files.
    pub(crate) xrc_domains: SharedDomains,
    /// Importable objects, by handle.
    importable: Mutex<HashMap<u32, Weak<dyn Any + Send + Sync>>>,
    next_handle: AtomicU32,
    /// Identity of the file of `cmd_fd`: device and inode number.
    pub(crate) command_file: (u64, u64),
    /// The same device, opened again in a process that inherited this one.
    reopened: OnceLock<Arc<Shared>>,
}

impl Shared {
    pub(crate) fn new(device: Arc<dyn provider::Context>, guid: u64, command_file: (u64, u64)) -> Arc<Self> {
        Arc::new(Self {
            attributes: device.query_device(),
            device,
            guid,
            event_objects: EventObjects::default(),
            xrc_domains: SharedDomains::default(),
            importable: Mutex::default(),
            next_handle: AtomicU32::new(1),
            command_file,
            reopened: OnceLock::new(),
        })
    }

    /// Returns the device in this process. A child that inherited a context can create new objects on it, in a device
    /// of its own. Everything else that it inherited remains the parent's.
    fn in_this_process(self: &Arc<Self>) -> &Arc<Self> {
        if self.device.check_process("open_device").is_ok() {
            return self;
        }
        if let Some(reopened) = self.reopened.get() {
            // A grandchild inherited the child's device as well.
            return reopened.in_this_process();
        }
        // Two threads may both open the device here, and one result is dropped. No lock prevents that, because a child
        // could inherit it locked. Several open devices of one address are valid in any case.
        match settings().options.clone().open(self.device.name()) {
            Ok(device) => self.reopened.get_or_init(|| Self::new(device, self.guid, self.command_file)),
            // The verb will report that the device is inherited.
            Err(_) => self,
        }
    }

    /// Returns a handle that no other object of the device has.
    pub(crate) fn next_handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Fails if this process inherited the device through a fork: then no lock here may be taken.
    pub(crate) fn check_process(&self, verb: &'static str) -> Result<()> {
        Ok(self.device.check_process(verb)?)
    }

    /// Stops delivering events of an object that is about to be destroyed. Returns when those already delivered are
    /// acknowledged. The caller has made all checks, so nothing refuses the destruction afterwards. It happens after
    /// this, because the object's number can be reused from then on.
    pub(crate) fn end_events(&self, object: EventObject) -> Result<()> {
        self.event_objects.remove(object);
        self.device.wait_events_acked(object, None)?;
        Ok(())
    }

    /// Returns the descriptor that is readable only while an asynchronous event is pending.
    pub(crate) fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        match self.device.software() {
            Some(software) => Ok(software.exact_async_fd()?),
            None => Ok(self.device.async_fd()),
        }
    }

    fn importable(&self) -> MutexGuard<'_, HashMap<u32, Weak<dyn Any + Send + Sync>>> {
        self.importable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an object importable by its handle while it lives.
    pub(crate) fn offer(&self, handle: u32, object: Weak<dyn Any + Send + Sync>) {
        self.importable().insert(handle, object);
    }

    /// Removes an object that is about to be destroyed.
    pub(crate) fn withdraw(&self, handle: u32) {
        self.importable().remove(&handle);
    }

    /// Returns the object with this handle.
    pub(crate) fn import<T: Send + Sync + 'static>(&self, handle: u32) -> Result<Arc<T>> {
        let found = self.importable().get(&handle).and_then(Weak::upgrade).ok_or(Errno(libc::ENOENT))?;
        found.downcast().map_err(|_| INVALID)
    }
}

/// The state behind an open device.
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    _command: OwnedFd,
}

impl Context {
    /// Creates the state behind a context whose `cmd_fd` is `command`.
    pub(crate) fn new(shared: Arc<Shared>, command: OwnedFd) -> Self {
        Self { shared, _command: command }
    }
}

impl Object for abi::VerbsContext {
    type Own = Context;
}

/// Returns the table that ends with the program's context.
pub(crate) fn table(context: *mut abi::Context) -> *mut abi::VerbsContext {
    context.wrapping_byte_sub(std::mem::offset_of!(abi::VerbsContext, context)).cast()
}

/// Returns the state behind a context.
///
/// # Safety
/// The context came from this library, and is not closed before the reference ends.
pub(crate) unsafe fn context_of<'a>(context: *mut abi::Context) -> &'a Context {
    // SAFETY: contexts are created with their table in front; by the caller's promise this one was.
    unsafe { own(table(context)) }
}

/// Returns the state that the objects of a context share.
///
/// # Safety
/// As [`context_of`].
pub(crate) unsafe fn shared_of<'a>(context: *mut abi::Context) -> &'a Arc<Shared> {
    // SAFETY: the caller's promise.
    unsafe { context_of(context) }.shared.in_this_process()
}
