//! Which processes may bind a port at the same time, and at which listener a request arrives. Pure functions of
//! bindings.
//!
//! The rules and error numbers are those of Linux' `rdma_cm`, except for loopback addresses. Linux treats a binding to
//! one like a wildcard, because a listener there takes requests from every network. Here it takes requests to that
//! address alone, so it conflicts with that address and with wildcards only. The error number of such a conflict is
//! that of Linux, as for a wildcard.

use std::net::IpAddr;

use super::super::registry::Binding;

/// Why two bindings cannot have the same port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Conflict {
    /// Both have the same address: `EADDRINUSE`.
    SameAddress,
    /// Both have the same loopback address: `EADDRNOTAVAIL`.
    Loopback,
    /// One is a wildcard: `EADDRNOTAVAIL`.
    Wildcard,
}

/// How well a listener matches a destination; the least one takes the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Match {
    Address,
    Wildcard,
    /// The wildcard of IPv6, for IPv4.
    WildcardOfBothFamilies,
}

/// Returns why `new` cannot have the same port as `old`. With `may_share`, both may have it if both allow reuse.
pub(super) fn conflict(new: &Binding, old: &Binding, may_share: bool) -> Option<Conflict> {
    let is_shared = may_share && new.reuse_address && old.reuse_address;
    let is_other_family = new.address.is_ipv4() != old.address.is_ipv4();
    if is_shared || (is_other_family && new.only_own_family && old.only_own_family) {
        return None;
    }
    if new.address.is_unspecified() || old.address.is_unspecified() {
        return Some(Conflict::Wildcard);
    }
    let kind = if new.address.is_loopback() { Conflict::Loopback } else { Conflict::SameAddress };
    (new.address == old.address).then_some(kind)
}

/// Returns the first conflict with these bindings, and its index.
pub(super) fn first_conflict<'a>(
    new: &Binding,
    olds: impl IntoIterator<Item = &'a Binding>,
    may_share: bool,
) -> Option<(usize, Conflict)> {
    let mut conflicts = olds.into_iter().map(|old| conflict(new, old, may_share)).enumerate();
    conflicts.find_map(|(index, conflict)| Some((index, conflict?)))
}

/// Returns how well a binding matches the destination of a request, or `None` if it does not take it.
pub(super) fn matches(binding: &Binding, destination: IpAddr) -> Option<Match> {
    let is_own_family = binding.address.is_ipv4() == destination.is_ipv4();
    match binding.address {
        _ if !binding.is_listening => None,
        address if address == destination => Some(Match::Address),
        address if !address.is_unspecified() => None,
        _ if is_own_family => Some(Match::Wildcard),
        IpAddr::V6(_) if !binding.only_own_family => Some(Match::WildcardOfBothFamilies),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn binding(address: &str) -> Binding {
        let address: IpAddr = address.parse().unwrap();
        let only_own_family = address.is_ipv4();
        Binding { address, only_own_family, reuse_address: false, is_listening: true, block: 1 }
    }

    #[test]
    fn loopback_addresses_conflict_with_wildcards_and_themselves() {
        let conflict_of = |new, old| conflict(&binding(new), &binding(old), true);
        for (one, other) in [
            ("127.0.0.1", "10.0.0.1"),
            ("127.0.0.1", "127.0.0.2"),
            ("127.0.0.1", "::1"),
            ("::1", "fd00::1"),
            ("::1", "10.0.0.1"),
        ] {
            assert_eq!([conflict_of(one, other), conflict_of(other, one)], [None, None], "{one} {other}");
        }
        for address in ["127.0.0.1", "::1"] {
            assert_eq!(conflict_of(address, address), Some(Conflict::Loopback), "{address}");
        }
        for (one, other) in [("127.0.0.1", "0.0.0.0"), ("::1", "::")] {
            let both = [conflict_of(one, other), conflict_of(other, one)];
            assert_eq!(both, [Some(Conflict::Wildcard); 2], "{one} {other}");
        }
    }

    #[test]
    fn listeners_match_their_destinations() {
        let match_of = |listener: &str, destination: &str| matches(&binding(listener), destination.parse().unwrap());
        assert_eq!(match_of("10.0.0.1", "10.0.0.1"), Some(Match::Address));
        assert_eq!(match_of("10.0.0.1", "10.0.0.2"), None);
        assert_eq!(match_of("0.0.0.0", "10.0.0.2"), Some(Match::Wildcard));
        assert_eq!(match_of("0.0.0.0", "fd00::1"), None);
        assert_eq!(match_of("::", "fd00::1"), Some(Match::Wildcard));
        assert_eq!(match_of("::", "10.0.0.1"), Some(Match::WildcardOfBothFamilies));
        assert_eq!(match_of("127.0.0.1", "10.0.0.1"), None);
        let only_v6 = Binding { only_own_family: true, ..binding("::") };
        assert_eq!(matches(&only_v6, IpAddr::from([10, 0, 0, 1])), None);
        let bound = Binding { is_listening: false, ..binding("::") };
        assert_eq!(matches(&bound, bound.address), None);
    }

    fn any_binding() -> impl Strategy<Value = Binding> {
        const ADDRESSES: &[&str] = &["0.0.0.0", "::", "127.0.0.1", "::1", "10.0.0.1", "10.0.0.2", "fd00::1"];
        (prop::sample::select(ADDRESSES), any::<[bool; 3]>()).prop_map(|(address, flags)| {
            let [only_own_family, reuse_address, is_listening] = flags;
            Binding { only_own_family, reuse_address, is_listening, ..binding(address) }
        })
    }

    proptest! {
        #[test]
        fn conflicts_are_mutual(one in any_binding(), other in any_binding(), may_share in any::<bool>()) {
            prop_assert_eq!(conflict(&one, &other, may_share), conflict(&other, &one, may_share));
        }

        /// Two listeners without a conflict never take the same request equally well.
        #[test]
        fn one_listener_takes_a_request(one in any_binding(), other in any_binding(), request in any_binding()) {
            if conflict(&one, &other, false).is_none()
                && let (Some(first), Some(second)) =
                    (matches(&one, request.address), matches(&other, request.address))
            {
                prop_assert_ne!(first, second);
            }
        }
    }
}
