//! The active end of a connection: REQ, and what follows it.

use std::time::Duration;

use super::connection::{Active, Connection, ConnectionState};
use super::error::CallError;
use super::event::{Event, Unanswered};
use super::handle::{ConnectionHandle, Owner};
use super::manager::Manager;
use super::native::NativePeer;
use super::parameters::{ConnectParameters, Rejection};
use super::repetition::Repetition;
use super::route::{Arrival, Route};
use crate::types::Time;
use crate::wire::mad::{
    AdditionalInformation, Attribute, CommunicationId, ConnectReply, ConnectRequest, ConnectionTransport,
    ExtendedTransport, Mad, Message, MessageReceipt, MessageRetries, ReadyToUse, ReceivedMessage, Reject, RejectReason,
    RejectedMessage, RetryCount, TimeoutCode, TransportType,
};

/// The time in which the peer is to respond to a REQ, as Linux asks it: 4.3 s.
const REMOTE_TIMEOUT: TimeoutCode = TimeoutCode::saturating(20);
/// The time in which this end responds to a REP. A Linux peer repeats its REP and its DREQ in this interval: 1 s.
const LOCAL_TIMEOUT: TimeoutCode = TimeoutCode::saturating(18);
/// The service timeout of an MRA: 4.1 s. A Linux peer repeats its message in this interval from then on.
pub(super) const SERVICE_TIMEOUT: TimeoutCode = TimeoutCode::saturating(20);
/// The pauses before a new REQ after a REJ with the reason "stale": meanwhile the peer's DREQ for the stale connection
/// gets its DREP from this host.
const STALE_PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1_500)];

impl Manager {
    /// Requests a connection: sends a REQ, and repeats it. The next event of the connection is [`Event::Reply`],
    /// [`Event::Rejected`] or [`Event::Unreachable`].
    pub fn connect(&mut self, now: Time, parameters: &ConnectParameters) -> Result<ConnectionHandle, CallError> {
        let limit = self.limits.connections;
        if self.connections.len() >= limit {
            return Err(CallError::TooMany { objects: "connections", limit });
        }
        let mut request = request_of(self.guid, parameters)?;
        if parameters.transport == ConnectionTransport::ExtendedReliable {
            request = of_initiator(request);
        }
        let local_id = self.draw_id()?;
        let native = parameters.native.filter(|_| parameters.transport == ConnectionTransport::Reliable);
        request.alternate_path = self.draw_offer(native);
        let active = Active { request: Box::new(request), stale_retries: 0 };
        let (route, repetition) = (Route::along(&request.primary_path), Repetition::of_request());
        let handle = self.insert(Connection {
            local_qpn: request.local_qpn,
            ack_timeout: request.primary_path.local_ack_timeout,
            deadline: parameters.deadline,
            active: Some(active),
            ..Connection::new(now, ConnectionState::RequestSent, local_id, route, repetition)
        });
        self.send_request(now, handle);
        Ok(handle)
    }

    /// Sends the first REQ of a connection with its present communication id.
    fn send_request(&mut self, now: Time, handle: ConnectionHandle) {
        let transaction_id = self.draw_transaction_id();
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let Some(active) = &mut connection.active else { return };
        active.request.local_id = connection.local_id;
        let mad = Message::from(*active.request).to_mad(transaction_id);
        connection.transaction_id = transaction_id;
        connection.repetition = Repetition::of_request();
        self.start_repeating(now, handle, &mad);
    }

    /// Sends a message of a connection for the first time, and keeps it for its repetitions.
    pub(super) fn start_repeating(&mut self, now: Time, handle: ConnectionHandle, mad: &Mad) {
        let random = self.draw();
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        connection.kept = Some(Box::new(*mad));
        let (route, wait) = (connection.route, connection.repetition.send(random));
        self.send(route, mad);
        self.schedule_send(now, handle, wait.unwrap_or_default());
    }

