//! Unreliable connections on a wire that loses, repeats and reorders the packets that the test names.

use super::*;
use crate::wire::{Flow, icrc};

/// Offset of the memory that messages are received into.
const INBOX: u64 = 0x8_0000;
const MTU: usize = 1024;

/// Two ends of an unreliable connection, and the packets of the first one.
struct Lossy {
    pair: Pair,
    sent: Vec<Vec<u8>>,
    /// The last forged PSN that was accepted.
    reached: Option<Psn>,
}

impl Lossy {
    fn new() -> Self {
        Self {
            pair: Pair::of(QueuePairType::UnreliableConnection, PeerCapabilities::STANDARD),
            sent: Vec::new(),
            reached: None,
        }
    }

    /// Sends a message of `packets` packets, whose bytes are all `fill`; they wait in `sent`.
    fn send(&mut self, operation: Operation, packets: usize, fill: u8) {
        let length = packets * MTU;
        let now = self.pair.now;
        let end = &mut self.pair.ends[0];
        end.region.write_at(0, &vec![fill; length]).unwrap();
        let sge = end.sge(0, length as u32);
        end.post(now, operation, &[sge]);
        let before = self.sent.len();
        loop {
            let burst = self.pair.ends[0].transmit(self.pair.now);
            if !burst.is_empty() {
                self.sent.extend(burst);
                continue;
            }
            let end = &mut self.pair.ends[0];
            let Some(next) = end.endpoint.next_timeout() else { break };
            self.pair.now = next;
            end.endpoint.handle_timeout(next);
        }
        assert_eq!(self.sent.len() - before, packets);
    }

    fn send_message(&mut self, packets: usize, fill: u8) {
        self.send(Operation::SendWithImmediate(fill.into()), packets, fill);
    }

    /// Posts a receive for the `slot`-th message, of up to 8 packets.
    fn post_receive(&mut self, slot: u64) {
        let sge = self.pair.ends[1].sge(INBOX + slot * 8 * MTU as u64, 8 * MTU as u32);
        self.pair.ends[1].post_receive(&[sge]);
    }

    /// Delivers the packets with these indices, in this order.
    fn arrive(&mut self, packets: impl IntoIterator<Item = usize>) {
        let source = self.pair.ends[0].address;
        for packet in packets {
            let payload = self.sent[packet].clone();
            self.pair.ends[1].handle(self.pair.now, source, &[payload]);
        }
        assert!(self.pair.ends[1].transmit(self.pair.now).is_empty(), "there is never a response");
    }

    /// Adds a copy of a packet, changed and with a matching ICRC. Returns its index.
    fn forge(&mut self, packet: usize, change: impl FnOnce(&mut [u8])) -> usize {
        let mut forged = self.sent[packet].clone();
        change(&mut forged);
        let [source, destination] = [0, 1].map(|at| self.pair.ends[at].address);
        icrc::append(&Flow { source, destination, source_port: 50_000 }, 0, &mut forged);
        self.sent.push(forged);
        self.sent.len() - 1
    }

    /// Asserts that exactly these messages have arrived: number of packets, and value of their bytes.
    fn received(&mut self, expected: &[(usize, u8)]) {
        let completions = self.pair.ends[1].poll();
        let received: Vec<_> =
            completions.iter().map(|done| (done.byte_len as usize / MTU, done.immediate_or_key as u8)).collect();
        assert_eq!(received, expected, "{completions:?}");
        assert!(completions.iter().all(|done| done.status.is_success()), "{completions:?}");
    }

    /// Asserts that the `slot`-th receive holds `packets` packets of this byte.
    fn holds(&self, slot: u64, packets: usize, fill: u8) {
        let bytes = contents(&self.pair.ends[1].region, INBOX + slot * 8 * MTU as u64, packets * MTU);
        assert!(bytes.iter().all(|byte| *byte == fill), "slot {slot}");
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.pair.ends[1].endpoint.counters().get_drop(reason)
    }
}

#[test]
fn a_gap_drops_the_whole_message_and_the_next_starts_clean() {
    for lost in 0..4 {
        let mut wire = Lossy::new();
        (0..2).for_each(|slot| wire.post_receive(slot));
        wire.send_message(4, 1);
        wire.send_message(3, 2);
        wire.send_message(1, 3);
        wire.arrive((0..8).filter(|packet| *packet != lost));
        wire.received(&[(3, 2), (1, 3)]);
        // The next message used the receive that the lost one had begun to fill.
        wire.holds(0, 3, 2);
        wire.holds(1, 1, 3);
        let out_of_order = [3, 2, 1, 0][lost];
        assert_eq!(wire.drops(DropReason::OutOfOrder), out_of_order, "lost {lost}");
        let state = wire.pair.ends[1].endpoint.queue_pair_state(wire.pair.ends[1].qpn);
        assert_eq!(state, Some(QueuePairState::ReadyToSend));
    }
}

#[test]
fn a_longer_message_may_follow_a_dropped_one_in_its_receive() {
    let mut wire = Lossy::new();
    wire.post_receive(0);
    wire.send_message(8, 1);
    wire.send_message(8, 2);
    // All but the last packet of the first message: its receive is nearly full when the message is dropped.
    wire.arrive((0..7).chain(8..16));
    wire.received(&[(8, 2)]);
    wire.holds(0, 8, 2);
}

