//! Messages of another user to the sockets through which processes of one user forward packets: the sockets are in a
//! folder that other users cannot enter.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::thread;

use rdma_verbs::sim::Random;
use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::verbs::{Counter, Mtu};
use rdma_verbs::wire::mad::Message;

use super::connections::Forger;
use super::forge::{Aim, Forgery};
use super::world::{Kind, exchange, pair, still_work};
use super::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[("inbox/messages_of_another_user_are_refused", messages)];

/// A user that even 16 bits represent: `SYS_setresuid` is a call with 16-bit numbers on i386 and arm.
const OTHER_USER: libc::uid_t = 65_534;
const HEADER_BYTES: usize = 40;
const VERSION: u8 = 1;
const KINDS: [u8; 3] = [1, 2, 8];

/// Changes the user of the calling thread, and of no other, permanently.
fn become_other_user() {
    // SAFETY: takes numbers only. The raw system call, unlike the library's function, changes this thread alone.
    let outcome = unsafe { libc::syscall(libc::SYS_setresuid, OTHER_USER, OTHER_USER, OTHER_USER) };
    assert_eq!(outcome, 0, "setresuid: {}", std::io::Error::last_os_error());
}

/// Returns the inboxes of the namespace, which are sockets in the user's folder.
pub(super) fn inboxes() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/net/unix").expect("the sockets of the namespace");
    let paths = table.lines().filter_map(|line| line.split_whitespace().nth(7));
    // The table has the names to which the sockets were bound; each was renamed once it worked.
    let inboxes = paths.filter(|path| path.contains("/rdma-verbs") && path.contains("/new-inbox-"));
    inboxes.map(|path| path.replace("/new-inbox-", "/inbox-")).collect()
}

/// Returns a packet as one process forwards it to another.
fn passed_on(aim: &Aim, psn: Psn) -> Vec<u8> {
    forwarded(KINDS[1], 0, &aim.send(psn, b"passed on by another user"))
}

/// Returns a message with a packet: of kind 8 for the shard with this block, if it is one to queue pair 1.
pub(super) fn forwarded(kind: u8, block: u16, packet: &Forgery) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    (message[0], message[1]) = (VERSION, kind);
    message[4..6].copy_from_slice(&packet.source_port.to_le_bytes());
    message[6..8].copy_from_slice(&block.to_le_bytes());
    message[8..24].copy_from_slice(&packet.source.to_ipv6_mapped().octets());
    message[24..40].copy_from_slice(&packet.destination.to_ipv6_mapped().octets());
    message.extend_from_slice(&packet.udp_payload());
    message
}

pub(super) fn random_message(random: &mut Random, valid: &[u8]) -> Vec<u8> {
    let mut message = match random.below(3) {
        0 => (0..random.below(9_000)).map(|_| random.number() as u8).collect(),
        1 => valid.to_vec(),
        _ => vec![random.number() as u8; random.below(100) as usize],
    };
    if let Some(start) = message.get_mut(..2) {
        start.copy_from_slice(&[VERSION, random.choose(&KINDS)]);
    }
    for _ in 0..random.below(4) {
        let length = message.len() as u64;
        if length > 2 {
            message[random.between(2, length - 1) as usize] ^= random.number() as u8;
        }
    }
    message
}

fn messages(form: Form) {
    let tries = form.tries(3_000, 300_000);
    let (left, right) = pair(Kind::Standard, Mtu::Mtu1024);
    exchange(&left, &right);
    let inboxes = inboxes();
    assert!(!inboxes.is_empty(), "the device has an inbox");
    // The forger even has the next PSN of an end that has sent nothing but the exchange.
    let aim = left.aim(right.address, 50_123);
    let valid: Vec<Vec<u8>> = (0..64).map(|number| passed_on(&aim, right.info().psn.plus(number))).collect();
    let elsewhere = passed_on(&Aim { qpn: Qpn::new(left.qp.qpn().value() ^ 1), ..aim }, Psn::new(0));
    // A request to queue pair 1 for the device's shard: the block of its queue pair numbers.
    let management = Forger::new(left.address, right.address);
    let request = management.packet(right.address, &Message::from(management.request(7, 7)).to_mad(7).write());
    let request = forwarded(KINDS[2], (left.qp.qpn().value() >> 12) as u16, &request);
    let before = left.qp.counters();
    let (sent, refused) = thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            become_other_user();
            let socket = UnixDatagram::unbound().expect("a socket");
            let mut random = Random::new(0x1b0c5);
            let (mut sent, mut refused) = (0, 0);
            for number in 0..tries as usize {
                let message = match number % 5 {
                    0 | 1 => random_message(&mut random, &valid[number % valid.len()]),
                    2 => valid[number % valid.len()].clone(),
                    3 => request.clone(),
                    _ => elsewhere.clone(),
                };
                for path in &inboxes {
                    match socket.send_to(&message, path) {
                        Ok(_) => sent += 1,
                        Err(error) => refused += u32::from(error.kind() == ErrorKind::PermissionDenied),
                    }
                }
            }
            (sent, refused)
        });
        attacker.join().expect("the other user's thread")
    });
    left.drive();
    let since = left.qp.counters().since(&before);
    println!("{refused} messages of user {OTHER_USER} to {} inboxes are refused", inboxes.len());
    assert_eq!((sent, u64::from(refused)), (0, tries * inboxes.len() as u64));
    let effects = [since.get(Counter::ReceivedPackets), since.total_drops()];
    assert_eq!(effects, [0; 2], "packets of another user that reach the queue pair, or are dropped by it");
    still_work(Kind::Standard, &left, &right);
}
