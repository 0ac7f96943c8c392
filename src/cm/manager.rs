//! The manager: its tables, its inputs and outputs. The files beside this one have the rules of each message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::connection::{Connection, ConnectionState, Kept, Load};
use super::counters::Counters;
use super::deadlines::Deadlines;
use super::error::CallError;
use super::event::{Event, Events};
use super::handle::{ConnectionHandle, InquiryHandle, ListenerHandle, Owner, ResolutionHandle};
use super::held::HeldRequests;
use super::ids::Ids;
use super::inquiry::Inquiries;
use super::limits::Limits;
use super::listener::Listeners;
use super::resolution::Resolution;
use super::route::{Outgoing, Route};
use crate::types::{Qpn, Time};
use crate::wire::mad::{Attribute, CommunicationId, Mad};

/// Options of a manager.
pub struct ManagerConfig {
    /// GUID of the device.
    pub guid: u64,
    /// The top 12 bits of all communication ids of this process. Processes with one GUID need different blocks, because
    /// a peer takes a REQ with the number of another one for its repetition.
    pub id_block: u32,
    /// The addresses of the device.
    pub addresses: Vec<IpAddr>,
    /// Source of random numbers; the engine's is cryptographic, the simulator's is seeded.
    pub random: Box<dyn FnMut() -> u32 + Send>,
    /// Bounds of the tables and queues.
    pub limits: Limits,
}

/// The connections of one device in one process.
///
/// Its methods are of four kinds: calls of the application ([`connect`](Self::connect), [`listen`](Self::listen), …),
/// inputs (`handle_*`), outputs ([`poll_output`](Self::poll_output), [`poll_event`](Self::poll_event),
/// [`poll_set_up`](Self::poll_set_up), [`poll_held`](Self::poll_held), [`next_deadline`](Self::next_deadline)) and
/// getters. After inputs and calls, poll the outputs until there are none.
/// Time only moves forward.
pub struct Manager {
    pub(super) guid: u64,
    pub(super) addresses: Vec<IpAddr>,
    random: Box<dyn FnMut() -> u32 + Send>,
    pub(super) limits: Limits,
    pub(super) ids: Ids,
    last_handle: u64,
    pub(super) connections: BTreeMap<ConnectionHandle, Connection>,
    /// Connections by own communication id.
    pub(super) by_id: BTreeMap<CommunicationId, ConnectionHandle>,
    /// Passive ends by the GUID and the number in their REQ: a REQ with both is a repetition.
    pub(super) by_request: BTreeMap<(u64, CommunicationId), ConnectionHandle>,
    /// Live connections by the peer's GUID and queue pair: a REQ or REP with both is stale.
    pub(super) by_queue_pair: BTreeMap<(u64, Qpn), ConnectionHandle>,
    pub(super) half_open: usize,
    /// Connections that have ended, in the order in which they ended.
    pub(super) resting: BTreeSet<(Time, ConnectionHandle)>,
    pub(super) listeners: Listeners,
    /// Requests that wait for a listener.
    pub(super) held: HeldRequests,
    pub(super) resolutions: BTreeMap<ResolutionHandle, Resolution>,
    /// Requests for datagram queue pairs by their number.
    pub(super) resolution_ids: BTreeMap<CommunicationId, ResolutionHandle>,
    pub(super) inquiries: Inquiries,
    pub(super) deadlines: Deadlines,
    outputs: VecDeque<Outgoing>,
    /// Connections that have been set up, or have ended.
    pub(super) set_up_changes: VecDeque<ConnectionHandle>,
    pub(super) events: Events,
    pub(super) counters: Counters,
}

impl Manager {
    /// Creates a manager without connections.
    pub fn new(config: ManagerConfig) -> Self {
        Self {
            guid: config.guid,
            addresses: config.addresses,
            random: config.random,
            limits: config.limits,
            ids: Ids::new(config.id_block),
            last_handle: 0,
            connections: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_request: BTreeMap::new(),
            by_queue_pair: BTreeMap::new(),
            half_open: 0,
            resting: BTreeSet::new(),
            listeners: Listeners::default(),
            held: HeldRequests::default(),
            resolutions: BTreeMap::new(),
            resolution_ids: BTreeMap::new(),
            inquiries: Inquiries::default(),
            deadlines: Deadlines::default(),
            outputs: VecDeque::new(),
            set_up_changes: VecDeque::new(),
            events: Events::default(),
            counters: Counters::default(),
        }
    }

