//! Open devices: the function tables that programs are compiled against, and the state shared by all objects of a
//! device.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rdma_verbs::provider::{self, ErrorKind, abi};
use rdma_verbs::types::DeviceAttributes;

use crate::async_event::EventObjects;
use crate::device::Device;
use crate::error::{Errno, INVALID, Result, number, pointer};
use crate::object::{Object, Zeroed, make, own, take};
use crate::settings::settings;
use crate::version::exported;
use crate::xrc::SharedDomains;
use crate::{
    completion_queue, completion_queue_ex, device_memory, memory_region, memory_window, modify, parent_domain, port,
    post, queue_pair_init, shared_receive, xrc,
};

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
    /// XRC domains that files name.
    pub(crate) xrc_domains: SharedDomains,
    /// Importable objects, by handle.
    importable: Mutex<HashMap<u32, Weak<dyn Any + Send + Sync>>>,
    next_handle: AtomicU32,
    /// Identity of the file that `cmd_fd` stands for: device and inode number.
    command_file: (u64, u64),
    /// The same device, opened again in a process that inherited this one.
    again: OnceLock<Arc<Shared>>,
}

impl Shared {
    fn new(device: Arc<dyn provider::Context>, guid: u64, command_file: (u64, u64)) -> Arc<Self> {
        Arc::new(Self {
            attributes: device.query_device(),
            device,
            guid,
            event_objects: EventObjects::default(),
            xrc_domains: SharedDomains::default(),
            importable: Mutex::default(),
            next_handle: AtomicU32::new(1),
            command_file,
            again: OnceLock::new(),
        })
    }

    /// Returns the device in this process. A child that inherited a context can create new objects on it, in a device
    /// of its own. Everything else that it inherited remains the parent's.
    fn here(self: &Arc<Self>) -> &Arc<Self> {
        if self.device.check_process("open_device").is_ok() {
            return self;
        }
        if let Some(again) = self.again.get() {
            // A grandchild inherited that one as well.
            return again.here();
        }
        match settings().config.clone().open(self.device.name()) {
            Ok(device) => self.again.get_or_init(|| Self::new(device, self.guid, self.command_file)),
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

impl Object for abi::VerbsContext {
    type Own = Context;
}

/// Returns the table that ends with the program's context.
fn table(context: *mut abi::Context) -> *mut abi::VerbsContext {
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
    unsafe { context_of(context) }.shared.here()
}

/// Open devices, for imports.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

fn open_devices() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Creates a file whose copies can be recognized. Nothing is ever written to it.
fn new_command_file() -> Result<(OwnedFd, (u64, u64))> {
    // SAFETY: the call reads only the name, which is static.
    let fd = unsafe { libc::memfd_create(c"rdma-verbs".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(system_error());
    }
    // SAFETY: a new descriptor with no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let identity = identity(fd.try_clone().map_err(|_| system_error())?)?;
    Ok((fd, identity))
}

fn identity(fd: OwnedFd) -> Result<(u64, u64)> {
    let about = File::from(fd).metadata().map_err(|_| Errno(libc::EBADF))?;
    Ok((about.dev(), about.ino()))
}

fn open(device: *mut abi::Device) -> Result<*mut abi::Context> {
    // SAFETY: the program gives a device of this library, which is never freed.
    let Device { provider_name, guid } = unsafe { own(device) };
    settings().prepare_process();
    let inner = settings().config.clone().open(provider_name).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Errno(libc::ENODEV),
        _ => error.into(),
    })?;
    let (command, command_file) = new_command_file()?;
    let shared = Shared::new(inner, *guid, command_file);
    let mut open = open_devices();
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(&shared));
    drop(open);
    visible(device, shared, command)
}

/// Creates the context that the program sees.
fn visible(device: *mut abi::Device, shared: Arc<Shared>, command: OwnedFd) -> Result<*mut abi::Context> {
    let mut table = abi::VerbsContext::zeroed();
    set_operations(&mut table.context.ops);
    set_extended_operations(&mut table);
    table.sz = size_of::<abi::VerbsContext>();
    let context = &mut table.context;
    context.device = device;
    context.cmd_fd = command.as_raw_fd();
    context.async_fd = shared.device.exact_async_fd()?.as_raw_fd();
    context.num_comp_vectors = shared.attributes.num_comp_vectors as c_int;
    context.abi_compat = usize::MAX as *mut _;
    let made = make(table, Context { shared, _command: command });
    // SAFETY: the address is computed within the table that was just made.
    Ok(unsafe { &raw mut (*made).context })
}

fn set_operations(ops: &mut abi::ContextOps) {
    ops.alloc_mw = Some(memory_window::alloc_mw);
    ops.bind_mw = Some(memory_window::bind_mw);
    ops.dealloc_mw = Some(memory_window::dealloc_mw);
    ops.poll_cq = Some(completion_queue::poll_cq);
    ops.req_notify_cq = Some(completion_queue::req_notify_cq);
    ops.post_srq_recv = Some(shared_receive::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

/// Sets the extended operations. The headers' own functions return `EOPNOTSUPP` for a missing one.
fn set_extended_operations(table: &mut abi::VerbsContext) {
    table.query_port = Some(port::query_port);
    table.query_device_ex = Some(port::query_device_ex);
    table.query_rt_values = Some(port::query_rt_values);
    table.advise_mr = Some(memory_region::advise_mr);
    table.reg_dm_mr = Some(device_memory::reg_dm_mr);
    table.alloc_dm = Some(device_memory::alloc_dm);
    table.free_dm = Some(device_memory::free_dm);
    table.alloc_td = Some(parent_domain::alloc_td);
    table.dealloc_td = Some(parent_domain::dealloc_td);
    table.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    table.create_cq_ex = Some(completion_queue_ex::create_cq_ex);
    table.modify_cq = Some(completion_queue::modify_cq);
    table.create_qp_ex = Some(queue_pair_init::create_qp_ex);
    table.modify_qp_rate_limit = Some(modify::modify_qp_rate_limit);
    table.create_srq_ex = Some(shared_receive::create_srq_ex);
    table.get_srq_num = Some(shared_receive::get_srq_num);
    table.open_xrcd = Some(xrc::open_xrcd);
    table.close_xrcd = Some(xrc::close_xrcd);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut abi::Context {
    pointer(open(device))
}

/// Closes the device. Remaining objects keep it open underneath, and can be destroyed later.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: the program gives up its context.
    drop(unsafe { take(table(context)) });
    number(Ok(()))
}

/// Finds the device that `cmd_fd`, a copy of a context's, belongs to.
fn import(cmd_fd: c_int) -> Result<*mut abi::Context> {
    if cmd_fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: borrowed only for this call, which queries its identity; if it is not open, that fails.
    let copy = unsafe { BorrowedFd::borrow_raw(cmd_fd) }.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?;
    let wanted = identity(copy.try_clone().map_err(|_| system_error())?)?;
    let open: Vec<Arc<Shared>> = open_devices().iter().filter_map(Weak::upgrade).collect();
    // Only this process's devices: nothing can be taken over from another process.
    let shared = open.into_iter().find(|shared| shared.command_file == wanted).ok_or(crate::error::UNSUPPORTED)?;
    let device = crate::device::device_called(shared.device.name())?;
    visible(device, shared, copy)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut abi::Context {
    pointer(import(cmd_fd))
}

exported! {
    "IBVERBS_1.1": ibv_open_device ibv_close_device;
    "IBVERBS_1.10": ibv_import_device;
}
