//! Listeners.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::super::device::Device;
use super::super::errors;
use super::super::later_addresses::{Versions, WildcardListener};
use super::bound::SoftPort;
use super::datagram::SoftInquiry;
use super::established::SoftConnection;
use super::{Seat, convert, local_address, port_error};
use crate::cm::{Event, ListenParameters, ListenerHandle, Owner};
use crate::engine::{Delivery, Port, PortError, PortRequest, steer_requests};
use crate::provider::{
    ConnectionListener, ConnectionRequest, DatagramRequest, EventWait, ListenInit, ListenerEvent, PortSpace, Result,
};
use crate::sys::LocalAddress;
use crate::wire::mad::ServiceId;

/// A listener.
pub(super) struct SoftListener {
    seat: Seat,
    /// The entry among the listeners that the device opens later addresses for.
    wildcard: Option<Arc<WildcardListener>>,
    handle: ListenerHandle,
    local: SocketAddr,
    port: Arc<Port>,
}

impl SoftListener {
    pub(super) fn new(device: &Arc<Device>, init: &ListenInit<'_>) -> Result<Self> {
        let (seat, opened) = Seat::open("listen", device, &addresses_of(device, init)?)?;
        let port = lease_port(&seat, init)?;
        let parameters = ListenParameters {
            service_id: ServiceId::of_port(init.space, port.number()),
            address: match init.address.ip() {
                IpAddr::V6(address) if address.is_unspecified() && !port.is_only_v6() => None,
                address => Some(address),
            },
            is_datagram: matches!(init.space, PortSpace::Udp | PortSpace::Ipoib),
            transport: init.transport,
            backlog: init.backlog as usize,
        };
        let handle = seat
            .call("listen", |connections, _| connections.create(&seat.queue, |manager| manager.listen(parameters)))?;
        for address in &opened {
            steer_requests(address.ip, seat.shard.id_block(), parameters.service_id);
        }
        let wildcard = init.address.ip().is_unspecified().then(|| {
            let listener = WildcardListener::new(&seat.shard, Versions::of(init), parameters.service_id, opened);
            device.serve_later_addresses(&listener);
            listener
        });
        let local = SocketAddr::new(init.address.ip(), port.number());
        Ok(Self { seat, wildcard, handle, local, port })
    }

    /// Returns the request of an event; `None` if the peer has given up meanwhile.
    fn take(&self, delivery: Box<Delivery>) -> Result<Option<ListenerEvent>> {
        let Delivery { event, requested } = *delivery;
        let Some(queue) = requested else { return Ok(None) };
        let seat = self.seat.beside(queue);
        match event {
            Event::ConnectRequest { connection, header, private_data, request, native, .. } => {
                let (path, remote) = convert::of_request(&request, &header, &private_data, native);
                let accepted = SoftConnection::new(seat, connection, path.local, None);
                let is_taken = self.seat.call("listen", |connections, _| connections.take(connection));
                let connection = Arc::new(accepted);
                let request = ConnectionRequest { path, remote, connection };
                Ok(is_taken.is_ok().then(|| ListenerEvent::Connection(Box::new(request))))
            }
            Event::Inquiry { inquiry, header, private_data, request, .. } => {
                let port = request.service_id.port().map_or(0, |(_, port)| port);
                let asked = SoftInquiry::new(seat, inquiry);
                let is_taken = self.seat.call("listen", |connections, _| connections.take(inquiry));
                let request = DatagramRequest {
                    local: SocketAddr::new(header.destination(), port),
                    remote: header.source(),
                    private_data: private_data.as_bytes().to_vec(),
                    inquiry: Box::new(asked),
                };
                Ok(is_taken.is_ok().then(|| ListenerEvent::Datagram(Box::new(request))))
            }
            _ => Err(errors::engine_failed("listen")),
        }
    }
}

impl ConnectionListener for SoftListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ListenerEvent>> {
        // Each turn takes an event, of which there are at most as many as the backlog.
        while let Some(delivery) = self.seat.next("listen", wait)? {
            if let Some(event) = self.take(delivery)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn as_fd(&self) -> Result<BorrowedFd<'_>> {
        self.seat.descriptor("listen")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftListener {
    fn drop(&mut self) {
        if let Some(listener) = &self.wildcard {
            self.seat.device.forget_wildcard(listener);
        }
        self.seat.leave(|connections, now| {
            let _ = connections.manager().destroy_listener(now, self.handle);
            connections.forget(Owner::Listener(self.handle));
            // The requests that were not taken are destroyed as well. No event comes while the shard is held.
            while let Some(delivery) = self.seat.queue.take_waiting() {
                connections.forget(delivery.event.owner());
            }
        });
    }
}

/// Returns the addresses of the device that a listener needs sockets for. One on all addresses of an IP version may
/// have none yet, as with rdma_cm, which serves those that come (`cma.c`, `cma_listen_on_all`).
fn addresses_of(device: &Device, init: &ListenInit<'_>) -> Result<Vec<LocalAddress>> {
    let address = init.address.ip();
    if !address.is_unspecified() {
        return Ok(vec![local_address("listen", device, address)?]);
    }
    let versions = Versions::of(init);
    let own = device.addresses().into_iter().map(|(_, local)| local);
    Ok(own.filter(|local| versions.include(local.ip)).collect())
}

/// Leases the port, or shares that of a listener on another device.
fn lease_port(seat: &Seat, init: &ListenInit<'_>) -> Result<Arc<Port>> {
    let fail = |error: PortError| port_error("listen", error);
    let block = seat.shard.id_block();
    if let Some(other) = init.shares_port_of {
        let other = other.as_any().downcast_ref::<SoftListener>();
        let port = other.map(|other| Arc::clone(&other.port)).ok_or_else(|| errors::foreign("listen", "listener"))?;
        port.add_block(block).map_err(fail)?;
        return Ok(port);
    }
    if let Some(port) = init.port {
        return SoftPort::of("listen", port)?.for_listener(block);
    }
    let ListenInit { address, space, reuse_address, only_v6, .. } = *init;
    let request = PortRequest { space, address: address.ip(), port: address.port(), reuse_address, only_v6, block };
    let port = Port::bind(&request).map_err(fail)?;
    port.listen().map_err(fail)?;
    Ok(Arc::new(port))
}
