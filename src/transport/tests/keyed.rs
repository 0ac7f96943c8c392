//! Packets between native peers that share a key.

use super::*;
use crate::wire::icrc;
use crate::wire::{CheckMasks, Flow, PsnSequence};

const FIRST: Psn = Psn::new(0xff_fff0);

fn key(own: u8, other: u8, is_agreed: bool) -> PeerKey {
    PeerKey { local: KeyShare::new([own; 16]), remote: KeyShare::new([other; 16]), is_agreed }
}

pub(super) fn agreed() -> [Option<PeerKey>; 2] {
    [Some(key(1, 2, true)), Some(key(2, 1, true))]
}

fn discovered() -> [Option<PeerKey>; 2] {
    [Some(key(1, 2, false)), Some(key(2, 1, false))]
}

fn pair_with(service: QueuePairType, keys: [Option<PeerKey>; 2]) -> Pair {
    let ends = [End::new(service, "192.0.2.1", 1), End::new(service, "192.0.2.2", 2)];
    connect(ends, keys, NATIVE)
}

/// Connects native peers with these keys.
pub(super) fn connect(mut ends: [End; 2], keys: [Option<PeerKey>; 2], capabilities: PeerCapabilities) -> Pair {
    let peers = [1, 0].map(|at| Peer { address: ends[at].address, qpn: ends[at].qpn, capabilities });
    for ((end, peer), key) in ends.iter_mut().zip(&peers).zip(keys) {
        end.connect_to(peer, key, QueuePairState::ReadyToSend);
    }
    Pair::between(ends)
}

impl Pair {
    /// Sends eight bytes from the end `from`, and asserts that both ends complete.
    fn exchange(&mut self, from: usize) {
        let into = self.ends[1 - from].sge(0, 64);
        self.ends[1 - from].post_receive(&[into]);
        let (now, bytes) = (self.now, self.ends[from].sge(0, 8));
        self.ends[from].post(now, Operation::Send, &[bytes]);
        self.drive(Duration::from_millis(1));
        for end in &self.ends {
            let completions = end.poll();
            assert_eq!(completions.len(), 1, "{completions:?}");
            assert!(completions[0].status.is_success(), "{completions:?}");
        }
    }

    fn drops(&self, at: usize, reason: DropReason) -> u64 {
        self.ends[at].endpoint.counters().get_drop(reason)
    }

    /// Lets the first end send one packet, and returns it without delivering it.
    fn one_packet(&mut self) -> Vec<u8> {
        let (now, bytes) = (self.now, self.ends[0].sge(0, 8));
        self.ends[0].post(now, Operation::Send, &[bytes]);
        let mut packets = self.ends[0].transmit(now);
        assert_eq!(packets.len(), 1);
        packets.remove(0)
    }

    fn flow(&self) -> Flow {
        Flow { source: self.ends[0].address, destination: self.ends[1].address, source_port: 50_000 }
    }

    /// Returns whether the second end delivers this packet of the first.
    fn delivers(&mut self, packet: &[u8]) -> bool {
        let source = self.ends[0].address;
        self.ends[1].handle(self.now, source, &[packet.to_vec()]);
        !self.ends[1].poll().is_empty()
    }

    /// Returns the XOR of the check field of a packet of the first end and its ICRC.
    fn mask_of(&self, packet: &[u8]) -> u32 {
        let (covered, field) = packet.split_last_chunk::<4>().unwrap();
        icrc::compute(&self.flow(), 0, true, covered) ^ u32::from_le_bytes(*field)
    }
}

