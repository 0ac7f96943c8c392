//! The choice of the request packet that leaves next, and whether it requests an acknowledgement.

use std::time::Duration;

use super::{Common, InProgress, Requester};
use crate::queue::SendHeader;
use crate::transport::burst::{AckRequests, Sending};
use crate::transport::path::{Path, READ_RECORD_FACTOR};
use crate::types::{Counter, Operation, Psn, QueuePairState, SendFlags, Time};
use crate::wire::{Opcode, packet_bytes};

/// Maximum number of packets without an acknowledgement request.
const MOST_WITHOUT_ACK_REQUEST: u32 = 64;
/// The maximum while other queue pairs have packets in flight on the same path: they may wait for the window space.
const MOST_WITHOUT_ACK_REQUEST_AMONG_OTHERS: u32 = 16;
/// The same maximum on a path with a controller. A queue pair that finds no room, and whose last packet requested no
/// acknowledgement, requests one only by a probe, a round trip later. With 4 packets, 64 queue pairs have 0.96 of the
/// rate of one, with 8 packets 0.94, with 16 0.74.
const MOST_WITHOUT_ACK_REQUEST_UNDER_CONTROL: u32 = 4;
/// Maximum number of packets to a peer that did not respond to a probe, and of packets that a probe for a READ repeats.
/// The queue pairs of a path share it, because these packets do not count against the window: a thousand queue pairs
/// would fill the socket of a process that is still alive at that address.
const PACKETS_INTO_SILENCE: u32 = 16;
/// Minimum window, in packets, for which a READ on a path with a controller is split more finely, and the size of these
/// chunks. They are larger if the READs that may be outstanding would otherwise not fill the window. The chunks grow
/// with the window: the peer sends each at once, and a full queue drops most of a burst. With chunks of a paced send,
/// whatever the window, one of four streams on a real link has 90 of 118 MB/s.
const FINE_READ_WINDOW: u32 = 64;
const FINE_READ_PACKETS: u32 = 64;
/// Maximum time between acknowledgement requests by a busy application's unsignaled requests.
const ACK_REQUEST_INTERVAL: Duration = Duration::from_micros(400);
/// A transport timeout below this (code 12) may expire before the response to a late probe.
const SHORTEST_SAFE_TIMEOUT: Duration = Duration::from_micros(16_700);

/// A packet that may be sent now.
#[derive(Clone, Copy)]
pub(in crate::transport) struct RequestPlan {
    pub(super) index: u32,
    pub(super) psn: Psn,
    /// Position in the request, in packets.
    pub(super) offset: u32,
    /// Sequence numbers that it takes.
    pub(super) covers: u32,
    /// Bytes from the base transport header to the ICRC.
    pub(in crate::transport) size: usize,
    pub(super) payload: u32,
    pub(super) opcode: Opcode,
    pub(super) reason: SendReason,
}

/// The reason why a packet is sent now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SendReason {
    /// It lies at the cursor.
    Cursor,
    /// The peer misses it; the cursor stays where it is.
    Missing,
    /// The peer misses it, and READs are in progress; it counts as in flight, and the cursor stays where it is.
    Request,
    /// It is sent for its acknowledgement alone; the cursor stays where it is.
    Probe,
}

impl RequestPlan {
    /// Returns whether others like it may follow: packets of SENDs and WRITEs between the first and the last.
    pub(in crate::transport) fn is_middle(&self) -> bool {
        self.opcode.is_middle() && self.reason == SendReason::Cursor
    }
}

/// Error: a missing packet, which precedes all others, has no room, so that no packet may leave.
struct NoRoom;

/// Returns the opcode of a SEND or WRITE packet by its position in the message.
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

impl Requester {
    /// Returns the next request packet that may leave now.
    #[inline]
    pub(in crate::transport) fn plan_request(&mut self, common: &Common) -> Option<RequestPlan> {
        if !self.may_transmit(common) {
            return None;
        }
        if let Some(probe) = self.recovery.probe() {
            let plan = self.plan_probe(common, probe);
            if plan.is_some() {
                return plan;
            }
            self.recovery.end_probe();
        }
        if self.repeats_selectively()
            && let Some(plan) = self.plan_missing(common)
        {
            return plan.ok();
        }
        if !self.prepare_request(common) {
            return None;
        }
        self.plan_at(common, self.cursor_request, self.cursor, SendReason::Cursor)
    }

