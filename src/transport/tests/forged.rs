//! Packets from a forger who knows the addresses and the queue pair number, and guesses the rest.

use super::*;
use crate::wire::{Bth, Flow, Headers, Opcode, icrc, packet_bytes};

/// The first PSN of both directions.
pub(super) const FIRST: Psn = Psn::new(0xff_fff0);
/// The port of the honest ends.
const HONEST_PORT: u16 = 50_000;
/// Identification and "don't fragment" that no honest end sends.
const ODD: (u16, bool) = (0x1234, false);

/// A packet that seems to come from an end's peer.
#[derive(Clone)]
pub(super) struct Forged {
    headers: Headers,
    payload: Vec<u8>,
    source_port: u16,
    /// Identification and "don't fragment" of its IPv4 header.
    identification: (u16, bool),
}

impl Forged {
    pub(super) fn new(opcode: Opcode, psn: Psn) -> Self {
        let bth = Bth { opcode, psn, pkey: DEFAULT_PKEY, migrated: true, ..Bth::default() };
        let headers = Headers { bth, ..Headers::default() };
        Self { headers, payload: Vec::new(), source_port: HONEST_PORT, identification: (0, true) }
    }

    pub(super) fn payload(self, payload: &[u8]) -> Self {
        Self { payload: payload.to_vec(), ..self }
    }

    pub(super) fn port(self, source_port: u16) -> Self {
        Self { source_port, ..self }
    }

    pub(super) fn identified(self, identification: (u16, bool)) -> Self {
        Self { identification, ..self }
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut Headers)) -> Self {
        change(&mut self.headers);
        self
    }

    /// Returns its bytes, addressed to the end `to`.
    pub(super) fn bytes(&self, pair: &Pair, to: usize) -> Vec<u8> {
        let mut headers = self.headers;
        headers.bth.destination = pair.ends[to].qpn;
        let length = self.payload.len();
        headers.bth.pad_count = (length.next_multiple_of(4) - length) as u8;
        let mut bytes = vec![0; packet_bytes(headers.bth.opcode, length as u32)];
        let start = headers.emit(&mut bytes);
        bytes[start..start + length].copy_from_slice(&self.payload);
        append_icrc(&mut bytes, &flow(pair, to, self.source_port), self.identification);
        bytes
    }

    /// Delivers it to the end `to`.
    pub(super) fn arrive(&self, pair: &mut Pair, to: usize) -> DatagramOutcome {
        let bytes = self.bytes(pair, to);
        arrive(pair, to, self.source_port, &bytes)
    }
}

fn flow(pair: &Pair, to: usize, source_port: u16) -> Flow {
    Flow { source: pair.ends[1 - to].address, destination: pair.ends[to].address, source_port }
}

