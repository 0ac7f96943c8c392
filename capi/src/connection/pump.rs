//! Taking the events of the provider's objects when they arrive.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::task::{Wake, Waker};

use rdma_verbs::provider::{
    ConnectionEnd, ConnectionEvent, EventWait, ListenerEvent, RejectReason, ResolutionEvent, Result,
};

use super::bring_up;
use super::devices::Device;
use super::event::{Content, Queued, event_type};
use super::id::{Id, Listeners, Phase, Source, lock};
use crate::error::INVALID;

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
                Source::Listeners(listeners) => next_request(listeners, &waker),
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
                Ok(Some(Arrived::Connection(event))) => self.take_connection_event(event),
                Ok(Some(Arrived::Resolution(event))) => self.take_resolution_event(event),
                // The device has failed.
                Err(error) => {
                    tracing::warn!(target: "rdma_verbs::c_library", "{error}");
                    let over = std::mem::take(&mut self.inner().source);
                    self.push(Queued::new(self, event_type::DEVICE_REMOVAL, 0, Content::None));
                    drop(over);
                }
            }
        }
    }

    /// Queues a peer's request. The next one is taken when the program has read it.
    fn take_request(self: &Arc<Self>, event: ListenerEvent, device: &'static Device) {
        self.inner().has_request = true;
        self.push(Queued::new(self, event_type::CONNECT_REQUEST, 0, Content::Request(Box::new(event), device)));
    }

    fn take_connection_event(self: &Arc<Self>, event: ConnectionEvent) {
        let (event, status, phase, content) = match event {
            ConnectionEvent::Replied(remote) => return self.take_reply(*remote),
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
            other => {
                return tracing::debug!(
                    target: "rdma_verbs::c_library", event = ?other, "an event of a connection is ignored"
                );
            }
        };
        let over = {
            let mut inner = self.inner();
            // Together, so that a call that sees the phase also finds the event.
            self.push(Queued::new(self, event, status, content));
            phase.and_then(|phase| {
                inner.phase = phase;
                inner.queue_pair.take()
            })
        };
        drop(over);
    }

    /// Queues a peer's reply. The thread that reads the event moves the identifier's queue pair, if there is one: this
    /// one may hold locks of the provider that moving it needs.
    fn take_reply(self: &Arc<Self>, remote: ConnectionEnd) {
        let event = {
            let mut inner = self.inner();
            if let Some(ends) = &mut inner.ends {
                ends.remote = Some(remote.clone());
            }
            match inner.queue_pair {
                Some(_) => event_type::ESTABLISHED,
                None => {
                    inner.phase = Phase::Replied;
                    event_type::CONNECT_RESPONSE
                }
            }
        };
        self.push(Queued::new(self, event, 0, Content::Reply(Box::new(remote))));
    }

    /// Moves the identifier's queue pair to RTS, and confirms the peer's reply. The caller holds no lock, and is in a
    /// section.
    pub(super) fn confirm_reply(&self) -> crate::error::Result<()> {
        let (connection, ends, queue_pair, device, options) = {
            let mut inner = self.inner();
            let Source::Connection(connection) = &inner.source else { return Err(INVALID) };
            let connection = Arc::clone(connection);
            (connection, inner.ends.clone(), inner.queue_pair.take(), inner.device, inner.options)
        };
        let (Some(ends), Some(queue_pair), Some(device)) = (ends, queue_pair, device) else { return Err(INVALID) };
        let confirmed = bring_up::to_ready_to_send(&*queue_pair, self.role(), device, &ends, &options)
            .and_then(|()| Ok(connection.ready()?));
        if confirmed.is_err() {
            let _ = connection.reject(RejectReason::CONSUMER, &[]);
        }
        let mut inner = self.inner();
        // Unless an event has ended it meanwhile.
        if inner.phase == Phase::Requesting {
            inner.phase = if confirmed.is_ok() { Phase::Connected } else { Phase::Over };
        }
        confirmed
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

/// Takes the next request of any of the devices, which take turns. A device that has failed is left out, unless it is
/// the last one. Only the owner of the identifier's turn calls this.
fn next_request(listeners: &Listeners, waker: &Waker) -> Result<Option<Arrived>> {
    let count = lock(listeners).len();
    for _ in 0..count {
        let Some((device, listener)) = lock(listeners).pop_front() else { break };
        match listener.next_event(EventWait::Waker(waker)) {
            Ok(event) => {
                lock(listeners).push_back((device, listener));
                if let Some(event) = event {
                    return Ok(Some(Arrived::Request(event, device)));
                }
            }
            Err(error) if lock(listeners).is_empty() => return Err(error),
            Err(error) => {
                let device = device.shared().device.name();
                tracing::warn!(
                    target: "rdma_verbs::c_library",
                    device, %error, "a listener on all addresses goes on without the device"
                );
            }
        }
    }
    Ok(None)
}
