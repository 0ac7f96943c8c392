//! Spoofed packets, garbage and oversize packets: each is dropped for its reason, and the connection continues.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::sim::Random;
use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::verbs::{Counter, DropReason, Mtu};
use rdma_verbs::wire::Opcode;
use support::allocator::bytes;

use super::forge::{Aim, Forgery, RawSender};
use super::world::{End, Kind, exchange, pair, still_work};
use super::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("flood/drops_have_names", |_| Kind::BOTH.into_iter().for_each(names)),
    ("flood/beside_a_standard_connection", |form| beside(Kind::Standard, form)),
    ("flood/beside_a_native_connection", |form| beside(Kind::Native, form)),
    ("flood/oversize_packets_are_not_kept", |_| Kind::BOTH.into_iter().for_each(oversize)),
];

/// More than one poll receives, fewer than a socket holds.
const BURST: u64 = 32;
const EACH: u64 = 500;
/// Longest wait for arrived packets to be counted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns packets that are wrong in one respect each, with the reasons for which they are dropped.
fn wrong_packets(aim: &Aim, psn: Psn) -> Vec<(DropReason, Vec<u8>, Forgery)> {
    let good = aim.send(psn, b"a message of the peer, nearly");
    let valid = good.udp_payload();
    let changed = |change: &dyn Fn(&mut Forgery)| {
        let mut packet = good.clone();
        change(&mut packet);
        (packet.udp_payload(), packet)
    };
    let cut = |length: usize| (valid[..length].to_vec(), good.clone());
    let mut version = valid.clone();
    version[1] |= 3;
    let mut opcode = valid.clone();
    opcode[0] = 0x1f;
    let with = |reason, (bytes, packet)| (reason, bytes, packet);
    vec![
        with(DropReason::WrongAddress, changed(&|packet| packet.source = Ipv4Addr::new(127, 200, 0, 1))),
        with(DropReason::UnknownQueuePair, changed(&|packet| packet.headers.bth.destination = other(aim.qpn))),
        with(DropReason::BadPkey, changed(&|packet| packet.headers.bth.pkey = 0x1234)),
        with(DropReason::WrongService, changed(&|packet| packet.headers.bth.opcode = Opcode::UC_SEND_ONLY)),
        with(DropReason::BadVersion, (version, good.clone())),
        with(DropReason::UnknownOpcode, (opcode, good.clone())),
        with(DropReason::Truncated, cut(11)),
        with(DropReason::Truncated, cut(0)),
        with(DropReason::BadLength, cut(18)),
    ]
}

/// Returns another queue pair number of the same block.
fn other(qpn: Qpn) -> Qpn {
    Qpn::new(qpn.value() ^ 0x555)
}

fn names(kind: Kind) {
    let raw = RawSender::open();
    let (left, right) = pair(kind, Mtu::Mtu1024);
    exchange(&left, &right);
    // PSNs beyond those of the exchange: those of packets to come.
    let psn = right.info().psn.plus(100);
    for (reason, payload, packet) in wrong_packets(&left.aim(right.address, 50_123), psn) {
        let before = left.counters();
        for count in 1..=EACH {
            raw.send_as(&packet, &payload);
            if count % BURST == 0 {
                left.drive();
            }
        }
        // Another thread may have polled the sockets, so some packets may still wait.
        let patience = Instant::now() + PATIENCE;
        while left.counters().since(&before).total_drops() < EACH && Instant::now() < patience {
            left.drive();
        }
        left.drive();
        let since = left.counters().since(&before);
        assert_eq!((since.get_drop(reason), since.total_drops()), (EACH, EACH), "{kind:?}: {reason:?}");
        assert_eq!(since.get(Counter::SentPackets), 0, "{kind:?}: {reason:?} has a response");
    }
    still_work(kind, &left, &right);
}

/// Returns one of the wrong packets, or random bytes.
fn garbage(random: &mut Random, aim: &Aim, wrong: &[(DropReason, Vec<u8>, Forgery)], raw: &RawSender) {
    match random.below(4) {
        0 => {
            let bytes: Vec<u8> = (0..random.below(300)).map(|_| random.number() as u8).collect();
            raw.send_as(&wrong[0].2, &bytes);
        }
        1 => {
            let mut packet = aim.send(Psn::new(random.number() as u32 & 0xff_ffff), b"garbage");
            (packet.check_xor, packet.identification) = (random.number() as u32 | 1, random.number() as u16);
            packet.dont_fragment = random.chance(500);
            raw.send(&packet);
        }
        _ => {
            let (_, bytes, packet) = &wrong[random.below(wrong.len() as u64) as usize];
            raw.send_as(packet, bytes);
        }
    }
}

fn beside(kind: Kind, form: Form) {
    let (left, right) = pair(kind, Mtu::Mtu1024);
    exchange(&left, &right);
    // Not aimed at PSNs that may become plausible: then only the ICRC of a standard peer protects; 1 in 85,000 random
    // values is right.
    let aim = Aim { qpn: other(left.qp.qpn()), ..left.aim(right.address, 50_123) };
    let wrong = wrong_packets(&left.aim(right.address, 50_123), right.info().psn.minus(0x10_0000));
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = thread::scope(|scope| {
        scope.spawn(|| {
            let (raw, mut random) = (RawSender::open(), Random::new(0xf100d));
            while sent.load(Ordering::Relaxed) < form.tries(60_000, 3_000_000) {
                garbage(&mut random, &aim, &wrong, &raw);
                sent.fetch_add(1, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let mut rounds = 0;
        while !stop.load(Ordering::Relaxed) {
            exchange(&left, &right);
            rounds += 1;
        }
        rounds
    });
    left.drive();
    let counters = left.counters();
    let (drops, overflow) = (counters.total_drops(), counters.get(Counter::SocketOverflow));
    println!("{kind:?}: {sent:?} packets of garbage beside {rounds} exchanges; {drops} dropped, {overflow} overflowed");
    assert!(rounds > 0 && drops > 0);
    still_work(kind, &left, &right);
}

fn oversize(kind: Kind) {
    let raw = RawSender::open();
    let (left, right): (End, End) = pair(kind, Mtu::Mtu256);
    exchange(&left, &right);
    let before = (bytes(), left.counters());
    let aim = left.aim(right.address, 50_123);
    let mut count = 0;
    for length in [260, 1_024, 4_100, 9_000, 65_000] {
        for step in 0..40 {
            // Far ahead of all packets in flight.
            raw.send(&aim.send(right.info().psn.plus(20_000 + count * 7 + step), &vec![0xee; length]));
            count += 1;
            left.drive();
        }
    }
    let (held, since) = (bytes() - before.0, left.counters().since(&before.1));
    println!("{kind:?}: {held} bytes held after {count} oversize packets");
    assert_eq!(since.get(Counter::ReorderedRequest), 0, "{kind:?}: oversize packets are kept: {held} bytes");
    assert!(held < 64 << 10, "{held} bytes");
    still_work(kind, &left, &right);
}
