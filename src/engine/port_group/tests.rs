//! Groups of sockets within one process.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Type};

use super::super::registry::Header;
use super::super::sys::{receive, wait_readable};
use super::order::{PROBE_BYTES, fill_gaps};
use super::*;

const PORT: u16 = 24_791;

fn bind(address: IpAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::new(address, PORT).into())?;
    Ok(socket)
}

fn join(address: IpAddr, blocks: &[u32]) -> Membership {
    let address = LocalAddress { ip: address, scope: 0 };
    let newcomer = Newcomer { address, blocks, capabilities: PeerCapabilities::STRANGER };
    Membership::join(newcomer, |_| bind(address.ip)).unwrap()
}

fn send_to_block(sender: &UdpSocket, address: IpAddr, block: u32) {
    let mut packet = [0u8; 16];
    packet[5..8].copy_from_slice(&(block << 12 | 0x123).to_be_bytes()[1..]);
    sender.send_to(&packet, (address, PORT)).unwrap();
}

/// Packets that arrived, but for the group's own.
fn received(member: &Membership) -> usize {
    let mut buffer = [0; 64];
    let _ = wait_readable([member.descriptor()], Some(Duration::from_millis(1)));
    let lengths = std::iter::from_fn(|| Some(receive(member.descriptor(), &mut buffer).unwrap()?.length));
    lengths.filter(|length| *length != PROBE_BYTES).count()
}

#[test]
fn members_get_their_blocks_also_after_another_has_left() {
    let address: IpAddr = "127.77.0.1".parse().unwrap();
    let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
    let mut members: Vec<Membership> = (0..4u32).map(|index| join(address, &[0x100 + index, 0x200 + index])).collect();
    let mut present = vec![0, 1, 2, 3];
    // The first leaves, then one in the middle, so that the kernel moves members around.
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
    let newcomer = Newcomer { address, blocks: &[1], capabilities: PeerCapabilities::STRANGER };
    let failed = Membership::join(newcomer, |known| {
        assert!(known.is_empty());
        Err::<Socket, io::Error>(io::ErrorKind::AddrInUse.into())
    });
    assert_eq!(failed.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    assert!(!process::state().unwrap().groups().contains_key(&address.ip));
}

#[test]
fn a_lost_order_is_found_out() {
    let address: IpAddr = "127.77.0.4".parse().unwrap();
    let sender = UdpSocket::bind("127.77.0.2:0").unwrap();
    let members: Vec<Membership> = (0..5u32).map(|index| join(address, &[0x300 + index])).collect();
    let file = members[0].file.clone().unwrap();
    // As after several members were killed at once.
    file.write_header(&Header::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| look(address));
        let end = Instant::now() + Duration::from_secs(5);
        while !file.header().is_settled {
            assert!(Instant::now() < end, "nobody found out the order");
            let groups = &members;
            groups.iter().for_each(answer_waiting);
        }
    });
    assert_eq!(file.header().order.len(), 5);
    members.iter().for_each(answer_waiting);
    (0..5).for_each(|block| send_to_block(&sender, address, 0x300 + block));
    assert_eq!(members.iter().map(received).collect::<Vec<_>>(), [1; 5]);
}

/// What a shard does with what arrives.
fn answer_waiting(member: &Membership) {
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
        };
        member.route(&datagram);
    }
}

#[test]
fn gaps_are_filled_with_the_silent() {
    let member = |slot| {
        let capabilities = PeerCapabilities::STRANGER;
        (
            slot,
            Member { process: 1, inode: 1, name: Name::default(), capabilities, key_share: None, blocks: Vec::new() },
        )
    };
    let members = [member(2), member(5), member(7)];
    assert_eq!(fill_gaps(&[None, Some(5), None], &members), [2, 5, 7]);
    assert_eq!(fill_gaps(&[Some(7), Some(2), Some(5)], &members), [7, 2, 5]);
}
