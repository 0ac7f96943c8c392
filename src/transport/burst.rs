//! A burst: packets of one queue pair that leave together, as they are written.
//!
//! They are of equal size, and only the last may be shorter: so the kernel cuts a send into packets.

use super::acceptance::LARGEST_SEGMENT_INDEX;
use super::common::Pass;
use super::datagram::{Repeats, Sending, Transmit};
use super::loop_bound::LoopBound;
use super::packet_check::Departing;
use super::path::Path;
use super::queue_pair::QueuePair;
use super::requester::RequestPlan;
use super::responder::ResponsePlan;
use crate::checksum::Sum;
use crate::memory::{AccessError, Payloads};
use crate::mutation::{Mutation, planted};
use crate::types::{Counter, Time};
use crate::wire::icrc::{self, Seed};
use crate::wire::{Flow, Headers, Opcode, packet_bytes};

/// A send of segments carries at most this (an IPv6 datagram's 65,535 less headers).
const LARGEST_SEND_BYTES: usize = 65_000;

/// What leaves next.
#[derive(Clone, Copy)]
enum Plan {
    Response(ResponsePlan),
    Request(RequestPlan),
}

/// A packet that was written, all but its ICRC.
#[derive(Clone, Copy)]
pub(super) struct Written {
    pub(super) sending: Sending,
    /// Of its payload, if it was summed as it was copied.
    pub(super) sum: Option<Sum>,
}

impl Written {
    pub(super) fn unsummed(sending: Sending) -> Self {
        Self { sending, sum: None }
    }
}

/// The packets so far.
pub(super) struct Burst<'a> {
    buffer: &'a mut [u8],
    icrc: IcrcContext,
    most: usize,
    count: usize,
    length: usize,
    /// Size of the first, which all have but the last.
    segment: usize,
    repeats: Repeats,
    /// The last one, which has no ICRC yet: a processor reads late what it has just stored in pieces.
    last: Option<(usize, Option<Sum>)>,
}

/// What the ICRCs take.
struct IcrcContext {
    flow: Flow,
    seed: Seed,
    flushes_as_linux: bool,
    check: Departing,
}

impl IcrcContext {
    #[inline]
    fn append(&self, index: u16, packet: &mut [u8], sum: Option<Sum>) {
        self.check.prepare(packet);
        let identification = self.check.identification(index);
        if packet[0] == Opcode::RC_FLUSH.0 && self.flushes_as_linux {
            icrc::append_as_linux(&self.flow, identification, packet);
        } else {
            self.seed.append_summed(&self.flow, identification, packet, sum.as_ref());
        }
        self.check.finish(packet);
    }
}

impl<'a> Burst<'a> {
    fn new(buffer: &'a mut [u8], path: &Path, max_segments: usize, flushes_as_linux: bool, check: Departing) -> Self {
        let room = buffer.len().min(LARGEST_SEND_BYTES);
        let most = if path.peer.segmentation_offload { max_segments } else { 1 };
        Self {
            buffer: &mut buffer[..room],
            icrc: IcrcContext { flow: path.flow(), seed: path.seed, flushes_as_linux, check },
            most: most.min(LARGEST_SEGMENT_INDEX.into()),
            count: 0,
            length: 0,
            segment: 0,
            repeats: Repeats::default(),
            last: None,
        }
    }

    /// Whether nothing can follow.
    #[inline]
    fn is_full(&self) -> bool {
        let ends = self.last.is_some_and(|(size, _)| size < self.segment);
        self.count >= self.most || ends
    }

    /// Whether a packet of this size fits behind the others.
    #[inline]
    pub(super) fn fits(&self, size: usize) -> bool {
        !self.is_full() && (self.count == 0 || size <= self.segment) && self.length + size <= self.buffer.len()
    }

    /// Where a packet of this size is to be written; `None` if it does not fit.
    #[inline]
    pub(super) fn room(&mut self, size: usize) -> Option<&mut [u8]> {
        if !self.fits(size) {
            return None;
        }
        self.buffer.get_mut(self.length..self.length + size)
    }

    /// A packet was written into the room.
    #[inline]
    pub(super) fn add(&mut self, size: usize, written: Written) {
        self.append_last_icrc();
        self.repeats.note(self.count, written.sending);
        if self.count == 0 {
            self.segment = size;
        }
        self.last = Some((size, written.sum));
        self.count += 1;
        self.length += size;
    }

    /// Adds a packet of these headers and full payload, which is sent for the first time. `None` if it does not fit.
    #[inline]
    pub(super) fn add_middle(
        &mut self,
        headers: &Headers,
        payload: u32,
        payloads: &mut Payloads<'_>,
    ) -> Option<Result<(), AccessError>> {
        let size = packet_bytes(headers.bth.opcode, payload);
        let out = self.room(size)?;
        let header_bytes = headers.emit(out);
        let sum = payloads.read_next(&mut out[header_bytes..header_bytes + payload as usize]);
        Some(sum.map(|sum| self.add(size, Written { sending: Sending::First, sum })))
    }

    #[inline]
    fn append_last_icrc(&mut self) {
        if let Some((size, sum)) = self.last.take() {
            let packet = &mut self.buffer[self.length - size..self.length];
            self.icrc.append(self.count as u16 - 1, packet, sum);
        }
    }
}

