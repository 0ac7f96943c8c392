//! The memory that a peer can make a queue pair and a device hold, counted in bytes of this process's allocator.

use std::net::{IpAddr, Ipv4Addr};

use rdma_verbs::sim::{Connection, Host, Port};
use rdma_verbs::transport::{Datagram, Medium};
use rdma_verbs::types::{AccessFlags, Mtu, PeerCapabilities, Psn, Qpn, QueuePairCapabilities, Time};
use rdma_verbs::wire::Opcode;
use support::allocator::bytes;

use super::Attack;
use super::forge::Aim;

pub(super) const ATTACKS: &[Attack] = &[
    ("memory/oversize_packets_of_a_queue_pair", |_| queue_pair(60_000)),
    ("memory/packets_of_a_queue_pair", |_| queue_pair(256)),
    ("memory/packets_of_a_device", |_| device()),
];

/// Number of packets that a standard peer may have in flight.
const WINDOW: u32 = 64;
/// Maximum bytes of an entry and its bookkeeping besides the payload.
const OVERHEAD: isize = 256;
/// Maximum bytes that a device may hold for out-of-order packets of all its queue pairs.
const DEVICE_BYTES: isize = 64 << 20;
const QUEUE_PAIRS: usize = 1_000;
const VICTIM: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const FIRST: Psn = Psn::new(0x1000);

/// A host with queue pairs connected to a malicious standard peer that knows all PSNs.
struct Victim {
    host: Host,
    ports: Vec<Port>,
}

impl Victim {
    fn new(queue_pairs: usize, mtu: Mtu) -> Self {
        let mut host = Host::new(IpAddr::V4(VICTIM), 1);
        let cap = QueuePairCapabilities { max_send_wr: 1, max_recv_wr: 1, ..QueuePairCapabilities::default() };
        let ports: Vec<Port> = (0..queue_pairs).map(|_| host.create_queue_pair(cap)).collect();
        for port in &ports {
            let terms = Connection {
                peer_address: IpAddr::V4(PEER),
                peer_qpn: Qpn::new(0x77),
                peer: PeerCapabilities::STANDARD,
                path_mtu: mtu,
                sq_psn: FIRST,
                rq_psn: FIRST,
                access: AccessFlags::empty(),
                rd_atomic: 1,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
                key: None,
            };
            host.connect(Time::from_nanos(1), port.qpn, &terms);
        }
        Self { host, ports }
    }

    /// Returns the bytes that the victim holds in addition after packets of this length at these leads to each queue
    /// pair.
    fn bytes_held_after(&mut self, leads: &[u32], length: usize) -> isize {
        let mut buffer = Vec::with_capacity(1 << 16);
        let payload = vec![0xee; length];
        let aim = Aim { source: PEER, destination: VICTIM, source_port: 50_000, qpn: Qpn::new(0) };
        let mut packet = aim.request(Opcode::RC_SEND_FIRST, FIRST, &payload);
        let before = bytes();
        for port in &self.ports {
            packet.headers.bth.destination = port.qpn;
            for lead in leads {
                packet.headers.bth.psn = FIRST.plus(*lead);
                packet.write_udp_payload(&mut buffer);
                let datagram = Datagram {
                    source: IpAddr::V4(PEER),
                    destination: IpAddr::V4(VICTIM),
                    source_port: packet.source_port,
                    segment_index: 0,
                    hop_limit: None,
                    traffic_class: None,
                    payload: &buffer,
                    medium: Medium::Network,
                };
                let now = Time::from_nanos(2);
                self.host.endpoint.handle_datagram(now, &self.host.memory.read(), &datagram);
            }
        }
        bytes() - before
    }
}

/// Returns leads within the window, then far beyond it.
fn all_leads() -> Vec<u32> {
    (1..WINDOW).chain((1..WINDOW * 2).map(|step| WINDOW + step * 500)).collect()
}

fn queue_pair(length: usize) {
    let mtu = Mtu::Mtu256;
    let held = Victim::new(1, mtu).bytes_held_after(&all_leads(), length);
    println!("a peer makes a queue pair of MTU 256 hold {held} bytes with packets of {length}");
    let bound = WINDOW as isize * (mtu.bytes() as isize + OVERHEAD);
    assert!(held <= bound, "{held} bytes; {WINDOW} packets of the MTU are {bound} with their bookkeeping");
}

fn device() {
    let held = Victim::new(QUEUE_PAIRS, Mtu::Mtu4096).bytes_held_after(&all_leads(), 4_096);
    println!("a peer makes {QUEUE_PAIRS} queue pairs of MTU 4096 hold {held} bytes");
    assert!(held <= DEVICE_BYTES, "{held} bytes for {QUEUE_PAIRS} queue pairs; at most {DEVICE_BYTES} a device");
}
