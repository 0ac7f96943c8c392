//! Options of a software device.

use std::fmt::Display;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::{SoftProvider, environment_variable};
use crate::provider::{Context, Provider, Result};
use crate::types::{CaptureOptions, CongestionAlgorithm, Mtu, SharedMemory, VendorIdentity};

/// Environment variable naming the congestion control of paths to other hosts.
const CONGESTION_VARIABLE: &str = "RDMA_VERBS_CONGESTION";
/// Environment variable bounding the rate of each path to another host.
const PATH_RATE_VARIABLE: &str = "RDMA_VERBS_MAX_PATH_BYTES_PER_SECOND";
/// Environment variable that switches the discovery of native peers off.
const DISCOVERY_VARIABLE: &str = "RDMA_VERBS_DISCOVERY";
/// Environment variable for shared memory between processes.
const SHARED_MEMORY_VARIABLE: &str = "RDMA_VERBS_SHARED_MEMORY";
/// Largest number of shards of a device.
pub(super) const MAX_SHARDS: u32 = 16;

/// Options of a software device; the defaults suit almost every application.
///
/// ```
/// use rdma_verbs::provider::soft::SoftOptions;
/// use rdma_verbs::types::Mtu;
///
/// let context = SoftOptions::new().max_mtu(Mtu::Mtu1024).open("soft:127.0.1.90")?;
/// assert_eq!(context.query_port(1)?.active_mtu, Mtu::Mtu1024);
/// # Ok::<(), rdma_verbs::provider::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct SoftOptions {
    pub(super) shards: u32,
    pub(super) receive_buffer_bytes: u32,
    pub(super) send_buffer_bytes: u32,
    pub(super) max_mtu: Mtu,
    pub(super) vendor: VendorIdentity,
    pub(super) capture: Option<CaptureOptions>,
    pub(super) present_from_init: bool,
    pub(super) discovery: Option<bool>,
    pub(super) shared_memory: Option<SharedMemory>,
    pub(super) congestion: Option<CongestionAlgorithm>,
    pub(super) max_path_bytes_per_second: Option<u64>,
}

impl SoftOptions {
    /// Creates the default options.
    pub const fn new() -> Self {
        Self {
            shards: 1,
            receive_buffer_bytes: 64 << 20,
            send_buffer_bytes: 16 << 20,
            max_mtu: Mtu::Mtu4096,
            vendor: VendorIdentity { vendor_id: 0x00ff_ffff, vendor_part_id: 1, hw_ver: 1 },
            capture: None,
            present_from_init: false,
            discovery: None,
            shared_memory: None,
            congestion: None,
            max_path_bytes_per_second: None,
        }
    }

    /// Sets the number of shards, from 1 to 16; 1 by default. Each shard is driven independently, with its own thread
    /// and socket. Queue pairs are assigned to shards in turn and stay on theirs.
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

