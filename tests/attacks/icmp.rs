//! Forged ICMP errors about packets that the victim may have sent.

use std::net::Ipv4Addr;

use rdma_verbs::verbs::{Counter, Mtu, QueuePairState};

use super::Attack;
use super::forge::{Aim, IcmpError, RawSender};
use super::world::{End, Kind, exchange, pair, still_work};

pub(super) const ATTACKS: &[Attack] =
    &[("icmp/errors_end_and_change_nothing", |_| Kind::BOTH.into_iter().for_each(errors))];

const ROUNDS: usize = 100;
const ERRORS: [IcmpError; 5] = [
    IcmpError::FragmentationNeeded(68),
    IcmpError::FragmentationNeeded(0),
    IcmpError::FragmentationNeeded(576),
    IcmpError::PortUnreachable,
    IcmpError::HostUnreachable,
];

/// Returns the ports that a device sends from; an attacker tries all, the test looks them up.
fn ports_of(address: Ipv4Addr) -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/self/net/udp").expect("the sockets of the namespace");
    let wanted = format!("{:08X}:", u32::from_le_bytes(address.octets()));
    let local = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    let ports = local.filter_map(|local| local.strip_prefix(&wanted)).map(|port| u16::from_str_radix(port, 16));
    ports.map(|port| port.expect("a port")).filter(|port| *port != 4791).collect()
}

fn errors(kind: Kind) {
    let raw = RawSender::open();
    let (left, right): (End, End) = pair(kind, Mtu::Mtu4096);
    exchange(&left, &right);
    let ports = ports_of(left.address);
    assert!(!ports.is_empty(), "the device sends from some port");
    let before = left.counters();
    let mut count = 0;
    for _ in 0..ROUNDS {
        for port in &ports {
            let sent =
                Aim { source: left.address, destination: right.address, source_port: *port, qpn: right.qp.qpn() };
            let offending = sent.send(left.info().psn.plus(3), &[0; 256]);
            for error in ERRORS {
                raw.send_ip(left.address, &error.about(Ipv4Addr::new(127, 1, 1, 1), &offending));
                count += 1;
            }
        }
        exchange(&left, &right);
    }
    let since = left.counters().since(&before);
    println!("{kind:?}: {count} ICMP errors beside {ROUNDS} exchanges");
    let losses = [Counter::SendErrors, Counter::RetryExceeded].map(|counter| since.get(counter));
    assert_eq!(losses, [0; 2], "{kind:?}: sends refused, tries exceeded");
    assert_eq!(left.qp.state().expect("a state"), QueuePairState::ReadyToSend);
    still_work(kind, &left, &right);
}
