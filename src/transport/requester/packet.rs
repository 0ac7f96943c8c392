//! The packets of requests: headers, and the payload from registered memory.

use super::control::SentCharge;
use super::{Common, Pass, RequestFailure, RequestPlan, Requester};
use crate::checksum::Sum;
use crate::memory::{AccessError, MemoryView, Payloads, SharedPart};
use crate::queue::SendConsumer;
use crate::transport::burst::{Burst, BurstWriter, PayloadSource, Sending};
use crate::transport::segments::for_each_segment;
use crate::types::{AccessFlags, DomainId, FlushFlags, Operation, SendFlags};
use crate::wire::{AtomicEth, Bth, FlushEth, Headers, Reth};

impl Requester {
    /// Adds the planned packet, which fits, and moves on. If the request's own memory cannot be read, nothing is added.
    /// Returns an error if that request is the oldest, which ends the queue pair.
    #[inline]
    pub(in crate::transport) fn emit_request(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        plan: &RequestPlan,
        writer: &mut impl BurstWriter,
    ) -> Result<(), RequestFailure> {
        let ack_request = self.wants_acknowledgement(common, pass.now, plan);
        let mut headers = self.request_headers(common, plan, ack_request);
        let offset = u64::from(plan.offset) * u64::from(common.mtu_bytes());
        let payload = self.request_payload(common, pass.memory, plan.index, offset);
        match writer.add(&mut Burst::single(&mut headers, plan.payload, payload, self.sending(plan))) {
            Ok(_) => {}
            Err(error) => return self.fail_when_oldest(plan.index, error),
        }
        let charge = self.pays(common).then(|| self.charge_of(common, plan));
        if common.is_controlled() && ack_request && self.sending(plan) == Sending::First {
            self.begin_delay(plan.psn, pass.now);
        }
        match common.service.is_reliable() {
            true => self.note_sent(common, pass.now, plan, ack_request),
            false => self.note_sent_unreliable(common, pass, plan.psn.plus(1)),
        }
        if let Some(charge) = charge {
            self.report_sent(common, pass.now, &charge);
        }
        Ok(())
    }

    /// Adds packets between the first and the last of a request, from the planned one on, that are sent for the first
    /// time and lie in one SGE. Returns whether any were added.
    pub(in crate::transport) fn add_middle_requests(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        first: &RequestPlan,
        writer: &mut impl BurstWriter,
    ) -> bool {
        let is_repeat = first.psn.is_before(self.limit);
        if is_repeat || !common.service.is_reliable() {
            return false;
        }
        let Some(payload) = self.middle_payloads(common, pass.memory, first) else { return false };
        let ack_requests = self.ack_requests(common, first.psn, pass.now);
        let mut burst = Burst {
            headers: &mut self.request_headers(common, first, ack_requests.contains(0)),
            count: self.middles_allowed(common, first, writer.capacity().saturating_sub(writer.packets())),
            payload_bytes: first.payload,
            payload,
            ack_requests,
            sending: Sending::First,
        };
        // Packets that do not fit, or whose memory cannot be read, are planned again one by one.
        let Ok(added @ 1..) = writer.add(&mut burst) else { return false };
        self.note_middle_ack_requests(pass.now, first.psn, added, ack_requests);
        if common.is_controlled() && ack_requests.first < added {
            self.begin_delay(first.psn.plus(ack_requests.first), pass.now);
        }
        self.move_cursor(first.psn.plus(added));
        self.note_in_flight(common);
        self.arm_timers(common, pass.now);
        if self.pays(common) {
            let charge = SentCharge { packets: added, lost: 0, bytes: u64::from(added) * first.size as u64 };
            self.report_sent(common, pass.now, &charge);
        }
        true
    }

    /// Returns for how many packets between the first and the last of a request the window has room, from the planned
    /// one on, which it has allowed; at most as many as fit.
    fn middles_allowed(&self, common: &Common, first: &RequestPlan, fit: usize) -> u32 {
        let left = self.request(first.index).packets - 1 - first.offset;
        let fit = u32::try_from(fit).unwrap_or(u32::MAX).min(self.pace.allowed());
        self.packets_allowed(common, first.psn, left.min(fit))
    }

