//! Statistics of queue pairs, for programs that watch this process. They read what is counted anyway.

use std::fmt::Debug;
use std::ops::Range;

use super::Endpoint;
use crate::transport::queue_pair::QueuePair;
use crate::types::{Counters, ErrorOrigin, QueuePairState, QueuePairStatistics, Time};

/// A queue pair, to read statistics from.
pub struct QueuePairView<'a>(&'a QueuePair);

impl Endpoint {
    /// Returns the counters of everything but the present queue pairs.
    pub fn counters_without_queue_pairs(&self) -> Counters {
        let mut sum = self.counters.clone();
        self.paths.add_to(&mut sum);
        sum
    }

    /// Returns the number of slots of queue pairs; some of them are empty.
    pub fn queue_pair_slots(&self) -> usize {
        self.queue_pairs.len()
    }

    /// Shows the queue pairs in these slots, as far as they exist.
    pub fn queue_pairs_in(&self, slots: Range<usize>) -> impl Iterator<Item = QueuePairView<'_>> {
        let end = slots.end.min(self.queue_pairs.len());
        let slots = self.queue_pairs.get(slots.start.min(end)..end).unwrap_or_default();
        slots.iter().flatten().map(|queue_pair| QueuePairView(queue_pair))
    }
}

impl QueuePairView<'_> {
    /// Returns the state.
    pub fn state(&self) -> QueuePairState {
        self.0.common.state
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.0.common.counters
    }

    /// Returns the number of send requests that are complete.
    pub fn sends(&self) -> u64 {
        self.0.requester.finished()
    }

    /// Returns the number of executed messages of peers.
    pub fn receives(&self) -> u64 {
        self.0.responder.executed()
    }

    /// Returns the statistics, except whether memory is shared with the peer.
    pub fn statistics(&self, now: Time) -> QueuePairStatistics {
        let QueuePair { common, requester, responder, .. } = self.0;
        let mut statistics = QueuePairStatistics::new(common.qpn, common.service);
        statistics.state = common.state;
        (statistics.sends, statistics.receives) = (self.sends(), self.receives());
        statistics.counters = common.counters.clone();
        statistics.pending_sends = requester.unfinished();
        statistics.pending_receives = responder.available_receives();
        if let Some(path) = &common.path {
            let report = path.report(now);
            statistics.own_address = Some(report.own);
            statistics.peer_address = Some(report.peer);
            statistics.peer_qpn = Some(path.destination);
            statistics.round_trip = report.round_trip.map(|times| times.smoothed);
            statistics.window = report.window;
            statistics.path_bytes_in_flight = report.bytes_in_flight;
            statistics.bytes_in_flight = u64::from(requester.packets_in_flight()) * u64::from(path.mtu.bytes());
        }
        statistics.error = common.history.error_origin().map(|origin| describe(&origin));
        statistics
    }
}

/// Describes the cause of the error state.
fn describe(origin: &ErrorOrigin) -> String {
    match origin {
        ErrorOrigin::Request(failed) => {
            format!("{} failed: {} ({})", failed.operation.name(), words(&failed.status), words(&failed.cause))
        }
        ErrorOrigin::PeerRequest(failed) => {
            format!("refused the peer's {}: {}", failed.operation, words(&failed.fault))
        }
        ErrorOrigin::Application => "requested by the application".to_owned(),
        ErrorOrigin::CompletionQueueOverflow => "a completion queue overflowed".to_owned(),
        ErrorOrigin::Panic => "a panic in this library".to_owned(),
    }
}

/// Returns the name of a variant in words: `no response` for `NoResponse`.
fn words(variant: &impl Debug) -> String {
    let name = format!("{variant:?}");
    let mut words = String::new();
    for character in name.chars().take_while(|character| character.is_alphanumeric()) {
        if character.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(character.to_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Cause, CompletionStatus, FailedPeerRequest, FailedRequest, Operation, PeerFault};

    #[test]
    fn causes_are_described_in_words() {
        let mut failed = FailedRequest::new(1, Operation::Send, CompletionStatus::RetryExceededError);
        failed.cause = Cause::NoResponse;
        assert_eq!(describe(&ErrorOrigin::Request(failed)), "SEND failed: retry exceeded error (no response)");
        let refused = FailedPeerRequest::new(PeerFault::ReceiveMemory(Cause::LocalMemoryFault));
        assert_eq!(describe(&ErrorOrigin::PeerRequest(refused)), "refused the peer's request: receive memory");
    }

    #[test]
    fn slots_beyond_the_last_are_empty() {
        let endpoint = Endpoint::new(super::super::EndpointConfig::default());
        assert_eq!(endpoint.queue_pairs_in(0..64).count(), 0);
        assert_eq!(endpoint.queue_pairs_in(64..128).count(), 0);
    }
}
