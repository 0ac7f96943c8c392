//! The state of a connection, for programs that wait for a completion that does not come.

use super::{Diagnosis, compose, ended, operation_name, silence, unreliable};
use crate::types::{Counter, Qpn, QueuePairReport, QueuePairState, QueuePairType};

/// Explains why nothing completes, or that nothing is wrong.
pub(crate) fn explain_state(qpn: Qpn, report: Option<&QueuePairReport>) -> String {
    let Some(report) = report else {
        return format!("queue pair {qpn} is gone, and its records with it");
    };
    let state = report.status.qp_state;
    let diagnosis = match &report.error_origin {
        Some(ending) if state == QueuePairState::Error => ended(ending, report),
        Some(ending) if state == QueuePairState::SendQueueError => {
            let Diagnosis { cause, advice } = ended(ending, report);
            Diagnosis::new(format!("{cause}; receives go on"), format!("{advice}; RTS lets the send queue go on"))
        }
        _ => standing(report),
    };
    compose(&format!("queue pair {qpn} is in {}", state.name()), &diagnosis, report)
}

fn standing(report: &QueuePairReport) -> Diagnosis {
    let attributes = &report.status.attributes;
    match report.status.qp_state {
        QueuePairState::Reset | QueuePairState::Init => {
            return Diagnosis::new("it is not connected", "connect it: it then receives (RTR) and sends (RTS)");
        }
        QueuePairState::ReadyToReceive => {
            return Diagnosis::new("it receives, but does not send yet", "take it to RTS");
        }
        QueuePairState::SendQueueDrained if report.unfinished > 0 && report.packets_in_flight == 0 => {
            return Diagnosis::new("no new request is begun in SQD", "take it back to RTS");
        }
        _ => {}
    }
    if report.unfinished == 0 {
        return idle(report);
    }
    let waiting = format!("{} send requests are unfinished", report.unfinished);
    if report.waits_for_receiver {
        let rnr_retry = attributes.rnr_retry.unwrap_or(0);
        let end = if rnr_retry == 7 { ", and rnr_retry 7 means without end" } else { "" };
        return Diagnosis::new(
            format!("{waiting}, because no receive is posted there: the peer said so with an RNR NAK{end}"),
            "post receives there",
        );
    }
    if let Some(oldest) = report.oldest.filter(|oldest| oldest.is_read_or_atomic())
        && attributes.max_rd_atomic == Some(0)
    {
        let kind = operation_name(&oldest);
        return Diagnosis::new(
            format!("{waiting}, and the {kind} at their head can never leave: max_rd_atomic is 0"),
            "connect with a max_rd_atomic of at least 1 here and max_dest_rd_atomic there",
        );
    }
    if report.packets_in_flight == 0 {
        return Diagnosis::new(format!("{waiting}, none of them on its way yet"), "poll, which drives the device");
    }
    let sent = format!("{waiting}, {} packets are not acknowledged", report.packets_in_flight);
    let why = report.peer_address().and_then(|peer| silence::misdirected(peer, report));
    let (why, advice) = why.map_or((String::new(), None), |found| (format!("; {}", found.cause), Some(found.advice)));
    match attributes.timeout {
        Some(0) | None => Diagnosis::new(
            format!("{sent}, and this end waits for ever: timeout is 0{why}"),
            advice.unwrap_or_else(|| "connect with a timeout (14 is 67 ms), so that a silent peer is noticed".into()),
        ),
        Some(_) => Diagnosis::new(
            format!("{sent} yet; tries are left{why}"),
            advice.unwrap_or_else(|| "wait, the request will succeed or fail".into()),
        ),
    }
}

/// Diagnoses a queue pair without unfinished send requests.
fn idle(report: &QueuePairReport) -> Diagnosis {
    if let Some(diagnosis) = unreliable::dropped(report) {
        return diagnosis;
    }
    let early = report.counters.get(Counter::OutOfSequenceRequest);
    let repeated = report.counters.get(Counter::DuplicateRequest);
    if !report.was_requested && early + repeated > 0 {
        let psn = report.status.attributes.rq_psn.unwrap_or_default();
        return Diagnosis::new(
            format!(
                "{} requests of the peer came, none with the sequence number that is expected next: rq_psn here \
                 ({psn}) is not sq_psn there",
                early + repeated
            ),
            "exchange new PSNs, and reset both queue pairs before they are connected again",
        );
    }
    if let Some(diagnosis) = report.peer_address().and_then(|peer| silence::misdirected(peer, report)) {
        return diagnosis;
    }
    if report.counters.get(Counter::SentRnr) > 0 && report.receives == 0 {
        return no_receive(report);
    }
    Diagnosis::new("nothing is wrong: no send request is unfinished", "look at the peer if something is missing")
}

/// Diagnoses a peer that got only RNR NAKs.
fn no_receive(report: &QueuePairReport) -> Diagnosis {
    match report.status.qp_type {
        QueuePairType::XrcReceive => Diagnosis::new(
            "the peer sends, but the shared receive queue that it names is empty",
            "post receives to that queue, and arm its limit so that an event reports it in time",
        ),
        _ if report.status.cap.max_recv_wr == 0 => Diagnosis::new(
            "the peer sends, but the shared receive queue of this queue pair is empty",
            "post receives there, and arm its limit so that an event reports it in time",
        ),
        _ => Diagnosis::new("the peer sends, but no receive is posted here", "post receives"),
    }
}
