//! A flow: the packets from one address to a queue pair of another, and the requests among them.

use std::collections::VecDeque;
use std::net::IpAddr;

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::wire::{Headers, Reth, Service};

use super::request::{Cause, Ending, Event, Kind, PacketLine, Request};
use super::sequence::{Continuation, LARGEST_JUMP, Sequence};
use super::source::Direction;

/// Requests of a flow that wait for their response.
const MOST_WAITING: usize = 8_192;
/// Requests without responses that wait for the packets of another observer.
const MOST_UNRELIABLE: usize = 256;
/// READs that have ended and are remembered.
const MOST_ENDED_READS: usize = 64;
/// Characters of a comment that a request keeps.
const LONGEST_KEPT_COMMENT: usize = 80;
/// A pause in nanoseconds after which packets that are sent again have a cause of their own.
const SHORT_SILENCE: u64 = 1_000_000;

/// Identifies a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FlowKey {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) destination_qpn: Qpn,
    /// Of datagrams; otherwise 0.
    pub(super) source_qpn: Qpn,
    /// The bits of the service in opcodes.
    pub(super) service: u8,
}

/// One packet for a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) time: u64,
    pub(super) direction: Direction,
    pub(super) headers: &'a Headers,
    /// Bytes of payload.
    pub(super) bytes: u32,
    pub(super) comment: Option<&'a str>,
    /// Packet lines that the request may keep.
    pub(super) lines: usize,
}

/// The last report of the peer that explains why packets are sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerReport {
    Gap,
    ReceiverNotReady,
}

/// A flow.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    /// The index of the flow in the other direction.
    pub(super) partner: Option<usize>,
    /// The number of its connection, and whether it is the other direction of it; given when it is first shown.
    pub(super) shown: Option<(u32, bool)>,
    /// Requests without a response, by sequence number.
    pub(super) waiting: VecDeque<Box<Request>>,
    pub(super) sequences: [Sequence; 3],
    /// The last READs that have ended: their requester may ask for a part again.
    ended_reads: VecDeque<(Psn, Reth)>,
    /// By direction: whether packets were seen.
    pub(super) has: [bool; 3],
    numbers: u64,
    pub(super) mtu: Option<u32>,
    /// Requests at the front of `waiting` that acknowledgements have passed.
    pub(super) passed: usize,
    pub(super) report: Option<PeerReport>,
    /// Why the last packet was sent, if it was sent again.
    again: Option<Cause>,
    last_sent: u64,
    /// No further packets come.
    is_over: bool,
    /// Attempts to find the partner that failed.
    pub(super) failed_pairings: u32,
    pub(super) totals: Totals,
}

/// Counts of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    /// Packets again of requests that had been acknowledged.
    pub(super) again_after_end: u64,
    pub(super) congestion_notifications: u64,
    /// Responses without a request.
    pub(super) unmatched_responses: u64,
}

