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
        let mut started = Self::sent(NATIVE);
        started.arrive(&[0, 1]);
        started
    }

    /// Sends the packets to a peer with these capabilities. None has arrived.
    fn sent(capabilities: PeerCapabilities) -> Self {
        let mut pair = Pair::new(capabilities);
        let [sender, receiver] = &mut pair.ends;
        receiver.region.write_at(0, &[0xee; 4 * MTU]).unwrap();
        let write = Operation::Write { remote_addr: 0x10_0000, rkey: receiver.region.rkey() };
        let sge = sender.sge(0, 4 * MTU as u32);
        sender.post(pair.now, write, &[sge]);
        let mut packets = Vec::new();
        while packets.len() < 4 {
            packets.extend(sender.transmit(pair.now));
        }
        Self { pair, packets }
    }

    /// Returns this datagram with other headers and a matching ICRC.
    fn changed(&self, packet: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = self.packets[packet].clone();
        change(&mut bytes);
        self.append_icrc(0, &mut bytes);
        bytes
    }

    fn append_icrc(&self, identification: u16, packet: &mut [u8]) {
        let [source, destination] = [0, 1].map(|at| self.pair.ends[at].address);
        icrc::append(&Flow { source, destination, source_port: 50_000 }, identification, packet);
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
                medium: Medium::Network,
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
fn packets_in_order_are_executed() {
    let mut started = Started::new();
    let between = Packet::parse(&started.packets[2]).unwrap().headers.bth.opcode;
    assert!(between.is_middle());
    started.arrive(&[2, 3]);
    assert_eq!((started.written(), started.state()), (4 * MTU, QueuePairState::ReadyToSend));
}

/// A duplicate passes without a check of its length. A packet that resembles the duplicate must not.
#[test]
fn a_packet_after_a_duplicate_is_fully_checked() {
    let mut started = Started::new();
    let pad = |bytes: &mut [u8]| bytes[1] |= PAD_OF_3;
    let packets = [started.changed(1, pad), started.changed(2, pad)];
    started.arrive_together(&packets);
    assert_eq!((started.written(), started.state()), (2 * MTU, QueuePairState::Error));
}

#[test]
fn a_packet_that_fits_the_template_needs_the_expected_psn_and_a_valid_icrc() {
    let mut started = Started::sent(NATIVE);
    let [first, second, third] = [0, 1, 2].map(|packet| started.changed(packet, |_| {}));
    let mut broken = third.clone();
    broken[100] ^= 1;
    started.arrive_together(&[first, second.clone(), broken.clone(), second, broken]);
    assert_eq!((started.written(), started.state()), (2 * MTU, QueuePairState::ReadyToSend));
    started.arrive(&[2, 3]);
    assert_eq!(started.written(), 4 * MTU);
}

/// A packet with an unusual identification may be a damaged one. Three in a row are dropped, also those that fit the
/// template.
#[test]
fn a_doubtful_packet_counts_once() {
    let mut started = Started::sent(PeerCapabilities::STANDARD);
    let [first, second] = [0, 1].map(|packet| started.changed(packet, |_| {}));
    let mut doubtful = started.packets[2].clone();
    started.append_icrc(77, &mut doubtful);
    let dropped = || doubtful.clone();
    started.arrive_together(&[first, second, dropped(), dropped(), dropped()]);
    assert_eq!(started.written(), 2 * MTU);
    let counters = started.pair.ends[1].endpoint.counters();
    assert_eq!((counters.get_drop(DropReason::BadIcrc), counters.total_drops()), (3, 3));
    started.arrive_together(&[doubtful]);
    assert_eq!(started.written(), 3 * MTU);
}
