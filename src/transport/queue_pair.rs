//! A queue pair as the endpoint holds it: its state, its path, its two halves, and the way into the error state.

use std::net::IpAddr;
use std::sync::Arc;

use super::acceptance::HiddenFields;
use super::datagram::{Datagram, SourceAddress};
use super::fair_queue::{FairShare, WindowShare};
use super::history::History;
use super::loop_bound::LoopBound;
use super::packet_check::PacketCheck;
use super::receive_source::{ReceiveSource, Receives};
use super::reorder::ReorderBudget;
use super::requester::Requester;
use super::responder::Responder;
use super::violation::Violation;
use crate::mutation::{Mutation, planted};
use crate::queue::{AsyncEventQueue, CompletionQueue, SendConsumer, SourceToken};
use crate::types::{
    Accessor, AsyncEvent, Cause, CompletionOpcode, CompletionStatus, Counter, Counters, DomainId, Gid, Mtu, Operation,
    PeerCapabilities, Qpn, QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairStatus, QueuePairType,
    RawCompletion, Time,
};
use crate::wire::icrc::Seed;
use crate::wire::{Flow, Headers, Service};

/// What a new queue pair is made of.
pub struct QueuePairInit {
    /// Transport service.
    pub service: QueuePairType,
    /// Protection domain of its memory.
    pub domain: DomainId,
    /// Consuming end of the send queue.
    pub send: SendConsumer,
    /// Where its receives come from.
    pub receive: ReceiveSource,
    /// Where sends complete.
    pub send_completions: (Arc<CompletionQueue>, SourceToken),
    /// Where receives complete.
    pub receive_completions: (Arc<CompletionQueue>, SourceToken),
    /// Every send makes a completion.
    pub signal_all: bool,
    /// Actual sizes of the queues.
    pub cap: QueuePairCapabilities,
    /// Where events go.
    pub events: Arc<AsyncEventQueue>,
}

/// The connection's path.
pub(super) struct Path {
    pub(super) source: SourceAddress,
    pub(super) peer_address: IpAddr,
    pub(super) destination: Qpn,
    pub(super) mtu: Mtu,
    pub(super) peer: PeerCapabilities,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// The peer's UDP port; learned from the first accepted packet of a peer of our own.
    pub(super) peer_port: Option<u16>,
    /// What the ICRCs of outgoing packets begin with.
    pub(super) seed: Seed,
    /// The same of packets that come from this port, the last one.
    pub(super) peer_seed: Option<(u16, Seed)>,
    /// How a standard peer fills the IPv4 fields that its ICRC covers and a socket does not show.
    pub(super) hidden_fields: HiddenFields,
    /// Whether a stranger took FLUSH last with the ICRC that Linux gives to it, or sent one like that.
    pub(super) flush_as_linux: bool,
    /// Packets that may be in flight to the peer, for all queue pairs together: what its receive socket holds. Small
    /// packets are not more, although there would be room: who waits sends fuller (8-byte WRITEs in batches of 16 go
    /// from 2.5 to 6.5 million a second).
    pub(super) window_packets: u32,
    /// With the other queue pairs that have this peer's address.
    pub(super) window_share: Arc<WindowShare>,
}

impl Path {
    /// The addresses of outgoing packets.
    pub(super) fn flow(&self) -> Flow {
        Flow { source: self.source.address, destination: self.peer_address, source_port: self.source.source_port }
    }

    /// The start of the ICRCs of packets from this port of the peer.
    #[inline]
    pub(super) fn arriving_seed(&mut self, datagram: &Datagram<'_>) -> Seed {
        match self.peer_seed {
            Some((port, seed)) if port == datagram.source_port => seed,
            _ => self.renew_peer_seed(datagram),
        }
    }

    #[cold]
    fn renew_peer_seed(&mut self, datagram: &Datagram<'_>) -> Seed {
        let seed = Seed::new(&datagram.flow());
        self.peer_seed = Some((datagram.source_port, seed));
        seed
    }

