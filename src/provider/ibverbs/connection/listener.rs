//! Listeners.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::super::device::Device;
use super::super::sys;
use super::convert::{self, Attributes, padded};
use super::datagram::IbverbsInquiry;
use super::established::{IbverbsConnection, Phase};
use super::{
    NO_EVENT, PORT, addresses, bind, channel, check_address, check_no_port, check_roce, from_call, next, watcher,
};
use crate::provider::{
    ConnectionListener, ConnectionPath, ConnectionRequest, DatagramRequest, Error, ErrorKind, EventWait, ListenInit,
    ListenerEvent, Result,
};
use crate::types::{Gid, Mtu};

/// Lengths of the private data of requests.
const REQUEST_BYTES: usize = 56;
const INQUIRY_BYTES: usize = 180;
/// The error if the identifier of a request cannot be moved to a channel of its own.
const NO_CHANNEL: &str = "a request is rejected, because it cannot have an event channel: raise the limit of \
                          descriptors (`ulimit -n`), of which each connection has one, or drop connections";
/// Attempts to find a port that is free at all addresses of the device.
const MOST_PORTS: usize = 16;
/// Maximum number of requests that are examined before the caller looks at its time and waits again.
const MOST_TURNS: usize = 64;

/// A listener. One on all addresses has an identifier for each address of its device, and not one for all of the
/// machine, which would take the requests to other adapters, too.
pub(super) struct IbverbsListener {
    /// At least one.
    ids: Vec<sys::cm::Id>,
    channel: Arc<sys::cm::Channel>,
    local: SocketAddr,
    device: Arc<Device>,
}

impl IbverbsListener {
    pub(super) fn new(device: &Arc<Device>, init: &ListenInit<'_>) -> Result<Self> {
        check_no_port("listen", init.port)?;
        check_roce("listen", device)?;
        let channel = channel("listen", device)?;
        let addresses = addresses_of(device, init)?;
        let ids = bind_all(&channel, &addresses, init)?;
        let port = ids.first().and_then(sys::cm::Id::local_addr).map_or(0, |address| address.port());
        // Zero would mean the system's maximum.
        let backlog = init.backlog.clamp(1, i32::MAX as u32) as i32;
        for id in &ids {
            id.listen(backlog).map_err(|error| from_call("listen", "the port cannot be listened on", error))?;
        }
        let local = SocketAddr::new(init.address.ip(), port);
        Ok(Self { ids, channel, local, device: Arc::clone(device) })
    }

    /// Takes a request that waits.
    fn take(&self) -> Result<Option<ListenerEvent>> {
        // Requests that cannot be used may arrive as fast as they are dropped. After the last turn the descriptor stays
        // readable, so that no event is missed.
        for _ in 0..MOST_TURNS {
            let event = self.channel.next_event().map_err(|error| from_call("listen", NO_EVENT, error))?;
            let Some(mut event) = event else { return Ok(None) };
            if event.event == sys::cm::EventType::DEVICE_REMOVAL {
                let message = format!("the device {} is removed", self.device.name());
                return Err(Error::new("listen", ErrorKind::System, message));
            }
            let Some(id) = event.child.take() else { continue };
            let id = id.map_err(|error| from_call("listen", NO_CHANNEL, error))?;
            let request = if self.is_for_datagrams() { self.inquiry(id, &event) } else { self.request(id, &event) };
            match request {
                Ok(request) => return Ok(Some(request)),
                // The peer has given up meanwhile.
                Err(error) => tracing::debug!(target: "rdma_verbs::connection", %error, "a request is dropped"),
            }
        }
        Ok(None)
    }

    fn is_for_datagrams(&self) -> bool {
        self.ids.first().is_some_and(sys::cm::Id::is_for_datagrams)
    }

