//! The devices that addresses belong to, opened once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};

use crate::provider::{Provider, providers};
use crate::sys::PerGeneration;
use crate::verbs::context::WeakContext;
use crate::verbs::{self, Context, Error, ErrorKind, Result};

/// The only port of software devices, and the first of others.
pub(super) const PORT: u8 = 1;
/// The provider of software devices.
const SOFTWARE: &str = "soft";

/// Contexts that were opened for addresses and are in use: all connections of a device share one.
static OPENED: PerGeneration<Mutex<Vec<WeakContext>>> = PerGeneration::new();

/// Returns the device that has this address.
pub(super) fn of_address(verb: &'static str, address: IpAddr) -> Result<Context> {
    let has_address = |context: &Context| context.find_gid(PORT, address.into()).is_ok();
    if let Some(context) = opened().into_iter().find(has_address) {
        return Ok(context);
    }
    // Loopback addresses belong to software devices, so no adapter is opened for one.
    let devices = connectable(|provider| !address.is_loopback() || provider.name() == SOFTWARE)?;
    let listed = devices.into_iter().find(|(_, addresses)| addresses.contains(&address));
    // Most addresses of 127.0.0.0/8 are not listed.
    let name = listed.map_or_else(|| format!("{SOFTWARE}:{address}"), |(name, _)| name);
    open(&name).map_err(|error| {
        let message = format!("{address} is not an address of this machine, or its device cannot be used: {error}");
        with_missing(address, Error::new(verb, error.kind(), message))
    })
}

/// Returns the devices that have an address of these IP versions; all of them if none has one, because such an address
/// may come later. Those that cannot be opened are left out, with a warning.
pub(super) fn of_wildcard(verb: &'static str, takes_v4: bool, takes_v6: bool) -> Result<Vec<Context>> {
    let fits = |address: &IpAddr| if address.is_ipv4() { takes_v4 } else { takes_v6 };
    let (mut devices, mut contexts) = (connectable(|_| true)?, Vec::new());
    if devices.iter().any(|(_, addresses)| addresses.iter().any(fits)) {
        devices.retain(|(_, addresses)| addresses.iter().any(fits));
    }
    for (name, _) in devices {
        match open(&name) {
            Ok(context) => contexts.push(context),
            Err(error) => tracing::warn!(
                target: "rdma_verbs::connection", device = name, %error, verb, "the device cannot be opened"
            ),
        }
    }
    if contexts.is_empty() {
        let any = if takes_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let message = "no device of this machine has an address, or none can be opened";
        return Err(with_missing(any, Error::new(verb, ErrorKind::NotFound, message)));
    }
    Ok(contexts)
}

/// Returns the devices of some providers that have a connection manager, and their addresses. An address that an
/// adapter has is not one of a software device, which the packets do not reach. Software devices come first, because
/// the first listener's port is that of the others.
fn connectable(is_used: impl Fn(&dyn Provider) -> bool) -> Result<Vec<(String, Vec<IpAddr>)>> {
    let mut devices: Vec<(String, Vec<IpAddr>)> = Vec::new();
    for provider in providers().iter().rev().filter(|provider| is_used(**provider)) {
        let mut found = provider.connectable_devices()?;
        for (_, addresses) in &mut found {
            addresses.retain(|address| !devices.iter().any(|(_, taken)| taken.contains(address)));
        }
        found.retain(|(_, addresses)| !addresses.is_empty());
        devices.splice(..0, found);
    }
    Ok(devices)
}

/// Explains the error of a call with this local address: a software device may have been used because an adapter cannot
/// be.
pub(super) fn explained(context: &Context, local: IpAddr, error: Error) -> Error {
    if context.is_software() { with_missing(local, error) } else { error }
}

/// Adds to an error why adapters of this machine have no connection manager: the local address may be one of theirs,
/// unless it is a loopback address.
fn with_missing(local: IpAddr, error: Error) -> Error {
    if error.kind() == ErrorKind::InvalidArgument || local.is_loopback() {
        return error;
    }
    let missing = providers().iter().filter_map(|provider| provider.connections_unavailable());
    missing.fold(error, |error, reason| error.with_note(&reason))
}

/// Opens a device, unless it is open.
fn open(name: &str) -> Result<Context> {
    if let Some(context) = opened().into_iter().find(|context| context.name() == name) {
        return Ok(context);
    }
    let context = verbs::open(name)?;
    let Some(opened) = OPENED.get() else { return Ok(context) };
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have opened it meanwhile; all connections of a device share one context.
    if let Some(first) = opened.iter().filter_map(WeakContext::upgrade).find(|context| context.name() == name) {
        return Ok(first);
    }
    opened.push(context.downgrade());
    Ok(context)
}

fn opened() -> Vec<Context> {
    let Some(opened) = OPENED.get() else { return Vec::new() };
    let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
    opened.retain(WeakContext::is_open);
    opened.iter().filter_map(WeakContext::upgrade).collect()
}

/// Returns the local address from which packets to a peer leave, as the system routes them.
pub(super) fn source_of(verb: &'static str, remote: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a UDP socket chooses its address and sends nothing.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(remote)?;
        socket.local_addr()
    });
    let source =
        source.map_err(|error| Error::from_io(verb, format!("there is no route to {}", remote.ip()), error))?;
    Ok(source.ip())
}