fn append_icrc(packet: &mut [u8], flow: &Flow, (identification, dont_fragment): (u16, bool)) {
    let covered = packet.len() - 4;
    let value = icrc::compute(flow, identification, dont_fragment, &packet[..covered]);
    packet[covered..].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn arrive(pair: &mut Pair, to: usize, source_port: u16, payload: &[u8]) -> DatagramOutcome {
    let Flow { source, destination, .. } = flow(pair, to, source_port);
    let (segment_index, hop_limit, traffic_class) = (0, None, None);
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
    let end = &mut pair.ends[to];
    end.endpoint.handle_datagram(pair.now, &end.table.read(), &datagram)
}

/// Returns packets from another port with implausible PSNs: far ahead, in the past, and responses to nothing.
fn implausible() -> Vec<Forged> {
    let forged = |opcode, psn| Forged::new(opcode, psn).port(1).identified((5, true));
    vec![
        forged(Opcode::RC_SEND_ONLY, FIRST.plus(1 << 22)),
        forged(Opcode::RC_SEND_ONLY, FIRST.minus(100_000)),
        forged(Opcode::RC_ACKNOWLEDGE, FIRST.plus(5)),
        forged(Opcode::RC_READ_RESPONSE_MIDDLE, FIRST),
    ]
}

#[test]
fn an_implausible_packet_pins_no_port() {
    for forged in implausible() {
        let mut pair = Pair::new(NATIVE);
        let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
        forged.clone().identified((0, true)).arrive(&mut pair, 1);
        pair.ends[1].post_receive(&[into]);
        pair.ends[0].post(pair.now, Operation::Send, &[local]);
        pair.drive(Duration::from_secs(1));
        let status = pair.ends[0].poll()[0].status;
        assert_eq!(status, CompletionStatus::Success, "after {:?}", forged.headers.bth);
    }
}

#[test]
fn an_executed_packet_pins_the_port() {
    let mut pair = Pair::new(NATIVE);
    let into = pair.ends[1].sge(0, 8);
    (0..2).for_each(|_| pair.ends[1].post_receive(&[into]));
    Forged::new(Opcode::RC_SEND_ONLY, FIRST).arrive(&mut pair, 1);
    let outcome = Forged::new(Opcode::RC_SEND_ONLY, FIRST.plus(1)).port(1).arrive(&mut pair, 1);
    assert_eq!(outcome.dropped, Some(DropReason::WrongSourcePort));
    assert_eq!(pair.ends[1].poll().len(), 1);
}

/// The identification and "don't fragment" of a standard peer are learned only from its executed packets.
#[test]
fn hidden_fields_are_not_learned_from_an_implausible_packet() {
    for forged in implausible() {
        let mut pair = Pair::new(PeerCapabilities::STANDARD);
        let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
        forged.arrive(&mut pair, 1);
        pair.ends[1].post_receive(&[into]);
        pair.ends[0].post(pair.now, Operation::Send, &[local]);
        let mut packet = pair.ends[0].transmit(pair.now).remove(0);
        append_icrc(&mut packet, &flow(&pair, 1, HONEST_PORT), ODD);
        assert_eq!(arrive(&mut pair, 1, HONEST_PORT, &packet).dropped, None, "after {:?}", forged.headers.bth);
        assert_eq!(pair.ends[1].poll().len(), 1);
    }
}

/// Flipped bits that other values of the hidden header fields would explain are detected as soon as these fields are
/// known.
#[test]
fn no_flipped_bit_passes_when_the_peer_sends_identification_0() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let into = pair.ends[1].sge(0, 4_096);
    (0..2).for_each(|_| pair.ends[1].post_receive(&[into]));
    let honest = |psn| Forged::new(Opcode::RC_SEND_ONLY, psn).payload(&pattern(1_024));
    assert_eq!(honest(FIRST).arrive(&mut pair, 1).dropped, None);
    let flow = flow(&pair, 1, HONEST_PORT);
    let packet = honest(FIRST.plus(1)).bytes(&pair, 1);
    let mut hidden = 0;
    for bit in 12 * 8..(12 + 1_024) * 8 {
        let mut flipped = packet.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let options = icrc::Verify { first_identification: 0, solve: true, expected_df: true };
        hidden += u32::from(icrc::verify(&flow, &options, &flipped) != icrc::Match::Wrong);
        let outcome = arrive(&mut pair, 1, HONEST_PORT, &flipped);
        assert_eq!(outcome.dropped, Some(DropReason::BadIcrc), "bit {} of byte {}", bit % 8, bit / 8 - 12);
    }
    assert!(hidden > 0, "none of the bits can hide, so the test shows nothing");
    assert_eq!(arrive(&mut pair, 1, HONEST_PORT, &packet).dropped, None);
}

/// A peer whose identification counts its packets begins with 0.
#[test]
fn a_peer_that_began_with_identification_0_may_change_it() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
    let mut identification = 0;
    for _ in 0..20 {
        pair.ends[1].post_receive(&[into]);
        pair.ends[0].post(pair.now, Operation::Send, &[local]);
        while pair.ends[0].poll().is_empty() {
            for mut packet in pair.ends[0].transmit(pair.now) {
                append_icrc(&mut packet, &flow(&pair, 1, HONEST_PORT), (identification, true));
                arrive(&mut pair, 1, HONEST_PORT, &packet);
                identification += 1;
            }
            pair.carry(1);
            if let Some(next) = pair.ends[0].endpoint.next_timeout() {
                pair.now = pair.now.max(next);
                let end = &mut pair.ends[0];
                end.endpoint.handle_timeout(pair.now);
            }
        }
    }
    let dropped = pair.ends[1].endpoint.counters().get_drop(DropReason::BadIcrc);
    assert!((1..8).contains(&dropped), "{dropped} packets were not believed");
}

#[test]
fn an_implausible_packet_does_not_count_as_heard() {
    for forged in implausible() {
        let mut pair = Pair::new(PeerCapabilities::STANDARD);
        forged.clone().identified((0, true)).arrive(&mut pair, 1);
        let end = &pair.ends[1];
        let (report, _) = end.endpoint.queue_pair_report(pair.now, end.qpn).unwrap();
        let heard = (report.last_request.is_some(), report.last_response.is_some());
        assert_eq!(heard, (false, false), "{:?}", forged.headers.bth);
    }
}

