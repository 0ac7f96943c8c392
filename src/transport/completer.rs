//! Responses at the sending half: acknowledgements retire requests in order, READ responses and atomics bring
//! their data home, NAKs lead to [`super::retransmit`] or to the end of the connection.

use super::common::Pass;
use super::queue_pair::QueuePair;
use super::segments::for_each_segment;
use super::violation::local_cause;
use crate::memory::AccessError;
use crate::mutation::{Mutation, planted};
use crate::types::{AccessFlags, Cause, CompletionStatus, Counter, DropReason, Psn};
use crate::wire::{NakCode, Opcode, Packet, Syndrome};

/// Where a response's number stands among the requests in progress.
enum Place {
    /// It answers request `index`, and nothing before it is missing but what it acknowledges itself.
    Expected(u32),
    /// An earlier READ or atomic, or an earlier part of this READ, has no response yet.
    BeforeItsTurn,
    /// It was answered before.
    Duplicate,
    /// It was never sent.
    Unknown,
}

impl QueuePair {
    /// A packet of the peer's receiving half.
    pub(super) fn handle_response(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !self.common.takes_responses() {
            return Err(DropReason::WrongState);
        }
        let psn = packet.headers.bth.psn;
        let sent = self.requester.limit.distance_from(self.requester.unacknowledged).max(0) as u32;
        let sent = sent.saturating_sub(u32::from(planted(Mutation::ResponseWindowTooShort)));
        if !psn.is_within(self.requester.unacknowledged, sent) {
            return Err(self.stale_or_unknown(psn));
        }
        match packet.headers.bth.opcode {
            Opcode::RC_ACKNOWLEDGE => self.handle_acknowledge(pass, packet),
            Opcode::RC_ATOMIC_ACKNOWLEDGE => self.handle_atomic_response(pass, packet),
            _ => self.handle_read_response(pass, packet),
        }
    }

    fn stale_or_unknown(&mut self, psn: Psn) -> DropReason {
        if psn.is_before(self.requester.unacknowledged) {
            self.common.count(Counter::DuplicateResponse);
        }
        DropReason::BadPsn
    }

