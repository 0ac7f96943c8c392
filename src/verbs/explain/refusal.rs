//! Diagnoses of requests that the peer refused.

use super::{Diagnosis, name, operation_name};
use crate::types::{Counter, FailedRequest, FlushFlags, Operation, QueuePairReport, RemoteAccess, Rkey};

/// Diagnoses a peer without posted receives.
pub(super) fn receiver_not_ready(failed: &FailedRequest, report: &QueuePairReport) -> Diagnosis {
    let allowed = report.status.attributes.rnr_retry.unwrap_or(0);
    let naks = report.counters.get(Counter::ReceivedRnr);
    Diagnosis::new(
        format!(
            "the peer posts no receives, or too few or too late: it said so {naks} times, and {} of {allowed} \
             repetitions (rnr_retry) are spent",
            failed.rnr_tries
        ),
        "post receives there before this end sends, or set rnr_retry to 7 (without end) here, or a longer \
         min_rnr_timer there",
    )
}

/// Returns the remote address and key of a request.
fn remote(operation: &Operation) -> Option<(u64, Rkey)> {
    match *operation {
        Operation::Write { remote_addr, rkey }
        | Operation::WriteWithImmediate { remote_addr, rkey, .. }
        | Operation::Read { remote_addr, rkey }
        | Operation::AtomicWrite { remote_addr, rkey }
        | Operation::Flush { remote_addr, rkey, .. }
        | Operation::CompareAndSwap { remote_addr, rkey, .. }
        | Operation::FetchAndAdd { remote_addr, rkey, .. } => Some((remote_addr, rkey)),
        _ => None,
    }
}

fn needed_access_flag(operation: &Operation) -> &'static str {
    match operation {
        Operation::Read { .. } => "REMOTE_READ",
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => "REMOTE_ATOMIC",
        Operation::Flush { flags, .. } if flags.contains(FlushFlags::PERSISTENT) => "FLUSH_PERSISTENT",
        Operation::Flush { .. } => "FLUSH_GLOBAL",
        _ => "REMOTE_WRITE",
    }
}

/// Returns the last success of the same kind of access, and of the other kinds.
fn worked(operation: &Operation, report: &QueuePairReport) -> (Option<RemoteAccess>, [Option<RemoteAccess>; 2]) {
    let worked = &report.last_successes;
    match operation {
        Operation::Read { .. } => (worked.read, [worked.write, worked.atomic]),
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => {
            (worked.atomic, [worked.read, worked.write])
        }
        _ => (worked.write, [worked.read, worked.atomic]),
    }
}

fn contains(outer: &RemoteAccess, addr: u64, length: u32) -> bool {
    let end = |addr: u64, length: u32| u128::from(addr) + u128::from(length);
    addr >= outer.remote_addr && end(addr, length) <= end(outer.remote_addr, outer.length)
}

/// Diagnoses a refused key, range or access flag. The peer does not say which; earlier successes show it.
pub(super) fn access(failed: &FailedRequest, report: &QueuePairReport) -> Diagnosis {
    if let Operation::SendWithInvalidate(rkey) = failed.operation {
        return Diagnosis::new(
            format!("the peer does not let key {rkey} be invalidated: no region there has it, or it may not be"),
            "send with invalidate only keys that the peer offered for that",
        );
    }
    let Some((addr, rkey)) = remote(&failed.operation) else {
        return Diagnosis::new(
            "the peer answered a request that names no memory with an access error",
            "check the peer",
        );
    };
    let length = failed.length;
    let range = format!("{length} bytes at {addr:#x}");
    let (same, others) = worked(&failed.operation, report);
    let kind = operation_name(&failed.operation);
    match same.filter(|same| same.rkey == rkey) {
        Some(same) if contains(&same, addr, length) => Diagnosis::new(
            format!(
                "key {rkey} is not valid any more: a {kind} of this range worked before, so the region was deregistered"
            ),
            "keep the peer's region until this end has said that it is done, or fetch the new key",
        ),
        Some(same) => Diagnosis::new(
            format!(
                "{range} lie outside the peer's region, for {} bytes at {:#x} worked with the same key {rkey}; or the \
                 region was deregistered since",
                same.length, same.remote_addr
            ),
            "compare address and length with what the peer registered",
        ),
        None if others.iter().flatten().any(|other| other.rkey == rkey) => Diagnosis::new(
            format!(
                "the peer's region with key {rkey} does not grant {}, for other accesses with this key worked; or \
                 {range} lie outside of it",
                needed_access_flag(&failed.operation)
            ),
            "register it there with that access flag",
        ),
        None => Diagnosis::new(
            format!(
                "no region of the peer has key {rkey} (mistyped, or deregistered); otherwise the region is of another \
                 protection domain than the peer's queue pair, it or the queue pair grants no {}, or it does not hold \
                 {range}",
                needed_access_flag(&failed.operation)
            ),
            "compare key, address and length with what the peer registered; its asynchronous event says which it was",
        ),
    }
}

