//! Checks that all providers share, and errors of the layers below, with the same texts everywhere.

use std::ops::RangeInclusive;

use super::{Error, ErrorKind, QueuePairInit, Result};
use crate::queue::QueueError;
use crate::types::modify::ModifyError;
use crate::types::{DomainId, Operation, QueuePairType};

pub(super) fn from_queue(verb: &'static str, error: &QueueError) -> Error {
    let kind = match error {
        QueueError::Full { .. } => ErrorKind::QueueFull,
        QueueError::NotBegun => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(verb, kind, error.to_string())
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

/// Returns the error for a device that was opened before the process forked: its resources belong to the parent.
pub(super) fn inherited(verb: &'static str) -> Error {
    let message = "the device belongs to the process that this one was forked from; open it again in this process";
    Error::new(verb, ErrorKind::InvalidState, message)
}

/// Returns the error for an object of another device.
pub(super) fn foreign(verb: &'static str, object: &str) -> Error {
    Error::new(verb, ErrorKind::InvalidArgument, format!("{object} belongs to another device"))
}

/// Refuses a value outside the allowed range, naming the attribute.
pub(super) fn check_range(verb: &'static str, attribute: &str, given: u32, allowed: RangeInclusive<u32>) -> Result<()> {
    if allowed.contains(&given) {
        return Ok(());
    }
    let message = format!("{attribute} is {given}; allowed are {} to {}", allowed.start(), allowed.end());
    Err(Error::new(verb, ErrorKind::InvalidArgument, message))
}

/// Refuses operations that queue pairs of this type do not have.
pub(super) fn check_operation(qp_type: QueuePairType, operation: &Operation) -> Result<()> {
    if operation.is_possible_on(qp_type) {
        return Ok(());
    }
    let possible = match qp_type {
        QueuePairType::UnreliableDatagram => "SEND with or without immediate",
        _ => "SEND and RDMA WRITE, with or without immediate",
    };
    let message = format!("opcode is {}; a queue pair of type {} takes {possible}", operation.name(), qp_type.name());
    Err(Error::new("post_send", ErrorKind::InvalidArgument, message))
}

/// Refuses a new queue pair whose shared receive queue or XRC domain does not fit its type.
pub(super) fn check_parts(init: &QueuePairInit<'_>) -> Result<()> {
    let message = match (init.qp_type, init.srq, init.xrc_domain) {
        (QueuePairType::XrcSend | QueuePairType::XrcReceive, Some(_), _) => {
            "srq is given; an XRC queue pair has none: its messages name shared receive queues"
        }
        (QueuePairType::XrcReceive, None, None) => "xrc_domain is missing; an XRC target needs one",
        (QueuePairType::XrcReceive, None, Some(_)) => return Ok(()),
        (_, _, Some(_)) => "xrc_domain is given; only an XRC target has one",
        (_, _, None) => return Ok(()),
    };
    Err(Error::new("create_qp", ErrorKind::InvalidArgument, message))
}

/// Refuses a datagram whose address handle belongs to another domain than the queue pair, or that is longer than its
/// port carries. `is_own` says whether the domains are the same: domains of different devices may have the same number.
pub(super) fn check_datagram(is_own: bool, handle: DomainId, own: DomainId, length: u64, mtu_bytes: u32) -> Result<()> {
    let message = if !is_own {
        format!("the address handle belongs to protection domain {}, the queue pair to {}", handle.0, own.0)
    } else if length > u64::from(mtu_bytes) {
        format!("length is {length} bytes; a datagram carries at most {mtu_bytes} (the port's active_mtu)")
    } else {
        return Ok(());
    };
    Err(Error::new("post_send", ErrorKind::InvalidArgument, message))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_named() {
        assert!(check_range("create_cq", "cqe", 7, 1..=7).is_ok());
        let error = check_range("create_cq", "cqe", 0, 1..=7).unwrap_err();
        assert_eq!(error.to_string(), "create_cq: cqe is 0; allowed are 1 to 7");
    }
}
