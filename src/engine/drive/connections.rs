//! The connection manager of a shard: the machine of [`crate::cm`], fed with the datagrams of queue pair 1, and the
//! queues that its events go to.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::connection_log::{ConnectionLog, LocalCall};
use super::event_queue::{EventQueue, EventQueues};
use crate::cm::{
    AcceptParameters, Arrival, CallError, ConnectParameters, ConnectionHandle, HeldRequest, Limits, Manager,
    ManagerConfig, Outgoing, Owner, Rejection,
};
use crate::engine::share::ConnectionRecords;
use crate::transport::ManagementDatagram;
use crate::types::Time;
use crate::wire::mad::FlowLabel;

/// A shard's connections, and their events.
pub(crate) struct Connections {
    guid: u64,
    id_block: u32,
    random: fn() -> u32,
    /// Created with the first call or datagram: most programs never need it.
    manager: Option<Box<Manager>>,
    queues: Arc<EventQueues>,
    /// Addresses with a receive socket, where requests are taken.
    addresses: Vec<IpAddr>,
    /// The connections that are set up, for other processes.
    records: ConnectionRecords,
    log: ConnectionLog,
}

impl Connections {
    /// Creates the connections of a device. Communication ids begin with `id_block`, by which datagrams find the shard.
    pub(super) fn new(
        guid: u64,
        id_block: u32,
        random: fn() -> u32,
        queues: &Arc<EventQueues>,
        log: ConnectionLog,
    ) -> Self {
        let (queues, records) = (Arc::clone(queues), ConnectionRecords::default());
        Self { guid, id_block, random, manager: None, queues, addresses: Vec::new(), records, log }
    }

    /// Returns the machine.
    pub(crate) fn manager(&mut self) -> &mut Manager {
        let Self { guid, id_block, random, manager, addresses, .. } = self;
        let (guid, id_block, random) = (*guid, *id_block, *random);
        manager.get_or_insert_with(|| {
            Box::new(Manager::new(ManagerConfig {
                guid,
                id_block,
                addresses: addresses.clone(),
                random: Box::new(random),
                limits: Limits::default(),
            }))
        })
    }

    /// Returns the machine, if there is one.
    pub(super) fn present_manager(&self) -> Option<&Manager> {
        self.manager.as_deref()
    }

    /// Takes requests at an address, which has a receive socket from now on. An interface may lose the address for a
    /// moment; the socket stays.
    pub(super) fn add_address(&mut self, address: IpAddr) {
        self.addresses.push(address);
        if let Some(manager) = &mut self.manager {
            manager.set_addresses(self.addresses.clone());
        }
    }

    /// Makes a call that creates an object, whose events go to `queue`.
    pub(crate) fn create<H: Copy + Into<Owner>>(
        &mut self,
        queue: &Arc<EventQueue>,
        call: impl FnOnce(&mut Manager) -> Result<H, CallError>,
    ) -> Result<H, CallError> {
        let handle = call(self.manager())?;
        self.queues.add(handle.into(), queue);
        Ok(handle)
    }