/// Diagnoses a request that the peer refused as invalid.
pub(super) fn invalid(failed: &FailedRequest, report: &QueuePairReport) -> Diagnosis {
    let (path_mtu, what) = (report.status.attributes.path_mtu.unwrap_or_default(), name(failed));
    let is_long = failed.length > path_mtu.bytes();
    let (same, _) = worked(&failed.operation, report);
    let mtu_advice = "connect both ends with the same path_mtu";
    if failed.operation.is_atomic()
        && let Some((addr, _)) = remote(&failed.operation).filter(|(addr, _)| !addr.is_multiple_of(8))
    {
        return Diagnosis::new(
            format!("the atomic's address {addr:#x} is not aligned: it must be a multiple of eight"),
            "align the words that atomics work on",
        );
    }
    match (&failed.operation, remote(&failed.operation)) {
        (_, None) if is_long => Diagnosis::new(
            format!("{what} does not fit the receive that the peer posted; or the peer's path_mtu is not {path_mtu}"),
            "post longer receives there, or send shorter messages",
        ),
        (_, None) => Diagnosis::new(
            format!("{what} does not fit the receive that the peer posted for it"),
            "post longer receives there, or send shorter messages",
        ),
        (operation, Some(_)) if operation.is_read_or_atomic() && same.is_some() => Diagnosis::new(
            format!(
                "too many READs and atomics at a time: max_rd_atomic here ({}) is more than max_dest_rd_atomic there",
                report.status.attributes.max_rd_atomic.unwrap_or(0)
            ),
            "connect with the peer's max_dest_rd_atomic as max_rd_atomic",
        ),
        (_, Some(_)) if same.is_some() && is_long => Diagnosis::new(
            format!("the ends use different path_mtu: short WRITEs worked, {what} in packets of {path_mtu} did not"),
            mtu_advice,
        ),
        (operation, Some(_)) => Diagnosis::new(
            format!(
                "the peer's queue pair does not grant {} (qp_access_flags){}",
                needed_access_flag(operation),
                if is_long { format!("; or its path_mtu is not {path_mtu}") } else { String::new() }
            ),
            "give the peer's queue pair that access flag when it goes to INIT (access of QueuePairOptions)",
        ),
    }
}

/// Diagnoses a peer that could not write its own receive.
pub(super) fn operational() -> Diagnosis {
    Diagnosis::new(
        "the peer could not write the memory of its own receive: deregistered, without LOCAL_WRITE, or unmapped there",
        "keep the regions of posted receives registered at the peer; its receive completion names the cause",
    )
}

/// Diagnoses a response that violates the protocol.
pub(super) fn bad_response(report: &QueuePairReport) -> Diagnosis {
    let path_mtu = report.status.attributes.path_mtu.unwrap_or_default();
    Diagnosis::new(
        format!(
            "the peer's response does not have the form that the request requires: its path_mtu is not {path_mtu}, or \
             it does not speak the protocol"
        ),
        "connect both ends with the same path_mtu; if they do, capture the packets and report the peer",
    )
}
