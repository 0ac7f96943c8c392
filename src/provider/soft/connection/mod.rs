//! The connection manager of a software device: the machine of [`crate::cm`] in the device's first shard.

mod active;
mod bound;
mod convert;
mod datagram;
mod established;
mod listener;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;

use super::context::SoftContext;
use super::device::Device;
use super::errors;
use crate::cm::CallError;
use crate::engine::{Awaited, Connections, Delivery, EventQueue, PortError, Shard};
use crate::provider::{
    BindInit, BoundPort, ConnectInit, Connection, ConnectionListener, ConnectionManager, Error, ErrorKind, EventWait,
    ListenInit, Resolution, ResolveInit, Result,
};
use crate::sys::LocalAddress;
use crate::types::Time;

impl ConnectionManager for SoftContext {
    fn bind(&self, init: &BindInit) -> Result<Arc<dyn BoundPort>> {
        self.device().check_process("bind_addr")?;
        Ok(Arc::new(bound::SoftPort::new(self.device(), init)?))
    }

    fn listen(&self, init: &ListenInit<'_>) -> Result<Arc<dyn ConnectionListener>> {
        self.device().check_process("listen")?;
        Ok(Arc::new(listener::SoftListener::new(self.device(), init)?))
    }

    fn connect(&self, init: &ConnectInit<'_>) -> Result<Arc<dyn Connection>> {
        self.device().check_process("connect")?;
        Ok(Arc::new(active::connect(self.device(), init)?))
    }

    fn resolve(&self, init: &ResolveInit<'_>) -> Result<Box<dyn Resolution>> {
        self.device().check_process("resolve")?;
        Ok(Box::new(datagram::SoftResolution::new(self.device(), init)?))
    }
}

/// The shard of a device whose connection manager is used, and the queue of one object's events.
struct Seat {
    device: Arc<Device>,
    shard: Arc<Shard>,
    queue: Arc<EventQueue>,
}

impl Seat {
    /// Opens the sockets of these addresses, and starts the device's threads, which serve the connection manager while
    /// the application does something else. Also returns the addresses whose sockets are open: of several, those whose
    /// sockets cannot be opened are left out, with a warning.
    fn open(verb: &'static str, device: &Arc<Device>, addresses: &[LocalAddress]) -> Result<(Self, Vec<LocalAddress>)> {
        let Some(shard) = device.engine.shards().first().cloned() else { return Err(errors::engine_failed(verb)) };
        let (mut failure, mut opened) = (None, Vec::new());
        for address in addresses {
            match shard.open_management(*address) {
                Ok(()) => opened.push(*address),
                Err(error) => {
                    let (address, message, source) = (address.ip, &error.message, &error.source);
                    tracing::warn!(
                        target: "rdma_verbs::device",
                        local = %address, reason = message, error = %source, verb, "no connections at this address"
                    );
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure.filter(|_| opened.is_empty()) {
            return Err(errors::from_open(verb, error));
        }
        device.engine.start().map_err(|error| Error::from_io(verb, "the system cannot start another thread", error))?;
        Ok((Self { device: Arc::clone(device), shard, queue: Arc::default() }, opened))
    }

    /// Returns the seat of another object at the same shard.
    fn beside(&self, queue: Arc<EventQueue>) -> Self {
        Self { device: Arc::clone(&self.device), shard: Arc::clone(&self.shard), queue }
    }

    /// Makes a call of the connection manager.
    fn call<R>(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut Connections, Time) -> std::result::Result<R, CallError>,
    ) -> Result<R> {
        self.device.check_process(verb)?;
        let called = self.shard.manage(call);
        called.ok_or_else(|| errors::engine_failed(verb))?.map_err(|error| convert::from_call(verb, &error))
    }

    /// Makes a call for an object that is dropped. In a process that inherited it, nothing happens.
    fn leave(&self, call: impl FnOnce(&mut Connections, Time)) {
        if !self.device.is_inherited() {
            let _ = self.shard.manage(call);
        }
    }

    /// Waits for an event.
    fn next(&self, verb: &'static str, wait: EventWait<'_>) -> Result<Option<Box<Delivery>>> {
        self.device.check_process(verb)?;
        let awaited = match wait {
            EventWait::Until(deadline) => self.queue.wait(deadline),
            EventWait::Waker(waker) => match self.queue.poll(waker) {
                Poll::Ready(awaited) => awaited,
                Poll::Pending => return Ok(None),
            },
        };
        match awaited {
            Awaited::Event(delivery) => Ok(Some(delivery)),
            Awaited::TimedOut => Ok(None),
            Awaited::Closed => Err(errors::engine_failed(verb)),
        }
    }

    fn descriptor(&self, verb: &'static str) -> Result<std::os::fd::BorrowedFd<'_>> {
        self.device.check_process(verb)?;
        let opened = self.queue.descriptor();
        opened.map_err(|error| Error::from_io(verb, "the system has no descriptor left", error))
    }
}

/// Returns the address of the device that a path begins at.
fn local_address(verb: &'static str, device: &Device, address: IpAddr) -> Result<LocalAddress> {
    let found = device.addresses().into_iter().map(|(_, local)| local).find(|local| local.ip == address);
    found.ok_or_else(|| {
        let device = &device.interface.device_name;
        Error::new(verb, ErrorKind::NotFound, format!("{address} is not an address of the device {device}"))
    })
}

/// Returns the error of a port that cannot be bound. Linux has two error numbers for a port in use; C programs get them
/// from the source.
fn port_error(verb: &'static str, error: PortError) -> Error {
    let kind = match &error {
        PortError::InUse { .. } | PortError::LoopbackInUse { .. } | PortError::NotAvailable { .. } => {
            ErrorKind::AddressInUse
        }
        PortError::Permission { .. } => ErrorKind::PermissionDenied,
        PortError::TooManyOwners { .. } | PortError::NoneFree { .. } => ErrorKind::ResourceLimit,
        PortError::System(_) => ErrorKind::System,
    };
    let message = error.to_string();
    Error::from_source(verb, kind, message, error.into())
}

/// Refuses a path between addresses of different IP versions.
fn check_versions(verb: &'static str, local: SocketAddr, remote: SocketAddr) -> Result<()> {
    if local.is_ipv4() == remote.is_ipv4() {
        return Ok(());
    }
    let message = format!("{} and {} have different IP versions", local.ip(), remote.ip());
    Err(Error::unsuitable(verb, "local", message))
}
