//! Ports of connections that are bound before their use: adapters have none.

use std::net::SocketAddr;

use super::connections::{LOCAL, address, end, manager, path, world};
use super::*;
use crate::provider::{BindInit, BoundPort, ConnectInit, ConnectionTransport, ListenInit, PortSpace, ResolveInit};

/// A port that another provider has bound.
struct Elsewhere;

impl BoundPort for Elsewhere {
    fn local_addr(&self) -> SocketAddr {
        address("192.0.2.1:5000")
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// librdmacm binds a port with the identifier that uses it.
#[test]
fn ports_are_not_bound_alone() {
    let world = world();
    let (local, space, path, end) = (address(LOCAL), PortSpace::Tcp, path(), end());
    let init = BindInit { address: local, space, reuse_address: false, only_v6: None };
    refused(manager(&world).bind(&init).map(drop), ErrorKind::Unsupported, &["192.0.2.1:0"]);
    let port: Option<&dyn BoundPort> = Some(&Elsewhere);
    let transport = ConnectionTransport::default();
    let init = ConnectInit { path: &path, end: &end, transport, ack_timeout: 14, timeout: None, port };
    refused(manager(&world).connect(&init).map(drop), ErrorKind::Unsupported, &["port 192.0.2.1:5000", "connect"]);
    let init = ResolveInit { path: &path, private_data: b"", timeout: None, port };
    refused(manager(&world).resolve(&init).map(drop), ErrorKind::Unsupported, &["port 192.0.2.1:5000", "resolve"]);
    let (reuse_address, only_v6, shares_port_of) = (false, None, None);
    let init =
        ListenInit { address: local, space, transport, backlog: 1, reuse_address, only_v6, shares_port_of, port };
    refused(manager(&world).listen(&init).map(drop), ErrorKind::Unsupported, &["port 192.0.2.1:5000", "listen"]);
    assert_eq!(world.fake.log(), [""; 0]);
}
