//! REJ: sent and received.

use std::time::Duration;

use super::connection::ConnectionState;
use super::error::CallError;
use super::event::Event;
use super::handle::{ConnectionHandle, Owner};
use super::manager::Manager;
use super::parameters::Rejection;
use super::repetition::Repetition;
use super::rest::REFUSED_REST;
use crate::types::Time;
use crate::wire::mad::{Attribute, CommunicationId, Mad, Message, Reject, RejectReason, RejectedMessage};

/// The time from a REJ to the first DREQ that replaces it if it is lost.
const ABANDON_PAUSE: Duration = Duration::from_millis(500);

impl Manager {
    /// Rejects a peer's request or reply. The connection then ends without an event.
    pub fn reject(&mut self, now: Time, handle: ConnectionHandle, rejection: &Rejection) -> Result<(), CallError> {
        let connection = self.called("reject", handle)?;
        let rejected = match connection.state {
            ConnectionState::RequestReceived => RejectedMessage::ConnectRequest,
            ConnectionState::ReplyReceived => RejectedMessage::ConnectReply,
            _ => return Err(connection.refuse_call("reject", "REQ received or REP received")),
        };
        self.refuse(now, handle, *rejection, rejected);
        Ok(())
    }

    /// Sends a REJ and keeps it for repetitions of the message that it rejects: a REJ has no confirmation, so Linux
    /// takes the repetition of a REQ whose REJ was lost for a new request.
    pub(super) fn refuse(
        &mut self,
        now: Time,
        handle: ConnectionHandle,
        rejection: Rejection,
        rejected: RejectedMessage,
    ) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let (route, transaction) = (connection.route, connection.transaction_id);
        let reject = reject_of(connection.local_id, connection.remote_id, rejection, rejected);
        let mad = Message::from(reject).to_mad(transaction);
        self.send(route, &mad);
        self.rest_with(now, handle, mad);
    }

    /// Lets a connection rest, and send this REJ in response to what arrives for it.
    fn rest_with(&mut self, now: Time, handle: ConnectionHandle, refusal: Mad) {
        self.change(handle, |connection| {
            connection.kept = None;
            connection.refusal = Some(Box::new(refusal));
        });
        self.begin_rest(now, handle, ConnectionState::Refused, REFUSED_REST);
    }

    /// The peer has rejected the REQ. Its REJ may have crossed a repetition of the REQ. Linux keeps nothing of a REQ
    /// that it has rejected, and takes the repetition for another one. If its application accepts that one, the REP
    /// gets a REJ here.
    fn end_rejected(&mut self, now: Time, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get(&handle).filter(|connection| connection.repetition.has_repeated())
        else {
            return self.become_idle(now, handle);
        };
        let (id, transaction) = (connection.local_id, connection.transaction_id);
        let reject = reject_of(id, None, self.gives_up(), RejectedMessage::Other);
        self.rest_with(now, handle, Message::from(reject).to_mad(transaction));
    }

    /// Ends a connection whose REP is sent. The peer may be at any point: it has no REP yet, and a REJ ends it; or it
    /// is ready, and knows of no fault. So a DREQ follows the REJ, in the background.
    pub(super) fn abandon(&mut self, now: Time, handle: ConnectionHandle, rejection: Rejection) {
        let disconnect = self.disconnect_request(handle);
        let Some(connection) = self.connections.get(&handle) else { return };
        let (route, transaction) = (connection.route, connection.transaction_id);
        let reject = |rejected| {
            let reject = reject_of(connection.local_id, connection.remote_id, rejection, rejected);
            Message::from(reject).to_mad(transaction)
        };
        let (first, repeated) = (reject(RejectedMessage::Other), reject(RejectedMessage::ConnectRequest));
        self.change(handle, |connection| {
            connection.refusal = Some(Box::new(repeated));
            connection.kept = Some(Box::new(disconnect));
            connection.repetition = Repetition::of_disconnect();
            connection.is_reported = true;
        });
        self.send(route, &first);
        self.enter(now, handle, ConnectionState::DisconnectSent);
        self.schedule(now, handle, ABANDON_PAUSE);
    }

    /// Handles a REJ (`cm.c`, `cm_rej_handler`).
    pub(super) fn handle_reject(&mut self, now: Time, reject: &Reject) {
        use ConnectionState as S;
        self.held.forget(reject);
        let Some(handle) = self.find_rejected(reject) else {
            return self.drop_unknown(Attribute::REJECT);
        };
        let is_stale = reject.reason == RejectReason::STALE_CONNECTION;
        match self.connections.get(&handle).map(|connection| connection.state) {
            Some(S::RequestSent) if is_stale && self.pause_after_stale(now, handle) => {}
            Some(S::RequestSent) => {
                self.report_reject(handle, reject);
                match is_stale {
                    true => self.begin_time_wait(now, handle),
                    false => self.end_rejected(now, handle),
                }
            }
            Some(S::RequestReceived) => {
                self.forget_unpolled(handle);
                self.report_reject(handle, reject);
                self.begin_rest(now, handle, S::Refused, REFUSED_REST);
            }
            Some(S::ReplySent) => {
                self.report_reject(handle, reject);
                self.begin_rest(now, handle, S::Refused, REFUSED_REST);
            }
            Some(S::ReplyReceived | S::Established | S::DisconnectSent) => {
                self.report_reject(handle, reject);
                self.begin_time_wait(now, handle);
            }
            _ => self.drop_unexpected(Attribute::REJECT),
        }
    }

    /// A request ends. If its event is not polled, it never existed for the application.
    pub(super) fn forget_unpolled(&mut self, handle: ConnectionHandle) {
        if self.events.has(Owner::Connection(handle)) {
            self.events.cancel(Owner::Connection(handle));
            self.change(handle, |connection| connection.is_detached = true);
        }
    }

    /// Reports a REJ, unless the application knows the end of the connection already.
    fn report_reject(&mut self, handle: ConnectionHandle, reject: &Reject) {
        if self.connections.get(&handle).is_some_and(|connection| !connection.is_reported) {
            self.report(handle, Event::Rejected { connection: handle, rejection: Box::new(*reject) });
        }
    }

    /// Finds the connection that a REJ ends (`cm.c`, `cm_acquire_rejected_id`).
    ///
    /// A peer that gives up its REQ knows only its own GUID and id. Linux takes such a REJ for a connection that is set
    /// up as well; its peer knows both ids, so such a REJ is forged there, and ignored. A REJ of a REQ has the id of a
    /// connection whose peer is not known yet; all others have both ids. A REJ with local id 0 matches a connection
    /// without a known peer, whatever message it rejects.
    fn find_rejected(&self, reject: &Reject) -> Option<ConnectionHandle> {
        let is_timeout = reject.reason == RejectReason::TIMEOUT;
        if is_timeout && let Some(guid) = reject.information.as_bytes().first_chunk() {
            let found = self.by_request.get(&(u64::from_be_bytes(*guid), reject.local_id)).copied();
            let is_half_open = |handle: &ConnectionHandle| {
                use ConnectionState as S;
                let state = self.connections.get(handle).map(|connection| connection.state);
                matches!(state, Some(S::RequestReceived | S::ReplySent))
            };
            if let Some(handle) = found.filter(is_half_open) {
                return Some(handle);
            }
        }
        let (handle, connection) = self.find(reject.remote_id)?;
        let is_of_request = reject.rejected == RejectedMessage::ConnectRequest;
        let matches = match connection.remote_id {
            // A passive end of this crate that gives up its REP has both ids, and its REP may be lost.
            None => is_of_request || is_timeout || reject.local_id == CommunicationId::NONE,
            Some(remote_id) => !is_of_request && remote_id == reject.local_id,
        };
        matches.then_some(handle)
    }
}

/// Returns a REJ.
fn reject_of(
    local_id: CommunicationId,
    remote_id: Option<CommunicationId>,
    rejection: Rejection,
    rejected: RejectedMessage,
) -> Reject {
    let Rejection { reason, information, private_data } = rejection;
    Reject { local_id, remote_id: remote_id.unwrap_or_default(), rejected, information, reason, private_data }
}
