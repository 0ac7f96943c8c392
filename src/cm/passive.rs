//! The passive end of a connection: the arrival of a REQ, and what follows it.

use std::time::Duration;

use super::active::SERVICE_TIMEOUT;
use super::connection::{Connection, ConnectionState, Fingerprint, Passive};
use super::error::CallError;
use super::event::{Event, Unanswered};
use super::handle::{ConnectionHandle, ListenerHandle};
use super::listener::Room;
use super::manager::Manager;
use super::native::NativePeer;
use super::parameters::AcceptParameters;
use super::repetition::Repetition;
use super::request_check::{Checked, Refusal};
use super::rest::REFUSED_REST;
use super::route::{Arrival, Route};
use crate::types::{Qpn, Time};
use crate::wire::mad::{
    Attribute, CommunicationId, ConnectReply, ConnectRequest, ConnectionTransport, EndToEndContext, Message,
    MessageReceipt, ReadyToUse, ReceivedMessage, Reject, RejectReason, RejectedMessage, VendorId,
};

/// A request whose initiator has not repeated it for this long has no initiator any more: Linux repeats it every 6 s at
/// most, this crate every 4 s.
const UNANSWERED: Duration = Duration::from_secs(60);
/// A REP is not sent twice within this time because of repeated REQs: they may have been on their way.
const REPLY_SPACING: Duration = Duration::from_millis(100);

impl Manager {
    /// Handles a REQ: a repetition, one of a stale connection, or a new one (`cm.c`, `cm_match_req`).
    pub(super) fn handle_request(
        &mut self,
        now: Time,
        arrival: &Arrival<'_>,
        transaction: u64,
        request: &ConnectRequest,
    ) {
        if let Some(known) = self.by_request.get(&(request.local_guid, request.local_id)).copied() {
            if !self.is_reused(known, transaction, request) {
                return self.handle_duplicate(now, known, arrival, transaction, request);
            }
            self.change(known, |connection| connection.passive = None);
        }
        // The peer has lost its end of the connection and uses the queue pair again (IBTA 12.9.8.3.1).
        if let Some(stale) = self.by_queue_pair.get(&(request.local_guid, request.local_qpn)).copied() {
            self.counters.stale += 1;
            let rejected = RejectedMessage::ConnectRequest;
            self.respond_stale(arrival, transaction, request.local_id, CommunicationId::NONE, rejected);
            return self.probe_stale(now, stale);
        }
        match self.check_request(arrival, request) {
            Ok(checked) => self.take_request(now, arrival, transaction, request, checked),
            Err(refusal) if refusal.is_of_service() && self.hold(now, arrival, request) => {}
            Err(refusal) => self.respond_refusal(arrival, transaction, request, refusal),
        }
    }

    /// Returns whether a request with the number of a connection that has ended is a new one. Linux takes all of them
    /// for new, so that a late repetition makes a second connection; here a repetition is known by its transaction id,
    /// PSN and queue pair.
    fn is_reused(&self, known: ConnectionHandle, transaction_id: u64, request: &ConnectRequest) -> bool {
        use ConnectionState as S;
        let fingerprint = fingerprint_of(transaction_id, request);
        self.connections.get(&known).is_some_and(|connection| {
            let is_over = matches!(connection.state, S::DisconnectReceived | S::TimeWait | S::Refused);
            is_over && connection.passive.is_some_and(|passive| passive.fingerprint != fingerprint)
        })
    }

    /// Handles a repeated REQ (`cm.c`, `cm_dup_req_handler`).
    fn handle_duplicate(
        &mut self,
        now: Time,
        handle: ConnectionHandle,
        arrival: &Arrival<'_>,
        transaction: u64,
        request: &ConnectRequest,
    ) {
        self.note_duplicate(Attribute::CONNECT_REQUEST);
        let Some((connection, passive)) = self.connections.get(&handle).and_then(|found| Some((found, found.passive?)))
        else {
            return;
        };
        // Another queue pair with the same number: Linux drops it without a word, too.
        if passive.fingerprint.qpn != request.local_qpn {
            return self.drop_unexpected(Attribute::CONNECT_REQUEST);
        }
        let route = connection.route;
        match connection.state {
            ConnectionState::RequestReceived => {
                self.schedule(now, handle, UNANSWERED);
                if passive.is_taken {
                    self.confirm_request(handle, arrival, transaction, request.local_id);
                }
            }
            // Linux sends nothing, and the REP again after its interval.
            ConnectionState::ReplySent if now.saturating_since(passive.replied_at) >= REPLY_SPACING => {
                if let Some(kept) = connection.kept.clone() {
                    self.note_reply(now, handle);
                    self.send_again(route, &kept);
                }
            }
            _ => {
                let (is_resting, refusal) = (connection.state == ConnectionState::Refused, connection.refusal.clone());
                if is_resting {
                    self.schedule(now, handle, REFUSED_REST);
                }
                refusal.iter().for_each(|refusal| self.send_again(route, refusal));
            }
        }
    }

