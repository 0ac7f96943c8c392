//! ECN marks: which packets may be marked, and which end learns of a mark.

use super::congestion::{Script, expect_done, read, write};
use super::forged::Forged;
use super::*;
use crate::wire::{Aeth, Bth, Flow, Headers, Opcode, Syndrome, icrc};

const ECHOES: PeerCapabilities = PeerCapabilities { extensions: PeerCapabilities::MARKS, ..NATIVE };
/// Traffic class that the application sets towards a standard peer that reports marks: DSCP 10 and ECT(0).
const MARKABLE: u8 = 10 << 2 | 0b10;

/// Returns the next send of an end.
fn transmit(pair: &mut Pair, from: usize) -> Option<(Transmit, Vec<u8>)> {
    let (now, end, mut buffer) = (pair.now, &mut pair.ends[from], vec![0; 65_536]);
    let view = end.table.read();
    let transmit = end.endpoint.poll_transmit(now, &view, &mut buffer, AckRelease::Now)?;
    buffer.truncate(transmit.length);
    Some((transmit, buffer))
}

/// Connects standard peers. The first has a controller and sends with this traffic class.
fn standard(script: &Script, traffic_class: u8) -> Pair {
    let mut ends = script.ends(QueuePairType::ReliableConnection);
    ends[0].traffic_class = traffic_class;
    Pair::connected(ends, PeerCapabilities::STANDARD)
}

/// Delivers a datagram with this traffic class to an end.
fn deliver(pair: &mut Pair, to: usize, traffic_class: u8, payload: &[u8]) -> DatagramOutcome {
    let [source, destination] = [1 - to, to].map(|end| pair.ends[end].address);
    let (source_port, traffic_class) = (50_000, Some(traffic_class));
    let datagram = Datagram {
        source,
        destination,
        source_port,
        segment_index: 0,
        hop_limit: None,
        traffic_class,
        payload,
        medium: Medium::Network,
    };
    let end = &mut pair.ends[to];
    end.endpoint.handle_datagram(pair.now, &end.table.read(), &datagram)
}

/// Returns a CNP of the second end for the first one.
fn notification(pair: &Pair) -> Vec<u8> {
    notification_with(pair, Psn::default(), 0)
}

/// Returns a CNP with this PSN and IPv4 identification.
fn notification_with(pair: &Pair, psn: Psn, identification: u16) -> Vec<u8> {
    let bth = Bth { becn: true, psn, destination: pair.ends[0].qpn, ..Bth::with_payload(Opcode::CNP, 16) };
    let mut bytes = vec![0; 12];
    Headers { bth, ..Headers::default() }.emit(&mut bytes);
    bytes.extend([0; 20]);
    let [destination, source] = [0, 1].map(|end| pair.ends[end].address);
    icrc::append(&Flow { source, destination, source_port: 50_000 }, identification, &mut bytes);
    bytes
}

fn counted(pair: &Pair, end: usize, counter: Counter) -> u64 {
    pair.ends[end].endpoint.counters().get(counter)
}

#[test]
fn packets_are_ect_where_marks_reach_a_controller() {
    let script = Script::new(u64::MAX, None);
    let controlled = |capabilities, class| {
        let mut ends = script.ends(QueuePairType::ReliableConnection);
        ends[0].traffic_class = class;
        Pair::connected(ends, capabilities)
    };
    let cases = [
        (controlled(ECHOES, 0x28), 0x2a),
        (controlled(ECHOES, 0x2b), 0x2a),
        (controlled(NATIVE, 0x2a), 0x28),
        (controlled(PeerCapabilities::STANDARD, 0x29), 0x28),
        (controlled(PeerCapabilities::STANDARD, 0x2a), 0x2a),
        (Pair::new(ECHOES), 0),
        (script.pair(QueuePairType::UnreliableConnection, ECHOES), 0),
    ];
    for (mut pair, class) in cases {
        write(&mut pair, 100);
        assert_eq!(transmit(&mut pair, 0).unwrap().0.traffic_class, class);
    }
}