    /// Returns whether [`Requester::plan_request`] would find something, or a local request is due.
    pub(in crate::transport) fn may_send_request(&mut self, common: &Common) -> bool {
        if !self.may_transmit(common) {
            return false;
        }
        if self.recovery.probe().is_some() {
            return true;
        }
        if self.repeats_selectively()
            && let Some(plan) = self.plan_missing(common)
        {
            return plan.is_ok();
        }
        let has_packet = self.prepare_request(common)
            && self.plan_at(common, self.cursor_request, self.cursor, SendReason::Cursor).is_some();
        has_packet || self.local_request_is_due(common)
    }

    pub(super) fn may_transmit(&self, common: &Common) -> bool {
        let state = matches!(common.state, QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained);
        state && self.pace.is_free()
    }

    /// Ensures that the cursor lies in a request that can be sent; begins the next one if necessary.
    #[inline]
    fn prepare_request(&mut self, common: &Common) -> bool {
        if self.cursor_request == self.next && !self.begin_next_request(common) {
            return false;
        }
        self.failed.is_none_or(|failed| failed.0 != self.cursor_request)
    }

    /// Numbers the next posted request, if it may begin.
    #[inline]
    fn begin_next_request(&mut self, common: &Common) -> bool {
        let index = self.next;
        if index == self.send.published() || common.state != QueuePairState::ReadyToSend {
            return false;
        }
        let header = self.send.header(index);
        if header.operation.is_local() {
            return false; // it is executed when nothing is in progress
        }
        if header.flags.contains(SendFlags::FENCE) && self.reads_in_progress > 0 {
            return false;
        }
        let is_read = matches!(header.operation, Operation::Read { .. });
        let is_atomic = header.operation.is_atomic();
        let packets = if is_atomic { 1 } else { header.length.div_ceil(common.mtu_bytes()).max(1) };
        // Numbers in use stay within half the number space, so that their order is known (rxe's `psn_compare`).
        let in_use = self.packets_in_flight();
        if in_use > 0 && in_use.saturating_add(packets) >= 1 << 23 {
            return false;
        }
        let chunk = if is_read { self.read_chunk(common) } else { 0 };
        let first = self.cursor;
        self.begin(InProgress {
            first,
            packets,
            chunk,
            is_read,
            is_atomic,
            is_ack_only: header.operation.is_ack_only(),
        });
        true
    }

    /// Returns the maximum number of packets that a READ request packet requests. Two of them are in flight at once, so
    /// that responses never pause; on a path with a controller more, so that its window moves in smaller steps.
    fn read_chunk(&self, common: &Common) -> u32 {
        let Some(path) = &common.path else { return 1 };
        let window = match self.window.is_constant() {
            true => self.window_on(path),
            false => self.window.usual_packets(&path.facts()).min(path.window_share.window()),
        };
        let reads = u32::from(common.attributes.max_rd_atomic.unwrap_or(0));
        let is_fine = path.window_share.is_controlled() && window >= FINE_READ_WINDOW && reads >= 4;
        if is_fine { (window / 4).min(FINE_READ_PACKETS.max(window / reads)) } else { (window / 2).max(1) }
    }

    #[inline]
    fn plan_at(&self, common: &Common, index: u32, psn: Psn, reason: SendReason) -> Option<RequestPlan> {
        if index == self.next {
            return None;
        }
        let request = self.request(index);
        let offset = psn.packets_since(request.first);
        let header = self.send.header(index);
        if request.is_read {
            return self.plan_read(common, index, psn, offset, reason);
        }
        if request.is_atomic {
            return self.plan_atomic(common, index, psn, header, reason);
        }
        if request.is_ack_only && !self.read_credit_left(common, reason) {
            return None;
        }
        if !self.window_allows(common, psn, 1, reason) {
            return None;
        }
        let mtu = common.mtu_bytes();
        let is_last = offset + 1 == request.packets;
        let payload = if is_last { header.length - offset * mtu } else { mtu };
        let opcode = data_opcode(&header.operation, offset == 0, is_last).of(common.wire_service());
        let size = packet_bytes(opcode, payload);
        Some(RequestPlan { index, psn, offset, covers: 1, size, payload, opcode, reason })
    }

    fn plan_read(&self, common: &Common, index: u32, psn: Psn, offset: u32, reason: SendReason) -> Option<RequestPlan> {
        let request = self.request(index);
        // A repeated request ends where the original one did.
        let covers = request.end_of_chunk(offset) - offset;
        if !self.read_credit_left(common, reason) || !self.window_allows(common, psn, covers, reason) {
            return None;
        }
        let opcode = Opcode::RC_READ_REQUEST.of(common.wire_service());
        let size = packet_bytes(opcode, 0);
        Some(RequestPlan { index, psn, offset, covers, size, payload: 0, opcode, reason })
    }

