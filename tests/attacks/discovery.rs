//! Forged questions, answers and refusals of the discovery of native peers, to an endpoint that discovers its peer: a
//! great many datagrams with all numbers but one. And questions to a device about queue pairs with other peers.

use std::net::IpAddr;
use std::time::Duration;

use rdma_verbs::sim::{Connection, Host, Network, Port, Random};
use rdma_verbs::transport::{AckRelease, Datagram, DatagramOutcome, ManagementPath, ManagementQueuePair, Medium};
use rdma_verbs::types::{AccessFlags, Counter, KeyShare, Mtu, PeerCapabilities, Psn, Qpn, QueuePairCapabilities};
use rdma_verbs::wire::mad::{Attribute, Discovery, DiscoveryAnswer, DiscoveryContent, Mad, ManagementClass, Method};

use super::connections::{Forger, Observer};
use super::world::{End, new_address};
use super::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("discovery/forged_datagrams_change_nothing", forged_datagrams),
    ("discovery/questions_are_answered_at_a_limited_rate", |_| limited_answers()),
    ("discovery/a_question_of_no_peer_gets_silence", |_| questions_to_a_device()),
];

const OURS: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(1 << 20);
const VICTIM: usize = 0;
const STEP: Duration = Duration::from_micros(20);

/// A victim in the middle of the discovery, and its peer.
struct Scene {
    network: Network,
    ports: [Port; 2],
    buffer: Vec<u8>,
}

impl Scene {
    /// `discovers`: whether the peer discovers the victim, too; else it is silent, and the victim keeps asking.
    fn new(seed: u64, discovers: bool) -> Self {
        let addresses = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut hosts = addresses.map(|address| Host::with_capabilities(address, seed, OURS));
        let ports = hosts.each_mut().map(|host| host.create_queue_pair(QueuePairCapabilities::default()));
        let faults = vec![Default::default(); 2];
        let mut network = Network::new(hosts.into(), faults, seed);
        for at in 0..2 {
            let connection = Connection {
                peer_address: addresses[1 - at],
                peer_qpn: ports[1 - at].qpn,
                peer: PeerCapabilities::STANDARD,
                key: None,
                path_mtu: Mtu::Mtu1024,
                sq_psn: Psn::new(7),
                rq_psn: Psn::new(7),
                access: AccessFlags::REMOTE,
                rd_atomic: 4,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
            };
            let now = network.time_at(at);
            network.hosts[at].connect(now, ports[at].qpn, &connection);
            if at == VICTIM || discovers {
                network.hosts[at].endpoint.discover_peer(now, ports[at].qpn, None);
            }
        }
        Self { network, ports, buffer: vec![0; 284] }
    }

    /// Gives the victim a datagram from this address.
    fn give(&mut self, source: IpAddr, datagram: &Discovery) -> DatagramOutcome {
        let now = self.network.time_at(VICTIM);
        let host = &mut self.network.hosts[VICTIM];
        let path = ManagementPath { source, source_port: 55_410, destination: host.address, traffic_class: 0 };
        let mad = datagram.to_mad().write();
        let length = ManagementQueuePair::default().write(&path, &mad, &mut self.buffer).length;
        let datagram = Datagram {
            source,
            destination: host.address,
            source_port: path.source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: None,
            payload: &self.buffer[..length],
            medium: Medium::Network,
        };
        host.endpoint.handle_datagram(now, &host.memory.read(), &datagram)
    }

    fn peer(&self) -> PeerCapabilities {
        let status = self.network.hosts[VICTIM].endpoint.query_queue_pair(self.ports[VICTIM].qpn);
        status.and_then(|status| status.attributes.peer).expect("a connected queue pair")
    }

    /// Returns the bytes that the victim sends now.
    fn sent(&mut self) -> usize {
        let (now, mut buffer, mut bytes) = (self.network.time_at(VICTIM), vec![0; 65_536], 0);
        let host = &mut self.network.hosts[VICTIM];
        while let Some(transmit) = host.endpoint.poll_transmit(now, &host.memory.read(), &mut buffer, AckRelease::Now) {
            bytes += transmit.length;
        }
        bytes
    }

    fn content(random: &mut Random) -> DiscoveryContent {
        let share = KeyShare::new([random.number() as u8; KeyShare::BYTES]);
        match random.below(3) {
            0 => DiscoveryContent::Question,
            1 => DiscoveryContent::Refusal(1 + random.below(0xffff) as u16),
            _ => DiscoveryContent::Answer(DiscoveryAnswer {
                capabilities: OURS,
                share,
                proof: Some(random.number()).filter(|_| random.chance(500)),
            }),
        }
    }
}

