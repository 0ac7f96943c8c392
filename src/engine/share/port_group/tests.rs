//! Groups of sockets within one process.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Type};

use super::super::registry::Header;
use super::order::{PROBE_BYTES, fill_gaps};
use super::*;
use crate::sys::{receive, wait_readable};
use crate::transport::Medium;

const PORT: u16 = 24_791;

fn bind(address: IpAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::new(address, PORT).into())?;
    Ok(socket)
}

fn join(address: IpAddr, blocks: &[u32]) -> Membership {
    let address = LocalAddress { ip: address, scope: 0 };
    let request = JoinRequest { address, blocks, capabilities: PeerCapabilities::STANDARD, recipient: None };
    Membership::join(request, || bind(address.ip), |_, _| Ok::<_, io::Error>(())).unwrap()
}

fn send_to_block(sender: &UdpSocket, address: IpAddr, block: u32) {
    let mut packet = [0u8; 16];
    packet[5..8].copy_from_slice(&(block << 12 | 0x123).to_be_bytes()[1..]);
    sender.send_to(&packet, (address, PORT)).unwrap();
}

/// Returns the number of packets that arrived, without probes.
fn received(member: &Membership) -> usize {
    let mut buffer = [0; 64];
    let _ = wait_readable([member.descriptor()], Some(Duration::from_millis(1)));
    let lengths = std::iter::from_fn(|| Some(receive(member.descriptor(), &mut buffer).unwrap()?.length));
    lengths.filter(|length| *length != PROBE_BYTES).count()
}

#[test]
fn members_get_their_blocks_after_another_has_left() {
    let address: IpAddr = "127.77.0.1".parse().unwrap();
    let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
    let mut members: Vec<Membership> = (0..4u32).map(|index| join(address, &[0x100 + index, 0x200 + index])).collect();
    let mut present = vec![0, 1, 2, 3];
    // The first leaves, then one in the middle, so that the kernel moves members.
    for leaver in [None, Some(0), Some(1)] {
        if let Some(index) = leaver {
            drop(members.remove(index));
            present.remove(index);
        }
        for block in &present {
            (0..10).for_each(|_| send_to_block(&sender, address, 0x100 + block));
            send_to_block(&sender, address, 0x200 + block);
        }
        let counts: Vec<usize> = members.iter().map(received).collect();
        assert!(counts.iter().all(|count| *count == 11), "after {leaver:?}: {counts:?}");
    }
}

#[test]
fn failed_binding_leaves_no_trace() {
    let address = LocalAddress { ip: "127.77.0.3".parse().unwrap(), scope: 0 };
    let request = JoinRequest { address, blocks: &[1], capabilities: PeerCapabilities::STANDARD, recipient: None };
    let taken = || Err::<Socket, io::Error>(io::ErrorKind::AddrInUse.into());
    let failed = Membership::join(request, taken, |_, _| unreachable!("there is no socket"));
    assert_eq!(failed.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    assert!(!groups().unwrap().contains_key(&address.ip));
}

#[test]
fn socket_is_known_to_others_while_it_is_checked_and_forgotten_if_it_fails() {
    let address = LocalAddress { ip: "127.77.0.11".parse().unwrap(), scope: 0 };
    let first = join(address.ip, &[0x400]);
    let file = first.file.clone().unwrap();
    let request = JoinRequest { address, blocks: &[0x401], capabilities: PeerCapabilities::STANDARD, recipient: None };
    let refuse = |socket: &Socket, known: &dyn Fn() -> Vec<u64>| {
        let own = inode(socket.as_fd()).unwrap();
        assert!(known().contains(&own) && known().len() == 2, "its entry is there before the check");
        // Another process that joins at the same time, and becomes known during the check.
        let entry = |inode| Member { inode, ..file.members(&[first.slot])[0].1.clone() };
        file.write_member(first.slot, &entry(77)).unwrap();
        assert!(known().contains(&77), "entries are read again");
        Err(io::Error::from(io::ErrorKind::AddrInUse))
    };
    assert!(Membership::join(request, || bind(address.ip), refuse).is_err());
    assert_eq!(file.members(&[first.slot]).len(), 1);
}

#[test]
fn a_group_that_waits_for_another_process_delays_no_other_group() {
    let [busy, other]: [IpAddr; 2] = ["127.77.0.12", "127.77.0.13"].map(|address| address.parse().unwrap());
    // As if another process were stopped in the middle of a change.
    let file = Registry::of_process().unwrap().address(busy).unwrap();
    let change = file.change().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| join(busy, &[0x600]));
        std::thread::sleep(Duration::from_millis(100));
        let joined = join(other, &[0x601]);
        assert_eq!(registered_peer(other, 0x60_1123).map(|peer| peer.capabilities), Some(PeerCapabilities::STANDARD));
        drop(joined);
        assert!(!waiting.is_finished(), "the other group's member had to wait, too");
        drop(change);
        waiting.join().unwrap();
    });
    // The mailbox's thread may still check them.
    let end = Instant::now() + Duration::from_secs(5);
    while GroupRef::find(busy).is_some() || GroupRef::find(other).is_some() {
        assert!(Instant::now() < end, "a group without members is not removed");
        std::thread::yield_now();
    }
}