    /// Repeats the message of a connection. Returns false if its repetitions have ended.
    pub(super) fn repeat(&mut self, now: Time, handle: ConnectionHandle) -> bool {
        let random = self.draw();
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        if connection.is_over(now) {
            return false;
        }
        let (Some(kept), Some(wait)) = (connection.kept.clone(), connection.repetition.send(random)) else {
            return false;
        };
        let route = connection.route;
        self.send_again(route, &kept);
        self.schedule_send(now, handle, wait);
        true
    }

    /// Sets the deadline of the next send, not after the application's deadline for the REQ or REP.
    pub(super) fn schedule_send(&mut self, now: Time, handle: ConnectionHandle, wait: Duration) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let at = (now + wait).min(connection.present_deadline().unwrap_or(Time::NEVER));
        self.deadlines.set(Owner::Connection(handle), Some(at));
    }

    /// The deadline of a connection has come.
    pub(super) fn expire_connection(&mut self, now: Time, handle: ConnectionHandle) {
        use ConnectionState as S;
        match self.connections.get(&handle).map(|connection| connection.state) {
            Some(S::RequestSent) if !self.repeat(now, handle) => self.give_up_request(now, handle),
            Some(S::StalePause) => self.end_pause(now, handle),
            Some(S::ReplySent) if !self.repeat(now, handle) => self.give_up_reply(now, handle),
            Some(S::DisconnectSent) => self.expire_disconnect(now, handle),
            Some(S::Established) => self.expire_probe(now, handle),
            Some(S::RequestReceived) => self.expire_unanswered(now, handle),
            Some(S::TimeWait | S::Refused) => self.end_rest(now, handle),
            _ => {}
        }
    }

    /// The peer does not respond to the REQ (IBTA 12.9.8.3.1, state "REQ sent").
    fn give_up_request(&mut self, now: Time, handle: ConnectionHandle) {
        let unanswered = Unanswered::ConnectRequest;
        self.report(handle, Event::Unreachable { connection: handle, unanswered });
        self.refuse(now, handle, self.gives_up(), RejectedMessage::Other);
    }

    /// Returns the rejection of an end that gives up. Its information is the GUID of the REQ's sender: a receiver that
    /// has sent no REP finds the connection by it and by the id (IBTA 12.6.7.2; `cm.c`, `cm_acquire_rejected_id`).
    pub(super) fn gives_up(&self) -> Rejection {
        let information = AdditionalInformation::new(&self.guid.to_be_bytes()).unwrap_or_default();
        Rejection { reason: RejectReason::TIMEOUT, information, ..Rejection::default() }
    }

    /// The pause after a stale connection is over: the REQ is sent with a fresh id, because the peer knows the old one.
    fn end_pause(&mut self, now: Time, handle: ConnectionHandle) {
        if self.connections.get(&handle).is_none_or(|connection| connection.is_over(now)) {
            self.report(handle, Event::Unreachable { connection: handle, unanswered: Unanswered::ConnectRequest });
            return self.enter(now, handle, ConnectionState::Idle);
        }
        let Ok(id) = self.draw_id() else {
            return self.schedule(now, handle, STALE_PAUSES[0]);
        };
        self.by_id.insert(id, handle);
        self.change(handle, |connection| connection.local_id = id);
        self.enter(now, handle, ConnectionState::RequestSent);
        self.send_request(now, handle);
    }

    /// Begins the pause after a REJ with the reason "stale". Returns false if there were enough. Linux reports the
    /// first one to the application; a retry succeeds once the peer has ended the old connection.
    pub(super) fn pause_after_stale(&mut self, now: Time, handle: ConnectionHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let Some(active) = &mut connection.active else { return false };
        let Some(pause) = STALE_PAUSES.get(active.stale_retries as usize) else { return false };
        active.stale_retries += 1;
        self.release_id(handle);
        self.enter(now, handle, ConnectionState::StalePause);
        self.schedule_send(now, handle, *pause);
        true
    }

    /// Handles a REP.
    pub(super) fn handle_reply(&mut self, now: Time, arrival: &Arrival<'_>, transaction: u64, reply: &ConnectReply) {
        use ConnectionState as S;
        // Without a connection Linux sends nothing (`cm.c`, `cm_rep_handler`).
        let Some((handle, connection)) = self.find(reply.remote_id) else {
            return self.drop_unknown(Attribute::CONNECT_REPLY);
        };
        let is_same = connection.has_remote_id(reply.local_id);
        let route = connection.route;
        match connection.state {
            S::RequestSent => self.accept_reply(now, handle, arrival, transaction, reply),
            S::ReplyReceived if is_same => self.confirm_receipt(handle, arrival, transaction, reply),
            // The RTU was lost (`cm.c`, `cm_dup_rep_handler`).
            S::Established if is_same && connection.active.is_some() => {
                let ready = self.ready_of(handle);
                self.note_duplicate(Attribute::CONNECT_REPLY);
                self.counters.repeated.note(ready.attribute);
                self.send(route, &ready);
            }
            S::Refused if connection.remote_id.is_none_or(|id| id == reply.local_id) => {
                let refusal = connection.refusal.clone();
                self.note_duplicate(Attribute::CONNECT_REPLY);
                refusal.iter().for_each(|refusal| self.send_again(route, refusal));
            }
            _ => self.drop_unexpected(Attribute::CONNECT_REPLY),
        }
    }

    /// Takes the REP of a REQ.
    fn accept_reply(
        &mut self,
        now: Time,
        handle: ConnectionHandle,
        arrival: &Arrival<'_>,
        transaction: u64,
        reply: &ConnectReply,
    ) {
        let request = self.connections.get(&handle).and_then(|connection| connection.active.as_ref());
        let transport = request.and_then(|active| active.request.connection_transport()).unwrap_or_default();
        let reply = &ConnectReply { local_qpn: reply.queue_pair(transport), ..*reply };
        // The peer's queue pair is that of a live connection, of which the peer has lost its end (IBTA 12.9.8.3.1;
        // `cm.c`, `cm_rep_handler`).
        if let Some(stale) = self.by_queue_pair.get(&(reply.local_guid, reply.local_qpn)).copied() {
            self.counters.stale += 1;
            self.respond_stale(arrival, transaction, reply.local_id, reply.remote_id, RejectedMessage::ConnectReply);
            return self.probe_stale(now, stale);
        }
        self.change(handle, |connection| {
            connection.remote_id = Some(reply.local_id);
            connection.remote_guid = reply.local_guid;
            connection.remote_qpn = reply.local_qpn;
            connection.kept = None;
        });
        self.enter(now, handle, ConnectionState::ReplyReceived);
        let native = self.connections.get(&handle).and_then(|connection| NativePeer::of_reply(connection, reply));
        self.report(handle, Event::Reply { connection: handle, reply: Box::new(*reply), native });
    }

    /// Confirms the receipt of a repeated REP while the application moves its queue pair (`cm.c`,
    /// `cm_dup_rep_handler`). Linux sends a service timeout of 65 s.
    fn confirm_receipt(
        &mut self,
        handle: ConnectionHandle,
        arrival: &Arrival<'_>,
        transaction: u64,
        reply: &ConnectReply,
    ) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let receipt = MessageReceipt {
            local_id: connection.local_id,
            remote_id: reply.local_id,
            received: ReceivedMessage::ConnectReply,
            service_timeout: SERVICE_TIMEOUT,
            ..Default::default()
        };
        self.note_duplicate(Attribute::CONNECT_REPLY);
        self.respond(Route::back(arrival), &Message::from(receipt).to_mad(transaction));
    }

    /// Returns the RTU of a connection.
    fn ready_of(&self, handle: ConnectionHandle) -> Mad {
        let found = self.connections.get(&handle);
        let (local_id, remote_id, transaction) = found.map_or_else(Default::default, |connection| {
            (connection.local_id, connection.remote_id.unwrap_or_default(), connection.transaction_id)
        });
        Message::from(ReadyToUse { local_id, remote_id, ..Default::default() }).to_mad(transaction)
    }

    /// Accepts the peer's reply: sends the RTU. The queue pair must be in the state "ready to send", because the peer
    /// may send to it from now on.
    pub fn ready(&mut self, now: Time, handle: ConnectionHandle) -> Result<(), CallError> {
        let connection = self.called("ready", handle)?;
        if connection.state != ConnectionState::ReplyReceived {
            return Err(connection.refuse_call("ready", "REP received"));
        }
        let route = connection.route;
        let ready = self.ready_of(handle);
        self.enter(now, handle, ConnectionState::Established);
        self.send(route, &ready);
        Ok(())
    }

    /// Handles an MRA. The ids are those of a message in the state that waits for it (`cm.c`, `cm_mra_handler`).
    pub(super) fn handle_receipt(&mut self, now: Time, receipt: &MessageReceipt) {
        let Some((handle, connection)) = self.find(receipt.remote_id) else {
            return self.drop_unknown(Attribute::MESSAGE_RECEIPT);
        };
        let is_awaited = match receipt.received {
            ReceivedMessage::ConnectRequest => connection.state == ConnectionState::RequestSent,
            ReceivedMessage::ConnectReply => {
                connection.state == ConnectionState::ReplySent && connection.has_remote_id(receipt.local_id)
            }
            _ => false,
        };
        let connection = self.connections.get_mut(&handle).filter(|_| is_awaited);
        match connection.and_then(|connection| connection.repetition.prolong(receipt.service_timeout)) {
            Some(wait) => self.schedule_send(now, handle, wait),
            None => self.drop_unexpected(Attribute::MESSAGE_RECEIPT),
        }
    }

    /// Responds that a message has the queue pair of a stale connection.
    pub(super) fn respond_stale(
        &mut self,
        arrival: &Arrival<'_>,
        transaction: u64,
        remote_id: CommunicationId,
        local_id: CommunicationId,
        rejected: RejectedMessage,
    ) {
        let reason = RejectReason::STALE_CONNECTION;
        let reject = Reject { local_id, remote_id, rejected, reason, ..Default::default() };
        self.respond(Route::back(arrival), &Message::from(reject).to_mad(transaction));
    }
}

