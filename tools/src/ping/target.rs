//! The host: its address and port, and the way to it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use rdma_verbs::verbs::cm::Route;
use rdma_verbs::verbs::{self, Context, Error, ErrorKind};

/// The host as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) port: u16,
}

impl Target {
    /// Parses `name`, `name:port`, `address`, `address:port`, `[address]` or `[address]:port`.
    pub(super) fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        let whole = |name: &str| Self { name: name.to_owned(), port: default_port };
        let wrong = || format!("\"{text}\" is not HOST or HOST:PORT; an IPv6 address with a port is [ADDRESS]:PORT");
        let (name, port) = if let Some(rest) = text.strip_prefix('[') {
            let (name, port) = rest.split_once(']').ok_or_else(wrong)?;
            name.parse::<Ipv6Addr>().map_err(|_| wrong())?;
            match port.strip_prefix(':') {
                Some(port) => (name, port),
                None if port.is_empty() => return Ok(whole(name)),
                None => return Err(wrong()),
            }
        } else {
            match text.split_once(':') {
                Some((name, port)) if !port.contains(':') => (name, port),
                _ => return if text.is_empty() { Err(wrong()) } else { Ok(whole(text)) },
            }
        };
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        if name.is_empty() {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), port })
    }

    /// Returns the addresses of the host.
    pub(super) fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let found = (self.name.as_str(), self.port).to_socket_addrs();
        let found: Vec<SocketAddr> =
            found.map_err(|error| format!("\"{}\" has no address: {error}", self.name))?.collect();
        if found.is_empty() { Err(format!("\"{}\" has no address", self.name)) } else { Ok(found) }
    }

    /// Finds the way to the host, from the device if one is given: its name, or an address of this machine.
    pub(super) fn route(&self, device: Option<&str>) -> Result<Route, String> {
        let addresses = self.addresses()?;
        let route = match device {
            None => Route::to(addresses.as_slice()),
            Some(device) => match device.parse::<IpAddr>() {
                Ok(address) => Route::between(address, addresses.as_slice()),
                Err(_) => verbs::open(device).and_then(|context| route_from(&context, &addresses)),
            },
        };
        route.map_err(|error| error.to_string())
    }
}

/// Returns the way from a device: from the address that the system chooses, or else from its first one of the version.
fn route_from(context: &Context, addresses: &[SocketAddr]) -> verbs::Result<Route> {
    if let Ok(route) = Route::on(context, addresses) {
        return Ok(route);
    }
    let own: Vec<IpAddr> = context.gid_table(1)?.iter().map(|entry| entry.gid.to_ip()).collect();
    let pairs = addresses.iter().flat_map(|remote| own.iter().map(move |own| (*own, *remote)));
    let pair = pairs.into_iter().find(|(own, remote)| own.is_ipv4() == remote.is_ipv4());
    let (own, remote) = pair.ok_or_else(|| {
        let message = format!("{context} has no address of the IP version of {}", addresses[0].ip());
        Error::new("resolve_addr", ErrorKind::NotFound, message)
    })?;
    Route::between(own, remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_or_none() {
        let parsed = |text: &str| Target::parse(text, 7).map(|Target { name, port }| (name, port));
        for (text, name, port) in [
            ("server", "server", 7),
            ("server:18", "server", 18),
            ("192.0.2.1:18", "192.0.2.1", 18),
            ("::1", "::1", 7),
            ("fe80::1%eth0", "fe80::1%eth0", 7),
            ("[::1]", "::1", 7),
            ("[::1]:18", "::1", 18),
        ] {
            assert_eq!(parsed(text), Ok((name.to_owned(), port)), "{text}");
        }
        for text in ["", ":18", "server:", "server:0", "server:65536", "server:x", "[::1", "[::1]18", "[server]:18"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
