//! The end of a connection that was set up: DREQ and DREP.

use std::time::Duration;

use super::connection::{Connection, ConnectionState};
use super::error::CallError;
use super::event::{DisconnectCause, Event};
use super::handle::ConnectionHandle;
use super::manager::Manager;
use super::repetition::Repetition;
use super::route::{Arrival, Route};
use crate::types::{Qpn, Time};
use crate::wire::mad::{Attribute, DisconnectReply, DisconnectRequest, Mad, Message};

/// After this time without a DREP the application learns that the connection has ended; the DREQ is repeated further in
/// the background. Linux applications wait for 65 to 74 s.
const PATIENCE: Duration = Duration::from_secs(5);

impl Manager {
    /// Ends a connection: sends a DREQ, and repeats it; or confirms the peer's. The event is [`Event::Disconnected`],
    /// once for each connection, whichever end begins. Does nothing if the connection has ended.
    pub fn disconnect(&mut self, now: Time, handle: ConnectionHandle) -> Result<(), CallError> {
        use ConnectionState as S;
        let connection = self.called("disconnect", handle)?;
        match connection.state {
            S::Established => self.start_disconnect(now, handle),
            S::DisconnectReceived => self.confirm_disconnect(now, handle),
            S::DisconnectSent | S::TimeWait | S::Refused | S::Idle => {}
            _ => return Err(connection.refuse_call("disconnect", "established, or ended")),
        }
        Ok(())
    }

    /// Finds out whether the peer still has the connection that a REQ or REP shows to be stale: sends a DREQ for queue
    /// pair 0. A peer that has lost its end responds to any DREQ with a DREP (`cm.c`, `cm_issue_drep`), which ends the
    /// connection here. A peer that has its end ignores a DREQ for another queue pair (`cm.c`, `cm_dreq_handler`): then
    /// the REQ was forged, and the connection stays. Linux sends a DREQ that ends both ends (`cm.c`, `cm_match_req`).
    ///
    /// Linux as well leaves a connection that is not set up to its own end.
    pub(super) fn probe_stale(&mut self, now: Time, handle: ConnectionHandle) {
        let Some(found) = self.connections.get(&handle) else { return };
        if found.state == ConnectionState::Established && !found.is_probed() {
            let mad = self.disconnect_request_of(handle, Qpn::default());
            self.change(handle, |connection| connection.repetition = Repetition::of_probe());
            self.start_repeating(now, handle, &mad);
        }
    }

    /// The next repetition of the DREQ that probes a connection is due.
    pub(super) fn expire_probe(&mut self, now: Time, handle: ConnectionHandle) {
        if !self.repeat(now, handle) {
            self.change(handle, |connection| connection.kept = None);
        }
    }

    /// Sends the first DREQ.
    pub(super) fn start_disconnect(&mut self, now: Time, handle: ConnectionHandle) {
        let mad = self.disconnect_request(handle);
        self.change(handle, |connection| connection.repetition = Repetition::of_disconnect());
        self.enter(now, handle, ConnectionState::DisconnectSent);
        self.start_repeating(now, handle, &mad);
    }

    /// Returns the DREQ of a connection, with a transaction id of its own.
    pub(super) fn disconnect_request(&mut self, handle: ConnectionHandle) -> Mad {
        let remote_qpn = self.connections.get(&handle).map_or_else(Qpn::default, |connection| connection.remote_qpn);
        self.disconnect_request_of(handle, remote_qpn)
    }

    /// Returns a DREQ of a connection for this queue pair of the peer.
    fn disconnect_request_of(&mut self, handle: ConnectionHandle, remote_qpn: Qpn) -> Mad {
        let transaction = self.draw_transaction_id();
        let request = self.connections.get(&handle).map_or_else(Default::default, |connection| DisconnectRequest {
            local_id: connection.local_id,
            remote_id: connection.remote_id.unwrap_or_default(),
            remote_qpn,
            ..Default::default()
        });
        Message::from(request).to_mad(transaction)
    }

    /// The peer has not responded to the DREQ.
    pub(super) fn expire_disconnect(&mut self, now: Time, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let is_patient = now.saturating_since(connection.since) < PATIENCE;
        let repeats = self.repeat(now, handle);
        if !is_patient || !repeats {
            self.report_disconnect(handle, DisconnectCause::Timeout);
        }
        if !repeats {
            self.begin_time_wait(now, handle);
        }
    }

    /// Returns the connections whose DREQ, sent or soon to be sent, has no DREP; also those of dead processes.
    pub fn unconfirmed(&self) -> Vec<ConnectionHandle> {
        let is_unconfirmed = |found: &Connection| found.state == ConnectionState::DisconnectSent;
        self.connections.iter().filter(|(_, found)| is_unconfirmed(found)).map(|(handle, _)| *handle).collect()
    }

