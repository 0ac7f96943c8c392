//! Responses due to the peer, in order: acknowledgements, READ responses, results of atomics, NAKs.
//!
//! No acknowledgement overtakes the response of an earlier READ or atomic, because the peer would conclude that the
//! response is lost (IBTA 9.5; `rxe_comp.c`, `check_psn`). READs and atomics stay in a ring of *resources* as long as a
//! repetition may come.

use std::collections::VecDeque;
use std::time::Duration;

use super::response_pace::ResponsePace;
use crate::types::{DomainId, Psn, SharedReceiveQueueNumber, Time};
use crate::wire::{NakCode, Reth, Syndrome};

/// Longest burst of READ responses to a standard peer, whose receive buffer is unknown, and the pause after it.
const STANDARD_BURST_PACKETS: u32 = 32;
const STANDARD_PAUSE: Duration = Duration::from_micros(200);

/// An acknowledgement of this many executed packets, or more, is not held: otherwise the window would fill, and both
/// ends would wait for each other.
const MOST_HELD_PACKETS: i32 = 64;

/// Maximum number of empty responses that may wait besides the others. Linux does not count a FLUSH against its
/// outstanding requests, but sends at most 128 packets without a response (`rxe_param.h`, `RXE_MAX_UNACKED_PSNS`).
const MOST_EMPTY_RESPONSES: usize = 256;

/// Bytes of an acknowledgement, a NAK or an empty READ response, headers and ICRC included.
pub(super) const SHORT_RESPONSE_BYTES: usize = 20;
/// Bytes of the result of an atomic, headers and ICRC included.
const ATOMIC_RESPONSE_BYTES: usize = 28;

const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::SequenceError);

/// Maximum number of waiting parts of READs: as many as the gaps that a NAK lists.
const MOST_PARTS: usize = 256;

/// Number of repetitions of a READ without progress that get a response at once. It is large because READs behind one
/// with many losses are repeated each time. Further repetitions get a response only after a pause, which doubles every
/// `REPEATS_OF_A_PAUSE` repetitions. A READ request is short and its response is long, so repeated READs are the only
/// packets that can trigger responses longer than themselves. A valid one contains the key and address of the memory,
/// so a blind sender cannot forge it.
const MOST_REPEATS: u8 = 64;
const REPEATS_OF_A_PAUSE: u8 = 16;
const REPEAT_PAUSE: Duration = Duration::from_millis(1);

/// A response that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Response {
    Acknowledge {
        psn: Psn,
        message_count: u32,
    },
    Nak {
        psn: Psn,
        syndrome: Syndrome,
        message_count: u32,
    },
    /// The empty response to an ATOMIC WRITE or a FLUSH. Nothing is kept for a repetition: any executed request gets
    /// the same response again.
    Empty {
        psn: Psn,
        message_count: u32,
    },
    /// The response of the resource in this slot.
    Resource(usize),
}

impl Response {
    fn is_sequence_nak(&self) -> bool {
        matches!(self, Self::Nak { syndrome: SEQUENCE_ERROR, .. })
    }
}

/// A READ or atomic, kept as long as a repetition may come.
#[derive(Clone, Copy)]
pub(super) struct Resource {
    pub(super) first: Psn,
    packets: u32,
    pub(super) message_count: u32,
    /// The shared receive queue that the request names, if any: a repetition names the same.
    named: Option<SharedReceiveQueueNumber>,
    pub(super) kind: ResourceKind,
    /// Whether its response waits in the queue.
    queued: bool,
    /// Whether its response was sent in full before, so that a queued one is a repetition.
    pub(super) was_sent: bool,
}

#[derive(Clone, Copy)]
pub(super) enum ResourceKind {
    Read {
        reth: Reth,
        /// Protection domain of the memory.
        domain: DomainId,
        /// Next packet of the response, counted from the first.
        next: u32,
        /// Bytes of the READ up to the end of the response.
        end: u32,
        /// Number of packets of the response, from its first, that were sent at least once.
        sent: u32,
        repeats: Repeats,
    },
    Atomic {
        original: u64,
    },
}

