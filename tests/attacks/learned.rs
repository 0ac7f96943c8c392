//! One blind packet before the peer's first: the victim learns neither port nor DF from it.

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::verbs::{Counter, Mtu, ReceiveRequest};

use super::Attack;
use super::forge::{Aim, RawSender};
use super::world::{End, Kind, complete, connect, exchange, new_address, options, silent_peer, still_work};

pub(super) const ATTACKS: &[Attack] = &[
    ("learned/no_port_from_a_blind_packet", |_| port()),
    ("learned/no_df_from_a_blind_packet", |_| dont_fragment()),
    ("learned/df_of_the_first_packet_that_is_in_turn", |_| other_dont_fragment()),
];

/// Returns PSNs far from the expected one, on both sides of it.
fn far_from(psn: Psn) -> [Psn; 2] {
    [psn.plus(0x40_0000), psn.minus(0x40_0000)]
}

fn port() {
    let raw = RawSender::open();
    let (left, right) = (End::open(), End::open());
    connect(Kind::Native, &left, &right, Mtu::Mtu1024);
    let (left_psn, right_psn) = (left.info().psn, right.info().psn);
    for (victim, peer, psn) in [(&left, &right, right_psn), (&right, &left, left_psn)] {
        let before = victim.qp.counters().get(Counter::ReceivedPackets);
        for number in far_from(psn) {
            raw.send(&victim.aim(peer.address, 50_001).send(number, b"blind"));
        }
        victim.drive();
        let passed = victim.qp.counters().get(Counter::ReceivedPackets) - before;
        println!("{passed} of 2 blind packets pass for the peer's");
    }
    still_work(Kind::Native, &left, &right);
}

/// Returns a standard peer made of raw packets, and a victim connected to it.
fn raw_peer() -> (RawSender, End, Aim, Psn) {
    let (raw, victim) = (RawSender::open(), End::open());
    let (address, psn) = (new_address(), Psn::new(0x12_3456));
    let info = silent_peer(address, Qpn::new(0x77), psn, Mtu::Mtu1024);
    victim.qp.connect_with(&info, &options(Mtu::Mtu1024)).expect("connect");
    let aim = victim.aim(address, 50_000);
    (raw, victim, aim, psn)
}

fn receives(raw: &RawSender, victim: &End, aim: &Aim, psn: Psn, dont_fragment: bool) {
    let posted = ReceiveRequest::new(victim.region.slice(..64).expect("in the region"));
    victim.qp.post_recv(&[posted]).expect("post_recv");
    let mut packet = aim.send(psn, &[0x5a; 64]);
    (packet.identification, packet.dont_fragment) = (0x1234, dont_fragment);
    raw.send(&packet);
    let [done] = complete([(victim, 1)]);
    assert!(done[0].is_success());
    assert_eq!(victim.region.to_vec(..64).expect("in the region"), [0x5a; 64]);
}

/// The peer sends with DF and nonzero identifications; a blind packet without DF comes first.
fn dont_fragment() {
    let (raw, victim, aim, psn) = raw_peer();
    for number in far_from(psn) {
        let mut blind = aim.send(number, b"blind");
        (blind.identification, blind.dont_fragment) = (0x4321, false);
        raw.send(&blind);
    }
    victim.drive();
    receives(&raw, &victim, &aim, psn, true);
    receives(&raw, &victim, &aim, psn.plus(1), true);
}

/// The reverse: the peer sends without DF, as the standard allows.
fn other_dont_fragment() {
    let (raw, victim, aim, psn) = raw_peer();
    for number in far_from(psn) {
        let mut blind = aim.send(number, b"blind");
        blind.identification = 0x4321;
        raw.send(&blind);
    }
    victim.drive();
    receives(&raw, &victim, &aim, psn, false);
    receives(&raw, &victim, &aim, psn.plus(1), false);
    let (left, right) = (End::on(victim.address), End::open());
    connect(Kind::Native, &left, &right, Mtu::Mtu1024);
    exchange(&left, &right);
}