impl QueuePair {
    /// Fills the buffer with as many packets as may leave together. Also says whether there is nothing more to send.
    pub(super) fn fill(&mut self, pass: &Pass<'_>, buffer: &mut [u8], max_segments: usize) -> (Option<Transmit>, bool) {
        if self.common.is_datagram() {
            return self.fill_datagram(pass, buffer);
        }
        let Some(path) = &self.common.path else { return (None, true) };
        let mut burst = Burst::new(buffer, path, max_segments, self.flushes_as_linux(), self.packet_check.departing());
        let (mut is_exhausted, mut has_sent_requests) = (false, false);
        // Each round adds a packet, but where memory is gone: once of a request and once of its probe, which then end,
        // and of READs, which are refused instead in the next round.
        let mut bound = LoopBound::new("fill", 2 * burst.most + 8);
        while !burst.is_full() {
            bound.step();
            let next = self.next_plan(pass.now).or_else(|| self.riding_acknowledgement(pass.now, burst.segment));
            let Some((plan, size)) = next else {
                if burst.count == 0 && self.run_local_request(pass) {
                    return (None, false);
                }
                // Whatever left just now stood before a request that no packet leaves for.
                is_exhausted = !self.local_request_is_due() || planted(Mutation::LocalRequestForgotten);
                break;
            };
            let is_request = matches!(plan, Plan::Request(_));
            if self.add_middles(pass, &plan, &mut burst) {
                has_sent_requests |= is_request;
                continue;
            }
            let Some(packet) = burst.room(size) else { break };
            has_sent_requests |= is_request;
            let written = match plan {
                Plan::Response(response) => self.emit_response(pass, response, packet),
                Plan::Request(request) => self.emit_request(pass, request, packet),
            };
            if let Some(written) = written {
                burst.add(size, written);
            }
        }
        burst.append_last_icrc();
        self.responses_first = !self.responses_first;
        self.end_grant(has_sent_requests, is_exhausted);
        (self.transmit(&burst), is_exhausted)
    }

    /// Adds the packets between the first and the last of a message, as far as the plan is one of them and they can be
    /// made in one go. Whether any were added.
    #[inline]
    fn add_middles(&mut self, pass: &Pass<'_>, plan: &Plan, burst: &mut Burst<'_>) -> bool {
        match plan {
            Plan::Request(request) if request.is_middle() => self.add_middle_requests(pass, request, burst),
            Plan::Response(response) if response.is_middle() => {
                self.responder.add_middle_responses(&self.common, pass, response, burst)
            }
            _ => false,
        }
    }

    /// Writes the planned response; `None`: nothing was written.
    fn emit_response(&mut self, pass: &Pass<'_>, plan: ResponsePlan, packet: &mut [u8]) -> Option<Written> {
        match self.responder.emit_response(&mut self.common, pass, plan, packet) {
            Ok(written) => written,
            Err(violation) => {
                self.refuse(violation, None);
                None
            }
        }
    }

    /// Whether [`QueuePair::fill`] would find something.
    pub(super) fn wants_to_send(&mut self, now: Time) -> bool {
        if self.common.is_datagram() {
            return self.may_send_datagram();
        }
        let has_response = self.common.path.is_some() && self.responder.plan_response(&self.common, now).is_some();
        has_response || (self.common.path.is_some() && self.may_send_request())
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Option<Transmit> {
        let path = self.common.path.as_ref().filter(|_| burst.count > 0)?;
        self.common.counters.add(Counter::SentPackets, burst.count as u64);
        self.common.counters.add(Counter::SentBytes, burst.length as u64);
        Some(Transmit {
            source: path.source.address,
            source_port: path.source.source_port,
            destination: path.peer_address,
            length: burst.length,
            segment_size: (burst.count > 1).then_some(burst.segment),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            qpn: self.common.qpn,
            repeats: burst.repeats,
            is_keyed: burst.icrc.check.is_keyed(),
        })
    }

    /// An acknowledgement that waits for the application's answer leaves behind it, as the last and shorter datagram
    /// of its burst: a send call less for us, a receive call less for the peer.
    fn riding_acknowledgement(&mut self, now: Time, segment: usize) -> Option<(Plan, usize)> {
        let fits = segment >= packet_bytes(Opcode::RC_ACKNOWLEDGE, 0);
        if !fits || !self.responder.holds_acknowledgement(now) {
            return None;
        }
        self.responder.release_acknowledgement();
        self.responder.plan_response(&self.common, now).map(|response| (Plan::Response(response), response.size))
    }

    /// What leaves next. Acknowledgements leave after requests, other responses take turns with them.
    fn next_plan(&mut self, now: Time) -> Option<(Plan, usize)> {
        let response = self.responder.plan_response(&self.common, now);
        let response_first = self.responses_first && response.is_some_and(|response| response.is_data());
        if response_first {
            return response.map(|response| (Plan::Response(response), response.size));
        }
        match self.plan_request() {
            Some(request) => Some((Plan::Request(request), request.size)),
            None => response.map(|response| (Plan::Response(response), response.size)),
        }
    }
}