/// Repetitions of a READ without progress.
#[derive(Clone, Copy, Default)]
pub(super) struct Repeats {
    count: u8,
    /// First packet of the last repetition, counted from the READ's first packet.
    from: u32,
    at: Time,
}

impl Repeats {
    /// Whether another repetition, from this packet on, may get a response.
    fn allow(&mut self, now: Time, from: u32) -> bool {
        let is_progress = from > self.from;
        let pause = match self.count.checked_sub(MOST_REPEATS) {
            Some(beyond) => REPEAT_PAUSE * (1 << (beyond / REPEATS_OF_A_PAUSE)),
            None => Duration::ZERO,
        };
        let allowed = is_progress || now.saturating_since(self.at) >= pause;
        if allowed {
            *self = Self { count: self.count.saturating_add(u8::from(!is_progress)), from, at: now };
        }
        allowed
    }
}

/// A part of a READ's response.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    slot: usize,
    /// First packet, counted from the first of the READ.
    from: u32,
    /// Bytes of the READ up to the end of the part.
    end: u32,
}

/// The responses due to the peer.
#[derive(Default)]
pub(in crate::transport) struct ResponseQueue {
    queue: VecDeque<Response>,
    /// Empty before the first READ or atomic of the connection, since many connections never have one.
    resources: Vec<Option<Resource>>,
    /// Maximum number of READs and atomics kept.
    slots: usize,
    next_resource: usize,
    /// Parts of READs that native peers request again while another part of the same READ is queued.
    parts: Vec<Part>,
    /// PSN of the last SEND or WRITE packet executed.
    last_executed: Psn,
    /// PSN of the last acknowledgement sent.
    acknowledged: Psn,
    /// Until when an acknowledgement waits for the application's reply.
    held_until: Option<Time>,
    /// Whether a NAK for a sequence error is queued; there is never more than one.
    owes_sequence_nak: bool,
    established: bool,
    stopped: bool,
    burst: u32,
    pause_until: Option<Time>,
    /// Pace of READ responses, on a path with a rate for them.
    pub(super) pace: Option<Box<ResponsePace>>,
    /// Bytes of repeated and early packets received, less those of the responses to them. A sender that forges the
    /// peer's address cannot make this end send more bytes there than the sender itself has sent.
    credit: usize,
}

/// A READ whose response is due.
#[derive(Clone, Copy)]
pub(super) struct ReadRequest {
    pub(super) reth: Reth,
    /// Protection domain of the memory.
    pub(super) domain: DomainId,
    /// The shared receive queue that it names.
    pub(super) named: Option<SharedReceiveQueueNumber>,
}

impl ResponseQueue {
    pub(super) fn start(&mut self, last_executed: Psn, max_dest_rd_atomic: u8, record_factor: usize) {
        self.clear();
        // Linux rounds the number up to a power of two and may have as many outstanding (`rxe_qp.c`,
        // `rxe_qp_from_attr`).
        let slots = usize::from(max_dest_rd_atomic);
        self.slots = if slots == 0 { 0 } else { slots.next_power_of_two() * record_factor };
        self.queue.reserve(4);
        self.last_executed = last_executed;
        self.acknowledged = last_executed;
    }

    /// Raises the number of READs and atomics that the peer may have outstanding. The number never shrinks, because
    /// outstanding requests continue.
    pub(super) fn make_room(&mut self, max_dest_rd_atomic: u8, record_factor: usize) {
        if max_dest_rd_atomic == 0 {
            return;
        }
        let (before, slots) =
            (self.resources.len(), usize::from(max_dest_rd_atomic).next_power_of_two() * record_factor);
        if slots <= self.slots {
            return;
        }
        self.slots = slots;
        if before == 0 {
            // The first READ or atomic allocates the slots.
            return;
        }
        // The oldest resource comes first, so that the new slots follow the newest one.
        let oldest = self.next_resource;
        self.resources.rotate_left(oldest);
        let moved = |slot: usize| (slot + before - oldest) % before;
        for response in &mut self.queue {
            if let Response::Resource(slot) = response {
                *slot = moved(*slot);
            }
        }
        self.parts.iter_mut().for_each(|part| part.slot = moved(part.slot));
        self.resources.resize(slots, None);
        self.next_resource = before;
        self.queue.reserve(2 * slots + 4);
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.resources.clear();
        self.parts.clear();
        *self = Self {
            queue: std::mem::take(&mut self.queue),
            resources: std::mem::take(&mut self.resources),
            ..Self::default()
        };
    }

