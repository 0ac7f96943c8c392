//! Errors of verbs, from the library's error numbers.

use std::io;

pub(super) use crate::provider::common::refusal::{
    check_cq_period, check_datagram, check_group, check_named_queue, check_operation, check_parts, check_plain_send,
    check_range, check_receive, check_sizes, check_srq_sizes, destroyed, destroyed_srq, foreign, from_modify,
    from_queue, inherited, length_of, no_event, not_attached, srq_in_use, srq_of_xrc, unacknowledged,
};
use crate::provider::{Error, ErrorKind};
use crate::queue::QueueError;

/// Converts an error number of the library; `asked` describes the request.
pub(super) fn from_errno(verb: &'static str, asked: impl Into<String>, error: &io::Error) -> Error {
    Error::new(verb, kind(error), format!("{}: the adapter returned {error}", asked.into()))
}

/// Returns the kind of an error number of the library.
pub(super) fn kind(error: &io::Error) -> ErrorKind {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::E2BIG | libc::EFAULT) => ErrorKind::InvalidArgument,
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EMFILE | libc::ENFILE) => ErrorKind::ResourceLimit,
        Some(libc::EBUSY) => ErrorKind::Busy,
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => ErrorKind::Unsupported,
        Some(libc::EPERM | libc::EACCES) => ErrorKind::PermissionDenied,
        Some(libc::ENOENT | libc::ENODEV | libc::ENODATA) => ErrorKind::NotFound,
        _ => ErrorKind::System,
    }
}

/// Returns the error for a device that cannot be opened.
pub(super) fn opening(name: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let message = format!(
                "{name} cannot be opened: this user needs permission to read and write its file /dev/infiniband/uverbs*"
            );
            Error::from_io("open_device", message, error)
        }
        _ => from_errno("open_device", format!("{name} cannot be opened"), &error),
    }
}

/// Returns the error for a full send or receive queue.
pub(super) fn full(verb: &'static str, limit: u32) -> Error {
    if verb != "post_send" {
        return from_queue(verb, &QueueError::Full { limit });
    }
    let message = format!(
        "max_send_wr is {limit}, and that many requests are outstanding: slots are freed when the completion of a \
         signaled request, or of a later one, is polled. Poll, and signal at least one request in {limit}; if none of \
         these is signaled, only RESET frees the queue"
    );
    Error::new(verb, ErrorKind::QueueFull, message)
}