    /// Whether other queue pairs have the same peer address. The endpoint's table holds one of the references.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.window_share) > 2
    }

    /// How far ahead of the expected packet another one of the peer may be: as many as it has in flight at most. The
    /// peer knows how much this end's socket holds, and this end does not know what it was told; but no peer of our own
    /// goes beyond `OWN_WINDOW_BYTES`.
    pub(super) fn reorder_window(&self) -> u32 {
        if self.peer.is_ours() { (OWN_WINDOW_BYTES / self.mtu.bytes()).max(16) } else { STRANGER_REORDER_PACKETS }
    }

    /// The path MTU or what is known of the peer has changed.
    pub(super) fn note_peer(&mut self) {
        let mtu = self.mtu.bytes();
        self.window_packets = if self.peer.is_ours() && self.peer.receive_buffer_bytes > 0 {
            // Half of the buffer stays free for others.
            let held = self.peer.receive_buffer_bytes / 2 / (mtu + PACKET_CHARGE_BYTES);
            held.clamp(16, (OWN_WINDOW_BYTES / mtu).max(16))
        } else {
            // A default receive buffer holds 25 packets of 4 KiB, 92 of 1 KiB.
            (STRANGER_WINDOW_BYTES / mtu).clamp(16, 64)
        };
    }
}

const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Packets of a standard peer that are kept. Linux has up to 128 in flight, and sends all of them again after a loss.
const STRANGER_REORDER_PACKETS: u32 = 64;
/// What the kernel charges a packet besides its payload.
const PACKET_CHARGE_BYTES: u32 = 832;
/// More than this in flight leaves the cache and gains nothing.
const OWN_WINDOW_BYTES: u32 = 1 << 20;

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) qpn: Qpn,
    pub(super) service: QueuePairType,
    pub(super) domain: DomainId,
    pub(super) state: QueuePairState,
    pub(super) attributes: QueuePairAttributes,
    pub(super) cap: QueuePairCapabilities,
    pub(super) signal_all: bool,
    pub(super) send: SendConsumer,
    pub(super) receive: Receives,
    pub(super) send_completions: (Arc<CompletionQueue>, SourceToken),
    pub(super) receive_completions: (Arc<CompletionQueue>, SourceToken),
    pub(super) events: Arc<AsyncEventQueue>,
    pub(super) path: Option<Path>,
    pub(super) packet_check: PacketCheck,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) counters: Counters,
    pub(super) history: History,
    /// Whether the endpoint's list of queue pairs with something to send has it.
    pub(super) listed: bool,
    /// Whether the endpoint's list of held acknowledgements has it.
    pub(super) held: bool,
    /// Alternates between responses and requests when both wait.
    pub(super) responses_first: bool,
    pub(super) fair_share: FairShare,
}

impl QueuePair {
    pub(super) fn new(qpn: Qpn, init: QueuePairInit, reorder_budget: Arc<ReorderBudget>) -> Self {
        let requester = Requester::new(init.cap.max_send_wr);
        let receive = Receives::new(init.receive);
        let responder = Responder::new(reorder_budget, receive.max_sge(init.cap.max_recv_sge));
        Self {
            qpn,
            service: init.service,
            domain: init.domain,
            state: QueuePairState::Reset,
            attributes: QueuePairAttributes::default(),
            cap: init.cap,
            signal_all: init.signal_all,
            send: init.send,
            receive,
            send_completions: init.send_completions,
            receive_completions: init.receive_completions,
            events: init.events,
            path: None,
            packet_check: PacketCheck::default(),
            requester,
            responder,
            counters: Counters::default(),
            history: History::default(),
            listed: false,
            held: false,
            responses_first: false,
            fair_share: FairShare::default(),
        }
    }

    /// Who it is towards registered memory.
    pub(super) fn accessor(&self) -> Accessor {
        Accessor { domain: self.remote_domain(), queue_pair: self.qpn }
    }

