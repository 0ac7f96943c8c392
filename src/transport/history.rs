//! The history of a queue pair, for explanations: the peer's last packets, the last successes, and the reason for the
//! error state.
//!
//! Each packet costs one store of a few words; everything else happens on rare paths.

use std::net::IpAddr;

use crate::types::{
    Counters, DropReason, ErrorOrigin, FailedPeerRequest, LastPeerPacket, LastSuccesses, Operation, PeerFault,
    PeerPacketKind, Qpn, QueuePairReport, QueuePairState, QueuePairStatus, RemoteAccess, Time, UnmatchedPackets,
};
use crate::wire::{Aeth, Bth, Headers, NakCode, Opcode, Packet, Syndrome};

/// Maximum number of kinds of unmatched packets remembered.
const MOST_UNMATCHED: usize = 16;

/// A valid packet of the peer.
#[derive(Clone, Copy)]
pub(super) struct HeardPacket {
    pub(super) at: Time,
    opcode: Opcode,
    aeth: Option<Aeth>,
}

impl HeardPacket {
    pub(super) fn report(&self, now: Time) -> LastPeerPacket {
        LastPeerPacket { what: self.kind(), ago: now.saturating_since(self.at) }
    }

    fn kind(&self) -> PeerPacketKind {
        match (self.opcode, self.aeth.map(|aeth| aeth.syndrome)) {
            (opcode, _) if opcode.is_request() => PeerPacketKind::Request,
            (_, Some(Syndrome::ReceiverNotReady { .. })) => PeerPacketKind::ReceiverNotReadyNak,
            (_, Some(Syndrome::Nak(NakCode::SequenceError))) => PeerPacketKind::SequenceNak,
            (_, Some(Syndrome::Nak(_) | Syndrome::Reserved(_))) => PeerPacketKind::RefusalNak,
            (Opcode::RC_ACKNOWLEDGE, _) => PeerPacketKind::Acknowledgement,
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, _) => PeerPacketKind::AtomicResponse,
            _ => PeerPacketKind::ReadResponse,
        }
    }
}

/// The history of one connection.
#[derive(Default)]
pub(super) struct History {
    connected_at: Time,
    /// The counters at the beginning of the connection, unless they were zero.
    base: Option<Box<Counters>>,
    /// The last response and the last request of the peer.
    heard: [Option<HeardPacket>; 2],
    last_successes: LastSuccesses,
    error_origin: Option<ErrorOrigin>,
    /// Zero: the retries of no request are exhausted.
    gave_up_at: Time,
    late_responses: u32,
    wrong_source: Option<IpAddr>,
    wrong_pkey: Option<u16>,
}

impl History {
    /// Begins the history of a connection.
    pub(super) fn connect(&mut self, now: Time, counters: &Counters) {
        let base = (*counters != Counters::default()).then(|| Box::new(counters.clone()));
        *self = Self { connected_at: now, base, ..Self::default() };
    }

    /// Records a valid packet of the peer.
    #[inline]
    pub(super) fn note_heard(&mut self, now: Time, headers: &Headers) {
        let opcode = headers.bth.opcode;
        let half = usize::from(opcode.is_request());
        self.heard[half] = Some(HeardPacket { at: now, opcode, aeth: headers.aeth });
    }

    /// Records another request of the peer like the last one.
    #[inline]
    pub(super) fn note_heard_again(&mut self, now: Time) {
        if let Some(heard) = &mut self.heard[usize::from(true)] {
            heard.at = now;
        }
    }

    /// Records the success of a request of this end.
    #[inline]
    pub(super) fn note_done(&mut self, operation: &Operation, length: u32) {
        let done = |remote_addr, rkey| Some(RemoteAccess { remote_addr, rkey, length });
        match *operation {
            Operation::Read { remote_addr, rkey } => {
                self.last_successes.read = done(remote_addr, rkey);
                return;
            }
            Operation::CompareAndSwap { remote_addr, rkey, .. } | Operation::FetchAndAdd { remote_addr, rkey, .. } => {
                self.last_successes.atomic = done(remote_addr, rkey);
                return;
            }
            Operation::Write { remote_addr, rkey } | Operation::WriteWithImmediate { remote_addr, rkey, .. } => {
                self.last_successes.write = done(remote_addr, rkey);
            }
            _ => {}
        }
        self.last_successes.longest = self.last_successes.longest.max(length);
    }

    /// Records the reason for the error state; the first one counts.
    pub(super) fn note_error_origin(&mut self, error_origin: ErrorOrigin) {
        self.error_origin.get_or_insert(error_origin);
    }

    /// Clears the reason when the queue pair leaves the error state.
    pub(super) fn forget_error_origin(&mut self) {
        self.error_origin = None;
    }

    /// Returns the reason for the error state.
    pub(super) fn error_origin(&self) -> Option<ErrorOrigin> {
        self.error_origin
    }

    /// Returns when the connection began.
    pub(super) fn connected_at(&self) -> Time {
        self.connected_at
    }

    /// Returns the last valid response and request of the peer since the connection began.
    pub(super) fn heard(&self) -> impl Iterator<Item = HeardPacket> {
        self.heard.into_iter().flatten()
    }

