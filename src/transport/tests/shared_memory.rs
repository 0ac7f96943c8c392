//! Packets that came through memory shared with the peer, which have no check fields.

use super::keyed::{agreed, connect};
use super::*;
use crate::memory::SharedMemory;
use crate::transport::Similar;
use crate::wire::{BTH_BYTES, ICRC_BYTES};

const RELIABLE: QueuePairType = QueuePairType::ReliableConnection;
const UNKEYED: Medium = Medium::SharedMemory { is_keyed: false };
const KEYED: Medium = Medium::SharedMemory { is_keyed: true };

fn pair_with(keys: [Option<PeerKey>; 2]) -> Pair {
    let ends = [End::new(RELIABLE, "192.0.2.1", 1), End::new(RELIABLE, "192.0.2.2", 2)];
    connect(ends, keys, NATIVE)
}

fn discovered() -> [Option<PeerKey>; 2] {
    agreed().map(|key| key.map(|key| PeerKey { is_agreed: false, ..key }))
}

impl Pair {
    /// Lets the first end send eight bytes, and returns the packet with another check field.
    fn packet_without_field(&mut self) -> Vec<u8> {
        let into = self.ends[1].sge(0, 64);
        self.ends[1].post_receive(&[into]);
        let (now, bytes) = (self.now, self.ends[0].sge(0, 8));
        self.ends[0].post(now, Operation::Send, &[bytes]);
        let mut packet = self.ends[0].transmit(now).remove(0);
        packet.last_chunk_mut::<ICRC_BYTES>().unwrap().iter_mut().for_each(|byte| *byte ^= 0x5a);
        packet
    }

    /// Returns why the second end drops a packet of the first that came through this medium.
    fn drop_reason(&mut self, payload: &[u8], medium: Medium) -> Option<DropReason> {
        let datagram = self.datagram(payload, medium);
        let receiver = &mut self.ends[1];
        receiver.endpoint.handle_datagram(self.now, &receiver.table.read(), &datagram).dropped
    }

    fn datagram<'a>(&self, payload: &'a [u8], medium: Medium) -> Datagram<'a> {
        Datagram {
            source: self.ends[0].address,
            destination: self.ends[1].address,
            source_port: 50_000,
            segment_index: 0,
            hop_limit: None,
            traffic_class: None,
            payload,
            medium,
        }
    }
}

#[test]
fn the_medium_decides_whether_a_check_field_is_needed() {
    let mut pair = pair_with([None, None]);
    let packet = pair.packet_without_field();
    assert_eq!(pair.drop_reason(&packet, Medium::Network), Some(DropReason::BadIcrc));
    assert_eq!(pair.drop_reason(&packet, KEYED), Some(DropReason::BadIcrc), "there is no key");
    assert_eq!(pair.drop_reason(&packet, UNKEYED), None);
    assert_eq!(pair.ends[1].poll().len(), 1);
}

#[test]
fn an_agreed_key_is_required_in_shared_memory_too() {
    let mut pair = pair_with(agreed());
    let packet = pair.packet_without_field();
    assert_eq!(pair.drop_reason(&packet, Medium::Network), Some(DropReason::BadIcrc));
    assert_eq!(pair.drop_reason(&packet, UNKEYED), Some(DropReason::Unkeyed));
    assert_eq!(pair.drop_reason(&packet, KEYED), None);
    assert_eq!(pair.ends[1].poll().len(), 1);
}

#[test]
fn ends_switch_to_a_discovered_key_in_shared_memory() {
    let mut pair = pair_with(discovered());
    let (first, second) = (pair.packet_without_field(), pair.packet_without_field());
    assert_eq!(pair.drop_reason(&first, UNKEYED), None);
    assert_eq!(pair.drop_reason(&second, KEYED), None);
    let third = pair.packet_without_field();
    assert_eq!(pair.drop_reason(&third, UNKEYED), Some(DropReason::Unkeyed), "it never switches back");
}

