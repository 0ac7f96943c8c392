//! The start of the ICRC that all packets between two ports share.
//!
//! Of the headers before the base transport header, only the two lengths and the identification differ between the
//! packets of a flow. Their distance from the end of these headers is constant, and a CRC is linear: their effect on
//! it depends on nothing else and is looked up in tables.

use once_cell::race::OnceBox;

use super::{BTH_BYTES, Flow, ICRC_BYTES, backward_words, multiply, prefix, solve};
use crate::checksum::{self, Sum};

/// Identifications of segments of one send are below this.
const IDENTIFICATIONS: u16 = 128;
/// Offset of the masked byte of a packet, which is zero in nearly all of them.
const MASKED: usize = 4;
/// Longest packet in the tables; longer ones take the general path.
const LARGEST_PACKET: usize = 4_096 + 12 + 64;

/// The CRC of a flow's masked headers up to the base transport header, for an empty packet with identification 0 and
/// "don't fragment" set. It includes the effect of the base transport header's mask, so the bytes of a packet are used
/// as they are.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    sum: u32,
    is_v4: bool,
}

/// The differences from a seed.
struct Changes {
    /// By the packet's length without its ICRC, in words; for IPv6 and for IPv4.
    lengths: [Box<[u32]>; 2],
    /// By the identification, for IPv4.
    identifications: Box<[u32]>,
}

/// The CRC of the masked headers before the base transport header.
fn headers_sum(flow: &Flow, identification: u16, packet_bytes: usize) -> u32 {
    let (bytes, length) = prefix(flow, identification, true, packet_bytes, &[0; BTH_BYTES]);
    checksum::update(0, &bytes[..length - BTH_BYTES])
}

fn changes() -> &'static Changes {
    // A lock would stay taken in a child that is forked while another thread computes the tables.
    static CHANGES: OnceBox<Changes> = OnceBox::new();
    CHANGES.get_or_init(|| {
        // Any flow will do: the effect of a length does not depend on the addresses.
        let flows = ["::", "0.0.0.0"].map(|address: &str| {
            let address = address.parse().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
            Flow { source: address, destination: address, source_port: 0 }
        });
        let lengths = flows.map(|flow| {
            let words = 0..=LARGEST_PACKET / 4;
            words.map(|words| headers_sum(&flow, 0, 4 * words) ^ headers_sum(&flow, 0, 0)).collect()
        });
        let none = headers_sum(&flows[1], 0, 0);
        let identifications = (0..IDENTIFICATIONS).map(|number| headers_sum(&flows[1], number, 0) ^ none).collect();
        Box::new(Changes { lengths, identifications })
    })
}

impl Seed {
    /// Computes the seed of a flow.
    pub fn new(flow: &Flow) -> Self {
        let is_v4 = flow.source.is_ipv4() && flow.destination.is_ipv4();
        // Ones instead of zeros four bytes further on change the CRC as they would here, moved back by four bytes.
        let mask = multiply(0xff, backward_words(MASKED / 4));
        Self { sum: headers_sum(flow, 0, 0) ^ mask, is_v4 }
    }

    /// Computes the ICRC of a packet, given from its base transport header to the end of its padding, with "don't
    /// fragment". `None`: only [`super::compute`] supports the packet.
    #[inline]
    fn compute(&self, identification: u16, packet: &[u8]) -> Option<u32> {
        let headers = self.headers(identification, packet)?;
        Some(checksum::update(headers, packet))
    }

    /// Returns the CRC of the headers before the packet.
    #[inline]
    fn headers(&self, identification: u16, packet: &[u8]) -> Option<u32> {
        if !packet.len().is_multiple_of(4) || *packet.get(MASKED)? != 0 {
            return None;
        }
        let changes = changes();
        let sum = self.sum ^ changes.lengths[usize::from(self.is_v4)].get(packet.len() / 4)?;
        if !self.is_v4 {
            return Some(sum);
        }
        Some(sum ^ changes.identifications.get(usize::from(identification))?)
    }

    /// [`Seed::append`] for a packet that ends with a payload, without padding, that was summed as it was copied.
    #[inline]
    pub fn append_summed(&self, flow: &Flow, identification: u16, packet: &mut [u8], payload: Option<&Sum>) {
        let covered = packet.len() - ICRC_BYTES;
        let headers = payload.and_then(|sum| Some((sum, self.headers(identification, &packet[..covered])?)));
        let Some((sum, headers)) = headers else { return self.append(flow, identification, packet) };
        let value = sum.after(headers, &packet[..covered - sum.length()]);
        packet[covered..].copy_from_slice(&value.to_le_bytes());
    }