    /// Returns the payloads of the packets from the planned one on that lie in the same SGE.
    fn middle_payloads<'a>(
        &self,
        common: &Common,
        memory: &'a MemoryView<'_>,
        plan: &RequestPlan,
    ) -> Option<Payloads<'a>> {
        if self.send.header(plan.index).inline {
            return None;
        }
        let mut offset = u64::from(plan.offset) * u64::from(common.mtu_bytes());
        for sge in self.send.sges(plan.index) {
            let entry = u64::from(sge.length);
            if offset >= entry {
                offset -= entry;
                continue;
            }
            let address = sge.addr.checked_add(offset)?;
            return memory.payloads(sge.lkey.0, common.domain, address, entry - offset, AccessFlags::empty());
        }
        None
    }

    fn request_headers(&self, common: &Common, plan: &RequestPlan, ack_request: bool) -> Headers {
        let header = self.send.header(plan.index);
        let is_last = plan.offset + plan.covers == self.request(plan.index).packets;
        let may_solicit =
            !matches!(header.operation, Operation::Write { .. }) && !header.operation.has_explicit_response();
        let bth = Bth {
            // Only on a message's last packet, if that consumes a receive (`rxe_req.c`, `init_req_packet`).
            solicited: is_last && may_solicit && header.flags.contains(SendFlags::SOLICITED),
            destination: common.destination(),
            ack_request,
            psn: plan.psn,
            ..Bth::with_payload(plan.opcode, plan.payload)
        };
        let mut headers = Headers { bth, xrc_srq: header.remote_srq(), ..Headers::default() };
        let skipped = u64::from(plan.offset) * u64::from(common.mtu_bytes());
        match header.operation {
            Operation::Read { remote_addr, rkey } => {
                let whole = u64::from(plan.covers) * u64::from(common.mtu_bytes());
                let length = whole.min(u64::from(header.length) - skipped) as u32;
                headers.reth = Some(Reth { va: remote_addr.wrapping_add(skipped), rkey, length });
            }
            Operation::Write { remote_addr, rkey } | Operation::WriteWithImmediate { remote_addr, rkey, .. }
                if plan.offset == 0 =>
            {
                headers.reth = Some(Reth { va: remote_addr, rkey, length: header.length });
            }
            Operation::AtomicWrite { remote_addr, rkey } => {
                headers.reth = Some(Reth { va: remote_addr, rkey, length: header.length });
            }
            Operation::Flush { remote_addr, rkey, length, flags } => {
                // Meaningless for a whole region; but Linux refuses more than 2^31 bytes even then.
                let length = if flags.contains(FlushFlags::WHOLE_REGION) { 0 } else { length };
                headers.reth = Some(Reth { va: remote_addr, rkey, length });
                headers.flush = Some(flush_header(flags));
            }
            Operation::CompareAndSwap { remote_addr, rkey, compare, swap } => {
                headers.atomic = Some(AtomicEth { va: remote_addr, rkey, swap_or_add: swap, compare });
            }
            Operation::FetchAndAdd { remote_addr, rkey, add } => {
                headers.atomic = Some(AtomicEth { va: remote_addr, rkey, swap_or_add: add, compare: 0 });
            }
            _ => {}
        }
        if is_last {
            match header.operation {
                Operation::SendWithImmediate(immediate) | Operation::WriteWithImmediate { immediate, .. } => {
                    headers.immediate = Some(immediate);
                }
                Operation::SendWithInvalidate(rkey) => headers.invalidate = Some(rkey),
                _ => {}
            }
        }
        headers
    }

    /// Returns the request's bytes from `offset` on.
    #[inline]
    pub(super) fn request_payload<'a>(
        &'a self,
        common: &Common,
        memory: &'a MemoryView<'a>,
        index: u32,
        offset: u64,
    ) -> RequestPayload<'a> {
        RequestPayload { send: &self.send, memory, domain: common.domain, index, offset }
    }
}

/// The payload of one packet of a request: inline data, or registered memory by the scatter-gather list.
pub(super) struct RequestPayload<'a> {
    send: &'a SendConsumer,
    memory: &'a MemoryView<'a>,
    domain: DomainId,
    index: u32,
    offset: u64,
}

impl PayloadSource for RequestPayload<'_> {
    #[inline]
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        let Self { send, memory, domain, index, offset } = *self;
        if out.is_empty() {
            return Ok(None);
        }
        if send.header(index).inline {
            let data = send.inline_data(index);
            let start = offset as usize;
            out.copy_from_slice(&data[start..start + out.len()]);
            return Ok(None);
        }
        let (payload, mut whole) = (out.len(), None);
        let has_more = offset + (payload as u64) < u64::from(send.header(index).length);
        for_each_segment(send.sges(index), offset, payload, |sge, addr, range| {
            let is_whole = range.len() == payload;
            let segment = &mut out[range];
            let sum = memory.read_payload(sge.lkey.0, domain, addr, AccessFlags::empty(), segment, has_more)?;
            whole = sum.filter(|_| is_whole);
            Ok(())
        })?;
        Ok(whole)
    }

    #[inline]
    fn place_next(&mut self, out: SharedPart<'_>) -> Result<(), AccessError> {
        let Self { send, memory, domain, index, offset } = *self;
        if send.header(index).inline {
            let data = send.inline_data(index);
            let start = offset as usize;
            return out.write(&data[start..start + out.len()]);
        }
        for_each_segment(send.sges(index), offset, out.len(), |sge, addr, range| {
            memory.place_payload(sge.lkey.0, domain, addr, AccessFlags::empty(), out.slice(range))
        })
    }
}

fn flush_header(flags: FlushFlags) -> FlushEth {
    let placement = flags & (FlushFlags::GLOBAL | FlushFlags::PERSISTENT);
    FlushEth { selectivity: u8::from(flags.contains(FlushFlags::WHOLE_REGION)), placement: placement.bits() }
}
