//! The active end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::device::Device;
use super::established::SoftConnection;
use super::{Seat, convert, local_address, port_error};
use crate::engine::{Port, PortRequest};
use crate::provider::{ConnectInit, Result};
use crate::wire::mad::PortSpace;

/// Requests a connection.
pub(super) fn connect(device: &Arc<Device>, init: &ConnectInit<'_>) -> Result<SoftConnection> {
    super::check_versions("connect", init.path.local, init.path.remote)?;
    let (seat, _) = Seat::open("connect", device, &[local_address("connect", device, init.path.local.ip())?])?;
    let port = bind("connect", &seat, PortSpace::Tcp, init.path.local)?;
    let local = SocketAddr::new(init.path.local.ip(), port.number());
    let handle = seat.call("connect", |connections, now| {
        let parameters = convert::connect_parameters(init, local, now);
        Ok(parameters.map(|parameters| connections.create(&seat.queue, |manager| manager.connect(now, &parameters))))
    })?;
    let handle = handle?.map_err(|error| convert::from_call("connect", &error))?;
    Ok(SoftConnection::new(seat, handle, local, Some(port)))
}

/// Binds the port of an end that requests.
pub(super) fn bind(verb: &'static str, seat: &Seat, space: PortSpace, local: SocketAddr) -> Result<Port> {
    let request = PortRequest {
        space,
        address: local.ip(),
        port: local.port(),
        reuse_address: false,
        only_v6: None,
        block: seat.shard.id_block(),
    };
    Port::bind(&request).map_err(|error| port_error(verb, error))
}
