//! A queue pair as the endpoint holds it: state, path, the two halves, and the transition to the error state.

mod acceptance;
mod discovery;
mod fast_path;
mod marks;
mod modify;
mod receive_path;
mod report;
mod transmit_path;

use std::net::IpAddr;
use std::sync::Arc;

use super::common::Common;
use super::discovery::Discovery;
use super::packet_check::PacketCheck;
use super::requester::{RequestFailure, Requester};
use super::responder::{ReceiveSource, Receives, ReorderBudget, Responder};
use crate::queue::{AsyncEventQueue, CompletionQueue, Journal, SendConsumer, SourceToken};
use crate::types::{
    Accessor, AsyncEvent, Cause, DomainId, ErrorOrigin, Gid, Qpn, QueuePairAttributes, QueuePairCapabilities,
    QueuePairState, QueuePairStatus, QueuePairType, Time,
};

pub(super) use fast_path::HeaderTemplate;

/// The parts of a new queue pair.
pub struct QueuePairInit {
    /// Transport service.
    pub service: QueuePairType,
    /// Protection domain of its memory.
    pub domain: DomainId,
    /// Consuming end of the send queue.
    pub send: SendConsumer,
    /// Source of its receives.
    pub receive: ReceiveSource,
    /// Completion queue of sends, and the token for it.
    pub send_completions: (Arc<CompletionQueue>, SourceToken),
    /// Completion queue of receives, and the token for it.
    pub receive_completions: (Arc<CompletionQueue>, SourceToken),
    /// Whether every send generates a completion.
    pub signal_all: bool,
    /// Actual sizes of the queues.
    pub cap: QueuePairCapabilities,
    /// Queue of its asynchronous events.
    pub events: Arc<AsyncEventQueue>,
}

/// A queue pair with its requester and responder.
pub(super) struct QueuePair {
    pub(super) common: Common,
    pub(super) cap: QueuePairCapabilities,
    pub(super) packet_check: PacketCheck,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// The discovery of a peer whose capabilities the application did not state.
    discovery: Option<Box<Discovery>>,
    /// Whether it is in the endpoint's list of queue pairs with something to send.
    pub(super) listed: bool,
    /// Whether it is in the endpoint's list of held acknowledgements.
    pub(super) held: bool,
    /// Alternates between responses and requests when both wait.
    pub(super) responses_first: bool,
    /// Whether a panic has ended it since its last RESET.
    has_panicked: bool,
}

impl QueuePair {
    pub(super) fn new(
        qpn: Qpn,
        init: QueuePairInit,
        reorder_budget: Arc<ReorderBudget>,
        journal: Arc<Journal>,
    ) -> Self {
        let receives = Receives::new(init.receive, init.cap.max_recv_sge, init.receive_completions);
        Self {
            common: Common::new(qpn, init.service, init.domain, init.events, journal),
            cap: init.cap,
            packet_check: PacketCheck::default(),
            requester: Requester::new(init.send, init.send_completions, init.signal_all, init.cap.max_send_wr),
            responder: Responder::new(reorder_budget, receives),
            discovery: None,
            listed: false,
            held: false,
            responses_first: false,
            has_panicked: false,
        }
    }

    /// Returns the accessor for the checks of registered memory.
    pub(super) fn accessor(&self) -> Accessor {
        self.responder.accessor(&self.common)
    }

    pub(super) fn status(&self) -> QueuePairStatus {
        QueuePairStatus {
            qp_type: self.common.service,
            sq_sig_all: self.requester.signals_all(),
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

    /// Returns to RESET: drops everything posted without a completion, and removes completions not yet polled.
    pub(super) fn reset(&mut self) {
        self.requester.forget_all();
        self.requester.note_in_flight(&self.common);
        self.requester.reset();
        self.responder.forget_posted();
        self.responder.set_flushes(false);
        self.requester.purge_completions();
        self.responder.purge_completions();
        self.responder.reset();
        self.common.reset();
        self.packet_check = PacketCheck::default();
        self.discovery = None;
        self.has_panicked = false;
    }

    /// Drops requests that are posted but not begun.
    pub(super) fn forget_posted(&mut self) {
        self.requester.reset();
        self.responder.forget_posted();
    }

    /// Enters the error state, at the application's request or after a failure: flushes everything outstanding, in
    /// order (IBTA 10.3.1).
    pub(super) fn enter_error(&mut self, cause: Cause) {
        if self.common.state == QueuePairState::Reset {
            return;
        }
        let from = self.common.state;
        let was_error = from == QueuePairState::Error;
        self.common.state = QueuePairState::Error;
        self.discovery = None;
        self.requester.stop();
        self.responder.stop();
        self.requester.note_in_flight(&self.common);
        self.responder.set_flushes(true);
        self.flush(cause);
        if !was_error {
            self.common.log_failure(from, cause);
            self.announce_last_receive();
        }
    }

    /// Completes the posted sends as flushed.
    pub(super) fn flush_sends(&mut self, cause: Cause) {
        self.requester.flush(&mut self.common, cause);
    }

    /// Completes everything posted as flushed.
    pub(super) fn flush(&mut self, cause: Cause) {
        self.responder.flush_begun(&mut self.common, cause);
        self.requester.flush(&mut self.common, cause);
        self.responder.flush_posted(&mut self.common, cause);
    }

    /// Fails the oldest request and moves the queue pair to the error state, or to SQE if it is unreliable.
    pub(super) fn fail(&mut self, failure: RequestFailure) {
        self.requester.fail_oldest(&mut self.common, failure);
        if self.common.service.is_reliable() {
            self.enter_error(Cause::EarlierFailure);
        } else {
            self.enter_send_queue_error();
        }
    }

    /// Enters SQE: a local error of an unreliable service ends only the send queue. The remaining sends are flushed,
    /// and receives continue (IBTA 10.3.1).
    pub(super) fn enter_send_queue_error(&mut self) {
        let from = std::mem::replace(&mut self.common.state, QueuePairState::SendQueueError);
        self.common.log_failure(from, Cause::EarlierFailure);
        self.requester.forget_all();
        self.requester.note_in_flight(&self.common);
        self.requester.flush(&mut self.common, Cause::EarlierFailure);
    }

    /// Handles expired timers.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if let Err(failure) = self.requester.handle_timeout(&mut self.common, now) {
            self.fail(failure);
        }
        self.responder.handle_timeout(&mut self.common, now);
        self.discovery.iter_mut().for_each(|discovery| discovery.handle_timeout(now));
    }

