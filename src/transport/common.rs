//! The part of a queue pair that both halves use: identity, attributes, path, counters, and the sinks of completions
//! and events.

use std::net::IpAddr;
use std::sync::Arc;

use super::history::History;
use super::marks::{ArrivedMarks, Marking};
use super::path::{Acquaintance, Path, PathKey};
use crate::memory::MemoryView;
use crate::queue::{AsyncEventQueue, CompletionQueue, Journal, Overflow, SourceToken};
use crate::types::{
    AsyncEvent, CompletionQueueNumber, Counter, Counters, DomainId, Mtu, Qpn, QueuePairAttributes, QueuePairState,
    QueuePairType, RawCompletion, Time,
};
use crate::wire::{Opcode, Service};

/// Number of later packets after which a missing one counts as lost, and not just late (RFC 9002, section 6.1.1).
pub(super) const LOSS_EVIDENCE: u32 = 3;

/// The context of one call into the endpoint: the time, and the registered memory as it is now.
pub(super) struct Pass<'a> {
    pub(super) now: Time,
    pub(super) memory: &'a MemoryView<'a>,
    pub(super) ack_hold: std::time::Duration,
    /// Whether requests may access the memory of their peers directly.
    pub(super) accesses_directly: bool,
}

/// A completion queue, and the queue pair's token for it.
pub(super) type CompletionSink = (Arc<CompletionQueue>, SourceToken);

/// The state that requester and responder share.
pub(super) struct Common {
    pub(super) qpn: Qpn,
    pub(super) service: QueuePairType,
    pub(super) domain: DomainId,
    pub(super) state: QueuePairState,
    pub(super) attributes: QueuePairAttributes,
    pub(super) path: Option<Path>,
    /// Whether the path has a controller. Cached: it is read several times for each packet.
    is_controlled: bool,
    pub(super) counters: Counters,
    pub(super) history: History,
    pub(super) arrived_marks: ArrivedMarks,
    events: Arc<AsyncEventQueue>,
    journal: Arc<Journal>,
    /// Whether a completion was lost and [`Common::take_overflow`] has not reported it yet.
    overflowed: bool,
}

impl Common {
    pub(super) fn new(
        qpn: Qpn,
        service: QueuePairType,
        domain: DomainId,
        events: Arc<AsyncEventQueue>,
        journal: Arc<Journal>,
    ) -> Self {
        Self {
            qpn,
            service,
            domain,
            state: QueuePairState::Reset,
            attributes: QueuePairAttributes::default(),
            path: None,
            is_controlled: false,
            counters: Counters::default(),
            history: History::default(),
            arrived_marks: ArrivedMarks::default(),
            events,
            journal,
            overflowed: false,
        }
    }

    pub(super) fn reset(&mut self) {
        (self.path, self.is_controlled) = (None, false);
        self.attributes = QueuePairAttributes::default();
        self.history = History::default();
        self.arrived_marks = ArrivedMarks::default();
        self.state = QueuePairState::Reset;
        self.overflowed = false;
    }

    /// Returns the service in its packets' opcodes.
    pub(super) fn wire_service(&self) -> Service {
        match self.service {
            QueuePairType::UnreliableConnection => Service::UnreliableConnection,
            QueuePairType::UnreliableDatagram => Service::UnreliableDatagram,
            QueuePairType::XrcSend | QueuePairType::XrcReceive => Service::ExtendedReliableConnection,
            _ => Service::ReliableConnection,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.service == QueuePairType::UnreliableDatagram
    }

    /// Whether it is an end of an extended reliable connection.
    #[inline]
    pub(super) fn is_extended(&self) -> bool {
        matches!(self.service, QueuePairType::XrcSend | QueuePairType::XrcReceive)
    }

    /// Whether packets with this opcode are valid for queue pairs of this service (`rxe_recv.c`, `check_type_state`):
    /// an XRC initiator takes only responses, a target only requests (IBTA A14).
    #[inline]
    pub(super) fn accepts_opcode(&self, opcode: Opcode) -> bool {
        let is_wrong_direction = match self.service {
            QueuePairType::XrcSend => opcode.is_request(),
            QueuePairType::XrcReceive => opcode.is_response(),
            _ => false,
        };
        opcode.service() == Some(self.wire_service()) && !is_wrong_direction
    }

    #[inline]
    pub(super) fn mtu_bytes(&self) -> u32 {
        self.path.as_ref().map_or(Mtu::default().bytes(), |path| path.mtu.bytes())
    }

    /// Returns the address of the peer, once it is known.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        self.path.as_ref().map(|path| path.peer_address)
    }