    /// Sends the DREQ of an unconfirmed connection at once.
    pub fn hasten_disconnect(&mut self, handle: ConnectionHandle) {
        let found = self.connections.get(&handle).filter(|found| found.state == ConnectionState::DisconnectSent);
        if let Some((route, kept)) = found.and_then(|found| Some((found.route, found.kept.clone()?))) {
            self.send_again(route, &kept);
        }
    }

    /// Reports the end of a connection, once.
    fn report_disconnect(&mut self, handle: ConnectionHandle, cause: DisconnectCause) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        if !std::mem::replace(&mut connection.is_reported, true) {
            self.report(handle, Event::Disconnected { connection: handle, cause });
        }
    }

    /// Sends the DREP to the peer's DREQ.
    pub(super) fn confirm_disconnect(&mut self, now: Time, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let reply = DisconnectReply {
            local_id: connection.local_id,
            remote_id: connection.remote_id.unwrap_or_default(),
            ..Default::default()
        };
        let mad = Message::from(reply).to_mad(connection.disconnect_transaction_id);
        let route = connection.route;
        self.send(route, &mad);
        self.begin_time_wait(now, handle);
    }

    /// Handles a DREQ (`cm.c`, `cm_dreq_handler`).
    pub(super) fn handle_disconnect_request(
        &mut self,
        now: Time,
        arrival: &Arrival<'_>,
        transaction: u64,
        request: &DisconnectRequest,
    ) {
        use ConnectionState as S;
        let Some((handle, connection)) = self.find_by_both(request.remote_id, request.local_id) else {
            self.drop_unknown(Attribute::DISCONNECT_REQUEST);
            return self.confirm_unknown(arrival, transaction, request);
        };
        let (state, ends_orphan) = (connection.state, connection.local_qpn == Qpn::default());
        let has_ended = matches!(state, S::Refused | S::TimeWait);
        if request.remote_qpn != connection.local_qpn && !ends_orphan && !has_ended {
            return self.counters.drops.wrong_queue_pair += 1;
        }
        self.change(handle, |connection| connection.disconnect_transaction_id = transaction);
        match state {
            // In the state "REP received" Linux drops it. Here it ends the connection, or the end whose application is
            // slow would send an RTU to a peer that has given up, and believe in the connection.
            S::ReplyReceived | S::ReplySent | S::Established => {
                self.enter(now, handle, S::DisconnectReceived);
                self.report_disconnect(handle, DisconnectCause::Peer);
                self.confirm_for_detached(now, handle);
            }
            // Both ends disconnect: the peer's DREQ is the end, whether or not its DREP comes (IBTA 12.9.8.3.3). The
            // application has called already, so the DREP leaves at once.
            S::DisconnectSent => {
                self.report_disconnect(handle, DisconnectCause::Peer);
                self.confirm_disconnect(now, handle);
            }
            S::DisconnectReceived => self.note_duplicate(Attribute::DISCONNECT_REQUEST),
            _ => {
                self.note_duplicate(Attribute::DISCONNECT_REQUEST);
                self.confirm_unknown(arrival, transaction, request);
            }
        }
    }

    /// Confirms the peer's DREQ if no application will.
    fn confirm_for_detached(&mut self, now: Time, handle: ConnectionHandle) {
        if self.connections.get(&handle).is_some_and(|connection| connection.is_detached) {
            self.confirm_disconnect(now, handle);
        }
    }

    /// Responds to a DREQ of a connection that does not exist, or that has ended: its peer waits for it (`cm.c`,
    /// `cm_issue_drep`).
    fn confirm_unknown(&mut self, arrival: &Arrival<'_>, transaction: u64, request: &DisconnectRequest) {
        let reply = DisconnectReply { local_id: request.remote_id, remote_id: request.local_id, ..Default::default() };
        self.respond(Route::back(arrival), &Message::from(reply).to_mad(transaction));
    }

    /// Handles a DREP (`cm.c`, `cm_drep_handler`).
    pub(super) fn handle_disconnect_reply(&mut self, now: Time, reply: &DisconnectReply) {
        let found = self.find_by_both(reply.remote_id, reply.local_id);
        let is_awaited = |found: &Connection| found.state == ConnectionState::DisconnectSent || found.is_probed();
        match found.map(|(handle, connection)| (handle, is_awaited(connection))) {
            Some((handle, true)) => {
                self.report_disconnect(handle, DisconnectCause::Confirmed);
                self.begin_time_wait(now, handle);
            }
            Some(_) => self.drop_unexpected(Attribute::DISCONNECT_REPLY),
            None => self.drop_unknown(Attribute::DISCONNECT_REPLY),
        }
    }
}
