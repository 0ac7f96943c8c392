//! Choice of the paths with a congestion controller: those that leave this host.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::transport::{Capped, CongestionControl, CongestionFactory, ConstantWindow, Cubic, PathFacts};
use crate::types::CongestionAlgorithm;

/// Returns the factory of the congestion controllers of a device's paths, with a limit on the rate of each if there is
/// one.
pub(crate) fn congestion_of(
    algorithm: CongestionAlgorithm,
    max_bytes_per_second: Option<NonZeroU64>,
) -> Option<Arc<dyn CongestionFactory>> {
    let is_controlled = algorithm != CongestionAlgorithm::Constant || max_bytes_per_second.is_some();
    is_controlled.then(|| Arc::new(PathsToOtherHosts { algorithm, max_bytes_per_second }) as _)
}

/// Builds controllers for paths to other hosts. Within a host packets are lost only when a socket is full, so the
/// window is the socket's capacity.
struct PathsToOtherHosts {
    algorithm: CongestionAlgorithm,
    max_bytes_per_second: Option<NonZeroU64>,
}

impl PathsToOtherHosts {
    fn control(&self, path: &PathFacts) -> Box<dyn CongestionControl> {
        let control: Box<dyn CongestionControl> = match self.algorithm {
            CongestionAlgorithm::Cubic => Box::new(Cubic::new(path)),
            CongestionAlgorithm::Constant => Box::new(ConstantWindow::new(path)),
        };
        match self.max_bytes_per_second {
            Some(most) => Box::new(Capped::new(control, most.get())),
            None => control,
        }
    }
}

impl CongestionFactory for PathsToOtherHosts {
    fn build(&self, path: &PathFacts) -> Option<Box<dyn CongestionControl>> {
        leaves_host(path.own, path.peer).then(|| self.control(path))
    }
}

/// Returns whether packets between these addresses leave this host.
pub(crate) fn leaves_host(own: IpAddr, peer: IpAddr) -> bool {
    own != peer && !is_of_this_host(peer)
}

/// Returns whether this host has the address. An address that is not listed is treated as another host's, which only
/// costs speed.
fn is_of_this_host(address: IpAddr) -> bool {
    let is_listed = || if_addrs::get_if_addrs().is_ok_and(|all| all.iter().any(|own| own.ip() == address));
    address.to_canonical().is_loopback() || is_listed()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::Mtu;

    fn is_controlled(own: &str, peer: &str) -> bool {
        control(CongestionAlgorithm::Cubic, None, own, peer).is_some()
    }

    fn control(
        algorithm: CongestionAlgorithm,
        most: Option<u64>,
        own: &str,
        peer: &str,
    ) -> Option<Box<dyn CongestionControl>> {
        let [own, peer] = [own, peer].map(|address| address.parse().unwrap());
        let factory = congestion_of(algorithm, most.and_then(NonZeroU64::new))?;
        factory.build(&PathFacts::new([own, peer], Mtu::Mtu1024, true, 64 << 10))
    }

    #[test]
    fn rate_limit_applies_to_each_path_to_another_host() {
        for &algorithm in CongestionAlgorithm::ALL {
            let to = |peer| control(algorithm, Some(1_000), "198.51.100.1", peer);
            let capped = to("198.51.100.2").expect("a controller");
            assert_eq!((capped.pacing_rate(), capped.known_rate(None)), (Some(1_000), Some(1_000)));
            assert!(capped.window() >= 16 << 10);
            assert!(to("127.0.0.1").is_none());
        }
        assert!(control(CongestionAlgorithm::Constant, None, "198.51.100.1", "198.51.100.2").is_none());
    }

    #[test]
    fn paths_to_other_hosts_are_controlled() {
        assert!(is_controlled("198.51.100.1", "198.51.100.2") && is_controlled("2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn paths_within_the_host_are_not_controlled() {
        assert!(!is_controlled("127.0.0.1", "127.7.7.7") && !is_controlled("::1", "::ffff:127.0.0.1"));
        assert!(!is_controlled("198.51.100.1", "198.51.100.1"));
        for own in if_addrs::get_if_addrs().unwrap() {
            assert!(!is_controlled("198.51.100.1", &own.ip().to_string()), "{own:?}");
        }
    }
}
