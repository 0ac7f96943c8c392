//! Packets that are accepted because they resemble the previous one.

use super::*;
use crate::wire::icrc;
use crate::wire::{Flow, Packet};

const MTU: usize = 1024;
/// Two bits of the second byte of the base transport header.
const PAD_OF_3: u8 = 3 << 4;

/// A WRITE of four packets from the first end to the second. The first two have arrived.
struct Started {
    pair: Pair,
    packets: Vec<Vec<u8>>,
}

impl Started {
    fn new() -> Self {
        let mut pair = Pair::new(NATIVE);
        let [sender, receiver] = &mut pair.ends;
        receiver.region.write_at(0, &[0xee; 4 * MTU]).unwrap();
        let write = Operation::Write { remote_addr: 0x10_0000, rkey: receiver.region.rkey() };
        let sge = sender.sge(0, 4 * MTU as u32);
        sender.post(pair.now, write, &[sge]);
        let bursts = [sender.transmit(pair.now), sender.transmit(pair.now)];
        let mut started = Self { pair, packets: bursts.concat() };
        assert_eq!(started.packets.len(), 4);
        started.arrive(&[0, 1]);
        started
    }

    /// Returns this datagram with other headers and a matching ICRC.
    fn changed(&self, packet: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = self.packets[packet].clone();
        change(&mut bytes);
        let [source, destination] = [0, 1].map(|at| self.pair.ends[at].address);
        icrc::append(&Flow { source, destination, source_port: 50_000 }, 0, &mut bytes);
        bytes
    }

    fn arrive(&mut self, packets: &[usize]) {
        let packets: Vec<_> = packets.iter().map(|packet| self.changed(*packet, |_| {})).collect();
        self.arrive_together(&packets);
    }

    /// Delivers datagrams that arrive together, and settles them together.
    fn arrive_together(&mut self, packets: &[Vec<u8>]) {
        let [sender, receiver] = &mut self.pair.ends;
        for payload in packets {
            let datagram = Datagram {
                source: sender.address,
                destination: receiver.address,
                source_port: 50_000,
                segment_index: 0,
                hop_limit: None,
                traffic_class: None,
                payload,
            };
            receiver.endpoint.handle_arrival(self.pair.now, &receiver.table.read(), &datagram);
        }
        receiver.endpoint.settle_arrivals(self.pair.now);
    }

    /// Returns the number of bytes of the target that were written.
    fn written(&self) -> usize {
        let mut bytes = [0; 4 * MTU];
        self.pair.ends[1].region.read_at(0, &mut bytes).unwrap();
        bytes.iter().filter(|byte| **byte != 0xee).count()
    }

    fn state(&self) -> QueuePairState {
        let end = &self.pair.ends[1];
        end.endpoint.queue_pair_state(end.qpn).unwrap()
    }
}

#[test]
fn packets_in_order_are_taken() {
    let mut started = Started::new();
    let between = Packet::parse(&started.packets[2]).unwrap().headers.bth.opcode;
    assert!(between.is_middle());
    started.arrive(&[2, 3]);
    assert_eq!((started.written(), started.state()), (4 * MTU, QueuePairState::ReadyToSend));
}

/// A duplicate passes without a check of its length. A packet that resembles the duplicate must not.
#[test]
fn what_follows_a_duplicate_is_looked_at() {
    let mut started = Started::new();
    let pad = |bytes: &mut [u8]| bytes[1] |= PAD_OF_3;
    let packets = [started.changed(1, pad), started.changed(2, pad)];
    started.arrive_together(&packets);
    assert_eq!((started.written(), started.state()), (2 * MTU, QueuePairState::Error));
}

#[test]
fn each_needs_its_number_and_its_icrc() {
    let mut started = Started::new();
    let mut broken = started.packets[2].clone();
    broken[100] ^= 1;
    let repeated = started.changed(1, |_| {});
    started.arrive_together(&[repeated, broken]);
    assert_eq!((started.written(), started.state()), (2 * MTU, QueuePairState::ReadyToSend));
    started.arrive(&[2, 3]);
    assert_eq!(started.written(), 4 * MTU);
}