    /// Confirms the receipt of a REQ that the application has not answered. Linux sends a service timeout of 65 s, so
    /// that its initiator misses a lost REP for a minute.
    fn confirm_request(
        &mut self,
        handle: ConnectionHandle,
        arrival: &Arrival<'_>,
        transaction: u64,
        remote_id: CommunicationId,
    ) {
        let local_id = self.connections.get(&handle).map_or(CommunicationId::NONE, |found| found.local_id);
        let received = ReceivedMessage::ConnectRequest;
        let receipt =
            MessageReceipt { local_id, remote_id, received, service_timeout: SERVICE_TIMEOUT, ..Default::default() };
        self.respond(Route::back(arrival), &Message::from(receipt).to_mad(transaction));
    }

    /// Rejects a REQ without a connection. The response goes to the source of the REQ (`cm.c`, `cm_issue_rej`).
    pub(super) fn respond_refusal(
        &mut self,
        arrival: &Arrival<'_>,
        transaction: u64,
        request: &ConnectRequest,
        refusal: Refusal,
    ) {
        let Refusal { reason, information } = refusal;
        let (remote_id, rejected) = (request.local_id, RejectedMessage::ConnectRequest);
        let reject = Reject { remote_id, rejected, information, reason, ..Default::default() };
        self.counters.refused += 1;
        self.respond(Route::back(arrival), &Message::from(reject).to_mad(transaction));
    }

    /// Makes a connection of a REQ without faults, if there is room.
    fn take_request(
        &mut self,
        now: Time,
        arrival: &Arrival<'_>,
        transaction: u64,
        request: &ConnectRequest,
        checked: Checked<56>,
    ) {
        if self.half_open >= self.limits.half_open {
            return self.counters.drops.half_open_full += 1;
        }
        if self.connections.len() >= self.limits.connections {
            return self.counters.drops.connections_full += 1;
        }
        match self.listeners.get_mut(checked.listener).map(|listener| listener.room(now)) {
            Some(Room::Free) => {}
            Some(Room::Stalled) => {
                let refusal = Refusal::new(RejectReason::NO_RESOURCES);
                return self.respond_refusal(arrival, transaction, request, refusal);
            }
            _ => return self.counters.drops.backlog_full += 1,
        }
        let Ok(local_id) = self.draw_id() else {
            return self.counters.drops.connections_full += 1;
        };
        let Checked { listener, header, private_data } = checked;
        let connection = passive_connection(now, local_id, transaction, request, listener);
        let has_offer = connection.passive.is_some_and(|passive| passive.has_offer);
        let handle = self.insert(connection);
        self.schedule(now, handle, UNANSWERED);
        let native = NativePeer::of_request(request, local_id).filter(|_| has_offer);
        let request = Box::new(*request);
        let event = Event::ConnectRequest { connection: handle, listener, header, private_data, request, native };
        self.report(handle, event);
    }

    /// Notes that the application has read the event [`Event::ConnectRequest`]. The request no longer counts for the
    /// listener's backlog, and its repetitions get an MRA until the application answers.
    pub fn take(&mut self, handle: ConnectionHandle) -> Result<(), CallError> {
        let connection = self.called("take", handle)?;
        if connection.state != ConnectionState::RequestReceived {
            return Err(connection.refuse_call("take", "REQ received"));
        }
        self.change(handle, |connection| {
            if let Some(passive) = &mut connection.passive {
                passive.is_taken = true;
            }
        });
        Ok(())
    }

    /// Accepts a peer's request: sends a REP, and repeats it. The queue pair must be in the state "ready to send",
    /// because the peer may send to it from now on. The next event is [`Event::Established`], or one that ends the
    /// connection.
    pub fn accept(
        &mut self,
        now: Time,
        handle: ConnectionHandle,
        parameters: &AcceptParameters,
    ) -> Result<(), CallError> {
        let connection = self.called("accept", handle)?;
        let passive = connection.passive.filter(|_| connection.state == ConnectionState::RequestReceived);
        let Some(passive) = passive else {
            return Err(connection.refuse_call("accept", "REQ received"));
        };
        // librdmacm fails a connection whose REP has a vendor but whose REQ has none.
        let given = parameters.vendor_options.vendor;
        if given != VendorId::default() && given != passive.vendor {
            return Err(CallError::Vendor { requested: passive.vendor, given });
        }
        let mut reply = reply_of(self.guid, connection, parameters);
        if passive.transport == ConnectionTransport::ExtendedReliable {
            reply = of_target(reply);
        }
        // Without an offer these fields are the standard's.
        if let Some(capabilities) = parameters.native.filter(|_| passive.has_offer) {
            reply = reply.confirming(&capabilities);
        }
        let mad = Message::from(reply).to_mad(connection.transaction_id);
        self.change(handle, |connection| {
            connection.local_qpn = parameters.local_qpn;
            connection.deadline = parameters.deadline;
        });
        self.enter(now, handle, ConnectionState::ReplySent);
        self.note_reply(now, handle);
        self.start_repeating(now, handle, &mad);
        Ok(())
    }

