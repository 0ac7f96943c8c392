//! The functions of the loaded libibverbs.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::functions::{Table, VERSION};

/// The name of the function in `libibverbs.so.1` that returns the table of a version, or null.
const TABLE_FUNCTION: &CStr = c"rdma_verbs_connection_functions";
type TableFunction = unsafe extern "C" fn(u64) -> *const Table;

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// Returns the functions, or sets `errno`.
#[inline]
pub(crate) fn functions() -> Option<&'static Table> {
    let known = TABLE.load(Ordering::Acquire);
    if known.is_null() {
        return find();
    }
    // SAFETY: the table is static, and its library is never unloaded.
    Some(unsafe { &*known })
}

#[cold]
fn find() -> Option<&'static Table> {
    // SAFETY: the name ends with a zero. This library needs the other one, so it is loaded; a preloaded one is found
    // first.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let symbol = |name: &CStr| match library.is_null() {
        true => null_mut(),
        // SAFETY: the library is open; the name ends with a zero.
        false => unsafe { libc::dlsym(library, name.as_ptr()) },
    };
    let function = symbol(TABLE_FUNCTION);
    let mut table = null_mut();
    if !function.is_null() {
        // SAFETY: only our libibverbs has a function of this name, of this type.
        table = unsafe { std::mem::transmute::<*mut c_void, TableFunction>(function)(VERSION) }.cast_mut();
    }
    TABLE.store(table, Ordering::Release);
    // SAFETY: null, or the static table.
    let found = unsafe { table.as_ref() };
    if found.is_none() {
        report(symbol(c"ibv_get_device_list"), !function.is_null());
        // SAFETY: the C library's location of this thread's `errno`.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
    }
    found
}

/// Reports once which libibverbs is loaded, by the address of one of its functions.
fn report(function: *const c_void, is_ours: bool) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if IS_REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: writes one structure, for which zero is valid as well.
    let (is_known, about) = unsafe { (libc::dladdr(function, about.as_mut_ptr()) != 0, about.assume_init()) };
    let path = match is_known && !about.dli_fname.is_null() {
        // SAFETY: the name of a loaded file.
        true => unsafe { CStr::from_ptr(about.dli_fname) }.to_string_lossy().into_owned(),
        false => "no libibverbs.so.1".to_owned(),
    };
    let fault = if is_ours { "belongs to another build" } else { "is another library" };
    print(&format!(
        "librdmacm.so.1 of rdma-verbs: all calls fail, because the loaded libibverbs ({path}) {fault}. Use the \
         libibverbs.so.1 that was installed with it: run the program with rdma-verbs-run, or put their folder first \
         into LD_LIBRARY_PATH\n"
    ));
}

/// Writes a line to standard error, if that takes it: a pipe without a reader would raise a signal.
fn print(line: &str) {
    let mut entry = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one local structure, and the bytes of the line.
    unsafe {
        let ready: c_int = libc::poll(&raw mut entry, 1, 0);
        if ready == 1 && entry.revents == libc::POLLOUT {
            libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        }
    }
}
