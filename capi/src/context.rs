//! Opening, importing and closing devices.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_verbs::provider::{ErrorKind, abi};

use crate::device::{Device, device_called};
use crate::error::{Errno, Result, UNSUPPORTED, number, pointer};
use crate::object::{Zeroed, make, own, take};
use crate::operations::set_operations;
use crate::settings::settings;
use crate::shared::{Context, Shared, table};
use crate::version::exported;

/// Open devices, for imports.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

fn open_devices() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Creates the file of a `cmd_fd`, with its identity, by which duplicates are recognized. Nothing is written to it.
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

/// Opens a device.
pub(crate) fn open(device: *mut abi::Device) -> Result<*mut abi::Context> {
    // SAFETY: the program passes a device of this library, which is never freed.
    let Device { provider_name, guid } = unsafe { own(device) };
    settings().prepare_process();
    let inner = settings().options.clone().open(provider_name).map_err(|error| match error.kind() {
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
    set_operations(&mut table);
    table.sz = size_of::<abi::VerbsContext>();
    let context = &mut table.context;
    context.device = device;
    context.cmd_fd = command.as_raw_fd();
    context.async_fd = shared.async_fd()?.as_raw_fd();
    context.num_comp_vectors = shared.attributes.num_comp_vectors as c_int;
    context.abi_compat = usize::MAX as *mut _;
    let made = make(table, Context::new(shared, command));
    // SAFETY: the address is computed within the table that was just made.
    Ok(unsafe { &raw mut (*made).context })
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

/// Creates another context of the device to which `cmd_fd`, a duplicate of a context's descriptor, belongs.
fn import(cmd_fd: c_int) -> Result<*mut abi::Context> {
    if cmd_fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: borrowed only for this call, which queries its identity; if it is not open, that fails.
    let copy = unsafe { BorrowedFd::borrow_raw(cmd_fd) }.try_clone_to_owned().map_err(|_| Errno(libc::EBADF))?;
    let wanted = identity(copy.try_clone().map_err(|_| system_error())?)?;
    let open: Vec<Arc<Shared>> = open_devices().iter().filter_map(Weak::upgrade).collect();
    // Only devices of this process can be imported.
    let shared = open.into_iter().find(|shared| shared.command_file == wanted).ok_or(UNSUPPORTED)?;
    let device = device_called(shared.device.name())?;
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