impl Connection {
    /// Returns the error of a call that the state does not allow.
    pub(super) fn refuse_call(&self, call: &'static str, allowed: &'static str) -> CallError {
        CallError::State { call, state: self.state, allowed }
    }
}

/// Returns the REQ. The fields that are not parameters are as Linux fills them (`cm.c`, `cm_format_req`), but for the
/// local timeout.
fn request_of(guid: u64, parameters: &ConnectParameters) -> Result<ConnectRequest, CallError> {
    let private_data = parameters.path.private_data(&parameters.header, parameters.private_data.as_bytes())?;
    Ok(ConnectRequest {
        vendor_options: parameters.vendor_options,
        service_id: parameters.service_id,
        local_guid: guid,
        local_qpn: parameters.local_qpn,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        remote_response_timeout: REMOTE_TIMEOUT,
        transport: TransportType::ReliableConnection,
        end_to_end_flow_control: parameters.end_to_end_flow_control,
        starting_psn: parameters.starting_psn,
        local_response_timeout: LOCAL_TIMEOUT,
        retry_count: parameters.retry_count,
        pkey: crate::types::DEFAULT_PKEY,
        path_mtu: parameters.path_mtu.into(),
        rnr_retry_count: parameters.rnr_retry_count,
        max_cm_retries: MessageRetries::MAX,
        has_srq: parameters.has_srq,
        primary_path: parameters.path.to_path(),
        private_data,
        ..ConnectRequest::default()
    })
}

/// Returns the REQ whose queue pair is an XRC initiator, which serves nothing and receives nothing (IBTA A14; `cm.c`,
/// `cm_format_req`).
fn of_initiator(request: ConnectRequest) -> ConnectRequest {
    ConnectRequest {
        transport: TransportType::Extended,
        extended_transport: ExtendedTransport::XRC,
        responder_resources: 0,
        retry_count: RetryCount::default(),
        rnr_retry_count: RetryCount::default(),
        has_srq: false,
        ..request
    }
}