    /// Stops holding acknowledgements. Due responses are still sent.
    pub(super) fn stop(&mut self) {
        self.held_until = None;
        self.stopped = true;
    }

    /// Adds the bytes of a repeated or early packet to the credit.
    pub(super) fn earn(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_add(bytes);
    }

    /// Spends credit for a response to such a packet. False if there is not enough.
    pub(super) fn spend(&mut self, bytes: usize) -> bool {
        let left = self.credit.checked_sub(bytes);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }

    /// Returns true for the first packet of the connection.
    pub(super) fn first_packet(&mut self) -> bool {
        !std::mem::replace(&mut self.established, true)
    }

    /// Whether another READ or atomic may be begun.
    pub(super) fn has_room(&self) -> bool {
        match self.resources.get(self.next_resource) {
            None => self.slots > 0,
            Some(resource) => resource.is_none_or(|resource| !resource.queued || resource.was_sent),
        }
    }

    fn push_resource(&mut self, resource: Resource) {
        if self.resources.is_empty() {
            self.resources.resize(self.slots, None);
            self.queue.reserve(2 * self.slots + 4);
        }
        let slot = self.next_resource;
        self.next_resource = (slot + 1) % self.slots.max(1);
        if self.resources[slot].is_some_and(|old| old.queued) {
            // The queued repetition is unnecessary: the peer would not have begun another request without the response.
            self.queue.retain(|response| *response != Response::Resource(slot));
        }
        self.parts.retain(|part| part.slot != slot);
        self.resources[slot] = Some(resource);
        self.queue.push_back(Response::Resource(slot));
    }

    pub(super) fn push_read(&mut self, first: Psn, packets: u32, read: ReadRequest, message_count: u32) {
        let ReadRequest { reth, domain, named } = read;
        let kind = ResourceKind::Read { reth, domain, next: 0, end: reth.length, sent: 0, repeats: Repeats::default() };
        self.push_resource(Resource { first, packets, message_count, named, kind, queued: true, was_sent: false });
    }

    pub(super) fn push_atomic(
        &mut self,
        psn: Psn,
        original: u64,
        named: Option<SharedReceiveQueueNumber>,
        message_count: u32,
    ) {
        let kind = ResourceKind::Atomic { original };
        let (first, packets) = (psn, 1);
        self.push_resource(Resource { first, packets, message_count, named, kind, queued: true, was_sent: false });
    }

    /// Whether there is room for another empty response. There is none only if the peer exceeds its limits.
    pub(super) fn takes_empty(&self) -> bool {
        self.queue.len() < 2 * self.slots + MOST_EMPTY_RESPONSES
    }

    /// Whether the peer may have READs and atomics outstanding at all.
    pub(super) fn has_resources(&self) -> bool {
        self.slots > 0
    }

    /// Queues the response to an ATOMIC WRITE or a FLUSH.
    pub(super) fn push_empty(&mut self, psn: Psn, message_count: u32) {
        self.queue.push_back(Response::Empty { psn, message_count });
    }

    /// Responds to a repeated ATOMIC WRITE or FLUSH.
    pub(super) fn repeat_empty(&mut self, psn: Psn, message_count: u32) {
        let is_queued =
            self.queue.iter().any(|response| matches!(response, Response::Empty { psn: queued, .. } if *queued == psn));
        if !is_queued && !self.is_crowded() && self.spend(SHORT_RESPONSE_BYTES) {
            self.push_empty(psn, message_count);
        }
    }

    /// Notes an executed SEND or WRITE packet: acknowledgements cover it from now on.
    pub(super) fn note_executed(&mut self, psn: Psn) {
        self.last_executed = psn;
    }

