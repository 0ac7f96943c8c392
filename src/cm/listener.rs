//! Listeners: which application answers the requests of peers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::error::CallError;
use super::handle::{ConnectionHandle, InquiryHandle, ListenerHandle};
use super::manager::Manager;
use crate::types::Time;
use crate::wire::mad::{ConnectionTransport, ServiceId};

/// A listener whose application has taken no request for this long, and whose backlog is full, refuses requests.
const STALLED: Duration = Duration::from_secs(10);

/// Parameters of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenParameters {
    /// The service.
    pub service_id: ServiceId,
    /// The address, or `None` for all of the device.
    pub address: Option<IpAddr>,
    /// It offers datagram queue pairs, not connections.
    pub is_datagram: bool,
    /// The transport service of its connections: requests with another one are refused.
    pub transport: ConnectionTransport,
    /// Maximum number of requests that the application has not taken.
    pub backlog: usize,
}

/// A listener.
pub(super) struct Listener {
    pub(super) parameters: ListenParameters,
    /// Requests that the application has not taken.
    waiting: BTreeSet<ConnectionHandle>,
    pub(super) waiting_inquiries: BTreeSet<InquiryHandle>,
    /// When a request first found the backlog full, since the application took one.
    full_since: Option<Time>,
}

/// The room of a listener for one more request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Free,
    /// The request is dropped; its repetition finds room.
    Full,
    /// The application has taken nothing for long.
    Stalled,
}

impl Listener {
    /// Returns whether there is room for a request.
    ///
    /// Linux drops requests beyond the backlog, and the initiator learns nothing but the end of its repetitions
    /// (`cma.c`, `cma_ib_req_handler`; `ucma.c`, `ucma_event_handler`). So does this manager while the application
    /// takes requests: a REJ would end an attempt that a repetition saves, and turn a flood of forged requests into
    /// refusals of good ones. If the application has stopped taking requests, initiators learn it by a REJ.
    pub(super) fn room(&mut self, now: Time) -> Room {
        if self.waiting_requests() < self.parameters.backlog {
            return Room::Free;
        }
        let since = *self.full_since.get_or_insert(now);
        if now.saturating_since(since) < STALLED { Room::Full } else { Room::Stalled }
    }

    /// Returns the number of requests that the application has not taken.
    pub(super) fn waiting_requests(&self) -> usize {
        self.waiting.len() + self.waiting_inquiries.len()
    }

    pub(super) fn forget_inquiry(&mut self, handle: InquiryHandle) {
        if self.waiting_inquiries.remove(&handle) {
            self.full_since = None;
        }
    }
}

/// All listeners.
#[derive(Default)]
pub(super) struct Listeners {
    all: BTreeMap<ListenerHandle, Listener>,
    by_service: BTreeMap<ServiceId, Vec<ListenerHandle>>,
}

impl Listeners {
    pub(super) fn get_mut(&mut self, handle: ListenerHandle) -> Option<&mut Listener> {
        self.all.get_mut(&handle)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Listener> {
        self.all.values()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the transport service of a listener's connections.
    pub(super) fn transport_of(&self, handle: ListenerHandle) -> Option<ConnectionTransport> {
        self.all.get(&handle).map(|listener| listener.parameters.transport)
    }

    /// Returns the listeners of a service.
    pub(super) fn of(&self, service_id: ServiceId) -> impl Iterator<Item = (ListenerHandle, &ListenParameters)> {
        let handles = self.by_service.get(&service_id).into_iter().flatten();
        handles.filter_map(|handle| self.all.get(handle).map(|listener| (*handle, &listener.parameters)))
    }

    /// Notes that a request waits for the application.
    pub(super) fn note_waiting(&mut self, handle: ListenerHandle, connection: ConnectionHandle) {
        if let Some(listener) = self.all.get_mut(&handle) {
            listener.waiting.insert(connection);
        }
    }

    /// Notes that a request waits no longer.
    pub(super) fn forget_waiting(&mut self, handle: ListenerHandle, connection: ConnectionHandle) {
        if let Some(listener) = self.all.get_mut(&handle)
            && listener.waiting.remove(&connection)
        {
            listener.full_since = None;
        }
    }

    fn insert(&mut self, handle: ListenerHandle, parameters: ListenParameters) {
        let (waiting, waiting_inquiries) = (BTreeSet::new(), BTreeSet::new());
        self.all.insert(handle, Listener { parameters, waiting, waiting_inquiries, full_since: None });
        self.by_service.entry(parameters.service_id).or_default().push(handle);
    }

    fn remove(&mut self, handle: ListenerHandle) -> Option<Listener> {
        let listener = self.all.remove(&handle)?;
        let service_id = listener.parameters.service_id;
        if let Some(handles) = self.by_service.get_mut(&service_id) {
            handles.retain(|other| *other != handle);
            if handles.is_empty() {
                self.by_service.remove(&service_id);
            }
        }
        Some(listener)
    }
}

impl Manager {
    /// Listens for requests to a service. The ports of all processes are the caller's business.
    pub fn listen(&mut self, parameters: ListenParameters) -> Result<ListenerHandle, CallError> {
        let limit = self.limits.listeners;
        if self.listeners.all.len() >= limit {
            return Err(CallError::TooMany { objects: "listeners", limit });
        }
        let ListenParameters { service_id, address, .. } = parameters;
        if self.listeners.of(service_id).any(|(_, other)| other.address == address) {
            return Err(CallError::InUse { service_id, address });
        }
        let handle = self.draw_listener_handle();
        let backlog = parameters.backlog.clamp(1, self.limits.backlog.max(1));
        self.listeners.insert(handle, ListenParameters { backlog, ..parameters });
        self.held.hasten(service_id);
        Ok(handle)
    }

    /// Ends a listener. It rejects the requests that the application has not taken, as Linux (`cm.c`,
    /// `cm_destroy_id`), and destroys their connections: their events vanish, and the caller discards those that it has
    /// polled. Connections that were taken stay.
    pub fn destroy_listener(&mut self, now: Time, handle: ListenerHandle) -> Result<(), CallError> {
        let destroyed = CallError::Destroyed { call: "destroy_listener", object: "listener" };
        let listener = self.listeners.remove(handle).ok_or(destroyed)?;
        for connection in listener.waiting {
            self.destroy_connection(now, connection);
        }
        for inquiry in listener.waiting_inquiries {
            self.destroy_inquiry(now, inquiry);
        }
        Ok(())
    }
}
