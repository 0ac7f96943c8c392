//! A queue pair as the endpoint holds it: its state, its path, its two halves, and the way into the error state.

use std::net::IpAddr;
use std::sync::Arc;

use super::common::{Common, CompletionSink};
use super::fair_queue::FairShare;
use super::loop_bound::LoopBound;
use super::packet_check::PacketCheck;
use super::requester::Requester;
use super::responder::{ReceiveSource, Receives, ReorderBudget, Responder};
use crate::mutation::{Mutation, planted};
use crate::queue::{AsyncEventQueue, CompletionQueue, SendConsumer, SourceToken};
use crate::types::{
    Accessor, AsyncEvent, Cause, CompletionOpcode, CompletionStatus, Counter, DomainId, Gid, Operation, Qpn,
    QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairStatus, QueuePairType, RawCompletion, Time,
};

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

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) common: Common,
    pub(super) cap: QueuePairCapabilities,
    pub(super) signal_all: bool,
    pub(super) send: SendConsumer,
    pub(super) send_completions: CompletionSink,
    pub(super) packet_check: PacketCheck,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
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
        let receives = Receives::new(init.receive, init.cap.max_recv_sge, init.receive_completions);
        Self {
            common: Common::new(qpn, init.service, init.domain, init.events),
            cap: init.cap,
            signal_all: init.signal_all,
            send: init.send,
            send_completions: init.send_completions,
            packet_check: PacketCheck::default(),
            requester: Requester::new(init.cap.max_send_wr),
            responder: Responder::new(reorder_budget, receives),
            listed: false,
            held: false,
            responses_first: false,
            fair_share: FairShare::default(),
        }
    }

    /// The queue pair as registered memory sees it.
    pub(super) fn accessor(&self) -> Accessor {
        self.responder.accessor(&self.common)
    }

    pub(super) fn status(&self) -> QueuePairStatus {
        QueuePairStatus {
            qp_type: if planted(Mutation::TypeNotTold) {
                QueuePairType::ReliableConnection
            } else {
                self.common.service
            },
            sq_sig_all: self.signal_all,
            qp_state: self.common.state,
            sq_draining: self.common.state == QueuePairState::SendQueueDrained && !self.requester.is_idle(),
            attributes: QueuePairAttributes {
                qp_state: Some(self.common.state),
                peer_key: None,
                ..self.common.attributes
            },
            cap: self.cap,
        }
    }

    /// Changes how many packets this queue pair has in flight.
    #[inline]
    pub(super) fn note_in_flight(&mut self) {
        let now = self.requester.packets_counted();
        let before = std::mem::replace(&mut self.requester.counted_in_flight, now);
        if now != before
            && let Some(path) = &self.common.path
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
        self.responder.forget_posted();
        self.responder.set_flushes(false);
        if !planted(Mutation::ResetKeepsCompletions) {
            self.send_completions.0.purge(self.send_completions.1);
            self.responder.purge_completions();
        }
        self.requester.reset(start);
        self.responder.reset();
        self.common.reset();
        self.packet_check = PacketCheck::default();
        self.fair_share = FairShare::default();
    }

    /// Forgets what was posted and not begun.
    pub(super) fn forget_posted(&mut self) {
        let start = self.send.reset();
        self.responder.forget_posted();
        self.requester.reset(start);
    }

    /// To the error state, on the application's word or after a failure: flushes all that is outstanding, in order.
    pub(super) fn enter_error(&mut self, cause: Cause) {
        if self.common.state == QueuePairState::Reset {
            return;
        }
        let was_error = self.common.state == QueuePairState::Error;
        self.common.state = QueuePairState::Error;
        self.requester.stop();
        self.responder.stop();
        self.note_in_flight();
        self.responder.set_flushes(true);
        self.flush(cause);
        if !was_error {
            self.announce_last_receive();
        }
    }

    /// Completes everything posted as flushed.
    pub(super) fn flush(&mut self, cause: Cause) {
        self.responder.flush_begun(&mut self.common, cause);
        self.flush_sends(cause);
        if !planted(Mutation::FlushSkipsReceives) {
            self.responder.flush_posted(&mut self.common, cause);
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
            self.common.count(Counter::Flushed);
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
            self.common.history.note_done(&header.operation, header.length);
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
            qpn: self.common.qpn,
            source_qpn: self.common.attributes.dest_qp_num.unwrap_or_default(),
            retired,
            ..RawCompletion::default()
        };
        self.common.complete(&self.send_completions, completion, false);
    }

    /// Fails the oldest request and takes the queue pair to the error state, or, if it is unreliable, its send queue.
    pub(super) fn fail_oldest(&mut self, status: CompletionStatus, cause: Cause) {
        let index = self.requester.oldest();
        if index != self.send.published() {
            self.note_failure(index, status, cause);
            self.complete_send(index, status, cause);
        }
        if self.common.service.is_reliable() || planted(Mutation::SendQueueErrorEndsAll) {
            self.enter_error(Cause::EarlierFailure);
        } else {
            self.enter_send_queue_error();
        }
    }

    /// The earliest time at which something must happen by itself.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        Time::earliest([self.requester_deadline(), self.responder.deadline()])
    }

    /// After each input: the consequences that no single step carries out. Whether a completion queue overflowed.
    pub(super) fn settle(&mut self) -> bool {
        let overflowed = self.end_by_overflow();
        if self.common.state == QueuePairState::SendQueueDrained && self.requester.is_idle() {
            self.announce_drained();
        }
        self.note_in_flight();
        overflowed
    }

    fn announce_drained(&mut self) {
        let is_asked =
            self.common.attributes.en_sqd_async_notify == Some(true) && !planted(Mutation::DrainedNotAnnounced);
        if is_asked && !self.requester.drained_announced {
            self.common.announce(AsyncEvent::SendQueueDrained(self.common.qpn));
        }
        self.requester.drained_announced = true;
    }
}

impl QueuePair {
    /// See [`Endpoint::stop_receiving`](super::Endpoint::stop_receiving).
    pub(super) fn stop_receiving(&mut self) -> Option<u64> {
        if !self.responder.has_shared_receives() || !self.common.takes_requests() {
            return None;
        }
        // As in INIT nothing of the peer is taken, and nothing posted is sent, nor flushed: sends that are outstanding
        // come back without completions, for which their queue may have no room.
        self.common.state = QueuePairState::Init;
        self.requester.stop();
        self.responder.stop();
        self.note_in_flight();
        self.responder.take_begun_receive()
    }

    /// The last receive of a queue pair that is in error now has completed.
    fn announce_last_receive(&self) {
        let is_told = self.responder.has_shared_receives() && !planted(Mutation::LastReceiveNotAnnounced);
        if is_told || planted(Mutation::LastReceiveAnnouncedAlways) {
            self.common.announce(AsyncEvent::LastWorkQueueElementReached(self.common.qpn));
        }
    }
}

/// The address that a GID stands for, for the checks of arriving packets.
pub(super) fn address_of(gid: Gid) -> IpAddr {
    gid.to_ip()
}