    /// [`super::append`] for a packet of this flow.
    ///
    /// # Panics
    /// If the packet is shorter than a base transport header and an ICRC.
    #[inline]
    pub fn append(&self, flow: &Flow, identification: u16, packet: &mut [u8]) {
        let covered = packet.len() - ICRC_BYTES;
        match self.compute(identification, &packet[..covered]) {
            Some(value) => packet[covered..].copy_from_slice(&value.to_le_bytes()),
            None => super::append(flow, identification, packet),
        }
    }

    /// Whether the ICRC at the end of a datagram's payload fits exactly. If not, [`super::verify`] decides.
    #[cfg(feature = "sim")]
    #[inline]
    pub fn fits(&self, identification: u16, udp_payload: &[u8]) -> bool {
        self.identification_of(identification, udp_payload) == Some(identification)
    }

    /// Returns the difference between the last four bytes of a datagram's payload and the ICRC of the rest, with
    /// identification 0 and "don't fragment". `None`: it is too short to be a packet. `flow` is called only if the seed
    /// does not suffice.
    #[inline]
    pub fn difference(&self, flow: impl FnOnce() -> Flow, udp_payload: &[u8]) -> Option<u32> {
        let (packet, received) = udp_payload.split_last_chunk::<ICRC_BYTES>()?;
        let icrc = match self.compute(0, packet) {
            Some(icrc) => icrc,
            None if packet.len() < BTH_BYTES => return None,
            None => super::compute(&flow(), 0, true, packet),
        };
        Some(icrc ^ u32::from_le_bytes(*received))
    }

    /// Returns the IPv4 identification that explains a difference found by [`Seed::difference`] for a payload of this
    /// length.
    pub fn identification_behind(difference: u32, payload_bytes: usize) -> Option<u16> {
        solve(difference, payload_bytes + 20)
    }

    /// Returns the identification, with "don't fragment", that the ICRC at the end of a datagram's payload implies,
    /// found from an expected one without a second pass over the packet. `None`: only [`super::verify`] can decide.
    /// Over IPv6, which has none, the expected one.
    #[inline]
    pub fn identification_of(&self, expected: u16, udp_payload: &[u8]) -> Option<u16> {
        let (packet, received) = udp_payload.split_last_chunk::<ICRC_BYTES>()?;
        let difference = self.compute(expected, packet)? ^ u32::from_le_bytes(*received);
        if difference == 0 {
            return Some(expected);
        }
        // A CRC is linear, so this is the difference between the expected identification and the real one.
        self.is_v4.then(|| solve(difference, udp_payload.len() + 20))?.map(|differs| expected ^ differs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(is_v4: bool) -> impl Strategy<Value = std::net::IpAddr> {
        any::<[u8; 16]>().prop_map(move |bytes| match is_v4 {
            true => [bytes[0], bytes[1], bytes[2], bytes[3]].into(),
            false => bytes.into(),
        })
    }

    fn flow() -> impl Strategy<Value = Flow> {
        let families = prop_oneof![Just([true, true]), Just([false, false]), Just([true, false])];
        (families, any::<u16>()).prop_flat_map(|([source, destination], source_port)| {
            (address(source), address(destination)).prop_map(move |(source, destination)| Flow {
                source,
                destination,
                source_port,
            })
        })
    }

    proptest! {
        #[test]
        fn seed_leads_to_the_same_icrc(
            flow in flow(),
            identification in prop_oneof![0..IDENTIFICATIONS + 2, any::<u16>()],
            mut packet in prop::collection::vec(any::<u8>(), 16..200),
            long in 0..5usize,
            masked in prop_oneof![Just(0), any::<u8>()],
        ) {
            packet.resize(packet.len() + long * 1_031, 0x5a);
            packet[MASKED] = masked;
            let seed = Seed::new(&flow);
            seed.append(&flow, identification, &mut packet);
            let mut expected = packet.clone();
            super::super::append(&flow, identification, &mut expected);
            prop_assert_eq!(&packet, &expected);
            let is_fast = packet.len() % 4 == 0 && packet.len() - ICRC_BYTES <= LARGEST_PACKET && masked == 0
                && (identification < IDENTIFICATIONS || !seed.is_v4);
            prop_assert_eq!(seed.fits(identification, &packet), is_fast);
            if is_fast && seed.is_v4 {
                for expected in [0, 1, IDENTIFICATIONS - 1] {
                    prop_assert_eq!(seed.identification_of(expected, &packet), Some(identification));
                }
            }
            let last = packet.len() - 1;
            packet[last] ^= 1;
            prop_assert!(!seed.fits(identification, &packet));
        }
    }
}
