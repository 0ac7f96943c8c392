//! The active end of a connection.

use std::sync::Arc;
use std::time::Instant;

use super::super::device::Device;
use super::super::sys;
use super::established::{IbverbsConnection, Phase, Wanted};
use super::{
    bind, channel, check_address, check_no_port, check_private_data, check_roce, check_vendor_options, convert,
    from_call, resolve_milliseconds,
};
use crate::provider::{ConnectInit, ConnectionPath, Error, PortSpace, Result};

/// Maximum length of the private data of a request.
const REQUEST_BYTES: usize = 56;

/// Requests a connection.
pub(super) fn connect(device: &Arc<Device>, init: &ConnectInit<'_>) -> Result<IbverbsConnection> {
    let verb = "connect";
    let ConnectInit { path, end, ack_timeout, timeout, port, .. } = *init;
    check_no_port(verb, port)?;
    check_vendor_options(verb, end)?;
    check_private_data(verb, &end.private_data, REQUEST_BYTES)?;
    let id = resolving(verb, device, PortSpace::Tcp, path, resolve_milliseconds(timeout))?;
    if let Err(error) = id.set(sys::cm::ConnectionOption::AckTimeout(ack_timeout)) {
        // Kernels before 5.2 have a longer timeout of their own.
        tracing::debug!(target: "rdma_verbs::connection", %error, "the transport timeout cannot be chosen");
    }
    let wanted = Wanted {
        parameters: convert::parameters(end, path.retry_count),
        private_data: end.private_data.clone(),
        milliseconds: resolve_milliseconds(timeout),
        path_mtu: path.path_mtu,
    };
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    Ok(IbverbsConnection::new(device, id, Phase::Resolving(Box::new(wanted)), deadline))
}

/// Creates an identifier that is bound to the local address of a path, and resolves the peer's.
pub(super) fn resolving(
    verb: &'static str,
    device: &Arc<Device>,
    space: PortSpace,
    path: &ConnectionPath,
    milliseconds: i32,
) -> Result<sys::cm::Id> {
    let ConnectionPath { local, remote, .. } = *path;
    if local.is_ipv4() != remote.is_ipv4() {
        let message = format!("{} and {} have different IP versions", local.ip(), remote.ip());
        return Err(Error::unsuitable(verb, "local", message));
    }
    check_roce(verb, device)?;
    check_address(verb, device, local.ip())?;
    let id = bind(verb, &channel(verb, device)?, space as u32, local, false)?;
    if path.traffic_class != 0 {
        let option = sys::cm::ConnectionOption::TypeOfService(path.traffic_class);
        id.set(option).map_err(|error| from_call(verb, "traffic_class cannot be set", error))?;
    }
    id.resolve_addr(remote, milliseconds).map_err(|error| {
        let message = match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => format!("there is no route to {}", remote.ip()),
            _ => format!("the address {} cannot be resolved", remote.ip()),
        };
        from_call(verb, message, error)
    })?;
    Ok(id)
}