#[test]
fn every_operation_works_with_a_key() {
    for keys in [agreed(), discovered()] {
        let mut pair = pair_with(QueuePairType::ReliableConnection, keys);
        let data = pattern(300_000);
        pair.ends[0].region.write_at(0, &data).unwrap();
        let (rkey, remote_addr) = (pair.ends[1].region.rkey(), 0x10_0000);
        let (local, back, word) =
            (pair.ends[0].sge(0, 300_000), pair.ends[0].sge(400_000, 300_000), pair.ends[0].sge(800_000, 8));
        let into = pair.ends[1].sge(500_000, 300_000);
        pair.ends[1].post_receive(&[into]);
        let now = pair.now;
        pair.ends[0].post(now, Operation::Write { remote_addr, rkey }, &[local]);
        pair.ends[0].post(now, Operation::Read { remote_addr, rkey }, &[back]);
        pair.ends[0].post(now, Operation::Send, &[local]);
        pair.ends[0].post(now, Operation::FetchAndAdd { remote_addr: remote_addr + 8 * 50_000, rkey, add: 3 }, &[word]);
        pair.drive(Duration::from_millis(1));
        assert_eq!(pair.ends[0].poll().iter().filter(|done| done.status.is_success()).count(), 4);
        assert_eq!(contents(&pair.ends[1].region, 500_000, 300_000), data);
        assert_eq!(contents(&pair.ends[0].region, 400_000, 300_000), data);
        assert_eq!(pair.ends[1].poll().len(), 1);
        for end in &pair.ends {
            assert_eq!(end.endpoint.counters().total_drops(), 0);
        }
        pair.exchange(1);
    }
}

#[test]
fn a_packet_without_the_agreed_key_is_dropped_and_counted_by_name() {
    let mut pair = pair_with(QueuePairType::ReliableConnection, agreed());
    let into = pair.ends[1].sge(0, 64);
    pair.ends[1].post_receive(&[into]);
    let keyed = pair.one_packet();
    let mut plain = keyed.clone();
    for identification in [0, 5] {
        icrc::append(&pair.flow(), identification, &mut plain);
        assert!(!pair.delivers(&plain));
    }
    assert_eq!((pair.drops(1, DropReason::Unkeyed), pair.drops(1, DropReason::BadIcrc)), (2, 0));
    *plain.last_mut().unwrap() ^= 1;
    assert!(!pair.delivers(&plain));
    assert_eq!((pair.drops(1, DropReason::Unkeyed), pair.drops(1, DropReason::BadIcrc)), (2, 1));
    assert!(pair.delivers(&keyed));
}

