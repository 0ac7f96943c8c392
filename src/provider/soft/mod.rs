//! The software device: a complete RoCEv2 transport in user space, on ordinary UDP sockets.
//!
//! It needs no kernel module and no privileges. There is a device for each network interface that is up, named after it
//! (`soft_lo`, `soft_eth0`); its GIDs are the interface's addresses, IPv4 first. `soft:ADDRESS` names a device with
//! just one address of this machine, for example `soft:127.0.0.2`; such devices always exist and are never listed.
//!
//! ```
//! use rdma_verbs::types::SharedMemory;
//! use rdma_verbs::verbs::{self, SoftOptions};
//!
//! // The default options.
//! let context = verbs::open("soft:127.0.1.120")?;
//! assert_eq!(context.name(), "soft:127.0.1.120");
//! // Options of a device; this one uses UDP even between processes of one host.
//! let context = verbs::open_soft("soft:127.0.1.121", &SoftOptions::new().shared_memory(SharedMemory::Off))?;
//! assert_eq!(context.shared_memory(), Some(SharedMemory::Off));
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! # Paths
//!
//! | peer | packets go |
//! |---|---|
//! | a process of this user on this host | through shared memory, if [both allow it](SoftOptions::shared_memory) |
//! | a process of this user on this host, otherwise | over UDP |
//! | another host, another user, another RoCEv2 stack (rxe, an adapter) | over UDP port 4791 |
//!
//! [`QueuePairReport::packet_path`](crate::types::QueuePairReport::packet_path) is the path of a connection, with the
//! reason if it is not shared memory between processes of one host.
//!
//! # The port
//!
//! RoCEv2 uses UDP port 4791. The port is covered by the checksum of the packets and cannot be configured. A device
//! binds the port of an address when the first queue pair is connected from it, and keeps it until the device and all
//! its objects are closed. Any number of devices, in up to 128 processes of one user, may use one address: they find
//! each other through files in `/dev/shm` (or `/tmp`), and each gets its own packets. Processes of other users, and
//! those that do not see the same files, get an error that says so.
//!
//! # Threads
//!
//! Opening a device starts no thread. The first queue pair starts one for each shard, which serves the peers' requests
//! while no thread of the application polls. The first connection of the process starts one that tracks the other
//! processes on its addresses. These threads sleep while there is nothing to do, block signals, and end when the device
//! and all its objects are closed.
//!
//! # Captures
//!
//! [`start_capture`](super::SoftwareContext::start_capture) writes what the device sends and receives into a file for
//! Wireshark and similar tools. [`SoftOptions::capture`] does so from the opening of the device on. The environment
//! variable `RDMA_VERBS_CAPTURE` does so for all devices of a process: it names a file or a folder, as
//! [`CaptureOptions`](crate::types::CaptureOptions) describes. `RDMA_VERBS_CAPTURE_BYTES` limits each file; the default
//! is 64 MiB. If the file cannot be created, opening the device fails and says why. Both variables are ignored, with a
//! warning, in programs that have more privileges than the user who starts them ([`environment_variable`]).
//!
//! # Devices and `fork`
//!
//! In a child process every verb on an inherited object fails. Inherited objects can be dropped, which does not affect
//! the parent. The child may open devices of its own, also on the same addresses.
#![forbid(unsafe_code)]

mod address_handle;
mod capture;
mod channel;
mod completion_queue;
mod connection;
mod context;
mod device;
mod errors;
mod interface;
mod later_addresses;
mod limit;
mod link_speed;
mod memory_region;
mod memory_source;
mod memory_window;
mod modify;
mod monitor;
mod multicast;
mod numbers;
mod options;
mod port;
mod protection_domain;
mod queue_pair;
mod receive_kind;
mod shared_receive;

use std::net::IpAddr;
use std::sync::Arc;

use super::{Context, Error, ErrorKind, Provider, Result};

pub use options::SoftOptions;

/// Reads an environment variable as this crate reads its own: `None` if it is not set, is not UTF-8, or must not be
/// trusted.
///
/// A program with more privileges than its caller (setuid, setgid, file capabilities) trusts no variable, as with
/// `secure_getenv` of C: a set variable is ignored with a warning.
///
/// ```
/// use rdma_verbs::provider::soft::environment_variable;
///
/// assert_eq!(environment_variable("RDMA_VERBS_NOT_SET"), None);
/// ```
pub fn environment_variable(name: &str) -> Option<String> {
    crate::sys::variable(name)
}

/// Finds and opens software devices.
#[derive(Clone, Debug, Default)]
pub struct SoftProvider {
    options: SoftOptions,
}

impl SoftProvider {
    /// Creates a provider whose devices have the default options.
    pub const fn new() -> Self {
        Self { options: SoftOptions::new() }
    }

    /// Creates a provider whose devices have these options.
    pub const fn with_options(options: SoftOptions) -> Self {
        Self { options }
    }
}

impl Provider for SoftProvider {
    fn name(&self) -> &'static str {
        "soft"
    }

    fn device_names(&self) -> Result<Vec<String>> {
        Ok(interfaces()?.into_iter().map(|interface| interface.device_name).collect())
    }

    fn connectable_devices(&self) -> Result<Vec<(String, Vec<IpAddr>)>> {
        let of = |interface: interface::Interface| {
            (interface.device_name, interface.addresses.iter().map(|address| address.ip).collect())
        };
        Ok(interfaces()?.into_iter().map(of).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Context>> {
        let interface = interface::find(name)?.ok_or_else(|| {
            let message = format!("there is no device \"{name}\"");
            Error::new("open_device", ErrorKind::NotFound, message)
        })?;
        let device = device::Device::open(interface, &self.options)?;
        let (name, first) = (&device.interface.device_name, device.interface.addresses.first());
        let local = first.map(|address| tracing::field::display(address.ip));
        tracing::info!(target: "rdma_verbs::device", device = name, local, shards = self.options.shards, "opened");
        Ok(Arc::new(context::SoftContext::new(device)))
    }
}

fn interfaces() -> Result<Vec<interface::Interface>> {
    interface::all()
        .map_err(|error| Error::from_io("get_device_list", "the network interfaces cannot be listed", error))
}
