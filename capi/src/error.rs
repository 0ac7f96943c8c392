//! Errors of verbs in C.
//!
//! Functions report errors in one of three ways: with the error number, with -1 and `errno`, or with a null pointer and
//! `errno`. The text of an error goes to the log.

use std::ffi::c_int;

use rdma_verbs::provider::{Error, ErrorKind, RefusedBacking, RefusedChange};

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Errno(pub(crate) c_int);

/// An invalid argument.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// An operation that this library does not offer.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// The object is in use.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);

pub(crate) type Result<T, E = Errno> = std::result::Result<T, E>;

impl From<Error> for Errno {
    #[cold]
    fn from(error: Error) -> Self {
        let number = match error.kind() {
            ErrorKind::AddressInUse => libc::EADDRINUSE,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::QueueFull | ErrorKind::ResourceLimit => error.os_error().unwrap_or(libc::ENOMEM),
            ErrorKind::PermissionDenied => error.os_error().unwrap_or(libc::EACCES),
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::System | ErrorKind::Protocol => error.os_error().unwrap_or(libc::EIO),
            _ => error.os_error().unwrap_or(libc::EINVAL),
        };
        // Errors that a program cannot handle are logged at a level that is visible by default; the others only on
        // request.
        match error.kind() {
            ErrorKind::AddressInUse | ErrorKind::PermissionDenied | ErrorKind::System => tracing::warn!(
                target: "rdma_verbs::c_library", "{error}"
            ),
            ErrorKind::QueueFull => tracing::debug!(target: "rdma_verbs::c_library", "{error}"),
            _ => tracing::info!(target: "rdma_verbs::c_library", "{error}"),
        }
        Self(number)
    }
}

impl From<RefusedBacking> for Errno {
    fn from(refused: RefusedBacking) -> Self {
        refused.error.into()
    }
}

impl From<RefusedChange> for Errno {
    fn from(refused: RefusedChange) -> Self {
        refused.error.into()
    }
}

/// Returns `errno` of this thread, after a function of C has failed.
pub(crate) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Sets `errno` of this thread.
pub(crate) fn set_errno(error: Errno) {
    // SAFETY: the C library's location of this thread's `errno`.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Returns 0, or the error number.
#[inline]
pub(crate) fn number(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => failed_number(error),
    }
}

/// Sets `errno` as well, because programs read it even where the result is the error number.
#[cold]
fn failed_number(error: Errno) -> c_int {
    set_errno(error);
    error.0
}

/// Returns 0, or -1 and sets `errno`.
pub(crate) fn zero_or_minus_one(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Returns the pointer, or null and sets `errno`.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}
