//! The end of connections: time wait, rest, destruction.

use std::time::Duration;

use super::connection::ConnectionState;
use super::error::CallError;
use super::event::Event;
use super::handle::{ConnectionHandle, Owner};
use super::manager::Manager;
use super::parameters::Rejection;
use super::repetition::duration_of;
use crate::types::Time;
use crate::wire::mad::{RejectReason, RejectedMessage};

/// Bounds of the time wait. A path's transport timeout determines it, and a peer that of its REQ.
const TIME_WAIT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// How long a REJ is repeated in response to a repetition of the message that it rejects, since the last one. An
/// initiator of this crate repeats its REQ for 52 s.
pub(super) const REFUSED_REST: Duration = Duration::from_secs(60);

impl Manager {
    /// A connection has ended. The time wait is the transport timeout of its path (`cm.c`, `cm_create_timewait_info`),
    /// within bounds. A passive end that has given up rests longer, because the peer may still repeat its REQ.
    pub(super) fn begin_time_wait(&mut self, now: Time, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get(&handle) else { return };
        if connection.refusal.is_some() {
            return self.begin_rest(now, handle, ConnectionState::Refused, REFUSED_REST);
        }
        let duration = duration_of(connection.ack_timeout).clamp(TIME_WAIT.0, TIME_WAIT.1);
        self.change(handle, |connection| connection.is_reported = true);
        self.begin_rest(now, handle, ConnectionState::TimeWait, duration);
    }

    /// Lets a connection rest. If too many rest, the oldest ones rest no longer.
    pub(super) fn begin_rest(
        &mut self,
        now: Time,
        handle: ConnectionHandle,
        state: ConnectionState,
        duration: Duration,
    ) {
        self.enter(now, handle, state);
        self.schedule(now, handle, duration);
        while self.resting.len() > self.limits.resting
            && let Some((_, oldest)) = self.resting.first().copied()
        {
            self.end_rest(now, oldest);
        }
    }

    /// The rest of a connection is over: its communication id is free.
    pub(super) fn end_rest(&mut self, now: Time, handle: ConnectionHandle) {
        if self.connections.get(&handle).is_some_and(|connection| connection.state == ConnectionState::TimeWait) {
            self.report(handle, Event::TimeWaitExit { connection: handle });
        }
        self.become_idle(now, handle);
    }

    /// Nothing happens any more on a connection. It stays for the application, unless that has destroyed it.
    pub(super) fn become_idle(&mut self, now: Time, handle: ConnectionHandle) {
        if self.connections.get(&handle).is_none_or(|connection| connection.is_detached) {
            return self.remove(handle);
        }
        self.release_id(handle);
        self.change(handle, |connection| {
            connection.kept = None;
            connection.refusal = None;
            connection.active = None;
        });
        self.enter(now, handle, ConnectionState::Idle);
    }

    /// Destroys a connection in any state. Its events vanish, and the handle is no longer valid. The peer learns it by
    /// the message that Linux sends in the state (`cm.c`, `cm_destroy_id`), in the background.
    pub fn destroy(&mut self, now: Time, handle: ConnectionHandle) -> Result<(), CallError> {
        self.called("destroy", handle)?;
        self.destroy_connection(now, handle);
        Ok(())
    }

    /// Destroys an object of any kind. Requests of peers are rejected.
    pub fn destroy_object(&mut self, now: Time, object: Owner) {
        match object {
            Owner::Connection(handle) => self.destroy_connection(now, handle),
            Owner::Inquiry(handle) => self.destroy_inquiry(now, handle),
            Owner::Resolution(handle) => self.destroy_resolution(handle),
            Owner::Listener(handle) => drop(self.destroy_listener(now, handle)),
        }
    }

    /// Destroys a connection.
    pub(super) fn destroy_connection(&mut self, now: Time, handle: ConnectionHandle) {
        use ConnectionState as S;
        self.events.cancel(Owner::Connection(handle));
        self.change(handle, |connection| connection.is_detached = true);
        let consumer = Rejection { reason: RejectReason::CONSUMER, ..Rejection::default() };
        match self.connections.get(&handle).map(|connection| connection.state) {
            Some(S::RequestSent) => self.refuse(now, handle, self.gives_up(), RejectedMessage::Other),
            Some(S::RequestReceived) => self.refuse(now, handle, consumer, RejectedMessage::ConnectRequest),
            Some(S::ReplyReceived) => self.refuse(now, handle, consumer, RejectedMessage::ConnectReply),
            Some(S::ReplySent) => self.abandon(now, handle, consumer),
            Some(S::Established) => self.start_disconnect(now, handle),
            Some(S::DisconnectReceived) => self.confirm_disconnect(now, handle),
            // They end in the background.
            Some(S::DisconnectSent | S::TimeWait | S::Refused) => {}
            Some(S::StalePause | S::Idle) | None => self.remove(handle),
        }
    }
}
