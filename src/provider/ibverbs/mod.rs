//! Adapters of this machine, through rdma-core: every device that `ibv_devices` lists, under the same name (`mlx5_0`,
//! `rxe0`). `ibverbs:NAME` names one as well, and says that no other kind of device is meant.
//!
//! # libibverbs
//!
//! The library is loaded when somebody first asks for devices; neither its headers nor itself need be there when the
//! program is built. On a machine without it there are no such devices, and opening `ibverbs:NAME` says which
//! package has it. Everything goes through the same tables as in a C program, so every version from rdma-core 34 on
//! serves.
//! Extended posting (`ibv_wr_*`) is used where a device has it, extended polling (`ibv_start_poll`) for timestamps.
//!
//! # What differs from software devices
//!
//! * Limits and capabilities are the adapter's. Errors that only the adapter can know name what was asked for, and
//!   its answer.
//! * Memory is pinned when it is registered, which counts against the process's `RLIMIT_MEMLOCK`. A region's `iova`
//!   must lie at the same offset within a page as its memory, and its key cannot be invalidated.
//! * On Ethernet ports a queue pair uses, unless another GID is chosen, the first RoCE v2 GID of an IPv4 address, or
//!   else of an IPv6 address that is not link-local. On InfiniBand ports the first entry is used; the peer's LID must
//!   be in its address vector. Devices of iWARP connect through a connection manager only.
//! * Device memory and dma-bufs are reached by the adapter alone: the regions' own methods, and ATOMIC WRITE from them,
//!   fail. Groups of an InfiniBand port are joined by a connection manager only.
//! * A completion queue that overflowed says so as an asynchronous event first, and by polling soon after.
//! * Captures, explanations of silence and counters of a queue pair are a software device's own; counters of the
//!   device are those that the driver publishes.
//!
//! # Devices and `fork`
//!
//! What a child inherits answers every verb with an error, and can be dropped; the parent notices nothing of it. Before
//! Linux 5.12 a child does not have the pages that were registered.

mod address_handle;
mod channel;
mod completion_queue;
mod context;
mod convert;
mod counters;
mod device;
mod errors;
mod events;
mod gid;
mod ledger;
mod memory;
mod memory_source;
mod modify;
mod multicast;
mod queue_pair;
mod shared_receive;
mod sides;
mod sys;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::sync::Arc;

use super::{Context, Error, ErrorKind, Provider, Result};

/// Finds and opens adapters.
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

/// What the list of devices answers on a machine whose kernel knows no such devices at all.
fn means_none(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOENT)) || error.kind() == io::ErrorKind::NotFound
}

impl Provider for IbverbsProvider {
    fn name(&self) -> &'static str {
        "ibverbs"
    }

    fn device_names(&self) -> Result<Vec<String>> {
        match sys::device_list() {
            Ok(devices) => Ok(devices.into_iter().map(|device| device.name).collect()),
            Err(error) if means_none(&error) => {
                tracing::debug!(%error, "there are no adapters");
                Ok(Vec::new())
            }
            Err(error) => Err(Error::from_io("get_device_list", "libibverbs cannot list its devices", error)),
        }
    }

    fn unavailable(&self) -> Option<String> {
        sys::unavailable()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>> {
        let plain = name.strip_prefix(PREFIX).unwrap_or(name);
        let fail = |kind, message: String| Err(Error::new("open_device", kind, message));
        match sys::Context::open(plain) {
            Ok(Some(context)) => {
                let device = device::Device::open(context).map_err(|error| errors::opening(plain, error))?;
                Ok(Arc::new(context::IbverbsContext::new(device)))
            }
            Ok(None) => fail(ErrorKind::NotFound, format!("libibverbs knows no device \"{plain}\"")),
            // libibverbs itself is missing: the text says so, and what to install.
            Err(error) if error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_none() => {
                fail(ErrorKind::NotFound, format!("there is no device \"{plain}\": {error}"))
            }
            Err(error) if means_none(&error) => {
                fail(ErrorKind::NotFound, format!("there is no device \"{plain}\": the kernel has no RDMA devices"))
            }
            Err(error) => Err(errors::opening(plain, error)),
        }
    }
}
