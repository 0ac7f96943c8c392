//! Diagnoses for unreliable services. They drop silently; only their counters show why a message did not come.

use super::Diagnosis;
use crate::types::{Counter, DropReason, GlobalRouteHeader, QueuePairReport, QueuePairType};

/// Diagnoses missing messages of the peer, if some were dropped here.
pub(super) fn dropped(report: &QueuePairReport) -> Option<Diagnosis> {
    if report.status.qp_type.is_reliable() {
        return None;
    }
    let count = |reason| report.counters.get_drop(reason);
    let (unposted, refused, torn) =
        (count(DropReason::NoReceive), count(DropReason::Refused), count(DropReason::OutOfOrder));
    let diagnosis = if unposted > 0 {
        Diagnosis::new(
            format!("{unposted} packets of the peer were dropped, because no receive was posted for their message"),
            format!("post receives {} before the peer sends: an unreliable peer does not wait for them", place(report)),
        )
    } else if refused > 0 {
        Diagnosis::new(
            format!(
                "{refused} packets of the peer were dropped, because key, bounds, access flags or length forbid them"
            ),
            "compare the peer's remote address, rkey and length with the region, and its requests with qp_access_flags",
        )
    } else if torn > 0 {
        Diagnosis::new(
            format!("{torn} packets of the peer were dropped, because an earlier one of their message was lost"),
            "send less at a time, or use a reliable connection: nothing is sent again here",
        )
    } else if is_datagram(report) {
        return datagrams(report);
    } else {
        return None;
    };
    Some(diagnosis)
}

pub(super) fn is_datagram(report: &QueuePairReport) -> bool {
    report.status.qp_type == QueuePairType::UnreliableDatagram
}

/// Says where this queue pair's receives are posted.
fn place(report: &QueuePairReport) -> &'static str {
    if report.status.cap.max_recv_wr == 0 { "to its shared receive queue" } else { "here" }
}

/// Diagnoses dropped datagrams, and datagrams that never arrive.
fn datagrams(report: &QueuePairReport) -> Option<Diagnosis> {
    let count = |reason| report.counters.get_drop(reason);
    let (strange, long) = (count(DropReason::BadQkey), count(DropReason::ReceiveTooSmall));
    let header = GlobalRouteHeader::BYTES;
    if strange > 0 {
        let own = report.status.attributes.qkey.unwrap_or_default();
        return Some(Diagnosis::new(
            format!("{strange} datagrams were dropped, because their Q_Key is not that of this queue pair ({own})"),
            "name this Q_Key in the sender's remote_qkey; with its highest bit set, the sender's own Q_Key is sent",
        ));
    }
    if long > 0 {
        return Some(Diagnosis::new(
            format!("{long} datagrams were dropped, because they do not fit the receives posted {}", place(report)),
            format!("post receives with {header} bytes more than the longest message: the route header comes first"),
        ));
    }
    if report.counters.get(Counter::ReceivedPackets) > 0 {
        return None;
    }
    let groups = match report.groups.as_slice() {
        [] => "it is attached to no multicast group, so what is sent to one is not for it".to_owned(),
        some => {
            let some: Vec<String> = some.iter().map(|group| group.to_string()).collect();
            format!("it is attached to {}", some.join(", "))
        }
    };
    let sent = report.counters.get(Counter::SentPackets);
    Some(Diagnosis::new(
        format!("no datagram has come for it, {sent} have left; {groups}"),
        "compare address, queue pair number and group with what the sender names; datagrams are dropped silently, \
         so call explain_state at the receiving end",
    ))
}
