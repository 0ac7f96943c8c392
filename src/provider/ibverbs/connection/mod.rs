//! The connection manager of adapters: the system's librdmacm, whose identifiers have no queue pairs of their own
//! ("external" ones). The queue pair stays the program's, and `verbs::cm` moves it.

mod active;
mod convert;
mod datagram;
mod established;
mod listener;
mod watcher;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::IbverbsContext;
use super::device::Device;
use super::{errors, sys};
use crate::provider::{
    BoundPort, ConnectInit, Connection, ConnectionEnd, ConnectionListener, ConnectionManager, ConnectionTransport,
    Error, ErrorKind, EventWait, ListenInit, Resolution, ResolveInit, Result, VendorOptions,
};
use crate::sys::wait_readable;
use crate::types::{GidEntry, GidType, LinkLayer, Transport};

/// Port of the adapter: the first one.
const PORT: u8 = 1;
/// The device of the kernel's connection manager.
const NODE: &str = "/dev/infiniband/rdma_cm";
/// Maximum time to resolve an address or a route.
const RESOLVE: Duration = Duration::from_secs(5);
/// The error if a channel fails.
const NO_EVENT: &str = "librdmacm cannot take an event";

impl ConnectionManager for IbverbsContext {
    fn listen(&self, init: &ListenInit<'_>) -> Result<Arc<dyn ConnectionListener>> {
        self.device().check_process("listen")?;
        check_transport("listen", init.transport)?;
        Ok(Arc::new(listener::IbverbsListener::new(self.device(), init)?))
    }

    fn connect(&self, init: &ConnectInit<'_>) -> Result<Arc<dyn Connection>> {
        self.device().check_process("connect")?;
        check_transport("connect", init.transport)?;
        Ok(Arc::new(active::connect(self.device(), init)?))
    }

    fn resolve(&self, init: &ResolveInit<'_>) -> Result<Box<dyn Resolution>> {
        self.device().check_process("resolve")?;
        Ok(Box::new(datagram::IbverbsResolution::new(self.device(), init)?))
    }
}

/// Fails unless the identifiers that `rdma_create_id` makes have the transport service.
fn check_transport(verb: &'static str, transport: ConnectionTransport) -> Result<()> {
    match transport {
        ConnectionTransport::Reliable => Ok(()),
        ConnectionTransport::ExtendedReliable => {
            let message = "the transport is XRC; connections of adapters by address and port are reliable connections";
            Err(Error::new(verb, ErrorKind::Unsupported, message))
        }
    }
}

/// Returns why no adapter has a connection manager, if none has.
pub(super) fn unavailable() -> Option<String> {
    sys::cm::unavailable().or_else(node_problem)
}

/// Returns why the kernel's connection manager cannot be used, if it cannot.
fn node_problem() -> Option<String> {
    let error = std::fs::OpenOptions::new().read(true).write(true).open(NODE).err()?;
    Some(match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{NODE} cannot be opened ({error}): give this user the permission to read and write it")
        }
        _ => format!(
            "{NODE} cannot be opened ({error}): load the kernel module rdma_ucm; a container needs `--device {NODE}`"
        ),
    })
}

/// Returns the addresses of a device that connections may have. Requests nothing but attributes of the device, because
/// each look-up of an address does this for each adapter.
pub(super) fn addresses_of(device: &Device) -> Result<Vec<IpAddr>> {
    let is_roce = other_network("query_port", device)?.is_none();
    Ok(if is_roce { addresses(&device.gid_table(PORT)?) } else { Vec::new() })
}

/// Returns the addresses of a GID table that connections may have.
fn addresses(table: &[GidEntry]) -> Vec<IpAddr> {
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let entries = table.iter().filter(|entry| entry.gid_type == GidType::RoceV2);
    entries.map(|entry| entry.gid.to_ip()).filter(is_usable).collect()
}

/// Returns what kind of network the device's port has if it is not RoCE.
fn other_network(verb: &'static str, device: &Device) -> Result<Option<&'static str>> {
    let transport = device.limits().transport;
    if transport != Transport::InfiniBand {
        return Ok(Some(transport.name()));
    }
    let is_ethernet = device.port(verb, PORT)?.link_layer == LinkLayer::Ethernet;
    Ok(if is_ethernet { None } else { Some("InfiniBand") })
}

/// Fails unless the device's port is RoCE.
fn check_roce(verb: &'static str, device: &Device) -> Result<()> {
    let Some(network) = other_network(verb, device)? else { return Ok(()) };
    let message =
        format!("port {PORT} of {} is {network}; connections by address and port are only for RoCE", device.name());
    Err(Error::new(verb, ErrorKind::Unsupported, message))
}

/// Creates a channel.
fn channel(verb: &'static str, device: &Device) -> Result<Arc<sys::cm::Channel>> {
    let library = device.sys.connections();
    let library = library.map_err(|message| Error::new(verb, ErrorKind::Unsupported, message))?;
    sys::cm::Channel::create(library).map_err(|error| {
        let why = node_problem().unwrap_or_else(|| "librdmacm cannot create an event channel".to_owned());
        Error::from_source(verb, errors::kind(&error), why, error)
    })
}

/// Returns the error of a call of librdmacm.
fn from_call(verb: &'static str, asked: impl Into<String>, error: io::Error) -> Error {
    let kind = match error.raw_os_error() {
        // Linux has two numbers for a port in use; the address was checked before.
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL) => ErrorKind::AddressInUse,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => ErrorKind::NotFound,
        Some(libc::ETIMEDOUT) => ErrorKind::TimedOut,
        _ => errors::kind(&error),
    };
    Error::from_source(verb, kind, asked.into(), error)
}