    /// Acknowledges the executed packets, holding the acknowledgement for the application's reply.
    pub(super) fn acknowledge(&mut self, message_count: u32, now: Time, hold: Duration) {
        self.push_acknowledge(self.last_executed, message_count);
        if self.last_executed.distance_from(self.acknowledged) < MOST_HELD_PACKETS {
            self.held_until.get_or_insert(now + hold);
        } else {
            self.held_until = Some(now);
        }
    }

    /// Acknowledges the last executed packet again, at once (IBTA C9-105; `rxe_resp.c`, `duplicate_request`).
    pub(super) fn acknowledge_again(&mut self, message_count: u32, now: Time) {
        if self.is_crowded() || !self.spend(SHORT_RESPONSE_BYTES) {
            return;
        }
        self.push_acknowledge(self.last_executed, message_count);
        self.held_until = Some(now);
    }

    fn push_acknowledge(&mut self, psn: Psn, message_count: u32) {
        if let Some(Response::Acknowledge { .. }) = self.queue.back() {
            self.queue.pop_back();
        }
        // Queued even if much is due, because it is not repeated otherwise. Acknowledgements merge, so there is at most
        // one for each other response.
        self.queue.push_back(Response::Acknowledge { psn, message_count });
    }

    /// Extends the due acknowledgement to the last executed packet. The peer may have been informed that the packets up
    /// to there were kept, and would conclude from a shorter one that they are lost. An acknowledgement can no longer
    /// be extended once another response is queued behind it.
    pub(super) fn complete_acknowledgement(&mut self, message_count: u32) {
        if let Some(last @ Response::Acknowledge { .. }) = self.queue.back_mut() {
            *last = Response::Acknowledge { psn: self.last_executed, message_count };
        }
    }

    /// Whether so much is due that responses which the peer will request again need not be queued.
    fn is_crowded(&self) -> bool {
        self.queue.len() >= 2 * self.slots + 8
    }

    pub(super) fn push_nak(&mut self, psn: Psn, syndrome: Syndrome, message_count: u32) {
        let is_final = matches!(syndrome, Syndrome::Nak(_));
        if !is_final && !self.takes_empty() {
            return;
        }
        self.complete_acknowledgement(message_count);
        let nak = Response::Nak { psn, syndrome, message_count };
        if self.queue.back() != Some(&nak) {
            self.queue.push_back(nak);
        }
    }

    /// Queues a report of the gap before the early packets. The caller checks that no report is due and that there is
    /// room. The NAK contains the state at the time of sending.
    pub(super) fn push_sequence_nak(&mut self, psn: Psn, message_count: u32) {
        debug_assert!(!self.owes_sequence_nak && self.takes_empty());
        self.owes_sequence_nak = true;
        self.queue.push_back(Response::Nak { psn, syndrome: SEQUENCE_ERROR, message_count });
    }

    /// Whether a report of a gap is queued.
    #[inline]
    pub(super) fn owes_sequence_nak(&self) -> bool {
        self.owes_sequence_nak
    }

    /// Withdraws the report of a gap that has closed: it would make the peer retransmit executed packets.
    #[cold]
    pub(super) fn withdraw_sequence_nak(&mut self) {
        self.owes_sequence_nak = false;
        self.queue.retain(|response| !response.is_sequence_nak());
        if self.queue.is_empty() {
            self.held_until = None;
        }
    }

