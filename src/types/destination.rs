//! The destination of a datagram.

use std::net::IpAddr;

use super::{Gid, Qkey, Qpn};

/// Flag beside the 24-bit number of the queue pair.
const TOO_LONG: u32 = 1 << 31;

/// The path of one datagram, from its address handle and its request, as the send queue keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Local address.
    pub source: IpAddr,
    /// UDP port of the sending socket.
    pub source_port: u16,
    /// Address of the receiver or the group.
    pub address: IpAddr,
    /// Type of service byte; a soft device ignores its lower two bits.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The receiving queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// Its Q_Key; with the highest bit set, the sending queue pair's own is sent instead.
    pub qkey: Qkey,
    /// Whether the message is longer than the path allows: it then fails when its turn comes.
    pub is_too_long: bool,
}

impl Destination {
    /// Number of bytes of [`Destination::to_bytes`].
    pub const BYTES: usize = 44;

    /// Encodes the destination for a slot of the send queue.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&Gid::from(self.source).to_bytes());
        bytes[16..32].copy_from_slice(&Gid::from(self.address).to_bytes());
        bytes[32..34].copy_from_slice(&self.source_port.to_ne_bytes());
        bytes[34..36].copy_from_slice(&[self.traffic_class, self.hop_limit]);
        // The number has 24 bits.
        let qpn = self.qpn.value() | if self.is_too_long { TOO_LONG } else { 0 };
        bytes[36..40].copy_from_slice(&qpn.to_ne_bytes());
        bytes[40..44].copy_from_slice(&self.qkey.0.to_ne_bytes());
        bytes
    }

    /// Decodes the result of [`Destination::to_bytes`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let gid = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            Gid::from_bytes(octets).to_ip()
        };
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            source: gid(0),
            source_port: u16::from_ne_bytes([bytes[32], bytes[33]]),
            address: gid(16),
            traffic_class: bytes[34],
            hop_limit: bytes[35],
            qpn: Qpn::new(number(36)),
            qkey: Qkey(number(40)),
            is_too_long: number(36) & TOO_LONG != 0,
        }
    }
}

/// Returns the Q_Key to send: the request's, or the sending queue pair's own if the request's highest bit is set.
pub const fn effective_qkey(requested: Qkey, own: Qkey) -> Qkey {
    if requested.0 >> 31 == 1 { own } else { requested }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_bring_everything_back() {
        let mut destination = Destination {
            source: "10.0.0.1".parse().unwrap(),
            source_port: 50_123,
            address: "239.1.2.3".parse().unwrap(),
            traffic_class: 0x28,
            hop_limit: 3,
            qpn: Qpn::MULTICAST,
            qkey: Qkey(0x1234_5678),
            is_too_long: false,
        };
        assert_eq!(Destination::from_bytes(&destination.to_bytes()), destination);
        destination.address = "2001:db8::7".parse().unwrap();
        destination.source = "2001:db8::8".parse().unwrap();
        destination.is_too_long = true;
        assert_eq!(Destination::from_bytes(&destination.to_bytes()), destination);
    }

    #[test]
    fn high_bit_means_the_own_key() {
        assert_eq!(effective_qkey(Qkey(5), Qkey(6)), Qkey(5));
        assert_eq!(effective_qkey(Qkey(0x8000_0005), Qkey(6)), Qkey(6));
    }
}
