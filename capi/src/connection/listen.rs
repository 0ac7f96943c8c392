//! Listeners.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rdma_verbs::provider::abi::cm;
use rdma_verbs::provider::{BoundPort, ConnectionListener, ListenInit};

use super::address::any;
use super::bind::{bind, from_port};
use super::devices::{self, Device};
use super::id::{Id, Phase, Role, Source, id_of};
use super::pump::Section;
use crate::error::{Errno, INVALID, Result, zero_or_minus_one};

/// Maximum number of requests that wait at a listener (`net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: c_int = 1024;

type Parts = VecDeque<(&'static Device, Arc<dyn ConnectionListener>)>;

/// # Safety
/// The identifier is the program's.
unsafe fn listen(visible: *mut cm::Id, backlog: c_int) -> Result<()> {
    // SAFETY: the caller's promise.
    let id = unsafe { id_of(visible)? };
    if id.role() == Role::Initiator {
        tracing::info!(
            target: "rdma_verbs::c_library",
            "an endpoint of the type IBV_QPT_XRC_SEND cannot listen: connect, or use IBV_QPT_XRC_RECV"
        );
        return Err(INVALID);
    }
    if id.inner().phase == Phase::Idle {
        // SAFETY: the caller's promise.
        unsafe { bind(visible, SocketAddr::new(any(true), 0))? };
    }
    let (port, devices) = {
        let inner = id.inner();
        let (Phase::Bound, Some(port)) = (inner.phase, inner.port.clone()) else { return Err(INVALID) };
        (port, inner.device)
    };
    let devices = devices.map_or_else(devices::all, |device| Ok(vec![device]))?;
    let backlog = if backlog > 0 { backlog.min(MAX_BACKLOG) } else { MAX_BACKLOG };
    let parts = on_all(id, &*port, &devices, backlog as u32)?;
    {
        let mut inner = id.inner();
        (inner.phase, inner.source) = (Phase::Listening, Source::Listeners(Arc::new(Mutex::new(parts))));
    }
    id.pump();
    Ok(())
}

/// Listens on a port of several devices; of those, on the ones that work.
fn on_all(id: &Id, port: &dyn BoundPort, devices: &[&'static Device], backlog: u32) -> Result<Parts> {
    let options = id.inner().options;
    let (mut parts, mut failure) = (Parts::new(), None);
    for device in devices {
        let first = parts.front().map(|(_, listener)| &**listener);
        let init = ListenInit {
            address: port.local_addr(),
            space: id.space,
            transport: id.transport(),
            backlog,
            reuse_address: options.reuse_address,
            only_v6: options.only_own_family,
            shares_port_of: first,
            port: if first.is_none() { Some(port) } else { None },
        };
        match device.manager()?.listen(&init) {
            Ok(listener) => parts.push_back((*device, listener)),
            Err(error) => {
                tracing::info!(
                    target: "rdma_verbs::c_library",
                    device = device.shared().device.name(), %error, "no listener on a device"
                );
                failure = Some(from_port(error));
            }
        }
    }
    if parts.is_empty() { Err(failure.unwrap_or(Errno(libc::ENODEV))) } else { Ok(parts) }
}

pub(super) unsafe extern "C" fn rdma_listen(id: *mut cm::Id, backlog: c_int) -> c_int {
    let _section = Section::begin();
    // SAFETY: the program's identifier.
    zero_or_minus_one(unsafe { listen(id, backlog) })
}