    /// Responds to a repeated READ request, from its first packet on; if `in_parts`, with exactly the part that it
    /// requests. Returns false if the READ is not (or no longer) stored, if the request reaches beyond it (IBTA 9.4.4;
    /// `rxe_resp.c`, `duplicate_request`), or if it is repeated too soon.
    pub(super) fn repeat_read(
        &mut self,
        now: Time,
        psn: Psn,
        reth: Reth,
        named: Option<SharedReceiveQueueNumber>,
        mtu: u32,
        in_parts: bool,
    ) -> bool {
        let found = self.find(psn, named);
        let Some((slot, Some(resource))) = found.map(|slot| (slot, self.resources[slot].as_mut())) else {
            return false;
        };
        let ResourceKind::Read { reth: original, next, end, repeats, .. } = &mut resource.kind else { return false };
        let from = psn.packets_since(resource.first);
        let skipped = u64::from(from) * u64::from(mtu);
        let fits = reth.rkey == original.rkey
            && reth.va == original.va.wrapping_add(skipped)
            && skipped + u64::from(reth.length) <= u64::from(original.length);
        if !fits || !repeats.allow(now, from) {
            return false;
        }
        let requested_end = skipped as u32 + reth.length;
        if resource.queued && in_parts {
            let part = Part { slot, from, end: requested_end };
            let is_due = (*next <= from && requested_end <= *end) || self.parts.contains(&part);
            if !is_due && self.parts.len() < MOST_PARTS {
                self.parts.push(part);
            }
            return true;
        }
        if resource.queued {
            // The queued response must not begin later or end earlier than requested.
            *next = (*next).min(from);
            *end = (*end).max(requested_end);
            return true;
        }
        (*next, *end) = (from, requested_end);
        resource.queued = true;
        self.queue.push_back(Response::Resource(slot));
        true
    }

    /// Whether the request repeats a whole READ whose response was sent: nothing of the response has arrived.
    pub(super) fn is_whole_read(&self, psn: Psn, reth: &Reth, named: Option<SharedReceiveQueueNumber>) -> bool {
        let read = self.find(psn, named).and_then(|slot| self.resources[slot]);
        read.is_some_and(|read| {
            let length = if let ResourceKind::Read { reth, .. } = read.kind { reth.length } else { 0 };
            read.was_sent && read.first == psn && length == reth.length
        })
    }

    /// Responds to a repeated atomic with the stored result (`rxe_resp.c`, `duplicate_request`). Returns false if the
    /// atomic is not (or no longer) stored.
    pub(super) fn repeat_atomic(&mut self, psn: Psn, named: Option<SharedReceiveQueueNumber>) -> bool {
        let found = self.find(psn, named);
        let Some((slot, Some(resource))) = found.map(|slot| (slot, self.resources[slot].as_mut())) else {
            return false;
        };
        if !matches!(resource.kind, ResourceKind::Atomic { .. }) {
            return false;
        }
        if !std::mem::replace(&mut resource.queued, true) {
            // Cannot fail: the request is longer than the response, and its bytes were added to the credit.
            self.spend(ATOMIC_RESPONSE_BYTES);
            self.queue.push_back(Response::Resource(slot));
        }
        true
    }

    /// Finds the request that this one repeats. A request that names another shared receive queue does not match.
    fn find(&self, psn: Psn, named: Option<SharedReceiveQueueNumber>) -> Option<usize> {
        let matches = |resource: &Option<Resource>| {
            let covers = |resource: &Resource| psn.is_within(resource.first, resource.packets);
            resource.is_some_and(|resource| covers(&resource) && resource.named == named)
        };
        // The newest first: after 2^24 packets an old one may have the same PSN.
        let count = self.resources.len();
        let newest_first = (1..=count).map(|back| (self.next_resource + count - back) % count);
        newest_first.into_iter().find(|slot| matches(&self.resources[*slot]))
    }

    /// Whether the only thing due is an acknowledgement that is still held.
    pub(super) fn is_held(&self, now: Time) -> bool {
        let alone = self.queue.len() == 1 && matches!(self.queue.front(), Some(Response::Acknowledge { .. }));
        alone && self.held_until.is_some_and(|time| now < time)
    }

    /// Whether an acknowledgement or a NAK is due.
    pub(super) fn owes_acknowledgement(&self) -> bool {
        self.queue.iter().any(|response| !matches!(response, Response::Resource(_)))
    }

    /// Releases held acknowledgements.
    pub(super) fn release(&mut self) {
        self.held_until = None;
    }

