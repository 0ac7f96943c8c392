//! Explanations of failures in two sentences: what happened and most likely why; what was last heard from the peer, and
//! what to try. A third sentence states the path of packets within a host. If packets may have been lost on a path with
//! a congestion controller, a last sentence assesses the path.
//!
//! All conclusions come from this end's records. If they cannot distinguish two causes, the text names both, the
//! likelier one first. `docs/explanations.md` has the table.

mod local;
mod path;
mod refusal;
mod silence;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;
mod unreliable;

use std::time::Duration;

use super::{AsyncEvent, Cause, CompletionError, CompletionStatus, Counter};
use crate::types::{ErrorOrigin, FailedRequest, NoSharedMemory, Operation, PacketPath, QueuePairReport};

pub(super) use state::explain_state;

/// A cause and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Diagnosis {
    cause: String,
    advice: String,
}

impl Diagnosis {
    fn new(cause: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { cause: cause.into(), advice: advice.into() }
    }
}

/// Explains why a request failed.
pub(super) fn explain(error: &CompletionError, report: Option<&QueuePairReport>) -> String {
    let Some(report) = report else {
        return format!("{error}: the queue pair is gone, and its records with it");
    };
    let diagnosis = match report.error_origin {
        Some(ending) if error.status == CompletionStatus::WorkRequestFlushedError => flushed(&ending, report),
        Some(ErrorOrigin::Request(failed)) if (failed.wr_id, failed.status) == (error.wr_id, error.status) => {
            diagnose(&failed, report)
        }
        Some(ErrorOrigin::PeerRequest(refused)) if refused.wr_id == Some(error.wr_id) => {
            local::refused(&refused, report)
        }
        _ => Diagnosis::new(
            "the queue pair has been reset or reconnected since, which cleared its records",
            "explain a failure before the next reset",
        ),
    };
    compose(&error.to_string(), &diagnosis, report)
}

/// Explains an asynchronous event of the queue pair.
pub(super) fn explain_event(event: &AsyncEvent, report: Option<&QueuePairReport>) -> String {
    let Some(report) = report else {
        return format!("{event:?}: the queue pair is gone, and its records with it");
    };
    let diagnosis = match event {
        AsyncEvent::QueuePairFatal(_)
        | AsyncEvent::QueuePairRequestError(_)
        | AsyncEvent::QueuePairAccessError(_)
        | AsyncEvent::CompletionQueueError(_) => match &report.error_origin {
            Some(ending) => ended(ending, report),
            None => Diagnosis::new("nothing ended this queue pair since it was connected", "look at the others"),
        },
        AsyncEvent::CommunicationEstablished(_) => Diagnosis::new(
            "the peer's first packet arrived before this end was ready to send, which is no error",
            "go to RTS when it suits",
        ),
        AsyncEvent::SendQueueDrained(_) => Diagnosis::new(
            "all requests that were begun before SQD are finished, which is no error",
            "change attributes now, then go back to RTS",
        ),
        AsyncEvent::DeviceFatal => Diagnosis::new(
            "the device's engine has failed, independently of this queue pair; all its queue pairs are unusable",
            "reopen the device, and report what the log says",
        ),
        _ => Diagnosis::new("the event concerns the port, not this queue pair", "look at the interface"),
    };
    compose(&format!("{event:?}"), &diagnosis, report)
}

/// Composes the sentences. One assesses the path, if packets may have been lost on it.
fn compose(headline: &str, diagnosis: &Diagnosis, report: &QueuePairReport) -> String {
    let mut text = format!("{headline}: {}. {}; {}", diagnosis.cause, evidence(report), diagnosis.advice);
    match &report.packet_path {
        // The usual case needs no words.
        None | Some(PacketPath::Sockets(NoSharedMemory::OtherHost)) => {}
        Some(path) => text += &format!(". Packets go {path}"),
    }
    match path::of_failure(report).filter(|_| is_unanswered(report)) {
        Some(path) => format!("{text}. {path}"),
        None => text,
    }
}

/// Returns whether the queue pair ended because no response came, possibly because of losses on its path.
fn is_unanswered(report: &QueuePairReport) -> bool {
    let Some(ErrorOrigin::Request(failed)) = &report.error_origin else { return false };
    failed.status == CompletionStatus::RetryExceededError
}

/// Diagnoses a failed request of this end.
fn diagnose(failed: &FailedRequest, report: &QueuePairReport) -> Diagnosis {
    match failed.status {
        CompletionStatus::RetryExceededError if failed.cause == Cause::SequenceErrorsExceeded => {
            silence::losses(failed, report)
        }
        CompletionStatus::RetryExceededError => silence::silence(failed, report),
        CompletionStatus::ReceiverNotReadyRetryExceededError => refusal::receiver_not_ready(failed, report),
        CompletionStatus::RemoteAccessError => refusal::access(failed, report),
        CompletionStatus::RemoteInvalidRequestError => refusal::invalid(failed, report),
        CompletionStatus::RemoteOperationError => refusal::operational(),
        CompletionStatus::BadResponseError => refusal::bad_response(report),
        _ => local::request(failed),
    }
}

