//! Failures of this end, and requests of the peer that this end refused.

use super::{Diagnosis, name};
use crate::types::{Cause, Counter, FailedPeerRequest, FailedRequest, PeerFault, QueuePairReport};

/// Diagnoses a failure of a request's local memory, or any other local failure.
pub(super) fn request(failed: &FailedRequest) -> Diagnosis {
    let what = name(failed);
    match failed.cause {
        Cause::LocalKeyUnknown => Diagnosis::new(
            format!(
                "the local memory of {what} was deregistered while the request was outstanding: its lkey is unknown"
            ),
            "deregister regions only after the requests that name them have completed",
        ),
        Cause::LocalKeyWrongDomain => Diagnosis::new(
            format!("the local memory of {what} belongs to another protection domain than the queue pair"),
            "register it in the queue pair's own protection domain",
        ),
        Cause::LocalOutOfBounds => Diagnosis::new(
            format!("a scatter-gather entry of {what} reaches beyond its region"),
            "compare addresses and lengths of the entries with the registered range",
        ),
        Cause::LocalNotWritable => Diagnosis::new(
            format!("the local memory of {what} is not writable: its region was registered without LOCAL_WRITE"),
            "register the memory that READs and atomics write to with LOCAL_WRITE",
        ),
        Cause::LocalMemoryFault => Diagnosis::new(
            format!("the memory behind the region of {what} is gone: unmapped, or its file was truncated"),
            "keep registered memory mapped and files at their length until the region is deregistered",
        ),
        Cause::InvalidateRefused => Diagnosis::new(
            "the key that was to be invalidated is not valid, may not be invalidated, or has windows bound to it",
            "register the region as invalidatable, or bind the window through this queue pair first",
        ),
        Cause::WindowUnknown => Diagnosis::new(
            "no memory window of the queue pair's protection domain has the key that was to be bound",
            "allocate the window in the queue pair's own protection domain, and keep it until the bind is done",
        ),
        Cause::WindowBound => Diagnosis::new(
            "the memory window of type 2 is bound already",
            "invalidate its key first, here or by the peer's SEND with invalidate",
        ),
        Cause::WindowArguments => Diagnosis::new(
            "the window was given no bytes, or an access flag that its type does not allow",
            "bind at least one byte, with remote access flags only; ZERO_BASED is for type 2",
        ),
        Cause::RegionNotBindable => Diagnosis::new(
            "the region lacks MEMORY_WINDOW_BIND, or LOCAL_WRITE for a window that peers may write",
            "register the region with those access flags",
        ),
        cause => Diagnosis::new(
            format!("{what} could not be executed here ({cause:?})"),
            "look at the counters and the asynchronous events of the device",
        ),
    }
}

/// Diagnoses lost completions.
pub(super) fn overflow(report: &QueuePairReport) -> Diagnosis {
    let lost = report.counters.get(Counter::CompletionQueueOverflow);
    Diagnosis::new(
        format!("its completion queue overflowed: {lost} completions found it full and are lost"),
        "create it with room for max_send_wr and max_recv_wr of all its queue pairs, or poll more often",
    )
}

/// Diagnoses a request of the peer that was refused here.
pub(super) fn refused(refused: &FailedPeerRequest, report: &QueuePairReport) -> Diagnosis {
    let FailedPeerRequest { fault, operation, length, .. } = *refused;
    let attributes = &report.status.attributes;
    let key = refused.remote.map(|(_, rkey)| format!("key {rkey}")).unwrap_or_else(|| "its key".to_owned());
    let asked = match refused.remote {
        Some((addr, _)) => format!("the peer's {operation} of {length} bytes at {addr:#x} with {key} was refused here"),
        None => format!("the peer's {operation} of {length} bytes was refused here"),
    };
    let (why, advice) = match fault {
        PeerFault::UnknownKey => {
            (format!("no memory region has {key}"), "give the peer the region's rkey, and keep the region registered")
        }
        PeerFault::WrongDomain => {
            (format!("{key} is of another protection domain"), "register the region in the queue pair's own domain")
        }
        PeerFault::OutOfBounds => {
            (format!("the range leaves the region of {key}"), "send the peer the address and length of the region")
        }
        PeerFault::NoPermission => {
            (format!("the region of {key} lacks the access flag"), "register it with REMOTE_WRITE, _READ or _ATOMIC")
        }
        PeerFault::MemoryFault => {
            (format!("the memory behind {key} is unmapped or its file truncated"), "keep registered memory mapped")
        }
        PeerFault::Invalidate => {
            (format!("{key} may not be invalidated by a peer"), "offer the peer only keys that may be")
        }
        PeerFault::UnknownSharedReceiveQueue => {
            ("its XRC domain has no such shared receive queue".to_owned(), "send the peer one of its queues' numbers")
        }
        PeerFault::AccessNotGranted => (
            "the queue pair's qp_access_flags do not grant it".to_owned(),
            "give the queue pair the access flag when it goes to INIT (access of QueuePairOptions)",
        ),
        PeerFault::TooManyReads => (
            format!("more READs and atomics than max_dest_rd_atomic ({})", attributes.max_dest_rd_atomic.unwrap_or(0)),
            "lower max_rd_atomic at the peer, or raise max_dest_rd_atomic here",
        ),
        PeerFault::Misaligned => {
            ("the address is no multiple of eight".to_owned(), "let the peer align the words that atomics work on")
        }
        PeerFault::ReceiveTooSmall => {
            ("it is longer than the receive posted for it".to_owned(), "post longer receives, or send shorter messages")
        }
        PeerFault::ReceiveMemory(_) => (
            "the memory of the posted receive cannot be written (deregistered, or without LOCAL_WRITE)".to_owned(),
            "keep the regions of posted receives registered and writable",
        ),
        PeerFault::PacketLength => (
            format!(
                "its packets do not have the length that path_mtu {} demands: the ends use different path_mtu",
                attributes.path_mtu.unwrap_or_default()
            ),
            "connect both ends with the same path_mtu",
        ),
        PeerFault::MessageLength => (
            "its length is not what it said, or too long".to_owned(),
            "the peer breaks the protocol: capture its packets",
        ),
        PeerFault::FlushType => ("it requests no known kind of flush".to_owned(), "the peer breaks the protocol"),
        PeerFault::WrongQueuePair => {
            (format!("{key} is a window that another queue pair bound"), "bind it through the peer's queue pair")
        }
        PeerFault::OpcodeSequence => (
            "it begins or continues no message in progress".to_owned(),
            "the peer breaks the protocol, or an old connection's packets arrive: capture them",
        ),
    };
    Diagnosis::new(format!("{asked}: {why}"), advice)
}