    fn handle_acknowledge(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let Some(aeth) = packet.headers.aeth else { return Err(DropReason::Truncated) };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge_before(pass, psn.plus(1), psn);
            }
            Syndrome::ReceiverNotReady { timer } => {
                let taken = u32::from(planted(Mutation::RnrNakAcknowledgesRefused));
                if self.acknowledge_before(pass, psn.plus(taken), psn) {
                    self.receiver_not_ready(pass.now, timer);
                }
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                let missing = u32::from(planted(Mutation::NakAcknowledgesMissing));
                if self.acknowledge_before(pass, psn.plus(missing), psn) {
                    self.sequence_nak(pass.now);
                }
            }
            Syndrome::Nak(code) => {
                self.common.count(Counter::ReceivedNak);
                let is_oldest = planted(Mutation::RefusalFailsOldest);
                if is_oldest || (self.acknowledge_before(pass, psn, psn) && self.requester.unacknowledged == psn) {
                    let (status, cause) = refusal(code);
                    self.fail_oldest(status, cause);
                }
            }
            Syndrome::Reserved(_) => return Err(DropReason::Unexpected),
        }
        Ok(())
    }

    /// Everything before `psn` is acknowledged, except that READs and atomics need their responses. Returns whether
    /// nothing held it up and the connection lives. `response` is the number of the packet that says so.
    pub(super) fn acknowledge_before(&mut self, pass: &Pass<'_>, psn: Psn, response: Psn) -> bool {
        let barrier = if self.requester.awaits_data() { self.first_awaiting_data(psn) } else { None };
        let start = self.requester.unacknowledged;
        let reached = match barrier {
            Some(first) if first.is_before(start) => start,
            Some(first) => first,
            None => psn,
        };
        self.advance(pass, reached);
        if reached.is_before(psn) {
            self.note_gap(pass.now, response);
            return false;
        }
        self.common.takes_responses()
    }

    /// First number of the oldest request before `psn` that needs a response of its own.
    fn first_awaiting_data(&self, psn: Psn) -> Option<Psn> {
        let mut index = self.requester.oldest();
        let mut bound = self.requester.walk();
        while index != self.requester.next() {
            bound.step();
            let request = self.requester.request(index);
            if !request.first.is_before(psn) {
                return None;
            }
            if request.needs_response() {
                return Some(request.first);
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Moves the oldest unacknowledged number and completes what lies before it.
    pub(super) fn advance(&mut self, pass: &Pass<'_>, psn: Psn) {
        if !self.requester.unacknowledged.is_before(psn) {
            return;
        }
        self.requester.move_unacknowledged(psn);
        let mut bound = self.requester.walk();
        while !self.requester.is_idle() {
            bound.step();
            let oldest = *self.requester.request(self.requester.oldest());
            if psn.is_before(oldest.end()) {
                break;
            }
            let index = self.requester.oldest();
            self.requester.pop_oldest();
            self.complete_send(index, CompletionStatus::Success, Cause::None);
        }
        self.note_in_flight();
        self.note_progress(pass.now);
        if let Some((index, status, cause)) = self.requester.failed
            && index == self.requester.oldest()
        {
            self.fail_oldest(status, cause);
        }
    }

    fn place_of(&self, psn: Psn) -> Place {
        let mut index = self.requester.oldest();
        let mut bound = self.requester.walk();
        while index != self.requester.next() {
            bound.step();
            let request = self.requester.request(index);
            if psn.is_within(request.first, request.packets) {
                let unacknowledged = self.requester.unacknowledged;
                let expected = if request.first.is_before(unacknowledged) { unacknowledged } else { request.first };
                return match psn.distance_from(expected) {
                    0 => Place::Expected(index),
                    1.. if planted(Mutation::ReadAnswerOutOfOrder) => Place::Expected(index),
                    1.. => Place::BeforeItsTurn,
                    _ => Place::Duplicate,
                };
            }
            if request.needs_response() {
                return Place::BeforeItsTurn;
            }
            index = index.wrapping_add(1);
        }
        Place::Unknown
    }

    /// The request that this answer is for, if it is its turn.
    fn request_of_response(&mut self, pass: &Pass<'_>, psn: Psn) -> Result<u32, DropReason> {
        match self.place_of(psn) {
            Place::Expected(index) => Ok(index),
            Place::BeforeItsTurn => {
                self.note_gap(pass.now, psn);
                Err(DropReason::OutOfOrderResponse)
            }
            Place::Duplicate => {
                self.common.count(Counter::DuplicateResponse);
                Err(DropReason::BadPsn)
            }
            Place::Unknown => Err(DropReason::BadPsn),
        }
    }

    fn handle_read_response(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let index = self.request_of_response(pass, psn)?;
        let request = *self.requester.request(index);
        // After a repetition the peer may begin with a first, middle, last or only packet; what must fit is the length.
        let mtu = self.common.mtu_bytes();
        let place = psn.distance_from(request.first).max(0) as u32;
        let total = if request.is_ack_only { 0 } else { self.send.header(index).length };
        let is_last = place + 1 == request.packets;
        let expected = if is_last { total - place * mtu } else { mtu };
        let acknowledges = packet.headers.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        let fits = packet.payload.len() == expected as usize || planted(Mutation::ReadAnswerLengthUnchecked);
        if !(request.is_read || request.is_ack_only) || !acknowledges || !fits {
            return self.bad_response(pass, psn);
        }
        if request.is_ack_only {
            self.note_ack_only_response(index);
        }
        let offset = u64::from(place) * u64::from(mtu);
        match self.scatter(pass, index, offset, packet.payload) {
            Ok(()) => self.advance(pass, psn.plus(1)),
            Err(error) => {
                self.fail_request_of_response(pass, psn, CompletionStatus::LocalProtectionError, local_cause(error))
            }
        }
        Ok(())
    }

    fn handle_atomic_response(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let index = self.request_of_response(pass, psn)?;
        let request = *self.requester.request(index);
        let Some(original) = packet.headers.atomic_ack else { return Err(DropReason::Truncated) };
        if !request.is_atomic {
            return self.bad_response(pass, psn);
        }
        match self.scatter(pass, index, 0, &original.to_ne_bytes()) {
            Ok(()) => self.advance(pass, psn.plus(1)),
            Err(error) => {
                self.fail_request_of_response(pass, psn, CompletionStatus::LocalProtectionError, local_cause(error))
            }
        }
        Ok(())
    }

    /// Copies arrived bytes to where the request wants them.
    fn scatter(&self, pass: &Pass<'_>, index: u32, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        if data.is_empty() {
            return Ok(());
        }
        for_each_segment(self.send.sges(index), offset, data.len(), |sge, addr, range| {
            pass.memory.write(sge.lkey.0, self.common.domain, addr, AccessFlags::LOCAL_WRITE, &data[range])
        })
    }

    /// The response breaks the protocol: the connection ends.
    fn bad_response(&mut self, pass: &Pass<'_>, psn: Psn) -> Result<(), DropReason> {
        self.fail_request_of_response(pass, psn, CompletionStatus::BadResponseError, Cause::BadResponse);
        Err(DropReason::Unexpected)
    }

    /// The request of the response fails; the response acknowledges those before it.
    fn fail_request_of_response(&mut self, pass: &Pass<'_>, psn: Psn, status: CompletionStatus, cause: Cause) {
        self.advance(pass, psn);
        if self.common.takes_responses() {
            self.fail_oldest(status, cause);
        }
    }
}

/// How the request ends that the peer refused.
fn refusal(code: NakCode) -> (CompletionStatus, Cause) {
    match code {
        NakCode::InvalidRequest => (CompletionStatus::RemoteInvalidRequestError, Cause::RefusedInvalid),
        NakCode::RemoteAccess => (CompletionStatus::RemoteAccessError, Cause::RefusedAccess),
        _ => (CompletionStatus::RemoteOperationError, Cause::RefusedOperational),
    }
}