    fn plan_atomic(
        &self,
        common: &Common,
        index: u32,
        psn: Psn,
        header: &SendHeader,
        reason: SendReason,
    ) -> Option<RequestPlan> {
        if !self.read_credit_left(common, reason) || !self.window_allows(common, psn, 1, reason) {
            return None;
        }
        let opcode = match header.operation {
            Operation::CompareAndSwap { .. } => Opcode::RC_COMPARE_SWAP,
            _ => Opcode::RC_FETCH_ADD,
        };
        let opcode = opcode.of(common.wire_service());
        let size = packet_bytes(opcode, 0);
        Some(RequestPlan { index, psn, offset: 0, covers: 1, size, payload: 0, opcode, reason })
    }

    /// Returns whether fewer than `max_rd_atomic` are outstanding (IBTA 9.4.4; `rxe_req.c`, `check_init_depth`; rxe
    /// does not count FLUSHes).
    fn read_credit_left(&self, common: &Common, reason: SendReason) -> bool {
        // Packets that are sent again are counted already.
        if reason != SendReason::Cursor {
            return true;
        }
        let credits = usize::from(common.attributes.max_rd_atomic.unwrap_or(0));
        let (all, answered) = (self.awaiting_response.len(), self.reads_answered());
        all - answered < credits && (answered == 0 || all < credits * READ_RECORD_FACTOR)
    }

    /// Returns whether `covers` packets from `psn` on fit the window, and the peer's socket (for READs, the local one).
    pub(super) fn window_allows(&self, common: &Common, psn: Psn, covers: u32, reason: SendReason) -> bool {
        let Some(path) = &common.path else { return false };
        // The packet is counted already, and all others may wait for it.
        if matches!(reason, SendReason::Probe | SendReason::Request) {
            return true;
        }
        let end = match self.repeats_selectively() {
            false => psn.plus(covers).packets_since(self.unacknowledged),
            true if covers > self.packets_kept_from(path, psn) => return false,
            true => self.packets_in_queues() + covers,
        };
        // If nothing else is in flight, one request packet is always allowed, however many packets it requests.
        if end > covers && end > self.own_window(path) && !self.passes_window(path, psn, end - covers, reason) {
            return false;
        }
        self.share_allows(&path.window_share, end, path.common_window())
    }

    /// Returns whether packets may leave although, with the `in_front` packets before them, they exceed the window. A
    /// READ request to a silent native peer counts as one packet, since its responses may never arrive.
    #[cold]
    fn passes_window(&self, path: &Path, psn: Psn, in_front: u32, reason: SendReason) -> bool {
        let counts_as_one = self.is_peer_silent() && self.places_early && in_front < self.own_window(path);
        counts_as_one || (reason != SendReason::Cursor && self.is_of_probe(path, psn))
    }

    /// Returns whether a missing packet with this number is among those that a probe repeats: they leave whatever the
    /// window is (RFC 9002, section 7.5).
    fn is_of_probe(&self, path: &Path, psn: Psn) -> bool {
        let is_read = self.request(self.oldest).needs_response();
        let most = if is_read { self.packets_into_silence(path) } else { 1 };
        self.recovery.is_probing() && psn.packets_since(self.unacknowledged) < most
    }

    /// Returns the packets that this queue pair may have in flight, whatever others have.
    #[inline]
    fn own_window(&self, path: &Path) -> u32 {
        match self.is_peer_silent() {
            true => self.window_on(path).min(self.packets_into_silence(path)),
            false => self.window_on(path),
        }
    }

    /// Returns the packets that may be in flight to a peer that did not respond to a probe.
    pub(super) fn packets_into_silence(&self, path: &Path) -> u32 {
        u32::try_from(path.queue_pairs()).map_or(1, |sharers| (PACKETS_INTO_SILENCE / sharers).max(1))
    }

    /// Returns the packets that this queue pair may have in flight while the peer responds.
    #[inline]
    pub(super) fn window_on(&self, path: &Path) -> u32 {
        match path.window_share.controlled_window() {
            None => self.window_packets,
            Some(window) if self.window.is_constant() => window,
            Some(window) => window.min(self.window_packets),
        }
    }

