//! How a software device is set up.

use std::fmt::Display;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::{SoftProvider, environment_variable};
use crate::provider::{Context, Provider, Result};
use crate::types::{CaptureConfig, CongestionAlgorithm, Mtu, VendorIdentity};

/// Names what holds senders back on paths that others may share.
const CONGESTION_VARIABLE: &str = "RDMA_VERBS_CONGESTION";
/// Bounds the rate of each path to another host.
const PATH_RATE_VARIABLE: &str = "RDMA_VERBS_MAX_PATH_BYTES_PER_SECOND";
/// Most shards of a device.
pub(super) const MAX_SHARDS: u32 = 16;

/// Settings of a software device; the defaults suit almost everybody.
///
/// ```
/// use rdma_verbs::provider::soft::SoftConfig;
/// use rdma_verbs::types::Mtu;
///
/// let context = SoftConfig::new().max_mtu(Mtu::Mtu1024).open("soft:127.0.1.90")?;
/// assert_eq!(context.query_port(1)?.active_mtu, Mtu::Mtu1024);
/// # Ok::<(), rdma_verbs::provider::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct SoftConfig {
    pub(super) shards: u32,
    pub(super) receive_buffer_bytes: u32,
    pub(super) send_buffer_bytes: u32,
    pub(super) max_mtu: Mtu,
    pub(super) vendor: VendorIdentity,
    pub(super) capture: Option<CaptureConfig>,
    pub(super) present_from_init: bool,
    pub(super) congestion: Option<CongestionAlgorithm>,
    pub(super) max_path_bytes_per_second: Option<u64>,
}

impl SoftConfig {
    /// The default settings.
    pub const fn new() -> Self {
        Self {
            shards: 1,
            receive_buffer_bytes: 64 << 20,
            send_buffer_bytes: 16 << 20,
            max_mtu: Mtu::Mtu4096,
            vendor: VendorIdentity { vendor_id: 0x00ff_ffff, vendor_part_id: 1, hw_ver: 1 },
            capture: None,
            present_from_init: false,
            congestion: None,
            max_path_bytes_per_second: None,
        }
    }

    /// Parts of the device that are driven independently, each with a thread and a socket of its own: 1 to 16; 1 by
    /// default. Queue pairs are spread over them in turn; each stays where it was created.
    pub const fn shards(mut self, shards: u32) -> Self {
        self.shards = if shards == 0 {
            1
        } else if shards > MAX_SHARDS {
            MAX_SHARDS
        } else {
            shards
        };
        self
    }

