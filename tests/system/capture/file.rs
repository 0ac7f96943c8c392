//! Capture files, read by an independent implementation, and packets dissected by their rebuilt headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use pcap_parser::pcapng::{Block, PcapNGOption, parse_block_le};
use pcap_parser::traits::PcapNGPacketBlock;
use rdma_verbs::types::ROCE_PORT;
use rdma_verbs::wire::{Flow, ICRC_BYTES, Opcode, Packet, icrc};

const COMMENT: u16 = 1;
const PACKET_FLAGS: u16 = 2;
const UDP: u8 = 17;

/// A capture file.
#[derive(Default)]
pub(crate) struct CaptureFile {
    pub(crate) device: String,
    pub(crate) packets: Vec<Captured>,
    pub(crate) lost: u64,
    /// The comment at the end of the file.
    pub(crate) last_words: String,
}

/// A packet in a capture file.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Nanoseconds since 1970.
    pub(crate) time: u64,
    pub(crate) is_outbound: bool,
    pub(crate) comment: String,
    /// From the IP header on.
    pub(crate) bytes: Vec<u8>,
}

impl CaptureFile {
    /// Reads a complete file.
    #[track_caller]
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut file = Self::default();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (after, block) = parse_block_le(rest).expect("a whole block");
            file.take(&block);
            rest = after;
        }
        assert!(!file.last_words.is_empty(), "the file says how it ended");
        file
    }

    fn take(&mut self, block: &Block<'_>) {
        match block {
            Block::SectionHeader(_) => {}
            Block::InterfaceDescription(interface) => {
                assert_eq!((interface.linktype.0, interface.if_tsresol), (101, 9), "raw IP, nanoseconds");
                self.device = interface.if_name().expect("a name").expect("text").to_owned();
            }
            Block::EnhancedPacket(packet) => {
                assert_eq!(packet.caplen, packet.origlen, "whole packets");
                let flags = option(&packet.options, PACKET_FLAGS).expect("flags")[0];
                assert!(flags == 1 || flags == 2, "flags {flags}");
                self.packets.push(Captured {
                    time: u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low),
                    is_outbound: flags == 2,
                    comment: text(&packet.options),
                    bytes: packet.packet_data().to_vec(),
                });
            }
            Block::InterfaceStatistics(statistics) => {
                self.last_words = text(&statistics.options);
                self.lost = statistics.isb_ifdrop().expect("lost packets").expect("a number");
                let passed = statistics.isb_ifrecv().expect("passed packets").expect("a number");
                assert_eq!(passed, self.packets.len() as u64 + self.lost);
            }
            other => panic!("an unexpected block {}", other.magic()),
        }
    }

    pub(crate) fn outbound(&self) -> impl Iterator<Item = &Captured> {
        self.packets.iter().filter(|packet| packet.is_outbound)
    }

    pub(crate) fn inbound(&self) -> impl Iterator<Item = &Captured> {
        self.packets.iter().filter(|packet| !packet.is_outbound)
    }
}