#[test]
fn a_native_peer_echoes_marks_of_requests_and_handles_those_of_responses() {
    for (begin, marked_end) in [(write as fn(&mut Pair, u32), 1), (read, 0)] {
        let script = Script::new(u64::MAX, None);
        let mut ends = script.ends(QueuePairType::ReliableConnection);
        let config = EndpointConfig { congestion: Some(Arc::new(script.clone())), ..EndpointConfig::default() };
        ends[1] = End::configured(QueuePairType::ReliableConnection, "192.0.2.2", 2, None, config);
        let mut pair = Pair::connected(ends, ECHOES);
        begin(&mut pair, 20_000);
        pair.drive(Duration::from_millis(1));
        assert_eq!(script.events(), []);
        pair.is_marking = true;
        begin(&mut pair, 20_000);
        pair.drive(Duration::from_millis(1));
        expect_done(&mut pair, 2);
        let events = script.events();
        assert!(!events.is_empty() && events.iter().all(|event| event.kind == CongestionKind::Marked), "{events:?}");
        assert!(counted(&pair, marked_end, Counter::EcnMarkedPackets) >= 20);
        // Each mark is reported once.
        pair.is_marking = false;
        begin(&mut pair, 20_000);
        pair.drive(Duration::from_millis(1));
        assert_eq!(script.events().len(), events.len());
    }
}

#[test]
fn becn_of_a_peer_without_echoes_is_ignored() {
    for capabilities in [NATIVE, PeerCapabilities::STANDARD] {
        let script = Script::new(u64::MAX, None);
        let mut pair = script.reliable(capabilities);
        write(&mut pair, 100);
        pair.carry(0);
        let (_, mut acknowledge) = transmit(&mut pair, 1).unwrap();
        // The BECN bit, which the ICRC does not cover.
        acknowledge[4] |= 0x40;
        assert_eq!(deliver(&mut pair, 0, 0, &acknowledge).dropped, None);
        expect_done(&mut pair, 1);
        assert_eq!(script.events(), []);
    }
}

#[test]
fn a_cnp_has_no_more_bytes_than_the_marked_packet() {
    let script = Script::new(u64::MAX, None);
    let mut pair = standard(&script, MARKABLE);
    pair.is_marking = true;
    write(&mut pair, 20 * 1_024);
    pair.carry(0);
    let (sent, bytes) = transmit(&mut pair, 1).expect("a notification");
    assert_eq!((bytes.len(), sent.traffic_class), (32, 48 << 2));
    assert_eq!(bytes[..5], [0x81, 0x00, 0xff, 0xff, 0x40]);
    assert_eq!((counted(&pair, 1, Counter::CnpSent), counted(&pair, 1, Counter::EcnMarkedPackets)), (1, 20));
    assert_eq!(deliver(&mut pair, 0, 0, &bytes).dropped, None);
    assert_eq!(counted(&pair, 0, Counter::CnpHandled), 1);
    assert!(script.events().iter().all(|event| event.kind == CongestionKind::Marked));
    assert_eq!(script.events().len(), 1);
    pair.drive(Duration::from_millis(1));
    expect_done(&mut pair, 1);
}

