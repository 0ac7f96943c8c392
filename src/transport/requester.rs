//! The sending half: cuts requests into packets, numbers them, and knows what is in flight.
//!
//! Requests have indices (the send queue's count), packets have sequence numbers. The numbers of the requests in
//! progress follow each other without gaps: `oldest.first ..= limit - 1`. `cursor` is the next number to transmit; it
//! equals `limit` except while something is sent again. Going back is setting the cursor back.

use std::collections::VecDeque;
use std::time::Duration;

use super::datagram::Sending;
use super::loop_bound::LoopBound;
use super::queue_pair::QueuePair;
use super::retransmit::{Recovery, RoundTrip};
use super::unreliable::Pace;
use super::violation::local_cause;
use crate::memory::AccessError;
use crate::mutation::{Mutation, planted};
use crate::queue::SendHeader;
use crate::types::{Cause, CompletionStatus, Counter, Operation, Psn, QueuePairState, SendFlags, Time};
use crate::wire::{Opcode, packet_bytes};

/// Most packets without a request for acknowledgement.
const MOST_UNASKED_PACKETS: u32 = 64;
/// The same while other queue pairs have packets in flight to the same address: they may wait for the room.
const MOST_UNASKED_AMONG_OTHERS: u32 = 16;
/// Most packets to a peer that did not answer a probe. One, if other queue pairs have the same peer address: these
/// packets are not counted, and a thousand queue pairs would fill the socket of a process that still lives there.
const PACKETS_INTO_SILENCE: u32 = 16;
/// How often a busy application's unsignaled requests ask for acknowledgement at least.
const ASK_EVERY: Duration = Duration::from_micros(400);
/// A transport timeout below this (code 12) may expire before a late probe was answered.
const SHORTEST_PATIENCE: Duration = Duration::from_micros(16_700);

/// A request that has its sequence numbers.
#[derive(Clone, Copy, Default)]
pub(super) struct InProgress {
    /// Number of its first packet.
    pub(super) first: Psn,
    /// Numbers that it takes.
    pub(super) packets: u32,
    /// For a READ: packets that one READ request packet asks for. Fixed for the request's life, because a repeated
    /// request packet must lie within the original one.
    pub(super) chunk: u32,
    pub(super) is_read: bool,
    pub(super) is_atomic: bool,
    /// Answered by an empty READ response: ATOMIC WRITE and FLUSH.
    pub(super) is_ack_only: bool,
}

impl InProgress {
    /// The number after its last.
    pub(super) fn end(&self) -> Psn {
        let end = self.first.plus(self.packets);
        let wrapped = end.value() < self.first.value();
        if wrapped && planted(Mutation::PsnWrapOffByOne) { end.plus(1) } else { end }
    }

    /// Whether it needs a response of its own, which acknowledgements cannot stand for.
    pub(super) fn needs_response(&self) -> bool {
        self.is_read || self.is_atomic || self.is_ack_only
    }
}

/// State of the sending half.
pub(super) struct Requester {
    /// By index modulo its length: the requests `oldest..next`.
    requests: Box<[InProgress]>,
    oldest: u32,
    next: u32,
    /// The request in which the cursor lies; `next` if it is at the limit.
    cursor_request: u32,
    pub(super) unacknowledged: Psn,
    pub(super) cursor: Psn,
    pub(super) limit: Psn,
    /// Last numbers of the READ request packets and atomics that have no response yet.
    awaiting_response: VecDeque<Psn>,
    /// READs and atomics among `oldest..next`.
    reads_in_progress: u32,
    /// Last number sent with a request for acknowledgement.
    last_ack_request: Psn,
    /// When that was.
    last_ack_request_at: Option<Time>,
    /// Whether the last packet sent asks for a response.
    pub(super) has_asked: bool,
    /// A request that cannot go on; it fails when it has become the oldest.
    pub(super) failed: Option<(u32, CompletionStatus, Cause)>,
    pub(super) recovery: Recovery,
    pub(super) round_trip: RoundTrip,
    pub(super) counted_in_flight: u32,
    pub(super) drained_announced: bool,
    stopped: bool,
    /// Of unreliable connections.
    pub(super) pace: Pace,
}

