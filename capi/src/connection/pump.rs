//! Taking the events of the provider's objects when they arrive.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::task::{Wake, Waker};

use rdma_verbs::provider::{
    Connection, ConnectionEnd, ConnectionEvent, ConnectionListener, EventWait, ListenerEvent, QueuePair, RejectReason,
    ResolutionEvent, Result,
};

use super::bring_up;
use super::devices::Device;
use super::event::{Content, Queued, event_type};
use super::id::{Ends, Id, Phase, Source};
use crate::error::Errno;

thread_local! {
    /// The identifiers that were woken while this thread is in a section.
    static DELAYED: RefCell<Option<Vec<Arc<Id>>>> = const { RefCell::new(None) };
}

/// A time in which the calling thread calls the provider. Identifiers that it wakes meanwhile are handled at its end,
/// so that handling them never nests.
pub(super) struct Section {
    is_outer: bool,
}

impl Section {
    pub(super) fn begin() -> Self {
        // While a thread ends there are no sections, and nothing is delayed.
        let begin = DELAYED.try_with(|delayed| {
            let mut delayed = delayed.borrow_mut();
            let is_outer = delayed.is_none();
            delayed.get_or_insert_default();
            is_outer
        });
        Self { is_outer: begin.unwrap_or(false) }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if !self.is_outer {
            return;
        }
        let next = || DELAYED.try_with(|delayed| delayed.borrow_mut().as_mut().and_then(Vec::pop)).ok().flatten();
        while let Some(id) = next() {
            id.pump();
        }
        let _ = DELAYED.try_with(|delayed| *delayed.borrow_mut() = None);
    }
}

impl Wake for Id {
    fn wake(self: Arc<Self>) {
        let delay = |delayed: &RefCell<Option<Vec<Arc<Self>>>>| match &mut *delayed.borrow_mut() {
            Some(delayed) => {
                if !delayed.iter().any(|known| Arc::ptr_eq(known, &self)) {
                    delayed.push(Arc::clone(&self));
                }
                true
            }
            None => false,
        };
        if !DELAYED.try_with(delay).unwrap_or(false) {
            let _section = Section::begin();
            self.pump();
        }
    }
}

