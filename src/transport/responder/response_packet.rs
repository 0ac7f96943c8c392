//! Emission of response packets: headers, and the payload of READ responses from registered memory.

use super::response_queue::{Resource, ResourceKind, Response};
use super::{Common, Pass, Responder};
use crate::checksum::Sum;
use crate::memory::{AccessError, MemoryView, SharedPart};
use crate::transport::burst::{AckRequests, Burst, BurstWriter, NoPayload, PayloadSource, Sending};
use crate::types::{AccessFlags, Accessor, Counter, PeerFault, Rkey, Time};
use crate::wire::{Aeth, Bth, GapRun, Headers, NakCode, Opcode, Syndrome, packet_bytes};

/// Acknowledgements carry no credits: "unlimited" (IBTA 9.7.7.2; `rxe_hdr.h`, `AETH_ACK_UNLIMITED`).
const NO_CREDIT: Syndrome = Syndrome::Ack { credit: 0x1f };

/// A response packet that may leave now.
#[derive(Clone, Copy)]
pub(in crate::transport) struct ResponsePlan {
    /// Bytes from the base transport header to the ICRC.
    pub(in crate::transport) size: usize,
    payload: u32,
    opcode: Opcode,
    response: Response,
}

impl ResponsePlan {
    #[inline]
    fn new(opcode: Opcode, payload: u32, response: Response) -> Self {
        Self { size: packet_bytes(opcode, payload), payload, opcode, response }
    }

    /// Whether it carries the result of a request, unlike acknowledgements and NAKs.
    pub(in crate::transport) fn is_data(&self) -> bool {
        matches!(self.response, Response::Resource(_) | Response::Empty { .. })
    }

    /// Whether it is a packet between the first and the last of a READ response, so that others like it may follow.
    pub(in crate::transport) fn is_middle(&self) -> bool {
        self.opcode == Opcode::RC_READ_RESPONSE_MIDDLE
    }

    #[inline]
    fn header(&self, common: &Common) -> Bth {
        let opcode = self.opcode.of(common.wire_service());
        Bth { destination: common.destination(), ..Bth::with_payload(opcode, self.payload) }
    }
}

impl Responder {
    /// Whether an acknowledgement or a NAK is due.
    pub(in crate::transport) fn owes_acknowledgement(&self) -> bool {
        self.responses.owes_acknowledgement()
    }

    /// Whether the only thing due is an acknowledgement that is still held.
    #[inline]
    pub(in crate::transport) fn holds_acknowledgement(&self, now: Time) -> bool {
        self.responses.is_held(now)
    }

    /// Releases a held acknowledgement.
    pub(in crate::transport) fn release_acknowledgement(&mut self) {
        self.responses.release();
    }