/// A packet that may be sent now.
#[derive(Clone, Copy)]
pub(super) struct RequestPlan {
    pub(super) index: u32,
    pub(super) psn: Psn,
    /// Place in the request, in packets.
    pub(super) offset: u32,
    /// Numbers that it takes.
    pub(super) covers: u32,
    /// Bytes from the base transport header to the ICRC.
    pub(super) size: usize,
    pub(super) payload: u32,
    pub(super) opcode: Opcode,
    /// Sent for its acknowledgement alone; the cursor stays where it is.
    is_probe: bool,
}

impl RequestPlan {
    /// Whether others like it may follow: packets of SENDs and WRITEs between the first and the last.
    pub(super) fn is_middle(&self) -> bool {
        self.opcode.is_middle() && !self.is_probe
    }
}

impl Requester {
    pub(super) fn new(max_send_wr: u32) -> Self {
        let places = max_send_wr.max(1).next_power_of_two() as usize;
        Self {
            requests: vec![InProgress::default(); places].into_boxed_slice(),
            oldest: 0,
            next: 0,
            cursor_request: 0,
            unacknowledged: Psn::default(),
            cursor: Psn::default(),
            limit: Psn::default(),
            awaiting_response: VecDeque::new(),
            reads_in_progress: 0,
            last_ack_request: Psn::default(),
            last_ack_request_at: None,
            has_asked: true,
            failed: None,
            recovery: Recovery::default(),
            round_trip: RoundTrip::default(),
            counted_in_flight: 0,
            drained_announced: false,
            stopped: false,
            pace: Pace::default(),
        }
    }

    /// Ready to send from `psn` on.
    pub(super) fn start(&mut self, psn: Psn, max_rd_atomic: u8) {
        self.unacknowledged = psn;
        self.cursor = psn;
        self.limit = psn;
        self.last_ack_request = psn.minus(1);
        self.awaiting_response.reserve(usize::from(max_rd_atomic));
        self.stopped = false;
    }

    /// As new, counting requests from `index` on.
    pub(super) fn reset(&mut self, index: u32) {
        let places = self.requests.len() as u32;
        *self = Self { awaiting_response: std::mem::take(&mut self.awaiting_response), ..Self::new(places) };
        self.awaiting_response.clear();
        self.restart_at(index);
    }

    /// Nothing is in flight any more.
    pub(super) fn forget_all(&mut self) {
        self.cursor = self.unacknowledged;
        self.limit = self.unacknowledged;
        self.awaiting_response.clear();
        self.reads_in_progress = 0;
        self.failed = None;
        self.recovery = Recovery::default();
    }

    /// No more packets: the queue pair is in error.
    pub(super) fn stop(&mut self) {
        self.forget_all();
        self.stopped = true;
    }