    /// Returns the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let discovery = self.discovery.as_ref().and_then(|discovery| discovery.deadline());
        Time::earliest([self.requester.deadline(), self.responder.deadline(), discovery])
    }

    /// Does the work that follows every input: handles an overflow, reports the end of a drain, and updates the packets
    /// in flight. Returns whether a completion queue overflowed.
    #[inline]
    pub(super) fn follow_up(&mut self) -> bool {
        let overflowed = self.end_by_overflow();
        if self.common.state == QueuePairState::SendQueueDrained && self.requester.is_idle() {
            self.requester.announce_drained(&self.common);
        }
        self.requester.note_in_flight(&self.common);
        overflowed
    }
}

impl QueuePair {
    /// Enters the error state if a completion was lost since the last call (IBTA, completion queue errors). Returns
    /// whether one was.
    #[inline]
    pub(super) fn end_by_overflow(&mut self) -> bool {
        let overflowed = self.common.take_overflow();
        if overflowed {
            self.fail_by_overflow();
        }
        overflowed
    }

    #[cold]
    pub(super) fn fail_by_overflow(&mut self) {
        if matches!(self.common.state, QueuePairState::Reset | QueuePairState::Error) {
            return;
        }
        // This event comes before those of the error state.
        self.common.announce(AsyncEvent::QueuePairFatal(self.common.qpn));
        self.common.history.note_error_origin(ErrorOrigin::CompletionQueueOverflow);
        self.enter_error(Cause::CompletionQueueOverflow);
    }

    /// Ends the queue pair after a panic in its code: discards all state of its connection and flushes everything
    /// posted. Returns false if that was already done since the last RESET.
    pub(super) fn end_by_panic(&mut self) -> bool {
        if std::mem::replace(&mut self.has_panicked, true) {
            return false;
        }
        self.common.announce(AsyncEvent::QueuePairFatal(self.common.qpn));
        self.common.history.note_error_origin(ErrorOrigin::Panic);
        self.requester.abandon();
        self.responder.abandon();
        self.enter_error(Cause::Panic);
        true
    }

    pub(super) fn lost_its_completion_queue(&self) -> bool {
        let is_ended = matches!(self.common.state, QueuePairState::Reset | QueuePairState::Error);
        !is_ended && (self.requester.has_lost_completions() || self.responder.has_lost_completions())
    }
}

impl QueuePair {
    /// See [`Endpoint::stop_receiving`](super::Endpoint::stop_receiving).
    pub(super) fn stop_receiving(&mut self) -> Option<u64> {
        if !self.responder.has_shared_receives() || !self.common.takes_requests() {
            return None;
        }
        // In INIT no packet of the peer is accepted, and nothing posted is sent or flushed: outstanding sends are
        // returned without completions, because their completion queue may have no room.
        self.common.state = QueuePairState::Init;
        self.discovery = None;
        self.requester.stop();
        self.responder.stop();
        self.requester.note_in_flight(&self.common);
        self.responder.take_begun_receive()
    }

    /// Reports that the last receive of a queue pair in the error state has completed, if it has a shared receive queue
    /// (IBTA 10.3.1; ibv_get_async_event(3)).
    fn announce_last_receive(&self) {
        if self.responder.has_shared_receives() {
            self.common.announce(AsyncEvent::LastWorkQueueElementReached(self.common.qpn));
        }
    }
}

/// Returns the address of a GID, for the checks of arriving packets.
pub(super) fn address_of(gid: Gid) -> IpAddr {
    gid.to_ip()
}
