//! Any sequence of verbs and packets: the endpoint never panics, and completes no request that was not posted.
//!
//! The input is a list of steps. Some post requests with arbitrary addresses, keys and lengths, some change the state,
//! some deliver a packet with an arbitrary header and a valid ICRC, as a hostile peer would send it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdma_verbs::memory::Backing;
use rdma_verbs::sim::{Connection, Faults, Host, Network, Port};
use rdma_verbs::transport::{Datagram, Medium};
use rdma_verbs::types::{
    AccessFlags, Data, DomainId, Lkey, Mtu, Operation, PeerCapabilities, Psn, QueuePairCapabilities, QueuePairState,
    QueuePairType, ReceiveRequest, Rkey, SendFlags, SendRequest, Sge,
};
use rdma_verbs::wire::{Flow, Opcode, Service, icrc};

const FIRST: Psn = Psn::new(0xff_fff8);
const BASE: u64 = 0x1000;
const LARGEST_INPUT: usize = 4096;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn connect(network: &mut Network, ports: &[Port; 2]) {
    for at in 0..2 {
        let terms = Connection {
            peer_address: address(2 - at as u8),
            peer_qpn: ports[1 - at].qpn,
            peer: PeerCapabilities::STANDARD,
            key: None,
            path_mtu: Mtu::Mtu256,
            sq_psn: FIRST,
            rq_psn: FIRST,
            access: AccessFlags::REMOTE,
            rd_atomic: 2,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 2,
            min_rnr_timer: 1,
        };
        network.hosts[at].connect(network.now, ports[at].qpn, &terms);
    }
}

fn post(network: &mut Network, service: QueuePairType, port: &Port, input: &mut Input<'_>, key: u32) {
    let (kind, small) = (input.byte(), input.byte());
    let remote_addr = BASE + u64::from(input.byte()) * 8;
    let rkey = Rkey(if small & 1 == 0 { key } else { small.into() });
    let operation = match kind % 6 {
        0 => Operation::Send,
        1 => Operation::SendWithInvalidate(rkey),
        2 => Operation::Write { remote_addr, rkey },
        3 => Operation::WriteWithImmediate { remote_addr, rkey, immediate: 1 },
        4 => Operation::Read { remote_addr, rkey },
        _ => Operation::FetchAndAdd { remote_addr, rkey, add: 1 },
    };
    let length = if kind % 6 == 5 { 8 } else { u32::from(input.byte()) * 8 };
    let sges = [Sge { addr: BASE + u64::from(small), length, lkey: Lkey(if small & 2 == 0 { key } else { 5 }) }];
    let flags = SendFlags::from_bits_truncate(input.byte().into());
    let request = SendRequest { wr_id: 1, operation, flags, data: Data::Sges(&sges) };
    let now = network.now;
    if operation.is_possible_on(service) {
        network.hosts[0].post_send(now, port, &request);
    }
    let receive = ReceiveRequest { wr_id: 2, sges: &sges };
    network.hosts[1].post_receive(now, port, &receive);
}

/// Delivers a packet of host 0 to host 1 with arbitrary contents and a valid ICRC.
fn inject(network: &mut Network, service: QueuePairType, to: &Port, input: &mut Input<'_>) {
    let length = usize::from(input.byte() % 90) * 4 + 16;
    let mut packet = input.take(length);
    packet.resize(length, 0);
    if service == QueuePairType::UnreliableConnection {
        packet[0] = Opcode(packet[0]).of(Service::UnreliableConnection).0;
    }
    packet[1] &= 0xf0;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[4..8].copy_from_slice(&to.qpn.value().to_be_bytes());
    let psn = FIRST.plus(packet[11].into()).minus(64);
    packet[8..12].copy_from_slice(&psn.value().to_be_bytes());
    let flow = Flow { source: address(1), destination: address(2), source_port: 50_000 };
    icrc::append(&flow, 0, &mut packet);
    let now = network.now;
    let host = &mut network.hosts[1];
    let datagram = Datagram {
        source: flow.source,
        destination: flow.destination,
        source_port: flow.source_port,
        segment_index: 0,
        hop_limit: None,
        traffic_class: None,
        payload: &packet,
        medium: Medium::Network,
    };
    host.endpoint.handle_datagram(now, &host.memory.read(), &datagram);
}

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    run_as(QueuePairType::ReliableConnection, bytes);
    run_as(QueuePairType::UnreliableConnection, bytes);
}

fn run_as(service: QueuePairType, bytes: &[u8]) {
    let mut input = Input(&bytes[..bytes.len().min(LARGEST_INPUT)]);
    let hosts = vec![Host::new(address(1), 1), Host::new(address(2), 2)];
    let faults = Faults { loss: input.byte().into(), delay: Duration::from_micros(1), ..Faults::default() };
    let mut network = Network::new(hosts, vec![faults.clone(), faults], 7);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let cap = QueuePairCapabilities { max_send_wr: 8, max_recv_wr: 8, ..QueuePairCapabilities::default() };
    let mut keys = [0; 2];
    let ports = [0, 1].map(|at| {
        let backing = Backing::from_vec(vec![0; 4096]);
        let region = network.hosts[at].memory.register(DomainId(1), backing, Some(BASE), access).unwrap();
        keys[at] = region.lkey().0;
        network.hosts[at].create_queue_pair_of(service, cap)
    });
    connect(&mut network, &ports);
    let mut completions = Vec::new();
    while !input.0.is_empty() {
        match input.byte() % 6 {
            0 | 1 => post(&mut network, service, &ports[0], &mut input, keys[0]),
            2 | 3 => inject(&mut network, service, &ports[1], &mut input),
            4 => network.step(Duration::from_millis(1)),
            _ if input.byte() == 0 => {
                for (host, port) in network.hosts.iter_mut().zip(&ports) {
                    host.go_to(network.now, port.qpn, QueuePairState::Reset);
                }
                connect(&mut network, &ports);
            }
            _ => network.step(Duration::from_micros(10)),
        }
        ports.iter().for_each(|port| port.poll(&mut completions));
        assert!(completions.iter().all(|completion| matches!(completion.wr_id, 1 | 2)));
        completions.clear();
    }
}