    /// Sets the size requested for the receive socket's buffer, in bytes; 64 MiB by default. The kernel grants at most
    /// its limit (`net.core.rmem_max`). Peers learn the granted size and keep no more in flight.
    pub const fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        self.receive_buffer_bytes = bytes;
        self
    }

    /// Sets the size requested for the send sockets' buffers, in bytes; 16 MiB by default. The kernel grants at most
    /// its limit (`net.core.wmem_max`).
    pub const fn send_buffer_bytes(mut self, bytes: u32) -> Self {
        self.send_buffer_bytes = bytes;
        self
    }

    /// Sets the largest path MTU that the port reports and accepts, if the interface carries it; 4096 by default.
    pub const fn max_mtu(mut self, mtu: Mtu) -> Self {
        self.max_mtu = mtu;
        self
    }

    /// Sets the identity that the device reports.
    pub const fn vendor(mut self, vendor: VendorIdentity) -> Self {
        self.vendor = vendor;
        self
    }

    /// Captures all packets from the opening of the device to its end; off by default. Overrides the environment
    /// variable `RDMA_VERBS_CAPTURE`.
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftOptions;
    /// use rdma_verbs::types::CaptureOptions;
    ///
    /// let wanted = CaptureOptions::new(std::env::temp_dir()).max_bytes(1 << 20);
    /// let context = SoftOptions::new().capture(wanted).open("soft:127.0.1.92")?;
    /// # let name = format!("rdma-verbs-soft-127.0.1.92-{}.pcapng", std::process::id());
    /// # std::fs::remove_file(std::env::temp_dir().join(name)).unwrap();
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub fn capture(mut self, capture: CaptureOptions) -> Self {
        self.capture = Some(capture);
        self
    }

    /// Publishes this process's capabilities to other processes of this machine as soon as a queue pair of a connected
    /// type is in INIT, not only once one is in RTR. This is for programs that exchange only queue pair numbers, and do
    /// so between the two states; with the `ConnectionInfo` of `verbs`, peers know each other's capabilities anyway.
    /// Opens the receive sockets of all of the device's addresses.
    pub const fn present_from_init(mut self, early: bool) -> Self {
        self.present_from_init = early;
        self
    }

    /// Sets whether the device finds out if a peer on another host runs this crate, too, when a queue pair is connected
    /// without the peer's capabilities; on by default. Overrides the environment variable `RDMA_VERBS_DISCOVERY`, which
    /// is `on` or `off`. A device without discovery does not answer such questions either, and counts as a standard
    /// peer for those that ask.
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftOptions;
    ///
    /// let context = SoftOptions::new().discovery(false).open("soft:127.0.1.94")?;
    /// # drop(context);
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub const fn discovery(mut self, discovers: bool) -> Self {
        self.discovery = Some(discovers);
        self
    }

    /// Sets whether packets to and from processes of this user on this host go through shared memory instead of
    /// sockets; [`SharedMemory::Auto`] by default. Overrides the environment variable `RDMA_VERBS_SHARED_MEMORY`, which
    /// is `auto`, `off` or `require`.
    ///
    /// A connection uses it from shortly after RTR on, if the peer's device has not switched it off. Otherwise, and
    /// wherever memory cannot be shared, packets leave through the sockets, without an error. The counters
    /// `shared_memory_sends` and `shared_memory_receives` show which path is taken. Nothing else changes. Tools that
    /// look at the network see no such packets; [captures](SoftOptions::capture) do.
    ///
    /// With [`SharedMemory::Require`], a queue pair of a connected type becomes ready to receive only once there is a
    /// link in each direction: all its packets go through memory, and so do those of its peer, but for the first ones
    /// of a peer with [`SharedMemory::Auto`]. The call waits for that for three seconds, and then fails with
    /// [`ErrorKind::Unsupported`](crate::provider::ErrorKind::Unsupported) and [the
    /// reason](crate::types::NoSharedMemory). The peer must be in RTR by then, or have this setting too, or
    /// [`SoftOptions::present_from_init`]. Datagram queue pairs have no peer of their own, and are not concerned. If a
    /// link breaks later, because the peer's process writes impossible contents, packets go through sockets.
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftOptions;
    /// use rdma_verbs::types::SharedMemory;
    ///
    /// let context = SoftOptions::new().shared_memory(SharedMemory::Off).open("soft:127.0.1.95")?;
    /// # drop(context);
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub const fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = Some(shared_memory);
        self
    }

    /// Sets the algorithm that determines how fast the device may send to other hosts; CUBIC by default. Overrides the
    /// environment variable `RDMA_VERBS_CONGESTION`.
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftOptions;
    /// use rdma_verbs::types::CongestionAlgorithm;
    ///
    /// let context = SoftOptions::new().congestion(CongestionAlgorithm::Constant).open("soft:127.0.1.93")?;
    /// # drop(context);
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub const fn congestion(mut self, algorithm: CongestionAlgorithm) -> Self {
        self.congestion = Some(algorithm);
        self
    }

    /// Limits the bytes per second that the device sends to each other host, even if the path could carry more. By
    /// default, and with 0, there is no limit. All queue pairs of a shard with that peer share the limit. It applies to
    /// requests, to responses to READs that this end posts, and to datagrams to a peer that has a connection on the
    /// same shard. A packet of a connection counts as a whole MTU. Responses to READs that the peer posts wait at most
    /// 2 ms, so many queue pairs that serve READs may send more. Paths within the host have no limit. Overrides the
    /// environment variable `RDMA_VERBS_MAX_PATH_BYTES_PER_SECOND`. To limit a single queue pair, use
    /// [`QueuePair::limit_rate`](crate::verbs::QueuePair::limit_rate).
    ///
    /// ```
    /// use rdma_verbs::provider::soft::SoftOptions;
    ///
    /// let context = SoftOptions::new().max_path_bytes_per_second(100_000_000).open("soft:127.0.1.94")?;
    /// # drop(context);
    /// # Ok::<(), rdma_verbs::provider::Error>(())
    /// ```
    pub const fn max_path_bytes_per_second(mut self, bytes: u64) -> Self {
        self.max_path_bytes_per_second = Some(bytes);
        self
    }

    /// Returns the chosen limit, or that of the environment.
    pub(super) fn path_rate(&self) -> Option<NonZeroU64> {
        let from_environment = || from_environment(PATH_RATE_VARIABLE, parse_rate);
        self.max_path_bytes_per_second.or_else(from_environment).and_then(NonZeroU64::new)
    }

    /// Returns the chosen algorithm, or that of the environment.
    pub(super) fn congestion_algorithm(&self) -> CongestionAlgorithm {
        let from_environment = || from_environment(CONGESTION_VARIABLE, |name| name.trim().parse());
        self.congestion.or_else(from_environment).unwrap_or_default()
    }

    /// Returns whether peers are discovered: the choice of the program, or that of the environment.
    pub(super) fn discovers_peers(&self) -> bool {
        self.discovery.or_else(|| from_environment(DISCOVERY_VARIABLE, parse_switch)).unwrap_or(true)
    }

    /// Returns whether memory is shared with other processes: the choice of the program, or that of the environment.
    pub(super) fn shares_memory(&self) -> SharedMemory {
        let from_environment = || from_environment(SHARED_MEMORY_VARIABLE, |name| name.trim().parse());
        self.shared_memory.or_else(from_environment).unwrap_or_default()
    }

    /// Opens a device by name with these options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::provider::ErrorKind::NotFound) if there is no such device or address.
    pub fn open(self, name: &str) -> Result<Arc<dyn Context>> {
        SoftProvider::with_options(self).open(name)
    }

    /// Opens a device with just this address, as `soft:ADDRESS`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::provider::ErrorKind::NotFound) if it is not an address of this machine.
    pub fn open_address(self, address: IpAddr) -> Result<Arc<dyn Context>> {
        self.open(&format!("soft:{address}"))
    }
}

