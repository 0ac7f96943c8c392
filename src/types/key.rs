//! Secrets that native peers share to authenticate the packets of their connection.

use std::fmt;

/// One peer's contribution to the key of a connection: 128 random bits, disclosed only to the other peer.
///
/// `Debug` does not show the bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyShare([u8; Self::BYTES]);

impl KeyShare {
    /// Size of a share in bytes.
    pub const BYTES: usize = 16;

    /// Creates a share from these bits, which must come from a cryptographic random number generator.
    pub const fn new(bits: [u8; Self::BYTES]) -> Self {
        Self(bits)
    }

    /// Returns the bits, for the message to the peer.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }
}

impl fmt::Debug for KeyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyShare(hidden)")
    }
}

/// The key that authenticates the packets between two native peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerKey {
    /// This end's share.
    pub local: KeyShare,
    /// The other end's share.
    pub remote: KeyShare,
    /// Whether the other end is known to have both shares. If so, only keyed packets are accepted, from the first one
    /// on. Otherwise both ends start without the key, confirm to each other that they have it, and switch once.
    pub is_agreed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_bits() {
        let share = KeyShare::new([0xa5; KeyShare::BYTES]);
        let key = PeerKey { local: share, remote: share, is_agreed: true };
        let text = format!("{key:?} {key:#?}");
        assert!(!text.contains("a5") && !text.contains("165"), "{text}");
    }
}