#[test]
fn peers_that_found_each_other_switch_once_and_never_back() {
    let mut pair = pair_with(QueuePairType::ReliableConnection, discovered());
    let into = pair.ends[1].sge(0, 64);
    pair.ends[1].post_receive(&[into]);
    let first = pair.one_packet();
    assert_eq!(pair.mask_of(&first), 0, "the first packet has the ICRC");
    assert!(pair.delivers(&first));
    pair.drive(Duration::from_millis(1));
    assert_eq!(pair.ends[0].poll().len(), 1);
    pair.ends[1].post_receive(&[into]);
    let second = pair.one_packet();
    assert_ne!(pair.mask_of(&second), 0, "the peer's response had the key");
    let mut plain = second.clone();
    icrc::append(&pair.flow(), 0, &mut plain);
    assert!(pair.delivers(&second));
    let psn = u32::from_be_bytes([0, plain[9], plain[10], plain[11]]) + 1;
    plain[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    icrc::append(&pair.flow(), 0, &mut plain);
    assert!(!pair.delivers(&plain));
    assert_eq!(pair.drops(1, DropReason::Unkeyed), 1);
}

/// One of two processes may look for the other before the other has started.
#[test]
fn a_key_known_to_one_end_only_is_never_used() {
    for at in 0..2 {
        let mut keys = discovered();
        keys[at] = None;
        let mut pair = pair_with(QueuePairType::ReliableConnection, keys);
        for _ in 0..3 {
            pair.exchange(0);
            pair.exchange(1);
        }
        let packet = pair.one_packet();
        assert_eq!(pair.mask_of(&packet), 0);
        assert!(pair.ends.iter().all(|end| end.endpoint.counters().total_drops() == 0));
    }
}

#[test]
fn a_keyed_packet_of_an_earlier_connection_is_dropped() {
    let mut pair = pair_with(QueuePairType::ReliableConnection, agreed());
    let stale = pair.one_packet();
    // The same queue pairs and PSNs, but other key shares.
    let mut pair = pair_with(QueuePairType::ReliableConnection, [Some(key(3, 2, true)), Some(key(2, 3, true))]);
    let into = pair.ends[1].sge(0, 64);
    pair.ends[1].post_receive(&[into]);
    assert!(!pair.delivers(&stale));
    assert_eq!(pair.drops(1, DropReason::BadIcrc), 1);
    let fresh = pair.one_packet();
    assert_eq!(fresh[..12], stale[..12]);
    assert!(pair.delivers(&fresh));
}

#[test]
fn unreliable_connections_have_the_key_from_the_first_packet_on() {
    let mut pair = pair_with(QueuePairType::UnreliableConnection, agreed());
    let into = pair.ends[1].sge(0, 64);
    pair.ends[1].post_receive(&[into]);
    let packet = pair.one_packet();
    assert_ne!(pair.mask_of(&packet), 0);
    let mut plain = packet.clone();
    icrc::append(&pair.flow(), 0, &mut plain);
    assert!(!pair.delivers(&plain));
    assert!(pair.delivers(&packet));
}

#[test]
fn queries_do_not_return_the_key() {
    let pair = pair_with(QueuePairType::ReliableConnection, agreed());
    let status = pair.ends[0].endpoint.query_queue_pair(pair.ends[0].qpn).unwrap();
    assert_eq!(status.attributes.peer_key, None);
}

/// Of all values of 16 bits of the check field, the other 16 being right, one passes. The field is an XOR of a CRC and
/// the mask, so the same holds for all 32 bits: each value of the field is right for exactly one mask.
#[test]
fn one_value_of_the_check_field_passes() {
    for shift in [0, 16] {
        let mut pair = pair_with(QueuePairType::ReliableConnection, agreed());
        let into = pair.ends[1].sge(0, 64);
        pair.ends[1].post_receive(&[into]);
        let mut packet = pair.one_packet();
        let right = u32::from_le_bytes(*packet.last_chunk::<4>().unwrap());
        let mut passed = Vec::new();
        for value in 0..=0xffff_u32 {
            let field = right & !(0xffff << shift) | value << shift;
            *packet.last_chunk_mut::<4>().unwrap() = field.to_le_bytes();
            if pair.delivers(&packet) {
                passed.push(field);
            }
        }
        assert_eq!(passed, [right]);
        let drops = pair.drops(1, DropReason::BadIcrc) + pair.drops(1, DropReason::Unkeyed);
        // The values after the one that passed are wrong too, although the packet is a duplicate by then.
        assert_eq!(drops, 0xffff);
    }
}

#[test]
fn the_mask_is_that_of_the_sequence() {
    let mut pair = pair_with(QueuePairType::ReliableConnection, agreed());
    let (requester, responder) = (pair.ends[0].qpn, pair.ends[1].qpn);
    let sequence = PsnSequence { requester, responder, first: FIRST, is_local: true };
    let masks = CheckMasks::new(&key(1, 2, true), &sequence);
    let packet = pair.one_packet();
    assert_eq!(pair.mask_of(&packet), masks.requests);
}

/// Packets without the key pass until the switch. One that is kept at the switch, because an earlier packet is missing,
/// must not be executed after it.
#[test]
fn unkeyed_packets_are_dropped_from_the_reorder_buffer_at_the_switch() {
    let mut pair = pair_with(QueuePairType::ReliableConnection, discovered());
    let into = pair.ends[1].sge(0, 64);
    (0..2).for_each(|_| pair.ends[1].post_receive(&[into]));
    let (mut first, second) = (pair.one_packet(), pair.one_packet());
    assert!(!pair.delivers(&second), "it is early");
    assert!(pair.ends[1].endpoint.reorder_bytes() > 0);
    let sequence =
        PsnSequence { requester: pair.ends[0].qpn, responder: pair.ends[1].qpn, first: FIRST, is_local: true };
    let mask = CheckMasks::new(&key(1, 2, false), &sequence).requests;
    first[8] &= !1;
    icrc::append(&pair.flow(), 0, &mut first);
    let field = first.last_chunk_mut::<4>().unwrap();
    *field = (u32::from_le_bytes(*field) ^ mask).to_le_bytes();
    let source = pair.ends[0].address;
    pair.ends[1].handle(pair.now, source, &[first]);
    assert_eq!(pair.ends[1].poll().len(), 1);
    assert_eq!(pair.ends[1].endpoint.reorder_bytes(), 0);
}
