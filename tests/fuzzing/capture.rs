//! Any datagram in a capture file: writing never panics, and the file's blocks follow each other without gaps.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_verbs::capture_file;
use rdma_verbs::transport::{Datagram, Medium};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const ENHANCED_PACKET: u32 = 6;

/// Runs the target. The input begins with the data besides the datagram.
pub(crate) fn run(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<46>() else { return };
    let (source, destination, fields) = (chunk(head, 0), chunk(head, 16), chunk(head, 32));
    let (source_port, segment_index) = (u16::from_le_bytes(chunk(head, 40)), u16::from_le_bytes(chunk(head, 42)));
    let (text, payload) = rest.split_at(usize::from(head[45]).min(rest.len()));
    let (switches, text, mut payload) = (head[44], String::from_utf8_lossy(text), payload.to_vec());
    let address = |bytes: [u8; 16], is_v4: bool| -> IpAddr {
        let [first, second, third, fourth, ..] = bytes;
        if is_v4 { Ipv4Addr::new(first, second, third, fourth).into() } else { Ipv6Addr::from(bytes).into() }
    };
    if switches & 1 != 0 {
        // As long as a datagram that the kernel merges, and a little longer.
        payload.resize(65_500 + usize::from(segment_index) % 64, 0xa5);
    }
    let datagram = Datagram {
        source: address(source, switches & 2 != 0),
        destination: address(destination, switches & 4 != 0),
        source_port,
        segment_index,
        hop_limit: None,
        traffic_class: None,
        payload: &payload,
        medium: Medium::Network,
    };
    let file = capture_file(&datagram, fields, switches & 8 != 0, &text);
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().expect("a whole word"));
    assert_eq!(word(0), SECTION_HEADER);
    let (mut at, mut packets) = (0, 0);
    while at < file.len() {
        let length = word(at + 4) as usize;
        assert!(length.is_multiple_of(4) && length >= 12);
        assert_eq!(word(at + length - 4) as usize, length);
        packets += usize::from(word(at) == ENHANCED_PACKET);
        at += length;
    }
    assert!(packets == 1 || payload.len() > 65_507);
}

fn chunk<const N: usize>(head: &[u8; 46], from: usize) -> [u8; N] {
    head[from..from + N].try_into().expect("within the head")
}