fn option<'a>(options: &'a [PcapNGOption<'_>], code: u16) -> Option<&'a [u8]> {
    options.iter().find(|option| option.code.0 == code).map(|option| option.as_bytes().expect("a whole option"))
}

fn text(options: &[PcapNGOption<'_>]) -> String {
    option(options, COMMENT).map_or_else(String::new, |bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8"))
}

impl Captured {
    fn is_v4(&self) -> bool {
        self.bytes[0] >> 4 == 4
    }

    fn ip_header_bytes(&self) -> usize {
        if self.is_v4() { 20 } else { 40 }
    }

    pub(crate) fn hop_limit(&self) -> u8 {
        self.bytes[if self.is_v4() { 8 } else { 7 }]
    }

    pub(crate) fn traffic_class(&self) -> u8 {
        if self.is_v4() { self.bytes[1] } else { self.bytes[0] << 4 | self.bytes[1] >> 4 }
    }

    pub(crate) fn has_udp_checksum(&self) -> bool {
        self.bytes[self.ip_header_bytes() + 6..][..2] != [0, 0]
    }

    /// Returns the identification and the "don't fragment" bit.
    pub(crate) fn fragmentation(&self) -> (u16, bool) {
        if !self.is_v4() {
            return (0, true);
        }
        (u16::from_be_bytes([self.bytes[4], self.bytes[5]]), self.bytes[6] & 0x40 != 0)
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.ip_header_bytes() + 8..]
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(self.payload()).unwrap_or_else(|reason| panic!("{reason:?}: {self:?}"))
    }

    pub(crate) fn opcode(&self) -> Opcode {
        self.packet().headers.bth.opcode
    }

    pub(crate) fn flow(&self) -> Flow {
        let (source, destination): (IpAddr, IpAddr) = if self.is_v4() {
            let address = |start| Ipv4Addr::from(*self.bytes[start..].first_chunk::<4>().expect("an address"));
            (address(12).into(), address(16).into())
        } else {
            let address = |start| Ipv6Addr::from(*self.bytes[start..].first_chunk::<16>().expect("an address"));
            (address(8).into(), address(24).into())
        };
        let port = self.ip_header_bytes();
        Flow { source, destination, source_port: u16::from_be_bytes([self.bytes[port], self.bytes[port + 1]]) }
    }

    /// Checks lengths, protocol, port and checksums as a receiver would.
    pub(crate) fn has_sound_headers(&self) -> bool {
        let header = self.ip_header_bytes();
        let udp = &self.bytes[header..];
        let number = |at: usize, bytes: &[u8]| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let (protocol, length, sum) = if self.is_v4() {
            (self.bytes[9], number(2, &self.bytes), sum(&[&self.bytes[..20]]))
        } else {
            (self.bytes[6], number(4, &self.bytes) + 40, 0xffff)
        };
        let addresses = if self.is_v4() { &self.bytes[12..20] } else { &self.bytes[8..40] };
        let pseudo = [0, UDP, self.bytes[header + 4], self.bytes[header + 5]];
        let udp_sum = if self.has_udp_checksum() { self::sum(&[addresses, &pseudo, udp]) } else { 0xffff };
        protocol == UDP
            && length == self.bytes.len()
            && number(2, udp) == usize::from(ROCE_PORT)
            && number(4, udp) == udp.len()
            && (sum, udp_sum) == (0xffff, 0xffff)
    }

    /// Returns whether the packet was dropped before its check field was verified; a capture then omits the field.
    pub(crate) fn is_withheld(&self) -> bool {
        self.comment.ends_with("check field withheld")
    }

    /// Returns its bytes as `received` shows them: without a withheld check field, and with the matching checksum.
    pub(crate) fn shown_as(&self, received: &Captured) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if received.is_withheld() && bytes.len() == received.bytes.len() {
            let checksum = self.ip_header_bytes() + 6..self.ip_header_bytes() + 8;
            let check_field = bytes.len() - ICRC_BYTES..bytes.len();
            bytes[checksum.clone()].copy_from_slice(&received.bytes[checksum]);
            bytes[check_field].fill(0);
        }
        bytes
    }

    /// Returns whether the ICRC at the packet's end matches the rebuilt headers.
    pub(crate) fn icrc_fits(&self) -> bool {
        let Some((covered, icrc)) = self.payload().split_last_chunk::<4>() else { return false };
        let (identification, dont_fragment) = self.fragmentation();
        covered.len() >= 12
            && icrc::compute(&self.flow(), identification, dont_fragment, covered) == u32::from_le_bytes(*icrc)
    }
}

/// Returns the internet checksum's sum over slices of even length (the last may be odd).
fn sum(pieces: &[&[u8]]) -> u32 {
    let bytes = pieces.concat();
    let total: u64 = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum();
    let mut folded = total;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    folded as u32
}
