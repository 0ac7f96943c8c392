//! Responses: acknowledgements retire requests in order, READ responses and atomics deliver their data, NAKs lead to
//! [`super::recovery`] or to the end of the connection.

use super::{Common, Pass, RequestFailure, Requester};
use crate::memory::AccessError;
use crate::transport::segments::scatter;
use crate::types::{Cause, CompletionStatus, Counter, DropReason, Operation, Psn, Time};
use crate::wire::{Bth, GapRuns, NakCode, Opcode, Packet, Syndrome};

/// The consequences of a response other than progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) enum ResponseError {
    /// It is dropped.
    Dropped(DropReason),
    /// The oldest request fails.
    Failed(RequestFailure),
    /// The oldest request fails, because the response breaks the protocol, and is dropped.
    Invalid(RequestFailure),
}

impl From<DropReason> for ResponseError {
    fn from(reason: DropReason) -> Self {
        Self::Dropped(reason)
    }
}

impl From<RequestFailure> for ResponseError {
    fn from(failure: RequestFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Position of a response's number among the requests in progress.
enum Position {
    /// It belongs to request `index`, and nothing before it is missing except what it acknowledges itself.
    Expected(u32),
    /// An earlier READ or atomic, or an earlier part of this READ, has no response yet.
    Early,
    /// The response has arrived before.
    Duplicate,
    /// The number was never sent.
    Unknown,
}

impl Requester {
    /// Handles a packet of the peer's responder. `is_keyed`: only the peer can have sent it.
    #[inline]
    pub(in crate::transport) fn handle_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        is_keyed: bool,
    ) -> Result<(), ResponseError> {
        if !common.takes_responses() {
            return Err(DropReason::WrongState.into());
        }
        let psn = packet.headers.bth.psn;
        if !psn.is_within(self.unacknowledged, self.packets_in_flight()) {
            return Err(self.stale_or_unknown(common, pass.now, packet).into());
        }
        match packet.headers.bth.opcode {
            Opcode::RC_ACKNOWLEDGE => self.handle_acknowledge(common, pass, packet),
            Opcode::RC_ATOMIC_ACKNOWLEDGE => self.handle_atomic_response(common, pass, packet, is_keyed),
            _ => self.handle_read_response(common, pass, packet, is_keyed),
        }
    }

    fn stale_or_unknown(&mut self, common: &mut Common, now: Time, packet: &Packet<'_>) -> DropReason {
        let Bth { psn, opcode, .. } = packet.headers.bth;
        match psn.is_before(self.unacknowledged) {
            true if opcode == Opcode::RC_ACKNOWLEDGE => common.count(Counter::DuplicateResponse),
            true => self.note_duplicate_response(common, now, psn),
            false => {}
        }
        DropReason::BadPsn
    }

    #[inline]
    fn handle_acknowledge(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ResponseError> {
        let psn = packet.headers.bth.psn;
        let Some(aeth) = packet.headers.aeth else { return Err(DropReason::Truncated.into()) };
        if !packet.payload.is_empty() && aeth.syndrome != Syndrome::Nak(NakCode::SequenceError) {
            return Err(DropReason::BadLength.into());
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge_before(common, pass, psn.plus(1), psn)?;
            }
            Syndrome::ReceiverNotReady { timer } => {
                // An RNR NAK that a later response has overtaken is stale.
                let is_news = !self.is_executed(psn);
                if is_news && (self.acknowledge_before(common, pass, psn, psn)? || self.places_early()) {
                    self.receiver_not_ready(common, pass.now, psn, timer)?;
                }
            }
            // It acknowledges everything before its number (IBTA 9.7.5.1.2; `rxe_comp.c`, `check_ack`).
            Syndrome::Nak(NakCode::SequenceError) => {
                let runs = gap_runs(common, packet.payload)?;
                let is_complete = self.acknowledge_before(common, pass, psn, psn)?;
                self.take_sequence_nak(common, pass.now, psn, runs, is_complete)?;
            }
            Syndrome::Nak(code) => {
                common.count(Counter::ReceivedNak);
                if self.acknowledge_before(common, pass, psn, psn)? && self.unacknowledged == psn {
                    return Err(refusal(code).into());
                }
            }
            Syndrome::Reserved(_) => return Err(DropReason::Unexpected.into()),
        }
        Ok(())
    }

    /// Handles a NAK: the peer misses the packet `psn`. Native peers name all packets that they miss. `is_complete`:
    /// `psn` is the oldest unacknowledged number.
    fn take_sequence_nak(
        &mut self,
        common: &mut Common,
        now: Time,
        psn: Psn,
        runs: Option<GapRuns<'_>>,
        is_complete: bool,
    ) -> Result<(), ResponseError> {
        match runs {
            // A later response has overtaken the NAK.
            _ if self.is_executed(psn) => {}
            Some(runs) if is_complete && !self.awaits_data() => self.take_gap_runs(common, now, runs)?,
            Some(runs) if self.places_early() => self.take_missing_requests(common, now, psn, runs)?,
            _ if is_complete => self.sequence_nak(common, now)?,
            _ => {}
        }
        Ok(())
    }

    /// Acknowledges everything before `psn`, up to the first request that still needs a response of its own. Returns
    /// whether no request held it up. `response` is the number of the packet that acknowledges (`rxe_comp.c`,
    /// `check_psn`).
    #[inline]
    pub(super) fn acknowledge_before(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        psn: Psn,
        response: Psn,
    ) -> Result<bool, RequestFailure> {
        let barrier = if self.awaits_data() { self.first_awaiting_data(psn) } else { None };
        let start = self.unacknowledged;
        let reached = match barrier {
            Some(first) if first.is_before(start) => start,
            Some(first) => first,
            None => psn,
        };
        self.advance(common, pass, reached)?;
        let is_held_up = reached.is_before(psn);
        if is_held_up && self.places_early() {
            self.note_executed_before(common, pass.now, psn);
        } else if is_held_up {
            self.note_gap(common, pass.now, response);
        }
        Ok(!is_held_up)
    }

    /// Returns the first number of the oldest request before `psn` that needs a response of its own.
    fn first_awaiting_data(&self, psn: Psn) -> Option<Psn> {
        let mut before = self.in_progress().take_while(|(_, request)| request.first.is_before(psn));
        before.find(|(_, request)| request.needs_response()).map(|(_, request)| request.first)
    }

    /// Moves the oldest unacknowledged number and completes the requests before it. Returns an error if the new oldest
    /// request cannot continue.
    #[inline]
    fn advance(&mut self, common: &mut Common, pass: &Pass<'_>, psn: Psn) -> Result<(), RequestFailure> {
        if !self.unacknowledged.is_before(psn) {
            return Ok(());
        }
        self.retire_before(common, pass, psn);
        match self.failed {
            Some((index, failure)) if index == self.oldest => Err(failure),
            _ => Ok(()),
        }
    }

    /// Completes the requests whose last packet lies before `psn`.
    #[inline]
    pub(super) fn retire_before(&mut self, common: &mut Common, pass: &Pass<'_>, psn: Psn) {
        let before = self.unacknowledged;
        let is_read = common.is_controlled() && self.request(self.oldest).is_read;
        self.move_unacknowledged(common, pass.now, psn);
        let mut bound = self.walk();
        while !self.is_idle() {
            bound.step();
            if psn.is_before(self.request(self.oldest).end()) {
                break;
            }
            let index = self.oldest;
            self.pop_oldest();
            self.complete(common, index, CompletionStatus::Success, Cause::None);
        }
        self.note_in_flight(common);
        self.report_acknowledged(common, pass.now, before, is_read);
        self.note_progress(common, pass.now);
    }

    fn position_of(&self, psn: Psn) -> Position {
        for (index, request) in self.in_progress() {
            if psn.is_within(request.first, request.packets) {
                let unacknowledged = self.unacknowledged;
                let expected = if request.first.is_before(unacknowledged) { unacknowledged } else { request.first };
                return match psn.distance_from(expected) {
                    0 => Position::Expected(index),
                    1.. => Position::Early,
                    _ => Position::Duplicate,
                };
            }
            if request.needs_response() {
                return Position::Early;
            }
        }
        Position::Unknown
    }

    /// Returns the request that this response is for, if no earlier response is missing.
    fn request_in_order(&mut self, common: &mut Common, pass: &Pass<'_>, psn: Psn) -> Result<u32, ResponseError> {
        match self.position_of(psn) {
            Position::Expected(index) => Ok(index),
            Position::Early => {
                self.note_gap(common, pass.now, psn);
                Err(DropReason::OutOfOrderResponse.into())
            }
            Position::Duplicate => {
                self.note_duplicate_response(common, pass.now, psn);
                Err(DropReason::BadPsn.into())
            }
            Position::Unknown => Err(DropReason::BadPsn.into()),
        }
    }

    fn handle_read_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        is_keyed: bool,
    ) -> Result<(), ResponseError> {
        let psn = packet.headers.bth.psn;
        let (index, is_early) = self.request_of_response(common, pass, psn, is_keyed)?;
        let request = *self.request(index);
        // After a repetition any of FIRST, MIDDLE, LAST and ONLY may arrive; the length must fit. rxe checks their
        // order.
        let mtu = common.mtu_bytes();
        let position = psn.packets_since(request.first);
        let total = if request.is_ack_only { 0 } else { self.send.header(index).length };
        let is_last = position + 1 == request.packets;
        let expected = if is_last { total - position * mtu } else { mtu };
        let acknowledges = packet.headers.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        let fits = packet.payload.len() == expected as usize;
        if !(request.is_read || request.is_ack_only) || !acknowledges || !fits {
            return self.bad_response(common, pass, psn, is_early);
        }
        if request.is_ack_only && matches!(self.send.header(index).operation, Operation::Flush { .. }) {
            common.note_flush_taken(self.rounds());
        }
        let offset = u64::from(position) * u64::from(mtu);
        let scattered = self.scatter_response(common, pass, index, offset, packet.payload);
        if is_early {
            return self.take_early_response(common, pass, psn, index, scattered);
        }
        self.take_response(common, pass, psn, scattered)
    }

