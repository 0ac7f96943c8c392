//! Entry point of the writer's fuzz target, without a file and a thread.

use super::headers::{Addressing, WireHeaders};
use super::pcapng::{self, Direction, PacketBlock, Statistics};
use super::sink::solve;
use crate::transport::Datagram;

/// Returns a file that holds one packet (none if no datagram could carry it), with any text in all text fields.
pub fn capture_file(datagram: &Datagram<'_>, fields: [u8; 8], has_checksum: bool, text: &str) -> Vec<u8> {
    let time = u64::from_be_bytes(fields);
    let (identification, dont_fragment) = solve(datagram);
    let addressing = Addressing {
        source: datagram.source,
        destination: datagram.destination,
        source_port: datagram.source_port,
        hop_limit: fields[0],
        traffic_class: fields[1],
        identification,
        dont_fragment,
        has_checksum,
    };
    let mut file = Vec::new();
    pcapng::section_header(&mut file, text, text);
    pcapng::interface(&mut file, text);
    if let Some(headers) = WireHeaders::build(&addressing, datagram.payload) {
        let block = PacketBlock {
            time,
            direction: if fields[2] & 1 == 0 { Direction::Inbound } else { Direction::Outbound },
            headers: headers.as_bytes(),
            payload: datagram.payload,
            lost: fields[3].into(),
            comment: Some(text),
        };
        pcapng::packet(&mut file, &block);
    }
    pcapng::statistics(&mut file, &Statistics { start: time, end: !time, received: 1, lost: time, comment: text });
    file
}
