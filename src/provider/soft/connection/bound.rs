//! Ports: bound before their use is known, or with it.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::super::device::Device;
use super::super::errors;
use super::{local_address, port_error};
use crate::engine::{Port, PortRequest};
use crate::provider::{BindInit, BoundPort, PortSpace, Result};

/// A bound port.
pub(super) struct SoftPort {
    port: Arc<Port>,
    local: SocketAddr,
    space: PortSpace,
    /// Block of queue pair numbers of the device's shard.
    block: u16,
}

impl SoftPort {
    pub(super) fn new(device: &Arc<Device>, init: &BindInit) -> Result<Self> {
        let verb = "bind_addr";
        let BindInit { address, space, reuse_address, only_v6 } = *init;
        if !address.ip().is_unspecified() {
            local_address(verb, device, address.ip())?;
        }
        let Some(shard) = device.engine.shards().first() else { return Err(errors::engine_failed(verb)) };
        let block = shard.id_block();
        let request = PortRequest { space, address: address.ip(), port: address.port(), reuse_address, only_v6, block };
        let port = Port::bind(&request).map_err(|error| port_error(verb, error))?;
        Ok(Self { local: SocketAddr::new(address.ip(), port.number()), port: Arc::new(port), space, block })
    }

    /// Returns the software device's port behind a port.
    pub(super) fn of<'a>(verb: &'static str, port: &'a dyn BoundPort) -> Result<&'a Self> {
        port.as_any().downcast_ref().ok_or_else(|| errors::foreign(verb, "port"))
    }

    /// Returns the port for a listener at the shard with this block.
    pub(super) fn for_listener(&self, block: u16) -> Result<Arc<Port>> {
        let fail = |error| port_error("listen", error);
        self.port.listen().map_err(fail)?;
        if block != self.block {
            self.port.add_block(block).map_err(fail)?;
        }
        Ok(Arc::clone(&self.port))
    }

    /// Returns the port and its port space.
    pub(super) fn parts(&self) -> (Arc<Port>, PortSpace) {
        (Arc::clone(&self.port), self.space)
    }
}

impl BoundPort for SoftPort {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the port of an end that requests, and its port space: the one given, or one that is bound now.
pub(super) fn requesting(
    verb: &'static str,
    given: Option<&dyn BoundPort>,
    space: PortSpace,
    local: SocketAddr,
    block: u16,
) -> Result<(Arc<Port>, PortSpace)> {
    if let Some(port) = given {
        return Ok(SoftPort::of(verb, port)?.parts());
    }
    let address: IpAddr = local.ip();
    let request = PortRequest { space, address, port: local.port(), reuse_address: false, only_v6: None, block };
    let port = Port::bind(&request).map_err(|error| port_error(verb, error))?;
    Ok((Arc::new(port), space))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::provider::{
        ConnectInit, ConnectionEnd, ConnectionPath, ConnectionTransport, Context, ErrorKind, EventWait, ListenInit,
        ListenerEvent, Provider, VendorId, VendorOptions, soft::SoftProvider,
    };
    use crate::types::Mtu;

    fn init(text: &str, space: PortSpace) -> BindInit {
        BindInit { address: text.parse().unwrap(), space, reuse_address: false, only_v6: None }
    }

    fn bound(context: &Arc<dyn Context>, init: &BindInit) -> Result<Arc<dyn BoundPort>> {
        context.connection_manager().unwrap().bind(init)
    }

    /// The request has the client's port, and it is for the client's port space.
    #[test]
    fn bound_ports_are_those_of_the_listener_and_of_the_request() {
        let [server, client] =
            ["127.46.1.21", "127.46.1.22"].map(|address| SoftProvider::new().open(&format!("soft:{address}")).unwrap());
        let (here, there) = (init("127.46.1.21:7471", PortSpace::Ib), init("127.46.1.22:0", PortSpace::Ib));
        let (own, other) = (bound(&server, &here).unwrap(), bound(&client, &there).unwrap());
        let listening = ListenInit {
            address: own.local_addr(),
            space: PortSpace::Ib,
            transport: ConnectionTransport::default(),
            backlog: 4,
            reuse_address: false,
            only_v6: None,
            shares_port_of: None,
            port: Some(&*own),
        };
        let listener = server.connection_manager().unwrap().listen(&listening).unwrap();
        drop(own);
        let refused = bound(&server, &here).err().unwrap();
        assert_eq!((refused.kind(), refused.os_error()), (ErrorKind::AddressInUse, Some(libc::EADDRNOTAVAIL)));
        let path = ConnectionPath {
            local: other.local_addr(),
            remote: here.address,
            remote_gid: here.address.ip().into(),
            local_gid: there.address.ip().into(),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            path_mtu: Mtu::Mtu1024,
            retry_count: 7,
            ack_timeout: 14,
        };
        let vendor_options = VendorOptions { vendor: VendorId::new(0x15b3), options: 9 };
        let end = ConnectionEnd { vendor_options, ..ConnectionEnd::default() };
        let transport = ConnectionTransport::default();
        let (ack_timeout, port) = (14, Some(&*other));
        let connecting = ConnectInit { path: &path, end: &end, transport, ack_timeout, timeout: None, port };
        let _connection = client.connection_manager().unwrap().connect(&connecting).unwrap();
        let deadline = Instant::now().checked_add(Duration::from_secs(20));
        let Some(ListenerEvent::Connection(request)) = listener.next_event(EventWait::Until(deadline)).unwrap() else {
            panic!("the request");
        };
        assert_eq!((request.path.remote, request.remote.vendor_options), (other.local_addr(), vendor_options));
        drop((request, listener));
        bound(&server, &here).unwrap();
    }

    #[test]
    fn address_of_another_device_is_refused() {
        let context = SoftProvider::new().open("soft:127.46.1.23").unwrap();
        let refused = bound(&context, &init("127.46.1.24:0", PortSpace::Tcp)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }
}
