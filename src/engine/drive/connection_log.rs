//! The events of the connection manager for subscribers of `tracing`. `docs/tracing.md` lists them with their fields.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tracing::field::{DisplayValue, display};

use crate::cm::{ConnectParameters, ConnectionHandle, DisconnectCause, Event, Unanswered};
use crate::queue::{Journal, note_later};
use crate::types::{Qpn, Time};
use crate::wire::mad::{RejectReason, ServiceId};

/// Notes the events of a shard's connections.
pub(super) struct ConnectionLog {
    journal: Arc<Journal>,
    /// The connections that began while a subscriber wanted events, until the application drops them.
    begun: BTreeMap<ConnectionHandle, Begun>,
}

/// The begin of a connection.
#[derive(Clone, Copy)]
struct Begun {
    at: Time,
    is_active: bool,
    local: IpAddr,
    peer: IpAddr,
    qpn: Option<Qpn>,
    peer_qpn: Option<Qpn>,
}

type Field<T> = Option<DisplayValue<T>>;

/// A call of the application.
#[derive(Clone, Copy)]
pub(super) enum LocalCall {
    Accept(Qpn),
    Ready,
    Reject(RejectReason),
    Disconnect,
}

fn is_wanted() -> bool {
    tracing::enabled!(target: "rdma_verbs::connection", tracing::Level::INFO)
}

fn port_of(service: ServiceId) -> Option<u16> {
    service.port().map(|(_, port)| port)
}

impl ConnectionLog {
    pub(super) fn new(journal: &Arc<Journal>) -> Self {
        Self { journal: Arc::clone(journal), begun: BTreeMap::new() }
    }

    /// Forgets a connection that the application has dropped.
    pub(super) fn forget(&mut self, handle: ConnectionHandle) {
        self.begun.remove(&handle);
    }

    /// Notes a panic of the connection manager, which ends all connections.
    #[cold]
    pub(super) fn panicked(&mut self) {
        self.begun.clear();
        note_later!(
            self.journal, target: "rdma_verbs::connection", ERROR,
            "the connection manager panicked, and its connections end; please report this"
        );
    }

    /// Returns the fields `local`, `peer`, `qpn` and `peer_qpn` of a connection.
    fn ends(&self, handle: ConnectionHandle) -> (Field<IpAddr>, Field<IpAddr>, Field<Qpn>, Field<Qpn>) {
        let begun = self.begun.get(&handle);
        let of = |end: fn(&Begun) -> IpAddr| begun.map(|begun| display(end(begun)));
        let number = |number: fn(&Begun) -> Option<Qpn>| begun.and_then(number).map(display);
        (of(|begun| begun.local), of(|begun| begun.peer), number(|begun| begun.qpn), number(|begun| begun.peer_qpn))
    }

    /// Notes a request that this end sends.
    pub(super) fn request_sent(&mut self, now: Time, handle: ConnectionHandle, parameters: &ConnectParameters) {
        if !is_wanted() {
            return;
        }
        let (path, qpn) = (&parameters.path, parameters.local_qpn);
        let (local, peer, port) = (path.local, path.remote, port_of(parameters.service_id));
        let begun = Begun { at: now, is_active: true, local, peer, qpn: Some(qpn), peer_qpn: None };
        self.begun.insert(handle, begun);
        let connection = handle.number();
        note_later!(
            self.journal, target: "rdma_verbs::connection", DEBUG,
            connection, %local, %peer, port, %qpn, "request sent"
        );
    }

    /// Notes a call of the application that the connection manager has accepted.
    pub(super) fn called(&mut self, now: Time, handle: ConnectionHandle, call: LocalCall) {
        if !is_wanted() {
            return;
        }
        if let (LocalCall::Accept(qpn), Some(begun)) = (call, self.begun.get_mut(&handle)) {
            begun.qpn = Some(qpn);
        }
        let connection = handle.number();
        let (local, peer, qpn, peer_qpn) = self.ends(handle);
        match call {
            LocalCall::Accept(_) => note_later!(
                self.journal, target: "rdma_verbs::connection", DEBUG,
                connection, local, peer, qpn, peer_qpn, "accepted"
            ),
            LocalCall::Ready => self.established(now, handle),
            LocalCall::Reject(reason) => note_later!(
                self.journal, target: "rdma_verbs::connection", INFO,
                connection, local, peer, qpn, peer_qpn, %reason, by = "local", "rejected"
            ),
            LocalCall::Disconnect => note_later!(
                self.journal, target: "rdma_verbs::connection", DEBUG,
                connection, local, peer, qpn, peer_qpn, "disconnect requested"
            ),
        }
    }

