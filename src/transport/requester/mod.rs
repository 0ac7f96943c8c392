//! The requester: splits requests into packets, numbers them, and tracks what is in flight.
//!
//! Requests have indices (the send queue's count), packets have sequence numbers. The numbers of the requests in
//! progress follow each other without gaps: `oldest.first ..= limit - 1`. `cursor` is the next number to transmit; it
//! equals `limit` except during retransmission. To go back is to move the cursor back.

mod completion;
mod control;
mod datagram;
mod delays;
mod direct;
mod gaps;
mod limiter;
mod local;
mod missing;
mod missing_requests;
mod pace;
mod packet;
mod plan;
mod read_repair;
mod recovery;
mod reordering;
mod repair;
mod response;
mod round_trip;
mod scoreboard;
mod selective;
mod share;
mod unreliable;

use std::collections::VecDeque;

use super::common::{Common, CompletionSink, Pass};
use super::congestion::ConnectionWindow;
use super::loop_bound::LoopBound;
use crate::queue::SendConsumer;
use crate::types::{AsyncEvent, Operation, Psn, Time};

pub(super) use completion::RequestFailure;
use delays::Delays;
use direct::DirectKeys;
use limiter::Limiter;
use pace::{Halt, Pace};
pub(super) use plan::RequestPlan;
use recovery::Recovery;
pub(super) use recovery::timeout_duration;
use reordering::Reordering;
use repair::Repair;
pub(super) use response::ResponseError;
use round_trip::RoundTrip;
use share::FairShare;

/// A request to which sequence numbers are assigned.
#[derive(Clone, Copy, Default)]
pub(in crate::transport) struct InProgress {
    /// Number of its first packet.
    first: Psn,
    /// Sequence numbers that it takes.
    packets: u32,
    /// For a READ: response packets that one READ request packet requests. Fixed for the request's life, because a
    /// repeated request packet must lie within the original one (IBTA 9.4.4).
    chunk: u32,
    is_read: bool,
    is_atomic: bool,
    /// Whether its response is an empty READ response: ATOMIC WRITE and FLUSH.
    is_ack_only: bool,
}

impl InProgress {
    /// Returns the number after its last.
    fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// For a READ: returns the end, as an offset in packets, of the request packet that requests the response packet at
    /// this offset.
    fn end_of_chunk(&self, offset: u32) -> u32 {
        (offset / self.chunk.max(1) + 1).saturating_mul(self.chunk.max(1)).min(self.packets)
    }

    /// Returns whether it needs a response of its own, which acknowledgements cannot replace.
    fn needs_response(&self) -> bool {
        self.is_read || self.is_atomic || self.is_ack_only
    }
}

/// The sending half of a queue pair.
pub(super) struct Requester {
    send: SendConsumer,
    completions: CompletionSink,
    /// Whether every request generates a completion.
    signal_all: bool,
    /// The requests `oldest..next`, by index modulo the length.
    requests: Box<[InProgress]>,
    oldest: u32,
    next: u32,
    /// The request in which the cursor lies; `next` if it is at the limit.
    cursor_request: u32,
    unacknowledged: Psn,
    cursor: Psn,
    limit: Psn,
    /// Last numbers, in order, of the request packets that need a response of their own and are not acknowledged up to
    /// their last number.
    awaiting_response: VecDeque<Psn>,
    /// Requests among `oldest..next` that need a response of their own.
    reads_in_progress: u32,
    /// Last number sent with an acknowledgement request.
    last_ack_request: Psn,
    /// When `last_ack_request` was sent.
    last_ack_request_at: Option<Time>,
    /// Whether the last packet sent requests a response.
    has_requested_ack: bool,
    /// A request that cannot continue; it fails once it is the oldest.
    failed: Option<(u32, RequestFailure)>,
    recovery: Recovery,
    /// The missing packets; `None` if there are none.
    repair: Option<Box<Repair>>,
    /// Whether responses that arrive early are placed: the peer is native and shares a key.
    places_early: bool,
    round_trip: RoundTrip,
    /// Round trips on a path with a controller.
    delays: Option<Box<Delays>>,
    reordering: Reordering,
    /// Packets that the window share counts for this queue pair.
    counted_in_flight: u32,
    /// Packets behind a gap whose arrival was reported to the controller of the path.
    reported_arrived: u32,
    fair_share: FairShare,
    drained_announced: bool,
    window: ConnectionWindow,
    /// Packets that `window` allows in flight, bounded by the peer's socket.
    window_packets: u32,
    pace: Pace,
    /// The application's rate limit.
    limiter: Option<Box<Limiter>>,
    /// Whether the process of the peer may share memory with this one.
    accesses_directly: bool,
    /// The keys for direct accesses, once a request has named one.
    direct: Option<Box<DirectKeys>>,
}

