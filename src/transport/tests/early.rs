//! Early packets, some of them forged.

use super::forged::{FIRST, Forged};
use super::*;
use crate::wire::Opcode;

const HONEST: [u8; 8] = *b"honestly";
const FORGED: [u8; 8] = *b"forged!!";

/// Returns a forged SEND, `distance` PSNs ahead of the expected one.
fn ahead(distance: u32) -> Forged {
    Forged::new(Opcode::RC_SEND_ONLY, FIRST.plus(distance)).payload(&FORGED)
}

/// Sends honest messages, one after the other. Returns those that arrived.
fn send_honestly(pair: &mut Pair, messages: u32) -> Vec<[u8; 8]> {
    let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(512, 8));
    pair.ends[0].region.write_at(0, &HONEST).unwrap();
    let mut arrived = Vec::new();
    // Forged messages need receives, too.
    (0..4).for_each(|_| pair.ends[1].post_receive(&[into]));
    for _ in 0..messages {
        pair.ends[1].post_receive(&[into]);
        pair.ends[0].post(pair.now, Operation::Send, &[local]);
        pair.drive(Duration::from_millis(50));
        assert!(pair.ends[0].poll().iter().all(|completion| completion.status.is_success()));
        let received = pair.ends[1].poll();
        arrived.extend(received.iter().map(|_| <[u8; 8]>::try_from(contents(&pair.ends[1].region, 512, 8)).unwrap()));
    }
    arrived
}

fn counter(pair: &Pair, counter: Counter) -> u64 {
    pair.ends[1].endpoint.counters().get(counter)
}

#[test]
fn a_packet_beyond_what_a_standard_peer_has_in_flight_is_dropped() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    assert!(ahead(64).arrive(&mut pair, 1).dropped.is_some());
    let arrived = send_honestly(&mut pair, 66);
    assert_eq!(arrived.iter().position(|bytes| *bytes != HONEST), None);
    assert_eq!(arrived.len(), 66);
}

#[test]
fn a_packet_beyond_what_a_native_peer_has_in_flight_is_dropped() {
    let mut pair = Pair::new(NATIVE);
    assert!(ahead(1_024).arrive(&mut pair, 1).dropped.is_some());
    let arrived = send_honestly(&mut pair, 1_026);
    assert_eq!(arrived.iter().position(|bytes| *bytes != HONEST), None);
}

#[test]
fn packets_far_ahead_are_no_evidence_of_a_gap() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    for distance in 60_000..60_003 {
        ahead(distance).arrive(&mut pair, 1);
    }
    assert_eq!(send_honestly(&mut pair, 20_000).len(), 20_000);
    assert_eq!(counter(&pair, Counter::SentSequenceNak), 0);
    assert_eq!(pair.ends[0].endpoint.counters().get(Counter::RetransmittedPackets), 0);
}

/// Each forged packet may cause one NAK, but not one for each executed packet.
#[test]
fn packets_within_the_window_cause_at_most_one_nak_each() {
    let mut pair = Pair::new(NATIVE);
    for distance in 1_000..1_003 {
        ahead(distance).arrive(&mut pair, 1);
    }
    assert_eq!(send_honestly(&mut pair, 990).len(), 990);
    let naks = counter(&pair, Counter::SentSequenceNak);
    assert!(naks <= 3, "{naks} NAKs for 3 packets");
}

#[test]
fn a_packet_longer_than_the_mtu_is_not_kept() {
    let mut pair = Pair::new(NATIVE);
    let long = Forged::new(Opcode::RC_SEND_ONLY, FIRST.plus(1)).payload(&vec![1; 60_000]);
    assert!(long.arrive(&mut pair, 1).dropped.is_some(), "it is kept");
    assert_eq!(counter(&pair, Counter::ReorderedRequest), 0);
}

/// A genuine peer would have repeated the packet long before.
#[test]
fn a_packet_kept_too_long_is_dropped() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    assert_eq!(ahead(5).arrive(&mut pair, 1).dropped, None);
    pair.drive(Duration::from_secs(5));
    let arrived = send_honestly(&mut pair, 8);
    assert_eq!(arrived.iter().position(|bytes| *bytes != HONEST), None);
    assert_eq!(pair.ends[1].endpoint.next_timeout(), None);
}

/// A forger sends packets with all plausible PSNs.
#[test]
fn the_early_packets_of_a_peer_are_bounded() {
    // Window times MTU, plus headers and the ring.
    for (capabilities, most) in [(PeerCapabilities::STANDARD, 80_000), (NATIVE, 1_200_000)] {
        let mut pair = Pair::new(capabilities);
        for distance in (1..10_000).chain([1 << 20, 1 << 22]) {
            ahead(distance).payload(&[1; 1_024]).arrive(&mut pair, 1);
        }
        let budget = std::sync::Arc::clone(&pair.ends[1].budget);
        assert!((most / 2..most).contains(&budget.held()), "{} bytes", budget.held());
        assert!(counter_of_drops(&pair, DropReason::FarAhead) > 8_000);
        pair.drive(Duration::from_secs(5));
        assert_eq!(budget.held(), 0, "forgotten");
        ahead(7).arrive(&mut pair, 1);
        assert!(budget.held() > 0);
        let qpn = pair.ends[1].qpn;
        pair.ends[1].endpoint.destroy_queue_pair(qpn);
        assert_eq!(budget.held(), 0, "given back with the queue pair");
    }
}

