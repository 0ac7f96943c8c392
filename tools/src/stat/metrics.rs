//! Names and descriptions of the metrics that come from a device's counters.

use rdma_verbs::types::Counter;

/// A counter as a metric.
pub(super) struct Metric {
    /// Without the prefix, and without `_total`. It ends with the unit, if there is one.
    pub(super) name: String,
    pub(super) unit: Option<&'static str>,
    pub(super) help: &'static str,
    /// Units of the counter in one of the metric.
    pub(super) divisor: f64,
}

/// Returns the metric of a counter. Times are in seconds, as in all metrics of Prometheus.
pub(super) fn metric(counter: Counter) -> Metric {
    let (name, help) = (counter.name(), help(counter));
    match name.strip_suffix("_us") {
        Some(stem) => Metric { name: format!("{stem}_seconds"), unit: Some("seconds"), help, divisor: 1e6 },
        None => {
            let unit = name.ends_with("_bytes").then_some("bytes");
            Metric { name: name.to_owned(), unit, help, divisor: 1.0 }
        }
    }
}

fn help(counter: Counter) -> &'static str {
    match counter {
        Counter::SentPackets => "Packets sent.",
        Counter::SentBytes => "Bytes sent, from the base transport header to the ICRC.",
        Counter::ReceivedPackets => "Packets received and accepted.",
        Counter::ReceivedBytes => "Bytes received and accepted, from the base transport header to the ICRC.",
        Counter::DuplicateRequest => "Request packets that had already been executed.",
        Counter::OutOfSequenceRequest => "Request packets that arrived out of order.",
        Counter::ReorderedRequest => "Request packets kept in the reorder buffer.",
        Counter::ReceivedRnr => "RNR NAKs received.",
        Counter::SentRnr => "RNR NAKs sent.",
        Counter::ReceivedSequenceNak => "Sequence NAKs received.",
        Counter::SentSequenceNak => "Sequence NAKs sent.",
        Counter::ReceivedNak => "Other NAKs received.",
        Counter::SentNak => "Other NAKs sent.",
        Counter::SentAcknowledge => "Acknowledgements sent.",
        Counter::LocalAckTimeout => "Expiries of the transport timer.",
        Counter::TailProbe => "Probes for a lost tail.",
        Counter::RetransmittedPackets => "Packets retransmitted.",
        Counter::ReadRepair => "READs requested again from the first missing byte.",
        Counter::DuplicateResponse => "Responses to packets that are not outstanding.",
        Counter::EcnMarkedPackets => "Packets that a queue on the path had marked (ECN).",
        Counter::CnpSent => "Congestion notifications sent.",
        Counter::CnpHandled => "Congestion notifications handled.",
        Counter::RetryExceeded => "Requests that failed because no response arrived.",
        Counter::RnrRetryExceeded => "Requests that failed because the peer had no receive posted.",
        Counter::CompletionQueueOverflow => "Completions lost because a completion queue was full.",
        Counter::Flushed => "Flushed requests.",
        Counter::SendCalls => "System calls that sent packets.",
        Counter::ForwardedPackets => "Packets for another process of this user that were forwarded.",
        Counter::ReceiveCalls => "System calls that received packets.",
        Counter::SendErrors => "Sends that the kernel refused.",
        Counter::SendQueueDrops => "Sends from which the queue of the local interface dropped packets.",
        Counter::SocketOverflow => "Datagrams that the kernel dropped because the socket's buffer was full.",
        Counter::LostPackets => "Packets retransmitted because they were missing.",
        Counter::SpuriousRetransmits => "Packets retransmitted that were only late.",
        Counter::CongestionEvents => "Window reductions because of network congestion.",
        Counter::ChanceLosses => "Lost packets attributed to chance.",
        Counter::PaceWait => "Time in which paths had packets to send and waited for their pacers.",
        Counter::WindowWait => "Time in which paths had packets to send and their windows were full.",
        Counter::DiscoveryQuestions => "Questions sent to find out whether a peer is native.",
        Counter::DiscoveredPeers => "Peers that were found to be native.",
        Counter::SharedMemorySends => "Sends that left through shared memory.",
        Counter::SharedMemoryReceives => "Sends that arrived through shared memory.",
        Counter::DirectRequests => "Requests executed in the memory of a process of this user, without packets.",
        _ => "A counter of the device.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_description() {
        for counter in Counter::ALL {
            assert_ne!(help(*counter), "A counter of the device.", "{}", counter.name());
        }
    }

    #[test]
    fn units_end_the_names() {
        let named = |counter| {
            let metric = metric(counter);
            (metric.name, metric.unit, metric.divisor)
        };
        assert_eq!(named(Counter::PaceWait), ("pace_wait_seconds".to_owned(), Some("seconds"), 1e6));
        assert_eq!(named(Counter::SentBytes), ("sent_bytes".to_owned(), Some("bytes"), 1.0));
        assert_eq!(named(Counter::SentPackets), ("sent_pkts".to_owned(), None, 1.0));
    }
}