impl Requester {
    pub(super) fn new(send: SendConsumer, completions: CompletionSink, signal_all: bool, max_send_wr: u32) -> Self {
        let slots = max_send_wr.max(1).next_power_of_two() as usize;
        Self {
            send,
            completions,
            signal_all,
            requests: vec![InProgress::default(); slots].into_boxed_slice(),
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
            has_requested_ack: true,
            failed: None,
            recovery: Recovery::default(),
            repair: None,
            places_early: false,
            round_trip: RoundTrip::default(),
            delays: None,
            reordering: Reordering::default(),
            counted_in_flight: 0,
            reported_arrived: 0,
            fair_share: FairShare::default(),
            drained_announced: false,
            window: ConnectionWindow::default(),
            window_packets: 1,
            pace: Pace::default(),
            limiter: None,
            accesses_directly: false,
            direct: None,
        }
    }

    /// Makes the requester ready to send from `psn` on.
    pub(super) fn start(&mut self, psn: Psn) {
        self.unacknowledged = psn;
        self.cursor = psn;
        self.limit = psn;
        self.last_ack_request = psn.minus(1);
        self.pace.release();
    }

    /// Forgets everything that was posted, without completions.
    pub(super) fn reset(&mut self) {
        let start = self.send.reset();
        self.requests.fill(InProgress::default());
        self.forget_all();
        self.cursor = Psn::default();
        self.limit = Psn::default();
        self.unacknowledged = Psn::default();
        self.last_ack_request = Psn::default();
        self.last_ack_request_at = None;
        self.has_requested_ack = true;
        self.places_early = false;
        self.round_trip = RoundTrip::default();
        self.delays = None;
        self.reordering = Reordering::default();
        (self.counted_in_flight, self.reported_arrived) = (0, 0);
        self.reset_share();
        self.drained_announced = false;
        self.window = ConnectionWindow::default();
        self.window_packets = 1;
        self.pace = Pace::default();
        self.limiter = None;
        self.end_direct_access();
        self.restart_at(start);
    }

    /// Removes completions that were not polled yet.
    pub(super) fn purge_completions(&self) {
        let (queue, token) = &self.completions;
        queue.purge(*token);
    }

    /// Forgets everything in flight.
    pub(super) fn forget_all(&mut self) {
        self.cursor = self.unacknowledged;
        self.limit = self.unacknowledged;
        self.awaiting_response.clear();
        self.reads_in_progress = 0;
        self.failed = None;
        self.recovery = Recovery::default();
        self.repair = None;
        self.pace.release();
    }

    /// Stops sending: the queue pair is in error.
    pub(super) fn stop(&mut self) {
        self.forget_all();
        self.pace.stop();
    }

    /// Forgets the requests in progress without reading them, because a panic may have left their record wrong.
    pub(super) fn abandon(&mut self) {
        self.requests.fill(InProgress::default());
        self.forget_all();
        self.restart_at(self.send.retired());
    }

    /// Continues with request `index` after a flush.
    fn restart_at(&mut self, index: u32) {
        self.oldest = index;
        self.next = index;
        self.cursor_request = index;
    }