#[test]
fn a_group_that_is_checked_delays_no_search_for_its_members() {
    let address: IpAddr = "127.77.0.14".parse().unwrap();
    let joined = join(address, &[0x700]);
    let group = GroupRef::find(address).unwrap();
    // As while other processes on the address are stopped and do not answer.
    let checked = group.lock();
    let (sender, found) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let capabilities = |block: u32| registered_peer(address, block << 12).map(|peer| peer.capabilities);
            sender.send([0x700, 0x701].map(capabilities)).unwrap();
        });
        let found = found.recv_timeout(Duration::from_secs(10));
        drop(checked);
        assert_eq!(found, Ok([Some(PeerCapabilities::STANDARD), None]));
    });
    drop(joined);
}

#[test]
fn lost_order_is_determined_with_probes() {
    let address: IpAddr = "127.77.0.4".parse().unwrap();
    let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
    let members: Vec<Membership> = (0..5u32).map(|index| join(address, &[0x300 + index])).collect();
    let file = members[0].file.clone().unwrap();
    // As after several members were killed at once.
    file.write_header(&Header::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| check_group(address));
        let end = Instant::now() + Duration::from_secs(5);
        while !file.header().is_settled {
            assert!(Instant::now() < end, "the order was not found");
            let groups = &members;
            groups.iter().for_each(handle_waiting);
        }
    });
    assert_eq!(file.header().order.len(), 5);
    members.iter().for_each(handle_waiting);
    (0..5).for_each(|block| send_to_block(&sender, address, 0x300 + block));
    assert_eq!(members.iter().map(received).collect::<Vec<_>>(), [1; 5]);
}

/// A packet that arrives at the wrong process reveals a wrong order, whatever its cause.
#[test]
fn misdirected_packet_makes_the_group_determine_its_order() {
    let address: IpAddr = "127.77.0.6".parse().unwrap();
    let members = [join(address, &[0x500]), join(address, &[0x501])];
    let file = members[0].file.clone().unwrap();
    let right = file.header();
    let wrong = Header { order: right.order.iter().rev().copied().collect(), ..right.clone() };
    file.write_header(&wrong).unwrap();
    check_group(address);
    assert_eq!(file.header().order, wrong.order, "nothing shows it");
    // Late answers would reveal it, too.
    assert_eq!(members.each_ref().map(received), [0, 0]);
    let mut packet = [0; 16];
    packet[5..8].copy_from_slice(&0x50_1123_u32.to_be_bytes()[1..]);
    members[0].route(&Datagram {
        source: address,
        destination: address,
        source_port: 1,
        segment_index: 0,
        hop_limit: None,
        traffic_class: None,
        payload: &packet,
        medium: Medium::Network,
    });
    let end = Instant::now() + Duration::from_secs(5);
    while file.header().order != right.order {
        assert!(Instant::now() < end, "the order was not found");
        members.iter().for_each(handle_waiting);
    }
}

/// The other members have not noticed yet, and the new member gets the slot of the killed one.
#[test]
fn new_member_in_the_slot_of_a_killed_one_is_found() {
    let address: IpAddr = "127.77.0.5".parse().unwrap();
    let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
    let (mut killed, other) = (join(address, &[0x400]), join(address, &[0x401]));
    GroupRef::find(address).unwrap().lock().members.remove(0);
    drop(killed.socket.take());
    let file = other.file.clone().unwrap();
    file.release(killed.slot);
    let joined = join(address, &[0x402]);
    assert_eq!(joined.slot, killed.slot);
    assert_eq!(file.header().order, [other.slot, joined.slot]);
    [0x401, 0x402].iter().for_each(|block| send_to_block(&sender, address, *block));
    assert_eq!([&other, &joined].map(received), [1, 1]);
}

/// Handles the packets of a socket like a shard.
fn handle_waiting(member: &Membership) {
    let mut buffer = [0; 256];
    while let Some(received) = receive(member.descriptor(), &mut buffer).unwrap() {
        let datagram = Datagram {
            source: received.source.ip(),
            destination: member.address,
            source_port: received.source.port(),
            segment_index: 0,
            hop_limit: None,
            traffic_class: None,
            payload: &buffer[..received.length],
            medium: Medium::Network,
        };
        member.route(&datagram);
    }
}

#[test]
fn members_that_do_not_answer_fill_the_gaps() {
    assert_eq!(fill_gaps(&[None, Some(5), None], &[2, 5, 7]), [2, 5, 7]);
    assert_eq!(fill_gaps(&[None, Some(5), None], &[7, 5, 2]), [7, 5, 2]);
    assert_eq!(fill_gaps(&[Some(7), Some(2), Some(5)], &[2, 5, 7]), [7, 2, 5]);
}

/// Each listener that has begun since the last check gets another one.
#[test]
fn each_unknown_listener_is_missed_once() {
    let routes = Routes::new("127.77.0.14".parse().unwrap(), None);
    assert!(!routes.is_known_elsewhere(1) && !routes.is_known_elsewhere(1), "no check has ended");
    routes.replace(&[]);
    assert!(routes.is_known_elsewhere(1));
    assert!(!routes.is_known_elsewhere(2), "this one may have begun after the check");
    routes.replace(&[]);
    assert!(routes.is_known_elsewhere(1) && routes.is_known_elsewhere(2));
}