    fn established(&self, now: Time, handle: ConnectionHandle) {
        let (connection, begun) = (handle.number(), self.begun.get(&handle));
        let role = begun.map(|begun| if begun.is_active { "active" } else { "passive" });
        let took_us = begun.map(|begun| now.saturating_since(begun.at).as_micros() as u64);
        let (local, peer, qpn, peer_qpn) = self.ends(handle);
        note_later!(
            self.journal, target: "rdma_verbs::connection", INFO,
            connection, local, peer, qpn, peer_qpn, role, took_us, "established"
        );
    }

    /// Notes an event of the connection manager.
    pub(super) fn happened(&mut self, now: Time, event: &Event) {
        if !is_wanted() {
            return;
        }
        match event {
            Event::ConnectRequest { connection, header, request, .. } => {
                let (local, peer) = (header.destination(), header.source().ip());
                let (peer_qpn, port) = (request.local_qpn, port_of(request.service_id));
                let begun = Begun { at: now, is_active: false, local, peer, qpn: None, peer_qpn: Some(peer_qpn) };
                self.begun.insert(*connection, begun);
                let connection = connection.number();
                note_later!(
                    self.journal, target: "rdma_verbs::connection", DEBUG,
                    connection, %local, %peer, port, %peer_qpn, "request received"
                );
            }
            Event::Reply { connection, reply, .. } => {
                if let Some(begun) = self.begun.get_mut(connection) {
                    begun.peer_qpn = Some(reply.local_qpn);
                }
                let (local, peer, qpn, peer_qpn) = self.ends(*connection);
                let connection = connection.number();
                note_later!(
                    self.journal, target: "rdma_verbs::connection", DEBUG,
                    connection, local, peer, qpn, peer_qpn, "reply received"
                );
            }
            Event::Established { connection } => self.established(now, *connection),
            Event::Rejected { connection, rejection } => self.rejected(*connection, rejection.reason),
            Event::Unreachable { connection, unanswered } => self.unreachable(*connection, *unanswered),
            Event::Disconnected { connection, cause } => self.disconnected(*connection, *cause),
            Event::TimeWaitExit { .. } | Event::Inquiry { .. } | Event::Resolved { .. } | Event::Unresolved { .. } => {}
        }
    }

    /// Notes that a datagram cannot be sent, because no socket has its source address.
    #[cold]
    pub(super) fn unsendable(&self, local: IpAddr, peer: IpAddr) {
        note_later!(
            self.journal, target: "rdma_verbs::connection", DEBUG,
            %local, %peer, "no socket for a management datagram"
        );
    }

    fn rejected(&self, handle: ConnectionHandle, reason: RejectReason) {
        let (connection, (local, peer, qpn, peer_qpn)) = (handle.number(), self.ends(handle));
        note_later!(
            self.journal, target: "rdma_verbs::connection", INFO,
            connection, local, peer, qpn, peer_qpn, %reason, by = "peer", "rejected"
        );
    }

    fn unreachable(&self, handle: ConnectionHandle, unanswered: Unanswered) {
        let (connection, (local, peer, qpn, peer_qpn)) = (handle.number(), self.ends(handle));
        let cause = match unanswered {
            Unanswered::ConnectRequest => "no response to the REQ",
            Unanswered::ConnectReply => "no response to the REP",
            Unanswered::Answer => "the peer has given up, because the application has not answered its REQ",
        };
        note_later!(
            self.journal, target: "rdma_verbs::connection", INFO,
            connection, local, peer, qpn, peer_qpn, cause, "unreachable"
        );
    }

    fn disconnected(&self, handle: ConnectionHandle, cause: DisconnectCause) {
        let (connection, (local, peer, qpn, peer_qpn)) = (handle.number(), self.ends(handle));
        let cause = match cause {
            DisconnectCause::Peer => "peer",
            DisconnectCause::Confirmed => "local",
            DisconnectCause::Timeout => "timeout",
        };
        note_later!(
            self.journal, target: "rdma_verbs::connection", INFO,
            connection, local, peer, qpn, peer_qpn, cause, "disconnected"
        );
    }
}