    /// Returns whether no request is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.oldest == self.next
    }

    /// Returns whether a request in progress needs a response of its own.
    fn awaits_data(&self) -> bool {
        self.reads_in_progress > 0
    }

    /// Returns the oldest unacknowledged number.
    #[inline]
    pub(super) fn unacknowledged(&self) -> Psn {
        self.unacknowledged
    }

    /// Returns the number of requests that are posted and not complete.
    pub(super) fn unfinished(&self) -> u32 {
        self.send.published().wrapping_sub(self.send.retired())
    }

    /// Returns the number of requests that are complete, or were discarded, since the queue pair was created.
    pub(super) fn finished(&self) -> u64 {
        self.send.finished()
    }

    /// Returns the operation of the oldest request, if it has begun.
    pub(super) fn oldest_operation(&self) -> Option<Operation> {
        (!self.is_idle()).then(|| self.send.header(self.oldest).operation)
    }

    /// Returns whether every request generates a completion.
    pub(super) fn signals_all(&self) -> bool {
        self.signal_all
    }

    /// Returns whether the completion queue of the requests has overflowed.
    pub(super) fn has_lost_completions(&self) -> bool {
        self.completions.0.overflowed()
    }

    /// Returns whether the requester waits as the peer requested (RNR NAK).
    pub(super) fn waits_for_receiver(&self) -> bool {
        self.pace.halt() == Halt::Receiver
    }

    /// Returns the number of probes and retries since the last progress.
    pub(super) fn rounds(&self) -> u32 {
        self.recovery.rounds()
    }

    /// Notes that the send queue drains from now on; its end is reported once.
    pub(super) fn note_draining(&mut self) {
        self.drained_announced = false;
    }

    /// Reports that the send queue has drained.
    pub(super) fn announce_drained(&mut self, common: &Common) {
        let is_asked = common.attributes.en_sqd_async_notify == Some(true);
        if is_asked && !self.drained_announced {
            common.announce(AsyncEvent::SendQueueDrained(common.qpn));
        }
        self.drained_announced = true;
    }

    /// Updates the packets that the window share counts for this queue pair.
    #[inline]
    pub(super) fn note_in_flight(&mut self, common: &Common) {
        let now = self.packets_counted();
        let before = std::mem::replace(&mut self.counted_in_flight, now);
        if now != before
            && let Some(path) = &common.path
        {
            path.window_share.change_in_flight(before, now);
        }
    }

    /// Returns how many numbers are sent and not acknowledged.
    #[inline]
    pub(super) fn packets_in_flight(&self) -> u32 {
        self.limit.packets_since(self.unacknowledged)
    }

    /// Returns how many of them count against the window of the path, which all its queue pairs share. Packets from the
    /// cursor on will be retransmitted and are in no queue. None counts while the peer drops everything (RNR) or is
    /// silent: a peer that is gone must not take window space from other queue pairs.
    #[inline]
    fn packets_counted(&self) -> u32 {
        if self.waits_for_receiver() || self.is_peer_silent() {
            return 0;
        }
        if self.repeats_selectively() { self.packets_in_queues() } else { self.packets_before_cursor() }
    }

    /// Returns the packets from the oldest unacknowledged one to the cursor.
    #[inline]
    fn packets_before_cursor(&self) -> u32 {
        self.cursor.packets_since(self.unacknowledged)
    }

    /// Returns whether the peer did not even respond to a probe.
    fn is_peer_silent(&self) -> bool {
        self.recovery.rounds() >= 2
    }

    /// Returns when a packet that requests an acknowledgement was last sent.
    pub(super) fn last_ack_request_at(&self) -> Option<Time> {
        self.last_ack_request_at
    }

    fn request(&self, index: u32) -> &InProgress {
        &self.requests[index as usize & (self.requests.len() - 1)]
    }

    /// Finishes the next request, which takes no packets; nothing else is in progress.
    fn skip(&mut self) {
        debug_assert!(self.is_idle());
        self.restart_at(self.next.wrapping_add(1));
    }

    fn begin(&mut self, request: InProgress) {
        let slot = self.next as usize & (self.requests.len() - 1);
        self.requests[slot] = request;
        self.next = self.next.wrapping_add(1);
        self.drained_announced = false;
        if request.needs_response() {
            self.reads_in_progress += 1;
        }
    }

    /// Removes the oldest request, which is finished.
    fn pop_oldest(&mut self) {
        if self.request(self.oldest).needs_response() {
            self.reads_in_progress -= 1;
        }
        self.oldest = self.oldest.wrapping_add(1);
        if self.oldest.wrapping_sub(self.cursor_request) as i32 > 0 {
            self.cursor_request = self.oldest;
        }
    }

    /// Acknowledges everything before `psn`.
    fn move_unacknowledged(&mut self, common: &mut Common, now: Time, psn: Psn) {
        self.unacknowledged = psn;
        if self.repeats_selectively() {
            self.trim_missing(common, now, psn);
        }
        if self.cursor.is_before(psn) {
            self.cursor = psn;
            // The peer has executed the packet that it had no receive for.
            if self.waits_for_receiver() {
                self.pace.end_wait(now);
            }
        }
        while self.awaiting_response.front().is_some_and(|last| last.is_before(psn)) {
            self.awaiting_response.pop_front();
        }
        self.find_cursor_request();
    }

    /// Retransmits from the oldest unacknowledged number on.
    pub(super) fn go_back(&mut self) {
        self.forget_missing();
        self.go_back_to(self.unacknowledged);
    }

    /// Retransmits from this number on.
    fn go_back_to(&mut self, psn: Psn) {
        if psn.is_before(self.cursor) {
            self.cursor = psn;
        }
        self.cursor_request = self.oldest;
        while self.awaiting_response.back().is_some_and(|last| !last.is_before(psn)) {
            self.awaiting_response.pop_back();
        }
        // Some retransmissions, too, must request an acknowledgement: otherwise a window full of them would wait
        // forever.
        self.last_ack_request = self.cursor.minus(1);
        self.recovery.forget_gap();
        self.find_cursor_request();
        self.doubt_samples();
    }

    /// Notes that everything before `end` was sent.
    fn move_cursor(&mut self, end: Psn) {
        self.cursor = end;
        if self.limit.is_before(end) {
            self.limit = end;
        }
        self.find_cursor_request();
    }

    /// Returns the requests in progress with their indices, from the oldest on.
    fn in_progress(&self) -> impl Iterator<Item = (u32, &InProgress)> {
        let mut bound = self.walk();
        (0..self.next.wrapping_sub(self.oldest)).map(move |position| {
            bound.step();
            let index = self.oldest.wrapping_add(position);
            (index, self.request(index))
        })
    }

    /// Returns the bound of a walk over the requests in progress.
    #[inline]
    fn walk(&self) -> LoopBound {
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
