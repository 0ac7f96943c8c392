//! A connection, at either end.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::super::errors;
use super::{Seat, convert};
use crate::cm::{AcceptParameters, CallError, ConnectionHandle, DisconnectCause, Event, Rejection};
use crate::engine::{Connections, Port};
use crate::provider::{Connection, ConnectionEnd, ConnectionEvent, EventWait, RejectReason, Result};
use crate::types::Time;
use crate::wire::mad::AdditionalInformation;

/// A connection.
pub(super) struct SoftConnection {
    seat: Seat,
    handle: ConnectionHandle,
    local: SocketAddr,
    /// The port of an active end; that of a passive one belongs to its listener.
    _port: Option<Arc<Port>>,
}

impl SoftConnection {
    pub(super) fn new(seat: Seat, handle: ConnectionHandle, local: SocketAddr, port: Option<Arc<Port>>) -> Self {
        Self { seat, handle, local, _port: port }
    }

    fn call(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut Connections, Time) -> std::result::Result<(), CallError>,
    ) -> Result<()> {
        self.seat.call(verb, call)
    }
}

impl Connection for SoftConnection {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ConnectionEvent>> {
        let verb = "get_cm_event";
        let Some(delivery) = self.seat.next(verb, wait)? else { return Ok(None) };
        event_of(delivery.event).map(Some).ok_or_else(|| errors::engine_failed(verb))
    }

    fn as_fd(&self) -> Result<BorrowedFd<'_>> {
        self.seat.descriptor("get_cm_event")
    }

    fn accept(&self, end: &ConnectionEnd, timeout: Option<Duration>) -> Result<()> {
        let parameters = convert::accept_parameters(end)?;
        self.call("accept", |connections, now| {
            let deadline = timeout.map(|timeout| now + timeout);
            connections.accept(now, self.handle, &AcceptParameters { deadline, ..parameters })
        })
    }

    fn ready(&self) -> Result<()> {
        self.call("connect", |connections, now| connections.ready(now, self.handle))
    }

    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        let private_data = convert::private_data("reject", private_data)?;
        let rejection = Rejection { reason, information: AdditionalInformation::default(), private_data };
        self.call("reject", |connections, now| connections.reject(now, self.handle, &rejection))
    }

    fn disconnect(&self) -> Result<()> {
        self.call("disconnect", |connections, now| connections.disconnect(now, self.handle))
    }

    fn communication_established(&self) -> Result<()> {
        self.call("accept", |connections, now| connections.manager().communication_established(now, self.handle))
    }
}

impl Drop for SoftConnection {
    fn drop(&mut self) {
        self.seat.leave(|connections, now| {
            connections.forget(self.handle);
            let _ = connections.manager().destroy(now, self.handle);
        });
    }
}

/// Returns an event of a connection; `None` if it is one of another object.
fn event_of(event: Event) -> Option<ConnectionEvent> {
    Some(match event {
        Event::Reply { reply, native, .. } => ConnectionEvent::Replied(Box::new(convert::of_reply(&reply, native))),
        Event::Established { .. } => ConnectionEvent::Established,
        Event::Rejected { rejection, .. } => ConnectionEvent::Rejected {
            reason: rejection.reason,
            private_data: rejection.private_data.as_bytes().to_vec(),
        },
        Event::Unreachable { .. } => ConnectionEvent::Unreachable,
        Event::Disconnected { cause, .. } => {
            ConnectionEvent::Disconnected { is_confirmed: cause != DisconnectCause::Timeout }
        }
        Event::TimeWaitExit { .. } => ConnectionEvent::TimeWaitExit,
        Event::ConnectRequest { .. } | Event::Inquiry { .. } | Event::Resolved { .. } | Event::Unresolved { .. } => {
            return None;
        }
    })
}