    /// Continues with request `index` after a flush.
    pub(super) fn restart_at(&mut self, index: u32) {
        self.oldest = index;
        self.next = index;
        self.cursor_request = index;
    }

    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Whether no request is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.oldest == self.next
    }

    /// Whether a request in progress needs a response of its own.
    pub(super) fn awaits_data(&self) -> bool {
        self.reads_in_progress > 0
    }

    /// Numbers sent and not acknowledged.
    pub(super) fn packets_in_flight(&self) -> u32 {
        self.limit.distance_from(self.unacknowledged).max(0) as u32
    }

    /// What of it counts against the room that all queue pairs with the peer's address share. What is behind the
    /// cursor is to be sent again and lies nowhere. Nor does it if the peer drops everything for a while, or is silent:
    /// a peer that is gone must not keep others from theirs.
    pub(super) fn packets_counted(&self) -> u32 {
        if self.recovery.waits_for_receiver() || self.is_peer_silent() {
            return 0;
        }
        self.cursor.distance_from(self.unacknowledged).max(0) as u32
    }

    /// Whether the peer did not even answer a probe.
    fn is_peer_silent(&self) -> bool {
        self.recovery.rounds() >= 2
    }

    /// When a packet was sent last that asks for an acknowledgement.
    pub(super) fn last_asked(&self) -> Option<Time> {
        self.last_ack_request_at
    }

    pub(super) fn request(&self, index: u32) -> &InProgress {
        &self.requests[index as usize & (self.requests.len() - 1)]
    }

    /// The next request takes no packets and is finished; nothing else is in progress.
    pub(super) fn skip(&mut self) {
        debug_assert!(self.is_idle());
        self.restart_at(self.next.wrapping_add(1));
    }

    fn begin(&mut self, request: InProgress) {
        let place = self.next as usize & (self.requests.len() - 1);
        self.requests[place] = request;
        self.next = self.next.wrapping_add(1);
        self.drained_announced = false;
        if request.needs_response() {
            self.reads_in_progress += 1;
        }
    }

    /// The oldest request is finished.
    pub(super) fn pop_oldest(&mut self) {
        if self.request(self.oldest).needs_response() {
            self.reads_in_progress -= 1;
        }
        self.oldest = self.oldest.wrapping_add(1);
        if self.oldest.wrapping_sub(self.cursor_request) as i32 > 0 {
            self.cursor_request = self.oldest;
        }
    }

    /// Everything before `psn` is acknowledged.
    pub(super) fn move_unacknowledged(&mut self, psn: Psn) {
        self.unacknowledged = psn;
        if self.cursor.is_before(psn) {
            self.cursor = psn;
        }
        while self.awaiting_response.front().is_some_and(|last| last.is_before(psn)) {
            if planted(Mutation::ReadCreditLost) {
                break;
            }
            self.awaiting_response.pop_front();
        }
        self.find_cursor_request();
    }

    /// Sends again from the oldest number that is not acknowledged.
    pub(super) fn go_back(&mut self) {
        self.cursor = self.unacknowledged.plus(u32::from(planted(Mutation::GoBackTooShort)));
        self.cursor_request = self.oldest;
        self.awaiting_response.clear();
        // Of what is sent again, too, some packets must ask: a window that is full of it would wait for ever.
        self.last_ack_request = self.unacknowledged.minus(1);
        self.find_cursor_request();
        self.round_trip.forget_sample();
    }

    /// Everything before `end` was sent.
    pub(super) fn move_cursor(&mut self, end: Psn) {
        self.cursor = end;
        if self.limit.is_before(end) {
            self.limit = end;
        }
        self.find_cursor_request();
    }

    /// The bound of a walk over the requests in progress.
    #[inline]
    pub(super) fn walk(&self) -> LoopBound {
        LoopBound::new("requests in progress", self.requests.len())
    }

    fn find_cursor_request(&mut self) {
        let mut bound = self.walk();
        while self.cursor_request != self.next && !self.cursor.is_before(self.request(self.cursor_request).end()) {
            bound.step();
            self.cursor_request = self.cursor_request.wrapping_add(1);
        }
    }
}

/// Opcode of a SEND or WRITE packet by its place in the message.
fn data_opcode(operation: &Operation, is_first: bool, is_last: bool) -> Opcode {
    use Operation::{SendWithImmediate, SendWithInvalidate, Write, WriteWithImmediate};
    match (operation, is_first, is_last) {
        (Operation::AtomicWrite { .. }, ..) => Opcode::RC_ATOMIC_WRITE,
        (Operation::Flush { .. }, ..) => Opcode::RC_FLUSH,
        (Write { .. } | WriteWithImmediate { .. }, true, false) => Opcode::RC_WRITE_FIRST,
        (Write { .. } | WriteWithImmediate { .. }, false, false) => Opcode::RC_WRITE_MIDDLE,
        (Write { .. }, false, true) => Opcode::RC_WRITE_LAST,
        (Write { .. }, true, true) => Opcode::RC_WRITE_ONLY,
        (WriteWithImmediate { .. }, false, true) => Opcode::RC_WRITE_LAST_IMMEDIATE,
        (WriteWithImmediate { .. }, true, true) => Opcode::RC_WRITE_ONLY_IMMEDIATE,
        (_, true, false) => Opcode::RC_SEND_FIRST,
        (_, false, false) => Opcode::RC_SEND_MIDDLE,
        (SendWithImmediate(_), false, true) => Opcode::RC_SEND_LAST_IMMEDIATE,
        (SendWithImmediate(_), true, true) => Opcode::RC_SEND_ONLY_IMMEDIATE,
        (SendWithInvalidate(_), false, true) => Opcode::RC_SEND_LAST_INVALIDATE,
        (SendWithInvalidate(_), true, true) => Opcode::RC_SEND_ONLY_INVALIDATE,
        (_, false, true) => Opcode::RC_SEND_LAST,
        (_, true, true) => Opcode::RC_SEND_ONLY,
    }
}