/// Diagnoses what ended the queue pair.
fn ended(ending: &ErrorOrigin, report: &QueuePairReport) -> Diagnosis {
    match ending {
        ErrorOrigin::Request(failed) => {
            let Diagnosis { cause, advice } = diagnose(failed, report);
            let (what, status) = (name(failed), failed.status);
            Diagnosis::new(format!("request {} ({what}) failed with {status:?}: {cause}", failed.wr_id), advice)
        }
        ErrorOrigin::PeerRequest(refused) => local::refused(refused, report),
        ErrorOrigin::Application => Diagnosis::new(
            "the application moved the queue pair to ERR with modify, which flushes everything",
            "nothing is wrong if that was meant; otherwise find the caller of modify",
        ),
        ErrorOrigin::CompletionQueueOverflow => local::overflow(report),
        ErrorOrigin::Panic => Diagnosis::new(
            "a panic in this library ended the queue pair, which is a bug",
            "report it with the message of the panic, which is in the log, and connect again",
        ),
    }
}

/// Diagnoses a flushed request, whose cause is that of the first failure.
fn flushed(ending: &ErrorOrigin, report: &QueuePairReport) -> Diagnosis {
    let Diagnosis { cause, advice } = ended(ending, report);
    match ending {
        ErrorOrigin::Request(_) => Diagnosis::new(format!("it was not at fault: an earlier {cause}"), advice),
        _ => Diagnosis::new(cause, advice),
    }
}

/// States what was last heard from the peer, and which counters matter.
fn evidence(report: &QueuePairReport) -> String {
    let mut text = match (report.last_packet(), report.peer_address()) {
        (_, None) if unreliable::is_datagram(report) => "A datagram queue pair has no peer of its own".to_owned(),
        (_, None) => "It was not connected".to_owned(),
        (Some(heard), Some(peer)) => {
            format!("Last heard from {peer} {} ago: {}", time(heard.ago), heard.what.name())
        }
        (None, Some(peer)) => {
            let qpn = report.status.attributes.dest_qp_num.unwrap_or_default();
            format!("Nothing was ever heard from queue pair {qpn} at {peer}")
        }
    };
    let details = details(report);
    if !details.is_empty() {
        text += &format!(" ({})", details.join(", "));
    }
    text
}

fn details(report: &QueuePairReport) -> Vec<String> {
    let mut details = Vec::new();
    if let Some(ErrorOrigin::Request(failed)) = &report.error_origin
        && is_unanswered(report)
    {
        details.push(tries(failed, report));
    }
    for (counter, name) in [
        (Counter::ReceivedRnr, "RNR NAKs"),
        (Counter::ReceivedSequenceNak, "NAKs for missing packets"),
        (Counter::DuplicateRequest, "repeated requests of the peer"),
    ] {
        let count = report.counters.get(counter);
        if count > 0 {
            details.push(format!("{count} {name}"));
        }
    }
    let dropped = report.counters.iter().filter(|(name, count)| name.starts_with("drop_") && *count > 0);
    details.extend(dropped.map(|(name, count)| format!("{name} {count}")));
    details
}

/// States how many times a request was retried without a usable response.
fn tries(failed: &FailedRequest, report: &QueuePairReport) -> String {
    let allowed = report.status.attributes.retry_cnt.unwrap_or(0);
    match report.status.attributes.timeout {
        Some(code @ 1..) => {
            let wait = Duration::from_nanos(4_096 << code.min(31));
            format!("{} of {allowed} repetitions with timeout {code}, {}", failed.tries, time(wait))
        }
        _ => format!("{} of {allowed} repetitions", failed.tries),
    }
}

/// Describes a request in words.
fn name(failed: &FailedRequest) -> String {
    format!("a {} of {} bytes", operation_name(&failed.operation), failed.length)
}

fn operation_name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Write { .. } | Operation::WriteWithImmediate { .. } => "WRITE",
        Operation::Read { .. } => "READ",
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => "atomic",
        Operation::AtomicWrite { .. } => "ATOMIC WRITE",
        Operation::Flush { .. } => "FLUSH",
        Operation::LocalInvalidate(_) => "local invalidation",
        Operation::BindMemoryWindow { .. } => "bind of a memory window",
        _ => "SEND",
    }
}

/// Formats a duration in the unit that suits it.
fn time(duration: Duration) -> String {
    match duration.as_micros() {
        0..1_000 => format!("{} µs", duration.as_micros()),
        1_000..1_000_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}
