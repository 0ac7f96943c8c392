//! Discovery of software devices: network interfaces and addresses of this machine.

use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;

use if_addrs::Interface as SystemAddress;

use crate::provider::{Error, ErrorKind, Result};
use crate::sys::{LinkState, LocalAddress, link_megabits, link_state};

/// Interface MTU assumed if the system does not report one.
pub(super) const USUAL_MTU_BYTES: u32 = 1_500;

/// The network interface, or the single address of one, that a device represents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) device_name: String,
    /// Name of the system's interface, if known.
    pub(super) name: Option<String>,
    /// Index of the system's interface, or 0 if unknown.
    pub(super) index: u32,
    /// Its addresses in the order of the GID table.
    pub(super) addresses: Vec<LocalAddress>,
    reach: Reach,
}

/// The addresses of the interface that belong to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// All of them.
    Whole,
    /// Only the one that the device is named after.
    Address,
    /// As `Address`, but the system does not list the address (most of 127.0.0.0/8), so its removal goes unnoticed.
    Unlisted,
}

impl Interface {
    /// Returns the current state of the interface; one that is gone is down. Fails if the state cannot be read.
    pub(super) fn state(&self) -> io::Result<LinkState> {
        let unknown = LinkState { mtu_bytes: USUAL_MTU_BYTES, running: true };
        let Some(name) = &self.name else { return Ok(unknown) };
        // The query works on any socket.
        let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).or_else(|_| UdpSocket::bind("127.0.0.1:0"))?;
        match link_state(socket.as_fd(), name) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(LinkState { running: false, ..unknown }),
            state => state,
        }
    }

    /// Returns the interface's current speed, if it reports one.
    pub(super) fn megabits(&self) -> Option<u32> {
        self.name.as_deref().and_then(link_megabits)
    }

    /// Returns whether the device has all addresses of the interface, also those that come later.
    pub(super) fn is_whole(&self) -> bool {
        self.reach == Reach::Whole
    }

    /// Returns the device's current addresses, in no particular order.
    pub(super) fn addresses_now(&self) -> io::Result<Vec<LocalAddress>> {
        let all = match self.reach {
            Reach::Unlisted => return Ok(self.addresses.clone()),
            Reach::Whole | Reach::Address => if_addrs::get_if_addrs()?,
        };
        let name = self.name.as_deref().unwrap_or_default();
        let mut now = of_name(name, &all).addresses;
        if self.reach == Reach::Address {
            let listed = all.iter().any(|known| self.addresses.iter().any(|own| own.ip == known.ip()));
            now = if listed { self.addresses.clone() } else { Vec::new() };
        }
        Ok(now)
    }
}

/// Returns all interfaces that are up and have an address.
pub(super) fn all() -> io::Result<Vec<Interface>> {
    let addresses = if_addrs::get_if_addrs()?;
    let mut names: Vec<&str> = Vec::new();
    for address in addresses.iter().filter(|address| is_up(address)) {
        if !names.contains(&address.name.as_str()) {
            names.push(&address.name);
        }
    }
    Ok(names.into_iter().map(|name| of_name(name, &addresses)).collect())
}

/// Returns the interface behind a device name, or `None` if this machine has no such device.
pub(super) fn find(device_name: &str) -> Result<Option<Interface>> {
    let fail = |error| Error::from_io("open_device", "the network interfaces cannot be listed", error);
    if let Some(address) = device_name.strip_prefix("soft:") {
        let address: IpAddr = address.parse().map_err(|_| {
            let message = format!("\"{address}\" is not an IP address; use soft:ADDRESS, as in soft:127.0.0.1");
            Error::new("open_device", ErrorKind::InvalidArgument, message)
        })?;
        let known = if_addrs::get_if_addrs().map_err(fail)?;
        return Ok(Some(of_address(device_name, address, &known)));
    }
    Ok(all().map_err(fail)?.into_iter().find(|interface| interface.device_name == device_name))
}

fn is_up(address: &SystemAddress) -> bool {
    // The loopback interface reports the state "unknown" while it is up.
    address.is_oper_up() || address.is_loopback() || address.oper_status == if_addrs::IfOperStatus::Unknown
}

fn of_name(name: &str, all: &[SystemAddress]) -> Interface {
    let mine: Vec<&SystemAddress> = all.iter().filter(|address| address.name == name).collect();
    let mut addresses: Vec<LocalAddress> = mine.iter().map(|address| local(address)).collect();
    // Link-local addresses need the interface's name at both ends, so they are used only if the interface has no other
    // addresses.
    if addresses.iter().any(|address| !is_link_local_v6(address.ip)) {
        addresses.retain(|address| !is_link_local_v6(address.ip));
    }
    addresses.sort_by_key(|address| address.ip.is_ipv6());
    addresses.dedup();
    addresses.truncate(usize::from(u8::MAX));
    let index = mine.first().and_then(|address| address.index).unwrap_or(0);
    let device_name = format!("soft_{name}");
    Interface { device_name, name: Some(name.to_owned()), index, addresses, reach: Reach::Whole }
}

fn of_address(device_name: &str, address: IpAddr, all: &[SystemAddress]) -> Interface {
    let exact = all.iter().find(|known| known.ip() == address);
    // All of 127.0.0.0/8 belongs to the loopback interface, but only one address is listed.
    let found = exact.or_else(|| all.iter().find(|known| known.is_loopback() && address.is_loopback()));
    let addresses = vec![exact.map_or(LocalAddress { ip: address, scope: 0 }, local)];
    Interface {
        device_name: device_name.to_owned(),
        name: found.map(|known| known.name.clone()),
        index: found.and_then(|known| known.index).unwrap_or(0),
        addresses,
        reach: if exact.is_some() { Reach::Address } else { Reach::Unlisted },
    }
}

fn local(address: &SystemAddress) -> LocalAddress {
    let ip = address.ip();
    let scope = if is_link_local_v6(ip) { address.index.unwrap_or(0) } else { 0 };
    LocalAddress { ip, scope }
}

fn is_link_local_v6(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_a_device_whose_first_address_is_ipv4() {
        let all = all().unwrap();
        let loopback = all.iter().find(|interface| interface.device_name == "soft_lo").unwrap();
        assert_eq!(loopback.addresses[0].ip, IpAddr::from([127, 0, 0, 1]));
        assert!(loopback.index > 0);
        let state = loopback.state().unwrap();
        assert!(state.running && state.mtu_bytes >= 1_500, "{state:?}");
    }

    #[test]
    fn an_address_names_a_device_on_its_interface() {
        let interface = find("soft:127.3.2.1").unwrap().unwrap();
        assert_eq!(interface.name.as_deref(), Some("lo"));
        assert_eq!(interface.addresses, [LocalAddress { ip: "127.3.2.1".parse().unwrap(), scope: 0 }]);
        assert_eq!(find("soft:nonsense").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(find("soft_nonsense0").unwrap(), None);
        assert_eq!(find("mlx5_0").unwrap(), None);
    }

    #[test]
    fn addresses_stay_the_same_without_changes() {
        for name in ["soft_lo", "soft:127.0.0.1", "soft:127.3.2.1"] {
            let interface = find(name).unwrap().unwrap();
            assert_eq!(interface.addresses_now().unwrap(), interface.addresses, "{name}");
        }
    }

    #[test]
    fn a_removed_interface_is_down() {
        let mut interface = find("soft_lo").unwrap().unwrap();
        interface.name = Some("gone0".into());
        assert!(!interface.state().unwrap().running);
        assert_eq!(interface.addresses_now().unwrap(), []);
    }
}