    fn request(&self, id: sys::cm::Id, event: &sys::cm::Event) -> Result<ListenerEvent> {
        let attributes = Attributes::of("listen", &id)?;
        let (local, remote) = ends(&id)?;
        let mut path = ConnectionPath {
            local,
            remote,
            remote_gid: remote.ip().into(),
            local_gid: Gid::from_bytes(id.local_gid().0),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
            path_mtu: Mtu::Mtu256,
            retry_count: 0,
            ack_timeout: attributes.ack_timeout(),
        };
        attributes.apply(&mut path)?;
        let remote = convert::peer(event, attributes.peer_psn(), REQUEST_BYTES);
        let connection = Arc::new(IbverbsConnection::new(&self.device, id, Phase::Answering, None));
        Ok(ListenerEvent::Connection(Box::new(ConnectionRequest { path, remote, connection })))
    }

    fn inquiry(&self, id: sys::cm::Id, event: &sys::cm::Event) -> Result<ListenerEvent> {
        let (local, remote) = ends(&id)?;
        let private_data = padded(&event.private_data, INQUIRY_BYTES);
        let inquiry = Box::new(IbverbsInquiry::new(&self.device, id));
        Ok(ListenerEvent::Datagram(Box::new(DatagramRequest { local, remote, private_data, inquiry })))
    }
}

/// Returns the addresses of both ends of a request.
fn ends(id: &sys::cm::Id) -> Result<(SocketAddr, SocketAddr)> {
    let ends = id.local_addr().zip(id.remote_addr());
    ends.ok_or_else(|| Error::new("listen", ErrorKind::Protocol, "the request has no addresses"))
}

impl ConnectionListener for IbverbsListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn next_event(&self, wait: EventWait<'_>) -> Result<Option<ListenerEvent>> {
        next("listen", &self.device, &self.channel, None, wait, || self.take())
    }

    fn as_fd(&self) -> Result<BorrowedFd<'_>> {
        self.device.check_process("listen")?;
        Ok(self.channel.descriptor())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for IbverbsListener {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            // The kernel rejects the requests that were not taken when it destroys the identifier of the listener.
            watcher::forget(&self.channel);
        }
    }
}

/// Returns the addresses that a listener binds.
fn addresses_of(device: &Device, init: &ListenInit<'_>) -> Result<Vec<IpAddr>> {
    let address = init.address.ip();
    if !address.is_unspecified() {
        check_address("listen", device, address)?;
        return Ok(vec![address]);
    }
    let takes_both = address.is_ipv6() && !init.only_v6.unwrap_or_else(is_only_v6_by_default);
    let mut found = addresses(&device.gid_table(PORT)?);
    found.retain(|own| takes_both || own.is_ipv4() == address.is_ipv4());
    if found.is_empty() {
        let message = format!("the device {} has no address of the IP version of {address}", device.name());
        return Err(Error::new("listen", ErrorKind::NotFound, message));
    }
    Ok(found)
}

fn is_only_v6_by_default() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
}

/// Binds an identifier to each address, all to the same port.
fn bind_all(channel: &Arc<sys::cm::Channel>, addresses: &[IpAddr], init: &ListenInit<'_>) -> Result<Vec<sys::cm::Id>> {
    let attempts = if init.address.port() == 0 && addresses.len() > 1 { MOST_PORTS } else { 1 };
    let mut bound = bind_once(channel, addresses, init);
    for _ in 1..attempts {
        match bound {
            Err(error) if error.kind() == ErrorKind::AddressInUse => bound = bind_once(channel, addresses, init),
            _ => break,
        }
    }
    bound
}

fn bind_once(channel: &Arc<sys::cm::Channel>, addresses: &[IpAddr], init: &ListenInit<'_>) -> Result<Vec<sys::cm::Id>> {
    let (mut address, mut ids) = (init.address, Vec::new());
    for ip in addresses {
        if init.address.ip().is_unspecified() {
            address = SocketAddr::new(*ip, address.port());
        }
        let id = bind("listen", channel, init.space as u32, address, init.reuse_address)?;
        address.set_port(id.local_addr().map_or(address.port(), |bound| bound.port()));
        ids.push(id);
    }
    Ok(ids)
}
