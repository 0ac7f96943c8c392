//! Two endpoints of one process without a network between them, so that a forger reaches the victim a million times a
//! second. The forger sees no traffic; the other endpoint is the honest peer.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::sim::{Connection, Host, Port, Random};
use rdma_verbs::transport::{AckRelease, Datagram, DatagramOutcome, Medium};
use rdma_verbs::types::{
    AccessFlags, Counter, Counters, Data, DomainId, DropReason, KeyShare, Mtu, Operation, PeerCapabilities, PeerKey,
    Psn, QueuePairCapabilities, QueuePairState, RawCompletion, ReceiveRequest, SendFlags, SendRequest, Sge, Time,
};

use super::forge::{Aim, Forgery};
use super::world::Kind;

pub(crate) const VICTIM: usize = 0;
pub(crate) const HONEST: usize = 1;
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
pub(crate) const BASE: u64 = 0x1000_0000;
pub(crate) const REGION_BYTES: u64 = 1 << 20;
/// Number of receives that a queue pair has posted.
pub(crate) const DEPTH: u32 = 256;
const ACCESS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);
const NATIVE: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(8 << 20);

/// A packet as it was on the wire.
pub(crate) struct Overheard {
    to: usize,
    source_port: u16,
    segment_index: u16,
    bytes: Vec<u8>,
}

/// A victim and its honest peer.
pub(crate) struct Lab {
    pub(crate) now: Time,
    pub(crate) hosts: [Host; 2],
    pub(crate) ports: [Port; 2],
    pub(crate) regions: [Arc<Region>; 2],
    /// The first PSNs of both ends of the current connection.
    pub(crate) first_psns: [Psn; 2],
    pub(crate) random: Random,
    /// The key shares of native peers; like a device's, they are the same for all connections.
    shares: [KeyShare; 2],
    kind: Kind,
    mtu: Mtu,
    buffer: Vec<u8>,
    forged: Vec<u8>,
}

impl Lab {
    pub(crate) fn new(kind: Kind, mtu: Mtu, seed: u64) -> Self {
        let mut hosts = ADDRESSES.map(|address| Host::new(IpAddr::V4(address), seed ^ u64::from(address.octets()[3])));
        let cap = QueuePairCapabilities {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_inline_data: 64,
            ..QueuePairCapabilities::default()
        };
        let regions = hosts.each_ref().map(|host| {
            let bytes = Backing::from_vec(vec![0; REGION_BYTES as usize]);
            host.memory.register(DomainId(1), bytes, Some(BASE), ACCESS).expect("room for a region")
        });
        let ports = hosts.each_mut().map(|host| host.create_queue_pair(cap));
        let random = Random::new(seed);
        let shares = [0x11, 0x22].map(|byte| KeyShare::new([byte; KeyShare::BYTES]));
        let (first_psns, now) = ([Psn::default(); 2], Time::from_nanos(1));
        let (buffer, forged) = (vec![0; 65_536], Vec::new());
        let mut lab = Self { now, hosts, ports, regions, first_psns, random, shares, kind, mtu, buffer, forged };
        lab.connect();
        lab
    }

    /// Makes the connection, or makes it again with other PSNs.
    pub(crate) fn connect(&mut self) {
        let psns = [VICTIM, HONEST].map(|_| Psn::new(self.random.number() as u32 & 0xff_ffff));
        self.connect_at(psns);
    }

    /// Makes the connection with these PSNs.
    pub(crate) fn connect_at(&mut self, first_psns: [Psn; 2]) {
        self.first_psns = first_psns;
        for at in [VICTIM, HONEST] {
            if self.state(at) != QueuePairState::Reset {
                self.hosts[at].go_to(self.now, self.ports[at].qpn, QueuePairState::Reset);
            }
        }
        for at in [VICTIM, HONEST] {
            let terms = self.terms(at);
            self.hosts[at].connect(self.now, self.ports[at].qpn, &terms);
        }
    }

    fn terms(&self, at: usize) -> Connection {
        let peer = 1 - at;
        Connection {
            peer_address: IpAddr::V4(ADDRESSES[peer]),
            peer_qpn: self.ports[peer].qpn,
            peer: match self.kind {
                Kind::Standard => PeerCapabilities::STANDARD,
                Kind::Native => NATIVE,
            },
            path_mtu: self.mtu,
            sq_psn: self.first_psns[at],
            rq_psn: self.first_psns[peer],
            access: ACCESS,
            rd_atomic: 16,
            timeout: 20,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            key: (self.kind == Kind::Native).then_some(PeerKey {
                local: self.shares[at],
                remote: self.shares[peer],
                is_agreed: true,
            }),
        }
    }

    pub(crate) fn state(&self, at: usize) -> QueuePairState {
        self.hosts[at].endpoint.queue_pair_state(self.ports[at].qpn).expect("a queue pair")
    }

    /// Returns the queue pair's counters.
    pub(crate) fn counters(&self, at: usize) -> Counters {
        self.hosts[at].endpoint.queue_pair_counters(self.ports[at].qpn).expect("a queue pair").clone()
    }

    pub(crate) fn count(&self, at: usize, counter: Counter) -> u64 {
        self.counters(at).get(counter)
    }

    pub(crate) fn drops(&self, at: usize, reason: DropReason) -> u64 {
        self.counters(at).get_drop(reason)
    }

    /// Returns the number of packets that a host has in flight to the other.
    pub(crate) fn in_flight(&self, from: usize) -> u32 {
        self.hosts[from].endpoint.packets_in_flight(IpAddr::V4(ADDRESSES[1 - from]))
    }