#[test]
fn all_queue_pairs_share_the_reorder_budget() {
    let mut pair = Pair::with_budget(8_000);
    for distance in 1..64 {
        ahead(distance).payload(&[1; 1_000]).arrive(&mut pair, 1);
    }
    // One queue pair alone may have half of the budget.
    assert!((2_000..=4_000).contains(&pair.ends[1].budget.held()));
    assert_eq!(counter_of_drops(&pair, DropReason::OutOfOrder), 60);
}

fn counter_of_drops(pair: &Pair, reason: DropReason) -> u64 {
    pair.ends[1].endpoint.counters().get_drop(reason)
}

/// The range that a blind sender can hit is never more than a standard peer's window.
#[test]
fn a_standard_peer_never_has_more_than_64_packets_in_flight() {
    for length in [8, 1_000_000] {
        let mut pair = Pair::new(PeerCapabilities::STANDARD);
        let (local, rkey) = (pair.ends[0].sge(0, length), pair.ends[1].region.rkey());
        let write = Operation::Write { remote_addr: 0x10_0000, rkey };
        (0..60).for_each(|_| pair.ends[0].post(pair.now, write, &[local]));
        pair.ends[0].post(pair.now, Operation::Read { remote_addr: 0x10_0000, rkey }, &[local]);
        let mut sent = 0;
        while !pair.ends[0].transmit(pair.now).is_empty() {
            sent += 1;
            assert!(sent <= 64);
        }
        let end = &pair.ends[0];
        let in_flight = end.endpoint.find(end.qpn).unwrap().requester.packets_in_flight();
        assert!((60..=64).contains(&in_flight), "{in_flight} packets of {length} bytes");
    }
}

/// Acknowledgements and NAKs of PSNs that were not sent, or are already acknowledged.
#[test]
fn responses_to_packets_not_in_flight_change_nothing() {
    use crate::wire::{Aeth, NakCode, Syndrome};

    let syndromes = [
        Syndrome::Ack { credit: 31 },
        Syndrome::Nak(NakCode::SequenceError),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::ReceiverNotReady { timer: 1 },
    ];
    for (syndrome, distance) in syndromes.iter().flat_map(|syndrome| [-1, 3, 64, 1 << 22].map(|at| (*syndrome, at))) {
        let mut pair = Pair::new(PeerCapabilities::STANDARD);
        let (local, rkey) = (pair.ends[0].sge(0, 8), pair.ends[1].region.rkey());
        let write = Operation::Write { remote_addr: 0x10_0000, rkey };
        (0..3).for_each(|_| pair.ends[0].post(pair.now, write, &[local]));
        while !pair.ends[0].transmit(pair.now).is_empty() {}
        let psn = FIRST.plus((distance & 0xff_ffff) as u32);
        let forged =
            Forged::new(Opcode::RC_ACKNOWLEDGE, psn).with(|headers| headers.aeth = Some(Aeth { syndrome, msn: 1 }));
        assert_eq!(forged.arrive(&mut pair, 0).dropped, Some(DropReason::BadPsn), "{syndrome:?} at {distance}");
        assert!(pair.ends[0].poll().is_empty());
        assert!(pair.ends[0].transmit(pair.now).is_empty());
    }
}

/// The report would make the peer retransmit executed packets. An engine handles many packets before it sends.
#[test]
fn a_gap_that_closes_before_its_report_leaves_is_not_reported() {
    let gaps = PeerCapabilities { extensions: PeerCapabilities::GAP_RUNS, ..NATIVE };
    for capabilities in [PeerCapabilities::STANDARD, NATIVE, gaps] {
        let mut pair = Pair::new(capabilities);
        let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(512, 8));
        (0..5).for_each(|_| pair.ends[1].post_receive(&[into]));
        (0..5).for_each(|_| pair.ends[0].post(pair.now, Operation::Send, &[local]));
        let mut packets: Vec<Vec<u8>> = Vec::new();
        while let sent @ [_, ..] = &pair.ends[0].transmit(pair.now)[..] {
            packets.extend_from_slice(sent);
        }
        assert_eq!(packets.len(), 5);
        packets.rotate_left(1);
        let source = pair.ends[0].address;
        pair.ends[1].handle(pair.now, source, &packets);
        pair.drive(Duration::from_millis(50));
        assert_eq!(counter(&pair, Counter::ReorderedRequest), 4);
        assert_eq!(counter(&pair, Counter::SentSequenceNak), 0);
        let requester = pair.ends[0].endpoint.counters();
        assert_eq!(requester.get(Counter::ReceivedSequenceNak) + requester.get(Counter::RetransmittedPackets), 0);
        assert_eq!(pair.ends[1].poll().len(), 5);
    }
}
