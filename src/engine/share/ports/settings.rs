//! The system's settings for ports, those of the network namespace of this thread. Each is read when it is needed,
//! because it can change.

use std::ops::RangeInclusive;

const FIRST_UNPRIVILEGED: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const ONLY_V6: &str = "/proc/sys/net/ipv6/bindv6only";
const STATUS: &str = "/proc/thread-self/status";

/// The kernel's defaults.
const DEFAULT_FIRST_UNPRIVILEGED: u16 = 1_024;
const DEFAULT_EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;
/// Bit of the capability to bind privileged ports.
const CAP_NET_BIND_SERVICE: u32 = 10;

/// Returns the first port that every process may bind.
pub(super) fn first_unprivileged_port() -> u16 {
    read(FIRST_UNPRIVILEGED).trim().parse().unwrap_or(DEFAULT_FIRST_UNPRIVILEGED)
}

/// Returns the ports that are given to bindings without a port.
pub(super) fn ephemeral_ports() -> RangeInclusive<u16> {
    parse_range(&read(EPHEMERAL)).unwrap_or(DEFAULT_EPHEMERAL)
}

/// Returns whether bindings to IPv6 addresses leave the port free for IPv4 by default.
pub(super) fn is_only_v6() -> bool {
    read(ONLY_V6).trim() == "1"
}

/// Returns whether this thread may bind privileged ports.
pub(super) fn may_bind_privileged() -> bool {
    has_capability(&read(STATUS))
}

/// Returns the content, empty if it cannot be read.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (0 < first && first <= last).then_some(first..=last)
}

fn has_capability(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_NET_BIND_SERVICE & 1 == 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(parse_range("32768\t60999\n"), Some(32_768..=60_999));
        for malformed in ["", "7", "9 8", "0 5", "5 70000", "a b"] {
            assert_eq!(parse_range(malformed), None, "{malformed:?}");
        }
        assert!(ephemeral_ports().count() > 1);
    }

    #[test]
    fn capability_is_found() {
        assert!(has_capability("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000400\n"));
        assert!(!has_capability("CapPrm:\t0000000000000400\nCapEff:\t00000000fffffbff\n"));
        assert!(!has_capability(""));
        assert!(read(STATUS).contains("CapEff:"));
    }
}