impl QueuePair {
    /// The next request packet that may leave now.
    pub(super) fn plan_request(&mut self) -> Option<RequestPlan> {
        if !self.may_transmit() {
            return None;
        }
        if let Some(probe) = self.requester.recovery.probe() {
            let plan = self.plan_probe(probe);
            if plan.is_some() {
                return plan;
            }
            self.requester.recovery.end_probe();
        }
        if !self.prepare_request() {
            return None;
        }
        self.plan_at(self.requester.cursor_request, self.requester.cursor)
    }

    /// Whether [`QueuePair::plan_request`] would find something.
    pub(super) fn may_send_request(&mut self) -> bool {
        if !self.may_transmit() {
            return false;
        }
        let (psn, probe) = (self.requester.cursor, self.requester.recovery.probe_pending());
        let has_packet =
            probe || (self.prepare_request() && self.plan_at(self.requester.cursor_request, psn).is_some());
        has_packet || self.local_request_is_due()
    }

    pub(super) fn may_transmit(&self) -> bool {
        let state = matches!(self.common.state, QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained);
        state && !self.requester.stopped && !self.requester.recovery.waits_for_receiver()
    }

    /// Makes sure that the cursor lies in a request that can be sent; begins the next one if need be.
    fn prepare_request(&mut self) -> bool {
        if self.requester.cursor_request == self.requester.next && !self.begin_next_request() {
            return false;
        }
        self.requester.failed.is_none_or(|failed| failed.0 != self.requester.cursor_request)
    }

    /// Gives the next posted request its numbers, if it may begin.
    fn begin_next_request(&mut self) -> bool {
        let index = self.requester.next;
        let may_begin = self.common.state == QueuePairState::ReadyToSend || planted(Mutation::DrainDoesNotStop);
        if index == self.send.published() || !may_begin {
            return false;
        }
        let header = self.send.header(index);
        if header.operation.is_local() {
            return false; // its turn comes when nothing is in progress
        }
        let is_fenced = header.flags.contains(SendFlags::FENCE) && !planted(Mutation::FenceIgnored);
        if is_fenced && self.requester.reads_in_progress > 0 {
            return false;
        }
        let is_read = matches!(header.operation, Operation::Read { .. });
        let is_atomic = header.operation.is_atomic();
        let packets = if is_atomic { 1 } else { header.length.div_ceil(self.common.mtu_bytes()).max(1) };
        // Numbers in use must stay within half the number space for their order to be known.
        let in_use = self.requester.packets_in_flight();
        if in_use > 0 && in_use.saturating_add(packets) >= 1 << 23 {
            return false;
        }
        // Two READ request packets are on their way at once, so that responses never pause.
        let chunk = self.common.path.as_ref().map_or(1, |path| (path.window_packets / 2).max(1));
        let first = self.requester.cursor;
        self.requester.begin(InProgress {
            first,
            packets,
            chunk,
            is_read,
            is_atomic,
            is_ack_only: header.operation.is_ack_only(),
        });
        true
    }

    #[inline]
    fn plan_at(&self, index: u32, psn: Psn) -> Option<RequestPlan> {
        if index == self.requester.next {
            return None;
        }
        let request = self.requester.request(index);
        let offset = psn.distance_from(request.first).max(0) as u32;
        let header = self.send.header(index);
        if request.is_read {
            return self.plan_read(index, psn, offset);
        }
        if request.is_atomic {
            return self.plan_atomic(index, psn, header);
        }
        if request.is_ack_only && !self.read_credit_left() && !planted(Mutation::EmptyAnswerCreditIgnored) {
            return None;
        }
        if !self.window_allows(psn, 1) {
            return None;
        }
        let mtu = self.common.mtu_bytes();
        let is_last = offset + 1 == request.packets;
        let payload = if is_last { header.length - offset * mtu } else { mtu };
        let opcode = data_opcode(&header.operation, offset == 0, is_last).of(self.common.wire_service());
        let size = packet_bytes(opcode, payload);
        Some(RequestPlan { index, psn, offset, covers: 1, size, payload, opcode, is_probe: false })
    }

