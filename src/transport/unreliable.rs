//! Unreliable connections: nothing is acknowledged, nothing is sent again.
//!
//! A request is finished when its last packet has left. At the receiving end a message counts only as a whole: a gap,
//! or a packet that does not continue what came before it, drops the message in progress, and the next first (or only)
//! packet starts clean. What a dropped WRITE has written stays; a receive that a dropped SEND had begun to fill serves
//! the next message.

use std::time::Duration;

use super::datagram::Sending;
use super::endpoint::Pass;
use super::queue_pair::QueuePair;
use super::violation::Violation;
use crate::mutation::{Mutation, planted};
use crate::types::{Cause, Counter, DropReason, Psn, QueuePairState, Time};
use crate::wire::Packet;

/// Packets that lie at most this far back are late or repeated ones: as many as a fast sender's network may hold.
/// Further back, the peer has begun anew, or a stray packet had led astray.
const STALE_PACKETS: i32 = 1 << 10;
/// Between bursts to our own peers, whose socket buffers are large: at most about 2 GB/s.
const OWN_PAUSE: Duration = Duration::from_micros(500);
/// Between bursts to strangers, as for READ responses.
const STRANGER_PAUSE: Duration = Duration::from_micros(200);
const STRANGER_BURST_PACKETS: u32 = 32;

/// Keeps a long message, which no acknowledgement slows down, from overrunning the receiver's socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    /// Packets sent since `since`.
    burst: u32,
    since: Time,
}

impl Pace {
    /// A packet leaves. Returns until when the next one must wait, if it must.
    fn note_sent(&mut self, now: Time, most: u32, pause: Duration) -> Option<Time> {
        if now.saturating_since(self.since) >= pause {
            *self = Self { burst: 0, since: now };
        }
        self.burst += 1;
        if self.burst < most {
            return None;
        }
        // The burst began at `since`, so the wait is counted from there: a slow sender hardly waits.
        let resume = self.since + pause;
        *self = Self { burst: 0, since: resume };
        Some(resume)
    }
}

impl QueuePair {
    /// A packet of an unreliable request has been written: it counts as sent and will not come again.
    pub(super) fn note_sent_unreliable(&mut self, pass: &Pass<'_>, end: Psn) -> Sending {
        self.requester.move_cursor(end);
        self.advance(pass, end);
        let Some(path) = &self.path else { return Sending::First };
        let (most, pause) = match path.peer.is_ours() {
            true => (path.window_packets, OWN_PAUSE),
            false => (path.window_packets.min(STRANGER_BURST_PACKETS), STRANGER_PAUSE),
        };
        let resume = self.requester.pace.note_sent(pass.now, most, pause);
        self.requester.recovery.pause_until(resume);
        Sending::First
    }

    /// A local error ends the send queue alone: what is left in it is flushed, receives go on.
    pub(super) fn enter_send_queue_error(&mut self) {
        self.state = QueuePairState::SendQueueError;
        self.requester.forget_all();
        self.note_in_flight();
        self.flush_sends(Cause::EarlierFailure);
        if planted(Mutation::SendQueueErrorFlushesReceives) {
            self.flush(Cause::EarlierFailure);
        }
    }

    /// A packet of the peer's sending half.
    pub(super) fn handle_unreliable(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !self.takes_requests() {
            return Err(DropReason::WrongState);
        }
        if self.is_due(true, packet.headers.bth.psn) {
            self.note_established();
        }
        let psn = packet.headers.bth.psn;
        let distance = psn.distance_from(self.responder.expected());
        if (-STALE_PACKETS..0).contains(&distance) && !planted(Mutation::UnreliableLateTaken) {
            self.count(Counter::DuplicateRequest);
            return Err(DropReason::StaleDuplicate);
        }
        let opcode = packet.headers.bth.opcode;
        if distance != 0 {
            self.count(Counter::OutOfSequenceRequest);
        }
        let is_gap = distance != 0 && !planted(Mutation::UnreliableGapIgnored);
        if is_gap || opcode.is_first() || opcode.is_only() {
            self.responder.drop_message();
        }
        self.responder.expect(psn);
        let taken = self.take_unreliable(pass, packet);
        if taken.is_err() {
            self.responder.drop_message();
            self.responder.expect(psn.plus(1));
        }
        taken
    }

    /// The chain of checks. What the peer did wrong drops its message; what is wrong with the own receive ends the
    /// queue pair, as the standard has it for local errors.
    fn take_unreliable(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        self.check_sequence(packet).map_err(|_| DropReason::OutOfOrder)?;
        self.check_operation(packet).map_err(|_| DropReason::Refused)?;
        if !self.check_resources(packet) {
            return Err(DropReason::NoReceive);
        }
        let checked = self.check_length(packet).and_then(|()| self.check_key(pass, packet));
        if checked.is_ok() && !self.claim_receive(packet) {
            return Err(DropReason::NoReceive);
        }
        match checked.and_then(|()| self.execute(pass, packet)) {
            Ok(()) => Ok(()),
            Err(violation) if is_local(violation) || planted(Mutation::UnreliableFaultEndsAll) => {
                self.refuse(violation, Some((&packet.headers, packet.payload.len() as u32)));
                Err(DropReason::Refused)
            }
            Err(violation) => {
                tracing::debug!(qpn = %self.qpn, psn = %packet.headers.bth.psn, ?violation, "message dropped");
                Err(DropReason::Refused)
            }
        }
    }
}

/// Whether it is the own receive that is wrong.
fn is_local(violation: Violation) -> bool {
    match violation {
        Violation::ReceiveTooSmall => !planted(Mutation::UnreliableLongMessageDropped),
        violation => matches!(violation, Violation::ReceiveMemory(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_followed_by_a_pause() {
        let (mut pace, pause) = (Pace::default(), Duration::from_micros(200));
        let at = |microseconds: u64| Time::from_nanos(1_000_000 + microseconds * 1_000);
        assert_eq!(pace.note_sent(at(0), 3, pause), None);
        assert_eq!(pace.note_sent(at(1), 3, pause), None);
        assert_eq!(pace.note_sent(at(2), 3, pause), Some(at(200)));
        // Whoever sends slower than that never waits.
        for packet in 0..10 {
            assert_eq!(pace.note_sent(at(1_000 + packet * 100), 3, pause), None, "{packet}");
        }
    }
}
