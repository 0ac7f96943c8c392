//! The keys of the simulated connections: as native peers of every kind have them.

use rdma_verbs::types::{KeyShare, PeerCapabilities, PeerKey};

/// What the two ends of a connection know of its key.
pub(crate) type Keys = [Option<PeerKey>; 2];

/// The keys of the connections of a seed, chosen by some number of it that is spread evenly. Standard peers have none.
/// Of native peers most have agreed, some found each other's share by themselves, and of some only one did.
pub(crate) fn keys_of(peer: PeerCapabilities, choice: u64) -> Keys {
    if !peer.is_ours() {
        return [None; 2];
    }
    let share = |end: u8| KeyShare::new([end + 1; KeyShare::BYTES]);
    let both = |is_agreed| [0, 1].map(|end| Some(PeerKey { local: share(end), remote: share(1 - end), is_agreed }));
    let [first, second] = both(false);
    match choice % 8 {
        0..=3 => both(true),
        4 | 5 => [first, second],
        6 => [first, None],
        _ => [None, None],
    }
}