    /// Returns the history as a report, which the queue pair completes with its current state.
    pub(super) fn report(&self, now: Time, status: QueuePairStatus, counters: &Counters) -> QueuePairReport {
        let counters = match &self.base {
            Some(base) => counters.since(base),
            None => counters.clone(),
        };
        let mut report = QueuePairReport::new(status, counters);
        [report.last_response, report.last_request] = self.heard.map(|heard| heard.map(|packet| packet.report(now)));
        report.error_origin = self.error_origin;
        report.last_successes = self.last_successes;
        report.gave_up = (self.gave_up_at != Time::ZERO).then(|| now.saturating_since(self.gave_up_at));
        report.late_responses = self.late_responses;
        report.wrong_source = self.wrong_source;
        report.wrong_pkey = self.wrong_pkey;
        report
    }

    /// Records that the retries of a request are exhausted.
    pub(super) fn note_gave_up(&mut self, now: Time) {
        if self.gave_up_at == Time::ZERO {
            self.gave_up_at = now;
        }
    }

    /// Records that a request of the peer is refused.
    pub(super) fn note_refusal(&mut self, fault: PeerFault, packet: Option<&Packet<'_>>, wr_id: Option<u64>) {
        let mut refused = FailedPeerRequest { wr_id, ..FailedPeerRequest::new(fault) };
        if let Some(Packet { headers, payload, .. }) = packet {
            let opcode = headers.bth.opcode;
            refused.operation = match opcode {
                Opcode::RC_READ_REQUEST => "READ",
                Opcode::RC_ATOMIC_WRITE => "ATOMIC WRITE",
                Opcode::RC_FLUSH => "FLUSH",
                _ if opcode.is_write() => "WRITE",
                _ if opcode.is_send() => "SEND",
                _ => "atomic",
            };
            refused.length = payload.len() as u32;
            if let Some(reth) = headers.reth {
                (refused.remote, refused.length) = (Some((reth.va, reth.rkey)), reth.length);
            } else if let Some(atomic) = headers.atomic {
                (refused.remote, refused.length) = (Some((atomic.va, atomic.rkey)), 8);
            } else if let Some(rkey) = headers.invalidate {
                refused.remote = Some((0, rkey));
            }
        }
        self.note_error_origin(ErrorOrigin::PeerRequest(refused));
    }

    /// Records a dropped packet of this queue pair.
    pub(super) fn note_drop(&mut self, reason: DropReason, state: QueuePairState, source: IpAddr, bth: &Bth) {
        match reason {
            DropReason::WrongAddress => self.wrong_source = Some(source),
            DropReason::BadPkey => self.wrong_pkey = Some(bth.pkey),
            DropReason::WrongState if state == QueuePairState::Error && bth.opcode.is_response() => {
                self.late_responses = self.late_responses.saturating_add(1);
            }
            _ => {}
        }
    }
}

/// Packets that belong to no queue pair, by source and drop reason.
#[derive(Default)]
pub(super) struct UnmatchedHistory(Vec<UnmatchedKind>);

struct UnmatchedKind {
    source: IpAddr,
    qpn: Option<Qpn>,
    reason: DropReason,
    count: u64,
    at: Time,
}

impl UnmatchedHistory {
    /// Returns the packets from `source` since `since`.
    pub(super) fn report(&self, now: Time, source: IpAddr, since: Time) -> Vec<UnmatchedPackets> {
        let fits = |kind: &&UnmatchedKind| kind.source == source && kind.at >= since;
        let report = |kind: &UnmatchedKind| UnmatchedPackets {
            qpn: kind.qpn,
            reason: kind.reason,
            count: kind.count,
            ago: now.saturating_since(kind.at),
        };
        self.0.iter().filter(fits).map(report).collect()
    }

    /// Counts a packet. A new kind replaces the one seen longest ago.
    pub(super) fn note(&mut self, now: Time, source: IpAddr, qpn: Option<Qpn>, reason: DropReason) {
        let same = |kind: &&mut UnmatchedKind| (kind.source, kind.qpn, kind.reason) == (source, qpn, reason);
        if let Some(kind) = self.0.iter_mut().find(same) {
            kind.count += 1;
            kind.at = now;
            return;
        }
        let kind = UnmatchedKind { source, qpn, reason, count: 1, at: now };
        if self.0.len() < MOST_UNMATCHED {
            self.0.push(kind);
        } else if let Some(oldest) = self.0.iter_mut().min_by_key(|kind| kind.at) {
            *oldest = kind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmatched_packets_are_bounded_and_the_oldest_is_dropped() {
        let mut history = UnmatchedHistory::default();
        let source: IpAddr = "10.0.0.2".parse().unwrap();
        for number in 0..100 {
            let time = Time::from_nanos(u64::from(number));
            history.note(time, source, Some(Qpn::new(number)), DropReason::UnknownQueuePair);
        }
        history.note(Time::from_nanos(200), source, Some(Qpn::new(99)), DropReason::UnknownQueuePair);
        assert_eq!(history.0.len(), MOST_UNMATCHED);
        let last = history.0.iter().find(|kind| kind.qpn == Some(Qpn::new(99))).unwrap();
        assert_eq!((last.count, last.at), (2, Time::from_nanos(200)));
        assert!(history.0.iter().all(|kind| kind.qpn.is_some_and(|qpn| qpn.value() >= 84)));
    }

    #[test]
    fn the_first_error_origin_is_kept() {
        let mut history = History::default();
        history.note_error_origin(ErrorOrigin::Application);
        history.note_error_origin(ErrorOrigin::CompletionQueueOverflow);
        assert_eq!(history.error_origin, Some(ErrorOrigin::Application));
        history.connect(Time::from_nanos(5), &Counters::default());
        assert_eq!(history.error_origin, None);
    }
}
