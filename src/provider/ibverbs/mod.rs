//! Adapters of this machine, through rdma-core: every device that `ibv_devices` lists, under the same name (`mlx5_0`,
//! `rxe0`). `ibverbs:NAME` names the same device and excludes other kinds of devices.
//!
//! # libibverbs
//!
//! The library is loaded on first use; neither it nor its headers are needed to build a program. On a machine without
//! it there are no such devices, and the error of opening `ibverbs:NAME` names the packages to install. Calls go
//! through the same tables as in a C program, so every version from rdma-core 34 on works. Extended posting
//! (`ibv_wr_*`) is used where a device has it, extended polling (`ibv_start_poll`) for timestamps.
//!
//! # What differs from software devices
//!
//! * Limits and capabilities are the adapter's. Errors that only the adapter can detect contain the request and the
//!   adapter's response.
//! * Memory is pinned when it is registered, which counts against the process's `RLIMIT_MEMLOCK`. A region's `iova`
//!   must lie at the same offset within a page as its memory, and its key cannot be invalidated.
//! * On Ethernet ports a queue pair uses by default the first RoCE v2 GID of an IPv4 address, or else of an IPv6
//!   address that is not link-local. On InfiniBand ports it uses the first entry; the peer's LID must be in its address
//!   vector. Queue pairs of iWARP devices cannot be connected.
//! * The connection manager of RoCE ports is the system's librdmacm, loaded when a program first connects by address.
//! * Only the adapter accesses device memory and dma-bufs: the regions' own methods, and ATOMIC WRITE from them, fail.
//!   Multicast groups of an InfiniBand port are joined through a connection manager only.
//! * The overflow of a completion queue is reported as an asynchronous event first, and by polling soon after.
//! * Only software devices have captures, reports that explain why a peer is silent, and counters of a queue pair. The
//!   counters of an adapter are those that its driver publishes.
//!
//! # Devices and `fork`
//!
//! In a child, every verb on an inherited object fails. The object can be dropped without effect on the parent. Before
//! Linux 5.12, registered pages are not mapped in a child.

mod address_handle;
mod channel;
mod completion_queue;
mod connection;
mod context;
mod convert;
mod counters;
mod device;
mod errors;
mod events;
mod gid;
mod memory;
mod memory_source;
mod modify;
mod multicast;
mod queue_pair;
mod shared_receive;
mod sys;
#[cfg(all(test, not(loom)))]
mod tests;
mod work_queue;
mod wr_tracker;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Context, Error, ErrorKind, Provider, Result};

/// Lists and opens adapters.
///
/// ```
/// use rdma_verbs::provider::{Provider, ibverbs::IbverbsProvider};
///
/// // None on a machine without adapters, or without libibverbs.
/// for name in IbverbsProvider.device_names()? {
///     println!("{name}");
/// }
/// let error = IbverbsProvider.open("ibverbs:nonsense0").err().unwrap();
/// assert!(error.to_string().contains("nonsense0"));
/// # Ok::<(), rdma_verbs::provider::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct IbverbsProvider;

const PREFIX: &str = "ibverbs:";

/// Returns whether an error of the device list means that the kernel has no RDMA devices at all.
fn means_no_devices(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOENT)) || error.kind() == io::ErrorKind::NotFound
}

impl Provider for IbverbsProvider {
    fn name(&self) -> &'static str {
        "ibverbs"
    }

    fn device_names(&self) -> Result<Vec<String>> {
        match sys::device_list() {
            Ok(devices) => Ok(devices.into_iter().map(|device| device.name).collect()),
            Err(error) if means_no_devices(&error) => {
                tracing::debug!(target: "rdma_verbs::device", %error, "there are no adapters");
                Ok(Vec::new())
            }
            Err(error) => Err(Error::from_io("get_device_list", "libibverbs cannot list its devices", error)),
        }
    }

    fn unavailable(&self) -> Option<String> {
        sys::unavailable()
    }

    fn connections_unavailable(&self) -> Option<String> {
        let has_devices = self.device_names().is_ok_and(|names| !names.is_empty());
        if has_devices { connection::unavailable() } else { None }
    }

    fn connectable_devices(&self) -> Result<Vec<(String, Vec<IpAddr>)>> {
        // Connections of software devices do not depend on a library that fails.
        let mut names = self.device_names().unwrap_or_else(|error| {
            tracing::debug!(target: "rdma_verbs::device", %error, "adapters cannot be used for connections");
            Vec::new()
        });
        if let Some(reason) = connection::unavailable().filter(|_| !names.is_empty()) {
            tracing::debug!(target: "rdma_verbs::device", reason, "adapters have no connection manager");
            names.clear();
        }
        let addresses_of = |name: &str| connection::addresses_of(&*open_device(name)?);
        let found = names.into_iter().filter_map(|name| match addresses_of(&name) {
            Ok(addresses) => Some((name, addresses)),
            Err(error) => {
                tracing::debug!(
                    target: "rdma_verbs::device", device = name, %error, "the adapter cannot be used for connections"
                );
                None
            }
        });
        Ok(found.filter(|(_, addresses)| !addresses.is_empty()).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>> {
        Ok(Arc::new(context::IbverbsContext::new(open_device(name)?)))
    }
}

fn open_device(name: &str) -> Result<Arc<device::Device>> {
    let plain = name.strip_prefix(PREFIX).unwrap_or(name);
    let fail = |kind, message: String| Err(Error::new("open_device", kind, message));
    match sys::Context::open(plain) {
        Ok(Some(context)) => device::Device::open(context).map_err(|error| errors::opening(plain, error)),
        Ok(None) => fail(ErrorKind::NotFound, format!("libibverbs has no device \"{plain}\"")),
        // libibverbs itself is missing: the text says so, and names the packages to install.
        Err(error) if error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_none() => {
            fail(ErrorKind::NotFound, format!("there is no device \"{plain}\": {error}"))
        }
        Err(error) if means_no_devices(&error) => {
            fail(ErrorKind::NotFound, format!("there is no device \"{plain}\": the kernel has no RDMA devices"))
        }
        Err(error) => Err(errors::opening(plain, error)),
    }
}