impl Flow {
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            key,
            partner: None,
            shown: None,
            waiting: VecDeque::new(),
            sequences: Default::default(),
            ended_reads: VecDeque::new(),
            has: [false; 3],
            numbers: 0,
            mtu: None,
            passed: 0,
            report: None,
            again: None,
            last_sent: 0,
            is_over: false,
            failed_pairings: 0,
            totals: Totals::default(),
        }
    }

    pub(super) fn service(&self) -> Service {
        [Service::ReliableConnection, Service::UnreliableConnection, Service::ExtendedReliableConnection]
            .into_iter()
            .find(|service| *service as u8 == self.key.service)
            .unwrap_or(Service::UnreliableDatagram)
    }

    fn is_reliable(&self) -> bool {
        matches!(self.service(), Service::ReliableConnection | Service::ExtendedReliableConnection)
    }

    /// The direction whose packets describe what the sender did.
    fn best_direction(&self) -> Direction {
        let order = [Direction::Outbound, Direction::Unknown];
        order.into_iter().find(|direction| self.has[*direction as usize]).unwrap_or(Direction::Inbound)
    }

    pub(super) fn learn_mtu(&mut self, bytes: u32) {
        if bytes.is_power_of_two() && (256..=4_096).contains(&bytes) {
            self.mtu = Some(bytes);
        }
    }

    /// Numbers that a packet stands for, and whether that is a guess.
    fn span(&self, headers: &Headers) -> (u32, bool) {
        match (Kind::of(headers.bth.opcode), headers.reth, self.mtu) {
            (Some(Kind::Read), Some(reth), Some(mtu)) => (reth.length.div_ceil(mtu).clamp(1, 1 << 23), false),
            (Some(Kind::Read), Some(reth), None) => (1, reth.length > 256),
            _ => (1, false),
        }
    }

    /// Takes a packet of a request. Requests that end by it, or by a restart, are added to `ended`.
    pub(super) fn request(&mut self, arrival: &Arrival<'_>, ended: &mut Vec<Request>) {
        let Headers { bth, .. } = arrival.headers;
        let Some(kind) = Kind::of(bth.opcode) else { return };
        self.has[arrival.direction as usize] = true;
        if bth.opcode.is_first() || bth.opcode.is_middle() {
            self.learn_mtu(arrival.bytes);
        }
        let (span, is_open) = self.span(arrival.headers);
        let mut continuation = self.sequences[arrival.direction as usize].take(bth.psn, span, is_open);
        if continuation == Continuation::Restart {
            self.restart(ended);
            continuation = self.sequences[arrival.direction as usize].take(bth.psn, span, is_open);
        }
        if continuation == Continuation::Open {
            // It belongs to the READ, or is a request that was lost after it.
            let is_part = self.find(bth.psn).is_some_and(|index| is_part_of(&self.waiting[index], arrival.headers));
            continuation = if is_part { Continuation::Again } else { Continuation::Late };
        }
        if let Some(index) = self.find_or_insert(kind, arrival, continuation) {
            self.split(index, arrival.headers);
            self.add(index, arrival, continuation, (span, is_open));
        }
        self.end_unreliable(ended);
        if self.waiting.len() > MOST_WAITING {
            self.forget(ended);
        }
    }

    /// Ends the oldest request, because too many wait.
    pub(super) fn forget(&mut self, ended: &mut Vec<Request>) {
        self.pop(Ending::Forgotten, ended);
    }

    /// Ends everything: the queue pair has another connection.
    pub(super) fn restart(&mut self, ended: &mut Vec<Request>) {
        self.finish(ended);
        self.is_over = false;
        self.sequences = Default::default();
        self.ended_reads.clear();
        self.report = None;
    }

    /// Ends the requests that still wait.
    pub(super) fn finish(&mut self, ended: &mut Vec<Request>) {
        self.is_over = true;
        let ending = if self.is_reliable() { Ending::Unanswered } else { Ending::Unreliable };
        while let Some(request) = self.waiting.front() {
            let has_response = request.response_packets > 0;
            self.pop(if has_response { Ending::ResponseIncomplete } else { ending }, ended);
        }
    }

    pub(super) fn pop(&mut self, ending: Ending, ended: &mut Vec<Request>) {
        if let Some(mut request) = self.waiting.pop_front() {
            request.ending.get_or_insert(ending);
            let lost = self.lost(&request);
            // Of a reliable service, packets that were sent again may still be on the way.
            request.lost = if self.is_reliable() { request.lost.min(lost) } else { lost };
            self.passed = self.passed.saturating_sub(1);
            if let Some(reth) = request.headers.reth.filter(|_| request.kind == Kind::Read) {
                if self.ended_reads.len() == MOST_ENDED_READS {
                    self.ended_reads.pop_front();
                }
                self.ended_reads.push_back((request.first, reth));
            }
            ended.push(*request);
        }
    }

    /// Whether the other end is in the capture, too, and has not seen this number yet.
    fn has_not_arrived(&self, psn: Psn) -> bool {
        let arrived = &self.sequences[Direction::Inbound as usize];
        arrived.next.is_some() && !arrived.has(psn)
    }

    /// Packets that left and have not arrived, if both ends are in the capture.
    fn lost(&self, request: &Request) -> u32 {
        let [sent, arrived] = [Direction::Outbound, Direction::Inbound].map(|direction| direction as usize);
        // The other end may have another clock, and its packets come later.
        let has_passed = self.sequences[arrived].next.is_some_and(|next| next.distance_from(request.first) > 0);
        let has_both = self.has[sent] && self.has[arrived] && (has_passed || self.is_over) && request.end.is_some();
        if has_both { request.seen[sent].packets.saturating_sub(request.seen[arrived].packets) } else { 0 }
    }

    /// The index of the last request that begins at this number or before it.
    fn position(&self, psn: Psn) -> Option<usize> {
        self.waiting.partition_point(|request| !psn.is_before(request.first)).checked_sub(1)
    }

    /// The request that contains this number.
    pub(super) fn find(&self, psn: Psn) -> Option<usize> {
        let index = self.position(psn)?;
        let request = &self.waiting[index];
        let is_within = match (request.end, self.waiting.get(index + 1)) {
            (Some(end), _) => !end.is_before(psn),
            (None, Some(_)) => true,
            (None, None) => psn.distance_from(request.first) <= LARGEST_JUMP,
        };
        is_within.then_some(index)
    }

    /// Returns the request of a packet. `None` if it has ended before.
    fn find_or_insert(&mut self, kind: Kind, arrival: &Arrival<'_>, continuation: Continuation) -> Option<usize> {
        let headers = arrival.headers;
        let psn = headers.bth.psn;
        let begins = headers.bth.opcode.is_first() || headers.bth.opcode.is_only();
        let is_best = arrival.direction == self.best_direction();
        if self.service() == Service::UnreliableDatagram && is_best {
            // Nothing is sent again, and some senders do not count.
            return Some(self.insert(self.waiting.len(), kind, headers, begins));
        }
        let mut rest = (None, None);
        if let Some(index) = self.find(psn) {
            let request = &mut self.waiting[index];
            let is_part = if begins {
                request.first == psn || is_part_of(request, headers)
            } else {
                request.kind == kind && request.end.is_none_or(|end| !end.is_before(psn))
            };
            if is_part {
                if begins && request.first == psn {
                    request.adopt(headers);
                }
                return Some(index);
            }
            if request.end.is_none() || (begins && request.kind != Kind::Read) {
                // Another request begins: the end of this one is not in the capture yet, or it is a READ.
                rest = (request.end.replace(psn.minus(1)), request.last_bytes.take());
            }
        }
        if self.is_known_elsewhere(psn, arrival.direction) {
            return None;
        }
        if continuation == Continuation::Again {
            self.totals.again_after_end += u64::from(is_best);
            return None;
        }
        if continuation == Continuation::Late && self.ended_reads.iter().any(|read| is_part_of_read(*read, headers)) {
            self.totals.again_after_end += u64::from(is_best);
            return None;
        }
        let index = self.position(psn).map_or(0, |index| index + 1);
        if self.extend(index, kind, headers) {
            return Some(index);
        }
        self.insert(index, kind, headers, begins);
        if let (Some(end), last_bytes) = rest
            && !end.is_before(psn)
        {
            (self.waiting[index].end, self.waiting[index].last_bytes) = (Some(end), last_bytes);
        }
        Some(index)
    }

    /// Adds a packet to the front of a request whose beginning was missing. Returns whether there is such a request.
    fn extend(&mut self, index: usize, kind: Kind, headers: &Headers) -> bool {
        let bth = headers.bth;
        let Some(request) = self.waiting.get_mut(index) else { return false };
        if request.has_beginning || request.kind != kind || !(bth.opcode.is_first() || bth.opcode.is_middle()) {
            return false;
        }
        request.first = bth.psn;
        if bth.opcode.is_first() {
            request.adopt(headers);
        }
        self.passed = self.passed.min(index);
        true
    }

    /// Divides a request whose last packet comes after others that were taken for it: those belong to the next one.
    fn split(&mut self, index: usize, headers: &Headers) {
        let (psn, request) = (headers.bth.psn, &mut self.waiting[index]);
        let Some(end) = request.end.filter(|end| headers.bth.opcode.is_last() && psn.is_before(*end)) else { return };
        request.end = Some(psn);
        let (kind, last_bytes) = (request.kind, request.last_bytes.take());
        let Headers { immediate, invalidate, .. } = request.headers;
        (request.headers.immediate, request.headers.invalidate) = (None, None);
        let mut next = Headers { immediate, invalidate, ..*headers };
        next.bth.psn = psn.plus(1);
        let next = self.insert(index + 1, kind, &next, false);
        (self.waiting[next].end, self.waiting[next].last_bytes) = (Some(end), last_bytes);
    }

    fn insert(&mut self, index: usize, kind: Kind, headers: &Headers, begins: bool) -> usize {
        self.numbers += 1;
        self.waiting.insert(index, Box::new(Request::new(self.numbers, kind, *headers, begins)));
        self.passed = self.passed.min(index);
        index
    }

    /// Whether another observer has seen this number before, so its request has ended.
    fn is_known_elsewhere(&self, psn: Psn, direction: Direction) -> bool {
        let others = self.sequences.iter().enumerate().filter(|(index, _)| *index != direction as usize);
        others.filter_map(|(_, sequence)| sequence.next).any(|next| psn.is_before(next))
    }

    fn add(&mut self, index: usize, arrival: &Arrival<'_>, continuation: Continuation, (span, is_open): (u32, bool)) {
        let (bth, is_best) = (arrival.headers.bth, arrival.direction == self.best_direction());
        let is_again = continuation == Continuation::Again;
        let cause = self.cause(arrival, &self.waiting[index]);
        let was_lost = is_again && arrival.direction == Direction::Outbound && self.has_not_arrived(bth.psn);
        let request = &mut self.waiting[index];
        request.lost += u32::from(was_lost);
        let seen = &mut request.seen[arrival.direction as usize];
        if seen.packets == 0 {
            seen.first = arrival.time;
        }
        seen.packets += 1;
        seen.again += u32::from(is_again);
        if !is_again {
            seen.last = arrival.time;
        }
        if is_best && !is_again {
            request.payload += u64::from(arrival.bytes);
        }
        if bth.opcode.is_last() {
            request.last_bytes = Some(arrival.bytes);
        } else if !bth.opcode.is_only() {
            request.packet_bytes = Some(arrival.bytes);
        }
        if let (Some(reth), Kind::Write, true) = (arrival.headers.reth, request.kind, bth.opcode.is_first()) {
            let packets = reth.length.div_ceil(arrival.bytes.max(1)).clamp(1, LARGEST_JUMP as u32);
            request.end.get_or_insert(bth.psn.plus(packets - 1));
        }
        let is_end = bth.opcode.is_last() || (bth.opcode.is_only() && !is_open);
        if is_end && request.end.is_none() {
            request.end = Some(bth.psn.plus(span - 1));
        }
        if arrival.headers.immediate.is_some() || arrival.headers.invalidate.is_some() {
            request.headers.immediate = arrival.headers.immediate;
            request.headers.invalidate = arrival.headers.invalidate;
        }
        if let Continuation::After(count) = continuation
            && is_best
            && self.key.service == Service::UnreliableConnection as u8
        {
            request.add(Event::Gap { count });
        }
        if is_best && is_again {
            request.add(Event::Again { first: bth.psn, count: 1, times: 1, cause });
        } else if is_best && continuation == Continuation::Late {
            request.add(Event::Late { first: bth.psn, count: 1 });
        }
        if let Some(comment) = arrival.comment.filter(|comment| tells_of_loss(comment)) {
            request.add(Event::Dropped { psn: bth.psn, comment: short(comment) });
        }
        keep_line(request, arrival, is_again);
        if is_best {
            self.last_sent = arrival.time;
            self.again = is_again.then_some(cause);
        }
    }

    /// Why a packet is sent again, if it is.
    fn cause(&self, arrival: &Arrival<'_>, request: &Request) -> Cause {
        let says_probe = arrival.comment.is_some_and(|comment| comment.starts_with("probe"));
        let silence = arrival.time.saturating_sub(self.last_sent);
        match self.report {
            _ if says_probe => Cause::Probe,
            Some(PeerReport::Gap) => Cause::Gap,
            Some(PeerReport::ReceiverNotReady) => Cause::ReceiverNotReady,
            None if request.response_packets > 0 => Cause::ResponseGap,
            None => self.again.filter(|_| silence < SHORT_SILENCE).unwrap_or(Cause::Silence(silence)),
        }
    }

    /// Ends requests of services without responses: those with their last packet, and those before them.
    fn end_unreliable(&mut self, ended: &mut Vec<Request>) {
        if self.is_reliable() {
            return;
        }
        while self.waiting.len() > MOST_UNRELIABLE
            || self.waiting.front().is_some_and(|request| self.is_passed(request))
        {
            self.pop(Ending::Unreliable, ended);
        }
    }

    /// Whether all observers have seen later packets.
    fn is_passed(&self, request: &Request) -> bool {
        let mut observers = self.sequences.iter().filter_map(|sequence| sequence.next);
        request.end.is_some_and(|end| observers.all(|next| end.is_before(next)))
    }
}