    /// Returns the next response packet that may leave now.
    #[inline]
    pub(in crate::transport) fn plan_response(&self, common: &Common, now: Time) -> Option<ResponsePlan> {
        let response = self.responses.front()?;
        if let Response::Empty { .. } = response {
            return Some(ResponsePlan::new(Opcode::RC_READ_RESPONSE_ONLY, 0, response));
        }
        let Response::Resource(slot) = response else {
            if let Response::Nak { .. } = response {
                return Some(self.plan_nak(common, response));
            }
            let is_held = self.responses.is_held(now);
            return (!is_held).then(|| ResponsePlan::new(Opcode::RC_ACKNOWLEDGE, 0, response));
        };
        let resource = self.responses.resource(slot)?;
        let ResourceKind::Read { next, end, .. } = resource.kind else {
            return Some(ResponsePlan::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0, response));
        };
        if self.responses.is_paused() {
            return None;
        }
        let mtu = common.mtu_bytes();
        let left = end - next * mtu;
        // Only the READ's own first packet is a FIRST: Linux accepts only MIDDLE and LAST later (`rxe_comp.c`,
        // `check_ack`), and sends the same (`rxe_resp.c`, `duplicate_request`).
        let opcode = match (next == 0, left <= mtu) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        };
        Some(ResponsePlan::new(opcode, left.min(mtu), response))
    }

    /// Adds the planned packet, which must fit, and advances. Adds nothing if the memory of a repeated READ is gone.
    /// Fails if the memory of a READ is gone at its first response, which ends the connection.
    #[inline]
    pub(in crate::transport) fn emit_response(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        plan: &ResponsePlan,
        writer: &mut impl BurstWriter,
    ) -> Result<(), PeerFault> {
        let mut headers = Headers { bth: plan.header(common), ..Headers::default() };
        match plan.response {
            Response::Acknowledge { psn, message_count } => {
                common.count(Counter::SentAcknowledge);
                headers.bth.becn = common.arrived_marks.take();
                self.responses.note_acknowledged(psn);
                headers.bth.psn = psn;
                headers.aeth = Some(Aeth { syndrome: NO_CREDIT, msn: message_count });
            }
            Response::Empty { psn, message_count } => {
                headers.bth.psn = psn;
                headers.aeth = Some(Aeth { syndrome: NO_CREDIT, msn: message_count });
            }
            Response::Nak { psn, syndrome, message_count } => {
                headers.bth.becn = common.arrived_marks.take();
                headers.bth.psn = psn;
                headers.aeth = Some(Aeth { syndrome, msn: message_count });
                if syndrome == Syndrome::Nak(NakCode::SequenceError) {
                    common.count(Counter::SentSequenceNak);
                }
                if plan.payload > 0 {
                    return self.emit_gaps(plan, headers, writer);
                }
            }
            Response::Resource(slot) => return self.emit_resource(common, pass, plan, slot, headers, writer),
        }
        writer.add(&mut Burst::single(&mut headers, 0, NoPayload, Sending::First))?;
        self.responses.pop();
        Ok(())
    }

    /// Plans a NAK, with all gaps if it is for a sequence error and the peer supports them.
    #[cold]
    fn plan_nak(&self, common: &Common, response: Response) -> ResponsePlan {
        let bytes = match response {
            Response::Nak { psn, syndrome: Syndrome::Nak(NakCode::SequenceError), .. } => self.gap_bytes(common, psn),
            _ => 0,
        };
        ResponsePlan::new(Opcode::RC_ACKNOWLEDGE, bytes, response)
    }

    /// Adds a NAK that lists all gaps.
    #[cold]
    fn emit_gaps(
        &mut self,
        plan: &ResponsePlan,
        mut headers: Headers,
        writer: &mut impl BurstWriter,
    ) -> Result<(), PeerFault> {
        let payload = GapPayload(self.gap_runs());
        writer.add(&mut Burst::single(&mut headers, plan.payload, payload, Sending::First))?;
        self.responses.pop();
        Ok(())
    }

    fn emit_resource(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        plan: &ResponsePlan,
        slot: usize,
        mut headers: Headers,
        writer: &mut impl BurstWriter,
    ) -> Result<(), PeerFault> {
        let Some(resource) = self.responses.resource(slot).copied() else { return Ok(()) };
        let sending = |again| if again { Sending::Again } else { Sending::First };
        headers.aeth = Some(Aeth { syndrome: NO_CREDIT, msn: resource.message_count });
        headers.bth.psn = resource.first;
        let (reth, domain, next, sent) = match resource.kind {
            ResourceKind::Atomic { original } => {
                headers.atomic_ack = Some(original);
                writer.add(&mut Burst::single(&mut headers, 0, NoPayload, sending(resource.was_sent)))?;
                self.responses.pop();
                return Ok(());
            }
            ResourceKind::Read { reth, domain, next, sent, .. } => (reth, domain, next, sent),
        };
        let is_last = matches!(plan.opcode, Opcode::RC_READ_RESPONSE_ONLY | Opcode::RC_READ_RESPONSE_LAST);
        headers.bth.psn = resource.first.plus(next);
        if plan.opcode == Opcode::RC_READ_RESPONSE_MIDDLE {
            headers.aeth = None;
        }
        let payload = ReadPayload {
            memory: pass.memory,
            key: reth.rkey,
            accessor: Accessor { domain, queue_pair: common.qpn },
            va: reth.va.wrapping_add(u64::from(next) * u64::from(common.mtu_bytes())),
            has_more: !is_last,
        };
        if writer.add(&mut Burst::single(&mut headers, plan.payload, payload, sending(next < sent))).is_err() {
            return self.refuse_read(common, &resource, next);
        }
        self.responses.note_packets(1, plan.size);
        self.responses.note_read_sent(pass.now, slot, next + 1, is_last, !common.is_peer_native());
        Ok(())
    }

    /// Adds packets between the first and the last of a READ response, from the planned one on, that are sent for the
    /// first time. Standard peers get theirs one by one, with pauses. Returns whether any were added.
    pub(in crate::transport) fn add_middle_responses(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        plan: &ResponsePlan,
        writer: &mut impl BurstWriter,
    ) -> bool {
        let Response::Resource(slot) = plan.response else { return false };
        let Some(resource) = self.responses.resource(slot) else { return false };
        let ResourceKind::Read { reth, domain, next: first, end, sent, .. } = resource.kind else { return false };
        if first < sent || !common.is_peer_native() {
            return false;
        }
        let (mtu, accessor) = (plan.payload, Accessor { domain, queue_pair: common.qpn });
        let offset = first * mtu;
        let count = (end - offset - 1) / mtu;
        let (va, length) = (reth.va.wrapping_add(u64::from(offset)), u64::from(count * mtu));
        let payload = pass.memory.payloads(reth.rkey.0, accessor, va, length, AccessFlags::REMOTE_READ);
        let Some(payload) = payload else { return false };
        let mut headers = Headers { bth: plan.header(common), ..Headers::default() };
        headers.bth.psn = resource.first.plus(first);
        let mut burst = Burst {
            headers: &mut headers,
            count: count.min(self.responses.packets_allowed()),
            payload_bytes: plan.payload,
            payload,
            ack_requests: AckRequests::default(),
            sending: Sending::First,
        };
        let Ok(added @ 1..) = writer.add(&mut burst) else { return false };
        self.responses.note_packets(added, plan.size);
        self.responses.note_read_sent(pass.now, slot, first + added, false, false);
        true
    }

    /// Refuses a READ whose region was deregistered between request and response (IBTA 9.7.5.2.4; `rxe_resp.c`,
    /// `rxe_recheck_mr`). A repetition may be a late copy of a READ that the peer completed before the key was revoked.
    /// The peer then ignores the refusal, so it must not end the connection at this end either.
    fn refuse_read(&mut self, common: &mut Common, resource: &Resource, next: u32) -> Result<(), PeerFault> {
        common.count(Counter::SentNak);
        let (psn, code) = (resource.first.plus(next), NakCode::RemoteAccess);
        if resource.was_sent {
            self.responses.refuse_repeated_read(psn, code, resource.message_count);
            return Ok(());
        }
        self.refused = Some((psn, code));
        self.responses.refuse_read(psn, code, resource.message_count);
        Err(PeerFault::UnknownKey)
    }
}

/// The list of gaps after a NAK's headers.
struct GapPayload<I>(I);

impl<I: Iterator<Item = GapRun>> PayloadSource for GapPayload<I> {
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        for (field, run) in out.as_chunks_mut().0.iter_mut().zip(&mut self.0) {
            *field = run.to_bytes();
        }
        Ok(None)
    }
}

/// The payload of one packet of a READ response.
struct ReadPayload<'a> {
    memory: &'a MemoryView<'a>,
    key: Rkey,
    accessor: Accessor,
    va: u64,
    has_more: bool,
}

impl PayloadSource for ReadPayload<'_> {
    #[inline]
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        if out.is_empty() {
            return Ok(None);
        }
        self.memory.read_payload(self.key.0, self.accessor, self.va, AccessFlags::REMOTE_READ, out, self.has_more)
    }

    #[inline]
    fn place_next(&mut self, out: SharedPart<'_>) -> Result<(), AccessError> {
        self.memory.place_payload(self.key.0, self.accessor, self.va, AccessFlags::REMOTE_READ, out)
    }
}