    /// Returns when [`ResponseQueue::handle_timeout`] must be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        let held = if self.queue.is_empty() { None } else { self.held_until };
        Time::earliest([held, self.pause_until])
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.held_until.is_some_and(|time| time <= now) {
            self.held_until = None;
        }
        if self.pause_until.is_some_and(|time| time <= now) {
            self.pause_until = None;
            self.burst = 0;
        }
    }

    /// Returns the next response to send.
    pub(super) fn front(&self) -> Option<Response> {
        self.queue.front().copied()
    }

    pub(super) fn resource(&self, slot: usize) -> Option<&Resource> {
        self.resources[slot].as_ref()
    }

    /// Whether READ responses wait for the end of a pause.
    pub(super) fn is_paused(&self) -> bool {
        self.pause_until.is_some() || self.pace.as_ref().is_some_and(|pace| pace.is_spent())
    }

    /// Returns the number of READ response packets that may leave now.
    #[inline]
    pub(super) fn packets_allowed(&self) -> u32 {
        self.pace.as_ref().map_or(u32::MAX, |pace| pace.allowed())
    }

    /// Charges sent packets of a READ response to the pace.
    #[inline]
    pub(super) fn note_packets(&mut self, packets: u32, packet_bytes: usize) {
        if let Some(pace) = &mut self.pace {
            pace.spend(packets, packet_bytes);
        }
    }

    /// Holds READ responses back until this time.
    pub(super) fn pause(&mut self, until: Time) {
        self.pause_until = self.pause_until.max(Some(until));
    }

    /// Whether the response of a READ, or a part of it, is due.
    pub(super) fn owes_read(&self) -> bool {
        let is_read = |slot: usize| {
            self.resources[slot].is_some_and(|resource| matches!(resource.kind, ResourceKind::Read { .. }))
        };
        self.queue.iter().any(|response| matches!(response, Response::Resource(slot) if is_read(*slot)))
    }

    /// Notes a sent acknowledgement up to this PSN.
    pub(super) fn note_acknowledged(&mut self, psn: Psn) {
        self.acknowledged = psn;
    }

    /// Notes sent packets of a READ response, up to the one before `next`. If `is_paced`, a pause follows each burst.
    pub(super) fn note_read_sent(&mut self, now: Time, slot: usize, next: u32, is_last: bool, is_paced: bool) {
        if let Some(Resource { kind: ResourceKind::Read { next: stored, sent, .. }, .. }) = &mut self.resources[slot] {
            *stored = next;
            *sent = next.max(*sent);
        }
        if is_last {
            self.pop();
        }
        if is_paced {
            self.burst += 1;
            if self.burst >= STANDARD_BURST_PACKETS {
                self.pause_until = Some(now + STANDARD_PAUSE);
            }
        }
    }

    /// Refuses the READ whose response is next, and drops everything due after it.
    pub(super) fn refuse_read(&mut self, psn: Psn, code: NakCode, message_count: u32) {
        self.queue.clear();
        self.owes_sequence_nak = false;
        self.parts.clear();
        for resource in self.resources.iter_mut().flatten() {
            resource.queued = false;
        }
        self.push_nak(psn, Syndrome::Nak(code), message_count);
    }

    /// Refuses a repeated READ whose response is next; everything due after it is still sent.
    pub(super) fn refuse_repeated_read(&mut self, psn: Psn, code: NakCode, message_count: u32) {
        self.pop();
        self.queue.push_front(Response::Nak { psn, syndrome: Syndrome::Nak(code), message_count });
    }

    /// Queues the next waiting part of this READ after one was sent. It goes before responses to later requests: if
    /// they arrived first, the peer would take this part for lost.
    #[cold]
    fn queue_part(&mut self, slot: usize) {
        let Some(index) = self.parts.iter().position(|part| part.slot == slot) else { return };
        let part = self.parts.remove(index);
        if let Some(Resource { kind: ResourceKind::Read { next, end, .. }, queued, .. }) = &mut self.resources[slot] {
            (*next, *end, *queued) = (part.from, part.end, true);
            self.queue.push_front(Response::Resource(slot));
        }
    }

    fn note_resource_sent(&mut self, slot: usize) {
        let Some(resource) = &mut self.resources[slot] else { return };
        resource.queued = false;
        resource.was_sent = true;
        if !self.parts.is_empty() {
            self.queue_part(slot);
        }
    }

    /// Removes the sent response at the front.
    #[inline]
    pub(super) fn pop(&mut self) {
        match self.queue.pop_front() {
            Some(Response::Resource(slot)) => self.note_resource_sent(slot),
            Some(response) if response.is_sequence_nak() => self.owes_sequence_nak = false,
            _ => {}
        }
        if self.queue.is_empty() {
            self.held_until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Rkey;

    fn responses(max_dest_rd_atomic: u8) -> ResponseQueue {
        let mut responses = ResponseQueue::default();
        responses.start(Psn::new(0), max_dest_rd_atomic, 1);
        responses
    }

    /// Begins READs from this PSN on, as many as there is room for. Returns their number.
    fn begin(responses: &mut ResponseQueue, first: u32) -> u32 {
        let mut begun = 0;
        while responses.has_room() && begun < 100 {
            let reth = Reth { va: 0, rkey: Rkey(1), length: 8 };
            let read = ReadRequest { reth, domain: DomainId(1), named: None };
            responses.push_read(Psn::new(first + begun), 1, read, 0);
            begun += 1;
        }
        begun
    }

    fn respond_all(responses: &mut ResponseQueue) {
        while !responses.queue.is_empty() {
            responses.pop();
        }
    }

    #[test]
    fn room_grows_and_never_shrinks() {
        for (before, after, room) in [(16, 2, 16), (1, 16, 16), (2, 8, 8), (0, 4, 4), (4, 0, 4), (0, 0, 0)] {
            let mut fresh = responses(before);
            fresh.make_room(after, 1);
            assert_eq!(begin(&mut fresh, 1), room, "from {before} to {after}, before the first READ");
            assert_eq!(fresh.has_resources(), room > 0);

            let mut used = responses(before);
            let mut next = 1;
            for _ in 0..3 {
                next += begin(&mut used, next);
                respond_all(&mut used);
            }
            used.make_room(after, 1);
            assert_eq!(begin(&mut used, next), room, "from {before} to {after}, after READs");
        }
    }

    #[test]
    fn growing_room_keeps_begun_reads() {
        let mut responses = responses(2);
        begin(&mut responses, 1);
        responses.pop();
        responses.make_room(8, 1);
        assert_eq!(begin(&mut responses, 3), 7, "one of eight waits for its response");
        let found = |psn| responses.find(Psn::new(psn), None).and_then(|slot| responses.resources[slot]);
        assert!((2..10).all(|psn| found(psn).is_some_and(|resource| resource.first == Psn::new(psn))));
    }

    #[test]
    fn parts_of_a_read_leave_before_responses_to_later_requests() {
        let mut responses = responses(2);
        let part = |from: u32, packets: u32| Reth { va: u64::from(from), rkey: Rkey(1), length: packets };
        let read = |from, packets| ReadRequest { reth: part(from, packets), domain: DomainId(1), named: None };
        responses.push_read(Psn::new(1), 9, read(0, 9), 0);
        respond_all(&mut responses);
        for from in [2, 4] {
            let psn = Psn::new(1 + from);
            assert!(responses.repeat_read(Time::ZERO, psn, part(from, 1), None, 1, true));
        }
        responses.push_read(Psn::new(10), 1, read(0, 1), 0);
        let mut left = Vec::new();
        while let Some(Response::Resource(slot)) = responses.front() {
            let resource = responses.resource(slot).unwrap();
            if let ResourceKind::Read { next, .. } = resource.kind {
                left.push(resource.first.plus(next).value());
            }
            responses.pop();
        }
        assert_eq!(left, [3, 5, 10]);
    }

    #[test]
    fn a_first_acknowledgement_waits_behind_any_number_of_empty_responses() {
        let mut responses = responses(1);
        for psn in 1..=10 {
            assert!(responses.takes_empty());
            responses.push_empty(Psn::new(psn), psn);
        }
        responses.note_executed(Psn::new(11));
        responses.acknowledge(11, Time::ZERO, Duration::ZERO);
        assert_eq!(responses.queue.back(), Some(&Response::Acknowledge { psn: Psn::new(11), message_count: 11 }));
    }

    impl super::super::Responder {
        /// Corrupts the record of due responses.
        pub(in crate::transport) fn break_responses(&mut self) {
            self.responses.queue.push_back(Response::Resource(1_000));
        }
    }
}