    /// The service that its packets' operation codes name.
    pub(super) fn wire_service(&self) -> Service {
        match self.service {
            QueuePairType::UnreliableConnection => Service::UnreliableConnection,
            QueuePairType::UnreliableDatagram => Service::UnreliableDatagram,
            QueuePairType::XrcSend | QueuePairType::XrcReceive => Service::ExtendedReliableConnection,
            _ => Service::ReliableConnection,
        }
    }

    pub(super) fn count(&mut self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    pub(super) fn mtu_bytes(&self) -> u32 {
        self.path.as_ref().map_or(Mtu::default().bytes(), |path| path.mtu.bytes())
    }

    /// The address of the peer, once it is known.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        self.path.as_ref().map(|path| path.peer_address)
    }

    pub(super) fn is_peer_ours(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.peer.is_ours())
    }

    /// Whether packets of this peer belong to the connection.
    pub(super) fn is_from_peer(&self, source: IpAddr, destination: IpAddr) -> bool {
        let anybody = planted(Mutation::SourceAddressUnchecked);
        let is_peer = |path: &Path| path.peer_address == source || anybody;
        self.path.as_ref().is_some_and(|path| is_peer(path) && path.source.address == destination)
    }

    pub(super) fn status(&self) -> QueuePairStatus {
        QueuePairStatus {
            qp_type: if planted(Mutation::TypeNotTold) { QueuePairType::ReliableConnection } else { self.service },
            sq_sig_all: self.signal_all,
            qp_state: self.state,
            sq_draining: self.state == QueuePairState::SendQueueDrained && !self.requester.is_idle(),
            attributes: QueuePairAttributes { qp_state: Some(self.state), peer_key: None, ..self.attributes },
            cap: self.cap,
        }
    }

    /// Whether requests of the peer are executed in this state.
    pub(super) fn takes_requests(&self) -> bool {
        use QueuePairState::{ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError};
        matches!(self.state, ReadyToReceive | ReadyToSend | SendQueueDrained | SendQueueError)
    }

    /// Whether responses of the peer are expected in this state.
    pub(super) fn takes_responses(&self) -> bool {
        matches!(self.state, QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained)
    }

    /// Changes how many packets this queue pair has in flight.
    #[inline]
    pub(super) fn note_in_flight(&mut self) {
        let now = self.requester.packets_counted();
        let before = std::mem::replace(&mut self.requester.counted_in_flight, now);
        if now != before
            && let Some(path) = &self.path
        {
            path.window_share.change_in_flight(before, now);
        }
    }

    /// Back to RESET: everything posted is forgotten without a completion, completions not yet polled are removed.
    pub(super) fn reset(&mut self) {
        self.requester.forget_all();
        if !planted(Mutation::InFlightLeaked) {
            self.note_in_flight();
        }
        let start = self.send.reset();
        if !planted(Mutation::ResetKeepsReceives) {
            self.receive.reset();
        }
        self.receive.set_flushes(false);
        if !planted(Mutation::ResetKeepsCompletions) {
            self.send_completions.0.purge(self.send_completions.1);
            self.receive_completions.0.purge(self.receive_completions.1);
        }
        self.requester.reset(start);
        self.responder.reset();
        self.path = None;
        self.packet_check = PacketCheck::default();
        self.fair_share = FairShare::default();
        self.attributes = QueuePairAttributes::default();
        self.history = History::default();
        self.state = QueuePairState::Reset;
    }

    /// Forgets what was posted and not begun.
    pub(super) fn forget_posted(&mut self) {
        let start = self.send.reset();
        if !planted(Mutation::ResetKeepsReceives) {
            self.receive.reset();
        }
        self.requester.reset(start);
    }

    /// To the error state, on the application's word or after a failure: flushes all that is outstanding, in order.
    pub(super) fn enter_error(&mut self, cause: Cause) {
        if self.state == QueuePairState::Reset {
            return;
        }
        let was_error = self.state == QueuePairState::Error;
        self.state = QueuePairState::Error;
        self.requester.stop();
        self.responder.stop();
        self.note_in_flight();
        self.receive.set_flushes(true);
        self.flush(cause);
        if !was_error {
            self.announce_last_receive();
        }
    }

    /// Completes everything posted as flushed.
    pub(super) fn flush(&mut self, cause: Cause) {
        let begun = self.responder.take_receive();
        if let Some(receive) = begun.filter(|_| !planted(Mutation::HalfFilledNotFlushed)) {
            self.complete_receive(RawCompletion {
                wr_id: receive.wr_id,
                retired: receive.index.wrapping_add(1),
                status: CompletionStatus::WorkRequestFlushedError,
                cause,
                ..RawCompletion::default()
            });
        }
        self.flush_sends(cause);
        if planted(Mutation::FlushSkipsReceives) {
            return;
        }
        // Those that are there now: what other threads post meanwhile has a doorbell of its own.
        for _ in 0..self.receive.available_own() {
            let mut entries = std::mem::take(&mut self.responder.receive_entries);
            let taken = self.receive.take_own(&mut entries);
            self.responder.receive_entries = entries;
            let Some((wr_id, index)) = taken else { break };
            self.count(Counter::Flushed);
            self.complete_receive(RawCompletion {
                wr_id,
                retired: index.wrapping_add(1),
                status: CompletionStatus::WorkRequestFlushedError,
                cause,
                ..RawCompletion::default()
            });
        }
    }

    /// Completes all posted sends as flushed.
    pub(super) fn flush_sends(&mut self, cause: Cause) {
        // Those that are there now: what other threads post meanwhile has a doorbell of its own.
        let end = self.send.published();
        let left = |send: &SendConsumer| end.wrapping_sub(send.retired()) as i32;
        let mut bound = LoopBound::new("flush", left(&self.send).max(0) as usize);
        while left(&self.send) > 0 {
            bound.step();
            let newest = self.send.published().wrapping_sub(1);
            let index = if planted(Mutation::FlushOutOfOrder) { newest } else { self.send.retired() };
            self.count(Counter::Flushed);
            self.complete_send(index, CompletionStatus::WorkRequestFlushedError, cause);
        }
        self.requester.restart_at(self.send.retired());
    }

    /// Retires the send request `index` and, if it is signaled or failed, completes it.
    pub(super) fn complete_send(&mut self, index: u32, status: CompletionStatus, cause: Cause) {
        let header = self.send.header(index);
        let signaled = (self.signal_all && !planted(Mutation::SignalAllIgnored))
            || planted(Mutation::UnsignaledCompletes)
            || header.flags.contains(crate::types::SendFlags::SIGNALED);
        let retired = index.wrapping_add(1);
        let (opcode, byte_len) = match header.operation {
            Operation::Write { .. } | Operation::WriteWithImmediate { .. } => (CompletionOpcode::RdmaWrite, 0),
            Operation::Read { .. } if planted(Mutation::ReadLengthNotTold) => (CompletionOpcode::RdmaRead, 0),
            Operation::Read { .. } => (CompletionOpcode::RdmaRead, header.length),
            Operation::CompareAndSwap { .. } => (CompletionOpcode::CompareAndSwap, 8),
            Operation::FetchAndAdd { .. } => (CompletionOpcode::FetchAndAdd, 8),
            Operation::AtomicWrite { .. } => (CompletionOpcode::AtomicWrite, 0),
            Operation::Flush { .. } => (CompletionOpcode::Flush, 0),
            Operation::LocalInvalidate(_) => (CompletionOpcode::LocalInvalidate, 0),
            Operation::BindMemoryWindow { .. } => (CompletionOpcode::BindMemoryWindow, 0),
            _ => (CompletionOpcode::Send, 0),
        };
        let newest = self.send.published().wrapping_sub(1);
        let named = if planted(Mutation::CompletionOfWrongRequest) { newest } else { index };
        let wr_id = if named == index { header.wr_id } else { self.send.header(named).wr_id };
        if status.is_success() {
            self.history.note_done(&header.operation, header.length);
        }
        self.send.retire(retired);
        let retired = match () {
            () if planted(Mutation::CompletionRetiresTooMuch) => newest.wrapping_add(1),
            () if planted(Mutation::CompletionRetiresTooLittle) => index,
            () => retired,
        };
        if (status.is_success() || planted(Mutation::UnsignaledFailureSilent)) && !signaled {
            return;
        }
        let completion = RawCompletion {
            wr_id,
            status,
            opcode,
            cause,
            byte_len,
            qpn: self.qpn,
            source_qpn: self.attributes.dest_qp_num.unwrap_or_default(),
            retired,
            ..RawCompletion::default()
        };
        let (queue, token) = (&self.send_completions.0, self.send_completions.1);
        if let Err(overflow) = queue.push(token, completion, false) {
            let queue = queue.id();
            self.completion_queue_overflowed(queue, overflow);
        }
    }

    /// Completes a receive; `completion` says all but whose it is.
    pub(super) fn complete_receive(&mut self, completion: RawCompletion) {
        self.complete_receive_as(completion, false);
    }

    #[inline]
    pub(super) fn complete_receive_as(&mut self, mut completion: RawCompletion, solicited: bool) {
        // In place: what was just written in pieces is slow to copy.
        if completion.opcode != CompletionOpcode::ReceiveRdmaWithImmediate {
            completion.opcode = CompletionOpcode::Receive;
        }
        completion.source_qpn = self.attributes.dest_qp_num.unwrap_or(completion.source_qpn);
        completion.qpn = self.qpn;
        let (queue, token) = self.receive.completions().unwrap_or(&self.receive_completions);
        if let Err(overflow) = queue.push(*token, completion, solicited) {
            let queue = queue.id();
            self.completion_queue_overflowed(queue, overflow);
        }
    }

    /// Fails the oldest request and takes the queue pair to the error state, or, if it is unreliable, its send queue.
    pub(super) fn fail_oldest(&mut self, status: CompletionStatus, cause: Cause) {
        let index = self.requester.oldest();
        if index != self.send.published() {
            self.note_failure(index, status, cause);
            self.complete_send(index, status, cause);
        }
        if self.service.is_reliable() || planted(Mutation::SendQueueErrorEndsAll) {
            self.enter_error(Cause::EarlierFailure);
        } else {
            self.enter_send_queue_error();
        }
    }

    /// Ends the connection because a request of the peer was wrong; the NAK is already on its way.
    /// `headers` are those of the refused packet, with the length of its payload.
    pub(super) fn refuse(&mut self, violation: Violation, headers: Option<(&Headers, u32)>) {
        let (status, cause) = violation.receive_status();
        // Without headers it is an earlier READ that is refused now: a receive belongs to another message.
        let receive = headers.and_then(|_| self.responder.take_receive());
        self.note_refusal(violation, headers, receive.map(|receive| receive.wr_id));
        if let Some(receive) = receive {
            let retired = receive.index.wrapping_add(1);
            let failed = RawCompletion { wr_id: receive.wr_id, retired, status, cause, ..RawCompletion::default() };
            self.complete_receive(failed);
        }
        if !planted(Mutation::RefusalNotAnnounced) {
            self.events.push(violation.event(self.qpn));
        }
        self.enter_error(Cause::EarlierFailure);
    }

    /// The earliest time at which something must happen by itself.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        Time::earliest([self.requester_deadline(), self.responder.deadline()])
    }

    /// After each input: the consequences that no single step carries out. Whether a completion queue overflowed.
    pub(super) fn settle(&mut self) -> bool {
        let overflowed = self.end_by_overflow();
        if self.state == QueuePairState::SendQueueDrained && self.requester.is_idle() {
            self.announce_drained();
        }
        self.note_in_flight();
        overflowed
    }

    fn announce_drained(&mut self) {
        let is_asked = self.attributes.en_sqd_async_notify == Some(true) && !planted(Mutation::DrainedNotAnnounced);
        if is_asked && !self.requester.drained_announced {
            self.events.push(AsyncEvent::SendQueueDrained(self.qpn));
        }
        self.requester.drained_announced = true;
    }
}

/// The address that a GID stands for, for the checks of arriving packets.
pub(super) fn address_of(gid: Gid) -> IpAddr {
    gid.to_ip()
}
