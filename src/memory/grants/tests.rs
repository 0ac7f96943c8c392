use std::sync::atomic::AtomicBool;

use super::*;
use crate::memory::Backing;
use crate::memory::raw::Memory;

pub(in crate::memory) fn clock() -> Time {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    Time::ZERO + BEGUN.get_or_init(std::time::Instant::now).elapsed()
}

/// A table and a gate, from both sides.
fn ends() -> (Grants, PeerGrants, AccessGate, Memory) {
    let (words, file) = Backing::create_shared(c"test", TABLE_BYTES).unwrap();
    let peer = Backing::open_shared(std::os::fd::AsFd::as_fd(&file), TABLE_BYTES).unwrap();
    let gate = Memory::new(Backing::anonymous(4_096).unwrap());
    let grants = Grants::new(Pages::new(Memory::new(words)), clock);
    grants.add_gate(WatchedGate::new(Pages::new(gate.share()), 256));
    (grants, PeerGrants::new(Pages::new(Memory::new(peer))), AccessGate::new(Pages::new(gate.share()), 256), gate)
}

#[test]
fn a_grant_holds_until_it_is_revoked() {
    let (grants, peer, ..) = ends();
    let (first, second) = (grants.grant().unwrap(), grants.grant().unwrap());
    assert!(peer.holds(first) && peer.holds(second) && first != second);
    assert_eq!(grants.revoke(first), Ended::Yes);
    assert!(!peer.holds(first) && peer.holds(second));
    // Its place is used again; the grant is another one.
    let third = grants.grant().unwrap();
    assert_eq!(third.place, first.place);
    assert!(peer.holds(third) && !peer.holds(first));
}

#[test]
fn grants_are_limited() {
    let (grants, peer, ..) = ends();
    let all: Vec<Grant> = (0..PLACES).map(|_| grants.grant().unwrap()).collect();
    assert!(grants.grant().is_none());
    assert_eq!(grants.revoke(all[7]), Ended::Yes);
    assert!(grants.grant().is_some_and(|grant| grant.place == 7));
    for (place, number) in [(PLACES as u32, 1), (u32::MAX, 1), (0, 0), (7, 0)] {
        assert!(!peer.holds(Grant { place, number }), "place {place}, number {number}");
    }
}

/// The owner does not wait for a process that is stopped. That process finds out.
#[test]
fn an_access_that_does_not_end_is_abandoned() {
    let (grants, peer, gate, _) = ends();
    let (one, other) = (grants.grant().unwrap(), grants.grant().unwrap());
    gate.enter();
    assert!(peer.holds(one));
    assert_eq!(grants.revoke(one), Ended::Unknown);
    assert!(!gate.leave());
    // The next access is like any other.
    assert_eq!(grants.revoke(other), Ended::Yes);
    let third = grants.grant().unwrap();
    gate.enter();
    assert!(peer.holds(third) && gate.leave());
}

#[test]
fn a_revocation_waits_for_an_access() {
    let (grants, peer, gate, _) = ends();
    let grant = grants.grant().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        gate.enter();
        assert!(peer.holds(grant));
        let owner = scope.spawn(|| {
            let ended = grants.revoke(grant);
            (ended, is_over.load(Ordering::SeqCst))
        });
        while peer.holds(grant) {
            std::hint::spin_loop();
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(gate.leave());
        assert_eq!(owner.join().unwrap(), (Ended::Yes, true));
    });
}

/// A gate that is not watched is not waited for; its process cannot access anything.
#[test]
fn gates_are_watched_until_they_are_removed() {
    let (grants, _, gate, memory) = ends();
    let number = grants.add_gate(WatchedGate::new(Pages::new(memory.share()), 256));
    gate.enter();
    grants.remove_gate(number);
    grants.remove_gate(number - 1);
    let grant = grants.grant().unwrap();
    assert_eq!(grants.revoke(grant), Ended::Yes);
}
