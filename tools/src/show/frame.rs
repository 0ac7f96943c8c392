//! From the link layer to the payload of a RoCEv2 datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pcap_parser::Linktype;

use super::source::Direction;

const ROCE_PORT: u16 = 4791;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const MOST_VLAN_TAGS: usize = 4;
const MOST_EXTENSIONS: usize = 8;
const RAW_OF_OPENBSD: Linktype = Linktype(14);
const RAW_OF_BSD: Linktype = Linktype(12);
const LINUX_COOKED_2: Linktype = Linktype(276);
/// The packet type of the Linux cooked header: sent by this machine.
const COOKED_OUTGOING: u8 = 4;

/// A datagram to the port of RoCEv2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// The captured part of the payload.
    pub(super) captured: &'a [u8],
    /// Bytes of the whole payload.
    pub(super) length: usize,
    /// The direction, if the link layer tells it.
    pub(super) direction: Direction,
    /// It is one packet: captures without a link layer are those of this library.
    pub(super) is_divided: bool,
}

/// Why a frame is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Other {
    /// Another protocol or port, or a link type without IP.
    Traffic,
    /// A fragment of an IP packet.
    Fragment,
    /// The headers were not captured.
    Cut,
}

/// Finds the datagram in a frame.
pub(super) fn datagram(link: Linktype, frame: &[u8]) -> Result<Datagram<'_>, Other> {
    let (direction, packet) = network_layer(link, frame)?;
    let (source, destination, udp) = match packet.first().ok_or(Other::Cut)? >> 4 {
        4 => ipv4(packet)?,
        6 => ipv6(packet)?,
        _ => return Err(Other::Traffic),
    };
    let (header, captured) = udp.split_at_checked(UDP_HEADER).ok_or(Other::Cut)?;
    if u16_at(header, 2)? != ROCE_PORT {
        return Err(Other::Traffic);
    }
    let length = usize::from(u16_at(header, 4)?).checked_sub(UDP_HEADER).ok_or(Other::Cut)?;
    let captured = captured.get(..length).unwrap_or(captured);
    Ok(Datagram { source, destination, captured, length, direction, is_divided: link == Linktype::RAW })
}

/// Returns the packet from its IP header on.
fn network_layer(link: Linktype, frame: &[u8]) -> Result<(Direction, &[u8]), Other> {
    let after = |bytes: usize| frame.get(bytes..).ok_or(Other::Cut);
    let cooked = |kind: u8| if kind == COOKED_OUTGOING { Direction::Outbound } else { Direction::Inbound };
    match link {
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 | RAW_OF_BSD | RAW_OF_OPENBSD => {
            Ok((Direction::Unknown, frame))
        }
        // Four bytes with the protocol family; the version in the IP header says the same.
        Linktype::NULL | Linktype::LOOP => Ok((Direction::Unknown, after(4)?)),
        Linktype::ETHERNET => Ok((Direction::Unknown, ethernet(frame)?)),
        Linktype::LINUX_SLL => {
            is_ip(u16_at(frame, 14)?)?;
            Ok((cooked(*frame.get(1).ok_or(Other::Cut)?), after(16)?))
        }
        LINUX_COOKED_2 => {
            is_ip(u16_at(frame, 0)?)?;
            Ok((cooked(*frame.get(10).ok_or(Other::Cut)?), after(20)?))
        }
        _ => Err(Other::Traffic),
    }
}

fn ethernet(frame: &[u8]) -> Result<&[u8], Other> {
    let mut at = 12;
    for _ in 0..MOST_VLAN_TAGS {
        if !VLAN.contains(&u16_at(frame, at)?) {
            break;
        }
        at += 4;
    }
    is_ip(u16_at(frame, at)?)?;
    frame.get(at + 2..).ok_or(Other::Cut)
}

fn is_ip(protocol: u16) -> Result<(), Other> {
    if matches!(protocol, IPV4 | IPV6) { Ok(()) } else { Err(Other::Traffic) }
}

type Addressed<'a> = (IpAddr, IpAddr, &'a [u8]);

fn ipv4(packet: &[u8]) -> Result<Addressed<'_>, Other> {
    let header = usize::from(packet[0] & 0xf) * 4;
    let fragment = u16_at(packet, 6)?;
    let protocol = *packet.get(9).ok_or(Other::Cut)?;
    let address = |at| array_at::<4>(packet, at).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    let (source, destination) = (address(12)?, address(16)?);
    if protocol != UDP || header < 20 {
        return Err(Other::Traffic);
    }
    // More fragments, or not the first one.
    if fragment & 0x3fff != 0 {
        return Err(Other::Fragment);
    }
    Ok((source, destination, packet.get(header..).ok_or(Other::Cut)?))
}

