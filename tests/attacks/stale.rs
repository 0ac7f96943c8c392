//! Packets of an earlier connection between the same queue pairs.

use rdma_verbs::types::{Counter, Data, Mtu};

use super::Attack;
use super::forge::RawSender;
use super::lab::{HONEST, Lab, VICTIM};
use super::world::{Kind, connect, exchange, pair, still_work};

pub(super) const ATTACKS: &[Attack] = &[
    ("stale/packets_of_the_connection_before_reset", |_| Kind::BOTH.into_iter().for_each(reconnected)),
    ("stale/keyed_packets_whose_numbers_fit_again", |_| numbers_fit_again()),
];

fn reconnected(kind: Kind) {
    let raw = RawSender::open();
    let (left, right) = pair(kind, Mtu::Mtu1024);
    exchange(&left, &right);
    let old = right.info().psn;
    for end in [&left, &right] {
        end.qp.reset().expect("reset");
    }
    connect(kind, &left, &right, Mtu::Mtu1024);
    exchange(&left, &right);
    let before = left.qp.counters();
    let aim = left.aim(right.address, 50_123);
    for number in 0..200 {
        raw.send(&aim.send(old.plus(number), b"of the connection before"));
        left.drive();
    }
    let since = left.qp.counters().since(&before);
    assert_eq!(since.get(Counter::ReorderedRequest), 0, "{kind:?}");
    still_work(kind, &left, &right);
}

/// A new connection happens to expect PSNs that the old one used, while an old packet is still in flight.
fn numbers_fit_again() {
    let mut lab = Lab::new(Kind::Native, Mtu::Mtu256, 0x57a1e);
    let old = lab.first_psns;
    for _ in 0..16 {
        lab.post_send(HONEST, 0, Data::Inline(&[b"an old message"]));
    }
    let late = lab.overheard_from(HONEST);
    assert!(!late.is_empty());
    lab.connect_at([old[VICTIM], old[HONEST].minus(1)]);
    lab.post_receive(VICTIM, 0, 0, 64);
    let before = lab.count(VICTIM, Counter::ReceivedPackets);
    for packet in &late {
        lab.deliver(packet);
    }
    let passed = lab.count(VICTIM, Counter::ReceivedPackets) - before;
    assert_eq!(passed, 0, "packets of the old connection pass, of {}", late.len());
}