#[test]
fn repeated_packets_are_taken_once() {
    let mut wire = Lossy::new();
    (0..4).for_each(|slot| wire.post_receive(slot));
    wire.send_message(3, 1);
    wire.send_message(1, 2);
    wire.arrive([0, 0, 1, 0, 1, 2, 2, 3, 3, 0, 1, 2, 3]);
    wire.received(&[(3, 1), (1, 2)]);
    wire.holds(0, 3, 1);
    assert_eq!(wire.drops(DropReason::StaleDuplicate), 9);
}

#[test]
fn an_overtaken_packet_counts_as_lost() {
    let mut wire = Lossy::new();
    (0..4).for_each(|slot| wire.post_receive(slot));
    (1..=3).for_each(|fill| wire.send_message(1, fill));
    wire.send_message(3, 4);
    wire.arrive([1, 0, 2, 3, 5, 4]);
    wire.received(&[(1, 2), (1, 3)]);
    wire.send_message(2, 5);
    wire.arrive([6, 7]);
    wire.received(&[(2, 5)]);
    wire.holds(2, 2, 5);
}

#[test]
fn nearly_any_psn_is_accepted_after_a_long_outage() {
    let mut wire = Lossy::new();
    (0..5).for_each(|slot| wire.post_receive(slot));
    // The sender's PSNs wrap within these messages.
    (0..20).for_each(|fill| wire.send_message(1, fill));
    wire.arrive([0, 19]);
    // Later packets are as far ahead as PSNs can be, or so far that they seem to be behind.
    let last = wire.sent[19].clone();
    for (far, is_taken) in [(0x7f_ffff, true), (0x80_0000, true), (0xff_fc00, true), (0xff_fc02, false)] {
        let before = Psn::new(u32::from_be_bytes([0, last[9], last[10], last[11]]));
        let reached = wire.reached.get_or_insert(before).plus(far);
        if is_taken {
            wire.reached = Some(reached);
        }
        let packet = wire.forge(19, |bytes| bytes[9..12].copy_from_slice(&reached.value().to_be_bytes()[1..]));
        wire.arrive([packet]);
    }
    wire.received(&[(1, 0), (1, 19), (1, 19), (1, 19), (1, 19)]);
    assert_eq!(wire.drops(DropReason::StaleDuplicate), 1);
}

#[test]
fn a_write_without_its_middle_leaves_what_was_written_and_completes_nothing() {
    let mut wire = Lossy::new();
    wire.post_receive(7);
    let rkey = wire.pair.ends[1].region.rkey();
    let write = |immediate| Operation::WriteWithImmediate { remote_addr: 0x10_0000 + INBOX, rkey, immediate };
    wire.send(write(1), 3, 1);
    wire.send(write(2), 1, 2);
    wire.arrive([0, 2]);
    wire.received(&[]);
    wire.holds(0, 1, 1);
    let after = contents(&wire.pair.ends[1].region, INBOX + MTU as u64, 2 * MTU);
    assert!(after.iter().all(|byte| *byte == 0), "what was lost is not written, nor what followed it");
    wire.arrive([3]);
    wire.received(&[(1, 2)]);
    wire.holds(0, 1, 2);
}

#[test]
fn packets_that_continue_nothing_are_dropped() {
    let mut wire = Lossy::new();
    wire.post_receive(0);
    let rkey = wire.pair.ends[1].region.rkey();
    wire.send(Operation::Write { remote_addr: 0x10_0000 + INBOX, rkey }, 2, 1);
    wire.send_message(2, 2);
    // A WRITE's first packet and a SEND's last, with consecutive PSNs.
    let number = wire.sent[1][9..12].to_vec();
    let forged = wire.forge(3, |bytes| bytes[9..12].copy_from_slice(&number));
    wire.arrive([0, forged, 2, 3]);
    wire.received(&[(2, 2)]);
    assert_eq!(wire.drops(DropReason::OutOfOrder), 1);
}

#[test]
fn packets_of_another_service_are_dropped() {
    let mut wire = Lossy::new();
    wire.post_receive(0);
    wire.send_message(1, 1);
    wire.sent[0][0] &= 0x1f; // the reliable operation of the same kind
    wire.arrive([0]);
    wire.received(&[]);
    assert_eq!(wire.drops(DropReason::WrongService), 1);
}

#[test]
fn a_long_message_leaves_in_bursts_and_completes_with_its_last_packet() {
    let mut wire = Lossy::new();
    let length = 100 * MTU;
    let end = &mut wire.pair.ends[0];
    let sge = end.sge(0, length as u32);
    end.post(wire.pair.now, Operation::Send, &[sge]);
    let (mut left, mut pauses) = (0, 0);
    while left < 100 {
        let end = &mut wire.pair.ends[0];
        let burst = end.transmit(wire.pair.now);
        left += burst.len();
        if burst.is_empty() {
            assert!(end.poll().is_empty(), "{left} packets are not the whole request");
            assert!(left.is_multiple_of(32), "{left}");
            pauses += 1;
            let next = end.endpoint.next_timeout().expect("the rest has its time");
            assert!(next > wire.pair.now);
            wire.pair.now = next;
            end.endpoint.handle_timeout(next);
        }
    }
    assert_eq!(pauses, 3);
    let done = wire.pair.ends[0].poll();
    assert_eq!((done.len(), done[0].wr_id, done[0].status), (1, 7, CompletionStatus::Success));
    assert_eq!(wire.pair.ends[0].endpoint.packets_in_flight(wire.pair.ends[1].address), 0);
}