fn ipv6(packet: &[u8]) -> Result<Addressed<'_>, Other> {
    let address = |at| array_at::<16>(packet, at).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)));
    let (source, destination) = (address(8)?, address(24)?);
    let (mut next, mut at) = (*packet.get(6).ok_or(Other::Cut)?, 40);
    for _ in 0..MOST_EXTENSIONS {
        match next {
            UDP => return Ok((source, destination, packet.get(at..).ok_or(Other::Cut)?)),
            44 => return Err(Other::Fragment),
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => {
                let [following, length] = array_at::<2>(packet, at)?;
                next = following;
                at += 8 * (usize::from(length) + 1);
            }
            _ => return Err(Other::Traffic),
        }
    }
    Err(Other::Traffic)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Other> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().ok_or(Other::Cut)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Other> {
    array_at(bytes, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4_packet() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
        packet.extend([7; 20]);
        packet
    }

    fn framed(header: &[u8], packet: &[u8]) -> Vec<u8> {
        [header, packet].concat()
    }

    #[test]
    fn all_link_types_lead_to_the_same_datagram() {
        let packet = ipv4_packet();
        let mut ethernet = vec![0; 12];
        ethernet.extend([0x81, 0, 0, 5, 8, 0]);
        let mut cooked = vec![0, 4];
        cooked.extend([0; 12]);
        cooked.extend([8, 0]);
        let mut cooked_2 = vec![8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0];
        cooked_2.extend([0; 9]);
        let cases: [(Linktype, Vec<u8>, Direction); 6] = [
            (Linktype::RAW, Vec::new(), Direction::Unknown),
            (Linktype::IPV4, Vec::new(), Direction::Unknown),
            (Linktype::NULL, vec![2, 0, 0, 0], Direction::Unknown),
            (Linktype::ETHERNET, ethernet, Direction::Unknown),
            (Linktype::LINUX_SLL, cooked, Direction::Outbound),
            (LINUX_COOKED_2, cooked_2, Direction::Inbound),
        ];
        for (link, header, direction) in cases {
            let frame = framed(&header, &packet);
            let found = datagram(link, &frame).unwrap();
            assert_eq!((found.captured, found.length, found.direction), (&[7; 20][..], 20, direction), "{link}");
            assert_eq!(found.destination.to_string(), "10.0.0.2");
        }
    }

    #[test]
    fn other_traffic_and_cut_frames_are_none() {
        let packet = ipv4_packet();
        assert_eq!(datagram(Linktype(147), &packet), Err(Other::Traffic));
        let mut other = packet.clone();
        other[23] = 1;
        assert_eq!(datagram(Linktype::RAW, &other), Err(Other::Traffic));
        let mut fragment = packet.clone();
        fragment[6] = 0x20;
        assert_eq!(datagram(Linktype::RAW, &fragment), Err(Other::Fragment));
        for length in 0..28 {
            assert_eq!(datagram(Linktype::RAW, &packet[..length]), Err(Other::Cut), "{length}");
        }
        // A snap length leaves the beginning of the payload.
        let cut = datagram(Linktype::RAW, &packet[..40]).unwrap();
        assert_eq!((cut.captured.len(), cut.length), (12, 20));
    }

    #[test]
    fn headers_of_ipv6_are_skipped() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 36, 60, 64];
        packet.extend([0; 15]);
        packet.push(1);
        packet.extend([0; 15]);
        packet.push(2);
        // Destination options, then UDP.
        packet.extend([17, 0, 1, 4, 0, 0, 0, 0, 0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
        packet.extend([7; 20]);
        let found = datagram(Linktype::RAW, &packet).unwrap();
        assert_eq!((found.source.to_string(), found.destination.to_string()), ("::1".into(), "::2".into()));
        assert_eq!((found.captured, found.length), (&[7; 20][..], 20));
        packet[6] = 44;
        assert_eq!(datagram(Linktype::RAW, &packet), Err(Other::Fragment));
        // More of them than there are bytes.
        packet[6] = 60;
        packet[41] = 255;
        assert_eq!(datagram(Linktype::RAW, &packet), Err(Other::Cut));
    }
}
