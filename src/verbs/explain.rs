//! Why a request failed, in a sentence built from the queue pair.

use std::time::Duration;

use super::{Cause, CompletionError, CompletionStatus, Counter, Counters, QueuePairAttributes};
use crate::types::RNR_TIMER_MICROSECONDS;

/// The failure's own text, the peer, and what bears on this kind of failure.
pub(super) fn explain(
    error: &CompletionError,
    attributes: Option<&QueuePairAttributes>,
    counters: &Counters,
) -> String {
    let mut text = error.to_string();
    let Some(attributes) = attributes else {
        return text + "; the queue pair is gone";
    };
    text += &peer(attributes);
    match error.status {
        CompletionStatus::RetryExceededError => text += &tries(error.cause, attributes, counters),
        CompletionStatus::ReceiverNotReadyRetryExceededError => text += &receiver_not_ready(attributes, counters),
        CompletionStatus::WorkRequestFlushedError => {
            text += "; look at the first failure of this queue pair for the reason";
        }
        _ => {}
    }
    let drops = counters.total_drops();
    if drops > 0 {
        let reasons = counters.iter().filter(|(name, value)| name.starts_with("drop_") && *value > 0);
        let reasons: Vec<String> = reasons.map(|(name, value)| format!("{name} {value}")).collect();
        text += &format!("; {drops} packets for this queue pair were dropped: {}", reasons.join(", "));
    }
    text
}

fn peer(attributes: &QueuePairAttributes) -> String {
    match (attributes.ah_attr, attributes.dest_qp_num) {
        (Some(way), Some(qpn)) => format!("; the peer is queue pair {qpn} at {}", way.dgid.to_ip()),
        _ => "; it was not connected".into(),
    }
}

/// What was tried when no usable answer came.
fn tries(cause: Cause, attributes: &QueuePairAttributes, counters: &Counters) -> String {
    let retries = attributes.retry_cnt.unwrap_or(0);
    let heard = match counters.get(Counter::ReceivedPackets) {
        0 => "; nothing was ever received from it: is it up, is UDP port 4791 open between the hosts, are GID, \
              queue pair number and state of the peer right?"
            .to_owned(),
        packets => format!("; {packets} packets were received from it before"),
    };
    let tried = match cause {
        Cause::SequenceErrorsExceeded => format!("; it reported lost packets after {retries} repetitions"),
        _ => match attributes.timeout {
            Some(code @ 1..) => {
                let wait = Duration::from_nanos(4_096 << code.min(31));
                format!("; {retries} repetitions, each after {wait:.1?} (timeout {code}) at least")
            }
            _ => format!("; {retries} repetitions"),
        },
    };
    tried + &heard
}

fn receiver_not_ready(attributes: &QueuePairAttributes, counters: &Counters) -> String {
    let retries = attributes.rnr_retry.unwrap_or(0);
    let naks = counters.get(Counter::ReceivedRnr);
    // The wait is what the peer asks for; our own code is the best guess at the peer's, which is set alike as a rule.
    let code = usize::from(attributes.min_rnr_timer.unwrap_or(0)) % RNR_TIMER_MICROSECONDS.len();
    let wait = Duration::from_micros(RNR_TIMER_MICROSECONDS[code].into());
    format!(
        "; it said {naks} times that it has no receive posted, {retries} repetitions were allowed: post receives \
         earlier there, or allow more repetitions (7: without end) or longer waits than {wait:?}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{AddressVector, Qpn};

    fn error(status: CompletionStatus, cause: Cause) -> CompletionError {
        CompletionError { wr_id: 3, qpn: Qpn::new(0x11), status, cause }
    }

    fn connected() -> QueuePairAttributes {
        QueuePairAttributes {
            ah_attr: Some(AddressVector::new("10.0.0.2".parse::<std::net::Ipv4Addr>().unwrap().into(), 0)),
            dest_qp_num: Some(Qpn::new(0x22)),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(3),
            ..QueuePairAttributes::default()
        }
    }

    #[test]
    fn no_answer_names_peer_tries_and_drops() {
        let mut counters = Counters::default();
        counters.add_drop(crate::types::DropReason::BadIcrc);
        let failure = error(CompletionStatus::RetryExceededError, Cause::NoAnswer);
        let text = explain(&failure, Some(&connected()), &counters);
        for part in ["0x000022 at 10.0.0.2", "7 repetitions, each after 67.1ms", "nothing was ever received"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.ends_with("1 packets for this queue pair were dropped: drop_bad_icrc 1"), "{text}");
    }

    #[test]
    fn every_status_has_words() {
        for status in [
            CompletionStatus::ReceiverNotReadyRetryExceededError,
            CompletionStatus::WorkRequestFlushedError,
            CompletionStatus::RemoteAccessError,
        ] {
            let text = explain(&error(status, Cause::None), Some(&connected()), &Counters::default());
            assert!(text.starts_with("request 3 on queue pair 0x000011: "), "{text}");
        }
        let text = explain(&error(CompletionStatus::GeneralError, Cause::None), None, &Counters::default());
        assert!(text.ends_with("the queue pair is gone"));
    }
}
