//! Conversion of errors of lower layers into errors of verbs.

use std::net::IpAddr;

use crate::memory::{AdviseError, RegisterError};
pub(super) use crate::provider::common::refusal::{
    check_cq_period, check_datagram, check_group, check_named_queue, check_operation, check_parts, check_plain_send,
    check_receive, check_sizes, check_srq_sizes, destroyed, destroyed_srq, foreign, from_modify, from_queue, inherited,
    length_of, no_event, not_attached, srq_in_use, srq_of_xrc, unacknowledged,
};
use crate::provider::{Error, ErrorKind, InvalidAttribute};
use crate::queue::{QueueError, SendQueue};
use crate::sys::OpenError;
use crate::transport::CreateError;
use crate::types::NoSharedMemory;

pub(super) fn from_register(verb: &'static str, error: &RegisterError) -> Error {
    let kind = match error {
        RegisterError::UnsupportedAccess { .. } => ErrorKind::Unsupported,
        RegisterError::NoFaultSafeCopy { .. } => ErrorKind::PermissionDenied,
        RegisterError::TooManyRegions { .. } | RegisterError::TooManyWindows { .. } => ErrorKind::ResourceLimit,
        RegisterError::Bound { .. } => ErrorKind::Busy,
        RegisterError::Deregistered => ErrorKind::InvalidState,
        RegisterError::NoRandomness => ErrorKind::System,
        _ => ErrorKind::InvalidArgument,
    };
    let refusal = match error {
        // C programs see only the error number.
        RegisterError::NotMapped { .. } | RegisterError::NotWritable { .. } => {
            Error::from_source(verb, kind, error.to_string(), std::io::Error::from_raw_os_error(error.errno()))
        }
        _ => Error::new(verb, kind, error.to_string()),
    };
    refusal.with_attributes(InvalidAttribute::of_registration(error))
}

pub(super) fn from_advise(error: &AdviseError) -> Error {
    let kind = match error {
        AdviseError::NoFaultSafeCopy { .. } => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new("advise_mr", kind, error.to_string())
}

/// Explains why a send request was not queued. For a full queue, the text explains that slots of unsignaled requests
/// are freed only by a later signaled one.
#[cold]
pub(super) fn from_send_queue(queue: &SendQueue, error: &QueueError) -> Error {
    let QueueError::Full { limit } = error else { return from_queue("post_send", error) };
    let unfinished = queue.outstanding();
    let finished = queue.pending().saturating_sub(unfinished);
    let message = format!(
        "max_send_wr is {limit}, and all slots are taken, {finished} of them by requests that are finished: slots come \
         back only when the completion of a signaled request, or of a later one, is polled. Poll, and signal at least \
         one request in {limit}; if none of these is signaled, only RESET frees the queue"
    );
    Error::new("post_send", ErrorKind::QueueFull, message)
}

pub(super) fn from_create(error: &CreateError) -> Error {
    let kind = match error {
        CreateError::TooMany { .. } => ErrorKind::ResourceLimit,
        CreateError::Unsupported(_) => ErrorKind::Unsupported,
    };
    Error::new("create_qp", kind, error.to_string())
}

pub(super) fn from_open(verb: &'static str, error: OpenError) -> Error {
    Error::from_io(verb, error.message, error.source)
}

/// Reports that a connection cannot have the shared memory that the device requires.
pub(super) fn no_shared_memory(peer: IpAddr, reason: &NoSharedMemory) -> Error {
    let message = format!(
        "shared memory is required for connections of this device, and the one to {peer} has none: {reason}; connect \
         to a process of this user on this host, or open the device with the setting auto (RDMA_VERBS_SHARED_MEMORY)"
    );
    Error::new("modify_qp", ErrorKind::Unsupported, message)
}

/// Reports that the shard is unusable because the engine panicked.
pub(super) fn engine_failed(verb: &'static str) -> Error {
    Error::new(verb, ErrorKind::System, "the engine panicked; close the device and open it again")
}