impl Default for SoftOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the parsed value of an environment variable, if it is set and not blank. An invalid value is ignored with a
/// warning that says so.
fn from_environment<T, E: Display>(variable: &str, parse: impl FnOnce(&str) -> std::result::Result<T, E>) -> Option<T> {
    let given = environment_variable(variable).filter(|given| !given.trim().is_empty())?;
    parse(&given)
        .inspect_err(|error| {
            tracing::warn!(
                target: "rdma_verbs::settings", "{variable} is ignored: {error}"
            )
        })
        .ok()
}

/// Parses a rate in bytes per second.
fn parse_rate(given: &str) -> std::result::Result<u64, String> {
    let refused = |_| format!("\"{given}\" is not a rate; allowed are whole bytes per second, and 0 for no bound");
    given.trim().parse().map_err(refused)
}

/// Parses the value of a switch.
fn parse_switch(given: &str) -> std::result::Result<bool, String> {
    match given.trim() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("\"{given}\" is neither on nor off")),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_program_decides_whether_memory_is_shared() {
        for &setting in SharedMemory::ALL {
            assert_eq!(SoftOptions::new().shared_memory(setting).shares_memory(), setting);
        }
    }

    #[test]
    fn a_switch_is_on_or_off() {
        assert_eq!((parse_switch(" on "), parse_switch("off")), (Ok(true), Ok(false)));
        for given in ["", "1", "ON", "no"] {
            assert_eq!(parse_switch(given), Err(format!("\"{given}\" is neither on nor off")));
        }
        let discovers = |options: SoftOptions| options.discovers_peers();
        assert!(discovers(SoftOptions::new().discovery(true)) && !discovers(SoftOptions::new().discovery(false)));
    }

    #[test]
    fn a_rate_is_a_number_of_bytes() {
        assert_eq!((parse_rate(" 125000000 "), parse_rate("0")), (Ok(125_000_000), Ok(0)));
        for given in ["", "-1", "1.5", "100M", "18446744073709551616"] {
            let error = parse_rate(given).unwrap_err();
            assert!(error.starts_with(&format!("\"{given}\"")) && error.contains("0 for no bound"), "{error}");
        }
    }

    #[test]
    fn zero_and_the_default_mean_no_bound() {
        let bound = |options: SoftOptions| options.path_rate().map(NonZeroU64::get);
        assert_eq!(bound(SoftOptions::new().max_path_bytes_per_second(5)), Some(5));
        assert_eq!(bound(SoftOptions::new().max_path_bytes_per_second(0)), None);
    }
}