    fn plan_read(&self, index: u32, psn: Psn, offset: u32) -> Option<RequestPlan> {
        let request = self.requester.request(index);
        // A repeated request ends where the original one did.
        let mut chunk_end = (offset / request.chunk + 1).saturating_mul(request.chunk).min(request.packets);
        if planted(Mutation::ReadRepairedTooFar) && !offset.is_multiple_of(request.chunk) {
            chunk_end += 1;
        }
        let covers = chunk_end - offset;
        if !self.read_credit_left() || !self.window_allows(psn, covers) {
            return None;
        }
        let opcode = Opcode::RC_READ_REQUEST.of(self.common.wire_service());
        let size = packet_bytes(opcode, 0);
        Some(RequestPlan { index, psn, offset, covers, size, payload: 0, opcode, is_probe: false })
    }

    fn plan_atomic(&self, index: u32, psn: Psn, header: &SendHeader) -> Option<RequestPlan> {
        if !self.read_credit_left() || !self.window_allows(psn, 1) {
            return None;
        }
        let opcode = match header.operation {
            Operation::CompareAndSwap { .. } => Opcode::RC_COMPARE_SWAP,
            _ => Opcode::RC_FETCH_ADD,
        };
        let opcode = opcode.of(self.common.wire_service());
        let size = packet_bytes(opcode, 0);
        Some(RequestPlan { index, psn, offset: 0, covers: 1, size, payload: 0, opcode, is_probe: false })
    }

    fn read_credit_left(&self) -> bool {
        let credits = usize::from(self.common.attributes.max_rd_atomic.unwrap_or(0));
        self.requester.awaiting_response.len() < credits || planted(Mutation::ReadCreditIgnored)
    }

    /// Whether `covers` packets from `psn` on fit what the peer's socket (or, for READs, the own) takes.
    pub(super) fn window_allows(&self, psn: Psn, covers: u32) -> bool {
        let Some(path) = &self.common.path else { return false };
        // A probe is a packet that was counted already, and may be what all wait for.
        let is_probe = self.requester.recovery.probe_pending() && !planted(Mutation::ProbeWaitsInLine);
        if planted(Mutation::WindowIgnored) || is_probe {
            return true;
        }
        let end = psn.plus(covers).distance_from(self.requester.unacknowledged).max(0) as u32;
        let window = path.window_packets;
        let own_window = match self.requester.is_peer_silent() {
            true if path.is_shared() => 1,
            true => window.min(PACKETS_INTO_SILENCE),
            false => window,
        };
        // One step is always allowed, however many packets it brings.
        if end > covers && end > own_window {
            return false;
        }
        self.share_allows(&path.window_share, end, window)
    }

    /// Whether the packet asks for an acknowledgement: because somebody waits for the completion, because much is
    /// unacknowledged, or because nothing that asks may follow. Of unsignaled requests that follow each other closely
    /// only some ask; if the last one did not, the probe does so later.
    pub(super) fn wants_acknowledgement(&self, now: Time, plan: &RequestPlan) -> bool {
        if planted(Mutation::AcknowledgementNotRequested) {
            return plan.is_probe;
        }
        if !self.common.service.is_reliable() {
            return false;
        }
        let header = self.send.header(plan.index);
        let window = self.common.path.as_ref().map_or(1, |path| path.window_packets);
        let since = plan.psn.distance_from(self.requester.last_ack_request).max(0) as u32;
        let most = if self.others_have_packets() { MOST_UNASKED_AMONG_OTHERS } else { MOST_UNASKED_PACKETS };
        let many = since >= (window / 4).clamp(1, most);
        // Into silence only few packets are sent, which are all that could be answered.
        if many || plan.is_probe || header.operation.has_explicit_response() || self.requester.is_peer_silent() {
            return true;
        }
        if plan.offset + 1 < self.requester.request(plan.index).packets {
            return false;
        }
        let is_draining = self.common.state == QueuePairState::SendQueueDrained;
        self.signal_all
            || is_draining
            || header.flags.contains(SendFlags::SIGNALED)
            || plan.psn.is_before(self.requester.limit)
            || self.common.path.as_ref().is_some_and(|path| path.window_share.has_waiters())
            || (self.may_pause_after(plan.index) && (!self.asked_lately(now) || self.room_is_scarce()))
    }