fn forged_datagrams(form: Form) {
    let mut random = Random::new(1);
    let mut scene = Scene::new(1, false);
    let peer = scene.network.hosts[1].address;
    let [own_qpn, peer_qpn] = [0, 1].map(|at: usize| scene.ports[at].qpn);
    scene.sent();
    for _ in 0..form.tries(300_000, 10_000_000) {
        let content = Scene::content(&mut random);
        let refuses = matches!(content, DiscoveryContent::Refusal(_));
        let (mut receiver, mut sender) = if refuses { (peer_qpn, own_qpn) } else { (own_qpn, peer_qpn) };
        let mut source = peer;
        // A question of the peer itself gets an answer, which goes to the peer.
        let wrong = random.below(if content == DiscoveryContent::Question { 3 } else { 4 });
        match wrong {
            0 => source = IpAddr::from([192, 0, 2, 3 + random.below(200) as u8]),
            1 => sender = Qpn::new(sender.value() ^ 1 << random.below(24)),
            2 => receiver = Qpn::new(receiver.value() ^ 1 << random.below(24)),
            _ => {}
        }
        let outcome = scene.give(source, &Discovery { nonce: random.number(), receiver, sender, content });
        assert!(outcome.dropped.is_some(), "{content:?} with wrong field {wrong} is taken");
    }
    assert_eq!(scene.sent(), 0, "a forged datagram has a response");
    assert_eq!(scene.peer(), PeerCapabilities::STANDARD);
    let endpoint = &scene.network.hosts[VICTIM].endpoint;
    assert!(endpoint.next_timeout().is_some(), "the victim goes on asking");
    assert_eq!(endpoint.counters().get(Counter::DiscoveredPeers), 0);
    // The true peer is discovered nevertheless.
    let (now, qpn) = (scene.network.time_at(1), scene.ports[1].qpn);
    scene.network.hosts[1].endpoint.discover_peer(now, qpn, None);
    (0..5_000).for_each(|_| scene.network.step(STEP));
    assert_eq!(scene.network.hosts[VICTIM].endpoint.counters().get(Counter::DiscoveredPeers), 1);
}

/// A sender that knows all numbers of the connection: the peer gets what it has not asked for, at a limited rate, and
/// never more bytes than the questions have.
fn limited_answers() {
    let mut random = Random::new(2);
    let mut scene = Scene::new(2, false);
    let peer = scene.network.hosts[1].address;
    let [own_qpn, peer_qpn] = [0, 1].map(|at: usize| scene.ports[at].qpn);
    scene.sent();
    let (mut asked, mut answered) = (0, 0);
    let begin = scene.network.now;
    for _ in 0..100_000 {
        let question = Discovery {
            nonce: random.number(),
            receiver: own_qpn,
            sender: peer_qpn,
            content: DiscoveryContent::Question,
        };
        scene.give(peer, &question);
        asked += 280;
        answered += scene.sent();
        scene.network.now = scene.network.now + Duration::from_micros(1);
    }
    let milliseconds = scene.network.now.saturating_since(begin).as_millis() as usize;
    assert!(answered > 280 && answered <= asked, "{answered} bytes for {asked}");
    assert!(answered <= 280 * (2 * milliseconds + 1), "{answered} bytes in {milliseconds} ms");
    assert_eq!(scene.peer(), PeerCapabilities::STANDARD);
}

/// A device responds to queries that it does not support, as Linux does, but not to the discovery of others.
fn questions_to_a_device() {
    let victim = End::on(new_address());
    victim.qp.connect(&victim.info()).expect("connect");
    let (forger, observer) = (Forger::new(victim.address, new_address()), Observer::of(victim.address));
    let ask = |mad: Mad| forger.send_from(forger.source, &mad.write());
    let question = |receiver: Qpn| {
        Discovery { nonce: 7, receiver, sender: Qpn::new(0x77), content: DiscoveryContent::Question }.to_mad()
    };
    for receiver in [victim.qp.qpn(), Qpn::new(victim.qp.qpn().value() ^ 1), Qpn::new(1), Qpn::new(0)] {
        ask(question(receiver));
        ask(Mad { method: Method::GET_RESPONSE, ..question(receiver) });
    }
    assert_eq!(observer.all(Duration::from_millis(300)).len(), 0);
    let other = Mad { class: ManagementClass::PERFORMANCE_MANAGEMENT, ..question(victim.qp.qpn()) };
    ask(Mad { attribute: Attribute::CLASS_PORT_INFO, ..other });
    let response = observer.wait(super::world::PATIENCE, |_| true);
    assert_eq!((response.destination, response.mad.method), (forger.source, Method::GET_RESPONSE));
}
