//! Unreliable services drop without a word; what they count is all that tells why a message did not come.

use super::Diagnosis;
use crate::types::{DropReason, QueuePairReport};

/// Why messages of the peer did not come, if some were dropped here.
pub(super) fn dropped(report: &QueuePairReport) -> Option<Diagnosis> {
    let count = |reason| report.counters.get_drop(reason);
    if report.status.qp_type.is_reliable() {
        return None;
    }
    let (unposted, refused, torn) =
        (count(DropReason::NoReceive), count(DropReason::Refused), count(DropReason::OutOfOrder));
    let diagnosis = if unposted > 0 {
        Diagnosis::new(
            format!("{unposted} packets of the peer were dropped, because no receive was posted for their message"),
            "post receives before the peer sends: an unreliable peer does not wait for them",
        )
    } else if refused > 0 {
        Diagnosis::new(
            format!("{refused} packets of the peer were dropped, because key, bounds, rights or length forbid them"),
            "compare the peer's remote address, rkey and length with the region, and its rights with qp_access_flags",
        )
    } else if torn > 0 {
        Diagnosis::new(
            format!("{torn} packets of the peer were dropped, because an earlier one of their message was lost"),
            "send less at a time, or use a reliable connection: nothing is sent again here",
        )
    } else {
        return None;
    };
    Some(diagnosis)
}