#[test]
fn an_implausible_packet_establishes_no_communication() {
    for forged in &implausible()[..2] {
        let mut pair = Pair::new(PeerCapabilities::STANDARD);
        let end = &mut pair.ends[1];
        let to = |state| QueuePairAttributes { qp_state: Some(state), ..QueuePairAttributes::default() };
        end.endpoint.modify_queue_pair(pair.now, end.qpn, &to(QueuePairState::Reset), None, &LIMITS).unwrap();
        let peer =
            Peer { address: pair.ends[0].address, qpn: pair.ends[0].qpn, capabilities: PeerCapabilities::STANDARD };
        pair.ends[1].connect_to(&peer, None, QueuePairState::ReadyToReceive);
        forged.clone().identified((0, true)).arrive(&mut pair, 1);
        assert_eq!(pair.ends[1].events.poll(), None, "{:?}", forged.headers.bth);
        Forged::new(Opcode::RC_SEND_ONLY, FIRST).arrive(&mut pair, 1);
        let established = AsyncEvent::CommunicationEstablished(pair.ends[1].qpn);
        assert_eq!(pair.ends[1].events.poll(), Some(established));
    }
}

/// Linux computes the ICRC of a FLUSH in its own way. A packet that anyone may have sent does not show which way the
/// peer uses.
#[test]
fn the_icrc_of_linux_is_not_learned_from_an_implausible_flush() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let mut forged = Forged::new(Opcode::RC_FLUSH, FIRST.plus(1 << 22))
        .with(|headers| {
            headers.reth = Some(crate::wire::Reth::default());
            headers.flush = Some(crate::wire::FlushEth::default());
        })
        .bytes(&pair, 1);
    icrc::append_as_linux(&flow(&pair, 1, HONEST_PORT), 0, &mut forged);
    arrive(&mut pair, 1, HONEST_PORT, &forged);
    let end = &pair.ends[1];
    let path = end.endpoint.find(end.qpn).unwrap().common.path.as_ref();
    assert!(!path.unwrap().flushes_as_linux(0));
}

#[test]
fn a_packet_far_ahead_on_an_unreliable_connection_pins_no_port() {
    let mut pair = Pair::of(QueuePairType::UnreliableConnection, NATIVE);
    let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
    (0..2).for_each(|_| pair.ends[1].post_receive(&[into]));
    let ahead = Forged::new(Opcode(Opcode::RC_SEND_ONLY.0 | 0x20), FIRST.plus(1 << 22));
    ahead.port(1).arrive(&mut pair, 1);
    let before = pair.ends[1].endpoint.counters().total_drops();
    pair.ends[0].post(pair.now, Operation::Send, &[local]);
    pair.drive(Duration::from_millis(1));
    let counters = pair.ends[1].endpoint.counters();
    assert_eq!(counters.get_drop(DropReason::WrongSourcePort), before);
}

/// An early packet does not pin the port; its own port is checked once an earlier packet was executed.
#[test]
fn an_early_packet_from_another_port_is_not_executed() {
    let mut pair = Pair::new(NATIVE);
    let into = pair.ends[1].sge(0, 8);
    (0..2).for_each(|_| pair.ends[1].post_receive(&[into]));
    Forged::new(Opcode::RC_SEND_ONLY, FIRST.plus(1)).port(1).arrive(&mut pair, 1);
    assert_eq!(Forged::new(Opcode::RC_SEND_ONLY, FIRST).arrive(&mut pair, 1).dropped, None);
    assert_eq!(pair.ends[1].poll().len(), 1, "the forged one is not executed");
    assert_eq!(Forged::new(Opcode::RC_SEND_ONLY, FIRST.plus(1)).arrive(&mut pair, 1).dropped, None);
    assert_eq!(pair.ends[1].poll().len(), 1);
}

/// Four packets with such header fields would be believed if they were executed.
#[test]
fn hidden_fields_are_not_learned_from_early_packets() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(0, 8));
    pair.ends[1].post_receive(&[into]);
    pair.ends[0].post(pair.now, Operation::Send, &[local]);
    pair.drive(Duration::from_millis(1));
    let odd = |ahead: u32| Forged::new(Opcode::RC_SEND_ONLY, FIRST.plus(1 + ahead)).payload(b"odd").identified(ODD);
    let dropped = [1, 2, 3, 4].map(|ahead| odd(ahead).arrive(&mut pair, 1).dropped);
    assert_eq!(dropped, [Some(DropReason::BadIcrc), Some(DropReason::BadIcrc), Some(DropReason::BadIcrc), None]);
    // A packet outside the window is not believed.
    assert_eq!(odd(1_000).arrive(&mut pair, 1).dropped, Some(DropReason::BadIcrc));
}
