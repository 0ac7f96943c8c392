//! One connection: its state and its facts.

use super::handle::ListenerHandle;
use super::repetition::Repetition;
use super::route::Route;
pub use crate::types::ConnectionState;
use crate::types::{Psn, Qpn, Time};
use crate::wire::mad::{CommunicationId, ConnectRequest, ConnectionTransport, Mad, TimeoutCode, VendorId};

/// A message that may be sent again.
pub(super) type Kept = Box<Mad>;

/// The facts of a passive end's REQ that distinguish its repetition from a new REQ with the same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fingerprint {
    pub(super) transaction_id: u64,
    pub(super) starting_psn: Psn,
    pub(super) qpn: Qpn,
}

/// The facts of a connection that only its passive end needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passive {
    pub(super) listener: ListenerHandle,
    /// The application has read the event.
    pub(super) is_taken: bool,
    /// The number of the connection in its REQ.
    pub(super) request_id: CommunicationId,
    pub(super) fingerprint: Fingerprint,
    pub(super) vendor: VendorId,
    pub(super) transport: ConnectionTransport,
    /// The REQ offers a key.
    pub(super) has_offer: bool,
    /// When the REP was sent last.
    pub(super) replied_at: Time,
}

/// The facts of a connection that only its active end needs.
#[derive(Clone, Debug)]
pub(super) struct Active {
    /// The REQ, for another one with a new number.
    pub(super) request: Box<ConnectRequest>,
    pub(super) stale_retries: u32,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) state: ConnectionState,
    /// The application has destroyed it: it has no events.
    pub(super) is_detached: bool,
    /// The application knows that it ends: its end has no further event.
    pub(super) is_reported: bool,
    /// [`CommunicationId::NONE`] if it has none: it is released, or its orphan's is another process's.
    pub(super) local_id: CommunicationId,
    pub(super) remote_id: Option<CommunicationId>,
    pub(super) remote_guid: u64,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) route: Route,
    /// That of the REQ, which the messages of both ends repeat.
    pub(super) transaction_id: u64,
    /// That of the peer's DREQ.
    pub(super) disconnect_transaction_id: u64,
    pub(super) ack_timeout: TimeoutCode,
    pub(super) repetition: Repetition,
    /// The message that waits for a response.
    pub(super) kept: Option<Kept>,
    /// The REJ for each repetition of the message that it rejects.
    pub(super) refusal: Option<Kept>,
    /// When the present state began.
    pub(super) since: Time,
    /// When the application gives up, until the peer responds to the REQ or REP.
    pub(super) deadline: Option<Time>,
    pub(super) passive: Option<Passive>,
    pub(super) active: Option<Active>,
}

/// A connection's share of the manager's bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Load {
    pub(super) is_half_open: bool,
    pub(super) rests_since: Option<Time>,
    pub(super) waits_at: Option<ListenerHandle>,
    /// The peer's queue pair is in use by this connection, so that another REQ with it is stale.
    pub(super) uses: Option<(u64, Qpn)>,
    /// The number of the REQ of which repetitions are known.
    pub(super) request: Option<(u64, CommunicationId)>,
    /// The peer has to learn the end of the connection, even if this process dies.
    pub(super) is_set_up: bool,
}

impl Connection {
    /// Creates a connection about whose peer nothing is known.
    pub(super) fn new(
        now: Time,
        state: ConnectionState,
        local_id: CommunicationId,
        route: Route,
        repetition: Repetition,
    ) -> Self {
        Self {
            state,
            is_detached: false,
            is_reported: false,
            local_id,
            remote_id: None,
            remote_guid: 0,
            local_qpn: Qpn::default(),
            remote_qpn: Qpn::default(),
            route,
            transaction_id: 0,
            disconnect_transaction_id: 0,
            ack_timeout: TimeoutCode::default(),
            repetition,
            kept: None,
            refusal: None,
            since: now,
            deadline: None,
            passive: None,
            active: None,
        }
    }

    /// Returns its share of the manager's bounds and indexes.
    pub(super) fn load(&self) -> Load {
        use ConnectionState as S;
        let is_half_open = matches!(self.state, S::RequestReceived | S::ReplySent);
        let rests = matches!(self.state, S::TimeWait | S::Refused);
        let is_alive = is_half_open || matches!(self.state, S::ReplyReceived | S::Established | S::DisconnectSent);
        // An orphan has no queue pair, so it does not make another connection with the peer's queue pair stale.
        let has_queue_pair = self.passive.is_some() || self.active.is_some();
        let waits = self.passive.filter(|passive| self.state == S::RequestReceived && !passive.is_taken);
        Load {
            is_half_open,
            rests_since: rests.then_some(self.since),
            waits_at: waits.map(|passive| passive.listener),
            uses: (is_alive && has_queue_pair).then_some((self.remote_guid, self.remote_qpn)),
            request: self
                .passive
                .filter(|_| self.state != S::Idle)
                .map(|passive| (self.remote_guid, passive.request_id)),
            is_set_up: self.is_set_up(),
        }
    }

    /// Returns whether both ends know the connection, and the peer has not confirmed or requested its end.
    pub(super) fn is_set_up(&self) -> bool {
        use ConnectionState as S;
        let is_known = matches!(self.state, S::ReplyReceived | S::ReplySent | S::Established | S::DisconnectSent);
        is_known && self.remote_id.is_some()
    }

    /// Returns the application's deadline, if it applies in the present state.
    pub(super) fn present_deadline(&self) -> Option<Time> {
        use ConnectionState as S;
        self.deadline.filter(|_| matches!(self.state, S::RequestSent | S::StalePause | S::ReplySent))
    }

    /// Returns whether the application's deadline has passed while this end waits for the peer.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.present_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns whether this end waits for the DREP of a peer that may have lost its end, and keeps the DREQ for it.
    pub(super) fn is_probed(&self) -> bool {
        self.state == ConnectionState::Established && self.kept.is_some()
    }

    /// Returns whether this is the peer's communication id.
    pub(super) fn has_remote_id(&self, remote_id: CommunicationId) -> bool {
        self.remote_id == Some(remote_id)
    }
}