    /// Whether queues may mark its packets.
    #[inline]
    pub(super) fn is_markable(&self) -> bool {
        self.controlled_path().is_some_and(|path| path.traffic_class.get().marking() != Marking::Off)
    }

    /// Returns the key that identifies the queue pairs that share its window.
    pub(super) fn path_key(&self) -> Option<PathKey> {
        self.path.as_ref().map(Path::key)
    }

    /// Updates whether the path has a controller.
    pub(super) fn note_control(&mut self) {
        self.is_controlled = self.path.as_ref().is_some_and(|path| path.window_share.is_controlled());
    }

    /// Whether the path has a controller.
    #[inline]
    pub(super) fn is_controlled(&self) -> bool {
        self.is_controlled
    }

    /// Returns the path if it has a controller.
    #[inline]
    pub(super) fn controlled_path(&self) -> Option<&Path> {
        if self.is_controlled { self.path.as_ref() } else { None }
    }

    /// Returns the number of the peer's queue pair.
    pub(super) fn destination(&self) -> Qpn {
        self.path.as_ref().map_or(Qpn::default(), |path| path.destination)
    }

    pub(super) fn is_peer_native(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.peer.is_native())
    }

    /// Returns how many READs the responder records, as a multiple of the outstanding ones.
    pub(super) fn read_record_factor(&self) -> usize {
        self.path.as_ref().map_or(1, Path::read_record_factor)
    }

    /// Whether NAKs to the peer list all gaps.
    pub(super) fn sends_gap_runs(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.accepts_gap_runs() && path.acquaintance == Acquaintance::Mutual)
    }

    /// Whether the peer supports NAKs that list all gaps.
    pub(super) fn accepts_gap_runs(&self) -> bool {
        self.path.as_ref().is_some_and(Path::accepts_gap_runs)
    }

    /// Whether both addresses are those of the connection (IBTA 9.6.1.2.3; `rxe_recv.c`, `check_addr`).
    pub(super) fn is_from_peer(&self, source: IpAddr, destination: IpAddr) -> bool {
        self.path.as_ref().is_some_and(|path| path.peer_address == source && path.source.address == destination)
    }

    /// Whether requests of the peer are executed in this state (`rxe_recv.c`, `check_type_state`; rxe accepts those in
    /// ERR here and drops them later).
    pub(super) fn takes_requests(&self) -> bool {
        use QueuePairState::{ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError};
        matches!(self.state, ReadyToReceive | ReadyToSend | SendQueueDrained | SendQueueError)
    }

    /// Whether responses of the peer are expected in this state (`rxe_recv.c`, `check_type_state`; rxe also accepts
    /// those in SQE and ERR).
    pub(super) fn takes_responses(&self) -> bool {
        matches!(self.state, QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained)
    }

    pub(super) fn count(&mut self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Returns the journal, for events that concern this queue pair.
    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn announce(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    /// Handles the response to a FLUSH in this retry round. If it was for an earlier round, the next FLUSH needs one
    /// more round.
    pub(super) fn note_flush_taken(&mut self, round: u32) {
        if let Some(path) = &mut self.path {
            path.flush_as_linux = path.flushes_as_linux(round);
        }
    }

    /// Adds a completion to a queue. If the queue is full, `QueuePair::follow_up` moves the queue pair to the error
    /// state (IBTA, completion queue errors).
    #[inline]
    pub(super) fn complete(&mut self, (queue, token): &CompletionSink, completion: RawCompletion, solicited: bool) {
        if let Err(overflow) = queue.push(*token, completion, solicited) {
            self.note_overflow(queue.id(), overflow);
        }
    }

    #[cold]
    fn note_overflow(&mut self, queue: u32, overflow: Overflow) {
        self.count(Counter::CompletionQueueOverflow);
        if overflow.is_first {
            self.announce(AsyncEvent::CompletionQueueError(CompletionQueueNumber::new(queue)));
        }
        self.overflowed |= overflow.is_first || self.state != QueuePairState::Error;
    }

    /// Whether a completion was lost since [`Common::take_overflow`].
    #[inline]
    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    #[inline]
    pub(super) fn take_overflow(&mut self) -> bool {
        std::mem::take(&mut self.overflowed)
    }
}