    /// Returns the request that this response is for, and whether it arrived early.
    fn request_of_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        psn: Psn,
        is_keyed: bool,
    ) -> Result<(u32, bool), ResponseError> {
        self.places_early = is_keyed && common.accepts_gap_runs();
        if !self.places_early || !matches!(self.position_of(psn), Position::Early) {
            return self.request_in_order(common, pass, psn).map(|index| (index, false));
        }
        if !psn.is_before(self.cursor) {
            // The request is retransmitted, so its response will arrive again.
            self.note_sign_of_life(common, pass.now);
            return Err(DropReason::OutOfOrderResponse.into());
        }
        let index = self.request_with(psn).filter(|index| self.request(*index).needs_response());
        if self.has_arrived_early(psn) {
            self.note_duplicate_response(common, pass.now, psn);
            return Err(DropReason::BadPsn.into());
        }
        index.map(|index| (index, true)).ok_or(DropReason::BadPsn.into())
    }

    /// Takes a response that arrived early. If its bytes cannot be stored, the request fails once it is the oldest.
    fn take_early_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        psn: Psn,
        index: u32,
        scattered: Result<(), AccessError>,
    ) -> Result<(), ResponseError> {
        match scattered {
            Ok(()) => self.note_early_response(common, pass.now, psn),
            Err(error) => self.fail_when_oldest(index, error)?,
        }
        Ok(())
    }

    fn handle_atomic_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        is_keyed: bool,
    ) -> Result<(), ResponseError> {
        let psn = packet.headers.bth.psn;
        let (index, is_early) = self.request_of_response(common, pass, psn, is_keyed)?;
        let request = *self.request(index);
        let Some(original) = packet.headers.atomic_ack else { return Err(DropReason::Truncated.into()) };
        if !request.is_atomic {
            return self.bad_response(common, pass, psn, is_early);
        }
        let scattered = self.scatter_response(common, pass, index, 0, &original.to_ne_bytes());
        if is_early {
            return self.take_early_response(common, pass, psn, index, scattered);
        }
        self.take_response(common, pass, psn, scattered)
    }

    /// Copies the bytes of a response to this offset of the request's memory.
    fn scatter_response(
        &self,
        common: &Common,
        pass: &Pass<'_>,
        index: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), AccessError> {
        scatter(pass.memory, self.send.sges(index), common.domain, offset, bytes)
    }

    /// Takes a response that arrived in order. If its bytes cannot be stored, the request fails; those before it are
    /// acknowledged in any case.
    fn take_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        psn: Psn,
        scattered: Result<(), AccessError>,
    ) -> Result<(), ResponseError> {
        let done = if scattered.is_ok() { self.complete_from(common, pass.now, psn) } else { psn };
        self.advance(common, pass, done)?;
        scattered.map_err(|error| RequestFailure::from(error).into())
    }

    /// Notes that the response of this number has arrived in order. Returns the number up to which everything has
    /// arrived with it.
    fn complete_from(&mut self, common: &mut Common, now: Time, psn: Psn) -> Psn {
        self.remove_missing_response(common, now, psn);
        let Some(early) = self.early() else { return psn.plus(1) };
        let complete = early.complete_before();
        if psn.is_before(complete) { complete } else { psn.plus(1) }
    }

    /// Ends the connection, because the response breaks the protocol. Requests before it are acknowledged, unless it
    /// arrived early: then some of them have no response yet.
    fn bad_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        psn: Psn,
        is_early: bool,
    ) -> Result<(), ResponseError> {
        let bad = RequestFailure::new(CompletionStatus::BadResponseError, Cause::BadResponse);
        let reached = if is_early { self.unacknowledged } else { psn };
        let failure = self.advance(common, pass, reached).err().unwrap_or(bad);
        Err(ResponseError::Invalid(failure))
    }
}

/// Returns the gaps that a NAK for a sequence error names. A standard NAK names none.
#[inline]
fn gap_runs<'a>(common: &Common, payload: &'a [u8]) -> Result<Option<GapRuns<'a>>, DropReason> {
    if payload.is_empty() {
        return Ok(None);
    }
    let runs = if common.accepts_gap_runs() { GapRuns::parse(payload) } else { None };
    runs.ok_or(DropReason::BadLength).map(Some)
}

/// Returns the failure of a request that the peer refused (IBTA 9.7.5.2.2; `rxe_comp.c`, `check_ack`).
fn refusal(code: NakCode) -> RequestFailure {
    let (status, cause) = match code {
        NakCode::InvalidRequest => (CompletionStatus::RemoteInvalidRequestError, Cause::RefusedInvalid),
        NakCode::RemoteAccess => (CompletionStatus::RemoteAccessError, Cause::RefusedAccess),
        _ => (CompletionStatus::RemoteOperationError, Cause::RefusedOperational),
    };
    RequestFailure::new(status, cause)
}