    /// Returns for how many packets from `first` on the window has room, by the rules of [`Requester::window_allows`]:
    /// at least one, which that function has allowed, and at most `most`.
    pub(super) fn packets_allowed(&self, common: &Common, first: Psn, most: u32) -> u32 {
        let Some(path) = &common.path else { return 1 };
        let in_front = self.packets_behind(first);
        let most = if self.repeats_selectively() { most.min(self.packets_kept_from(path, first)) } else { most };
        let end = self.own_window(path).min(self.share_of(&path.window_share, path.common_window()));
        end.saturating_sub(in_front).min(most).max(1)
    }

    /// Returns the packets in flight when the one with this number leaves.
    fn packets_behind(&self, psn: Psn) -> u32 {
        match self.repeats_selectively() {
            false => psn.packets_since(self.unacknowledged),
            true => self.packets_in_queues(),
        }
    }

    /// Returns whether the packet requests an acknowledgement: because the application waits for the completion,
    /// because much is unacknowledged, or because nothing that requests one may follow. Of unsignaled requests in close
    /// succession only some request one; if the last one did not, the probe does so later.
    pub(super) fn wants_acknowledgement(&self, common: &Common, now: Time, plan: &RequestPlan) -> bool {
        if !common.service.is_reliable() {
            return false;
        }
        let header = self.send.header(plan.index);
        let many = self.packets_since_ack_request(plan.psn) >= self.most_without_ack_request(common);
        if plan.reason == SendReason::Missing {
            return self.requests_gap_report(plan.psn);
        }
        let packets = self.request(plan.index).packets;
        // A message of one packet requests no response only in order to be measured: each of several messages that
        // answer each other would.
        let is_measured = packets > 1 && plan.reason == SendReason::Cursor && self.wants_delay(common);
        if many
            || is_measured
            || matches!(plan.reason, SendReason::Probe | SendReason::Request)
            || header.operation.has_explicit_response()
        {
            return true;
        }
        if plan.offset + 1 < packets {
            return false;
        }
        let is_draining = common.state == QueuePairState::SendQueueDrained;
        self.signal_all
            || is_draining
            || header.flags.contains(SendFlags::SIGNALED)
            || plan.psn.is_before(self.limit)
            || common.path.as_ref().is_some_and(|path| path.window_share.has_waiters())
            || (self.may_pause_after(plan.index)
                && (!self.requested_ack_recently(common, now) || self.room_is_scarce(common)))
    }

    /// Returns the numbers since the last acknowledgement request.
    #[inline]
    fn packets_since_ack_request(&self, psn: Psn) -> u32 {
        psn.packets_since(self.last_ack_request)
    }

    /// Returns the number of packets after which an acknowledgement is requested in any case.
    #[inline]
    fn most_without_ack_request(&self, common: &Common) -> u32 {
        // A silent peer gets only few packets, and all of them request a response.
        if self.is_peer_silent() {
            return 0;
        }
        let most = match self.others_have_packets(common) {
            true if common.is_controlled() => MOST_WITHOUT_ACK_REQUEST_UNDER_CONTROL,
            true => MOST_WITHOUT_ACK_REQUEST_AMONG_OTHERS,
            false => MOST_WITHOUT_ACK_REQUEST,
        };
        let window = common.path.as_ref().map_or(1, |path| self.window_on(path));
        (window / 4).clamp(1, most)
    }

    /// Returns which packets between the first and the last of a request, from this number on, request an
    /// acknowledgement.
    pub(super) fn ack_requests(&self, common: &Common, first: Psn, now: Time) -> AckRequests {
        let most = self.most_without_ack_request(common);
        let since_request =
            if self.wants_delay_of_several(common, now) { most } else { self.packets_since_ack_request(first) };
        AckRequests { first: most.saturating_sub(since_request), every: most.max(1) }
    }

    /// Returns whether a pause may follow this request.
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

    /// Returns whether an acknowledgement was requested so recently that the next request of a busy application will be
    /// early enough to request one again. Returns false if the transport timer may expire before the response to a
    /// probe.
    fn requested_ack_recently(&self, common: &Common, now: Time) -> bool {
        let is_recent = self.last_ack_request_at.is_some_and(|at| now.saturating_since(at) < ACK_REQUEST_INTERVAL);
        let timeout = self.transport_timeout(common);
        is_recent
            && timeout.is_none_or(|timeout| timeout >= SHORTEST_SAFE_TIMEOUT.max(4 * self.round_trip.probe_wait()))
    }

    /// Plans a probe, which repeats a packet that was sent.
    fn plan_probe(&mut self, common: &Common, psn: Psn) -> Option<RequestPlan> {
        let index = self.request_with(psn)?;
        self.plan_at(common, index, psn, SendReason::Probe)
    }