fn is_part_of(request: &Request, headers: &Headers) -> bool {
    let reth = request.headers.reth.filter(|_| request.kind == Kind::Read);
    reth.is_some_and(|reth| is_part_of_read((request.first, reth), headers))
}

/// Whether a READ asks again for a part of this one: the addresses and the numbers tell the same path MTU.
fn is_part_of_read((first, reth): (Psn, Reth), headers: &Headers) -> bool {
    let Some(part) = headers.reth.filter(|_| Kind::of(headers.bth.opcode) == Some(Kind::Read)) else { return false };
    let end = |reth: Reth| u128::from(reth.va) + u128::from(reth.length);
    let distance = headers.bth.psn.distance_from(first);
    if part.rkey != reth.rkey || part.va < reth.va || end(part) > end(reth) || distance < 0 {
        return false;
    }
    let (offset, packets) = (part.va - reth.va, distance as u64);
    if packets == 0 {
        return offset == 0;
    }
    let mtu = offset / packets;
    offset.is_multiple_of(packets) && mtu.is_power_of_two() && (256..=4_096).contains(&mtu)
}

/// The beginning of a comment: requests that wait keep it.
pub(super) fn short(comment: &str) -> String {
    comment.chars().take(LONGEST_KEPT_COMMENT).collect()
}

pub(super) fn tells_of_loss(comment: &str) -> bool {
    ["dropped: ", "refused by the system", "the interface's queue dropped"].iter().any(|text| comment.contains(text))
}

pub(super) fn keep_line(request: &mut Request, arrival: &Arrival<'_>, is_again: bool) {
    if arrival.lines == 0 {
        return;
    }
    if request.lines.len() >= arrival.lines {
        request.omitted_lines += 1;
        return;
    }
    let bth = arrival.headers.bth;
    request.lines.push(PacketLine {
        time: arrival.time,
        psn: bth.psn,
        opcode: bth.opcode,
        bytes: arrival.bytes,
        direction: arrival.direction,
        is_again,
        syndrome: arrival.headers.aeth.map(|aeth| aeth.syndrome),
    });
}