/// An event of a source.
enum Arrived {
    Request(ListenerEvent, &'static Device),
    Connection(ConnectionEvent),
    Resolution(ResolutionEvent),
}

impl Id {
    /// Takes the events that have arrived, and has the identifier woken when others arrive. If another thread is doing
    /// that, it looks again afterwards.
    pub(super) fn pump(self: &Arc<Self>) {
        self.may_have_events.store(true, Ordering::SeqCst);
        while self.may_have_events.load(Ordering::SeqCst) {
            let turn = match self.turn.try_lock() {
                Ok(turn) => turn,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.may_have_events.store(false, Ordering::SeqCst);
            self.take_all();
            drop(turn);
        }
    }

    fn take_all(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        loop {
            let (source, has_request) = {
                let inner = self.inner();
                (inner.source.clone(), inner.has_request)
            };
            let taken = match &source {
                Source::None => return,
                Source::Listeners(_) if has_request => return,
                Source::Listeners(parts) => next_request(parts, &waker),
                Source::Connection(connection) => {
                    let wait = EventWait::Waker(&waker);
                    connection.next_event(wait).map(|event| event.map(Arrived::Connection))
                }
                Source::Resolution(resolution) => {
                    resolution.next_event(EventWait::Waker(&waker)).map(|event| event.map(Arrived::Resolution))
                }
            };
            match taken {
                Ok(None) => return,
                Ok(Some(Arrived::Request(event, device))) => self.take_request(event, device),
                Ok(Some(Arrived::Connection(event))) => self.take_connection_event(&source, event),
                Ok(Some(Arrived::Resolution(event))) => self.take_resolution_event(event),
                // The device has failed.
                Err(error) => {
                    tracing::warn!("{error}");
                    self.inner().source = Source::None;
                    self.push(Queued::new(self, event_type::DEVICE_REMOVAL, 0, Content::None));
                }
            }
        }
    }

    /// Queues a peer's request. The next one is taken when the program has read it.
    fn take_request(self: &Arc<Self>, event: ListenerEvent, device: &'static Device) {
        self.inner().has_request = true;
        self.push(Queued::new(self, event_type::CONNECT_REQUEST, 0, Content::Request(Box::new(event), device)));
    }

    fn take_connection_event(self: &Arc<Self>, source: &Source, event: ConnectionEvent) {
        let (event, status, phase, content) = match event {
            ConnectionEvent::Replied(remote) => return self.take_reply(source, *remote),
            ConnectionEvent::Established => (event_type::ESTABLISHED, 0, Some(Phase::Connected), Content::None),
            ConnectionEvent::Rejected { reason, private_data } => {
                (event_type::REJECTED, reason.0.into(), Some(Phase::Over), Content::data(private_data))
            }
            ConnectionEvent::Unreachable => {
                (event_type::UNREACHABLE, -libc::ETIMEDOUT, Some(Phase::Over), Content::None)
            }
            ConnectionEvent::Disconnected { is_confirmed } => {
                let status = if is_confirmed { 0 } else { -libc::ETIMEDOUT };
                (event_type::DISCONNECTED, status, Some(Phase::Over), Content::None)
            }
            ConnectionEvent::TimeWaitExit => (event_type::TIMEWAIT_EXIT, 0, None, Content::None),
            other => return tracing::debug!(?other, "an event of a connection is ignored"),
        };
        if let Some(phase) = phase {
            let mut inner = self.inner();
            inner.phase = phase;
            inner.queue_pair = None;
        }
        self.push(Queued::new(self, event, status, content));
    }

    /// Moves the identifier's queue pair to RTS and confirms the reply, or leaves both to the program.
    fn take_reply(self: &Arc<Self>, source: &Source, remote: ConnectionEnd) {
        let Source::Connection(connection) = source else { return };
        let (ends, queue_pair, device) = {
            let mut inner = self.inner();
            if let Some(ends) = &mut inner.ends {
                ends.remote = Some(remote.clone());
            }
            (inner.ends.clone(), inner.queue_pair.take(), inner.device)
        };
        let (Some(ends), Some(device)) = (ends, device) else { return };
        let content = Content::Reply(Box::new(remote));
        let Some(queue_pair) = queue_pair else {
            self.inner().phase = Phase::Replied;
            return self.push(Queued::new(self, event_type::CONNECT_RESPONSE, 0, content));
        };
        match self.finish(&**connection, &*queue_pair, &ends, device) {
            Ok(()) => {
                self.inner().phase = Phase::Connected;
                self.push(Queued::new(self, event_type::ESTABLISHED, 0, content));
            }
            Err(Errno(error)) => {
                tracing::info!(error, "the queue pair cannot be moved to RTS");
                let _ = connection.reject(RejectReason::CONSUMER, &[]);
                self.inner().phase = Phase::Over;
                self.push(Queued::new(self, event_type::CONNECT_ERROR, -1, Content::None));
            }
        }
    }

    fn finish(
        &self,
        connection: &dyn Connection,
        queue_pair: &dyn QueuePair,
        ends: &Ends,
        device: &Device,
    ) -> crate::error::Result<()> {
        let options = self.inner().options;
        bring_up::to_ready_to_send(queue_pair, device, ends, &options)?;
        Ok(connection.ready()?)
    }

    fn take_resolution_event(self: &Arc<Self>, event: ResolutionEvent) {
        let (event, status, content, phase) = match event {
            ResolutionEvent::Resolved(end) => {
                (event_type::ESTABLISHED, 0, Content::Datagram(Box::new(end)), Phase::Connected)
            }
            ResolutionEvent::Rejected { status, private_data } => {
                (event_type::UNREACHABLE, status.0 as i32, Content::data(private_data), Phase::Over)
            }
            _ => (event_type::UNREACHABLE, -libc::ETIMEDOUT, Content::None, Phase::Over),
        };
        let over = {
            let mut inner = self.inner();
            inner.phase = phase;
            std::mem::take(&mut inner.source)
        };
        self.push(Queued::new(self, event, status, content));
        drop(over);
    }
}

/// Takes the next request of a listener, of any of its devices.
fn next_request(parts: &[(&'static Device, Arc<dyn ConnectionListener>)], waker: &Waker) -> Result<Option<Arrived>> {
    for (device, listener) in parts {
        if let Some(event) = listener.next_event(EventWait::Waker(waker))? {
            return Ok(Some(Arrived::Request(event, device)));
        }
    }
    Ok(None)
}
