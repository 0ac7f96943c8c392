//! Flipped bits: a packet that arrives changed is dropped, even where the identification and DF are not known for sure.

use rdma_verbs::types::{Counter, Data, Mtu, Psn};

use super::forge::Forgery;
use super::lab::{HONEST, Lab, VICTIM};
use super::world::Kind;
use super::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("bits/one_flipped_bit_of_a_standard_peer_with_identification_0", |_| one_bit(Kind::Standard)),
    ("bits/one_flipped_bit_of_a_native_peer", |_| one_bit(Kind::Native)),
    ("bits/two_flipped_bits_of_a_standard_peer_with_identification_0", |form| {
        two_bits(form.tries(400_000, 4_000_000));
    }),
    ("bits/mutated_packets_of_a_standard_peer", |form| mutated(Kind::Standard, form)),
    ("bits/mutated_packets_of_a_native_peer", |form| mutated(Kind::Native, form)),
];

const LENGTH: usize = 1_024;
/// Number of damaged packets in a row before the peer's next packet arrives whole. Without any whole packet, a victim
/// concludes after some seeming changes of the identification that the peer has changed it.
const DAMAGED_IN_A_ROW: u64 = 1_000;

/// A victim that has received one packet of its peer, and the next packet.
struct Line {
    lab: Lab,
    next: Forgery,
    bytes: Vec<u8>,
    expected: u64,
}

impl Line {
    fn new(kind: Kind) -> Self {
        let mut lab = Lab::new(kind, Mtu::Mtu1024, 0xb175);
        lab.post_receive(VICTIM, 0, 0, LENGTH as u32);
        lab.post_receive(VICTIM, 1, LENGTH as u64, LENGTH as u32);
        let sges = [lab.sge(HONEST, 0, LENGTH as u32)];
        lab.post_send(HONEST, 0, Data::Sges(&sges));
        lab.carry();
        assert_eq!(lab.completions(VICTIM).len(), 1, "the honest packet arrives");
        let payload: Vec<u8> = (0..LENGTH).map(|index| (index * 7) as u8).collect();
        let next = lab.aim().send(Psn::new(lab.first_psns[HONEST].value()).plus(1), &payload);
        let bytes = next.udp_payload();
        let expected = lab.count(VICTIM, Counter::ReceivedPackets);
        Self { lab, next, bytes, expected }
    }

    /// Delivers these bytes instead of the packet. Returns whether they pass for a packet of the peer.
    fn passes(&mut self, bytes: &[u8]) -> bool {
        self.lab.deliver_forged(&self.next, bytes);
        self.lab.count(VICTIM, Counter::ReceivedPackets) != self.expected
    }
}

/// Returns whether the check value covers a bit of the packet: all but the reserved byte of the base transport header.
fn is_covered(bit: usize) -> bool {
    bit / 8 != 4
}

fn one_bit(kind: Kind) {
    let mut line = Line::new(kind);
    let mut wrong = Vec::new();
    for bit in (0..line.bytes.len() * 8).filter(|bit| is_covered(*bit)) {
        let mut bytes = line.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if line.passes(&bytes) {
            wrong.push(bit);
            line = Line::new(kind);
        }
    }
    let positions: Vec<String> = wrong.iter().map(|bit| format!("byte {} bit {}", bit / 8, bit % 8)).collect();
    assert!(wrong.is_empty(), "{} flipped bits of {} pass: {positions:?}", wrong.len(), line.bytes.len() * 8);
}

fn two_bits(tries: u64) {
    let mut line = Line::new(Kind::Standard);
    let mut wrong = 0;
    let bits = line.bytes.len() as u64 * 8;
    for number in 1..=tries {
        if number.is_multiple_of(DAMAGED_IN_A_ROW) {
            line = Line::new(Kind::Standard);
        }
        let mut bytes = line.bytes.clone();
        let first = line.lab.random.below(bits) as usize;
        let second = line.lab.random.below(bits) as usize;
        if first == second || !is_covered(first) || !is_covered(second) {
            continue;
        }
        [first, second].iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
        if line.passes(&bytes) {
            wrong += 1;
            line = Line::new(Kind::Standard);
        }
    }
    assert_eq!(wrong, 0, "of {tries} packets with two flipped bits");
}

/// Changes some bits, bytes and lengths without a new check value. A native peer, and a standard peer whose
/// identification was 0, have exactly one valid check value.
fn mutated(kind: Kind, form: Form) {
    let tries = form.tries(300_000, 4_000_000);
    let mut line = Line::new(kind);
    let mut wrong = 0;
    for number in 1..=tries {
        if number.is_multiple_of(DAMAGED_IN_A_ROW) {
            line = Line::new(kind);
        }
        let mut bytes = line.bytes.clone();
        for _ in 0..line.lab.random.between(1, 6) {
            let index = line.lab.random.below(bytes.len() as u64) as usize;
            // The low bits of the reserved byte are not checked.
            if index != 4 {
                bytes[index] ^= 1 << line.lab.random.below(8);
            }
        }
        match line.lab.random.below(8) {
            0 => bytes.truncate(line.lab.random.below(bytes.len() as u64 + 1) as usize),
            1 => bytes.extend((0..line.lab.random.below(64)).map(|byte| byte as u8)),
            _ => {}
        }
        if bytes != line.bytes && line.passes(&bytes) {
            wrong += 1;
            line = Line::new(kind);
        }
    }
    assert_eq!(wrong, 0, "of {tries} mutated packets pass");
    let genuine = line.bytes.clone();
    let after = line.passes(&genuine);
    assert!(after || kind == Kind::Native, "the packet itself still arrives");
}