/// Returns a pair whose second end has a receive for a SEND of full packets, its bytes, and the packets.
fn message_of(packets: usize) -> (Pair, Vec<u8>, Vec<Vec<u8>>) {
    let mut pair = pair_with([None, None]);
    let bytes = packets * Mtu::Mtu1024.bytes() as usize;
    let data = pattern(bytes);
    pair.ends[0].region.write_at(0, &data).unwrap();
    let (now, local, into) = (pair.now, pair.ends[0].sge(0, bytes as u32), pair.ends[1].sge(0, bytes as u32));
    pair.ends[1].post_receive(&[into]);
    pair.ends[0].post(now, Operation::Send, &[local]);
    let sent = pair.ends[0].transmit(now);
    assert_eq!(sent.len(), packets);
    (pair, data, sent)
}

#[test]
fn payloads_are_placed_from_shared_memory() {
    const PACKETS: usize = 4;
    let (mut pair, data, packets) = message_of(PACKETS);
    let now = pair.now;
    let mut placed = Vec::new();
    for packet in &packets {
        let shared = SharedMemory::new(packet);
        let head = pair.datagram(&packet[..BTH_BYTES], UNKEYED);
        let whole = pair.datagram(packet, UNKEYED);
        let End { endpoint, table, .. } = &mut pair.ends[1];
        let rest = shared.part(BTH_BYTES..packet.len());
        let outcome = endpoint.take_in_place(now, &table.read(), &head, rest);
        placed.push(outcome.is_some());
        let outcome = outcome.unwrap_or_else(|| endpoint.handle_arrival(now, &table.read(), &whole));
        assert_eq!(outcome.dropped, None);
    }
    pair.ends[1].endpoint.settle_arrivals(now);
    assert_eq!(placed, [false, false, true, false], "the first one in the middle is the template");
    assert_eq!(pair.ends[1].poll().len(), 1);
    assert_eq!(contents(&pair.ends[1].region, 0, data.len()), data);
}

#[test]
fn payloads_of_several_packets_are_placed_at_once() {
    const PACKETS: usize = 7;
    let (mut pair, data, packets) = message_of(PACKETS);
    let now = pair.now;
    let payload_of = |packet: &Vec<u8>| packet[BTH_BYTES..packet.len() - ICRC_BYTES].to_vec();
    let take_similar = |pair: &mut Pair, range: std::ops::Range<usize>| {
        let similar = &packets[range];
        let shared = SharedMemory::new(&similar.iter().flat_map(payload_of).collect::<Vec<_>>());
        let asks = |packet: &Vec<u8>| u32::from(packet[8] >> 7);
        let ack_requests = similar.iter().rev().fold(0, |bits, packet| bits << 1 | asks(packet));
        let head = pair.datagram(&similar[0][..BTH_BYTES], UNKEYED);
        let placed = shared.part(0..similar.len() * Mtu::Mtu1024.bytes() as usize);
        let End { endpoint, table, .. } = &mut pair.ends[1];
        let count = similar.len() as u32;
        endpoint.take_similar(now, &table.read(), &head, Similar { count, ack_requests }, placed)
    };
    let take = |pair: &mut Pair, index: usize| {
        let datagram = pair.datagram(&packets[index], UNKEYED);
        let End { endpoint, table, .. } = &mut pair.ends[1];
        assert_eq!(endpoint.handle_arrival(now, &table.read(), &datagram).dropped, None);
    };
    take(&mut pair, 0);
    assert!(!take_similar(&mut pair, 1..4), "there is no template");
    take(&mut pair, 1);
    assert!(!take_similar(&mut pair, 3..5), "they are not expected yet");
    assert!(take_similar(&mut pair, 2..4));
    assert!(!take_similar(&mut pair, 2..4), "they are duplicates");
    assert!(take_similar(&mut pair, 4..6));
    take(&mut pair, 6);
    pair.ends[1].endpoint.settle_arrivals(now);
    assert_eq!(pair.ends[1].poll().len(), 1);
    assert_eq!(contents(&pair.ends[1].region, 0, data.len()), data);
    let received = pair.ends[1].endpoint.counters().get(Counter::ReceivedPackets);
    assert_eq!(received, PACKETS as u64);
}