    /// Replaces the addresses of the device. Connections keep theirs.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.addresses = addresses;
    }

    #[cfg(any(test, feature = "sim"))]
    /// Returns the counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    #[cfg(any(test, feature = "sim"))]
    /// Returns the state of a connection, or `None` if it is destroyed.
    pub fn state(&self, handle: ConnectionHandle) -> Option<ConnectionState> {
        self.connections.get(&handle).filter(|connection| !connection.is_detached).map(|connection| connection.state)
    }

    #[cfg(any(test, feature = "sim"))]
    /// Returns the number of connections in all states, those that end in the background included.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns the earliest deadline: [`handle_timeout`](Self::handle_timeout) and [`poll_held`](Self::poll_held) are
    /// due then.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next().into_iter().chain(self.held.next_search()).min()
    }

    /// Takes the next datagram to send.
    pub fn poll_output(&mut self) -> Option<Outgoing> {
        self.outputs.pop_front()
    }

    /// Returns whether datagrams wait to be sent.
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Handles the deadlines until `now`. It stops early if the queue of datagrams is full; the deadlines that remain
    /// are then due at once, after the queue is polled.
    pub fn handle_timeout(&mut self, now: Time) {
        while self.outputs.len() + 2 <= self.limits.outputs
            && let Some(owner) = self.deadlines.pop_expired(now)
        {
            match owner {
                Owner::Connection(handle) => self.expire_connection(now, handle),
                Owner::Resolution(handle) => self.expire_resolution(now, handle),
                Owner::Inquiry(handle) => self.expire_inquiry(handle),
                Owner::Listener(_) => {}
            }
        }
    }

    /// Returns the connection of a call, unless it is destroyed.
    pub(super) fn called(&self, call: &'static str, handle: ConnectionHandle) -> Result<&Connection, CallError> {
        let found = self.connections.get(&handle).filter(|connection| !connection.is_detached);
        found.ok_or(CallError::Destroyed { call, object: "connection" })
    }

    /// Returns the connection with this own communication id.
    pub(super) fn find(&self, local_id: CommunicationId) -> Option<(ConnectionHandle, &Connection)> {
        let handle = self.by_id.get(&local_id).copied()?;
        Some((handle, self.connections.get(&handle)?))
    }

    /// Returns the connection with both communication ids (`cm.c`, `cm_acquire_id`).
    pub(super) fn find_by_both(
        &self,
        local_id: CommunicationId,
        remote_id: CommunicationId,
    ) -> Option<(ConnectionHandle, &Connection)> {
        self.find(local_id).filter(|(_, connection)| connection.has_remote_id(remote_id))
    }

    /// Returns a number that no object of this manager has had.
    fn draw_handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    pub(super) fn draw_connection_handle(&mut self) -> ConnectionHandle {
        ConnectionHandle(self.draw_handle())
    }

    pub(super) fn draw_listener_handle(&mut self) -> ListenerHandle {
        ListenerHandle(self.draw_handle())
    }

    pub(super) fn draw_resolution_handle(&mut self) -> ResolutionHandle {
        ResolutionHandle(self.draw_handle())
    }

    pub(super) fn draw_inquiry_handle(&mut self) -> InquiryHandle {
        InquiryHandle(self.draw_handle())
    }

    pub(super) fn draw_id(&mut self) -> Result<CommunicationId, CallError> {
        self.ids.draw(&mut *self.random).ok_or(CallError::NoFreeId)
    }

    pub(super) fn draw(&mut self) -> u32 {
        (self.random)()
    }

    /// Draws a transaction id. Peers repeat it and do not compare it.
    pub(super) fn draw_transaction_id(&mut self) -> u64 {
        u64::from(self.draw()) << 32 | u64::from(self.draw())
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, connection: Connection) -> ConnectionHandle {
        let handle = self.draw_connection_handle();
        self.by_id.insert(connection.local_id, handle);
        let load = connection.load();
        self.connections.insert(handle, connection);
        self.shift_load(handle, Load::default(), load);
        handle
    }

    /// Changes a connection, and with it the indexes and the counts of all. Does nothing if it does not exist.
    pub(super) fn change(&mut self, handle: ConnectionHandle, change: impl FnOnce(&mut Connection)) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let before = connection.load();
        change(connection);
        let after = connection.load();
        self.shift_load(handle, before, after);
    }

    /// Moves a connection to a state, and clears its deadline.
    pub(super) fn enter(&mut self, now: Time, handle: ConnectionHandle, state: ConnectionState) {
        self.deadlines.set(Owner::Connection(handle), None);
        self.change(handle, |connection| {
            connection.state = state;
            connection.since = now;
        });
    }

    /// Removes a connection, its events and its deadline.
    pub(super) fn remove(&mut self, handle: ConnectionHandle) {
        self.release_id(handle);
        self.events.cancel(Owner::Connection(handle));
        self.deadlines.set(Owner::Connection(handle), None);
        if let Some(connection) = self.connections.remove(&handle) {
            self.shift_load(handle, connection.load(), Load::default());
        }
    }

    /// Releases the communication id of a connection, which no datagram finds from now on.
    pub(super) fn release_id(&mut self, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let id = std::mem::take(&mut connection.local_id);
        if self.by_id.get(&id) == Some(&handle) {
            self.by_id.remove(&id);
            self.ids.release(id);
        }
    }

    /// Updates the counts and indexes when a connection's share changes.
    fn shift_load(&mut self, handle: ConnectionHandle, before: Load, after: Load) {
        if before == after {
            return;
        }
        self.half_open = self.half_open + usize::from(after.is_half_open) - usize::from(before.is_half_open);
        if let Some(time) = before.rests_since {
            self.resting.remove(&(time, handle));
        }
        if let Some(time) = after.rests_since {
            self.resting.insert((time, handle));
        }
        if before.waits_at != after.waits_at {
            before.waits_at.into_iter().for_each(|listener| self.listeners.forget_waiting(listener, handle));
            after.waits_at.into_iter().for_each(|listener| self.listeners.note_waiting(listener, handle));
        }
        if before.is_set_up != after.is_set_up {
            self.set_up_changes.push_back(handle);
        }
        shift_index(&mut self.by_queue_pair, handle, before.uses, after.uses);
        shift_index(&mut self.by_request, handle, before.request, after.request);
    }

    /// Sets the deadline of a connection.
    pub(super) fn schedule(&mut self, now: Time, handle: ConnectionHandle, wait: Duration) {
        self.deadlines.set(Owner::Connection(handle), Some(now + wait));
    }

    /// Reports an event of a connection, unless the application has destroyed it.
    pub(super) fn report(&mut self, handle: ConnectionHandle, event: Event) {
        if self.connections.get(&handle).is_some_and(|connection| !connection.is_detached) {
            self.events.push(event);
        }
    }

    /// Sends a message of a connection.
    pub(super) fn send(&mut self, route: Route, mad: &Mad) {
        if self.outputs.len() >= self.limits.outputs {
            self.counters.drops.outputs_full += 1;
            return;
        }
        self.counters.sent.note(mad.attribute);
        self.outputs.push_back(route.outgoing(mad.write()));
    }

    /// Sends a message of a connection again.
    pub(super) fn send_again(&mut self, route: Route, kept: &Kept) {
        self.counters.repeated.note(kept.attribute);
        self.send(route, kept);
    }

    /// Sends a response that is made from an arrived datagram alone. It may use half of the queue, so that a flood of
    /// datagrams leaves room for the messages of connections.
    pub(super) fn respond(&mut self, route: Route, mad: &Mad) {
        match self.outputs.len() < self.limits.outputs / 2 {
            true => self.send(route, mad),
            false => self.counters.drops.outputs_full += 1,
        }
    }

    /// Counts a message that has no meaning in the state of its connection.
    pub(super) fn drop_unexpected(&mut self, attribute: Attribute) {
        self.counters.drops.unexpected.note(attribute);
    }

    /// Counts a message whose ids are those of no connection.
    pub(super) fn drop_unknown(&mut self, attribute: Attribute) {
        self.counters.drops.unknown.note(attribute);
    }

    /// Counts a message that arrived again.
    pub(super) fn note_duplicate(&mut self, attribute: Attribute) {
        self.counters.duplicates.note(attribute);
    }
}

/// Moves an entry of an index. Two connections never have the same key: a request or a reply with the key of another
/// connection is refused as a repetition or as stale.
fn shift_index<K: Ord + Copy>(
    index: &mut BTreeMap<K, ConnectionHandle>,
    handle: ConnectionHandle,
    before: Option<K>,
    after: Option<K>,
) {
    if before == after {
        return;
    }
    if let Some(key) = before {
        let removed = index.remove(&key);
        debug_assert_eq!(removed, Some(handle), "each key is that of one connection");
    }
    if let Some(key) = after {
        let other = index.insert(key, handle);
        debug_assert_eq!(other, None, "each key is that of one connection");
    }
}