#[test]
fn cnps_are_accepted_only_from_the_peer_while_ect_packets_are_in_flight() {
    let refused = Some(DropReason::CongestionNotification);
    let script = Script::new(u64::MAX, None);
    let mut pair = standard(&script, 0);
    let good = notification(&pair);
    write(&mut pair, 1_024);
    while transmit(&mut pair, 0).is_some() {}
    assert_eq!(deliver(&mut pair, 0, 0, &good).dropped, refused, "no packet may be marked");

    let mut pair = standard(&script, MARKABLE);
    assert_eq!(deliver(&mut pair, 0, 0, &good).dropped, refused, "nothing is in flight");
    write(&mut pair, 1_024);
    while transmit(&mut pair, 0).is_some() {}
    for (index, bits, reason) in [
        (4, 0x40, DropReason::CongestionNotification),
        (2, 0x7f, DropReason::BadPkey),
        (30, 0x01, DropReason::BadIcrc),
        (8, 0x01, DropReason::BadIcrc),
    ] {
        let mut bad = good.clone();
        bad[index] ^= bits;
        assert_eq!(deliver(&mut pair, 0, 0, &bad).dropped, Some(reason), "byte {index}");
    }
    assert_eq!(script.events(), []);
    assert_eq!(deliver(&mut pair, 0, 0, &good).dropped, None);
    assert_eq!(script.events().len(), 1);
}

/// The PSN of a CNP has no meaning, even if it is that of a packet in flight: a CNP with an unusual identification does
/// not show that the peer changes its identifications.
#[test]
fn cnps_raise_no_doubts_about_identifications() {
    let mut pair = standard(&Script::new(u64::MAX, None), MARKABLE);
    write(&mut pair, 1_024);
    pair.drive(Duration::from_millis(1));
    expect_done(&mut pair, 1);
    write(&mut pair, 1_024);
    let sent = pair.catch(0);
    let psn = sent[0].headers.bth.psn;
    let odd = notification_with(&pair, psn, 77);
    for _ in 0..5 {
        assert_eq!(deliver(&mut pair, 0, 0, &odd).dropped, Some(DropReason::BadIcrc));
    }
    const ACK: Aeth = Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 2 };
    let odd = Forged::new(Opcode::RC_ACKNOWLEDGE, psn).with(|headers| headers.aeth = Some(ACK));
    let dropped = odd.identified((77, true)).arrive(&mut pair, 0).dropped;
    assert_eq!(dropped, Some(DropReason::BadIcrc), "the first packet in doubt");
}

#[test]
fn cnps_of_a_native_peer_are_dropped() {
    let script = Script::new(u64::MAX, None);
    let mut pair = script.reliable(ECHOES);
    write(&mut pair, 1_024);
    while transmit(&mut pair, 0).is_some() {}
    let forged = notification(&pair);
    assert_eq!(deliver(&mut pair, 0, 0, &forged).dropped, Some(DropReason::CongestionNotification));
    assert_eq!(script.events(), []);
}

#[test]
fn a_path_that_loses_ect_packets_is_used_without_ecn() {
    let script = Script::new(u64::MAX, None);
    let mut pair = script.reliable(ECHOES);
    write(&mut pair, 1_024);
    let classes = |pair: &mut Pair| {
        let mut classes = Vec::new();
        while let Some((sent, _)) = transmit(pair, 0) {
            classes.push(sent.traffic_class);
        }
        classes
    };
    assert_eq!(classes(&mut pair), [0b10]);
    while counted(&pair, 0, Counter::LocalAckTimeout) == 0 {
        pair.now = pair.ends[0].endpoint.next_timeout().expect("a clock runs");
        pair.ends[0].endpoint.handle_timeout(pair.now);
        let sent = classes(&mut pair);
        let is_over = counted(&pair, 0, Counter::LocalAckTimeout) > 0;
        assert!(sent.iter().all(|class| *class == if is_over { 0 } else { 0b10 }), "{sent:?}");
    }
}

/// Connects ends that both have controllers and know that the other echoes marks.
fn both_controlled(script: &Script) -> Pair {
    let mut ends = script.ends(QueuePairType::ReliableConnection);
    let config = EndpointConfig { congestion: Some(Arc::new(script.clone())), ..EndpointConfig::default() };
    ends[1] = End::configured(QueuePairType::ReliableConnection, "192.0.2.2", 2, None, config);
    Pair::connected(ends, ECHOES)
}

