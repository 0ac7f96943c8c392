//! A request, as its packets and their responses describe it.

use rdma_verbs::types::Psn;
use rdma_verbs::wire::{Headers, NakCode, Opcode, Service, Syndrome};

use super::sequence::Sequence;
use super::source::Direction;

/// Events of a request that are kept; further ones are counted.
const MOST_EVENTS: usize = 8;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl Kind {
    pub(super) fn of(opcode: Opcode) -> Option<Self> {
        Some(match opcode.of(Service::ReliableConnection) {
            _ if opcode.is_send() => Self::Send,
            Opcode::RC_READ_REQUEST => Self::Read,
            Opcode::RC_COMPARE_SWAP => Self::CompareSwap,
            Opcode::RC_FETCH_ADD => Self::FetchAdd,
            Opcode::RC_ATOMIC_WRITE => Self::AtomicWrite,
            Opcode::RC_FLUSH => Self::Flush,
            _ if opcode.is_write() => Self::Write,
            _ => return None,
        })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::CompareSwap => "COMPARE AND SWAP",
            Self::FetchAdd => "FETCH AND ADD",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Flush => "FLUSH",
        }
    }

    /// Whether an acknowledgement does not end it, because its result comes in a response of its own.
    pub(super) const fn has_result(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }
}

/// Why packets were sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The peer had reported a gap: a sequence NAK, or an acknowledgement with the missing packets.
    Gap,
    /// The peer had no receive.
    ReceiverNotReady,
    /// The sender probes whether the last packet arrived.
    Probe,
    /// A part of the response had not arrived.
    ResponseGap,
    /// Nothing came for this time, in nanoseconds.
    Silence(u64),
}

/// Something that should not happen, or rarely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The request, or packets of it, were sent again.
    Again { first: Psn, count: u32, times: u32, cause: Cause },
    /// So many packets before this one are missing, of a service that sends nothing again.
    Gap { count: u32 },
    /// Packets arrived after later ones: they had been lost, or were overtaken.
    Late { first: Psn, count: u32 },
    /// The peer misses this packet.
    SequenceNak { psn: Psn },
    /// The peer has no receive, and asks to wait for this time.
    ReceiverNotReady { microseconds: u32, times: u32 },
    /// A packet had a comment that it was dropped, or not sent: the comment.
    Dropped { psn: Psn, comment: String },
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// Acknowledged or responded to at this time.
    Done(u64),
    /// Refused at this time.
    Refused(u64, NakCode),
    /// An earlier request of the connection was refused.
    AfterRefusal,
    /// Its response came in parts; later ones were complete.
    ResponseIncomplete,
    /// The capture has no response.
    Unanswered,
    /// The capture has no response, and too many requests wait for theirs.
    Forgotten,
    /// The service has no responses.
    Unreliable,
}

/// One packet of a request, or of its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PacketLine {
    pub(super) time: u64,
    pub(super) psn: Psn,
    pub(super) opcode: Opcode,
    pub(super) bytes: u32,
    pub(super) direction: Direction,
    pub(super) is_again: bool,
    /// The syndrome of an acknowledgement.
    pub(super) syndrome: Option<Syndrome>,
}

/// The packets of a request as one observer saw them: in one direction at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    pub(super) packets: u32,
    pub(super) again: u32,
    pub(super) first: u64,
    pub(super) last: u64,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) first: Psn,
    /// The last packet, once it is known.
    pub(super) end: Option<Psn>,
    /// The capture has its first packet.
    pub(super) has_beginning: bool,
    /// The headers that describe it: those of the first packet, with the immediate data of the last one.
    pub(super) headers: Headers,
    /// Payload of the packets in the capture, without repeated ones.
    pub(super) payload: u64,
    /// Payload of the packets before the last one, and of the last of several.
    pub(super) packet_bytes: Option<u32>,
    pub(super) last_bytes: Option<u32>,
    /// By direction.
    pub(super) seen: [Seen; 3],
    /// Packets that left and did not arrive, if both ends are in the capture.
    pub(super) lost: u32,
    /// Numbers of the response, if it is the data of a READ.
    pub(super) responses: Sequence,
    pub(super) response_packets: u32,
    pub(super) response_bytes: u64,
    /// Value before an atomic.
    pub(super) original: Option<u64>,
    pub(super) events: Vec<Event>,
    pub(super) omitted_events: u32,
    pub(super) ending: Option<Ending>,
    pub(super) lines: Vec<PacketLine>,
    pub(super) omitted_lines: u32,
}