    /// Plans the missing packet that leaves before anything else. Returns an error if it has no room.
    #[cold]
    fn plan_missing(&self, common: &Common) -> Option<Result<RequestPlan, NoRoom>> {
        if let Some(plan) = self.plan_missing_request(common) {
            return Some(Ok(plan));
        }
        let plan = match (self.next_lost(), self.next_lost_response()) {
            (Some(psn), _) => {
                self.request_with(psn).and_then(|index| self.plan_again(common, index, psn, SendReason::Missing))
            }
            (None, Some(lost)) => self.plan_response_again(common, lost),
            (None, None) => return None,
        };
        Some(plan.ok_or(NoRoom))
    }

    /// Plans a request packet that was sent before.
    pub(super) fn plan_again(&self, common: &Common, index: u32, psn: Psn, reason: SendReason) -> Option<RequestPlan> {
        if self.failed.is_some_and(|(failed, _)| failed == index) {
            return None;
        }
        self.plan_at(common, index, psn, reason)
    }

    /// Returns the request in progress that the number belongs to.
    pub(super) fn request_with(&self, psn: Psn) -> Option<u32> {
        let mut found = self.in_progress().filter(|(_, request)| psn.is_within(request.first, request.packets));
        found.next().map(|(index, _)| index)
    }

    #[inline]
    pub(super) fn note_sent(&mut self, common: &mut Common, now: Time, plan: &RequestPlan, ack_request: bool) {
        let is_repeat = plan.psn.is_before(self.limit);
        if is_repeat {
            common.count(Counter::RetransmittedPackets);
            common.counters.add(Counter::LostPackets, u64::from(self.lost_packets_of(plan)));
        }
        match plan.reason {
            SendReason::Cursor => {}
            SendReason::Probe => {
                self.recovery.end_probe();
                self.reordering.confirm_event();
                self.has_requested_ack |= plan.psn.plus(1) == self.cursor;
                return;
            }
            SendReason::Request => {
                self.note_request_sent_again(plan, now);
                self.arm_timers(common, now);
                return;
            }
            SendReason::Missing => {
                self.note_sent_again(plan, now);
                self.note_in_flight(common);
                self.arm_timers(common, now);
                return;
            }
        }
        let end = plan.psn.plus(plan.covers);
        self.move_cursor(end);
        self.note_ack_request(now, plan, ack_request, is_repeat);
        let request = *self.request(plan.index);
        if request.needs_response() {
            self.reserve_awaited(common);
            self.awaiting_response.push_back(end.minus(1));
        }
        self.note_in_flight(common);
        self.arm_timers(common, now);
    }

    /// Reserves room for all outstanding responses when the first is requested: many connections never request one.
    #[inline]
    fn reserve_awaited(&mut self, common: &Common) {
        if self.awaiting_response.capacity() == 0 {
            self.awaiting_response.reserve(usize::from(common.attributes.max_rd_atomic.unwrap_or(0)));
        }
    }

    /// Returns whether the packet is sent for the first time, again or as a probe.
    #[inline]
    pub(super) fn sending(&self, plan: &RequestPlan) -> Sending {
        match plan.psn.is_before(self.limit) {
            _ if plan.reason == SendReason::Probe => Sending::Probe,
            true => Sending::Again,
            false => Sending::First,
        }
    }

    /// Notes whether the packet that was just written requests an acknowledgement.
    #[inline]
    fn note_ack_request(&mut self, now: Time, plan: &RequestPlan, ack_request: bool, is_repeat: bool) {
        self.has_requested_ack = ack_request;
        if ack_request {
            self.last_ack_request = plan.psn;
            self.last_ack_request_at = Some(now);
            let last = plan.psn.plus(plan.covers - 1);
            if !is_repeat {
                self.round_trip.begin_sample(last, now);
            } else if self.recovery.went_back_on_evidence() {
                self.round_trip.begin_repetition(last, now);
            }
        }
    }

    /// Notes the acknowledgement requests of `count` packets between the first and the last of a request, sent for the
    /// first time.
    pub(super) fn note_middle_ack_requests(&mut self, now: Time, first: Psn, count: u32, ack_requests: AckRequests) {
        self.has_requested_ack = ack_requests.contains(count - 1);
        if let Some(last) = ack_requests.last_before(count) {
            self.last_ack_request = first.plus(last);
            self.last_ack_request_at = Some(now);
            self.round_trip.begin_sample(first.plus(ack_requests.first), now);
        }
    }
}