/// Returns the error of an event that reports a failure of this end.
fn failed(verb: &'static str, event: &sys::cm::Event) -> Error {
    use sys::cm::EventType;
    let message = match event.event {
        EventType::ADDR_ERROR => "the peer's address cannot be resolved",
        EventType::ROUTE_ERROR => "the route to the peer cannot be resolved",
        EventType::DEVICE_REMOVAL => "the device is removed",
        _ => "librdmacm cannot set up the connection",
    };
    match event.status {
        // The kernel has an error number. A call of librdmacm's own has failed, which looks for the adapter.
        -1 => {
            let why = "librdmacm does not know the adapter of the address, or its provider library is missing (compare \
                       `ibv_devices`)";
            Error::new(verb, ErrorKind::System, format!("{message}: {why}"))
        }
        0 => Error::new(verb, ErrorKind::System, message),
        status => from_call(verb, message, io::Error::from_raw_os_error(status.saturating_abs())),
    }
}

/// Returns the error of a call that the state of the connection does not allow.
fn from_state(verb: &'static str, error: io::Error) -> Error {
    if error.raw_os_error() == Some(libc::EINVAL) {
        let message = "the connection is in another state: the peer may have given up, or ended it";
        return Error::from_source(verb, ErrorKind::InvalidState, message, error);
    }
    from_call(verb, "librdmacm refuses the call", error)
}

/// Fails if an address is not one of the device.
fn check_address(verb: &'static str, device: &Device, address: IpAddr) -> Result<()> {
    if device.gid_table(PORT)?.iter().any(|entry| entry.gid.to_ip() == address) {
        return Ok(());
    }
    let message = format!("{address} is not an address of the device {}", device.name());
    Err(Error::new(verb, ErrorKind::NotFound, message))
}

/// Creates an identifier that is bound to an address and a port of the device; port 0: a free one.
fn bind(
    verb: &'static str,
    channel: &Arc<sys::cm::Channel>,
    space: u32,
    address: SocketAddr,
    reuse_address: bool,
) -> Result<sys::cm::Id> {
    let id = sys::cm::Id::create(channel, space);
    let id = id.map_err(|error| from_call(verb, "an identifier cannot be created", error))?;
    if reuse_address {
        let option = sys::cm::ConnectionOption::ReuseAddress(true);
        id.set(option).map_err(|error| from_call(verb, "reuse_address cannot be set", error))?;
    }
    id.bind(address).map_err(|error| from_call(verb, format!("{address} cannot be bound"), error))?;
    Ok(id)
}

/// Fails if a caller has bound the port already: on an adapter only the identifier that uses a port binds it.
fn check_no_port(verb: &'static str, port: Option<&dyn BoundPort>) -> Result<()> {
    let Some(port) = port else { return Ok(()) };
    let message = format!("port {} is bound already; on an adapter {verb} binds it", port.local_addr());
    Err(Error::new(verb, ErrorKind::Unsupported, message))
}

/// Fails if an end has options of a vendor, which librdmacm takes from the queue pair that it does not have.
fn check_vendor_options(verb: &'static str, end: &ConnectionEnd) -> Result<()> {
    if end.vendor_options == VendorOptions::default() {
        return Ok(());
    }
    let message = "vendor_options are set; connections of adapters have none here: leave them out";
    Err(Error::new(verb, ErrorKind::Unsupported, message))
}

/// Fails if private data is longer than the message allows.
fn check_private_data(verb: &'static str, data: &[u8], most: usize) -> Result<()> {
    if data.len() <= most {
        return Ok(());
    }
    let message = format!("private_data has {} bytes; allowed are at most {most}", data.len());
    Err(Error::out_of_range(verb, "private_data", data.len() as u64, 0..=most as u64, message))
}

/// Returns the time to resolve an address, in milliseconds.
fn resolve_milliseconds(timeout: Option<Duration>) -> i32 {
    timeout.map_or(RESOLVE, |timeout| timeout.clamp(Duration::from_millis(1), RESOLVE)).as_millis() as i32
}

/// Takes an event of a channel with `take`, or waits for one. At `deadline`, `take` is called without an event.
pub(super) fn next<T>(
    verb: &'static str,
    device: &Device,
    channel: &Arc<sys::cm::Channel>,
    deadline: Option<Instant>,
    wait: EventWait<'_>,
    take: impl Fn() -> Result<Option<T>>,
) -> Result<Option<T>> {
    device.check_process(verb)?;
    loop {
        // Read before `take` reads the clock: a deadline that passes in between ends the wait at once.
        let now = Instant::now();
        if let Some(taken) = take()? {
            return Ok(Some(taken));
        }
        let deadline = deadline.filter(|deadline| *deadline > now);
        let end = match wait {
            EventWait::Until(end) => end,
            EventWait::Waker(waker) => {
                // The descriptor stays readable while an event waits: one that arrives meanwhile wakes the task.
                let watched = watcher::watch(channel, deadline, waker);
                watched.map_err(|error| Error::from_io(verb, "the system cannot start another thread", error))?;
                return Ok(None);
            }
        };
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        if end.is_some_and(|end| left(end).is_zero()) {
            return Ok(None);
        }
        let timeout = [end, deadline].into_iter().flatten().min().map(left);
        wait_readable([channel.descriptor()], timeout)
            .map_err(|error| Error::from_io(verb, "waiting failed", error))?;
    }
}
