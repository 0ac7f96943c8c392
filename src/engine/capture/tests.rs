//! Captures read back with an independent reader.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pcap_parser::pcapng::{Block, PcapNGOption, parse_block_le};
use pcap_parser::traits::PcapNGPacketBlock;
use proptest::prelude::*;

use super::*;

/// Contents of a file that was read back.
#[derive(Default)]
pub(super) struct ReadBack {
    device: String,
    pub(super) packets: Vec<ReadPacket>,
    received: u64,
    lost: u64,
    closing_comment: String,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct ReadPacket {
    time: u64,
    flags: u32,
    lost: u64,
    pub(super) comment: Option<String>,
    pub(super) bytes: Vec<u8>,
}

fn value<'a>(options: &'a [PcapNGOption<'_>], code: u16) -> Option<&'a [u8]> {
    options.iter().find(|option| option.code.0 == code).map(|option| option.as_bytes().unwrap())
}

fn text(options: &[PcapNGOption<'_>], code: u16) -> Option<String> {
    value(options, code).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

fn number(options: &[PcapNGOption<'_>], code: u16) -> Option<u64> {
    value(options, code).map(|bytes| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

fn read_back(mut bytes: &[u8]) -> ReadBack {
    let mut found = ReadBack::default();
    let mut is_complete = false;
    while !bytes.is_empty() {
        assert!(!is_complete, "no block follows the statistics");
        let (rest, block) = parse_block_le(bytes).expect("a whole block");
        match block {
            Block::SectionHeader(header) => {
                assert_eq!((header.major_version, header.minor_version, header.section_len), (1, 0, -1));
                assert!(header.shb_userappl().unwrap().unwrap().starts_with("rdma-verbs "));
            }
            Block::InterfaceDescription(interface) => {
                assert_eq!((interface.linktype.0, interface.snaplen, interface.if_tsresol), (101, 0, 9));
                found.device = interface.if_name().unwrap().unwrap().to_owned();
            }
            Block::EnhancedPacket(packet) => {
                assert_eq!((packet.if_id, packet.caplen), (0, packet.origlen));
                found.packets.push(ReadPacket {
                    time: u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low),
                    flags: number(&packet.options, PACKET_FLAGS).unwrap() as u32,
                    lost: number(&packet.options, PACKET_DROP_COUNT).unwrap_or(0),
                    comment: text(&packet.options, COMMENT),
                    bytes: packet.packet_data().to_vec(),
                });
            }
            Block::InterfaceStatistics(statistics) => {
                found.received = statistics.isb_ifrecv().unwrap().unwrap();
                found.lost = statistics.isb_ifdrop().unwrap().unwrap();
                found.closing_comment = text(&statistics.options, COMMENT).unwrap();
                is_complete = true;
            }
            other => panic!("an unexpected block {}", other.magic()),
        }
        bytes = rest;
    }
    assert!(is_complete, "the statistics are missing");
    found
}

const COMMENT: u16 = 1;
const PACKET_FLAGS: u16 = 2;
const PACKET_DROP_COUNT: u16 = 4;

/// Returns options with a file for one test.
fn options(name: &str) -> CaptureOptions {
    CaptureOptions::new(std::env::temp_dir().join(format!("rdma-verbs-unit-{name}-%p.pcapng")))
}

fn addressing(source: IpAddr, destination: IpAddr) -> Addressing {
    Addressing {
        source,
        destination,
        source_port: 0xc000,
        hop_limit: 64,
        traffic_class: 0,
        identification: 3,
        dont_fragment: true,
        has_checksum: true,
    }
}

fn record<'a>(comment: &'a str, payload: &'a [u8]) -> PacketRecord<'a> {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let addressing = addressing(here, here);
    let (time, direction) = (0x1_2345_6789_abcd, Direction::Outbound);
    PacketRecord { time, direction, addressing, comment, message: None, payload }
}

/// Starts a capture of one test, with the sink that records in it.
pub(super) fn start(name: &str) -> (Arc<Capture>, CaptureSink) {
    let capture = Arc::new(Capture::start(&options(name), "soft_test").unwrap());
    let mut sink = CaptureSink::default();
    sink.add(Arc::clone(&capture));
    (capture, sink)
}

/// Ends the capture, reads its file and removes it.
pub(super) fn finish(capture: &Capture) -> (ReadBack, CaptureSummary) {
    let summary = capture.finish().unwrap();
    let bytes = fs::read(capture.path()).unwrap();
    fs::remove_file(capture.path()).unwrap();
    assert_eq!(bytes.len() as u64, summary.bytes);
    (read_back(&bytes), summary)
}

#[test]
fn packets_are_read_back() {
    let capture = Capture::start(&options("packets"), "soft_test").unwrap();
    capture.record(&record("", b"12345"));
    capture.record(&PacketRecord { direction: Direction::Inbound, ..record("dropped: bad ICRC", b"") });
    let (found, summary) = finish(&capture);
    assert_eq!((found.device.as_str(), found.received, found.lost), ("soft_test", 2, 0));
    assert_eq!((summary.packets, summary.lost, summary.reached_max_bytes), (2, 0, false));
    assert_eq!(found.closing_comment, "ended by the program");
    let [first, second] = &found.packets[..] else { panic!("two packets") };
    assert_eq!((first.time, first.flags, first.comment.as_deref()), (0x1_2345_6789_abcd, 2, None));
    assert_eq!((first.bytes.len(), &first.bytes[28..]), (33, &b"12345"[..]));
    assert_eq!((second.flags, second.comment.as_deref()), (1, Some("dropped: bad ICRC")));
    assert_eq!(second.bytes.len(), 28);
}

#[test]
fn file_ends_at_its_bound_with_a_comment() {
    let wanted = options("bound").max_bytes(20_000);
    let capture = Capture::start(&wanted, "soft_test").unwrap();
    for _ in 0..100 {
        capture.record(&record("", &[7; 1_000]));
    }
    assert!(!capture.wants(Qpn::new(2)), "it has ended by itself");
    let (found, summary) = finish(&capture);
    assert!(summary.reached_max_bytes && summary.bytes <= 20_000, "{summary:?}");
    // The remaining room is smaller than a packet and the last block.
    assert!(summary.bytes > 20_000 - 1_100 - LAST_BLOCK_BYTES, "{summary:?}");
    assert_eq!(found.packets.len() as u64, summary.packets);
    assert!(found.closing_comment.contains("its bound of 20000 bytes"), "{}", found.closing_comment);
}

#[test]
fn lost_packets_are_counted() {
    let capture = Capture::start(&options("lost"), "soft_test").unwrap();
    // Longer than any datagram, which has the same effect as a full buffer.
    let long = vec![0; 70_000];
    capture.record(&record("", &long));
    capture.record(&record("", &long));
    capture.record(&record("", b"short"));
    let (found, summary) = finish(&capture);
    assert_eq!((summary.packets, summary.lost), (1, 2));
    assert_eq!((found.received, found.lost, found.packets[0].lost), (3, 2, 2));
    assert!(found.closing_comment.contains("2 packets are missing"), "{}", found.closing_comment);
}

#[test]
fn full_buffer_loses_packets_and_never_waits() {
    let capture = Capture::start(&options("full").max_bytes(1 << 30), "soft_test").unwrap();
    // While this thread holds the buffer, the writer cannot empty it.
    let mut state = capture.shared.lock();
    for _ in 0..200 {
        capture.shared.append(&mut state, &record("", &[0; 60_000]));
    }
    assert!(state.pending.len() <= MOST_PENDING);
    assert_eq!(state.packets + state.lost, 200);
    assert!(state.lost > 100 && state.packets > 50, "{} lost", state.lost);
    drop(state);
    let (found, summary) = finish(&capture);
    assert_eq!((found.packets.len() as u64, found.lost), (summary.packets, summary.lost));
}

#[test]
fn write_error_ends_only_the_capture() {
    let path = std::env::temp_dir().join(format!("rdma-verbs-unit-failure-{}.pcapng", std::process::id()));
    fs::write(&path, "").unwrap();
    // Open for reading only, so that every write fails.
    let file = File::open(&path).unwrap();
    let capture = Capture::into_file(&CaptureOptions::new(&path), "soft_test", path.clone(), file).unwrap();
    capture.record(&record("", b"12345"));
    let error = capture.finish().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{error}");
    capture.record(&record("", b"12345"));
    assert!(!capture.wants(Qpn::new(1)));
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_of_another_process_does_not_keep_the_device_open() {
    let options = options("foreign");
    let capture = Capture::start_in(File::create(&options.path).unwrap(), &options, "soft_test").unwrap();
    // A writer whose disk does not respond.
    let (respond, response) = std::sync::mpsc::channel::<()>();
    let writer = thread::spawn(move || {
        let _ = response.recv();
    });
    let first = capture.thread.lock().unwrap().replace(writer);
    let (closed, is_closed) = std::sync::mpsc::channel();
    thread::spawn(move || {
        close(&[Arc::new(capture)]);
        closed.send(()).unwrap();
    });
    is_closed.recv_timeout(10 * LONGEST_CLOSE).expect("the device is closed");
    drop(respond);
    first.into_iter().for_each(|thread| thread.join().unwrap());
    fs::remove_file(options.path).unwrap();
}

#[test]
fn only_chosen_queue_pairs_are_recorded() {
    let wanted = options("filter").queue_pair(Qpn::new(9)).queue_pair(Qpn::new(4));
    let capture = Capture::start(&wanted, "soft_test").unwrap();
    let chosen = [3, 4, 5, 9, 10].map(|qpn| capture.wants(Qpn::new(qpn)));
    assert_eq!(chosen, [false, true, false, true, false]);
    finish(&capture);
}

#[test]
fn too_small_a_bound_is_refused() {
    let error = Capture::start(&options("small").max_bytes(100), "soft_test").err().unwrap();
    assert!(error.message.contains("is 100; allowed are 8192 and more"), "{}", error.message);
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(|bytes| Ipv4Addr::from(bytes).into()),
        any::<[u8; 16]>().prop_map(|bytes| Ipv6Addr::from(bytes).into()),
    ]
}

prop_compose! {
    fn any_addressing()(
        source in any_address(),
        destination in any_address(),
        source_port: u16,
        (hop_limit, traffic_class) in any::<(u8, u8)>(),
        identification: u16,
        (dont_fragment, has_checksum) in any::<(bool, bool)>(),
    ) -> Addressing {
        Addressing {
            source, destination, source_port, hop_limit, traffic_class, identification, dont_fragment, has_checksum,
        }
    }
}

proptest! {
    /// The file reads back as written, for any packets and comments.
    #[test]
    fn any_packet_is_written_or_counted_as_lost(
        packets in proptest::collection::vec(
            (any_addressing(), proptest::collection::vec(any::<u8>(), 0..300), ".{0,40}", any::<u64>()),
            0..20,
        ),
        length in 0_usize..70_000,
    ) {
        let capture = Capture::start(&options("any"), "soft_test").unwrap();
        let long = vec![0x5a; length];
        for (addressing, payload, comment, time) in &packets {
            for payload in [payload, &long] {
                let direction = if time & 1 == 0 { Direction::Inbound } else { Direction::Outbound };
                let (time, addressing) = (*time, *addressing);
                capture.record(&PacketRecord { time, direction, addressing, comment, message: None, payload });
            }
        }
        let (found, summary) = finish(&capture);
        prop_assert_eq!(found.packets.len() as u64 + found.lost, 2 * packets.len() as u64);
        prop_assert_eq!(summary.lost, found.lost);
        let short = found.packets.iter().filter(|packet| packet.bytes.len() < 300 + 48).count();
        prop_assert!(length < 65_000 || short == packets.len());
        for packet in &found.packets {
            let version = packet.bytes[0] >> 4;
            prop_assert!(version == 4 || version == 6);
        }
    }
}

proptest! {
    /// Any datagram that any host can send, with any outcome.
    #[test]
    fn any_datagram_passes_the_sink(
        source in any_address(),
        destination in any_address(),
        source_port: u16,
        segment_index: u16,
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        is_from_own_peer: bool,
    ) {
        use crate::transport::{Datagram, DatagramOutcome, Medium};
        let capture = Arc::new(Capture::start(&options("sink"), "soft_test").unwrap());
        let mut sink = CaptureSink::default();
        prop_assert!(sink.is_idle() && sink.time().is_none());
        sink.add(Arc::clone(&capture));
        let (hop_limit, traffic_class) = (None, None);
        let payload = &payload;
        let medium = Medium::Network;
        let datagram =
            Datagram { source, destination, source_port, segment_index, hop_limit, traffic_class, payload, medium };
        let outcome = DatagramOutcome {
            dropped: Some(crate::types::DropReason::Truncated),
            is_from_own_peer,
            ..DatagramOutcome::default()
        };
        sink.received(&datagram, &Arrival::now(None, None, false), outcome);
        sink.remove(&capture);
        prop_assert!(sink.is_idle());
        let (found, _) = finish(&capture);
        prop_assert_eq!(found.packets.len(), 1);
        prop_assert_eq!(found.packets[0].comment.as_deref(), Some("dropped: truncated"));
        prop_assert!(found.packets[0].bytes.ends_with(payload));
    }
}
