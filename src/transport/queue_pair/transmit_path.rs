//! The way of packets out of a queue pair: those of both halves, as many as may leave together.

use super::QueuePair;
use crate::mutation::{Mutation, planted};
use crate::transport::burst::Burst;
use crate::transport::common::Pass;
use crate::transport::datagram::Transmit;
use crate::transport::loop_bound::LoopBound;
use crate::transport::requester::RequestPlan;
use crate::transport::responder::ResponsePlan;
use crate::types::{Counter, Time};
use crate::wire::{Opcode, packet_bytes};

/// The packet that leaves next.
#[derive(Clone, Copy)]
enum Plan {
    Response(ResponsePlan),
    Request(RequestPlan),
}

impl QueuePair {
    /// Fills the buffer with as many packets as may leave together. Also says whether there is nothing more to send.
    pub(in crate::transport) fn fill(
        &mut self,
        pass: &Pass<'_>,
        buffer: &mut [u8],
        max_segments: usize,
    ) -> (Option<Transmit>, bool) {
        if self.common.is_datagram() {
            return self.fill_datagram(pass, buffer);
        }
        let Some(path) = &self.common.path else { return (None, true) };
        let as_linux = path.flushes_as_linux(self.requester.rounds());
        let mut burst = Burst::new(buffer, path, max_segments, as_linux, self.packet_check.departing());
        let (mut is_exhausted, mut has_sent_requests) = (false, false);
        // Each round adds a packet, but where memory is gone: once of a request and once of its probe, which then end,
        // and of READs, which are refused instead in the next round.
        let mut bound = LoopBound::new("fill", 2 * burst.most() + 8);
        while !burst.is_full() {
            bound.step();
            let next = self.next_plan(pass.now).or_else(|| self.riding_acknowledgement(pass.now, burst.segment()));
            let Some((plan, size)) = next else {
                if burst.is_empty() && self.run_local_request(pass) {
                    return (None, false);
                }
                // Whatever left just now stood before a request that no packet leaves for.
                is_exhausted =
                    !self.requester.local_request_is_due(&self.common) || planted(Mutation::LocalRequestForgotten);
                break;
            };
            let is_request = matches!(plan, Plan::Request(_));
            if self.add_middles(pass, &plan, &mut burst) {
                has_sent_requests |= is_request;
                continue;
            }
            if !burst.fits(size) {
                break;
            }
            has_sent_requests |= is_request;
            self.emit(pass, &plan, &mut burst);
        }
        self.responses_first = !self.responses_first;
        self.requester.end_grant(has_sent_requests, is_exhausted);
        (self.transmit(&mut burst), is_exhausted)
    }

    /// Adds the packets between the first and the last of a message, as far as the plan is one of them and they can be
    /// made in one go. Whether any were added.
    #[inline]
    fn add_middles(&mut self, pass: &Pass<'_>, plan: &Plan, burst: &mut Burst<'_>) -> bool {
        match plan {
            Plan::Request(request) if request.is_middle() => {
                self.requester.add_middle_requests(&self.common, pass, request, burst)
            }
            Plan::Response(response) if response.is_middle() => {
                self.responder.add_middle_responses(&self.common, pass, response, burst)
            }
            _ => false,
        }
    }

    /// Executes the next request if no packet leaves for it and its turn has come. False if not.
    fn run_local_request(&mut self, pass: &Pass<'_>) -> bool {
        let accessor = self.accessor();
        match self.requester.run_local_request(&mut self.common, pass, accessor) {
            Ok(is_run) => is_run,
            Err(failure) => {
                self.fail(failure);
                true
            }
        }
    }

    /// Writes the next datagram. Also says whether there is nothing more to send.
    fn fill_datagram(&mut self, pass: &Pass<'_>, buffer: &mut [u8]) -> (Option<Transmit>, bool) {
        match self.requester.emit_datagram(&mut self.common, pass, buffer) {
            Ok(transmit) => (transmit, !self.requester.may_send_datagram(&self.common)),
            Err(failure) => {
                // It fails, those behind it are flushed, receives go on.
                self.requester.fail_datagram(&mut self.common, failure);
                self.enter_send_queue_error();
                (None, true)
            }
        }
    }

    /// Adds the planned packet to the burst. What is wrong with it ends the connection.
    #[inline]
    fn emit(&mut self, pass: &Pass<'_>, plan: &Plan, burst: &mut Burst<'_>) {
        match plan {
            Plan::Request(request) => {
                if let Err(failure) = self.requester.emit_request(&mut self.common, pass, request, burst) {
                    self.fail(failure);
                }
            }
            Plan::Response(response) => {
                if let Err(fault) = self.responder.emit_response(&mut self.common, pass, response, burst) {
                    self.refuse(fault, None);
                }
            }
        }
    }

    /// Whether [`QueuePair::fill`] would find something.
    pub(in crate::transport) fn wants_to_send(&mut self, now: Time) -> bool {
        if self.common.is_datagram() {
            return self.requester.may_send_datagram(&self.common);
        }
        let has_response = || self.responder.plan_response(&self.common, now).is_some();
        self.common.path.is_some() && (has_response() || self.requester.may_send_request(&self.common))
    }

    fn transmit(&mut self, burst: &mut Burst<'_>) -> Option<Transmit> {
        let (transmit, packets) = burst.finish(self.common.path.as_ref()?, self.common.qpn)?;
        self.common.counters.add(Counter::SentPackets, packets as u64);
        self.common.counters.add(Counter::SentBytes, transmit.length as u64);
        Some(transmit)
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

    /// The packet that leaves next. Acknowledgements leave after requests, other responses take turns with them.
    fn next_plan(&mut self, now: Time) -> Option<(Plan, usize)> {
        let response = self.responder.plan_response(&self.common, now);
        let response_first = self.responses_first && response.is_some_and(|response| response.is_data());
        if response_first {
            return response.map(|response| (Plan::Response(response), response.size));
        }
        match self.requester.plan_request(&self.common) {
            Some(request) => Some((Plan::Request(request), request.size)),
            None => response.map(|response| (Plan::Response(response), response.size)),
        }
    }
}
