//! Requests far ahead of the expected PSN: not kept, no evidence of a gap, and no reason to retransmit.

use std::collections::VecDeque;
use std::time::Duration;

use rdma_verbs::types::{CompletionStatus, Counter, Data, DropReason, Mtu};

use super::Attack;
use super::lab::{HONEST, Lab, VICTIM};
use super::world::Kind;

pub(super) const ATTACKS: &[Attack] = &[
    ("ahead/of_a_standard_peer_is_not_kept", |_| not_kept(Kind::Standard)),
    ("ahead/of_a_native_peer_is_not_kept", |_| not_kept(Kind::Native)),
    ("ahead/makes_a_standard_peer_send_nothing_again", |_| no_storm(Kind::Standard)),
    ("ahead/makes_a_native_peer_send_nothing_again", |_| no_storm(Kind::Native)),
];

/// Leads beyond everything that a peer can have in flight.
const LEADS: [u32; 6] = [4_200, 10_000, 60_000, 60_001, 60_002, 65_535];
/// Leads beyond the window of a standard peer.
const STANDARD_LEADS: [u32; 4] = [65, 100, 500, 1_000];
const MESSAGES: u64 = 2_000;
const BATCH: u64 = 16;

fn leads(kind: Kind) -> Vec<u32> {
    let near: &[u32] = if kind == Kind::Standard { &STANDARD_LEADS } else { &[] };
    [near, &LEADS].concat()
}

/// Returns a lab whose victim has received a message of its peer.
fn lab_in_use(kind: Kind) -> Lab {
    let mut lab = Lab::new(kind, Mtu::Mtu1024, 0xa4ead);
    message(&mut lab, 0);
    lab
}

fn post(lab: &mut Lab, number: u64) {
    let offset = number % BATCH * 8;
    lab.post_receive(VICTIM, number, offset, 8);
    lab.post_send(HONEST, number, Data::Inline(&[&number.to_le_bytes()]));
}

/// Checks that all posted messages have arrived, in order and unchanged.
fn check(lab: &mut Lab, numbers: std::ops::Range<u64>) {
    let received = lab.completions(VICTIM);
    let came: Vec<u64> = received.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(came, numbers.clone().collect::<Vec<u64>>(), "the peer's messages arrive");
    assert!(received.iter().all(|completion| completion.status == CompletionStatus::Success));
    for number in numbers {
        assert_eq!(lab.bytes(VICTIM, number % BATCH * 8, 8), number.to_le_bytes());
    }
    lab.completions(HONEST);
}

fn message(lab: &mut Lab, number: u64) {
    post(lab, number);
    lab.carry();
    check(lab, number..number + 1);
}

/// Sends requests ahead of the expected PSN, which the forger knows.
fn throw_ahead(lab: &mut Lab, leads: &[u32], done: u32) {
    for lead in leads {
        let packet = lab.aim().send(lab.first_psns[HONEST].plus(done + lead), &[0xee; 64]);
        lab.forge(&packet);
    }
}

fn not_kept(kind: Kind) {
    let mut lab = lab_in_use(kind);
    let leads = leads(kind);
    throw_ahead(&mut lab, &leads, 1);
    lab.wait(Duration::from_millis(1));
    lab.lose_from(VICTIM);
    let count = |counter| lab.count(VICTIM, counter);
    assert_eq!(
        (count(Counter::ReorderedRequest), count(Counter::SentSequenceNak)),
        (0, 0),
        "packets kept and NAKs for {} packets far ahead",
        leads.len()
    );
    if kind == Kind::Standard {
        assert_eq!(lab.drops(VICTIM, DropReason::FarAhead), leads.len() as u64, "{:?}", lab.counters(VICTIM));
    }
    assert!(lab.counters(VICTIM).total_drops() >= leads.len() as u64, "the drops are counted");
    message(&mut lab, 1);
}

fn no_storm(kind: Kind) {
    let mut lab = lab_in_use(kind);
    throw_ahead(&mut lab, &LEADS, 1);
    for first in (1..MESSAGES).step_by(BATCH as usize) {
        (first..first + BATCH).for_each(|number| post(&mut lab, number));
        // Both directions are in flight at once: the victim's packets arrive while more are in flight.
        let mut on_the_way = VecDeque::from(lab.overheard_from(HONEST));
        while let Some(packet) = on_the_way.pop_front() {
            lab.deliver(&packet);
            lab.carry_from(VICTIM);
            on_the_way.extend(lab.overheard_from(HONEST));
            lab.wait(Duration::from_micros(1));
        }
        check(&mut lab, first..first + BATCH);
    }
    let naks = lab.count(VICTIM, Counter::SentSequenceNak);
    let again = lab.count(HONEST, Counter::RetransmittedPackets);
    println!("{naks} NAKs and {again} retransmissions for {MESSAGES} messages on links that lose nothing");
    assert!(naks <= 1 && again <= BATCH, "{naks} NAKs, {again} packets sent again for {MESSAGES} messages");
}
