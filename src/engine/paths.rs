//! Which paths of a device have a congestion controller: those that leave this host.

use std::net::IpAddr;
use std::sync::Arc;

use crate::transport::{CongestionControl, CongestionFactory, Cubic, PathFacts};
use crate::types::CongestionAlgorithm;

/// Builds what the paths of a device are controlled by.
pub(super) fn congestion_of(algorithm: CongestionAlgorithm) -> Option<Arc<dyn CongestionFactory>> {
    match algorithm {
        CongestionAlgorithm::Cubic => Some(Arc::new(CubicToOtherHosts)),
        CongestionAlgorithm::Constant => None,
    }
}

/// CUBIC on paths to other hosts. Within a host nothing is lost but what a socket does not hold, so the window is what
/// that takes.
struct CubicToOtherHosts;

impl CongestionFactory for CubicToOtherHosts {
    fn build(&self, path: &PathFacts) -> Option<Box<dyn CongestionControl>> {
        leaves_host(path.own, path.peer).then(|| Box::new(Cubic::new(path)) as _)
    }
}

/// Whether packets between these addresses leave this host.
pub(super) fn leaves_host(own: IpAddr, peer: IpAddr) -> bool {
    own != peer && !is_of_this_host(peer)
}

/// Whether this host has the address. One that is not listed passes for another host's: that costs speed and nothing
/// else.
fn is_of_this_host(address: IpAddr) -> bool {
    let is_listed = || if_addrs::get_if_addrs().is_ok_and(|all| all.iter().any(|own| own.ip() == address));
    address.to_canonical().is_loopback() || is_listed()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::Mtu;

    fn is_controlled(own: &str, peer: &str) -> bool {
        let [own, peer] = [own, peer].map(|address| address.parse().unwrap());
        CubicToOtherHosts.build(&PathFacts::new([own, peer], Mtu::Mtu1024, true, 64 << 10)).is_some()
    }

    #[test]
    fn paths_to_other_hosts_are_controlled() {
        assert!(is_controlled("198.51.100.1", "198.51.100.2") && is_controlled("2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn paths_within_the_host_are_not() {
        assert!(!is_controlled("127.0.0.1", "127.7.7.7") && !is_controlled("::1", "::ffff:127.0.0.1"));
        assert!(!is_controlled("198.51.100.1", "198.51.100.1"));
        for own in if_addrs::get_if_addrs().unwrap() {
            assert!(!is_controlled("198.51.100.1", &own.ip().to_string()), "{own:?}");
        }
    }
}
