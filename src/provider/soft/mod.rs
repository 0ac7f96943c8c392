//! The software device: a complete RoCEv2 transport in user space, on ordinary UDP sockets.
//!
//! No kernel module, no privileges. There is a device for each network interface that is up, named after it (`soft_lo`,
//! `soft_eth0`); its GIDs are the interface's addresses, those of IPv4 first. `soft:ADDRESS` names a device with just
//! one address of this machine, for example `soft:127.0.0.2`; such devices are always there and never listed.
//!
//! # The port
//!
//! RoCEv2 lives on UDP port 4791, and the check sum of its packets covers that number. It cannot be configured. A
//! device takes the port of an address when the first queue pair is connected from it, and keeps it until the device
//! and all its objects are closed. Any number of devices, in up to 128 processes of one user, may use one address:
//! they find each other through files in `/dev/shm` (or `/tmp`), and each gets its own packets. Processes of other
//! users, and those that do not see the same files, get an error that says so.
//!
//! # Threads
//!
//! Opening a device starts nothing. The first queue pair starts one thread for each shard, which serves the peers'
//! requests while no thread of the application polls; the first connection of the process starts one that hears of the
//! other processes on its addresses. They sleep while there is nothing to do, take no signals, and end when the device
//! and all its objects are closed.
//!
//! # Captures
//!
//! [`start_capture`](super::Context::start_capture) writes what the device sends and receives into a file for Wireshark
//! and its like, [`SoftConfig::capture`] does so from the opening of the device on, and so does, for all devices of a
//! process, the environment variable `RDMA_VERBS_CAPTURE`: it names a file or a folder, as
//! [`CaptureConfig`](crate::types::CaptureConfig) describes. `RDMA_VERBS_CAPTURE_BYTES` limits each file; without it,
//! the limit is 64 MiB. If the file cannot be made, opening the device fails and says why. Both variables are ignored,
//! with a warning, in programs that have more rights than the user who starts them ([`environment_variable`]).
//!
//! # Devices and `fork`
//!
//! What a child inherits answers every verb with an error, and can be dropped; the parent notices nothing of it. The
//! child may open devices anew, also on the same addresses.

mod address_handle;
mod capture;
mod channel;
mod completion_queue;
mod config;
mod context;
mod device;
mod errors;
mod interface;
mod limit;
mod link_speed;
mod memory_region;
mod memory_source;
mod memory_window;
mod modify;
mod multicast;
mod numbers;
mod port;
mod protection_domain;
mod queue_pair;
mod receive_role;
mod shared_receive;

use std::sync::Arc;

use super::{Context, Error, ErrorKind, Provider, Result};

pub use config::SoftConfig;

/// An environment variable, as this crate reads its own: `None` if it is not set, is not UTF-8, or must not be trusted.
///
/// A program with more rights than its caller (setuid, setgid, file capabilities) trusts no variable, as with
/// `secure_getenv` of C: a set variable is ignored with a warning.
///
/// ```
/// use rdma_verbs::provider::soft::environment_variable;
///
/// assert_eq!(environment_variable("RDMA_VERBS_NOT_SET"), None);
/// ```
pub fn environment_variable(name: &str) -> Option<String> {
    crate::engine::variable(name)
}

/// Finds and opens software devices.
#[derive(Clone, Debug, Default)]
pub struct SoftProvider {
    config: SoftConfig,
}

impl SoftProvider {
    /// A provider whose devices have the default configuration.
    pub const fn new() -> Self {
        Self { config: SoftConfig::new() }
    }

    /// A provider whose devices have this configuration.
    pub const fn with_config(config: SoftConfig) -> Self {
        Self { config }
    }
}

impl Provider for SoftProvider {
    fn name(&self) -> &'static str {
        "soft"
    }

    fn device_names(&self) -> Result<Vec<String>> {
        let interfaces = interface::all()
            .map_err(|error| Error::from_io("get_device_list", "the network interfaces cannot be listed", error))?;
        Ok(interfaces.into_iter().map(|interface| interface.device_name).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>> {
        let interface = interface::find(name)?.ok_or_else(|| {
            let message = format!("there is no device \"{name}\"");
            Error::new("open_device", ErrorKind::NotFound, message)
        })?;
        let device = device::Device::open(interface, &self.config)?;
        Ok(Arc::new(context::SoftContext::new(device)))
    }
}