    /// Notes that the REP is sent.
    fn note_reply(&mut self, now: Time, handle: ConnectionHandle) {
        self.change(handle, |connection| {
            if let Some(passive) = &mut connection.passive {
                passive.replied_at = now;
            }
        });
    }

    /// Handles an RTU (`cm.c`, `cm_rtu_handler`).
    pub(super) fn handle_ready(&mut self, now: Time, ready: &ReadyToUse) {
        let found = self.find_by_both(ready.remote_id, ready.local_id);
        match found.map(|(handle, connection)| (handle, connection.state)) {
            Some((handle, ConnectionState::ReplySent)) => self.establish(now, handle),
            Some((_, ConnectionState::Established)) => self.note_duplicate(Attribute::READY_TO_USE),
            Some(_) => self.drop_unexpected(Attribute::READY_TO_USE),
            None => self.drop_unknown(Attribute::READY_TO_USE),
        }
    }

    /// Notes that a packet of the peer has arrived at the queue pair: the peer is ready, though its RTU is late or lost
    /// (IBTA 12.9.7.2, "communication established"; `cm.c`, `cm_establish`).
    pub fn communication_established(&mut self, now: Time, handle: ConnectionHandle) -> Result<(), CallError> {
        let connection = self.called("communication_established", handle)?;
        match connection.state {
            ConnectionState::ReplySent => self.establish(now, handle),
            _ => return Err(connection.refuse_call("communication_established", "REP sent")),
        }
        Ok(())
    }

    /// The passive end is set up.
    fn establish(&mut self, now: Time, handle: ConnectionHandle) {
        self.change(handle, |connection| connection.kept = None);
        self.enter(now, handle, ConnectionState::Established);
        self.report(handle, Event::Established { connection: handle });
    }

    /// The peer does not respond to the REP, or not before the application's deadline (IBTA 12.9.8.3.2, state "REP
    /// sent").
    pub(super) fn give_up_reply(&mut self, now: Time, handle: ConnectionHandle) {
        self.report(handle, Event::Unreachable { connection: handle, unanswered: Unanswered::ConnectReply });
        self.abandon(now, handle, self.gives_up());
    }

    /// The peer no longer repeats a request that the application has not answered: it has given up, or there was none.
    pub(super) fn expire_unanswered(&mut self, now: Time, handle: ConnectionHandle) {
        self.forget_unpolled(handle);
        self.report(handle, Event::Unreachable { connection: handle, unanswered: Unanswered::Answer });
        self.refuse(now, handle, self.gives_up(), RejectedMessage::ConnectRequest);
    }
}

fn fingerprint_of(transaction_id: u64, request: &ConnectRequest) -> Fingerprint {
    Fingerprint { transaction_id, starting_psn: request.starting_psn, qpn: request.local_qpn }
}

/// Returns the connection of a REQ.
fn passive_connection(
    now: Time,
    local_id: CommunicationId,
    transaction_id: u64,
    request: &ConnectRequest,
    listener: ListenerHandle,
) -> Connection {
    // The check of the request has refused other transport services.
    let transport = request.connection_transport().unwrap_or_default();
    let passive = Passive {
        listener,
        is_taken: false,
        request_id: request.local_id,
        fingerprint: fingerprint_of(transaction_id, request),
        vendor: request.vendor_options.vendor,
        transport,
        has_offer: transport == ConnectionTransport::Reliable && request.alternate_path.offer().is_some(),
        replied_at: now,
    };
    let route = Route::against(&request.primary_path);
    let repetition = Repetition::of_reply(request.local_response_timeout, request.max_cm_retries);
    Connection {
        remote_id: Some(request.local_id),
        remote_guid: request.local_guid,
        remote_qpn: request.local_qpn,
        transaction_id,
        ack_timeout: request.primary_path.local_ack_timeout,
        passive: Some(passive),
        ..Connection::new(now, ConnectionState::RequestReceived, local_id, route, repetition)
    }
}

/// Returns the REP (`cm.c`, `cm_format_rep`).
fn reply_of(guid: u64, connection: &Connection, parameters: &AcceptParameters) -> ConnectReply {
    ConnectReply {
        local_id: connection.local_id,
        remote_id: connection.remote_id.unwrap_or_default(),
        local_qpn: parameters.local_qpn,
        vendor_options: parameters.vendor_options,
        starting_psn: parameters.starting_psn,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        target_ack_delay: parameters.target_ack_delay,
        end_to_end_flow_control: parameters.end_to_end_flow_control,
        rnr_retry_count: parameters.rnr_retry_count,
        has_srq: parameters.has_srq,
        local_guid: guid,
        private_data: parameters.private_data,
        ..ConnectReply::default()
    }
}

/// Returns the REP whose queue pair is an XRC target: its number is in another field, and a target requests nothing
/// (IBTA A14; `cm.c`, `cm_format_rep`).
fn of_target(reply: ConnectReply) -> ConnectReply {
    ConnectReply {
        local_qpn: Qpn::default(),
        local_eecn: EndToEndContext::new(reply.local_qpn.value()),
        initiator_depth: 0,
        end_to_end_flow_control: false,
        has_srq: true,
        ..reply
    }
}