    /// Requests a connection, whose events go to `queue`.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        queue: &Arc<EventQueue>,
        parameters: &ConnectParameters,
    ) -> Result<ConnectionHandle, CallError> {
        let connection = self.create(queue, |manager| manager.connect(now, parameters))?;
        self.log.request_sent(now, connection, parameters);
        Ok(connection)
    }

    /// Accepts a peer's request.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        connection: ConnectionHandle,
        parameters: &AcceptParameters,
    ) -> Result<(), CallError> {
        self.manager().accept(now, connection, parameters)?;
        self.log.called(now, connection, LocalCall::Accept(parameters.local_qpn));
        Ok(())
    }

    /// Confirms the peer's reply: the connection is set up.
    pub(crate) fn ready(&mut self, now: Time, connection: ConnectionHandle) -> Result<(), CallError> {
        self.manager().ready(now, connection)?;
        self.log.called(now, connection, LocalCall::Ready);
        Ok(())
    }

    /// Rejects a peer's request or reply.
    pub(crate) fn reject(
        &mut self,
        now: Time,
        connection: ConnectionHandle,
        rejection: &Rejection,
    ) -> Result<(), CallError> {
        self.manager().reject(now, connection, rejection)?;
        self.log.called(now, connection, LocalCall::Reject(rejection.reason));
        Ok(())
    }

    /// Ends a connection.
    pub(crate) fn disconnect(&mut self, now: Time, connection: ConnectionHandle) -> Result<(), CallError> {
        self.manager().disconnect(now, connection)?;
        self.log.called(now, connection, LocalCall::Disconnect);
        Ok(())
    }

    /// Notes that the application has taken a peer's request: its end is an event from now on. Fails if the request has
    /// ended.
    pub(crate) fn take(&mut self, object: impl Into<Owner>) -> Result<(), CallError> {
        let object = object.into();
        self.queues.note_taken(object);
        match object {
            Owner::Connection(handle) => self.manager().take(handle),
            Owner::Inquiry(handle) => self.manager().take_inquiry(handle),
            Owner::Listener(_) | Owner::Resolution(_) => Ok(()),
        }
    }

    /// Forgets the queue of an object that the caller destroys.
    pub(crate) fn forget(&mut self, object: impl Into<Owner>) {
        let object = object.into();
        self.queues.remove(object);
        if let Owner::Connection(connection) = object {
            self.log.forget(connection);
        }
    }

    /// Handles a datagram that arrived at queue pair 1.
    pub(super) fn handle_datagram(&mut self, now: Time, datagram: &ManagementDatagram) {
        let arrival = Arrival {
            source: datagram.source,
            destination: datagram.destination,
            traffic_class: datagram.traffic_class,
            // Sockets do not report it.
            flow_label: FlowLabel::default(),
            bytes: &datagram.bytes[..],
        };
        self.guard(|manager| manager.handle_datagram(now, &arrival));
    }

    /// Runs the machine on input of peers. A panic ends the connections of the device, not its queue pairs.
    fn guard(&mut self, handle: impl FnOnce(&mut Manager)) {
        let manager = self.manager();
        if catch_unwind(AssertUnwindSafe(|| handle(manager))).is_err() {
            self.log.panicked();
            self.manager = None;
            self.records = ConnectionRecords::default();
            self.queues.close();
        }
    }

    /// Handles the deadlines until `now`.
    #[inline]
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.next_deadline().is_some_and(|due| due <= now) {
            self.guard(|manager| manager.handle_timeout(now));
        }
    }

    /// Takes a request that waits for a listener, if a search for one in other processes is due.
    #[inline]
    pub(super) fn poll_held(&mut self, now: Time) -> Option<HeldRequest> {
        self.manager.as_mut()?.poll_held(now)
    }

    /// Takes back a request for which no other process listens.
    pub(super) fn return_held(&mut self, now: Time, held: HeldRequest) {
        self.guard(|manager| manager.return_held(now, held));
    }

    /// Rejects the requests that wait for a listener.
    pub(super) fn refuse_held(&mut self) {
        if self.manager.is_some() {
            self.guard(Manager::refuse_held);
        }
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.manager.as_ref()?.next_deadline()
    }

    /// Takes the next datagram to send.
    #[inline]
    pub(super) fn poll_output(&mut self) -> Option<Outgoing> {
        self.manager.as_mut()?.poll_output()
    }

    /// Notes that a datagram cannot be sent, because no socket has its source address.
    pub(super) fn note_unsendable(&self, local: IpAddr, peer: IpAddr) {
        self.log.unsendable(local, peer);
    }

    /// Returns whether a peer has not confirmed the end of a connection.
    pub(super) fn awaits_disconnects(&self) -> bool {
        self.manager.as_ref().is_some_and(|manager| !manager.unconfirmed().is_empty())
    }

    /// Sends the DREQs of all connections whose end is not confirmed at once, unless some of the last round still wait.
    pub(super) fn hasten_disconnects(&mut self) {
        let Some(manager) = self.manager.as_mut().filter(|manager| !manager.has_outputs()) else { return };
        manager.unconfirmed().into_iter().for_each(|connection| manager.hasten_disconnect(connection));
    }

    /// Returns whether datagrams wait to be sent.
    #[inline]
    pub(super) fn has_outputs(&self) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.has_outputs())
    }

    /// Brings the events of the machine to the queues of their objects, and records the connections that are set up.
    #[inline]
    pub(super) fn deliver_events(&mut self, now: Time) {
        let Self { manager: Some(manager), queues, records, log, .. } = self else { return };
        while let Some((connection, orphan)) = manager.poll_set_up() {
            records.note(connection, orphan.as_ref());
        }
        // Destroying an object makes no event.
        while let Some(event) = manager.poll_event() {
            log.happened(now, &event);
            if let Some(object) = queues.deliver(event) {
                if let Owner::Connection(connection) = object {
                    log.forget(connection);
                }
                manager.destroy_object(now, object);
            }
        }
    }
}