    /// Returns the aim of a forger who knows everything but PSNs and secrets.
    pub(crate) fn aim(&self) -> Aim {
        Aim {
            source: ADDRESSES[HONEST],
            destination: ADDRESSES[VICTIM],
            source_port: Host::source_port(),
            qpn: self.ports[VICTIM].qpn,
        }
    }

    /// Delivers a forged packet to the victim.
    pub(crate) fn forge(&mut self, packet: &Forgery) -> DatagramOutcome {
        let mut bytes = std::mem::take(&mut self.forged);
        packet.write_udp_payload(&mut bytes);
        let outcome = self.deliver_forged(packet, &bytes);
        self.forged = bytes;
        outcome
    }

    /// Delivers a forged packet with another UDP payload than its own.
    pub(crate) fn deliver_forged(&mut self, packet: &Forgery, udp_payload: &[u8]) -> DatagramOutcome {
        let victim = &mut self.hosts[VICTIM];
        let datagram = Datagram {
            source: IpAddr::V4(packet.source),
            destination: IpAddr::V4(packet.destination),
            source_port: packet.source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: None,
            payload: udp_payload,
            medium: Medium::Network,
        };
        victim.endpoint.handle_datagram(self.now, &victim.memory.read(), &datagram)
    }

    /// Carries all packets of both hosts until they are silent.
    pub(crate) fn carry(&mut self) {
        // Bounded by the requests that two queue pairs may have posted.
        for _ in 0..1_000 {
            if !(self.carry_from(VICTIM) | self.carry_from(HONEST)) {
                return;
            }
        }
        panic!("the two never stop talking");
    }

    /// Carries all packets of one host. Returns whether there were any.
    pub(crate) fn carry_from(&mut self, from: usize) -> bool {
        let mut spoke = false;
        loop {
            let host = &mut self.hosts[from];
            let view = host.memory.read();
            let transmit = host.endpoint.poll_transmit(self.now, &view, &mut self.buffer, AckRelease::Now);
            drop(view);
            let Some(transmit) = transmit else { return spoke };
            spoke = true;
            let to = &mut self.hosts[1 - from];
            let size = transmit.segment_size.unwrap_or(transmit.length);
            for (index, payload) in self.buffer[..transmit.length].chunks(size).enumerate() {
                let datagram = Datagram {
                    source: transmit.source,
                    destination: transmit.destination,
                    source_port: transmit.source_port,
                    segment_index: index as u16,
                    hop_limit: None,
                    traffic_class: None,
                    payload,
                    medium: Medium::Network,
                };
                to.endpoint.handle_arrival(self.now, &to.memory.read(), &datagram);
            }
            to.endpoint.settle_arrivals(self.now);
        }
    }

    /// Takes all packets of one host off the wire.
    pub(crate) fn overheard_from(&mut self, from: usize) -> Vec<Overheard> {
        let mut overheard = Vec::new();
        let host = &mut self.hosts[from];
        let view = host.memory.read();
        while let Some(transmit) = host.endpoint.poll_transmit(self.now, &view, &mut self.buffer, AckRelease::Now) {
            let size = transmit.segment_size.unwrap_or(transmit.length);
            for (index, bytes) in self.buffer[..transmit.length].chunks(size).enumerate() {
                let (source_port, segment_index) = (transmit.source_port, index as u16);
                overheard.push(Overheard { to: 1 - from, source_port, segment_index, bytes: bytes.to_vec() });
            }
        }
        overheard
    }

    /// Delivers a packet that was taken off the wire, now or again.
    pub(crate) fn deliver(&mut self, packet: &Overheard) -> DatagramOutcome {
        let to = &mut self.hosts[packet.to];
        let datagram = Datagram {
            source: IpAddr::V4(ADDRESSES[1 - packet.to]),
            destination: IpAddr::V4(ADDRESSES[packet.to]),
            source_port: packet.source_port,
            segment_index: packet.segment_index,
            hop_limit: None,
            traffic_class: None,
            payload: &packet.bytes,
            medium: Medium::Network,
        };
        to.endpoint.handle_datagram(self.now, &to.memory.read(), &datagram)
    }

    /// Drops all packets of one host.
    pub(crate) fn lose_from(&mut self, from: usize) {
        let host = &mut self.hosts[from];
        let view = host.memory.read();
        while host.endpoint.poll_transmit(self.now, &view, &mut self.buffer, AckRelease::Now).is_some() {}
    }

    /// Lets time pass and handles the deadlines that expire.
    pub(crate) fn wait(&mut self, length: Duration) {
        self.now = self.now + length;
        for host in &mut self.hosts {
            while host.endpoint.next_timeout().is_some_and(|deadline| deadline <= self.now) {
                host.endpoint.handle_timeout(self.now);
            }
        }
    }

    pub(crate) fn sge(&self, at: usize, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.regions[at].lkey() }
    }

    pub(crate) fn post_receive(&mut self, at: usize, wr_id: u64, offset: u64, length: u32) {
        let sges = [self.sge(at, offset, length)];
        let posted = self.hosts[at].post_receive(self.now, &self.ports[at], &ReceiveRequest { wr_id, sges: &sges });
        assert!(posted, "room for a receive");
    }

    pub(crate) fn post_send(&mut self, at: usize, wr_id: u64, data: Data<'_>) {
        let request = SendRequest { wr_id, operation: Operation::Send, flags: SendFlags::SIGNALED, data };
        assert!(self.hosts[at].post_send(self.now, &self.ports[at], &request), "room for a send");
    }

    pub(crate) fn completions(&self, at: usize) -> Vec<RawCompletion> {
        let mut completions = Vec::new();
        self.ports[at].poll(&mut completions);
        completions
    }

    pub(crate) fn bytes(&self, at: usize, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.regions[at].read_at(offset, &mut bytes).expect("in the region");
        bytes
    }
}
