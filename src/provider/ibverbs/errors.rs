//! What the library's error numbers mean to those who called a verb.

use std::io;

use crate::provider::{Error, ErrorKind};
use crate::queue::QueueError;
use crate::transport::ModifyError;

/// An error number of the library; `asked` says what was asked for.
pub(super) fn from_errno(verb: &'static str, asked: impl Into<String>, error: &io::Error) -> Error {
    let asked = asked.into();
    let kind = match error.raw_os_error() {
        Some(libc::EINVAL | libc::E2BIG | libc::EFAULT) => ErrorKind::InvalidArgument,
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EMFILE | libc::ENFILE) => ErrorKind::ResourceLimit,
        Some(libc::EBUSY) => ErrorKind::Busy,
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => ErrorKind::Unsupported,
        Some(libc::EPERM | libc::EACCES) => ErrorKind::PermissionDenied,
        Some(libc::ENOENT | libc::ENODEV | libc::ENODATA) => ErrorKind::NotFound,
        _ => ErrorKind::System,
    };
    Error::new(verb, kind, format!("{asked}: the adapter answers {error}"))
}

/// The device cannot be opened.
pub(super) fn opening(name: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let message = format!("{name} cannot be opened; may this user read and write /dev/infiniband/uverbs*?");
            Error::from_io("open_device", message, error)
        }
        _ => from_errno("open_device", format!("{name} cannot be opened"), &error),
    }
}

pub(super) fn from_queue(verb: &'static str, error: &QueueError) -> Error {
    let kind = match error {
        QueueError::Full { .. } => ErrorKind::QueueFull,
        QueueError::NotBegun => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(verb, kind, error.to_string())
}

/// A queue pair's own queue is full.
pub(super) fn full(verb: &'static str, limit: u32) -> Error {
    if verb != "post_send" {
        return from_queue(verb, &QueueError::Full { limit });
    }
    let message = format!(
        "max_send_wr is {limit}, and so many requests are outstanding: slots come back when the completion of a \
         signaled request, or of a later one, is polled. Poll, and signal at least one request in {limit}; if none of \
         these is signaled, only RESET frees the queue"
    );
    Error::new(verb, ErrorKind::QueueFull, message)
}

pub(super) fn from_modify(error: &ModifyError) -> Error {
    let kind = match error {
        ModifyError::NoTransition { .. } | ModifyError::WrongCurrentState { .. } => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new("modify_qp", kind, error.to_string())
}

/// The device was opened before the process forked: the kernel's objects are the parent's.
pub(super) fn inherited(verb: &'static str) -> Error {
    let message = "the device belongs to the process that this one was forked from; open it anew in this process";
    Error::new(verb, ErrorKind::InvalidState, message)
}

/// An object of another device was given.
pub(super) fn foreign(verb: &'static str, object: &str) -> Error {
    Error::new(verb, ErrorKind::InvalidArgument, format!("{object} belongs to another device"))
}

/// A value outside its range.
pub(super) fn check_range(
    verb: &'static str,
    attribute: &str,
    given: u32,
    allowed: std::ops::RangeInclusive<u32>,
) -> Result<(), Error> {
    if allowed.contains(&given) {
        return Ok(());
    }
    let message = format!("{attribute} is {given}; allowed are {} to {}", allowed.start(), allowed.end());
    Err(Error::new(verb, ErrorKind::InvalidArgument, message))
}