impl Request {
    pub(super) fn new(number: u64, kind: Kind, headers: Headers, has_beginning: bool) -> Self {
        Self {
            number,
            kind,
            first: headers.bth.psn,
            end: None,
            has_beginning,
            headers,
            payload: 0,
            packet_bytes: None,
            last_bytes: None,
            seen: [Seen::default(); 3],
            lost: 0,
            responses: Sequence::at(headers.bth.psn),
            response_packets: 0,
            response_bytes: 0,
            original: None,
            events: Vec::new(),
            omitted_events: 0,
            ending: None,
            lines: Vec::new(),
            omitted_lines: 0,
        }
    }

    /// Takes the headers of the first packet, if it comes after others.
    pub(super) fn adopt(&mut self, headers: &Headers) {
        if !self.has_beginning {
            let Headers { immediate, invalidate, .. } = self.headers;
            self.has_beginning = true;
            self.headers = Headers {
                immediate: immediate.or(headers.immediate),
                invalidate: invalidate.or(headers.invalidate),
                ..*headers
            };
        }
    }

    /// The view of the best observer: the sender's side, an unknown side, the receiver's side.
    pub(super) fn best(&self) -> Seen {
        let order = [Direction::Outbound, Direction::Unknown, Direction::Inbound];
        order
            .map(|direction| self.seen[direction as usize])
            .into_iter()
            .find(|seen| seen.packets > 0)
            .unwrap_or_default()
    }

    /// Packets that it has, or `None` if the capture does not tell.
    pub(super) fn packets(&self) -> Option<u32> {
        let end = self.end.filter(|_| self.has_beginning)?;
        let distance = end.distance_from(self.first);
        u32::try_from(distance).ok().map(|distance| distance + 1)
    }

    /// Its packets from requester to responder that are not in the capture.
    pub(super) fn missing(&self) -> u32 {
        // A READ has numbers for its responses, and one packet.
        let packets = if self.kind == Kind::Read { 1 } else { self.packets().unwrap_or(0) };
        let seen = self.best();
        packets.saturating_sub(seen.packets.saturating_sub(seen.again))
    }

    /// Bytes of data: those that the request names, otherwise those that were seen.
    pub(super) fn bytes(&self) -> u64 {
        match (self.kind, self.headers.reth) {
            (Kind::Write | Kind::Read | Kind::Flush, Some(reth)) if self.has_beginning => reth.length.into(),
            (Kind::CompareSwap | Kind::FetchAdd, _) => 8,
            (Kind::Read, _) => self.response_bytes,
            _ => self.whole_payload().unwrap_or(self.payload),
        }
    }

    /// Bytes of a message of several packets, if the capture has enough of them.
    fn whole_payload(&self) -> Option<u64> {
        let before = u64::from(self.packets()?) - 1;
        Some(before * u64::from(self.packet_bytes?) + u64::from(self.last_bytes?))
    }

    /// Nanoseconds from its first packet to its acknowledgement or response.
    pub(super) fn latency(&self) -> Option<u64> {
        match self.ending {
            Some(Ending::Done(time)) if self.has_beginning => Some(time.saturating_sub(self.best().first)),
            _ => None,
        }
    }

    pub(super) fn is_problem(&self) -> bool {
        let refused = matches!(self.ending, Some(Ending::Refused(..) | Ending::AfterRefusal));
        let lost = matches!(self.ending, Some(Ending::Unreliable)) && self.missing() > 0;
        refused || lost || self.lost > 0 || !self.events.is_empty()
    }

    /// Adds an event; one that continues the last one is joined with it.
    pub(super) fn add(&mut self, event: Event) {
        if self.events.last_mut().is_some_and(|last| last.continues_with(&event)) {
            return;
        }
        if self.events.len() == MOST_EVENTS {
            self.omitted_events += 1;
        } else {
            self.events.push(event);
        }
    }
}

impl Event {
    /// Takes the next event into this one, if it continues it.
    fn continues_with(&mut self, next: &Self) -> bool {
        match (self, next) {
            (Self::Again { first, count, times: 1, .. }, Self::Again { first: next, count: more, cause, .. })
                if first.plus(*count) == *next && *cause != Cause::Probe =>
            {
                *count = count.saturating_add(*more);
                true
            }
            (Self::Again { first, count: 1, times, cause }, Self::Again { first: same, cause: other, .. })
                if first == same && (cause == other || !matches!(other, Cause::Probe)) =>
            {
                *times = times.saturating_add(1);
                true
            }
            (Self::ReceiverNotReady { microseconds, times }, Self::ReceiverNotReady { microseconds: same, .. })
                if microseconds == same =>
            {
                *times = times.saturating_add(1);
                true
            }
            (Self::Late { first, count }, Self::Late { first: next, count: more }) if first.plus(*count) == *next => {
                *count = count.saturating_add(*more);
                true
            }
            (Self::SequenceNak { psn }, Self::SequenceNak { psn: next }) => psn == next,
            _ => false,
        }
    }
}
