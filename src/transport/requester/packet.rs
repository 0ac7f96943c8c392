//! Packets of requests, as they are written: headers, and the payload out of registered memory.

use super::{Common, Pass, RequestFailure, RequestPlan, Requester};
use crate::checksum::Sum;
use crate::memory::{AccessError, MemoryView, Payloads};
use crate::mutation::{Mutation, planted};
use crate::transport::burst::{Burst, Written};
use crate::transport::segments::for_each_segment;
use crate::types::{AccessFlags, FlushFlags, Operation, SendFlags};
use crate::wire::{AtomicEth, Bth, FlushEth, Headers, Reth};

impl Requester {
    /// Adds the planned packet to the burst, and moves on. If the request's own memory fails, nothing is added; an
    /// error: it is the oldest, and ends the queue pair.
    #[inline]
    pub(in crate::transport) fn emit_request(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        plan: &RequestPlan,
        burst: &mut Burst<'_>,
    ) -> Result<(), RequestFailure> {
        let Some(out) = burst.room(plan.size) else { return Ok(()) };
        let ack_request = self.wants_acknowledgement(common, pass.now, plan);
        let headers = self.request_headers(common, plan, ack_request);
        let header_bytes = headers.emit(out);
        let payload = plan.payload as usize;
        let room = &mut out[header_bytes..];
        let offset = u64::from(plan.offset) * u64::from(common.mtu_bytes());
        let sum = match self.gather(common, pass.memory, plan.index, offset, &mut room[..payload]) {
            Ok(sum) => sum,
            Err(error) => return self.fail_when_oldest(plan.index, error),
        };
        room[payload..payload.next_multiple_of(4)].fill(0);
        let sending = match common.service.is_reliable() {
            true => self.note_sent(common, pass.now, plan, ack_request),
            false => self.note_sent_unreliable(common, pass, plan.psn.plus(1)),
        };
        burst.add(plan.size, Written { sending, sum });
        if planted(Mutation::CompletionBeforeAcknowledgement) && common.service.is_reliable() {
            self.acknowledge_before(common, pass, plan.psn.plus(1), plan.psn)?;
        }
        Ok(())
    }

    /// Adds packets between the first and the last of a request, from the planned one on, that are sent for the first
    /// time and lie in one entry of the scatter-gather list. Whether any were added.
    pub(in crate::transport) fn add_middle_requests(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        first: &RequestPlan,
        burst: &mut Burst<'_>,
    ) -> bool {
        let is_repeat = first.psn.is_before(self.limit);
        if is_repeat || !common.service.is_reliable() || planted(Mutation::CompletionBeforeAcknowledgement) {
            return false;
        }
        let Some(mut payloads) = self.middle_payloads(common, pass.memory, first) else { return false };
        let mut headers = self.request_headers(common, first, false);
        let mut plan = *first;
        let end = self.request(first.index).packets - 1;
        let is_unbounded = planted(Mutation::MiddlesIgnoreWindow);
        while plan.offset < end && burst.fits(plan.size) {
            // The window has room for the first: it is planned.
            if plan.psn != first.psn && !is_unbounded && !self.window_allows(common, plan.psn, 1) {
                break;
            }
            headers.bth.psn = plan.psn;
            headers.bth.ack_request = self.wants_acknowledgement(common, pass.now, &plan);
            // What does not fit or is not there is found out again, packet by packet.
            let Some(Ok(())) = burst.add_middle(&headers, plan.payload, &mut payloads) else { break };
            self.note_asked(pass.now, &plan, headers.bth.ack_request, is_repeat);
            plan.psn = plan.psn.plus(1);
            plan.offset += 1;
        }
        let is_any = plan.psn != first.psn;
        if is_any {
            self.move_cursor(plan.psn);
            self.note_in_flight(common);
            self.arm_timers(common, pass.now);
        }
        is_any
    }

    /// The payloads of the packets from the planned one on that lie in the same entry of the scatter-gather list.
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
        let may_solicit = !planted(Mutation::SolicitedLost)
            && !matches!(header.operation, Operation::Write { .. })
            && !header.operation.has_explicit_response();
        let bth = Bth {
            solicited: is_last && may_solicit && header.flags.contains(SendFlags::SOLICITED),
            destination: common.destination(),
            ack_request,
            psn: plan.psn,
            ..Bth::with_payload(plan.opcode, plan.payload)
        };
        let is_named = plan.offset == 0 || !planted(Mutation::XrcNamedOnce);
        let mut headers = Headers { bth, xrc_srq: header.remote_srq().filter(|_| is_named), ..Headers::default() };
        let skipped = u64::from(plan.offset) * u64::from(common.mtu_bytes());
        match header.operation {
            Operation::Read { remote_addr, rkey } => {
                let whole = u64::from(plan.covers) * u64::from(common.mtu_bytes());
                let length = whole.min(u64::from(header.length) - skipped) as u32;
                let is_repair = !plan.offset.is_multiple_of(self.request(plan.index).chunk);
                let skipped = if is_repair && planted(Mutation::ReadRepairedFromWrongByte) { 0 } else { skipped };
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
                // Means nothing for a whole region; but Linux refuses more than 2^31 bytes even then.
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

    /// Copies the request's bytes from `offset` on into the packet, and sums them if that costs next to nothing.
    pub(super) fn gather(
        &self,
        common: &Common,
        memory: &MemoryView<'_>,
        index: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<Option<Sum>, AccessError> {
        if out.is_empty() {
            return Ok(None);
        }
        if self.send.header(index).inline {
            let data = self.send.inline_data(index);
            let start = if planted(Mutation::InlineOffsetIgnored) { 0 } else { offset as usize };
            out.copy_from_slice(&data[start..start + out.len()]);
            return Ok(None);
        }
        let (payload, mut whole) = (out.len(), None);
        let goes_on = offset + (payload as u64) < u64::from(self.send.header(index).length);
        for_each_segment(self.send.sges(index), offset, payload, |sge, addr, range| {
            let is_whole = range.len() == payload;
            let piece = &mut out[range];
            let sum = memory.read_payload(sge.lkey.0, common.domain, addr, AccessFlags::empty(), piece, goes_on)?;
            whole = sum.filter(|_| is_whole);
            Ok(())
        })?;
        Ok(whole)
    }
}

fn flush_header(flags: FlushFlags) -> FlushEth {
    let placement = flags & (FlushFlags::GLOBAL | FlushFlags::PERSISTENT);
    FlushEth { selectivity: u8::from(flags.contains(FlushFlags::WHOLE_REGION)), placement: placement.bits() }
}
