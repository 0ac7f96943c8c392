//! The connection keys of the simulation: all combinations that native peers may have.

use rdma_verbs::types::{KeyShare, PeerCapabilities, PeerKey};

/// The key of a connection as known by each of its ends.
pub(crate) type Keys = [Option<PeerKey>; 2];

/// Returns the keys of the connections of a seed; `choice` is a uniform number of the seed. Standard peers have none.
/// Of the native peers most have agreed on a key, some only learned each other's share, and in some cases only one end
/// did.
pub(crate) fn keys_of(peer: PeerCapabilities, choice: u64) -> Keys {
    if !peer.is_native() {
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
