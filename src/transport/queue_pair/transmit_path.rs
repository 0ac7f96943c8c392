//! The transmit path of a queue pair: packets of both halves, as many as fit into a send.

use super::QueuePair;
use crate::transport::burst::{BurstSink, BurstWriter, Envelope};
use crate::transport::common::Pass;
use crate::transport::loop_bound::LoopBound;
use crate::transport::marks::without_ecn;
use crate::transport::requester::RequestPlan;
use crate::transport::responder::ResponsePlan;
use crate::transport::window_share::WindowShare;
use crate::types::{Counter, Time};
use crate::wire::{Opcode, packet_bytes};

/// The outcome of filling a send.
pub(in crate::transport) struct Filled {
    pub(in crate::transport) has_sent: bool,
    /// Whether there is nothing more to send.
    pub(in crate::transport) is_exhausted: bool,
    /// Whether the medium had no room.
    pub(in crate::transport) is_stalled: bool,
}

impl Filled {
    const NOTHING: Self = Self { has_sent: false, is_exhausted: true, is_stalled: false };
    pub(super) const STALLED: Self = Self { is_stalled: true, ..Self::NOTHING };

    pub(super) fn new(has_sent: bool, is_exhausted: bool) -> Self {
        Self { has_sent, is_exhausted, is_stalled: false }
    }
}

/// The next packet to send.
#[derive(Clone, Copy)]
enum Plan {
    Response(ResponsePlan),
    Request(RequestPlan),
}

impl Plan {
    /// Returns the bytes from the base transport header to the ICRC.
    #[inline]
    fn size(&self) -> usize {
        match self {
            Self::Response(response) => response.size,
            Self::Request(request) => request.size,
        }
    }
}

impl QueuePair {
    /// Fills one send of the sink. `path`: the controlled path of the next datagram.
    pub(in crate::transport) fn fill<S: BurstSink>(
        &mut self,
        pass: &Pass<'_>,
        sink: &mut S,
        path: Option<&WindowShare>,
    ) -> Filled {
        if self.has_panicked {
            return Filled::NOTHING;
        }
        if self.common.is_datagram() {
            return self.fill_datagram(pass, sink, path);
        }
        let Some(mut envelope) = self.envelope() else { return Filled::NOTHING };
        if self.owes_notification() {
            return self.fill_notification(sink, envelope);
        }
        if self.owes_discovery() {
            return self.fill_discovery(pass.now, sink, envelope);
        }
        let accesses_directly = pass.accesses_directly && self.requester.has_direct_access();
        if accesses_directly {
            self.run_direct_requests(pass);
        }
        self.hold_back(pass.now);
        if self.common.is_markable() && !self.begins_with_data(pass, accesses_directly) {
            envelope.traffic_class = without_ecn(envelope.traffic_class);
        }
        let Some(mut writer) = sink.open(&envelope) else { return Filled::STALLED };
        let (mut is_exhausted, mut has_sent_requests) = (false, false);
        // Each round adds a packet, unless its memory is gone. That happens once for a request and once for its probe,
        // which then end, and for READs, which are refused in the next round.
        let mut bound = LoopBound::new("fill", writer.capacity().saturating_mul(2).saturating_add(8));
        while !writer.is_full() {
            bound.step();
            let next =
                self.next_plan(pass, accesses_directly).or_else(|| self.riding_acknowledgement(pass.now, &writer));
            let Some(plan) = next else {
                if writer.packets() == 0 && self.run_local_request(pass) {
                    return Filled { is_exhausted: false, ..Filled::NOTHING };
                }
                // A local request that is due runs in the next call, after the packets added here.
                let is_direct = accesses_directly && self.requester.direct_request_is_due(&self.common);
                is_exhausted = !is_direct && !self.requester.local_request_is_due(&self.common);
                break;
            };
            if !writer.fits(plan.size()) {
                break;
            }
            has_sent_requests |= matches!(plan, Plan::Request(_));
            if !self.add_middles(pass, &plan, &mut writer) {
                self.emit(pass, &plan, &mut writer);
            }
        }
        self.responses_first = !self.responses_first;
        self.requester.end_grant(has_sent_requests, is_exhausted);
        self.responder.pay(&self.common, pass.now);
        self.requester.end_send(&self.common, pass.now);
        Filled::new(self.finish(writer), is_exhausted)
    }

    /// Whether the next packet is more than an acknowledgement. Queues must not mark acknowledgements sent alone, since
    /// nothing reports such marks (RFC 3168, 6.1.4).
    #[cold]
    fn begins_with_data(&mut self, pass: &Pass<'_>, accesses_directly: bool) -> bool {
        match self.next_plan(pass, accesses_directly) {
            Some(Plan::Response(response)) => response.is_data(),
            Some(Plan::Request(_)) | None => true,
        }
    }

    /// Holds packets with payload back until everything sent on the path is paid for.
    #[inline]
    fn hold_back(&mut self, now: Time) {
        self.requester.hold_back(&self.common, now);
        self.responder.hold_back(&self.common, now);
    }

    /// Adds the packets between the first and the last of a message in one go, if the plan is one of them. Returns
    /// whether any were added.
    #[inline]
    fn add_middles(&mut self, pass: &Pass<'_>, plan: &Plan, writer: &mut impl BurstWriter) -> bool {
        match plan {
            Plan::Request(request) if request.is_middle() => {
                self.requester.add_middle_requests(&self.common, pass, request, writer)
            }
            Plan::Response(response) if response.is_middle() => {
                self.responder.add_middle_responses(&self.common, pass, response, writer)
            }
            _ => false,
        }
    }