#[test]
fn pure_acknowledgements_are_not_ect_and_their_marks_are_ignored() {
    let script = Script::new(u64::MAX, None);
    let mut pair = both_controlled(&script);
    write(&mut pair, 1_024);
    pair.carry(0);
    let (sent, acknowledge) = transmit(&mut pair, 1).expect("an acknowledgement");
    assert_eq!(sent.traffic_class, 0);
    assert_eq!(deliver(&mut pair, 0, 0b11, &acknowledge).dropped, None);
    expect_done(&mut pair, 1);
    assert_eq!(script.events(), []);
}

#[test]
fn the_echo_of_the_last_packet_in_flight_is_reported() {
    let script = Script::new(u64::MAX, None);
    let mut pair = script.reliable(ECHOES);
    write(&mut pair, 10 * 1_024);
    let mut sent = 0;
    while let Some((send, bytes)) = transmit(&mut pair, 0) {
        for (index, payload) in bytes.chunks(send.segment_size.unwrap_or(bytes.len())).enumerate() {
            sent += 1;
            let Transmit { source, destination, .. } = send;
            let (source_port, segment_index, hop_limit) = (50_000, index as u16, None);
            let traffic_class = Some(if sent == 10 { 0b11 } else { 0b10 });
            let datagram = Datagram {
                source,
                destination,
                source_port,
                segment_index,
                hop_limit,
                traffic_class,
                payload,
                medium: Medium::Network,
            };
            let end = &mut pair.ends[1];
            assert_eq!(end.endpoint.handle_datagram(pair.now, &end.table.read(), &datagram).dropped, None);
        }
    }
    assert_eq!(sent, 10);
    pair.drive(Duration::from_millis(1));
    expect_done(&mut pair, 1);
    assert_eq!(script.events().len(), 1);
}

#[test]
fn a_whole_read_repeated_for_the_timeout_disables_ecn_for_its_responses() {
    // Earlier repetitions are probes: on a path with a long round trip they leave before a response can arrive.
    for (repeated, milliseconds, class) in [(10 * 1_024, 100, 0), (5 * 1_024, 100, 0b10), (10 * 1_024, 10, 0b10)] {
        let script = Script::new(u64::MAX, None);
        let mut pair = both_controlled(&script);
        read(&mut pair, 10 * 1_024);
        let (_, mut request) = transmit(&mut pair, 0).expect("a request");
        assert_eq!(deliver(&mut pair, 1, 0, &request).dropped, None);
        let mut classes = Vec::new();
        for _ in 0..3 {
            while let Some((sent, _)) = transmit(&mut pair, 1) {
                classes.push(sent.traffic_class);
            }
            // Changes the length, and the ICRC to match.
            let length = request.len();
            request[24..28].copy_from_slice(&u32::to_be_bytes(repeated));
            request.truncate(length - 4);
            let [source, destination] = [0, 1].map(|end| pair.ends[end].address);
            request.extend([0; 4]);
            icrc::append(&Flow { source, destination, source_port: 50_000 }, 0, &mut request);
            pair.now = pair.now + Duration::from_millis(milliseconds);
            deliver(&mut pair, 1, 0, &request);
        }
        assert_eq!((classes[0], classes.last()), (0b10, Some(&class)), "{repeated} bytes, {milliseconds} ms");
    }
}

#[test]
fn alternately_repeated_reads_disable_ecn_as_well() {
    let script = Script::new(u64::MAX, None);
    let mut pair = both_controlled(&script);
    (0..2).for_each(|_| read(&mut pair, 4 * 1_024));
    let requests = pair.catch(0);
    assert_eq!(requests.len(), 2);
    let mut classes = Vec::new();
    for _ in 0..6 {
        requests.iter().for_each(|request| _ = deliver(&mut pair, 1, 0, &request.bytes));
        while let Some((sent, _)) = transmit(&mut pair, 1) {
            classes.push(sent.traffic_class);
        }
        pair.now = pair.now + Duration::from_millis(20);
    }
    assert_eq!((classes[0], classes.last()), (0b10, Some(&0)), "{classes:?}");
}
