//! Packets that came through memory shared with the peer, which have no check fields.

use super::keyed::{agreed, connect};
use super::*;
use crate::memory::SharedMemory;
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

#[test]
fn payloads_are_placed_from_shared_memory() {
    const PACKETS: usize = 4;
    let mut pair = pair_with([None, None]);
    let bytes = PACKETS * Mtu::Mtu1024.bytes() as usize;
    let data = pattern(bytes);
    pair.ends[0].region.write_at(0, &data).unwrap();
    let (now, local, into) = (pair.now, pair.ends[0].sge(0, bytes as u32), pair.ends[1].sge(0, bytes as u32));
    pair.ends[1].post_receive(&[into]);
    pair.ends[0].post(now, Operation::Send, &[local]);
    let packets = pair.ends[0].transmit(now);
    assert_eq!(packets.len(), PACKETS);
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
    assert_eq!(contents(&pair.ends[1].region, 0, bytes), data);
}
