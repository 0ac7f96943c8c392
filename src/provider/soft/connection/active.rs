//! The active end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::device::Device;
use super::bound::requesting;
use super::established::SoftConnection;
use super::{Seat, convert, local_address};
use crate::provider::{ConnectInit, Result};
use crate::wire::mad::PortSpace;

/// Requests a connection.
pub(super) fn connect(device: &Arc<Device>, init: &ConnectInit<'_>) -> Result<SoftConnection> {
    super::check_versions("connect", init.path.local, init.path.remote)?;
    let (seat, _) = Seat::open("connect", device, &[local_address("connect", device, init.path.local.ip())?])?;
    let block = seat.shard.id_block();
    let (port, space) = requesting("connect", init.port, PortSpace::Tcp, init.path.local, block)?;
    let local = SocketAddr::new(init.path.local.ip(), port.number());
    let handle = seat.call("connect", |connections, now| {
        let parameters = convert::connect_parameters(init, space, local, now);
        Ok(parameters.map(|parameters| connections.connect(now, &seat.queue, &parameters)))
    })?;
    let handle = handle?.map_err(|error| convert::from_call("connect", &error))?;
    Ok(SoftConnection::new(seat, handle, local, Some(port)))
}