    /// Whether nothing may leave for a while after this request.
    fn may_pause_after(&self, index: u32) -> bool {
        let following = index.wrapping_add(1);
        if following == self.send.published() {
            return true;
        }
        let header = self.send.header(following);
        header.flags.contains(SendFlags::FENCE)
            || header.operation.has_explicit_response()
            || header.operation.is_local()
    }

    /// Whether an acknowledgement was asked for so lately that the next request of a busy application will be early
    /// enough to ask again. Never if the transport timer might not wait for the probe and its response.
    fn asked_lately(&self, now: Time) -> bool {
        let lately = self.requester.last_ack_request_at.is_some_and(|at| now.saturating_since(at) < ASK_EVERY);
        let timeout = self.transport_timeout();
        lately
            && timeout
                .is_none_or(|timeout| timeout >= SHORTEST_PATIENCE.max(4 * self.requester.round_trip.probe_wait()))
    }

    /// A probe for a lost tail: the last packet sent, once more.
    fn plan_probe(&mut self, psn: Psn) -> Option<RequestPlan> {
        let index = self.request_with(psn)?;
        let plan = self.plan_at(index, psn)?;
        (plan.covers == 1).then_some(RequestPlan { is_probe: true, ..plan })
    }

    /// The request in progress that the number belongs to.
    pub(super) fn request_with(&self, psn: Psn) -> Option<u32> {
        let mut index = self.requester.oldest;
        let mut bound = self.requester.walk();
        while index != self.requester.next {
            bound.step();
            let request = self.requester.request(index);
            if psn.is_within(request.first, request.packets) {
                return Some(index);
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// The request's own memory failed: it ends when all before it have ended.
    pub(super) fn fail_request(&mut self, index: u32, error: AccessError) {
        // If it was the probe, it cannot be sent: it must not be tried for ever.
        self.requester.recovery.end_probe();
        let failure = (index, CompletionStatus::LocalProtectionError, local_cause(error));
        let oldest = self.requester.oldest;
        let is_first =
            |other: (u32, CompletionStatus, Cause)| index.wrapping_sub(oldest) < other.0.wrapping_sub(oldest);
        if self.requester.failed.is_none_or(is_first) {
            self.requester.failed = Some(failure);
        }
        if index == self.requester.oldest {
            self.fail_oldest(failure.1, failure.2);
        }
    }

    pub(super) fn note_sent(&mut self, now: Time, plan: &RequestPlan, ack_request: bool) -> Sending {
        let is_repeat = plan.psn.is_before(self.requester.limit);
        if is_repeat {
            self.common.count(Counter::RetransmittedPackets);
        }
        if plan.is_probe {
            self.requester.recovery.end_probe();
            self.requester.has_asked |= plan.psn.plus(1) == self.requester.cursor;
            return Sending::Probe;
        }
        let end = plan.psn.plus(plan.covers);
        self.requester.move_cursor(end);
        self.note_asked(now, plan, ack_request, is_repeat);
        let request = *self.requester.request(plan.index);
        if request.needs_response() {
            self.requester.awaiting_response.push_back(end.minus(1));
        }
        self.note_in_flight();
        self.arm_timers(now);
        if is_repeat { Sending::Again } else { Sending::First }
    }

    /// Whether the packet that was just written asks for an acknowledgement.
    #[inline]
    pub(super) fn note_asked(&mut self, now: Time, plan: &RequestPlan, ack_request: bool, is_repeat: bool) {
        self.requester.has_asked = ack_request;
        if ack_request {
            self.requester.last_ack_request = plan.psn;
            self.requester.last_ack_request_at = Some(now);
            if !is_repeat {
                self.requester.round_trip.begin_sample(plan.psn.plus(plan.covers - 1), now);
            }
        }
    }
}
