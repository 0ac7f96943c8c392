//! Errors of the layers below, as verbs report them.

use crate::engine::OpenError;
use crate::memory::{AdviseError, RegisterError};
use crate::mutation::{Mutation, planted};
use crate::provider::{Error, ErrorKind, Result};
use crate::queue::{QueueError, SendQueue};
use crate::transport::{CreateError, ModifyError};
use crate::types::{Operation, QueuePairType};

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
    Error::new(verb, kind, error.to_string())
}

pub(super) fn from_advise(error: &AdviseError) -> Error {
    let kind = match error {
        AdviseError::NoFaultSafeCopy { .. } => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new("advise_mr", kind, error.to_string())
}

pub(super) fn from_queue(verb: &'static str, error: &QueueError) -> Error {
    let kind = match error {
        QueueError::Full { .. } => ErrorKind::QueueFull,
        QueueError::NotBegun => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(verb, kind, error.to_string())
}

/// Why a send request was not queued. A full queue has a trap: unsignaled requests alone never leave it.
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

/// Refuses operations that queue pairs of this type do not have.
pub(super) fn check_operation(qp_type: QueuePairType, operation: &Operation) -> Result<()> {
    if operation.is_possible_on(qp_type) || planted(Mutation::OtherOperationsPosted) {
        return Ok(());
    }
    let possible = match qp_type {
        QueuePairType::UnreliableDatagram => "SEND with or without immediate",
        _ => "SEND and RDMA WRITE, with or without immediate",
    };
    let message = format!("opcode is {}; a queue pair of type {} takes {possible}", operation.name(), qp_type.name());
    Err(Error::new("post_send", ErrorKind::InvalidArgument, message))
}

pub(super) fn from_create(error: &CreateError) -> Error {
    let kind = match error {
        CreateError::TooMany { .. } => ErrorKind::ResourceLimit,
        CreateError::Unsupported(_) => ErrorKind::Unsupported,
    };
    Error::new("create_qp", kind, error.to_string())
}

pub(super) fn from_modify(error: &ModifyError) -> Error {
    let kind = match error {
        ModifyError::UnknownQueuePair
        | ModifyError::NoTransition { .. }
        | ModifyError::WrongCurrentState { .. }
        | ModifyError::StillDraining { .. } => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new("modify_qp", kind, error.to_string())
}

pub(super) fn from_open(verb: &'static str, error: OpenError) -> Error {
    Error::from_io(verb, error.message, error.source)
}

/// The shard is out of use because the engine panicked.
pub(super) fn engine_failed(verb: &'static str) -> Error {
    Error::new(verb, ErrorKind::System, "the engine has failed by a panic; close the device and open it again")
}

/// The device was opened before the process forked: what it consists of lives on in the parent only.
pub(super) fn inherited(verb: &'static str) -> Error {
    let message = "the device belongs to the process that this one was forked from; open it anew in this process";
    Error::new(verb, ErrorKind::InvalidState, message)
}

/// An object of another device was given.
pub(super) fn foreign(verb: &'static str, object: &str) -> Error {
    Error::new(verb, ErrorKind::InvalidArgument, format!("{object} belongs to another device"))
}
