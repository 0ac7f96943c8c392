//! Checks that all providers share, and errors of the layers below, with the same texts everywhere.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::provider::{
    AttributeFault, Error, ErrorKind, InvalidAttribute, QueuePairInit, Result, SharedReceiveQueueInit,
};
use crate::queue::QueueError;
use crate::types::modify::ModifyError;
use crate::types::{
    Data, DeviceAttributes, DomainId, EventObject, Gid, Operation, Qpn, QueuePairCapabilities, QueuePairType,
    SharedReceiveQueueNumber,
};

pub(in crate::provider) fn from_queue(verb: &'static str, error: &QueueError) -> Error {
    let kind = match error {
        QueueError::Full { .. } => ErrorKind::QueueFull,
        QueueError::NotBegun => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    let attribute = match *error {
        QueueError::TooManySges { given, limit } => Some(("num_sge", too_large(given as u64, limit))),
        QueueError::InlineTooLong { given, limit } => Some(("inline_data", too_large(given, limit))),
        QueueError::MessageTooLong { given, limit } => Some(("length", too_large(given, limit))),
        QueueError::DataNotAllowed { given } => Some(("length", too_large(given, 0))),
        QueueError::NoDestination => Some(("ah", AttributeFault::Missing)),
        QueueError::DestinationNotAllowed => Some(("ah", AttributeFault::NotAllowed)),
        QueueError::InlineNotAllowed => Some(("inline_data", AttributeFault::NotAllowed)),
        QueueError::BadAtomicLength => Some(("length", AttributeFault::Unsuitable)),
        _ => None,
    };
    let attribute = attribute.map(|(name, fault)| InvalidAttribute::new(name, fault));
    Error::new(verb, kind, error.to_string()).with_attributes(attribute)
}

fn too_large(given: u64, limit: u32) -> AttributeFault {
    AttributeFault::OutOfRange { given, allowed: 0..=limit.into() }
}

pub(in crate::provider) fn from_modify(error: &ModifyError) -> Error {
    let kind = match error {
        ModifyError::UnknownQueuePair
        | ModifyError::NoTransition { .. }
        | ModifyError::WrongCurrentState { .. }
        | ModifyError::StillDraining { .. } => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    let faulty = |names: &[&'static str], fault: AttributeFault| -> Vec<InvalidAttribute> {
        names.iter().map(|name| InvalidAttribute::new(*name, fault.clone())).collect()
    };
    let attributes = match error {
        ModifyError::UnknownQueuePair | ModifyError::NoTransition { .. } | ModifyError::StillDraining { .. } => vec![],
        ModifyError::Missing { names, .. } => faulty(names, AttributeFault::Missing),
        ModifyError::NotAllowed { names, .. } => faulty(names, AttributeFault::NotAllowed),
        ModifyError::MissingAndNotAllowed { missing, extra, .. } => {
            [faulty(missing, AttributeFault::Missing), faulty(extra, AttributeFault::NotAllowed)].concat()
        }
        ModifyError::WrongCurrentState { .. } => faulty(&["cur_qp_state"], AttributeFault::Unsuitable),
        ModifyError::OutOfRange { name, given, range, .. } => {
            faulty(&[name], AttributeFault::OutOfRange { given: *given, allowed: range.clone() })
        }
    };
    Error::new("modify_qp", kind, error.to_string()).with_attributes(attributes)
}

/// Returns the error for a device that was opened before the process forked: its resources belong to the parent.
pub(in crate::provider) fn inherited(verb: &'static str) -> Error {
    let message = "the device belongs to the process that this one was forked from; open it again in this process";
    Error::new(verb, ErrorKind::InvalidState, message)
}

/// Returns the error for a wait on a completion channel that ended without an event. It allocates nothing, because
/// programs often poll for events that have not occurred.
pub(in crate::provider) fn no_event() -> Error {
    Error::new("get_cq_event", ErrorKind::TimedOut, "no event came within the timeout")
}

/// Returns the error for a wait that ended before the events about `object` were acknowledged.
pub(in crate::provider) fn unacknowledged(object: EventObject, timeout: Option<Duration>) -> Error {
    let timeout = timeout.unwrap_or_default();
    let message = format!("events about {object:?} were not acknowledged within {timeout:?}");
    Error::new("ack_async_event", ErrorKind::TimedOut, message)
}

/// Returns the error for a destroyed queue pair.
pub(in crate::provider) fn destroyed(verb: &'static str, qpn: Qpn) -> Error {
    Error::new(verb, ErrorKind::InvalidState, format!("queue pair {qpn} is destroyed"))
}

/// Returns the error for a destroyed shared receive queue.
pub(in crate::provider) fn destroyed_srq(verb: &'static str, srq: SharedReceiveQueueNumber) -> Error {
    Error::new(verb, ErrorKind::InvalidState, format!("shared receive queue {srq} is destroyed"))
}

/// Returns the error for destroying a shared receive queue that queue pairs use.
pub(in crate::provider) fn srq_in_use(srq: SharedReceiveQueueNumber, users: u32) -> Error {
    let message =
        format!("{users} queue pairs take their receives from shared receive queue {srq}; destroy them first");
    Error::new("destroy_srq", ErrorKind::Busy, message)
}

/// Returns the error for a new queue pair that is to use the shared receive queue of an XRC domain.
pub(in crate::provider) fn srq_of_xrc(srq: SharedReceiveQueueNumber) -> Error {
    let message = format!(
        "srq {srq} belongs to an XRC domain: the messages of XRC targets name it, other queue pairs cannot use it"
    );
    Error::unsuitable("create_qp", "srq", message)
}

/// Returns the error for an object of another device.
pub(in crate::provider) fn foreign(verb: &'static str, object: &'static str) -> Error {
    Error::unsuitable(verb, object, format!("{object} belongs to another device"))
}

/// Refuses a value outside the allowed range, naming the attribute.
pub(in crate::provider) fn check_range(
    verb: &'static str,
    attribute: impl Into<Cow<'static, str>>,
    given: u32,
    allowed: RangeInclusive<u32>,
) -> Result<()> {
    if allowed.contains(&given) {
        return Ok(());
    }
    let (attribute, first, last) = (attribute.into(), *allowed.start(), *allowed.end());
    let message = format!("{attribute} is {given}; allowed are {first} to {last}");
    Err(Error::out_of_range(verb, attribute, given, first.into()..=last.into(), message))
}

/// Refuses a moderation period, in microseconds, that is longer than `longest`.
pub(in crate::provider) fn check_cq_period(given: u32, longest: u32) -> Result<()> {
    if given <= longest {
        return Ok(());
    }
    let message = format!("moderate.cq_period in microseconds is {given}; allowed are 0 to {longest}");
    Err(Error::out_of_range("modify_cq", "cq_period", given, 0..=longest.into(), message))
}

/// Checks the sizes of a new queue pair, except that of inline data, and raises those that are zero to 1, the smallest
/// size of a queue.
pub(in crate::provider) fn check_sizes(
    limits: &DeviceAttributes,
    asked: &QueuePairCapabilities,
) -> Result<QueuePairCapabilities> {
    check_range("create_qp", "max_send_wr", asked.max_send_wr, 0..=limits.max_qp_wr)?;
    check_range("create_qp", "max_recv_wr", asked.max_recv_wr, 0..=limits.max_qp_wr)?;
    check_range("create_qp", "max_send_sge", asked.max_send_sge, 0..=limits.max_sge)?;
    check_range("create_qp", "max_recv_sge", asked.max_recv_sge, 0..=limits.max_sge)?;
    Ok(QueuePairCapabilities {
        max_send_wr: asked.max_send_wr.max(1),
        max_recv_wr: asked.max_recv_wr.max(1),
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: asked.max_recv_sge.max(1),
        max_inline_data: asked.max_inline_data,
    })
}

/// Checks the sizes of a new shared receive queue.
pub(in crate::provider) fn check_srq_sizes(limits: &DeviceAttributes, init: &SharedReceiveQueueInit<'_>) -> Result<()> {
    check_range("create_srq", "max_wr", init.max_wr, 1..=limits.max_srq_wr)?;
    check_range("create_srq", "max_sge", init.max_sge, 0..=limits.max_srq_sge)?;
    check_range("create_srq", "srq_limit", init.srq_limit, 0..=init.max_wr)
}

/// Refuses operations that queue pairs of this type do not support.
pub(in crate::provider) fn check_operation(qp_type: QueuePairType, operation: &Operation) -> Result<()> {
    if operation.is_possible_on(qp_type) {
        return Ok(());
    }
    let possible = match qp_type {
        QueuePairType::UnreliableDatagram => "SEND with or without immediate",
        _ => "SEND and RDMA WRITE, with or without immediate",
    };
    let message = format!("opcode is {}; a queue pair of type {} takes {possible}", operation.name(), qp_type.name());
    Err(Error::unsuitable("post_send", "opcode", message))
}

/// Refuses send requests that name no shared receive queue of the peer on XRC initiators, whose requests must name one,
/// and on XRC targets, which send nothing.
pub(in crate::provider) fn check_plain_send(qpn: Qpn, qp_type: QueuePairType) -> Result<()> {
    match qp_type {
        QueuePairType::XrcReceive => {
            let message = format!("queue pair {qpn} is an XRC target, which only receives");
            Err(Error::unsuitable("post_send", "qp_type", message))
        }
        QueuePairType::XrcSend => {
            let message = format!(
                "queue pair {qpn} is an XRC initiator; its requests must name a shared receive queue of the peer \
                 (remote_srq)"
            );
            Err(Error::of_attribute("post_send", "remote_srq", AttributeFault::Missing, message))
        }
        _ => Ok(()),
    }
}

/// Refuses send requests that name a shared receive queue of the peer, except on XRC initiators.
pub(in crate::provider) fn check_named_queue(
    qpn: Qpn,
    qp_type: QueuePairType,
    srq: SharedReceiveQueueNumber,
) -> Result<()> {
    match qp_type {
        QueuePairType::XrcSend => Ok(()),
        QueuePairType::XrcReceive => check_plain_send(qpn, qp_type),
        _ => {
            let message = format!(
                "the request names shared receive queue {srq}, and queue pair {qpn} is not an XRC initiator; omit \
                 remote_srq"
            );
            Err(Error::of_attribute("post_send", "remote_srq", AttributeFault::NotAllowed, message))
        }
    }
}

/// Refuses receives on queue pairs without a receive queue of their own; `srq` is the shared queue that the queue pair
/// uses, if any.
pub(in crate::provider) fn check_receive(
    qpn: Qpn,
    qp_type: QueuePairType,
    srq: Option<SharedReceiveQueueNumber>,
) -> Result<()> {
    let message = match (srq, qp_type) {
        (Some(srq), _) => {
            format!("queue pair {qpn} takes its receives from shared receive queue {srq}; post them there")
        }
        (None, QueuePairType::XrcSend) => format!("queue pair {qpn} is an XRC initiator, which only sends"),
        (None, QueuePairType::XrcReceive) => {
            format!("queue pair {qpn} is an XRC target; post receives to the shared receive queues of its domain")
        }
        _ => return Ok(()),
    };
    Err(Error::new("post_recv", ErrorKind::InvalidArgument, message))
}

/// Refuses queue pairs that cannot join multicast groups, and addresses that are not multicast addresses.
pub(in crate::provider) fn check_group(verb: &'static str, qpn: Qpn, qp_type: QueuePairType, gid: Gid) -> Result<()> {
    let (name, message) = if qp_type != QueuePairType::UnreliableDatagram {
        ("qp_type", format!("qp_type of queue pair {qpn} is {qp_type:?}; only UnreliableDatagram receives multicasts"))
    } else if !gid.is_multicast() {
        ("gid", format!("gid is {gid}; groups are ff00::/8 and ::ffff:224.0.0.0/100"))
    } else {
        return Ok(());
    };
    Err(Error::unsuitable(verb, name, message))
}

/// Returns the error for detaching a queue pair from a group that it is not in.
pub(in crate::provider) fn not_attached(qpn: Qpn, gid: Gid) -> Error {
    let message = format!("queue pair {qpn} is not attached to the group {gid}");
    Error::unsuitable("detach_mcast", "gid", message)
}

/// Refuses a new queue pair whose shared receive queue or XRC domain does not fit its type.
pub(in crate::provider) fn check_parts(init: &QueuePairInit<'_>) -> Result<()> {
    let (name, fault, message) = match (init.qp_type, init.srq, init.xrc_domain) {
        (QueuePairType::XrcSend | QueuePairType::XrcReceive, Some(_), _) => {
            let message = "srq is given; an XRC queue pair has none: its messages name shared receive queues";
            ("srq", AttributeFault::NotAllowed, message)
        }
        (QueuePairType::XrcReceive, None, None) => {
            ("xrc_domain", AttributeFault::Missing, "xrc_domain is missing; an XRC target needs one")
        }
        (QueuePairType::XrcReceive, None, Some(_)) => return Ok(()),
        (_, _, Some(_)) => {
            ("xrc_domain", AttributeFault::NotAllowed, "xrc_domain is given; only an XRC target has one")
        }
        (_, _, None) => return Ok(()),
    };
    Err(Error::of_attribute("create_qp", name, fault, message))
}

/// Returns the number of bytes that a request sends.
pub(in crate::provider) fn length_of(data: &Data<'_>) -> u64 {
    match data {
        Data::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        Data::Inline(parts) => parts.iter().map(|part| part.len() as u64).sum(),
    }
}

/// Refuses a datagram whose address handle belongs to another domain than the queue pair, or that is longer than the
/// MTU of its port. `is_own` says whether the domains are the same: domains of different devices may have the same
/// number.
pub(in crate::provider) fn check_datagram(
    is_own: bool,
    handle: DomainId,
    own: DomainId,
    length: u64,
    mtu_bytes: u32,
) -> Result<()> {
    if !is_own {
        let message =
            format!("the address handle belongs to protection domain {}, the queue pair to {}", handle.0, own.0);
        Err(Error::unsuitable("post_send", "ah", message))
    } else if length > u64::from(mtu_bytes) {
        let message =
            format!("length is {length} bytes; a datagram carries at most {mtu_bytes} (the port's active_mtu)");
        Err(Error::out_of_range("post_send", "length", length, 0..=mtu_bytes.into(), message))
    } else {
        Ok(())
    }
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