    /// Executes the next request if it is a local one and due. Returns false if it is not.
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

    /// Executes the next requests as far as they need no packets.
    fn run_direct_requests(&mut self, pass: &Pass<'_>) {
        if let Err(failure) = self.requester.run_direct_requests(&mut self.common, pass) {
            self.fail(failure);
        }
    }

    /// Returns the common properties of outgoing packets; `None` if there is no connection.
    #[inline]
    fn envelope(&self) -> Option<Envelope> {
        let path = self.common.path.as_ref()?;
        Some(Envelope {
            flow: path.flow(),
            traffic_class: path.traffic_class.get().departing(),
            hop_limit: path.hop_limit,
            qpn: self.common.qpn,
            destination: self.common.destination(),
            segmentation_offload: path.peer.segmentation_offload,
            seed: path.seed,
            flushes_as_linux: path.flushes_as_linux(self.requester.rounds()),
            check: self.packet_check.departing(),
        })
    }

    /// Writes the next datagram to the sink.
    fn fill_datagram<S: BurstSink>(&mut self, pass: &Pass<'_>, sink: &mut S, path: Option<&WindowShare>) -> Filled {
        let Some(request) = self.requester.next_datagram(&self.common) else { return Filled::NOTHING };
        if self.requester.holds_datagram_back(self.common.qpn, path, pass.now) {
            return Filled::NOTHING;
        }
        let envelope = request.envelope(self.common.qpn);
        let Some(mut writer) = sink.open(&envelope) else { return Filled::STALLED };
        match self.requester.emit_datagram(&mut self.common, pass, &request, &mut writer) {
            Ok(()) => {
                if let Some(path) = path {
                    path.with_control(|control| control.charge(pass.now, writer.bytes() as u64));
                }
                let has_sent = self.finish(writer);
                Filled::new(has_sent, !self.requester.may_send_datagram(&self.common))
            }
            Err(failure) => {
                // The datagram fails, those after it are flushed, and receives continue.
                self.requester.fail_datagram(&mut self.common, failure);
                self.enter_send_queue_error();
                Filled::NOTHING
            }
        }
    }

    /// Adds the planned packet. A failure ends the connection.
    #[inline]
    fn emit(&mut self, pass: &Pass<'_>, plan: &Plan, writer: &mut impl BurstWriter) {
        match plan {
            Plan::Request(request) => {
                if let Err(failure) = self.requester.emit_request(&mut self.common, pass, request, writer) {
                    self.fail(failure);
                }
            }
            Plan::Response(response) => {
                if let Err(fault) = self.responder.emit_response(&mut self.common, pass, response, writer) {
                    self.refuse(fault, None);
                }
            }
        }
    }

    /// Whether [`QueuePair::fill`] may find something to send.
    pub(in crate::transport) fn wants_to_send(&mut self, now: Time) -> bool {
        if self.common.is_datagram() {
            return self.requester.may_send_datagram(&self.common);
        }
        // First: `may_send_request` begins to send the next request in packets.
        if self.requester.direct_request_is_due(&self.common) {
            return true;
        }
        let has_response = || self.responder.plan_response(&self.common, now).is_some();
        let may_send = || has_response() || self.owes_notification();
        self.common.path.is_some()
            && (may_send() || self.owes_discovery() || self.requester.may_send_request(&self.common))
    }

    /// Ends the send. Returns whether it has packets.
    #[inline]
    pub(super) fn finish(&mut self, writer: impl BurstWriter) -> bool {
        let (packets, bytes) = (writer.packets(), writer.bytes());
        self.common.counters.add(Counter::SentPackets, packets as u64);
        self.common.counters.add(Counter::SentBytes, bytes as u64);
        writer.finish();
        packets > 0
    }

    /// Plans a held acknowledgement as the last and shorter datagram of a send that carries the application's reply: it
    /// saves a send call here and a receive call at the peer. If it does not fit, it stays held.
    fn riding_acknowledgement(&mut self, now: Time, writer: &impl BurstWriter) -> Option<Plan> {
        let rides = writer.packets() > 0 && self.responder.holds_acknowledgement(now);
        if !rides || !writer.fits(packet_bytes(Opcode::RC_ACKNOWLEDGE, 0)) {
            return None;
        }
        self.responder.release_acknowledgement();
        self.responder.plan_response(&self.common, now).map(Plan::Response)
    }

    /// Returns the next packet to send. Acknowledgements leave after requests, other responses alternate with them.
    #[inline]
    fn next_plan(&mut self, pass: &Pass<'_>, accesses_directly: bool) -> Option<Plan> {
        let response = self.responder.plan_response(&self.common, pass.now);
        let response_first = self.responses_first && response.is_some_and(|response| response.is_data());
        if response_first {
            return response.map(Plan::Response);
        }
        if accesses_directly && self.requester.direct_request_is_due(&self.common) {
            return response.map(Plan::Response);
        }
        match self.requester.plan_request(&self.common) {
            Some(request) => Some(Plan::Request(request)),
            None => response.map(Plan::Response),
        }
    }
}