    /// Size that is asked for the receive socket's buffer, in bytes; 64 MiB by default. The kernel gives at most its
    /// limit (`net.core.rmem_max`); what it gave is told to peers, which keep no more in flight.
    pub const fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        self.receive_buffer_bytes = bytes;
        self
    }

    /// Size that is asked for the send sockets' buffers, in bytes; 16 MiB by default. The kernel gives at most its
    /// limit (`net.core.wmem_max`).
    pub const fn send_buffer_bytes(mut self, bytes: u32) -> Self {
        self.send_buffer_bytes = bytes;
        self
    }

    /// Largest path MTU that the port reports and accepts, if the interface carries it; 4096 by default.
    pub const fn max_mtu(mut self, mtu: Mtu) -> Self {
        self.max_mtu = mtu;
        self
    }

    /// The identity that the device reports.
    pub const fn vendor(mut self, vendor: VendorIdentity) -> Self {
        self.vendor = vendor;
        self
    }

    /// Captures all packets from the opening of the device to its end; nothing by default. Goes before what the
    /// environment variable `RDMA_VERBS_CAPTURE` says.
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftConfig;
    /// use rdma_verbs::types::CaptureConfig;
    ///
    /// let wanted = CaptureConfig::new(std::env::temp_dir()).max_bytes(1 << 20);
    /// let context = SoftConfig::new().capture(wanted).open("soft:127.0.1.92")?;
    /// # let name = format!("rdma-verbs-soft-127.0.1.92-{}.pcapng", std::process::id());
    /// # std::fs::remove_file(std::env::temp_dir().join(name)).unwrap();
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub fn capture(mut self, capture: CaptureConfig) -> Self {
        self.capture = Some(capture);
        self
    }

    /// Lets other processes of this machine find what this one can as soon as it has a connected queue pair in INIT,
    /// and not only once one is in RTR. For programs that exchange queue pair numbers between the two and nothing else:
    /// with the `ConnectionInfo` of `verbs` peers know each other's capabilities anyway. It opens the
    /// receive sockets of all of the device's addresses.
    pub const fn present_from_init(mut self, early: bool) -> Self {
        self.present_from_init = early;
        self
    }

    /// How the device finds out how fast it may send to other hosts; CUBIC by default. Goes before what the environment
    /// variable `RDMA_VERBS_CONGESTION` says.
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftConfig;
    /// use rdma_verbs::types::CongestionAlgorithm;
    ///
    /// let context = SoftConfig::new().congestion(CongestionAlgorithm::Constant).open("soft:127.0.1.93")?;
    /// # drop(context);
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub const fn congestion(mut self, algorithm: CongestionAlgorithm) -> Self {
        self.congestion = Some(algorithm);
        self
    }

    /// Most bytes a second that the device sends to each other host, whatever the path would take; without a bound
    /// by default, and with 0. All queue pairs of a shard with that peer share it: it holds for requests, for
    /// responses of READs that this end asks for, and for datagrams to a peer that has a connection of the same
    /// shard. A packet of a connection counts as a whole MTU. Responses of READs that the peer asks for wait 2 ms
    /// at most, so that many queue pairs that serve READs may send more. Paths within the host have no bound. Goes
    /// before what the environment variable `RDMA_VERBS_MAX_PATH_BYTES_PER_SECOND` says. For a single queue pair
    /// there is [`QueuePair::limit_rate`](crate::verbs::QueuePair::limit_rate).
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftConfig;
    ///
    /// let context = SoftConfig::new().max_path_bytes_per_second(100_000_000).open("soft:127.0.1.94")?;
    /// # drop(context);
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub const fn max_path_bytes_per_second(mut self, bytes: u64) -> Self {
        self.max_path_bytes_per_second = Some(bytes);
        self
    }

    /// The bound that is configured, or that of the environment.
    pub(super) fn path_rate(&self) -> Option<NonZeroU64> {
        let from_environment = || from_environment(PATH_RATE_VARIABLE, parse_rate);
        self.max_path_bytes_per_second.or_else(from_environment).and_then(NonZeroU64::new)
    }

    /// The algorithm that is configured, or that of the environment.
    pub(super) fn congestion_algorithm(&self) -> CongestionAlgorithm {
        let from_environment = || from_environment(CONGESTION_VARIABLE, |name| name.trim().parse());
        self.congestion.or_else(from_environment).unwrap_or_default()
    }

    /// Opens a device by name with these settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::provider::ErrorKind::NotFound) if there is no such device or address.
    pub fn open(self, name: &str) -> Result<Arc<dyn Context>> {
        SoftProvider::with_config(self).open(name)
    }

    /// Opens a device with just this address, as `soft:ADDRESS`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::provider::ErrorKind::NotFound) if it is no address of this machine.
    pub fn open_address(self, address: IpAddr) -> Result<Arc<dyn Context>> {
        self.open(&format!("soft:{address}"))
    }
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The value of an environment variable, if it is set and has one. A value that is not understood is ignored, with a
/// warning that says so.
fn from_environment<T, E: Display>(variable: &str, parse: impl FnOnce(&str) -> std::result::Result<T, E>) -> Option<T> {
    let given = environment_variable(variable).filter(|given| !given.trim().is_empty())?;
    parse(&given).inspect_err(|error| tracing::warn!("{variable} is ignored: {error}")).ok()
}

/// Bytes a second, as the environment has them.
fn parse_rate(given: &str) -> std::result::Result<u64, String> {
    let refused = |_| format!("\"{given}\" is no rate; allowed are whole bytes a second, and 0 for no bound");
    given.trim().parse().map_err(refused)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_bytes() {
        assert_eq!((parse_rate(" 125000000 "), parse_rate("0")), (Ok(125_000_000), Ok(0)));
        for given in ["", "-1", "1.5", "100M", "18446744073709551616"] {
            let error = parse_rate(given).unwrap_err();
            assert!(error.starts_with(&format!("\"{given}\"")) && error.contains("0 for no bound"), "{error}");
        }
    }

    #[test]
    fn no_bound_is_the_default_and_zero() {
        let bound = |config: SoftConfig| config.path_rate().map(NonZeroU64::get);
        assert_eq!(bound(SoftConfig::new().max_path_bytes_per_second(5)), Some(5));
        assert_eq!(bound(SoftConfig::new().max_path_bytes_per_second(0)), None);
    }
}
