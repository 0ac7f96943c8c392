//! Discovery of native peers: two endpoints that begin as standard peers of each other.

use super::*;
use crate::wire::icrc;
use crate::wire::mad::{self, DiscoveryAnswer, DiscoveryContent, MAD_BYTES, Mad};
use crate::wire::{Flow, Packet};

const OWN: PeerCapabilities = PeerCapabilities {
    version: 1,
    segmentation_offload: true,
    receive_buffer_bytes: 8 << 20,
    extensions: PeerCapabilities::GAP_RUNS,
};
const SEGMENTING_PORT: u16 = 60_000;

/// Returns an end that states these capabilities.
fn end(service: QueuePairType, address: &str, seed: u32, capabilities: PeerCapabilities) -> End {
    End::configured(service, address, seed, None, EndpointConfig { capabilities, ..EndpointConfig::default() })
}

/// Connects two ends that know nothing about each other.
fn strangers(service: QueuePairType, capabilities: [PeerCapabilities; 2]) -> Pair {
    let [first, second] = capabilities;
    let ends = [end(service, "192.0.2.1", 1, first), end(service, "192.0.2.2", 2, second)];
    Pair::connected(ends, PeerCapabilities::STANDARD)
}

impl Pair {
    fn discover(&mut self, at: usize) {
        let (now, qpn) = (self.now, self.ends[at].qpn);
        self.ends[at].endpoint.discover_peer(now, qpn, Some(SEGMENTING_PORT));
    }

    /// Returns the capabilities of the end's peer, as far as it knows them.
    fn peer_of(&self, at: usize) -> PeerCapabilities {
        let end = &self.ends[at];
        end.endpoint.query_queue_pair(end.qpn).unwrap().attributes.peer.unwrap()
    }

    fn count(&self, at: usize, counter: Counter) -> u64 {
        self.ends[at].endpoint.counters().get(counter)
    }

    /// Sends this many bytes, and asserts that they arrive. Returns the segments of the longest send.
    fn send_bytes(&mut self, from: usize, length: u32) -> usize {
        let (now, into) = (self.now, self.ends[1 - from].sge(500_000, length));
        self.ends[1 - from].post_receive(&[into]);
        let data = pattern(length as usize);
        self.ends[from].region.write_at(0, &data).unwrap();
        let bytes = self.ends[from].sge(0, length);
        self.ends[from].post(now, Operation::Send, &[bytes]);
        self.sends.clear();
        self.drive(Duration::from_millis(3));
        for end in &self.ends {
            let completions = end.poll();
            assert!(completions.len() == 1 && completions[0].status.is_success(), "{completions:?}");
        }
        assert_eq!(contents(&self.ends[1 - from].region, 500_000, length as usize), data);
        self.sends.iter().map(|(_, segments)| *segments).max().unwrap_or(0)
    }

    /// Gives the end a datagram to queue pair 1 from this address.
    fn give(&mut self, at: usize, source: IpAddr, mad: &Mad) -> DatagramOutcome {
        let mut buffer = vec![0; management::MANAGEMENT_BUFFER_BYTES];
        let destination = self.ends[at].address;
        let path = ManagementPath { source, source_port: 55_410, destination, traffic_class: 0 };
        let length = management::ManagementQueuePair::default().write(&path, &mad.write(), &mut buffer).length;
        let datagram = Datagram {
            source,
            destination,
            source_port: path.source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: None,
            payload: &buffer[..length],
            medium: Medium::Network,
        };
        let end = &mut self.ends[at];
        end.endpoint.handle_datagram(self.now, &end.table.read(), &datagram)
    }

    fn message(&self, to: usize, nonce: u64, content: DiscoveryContent) -> mad::Discovery {
        mad::Discovery { nonce, receiver: self.ends[to].qpn, sender: self.ends[1 - to].qpn, content }
    }

    /// Returns everything that the end sends now, as messages of the discovery.
    fn messages_of(&mut self, at: usize) -> Vec<mad::Discovery> {
        let now = self.now;
        self.ends[at].endpoint.handle_timeout(now);
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| self.ends[at].transmit(now).pop()).collect();
        let mads = sent.iter().filter_map(|packet| Mad::read(Packet::parse(packet).unwrap().payload).ok());
        mads.map(|mad| mad::Discovery::read(&mad).unwrap()).collect()
    }
}

#[test]
fn strangers_become_native_peers_with_a_key() {
    for service in [QueuePairType::ReliableConnection, QueuePairType::UnreliableConnection] {
        let mut pair = strangers(service, [OWN; 2]);
        assert_eq!(pair.send_bytes(0, 50_000), 1);
        (0..2).for_each(|at| pair.discover(at));
        pair.drive(Duration::from_millis(3));
        for at in 0..2 {
            assert_eq!((pair.peer_of(at), pair.count(at, Counter::DiscoveredPeers)), (OWN, 1));
        }
        assert!(pair.send_bytes(0, 50_000) > 20);
        pair.send_bytes(1, 50_000);
        pair.send_bytes(0, 50_000);
        for (at, end) in pair.ends.iter().enumerate() {
            assert_eq!(end.endpoint.counters().total_drops(), 0);
            let asked = pair.count(at, Counter::DiscoveryQuestions);
            assert!((1..=2).contains(&asked), "{asked}");
        }
        // Packets without the key are dropped now, and so are those from another port.
        let (now, bytes) = (pair.now, pair.ends[0].sge(0, 8));
        pair.ends[0].post(now, Operation::Send, &[bytes]);
        let mut packet = pair.ends[0].transmit(now).remove(0);
        let [source, destination] = [0, 1].map(|at: usize| pair.ends[at].address);
        icrc::append(&Flow { source, destination, source_port: 50_000 }, 0, &mut packet);
        pair.ends[1].handle(now, source, &[packet]);
        assert_eq!(pair.ends[1].endpoint.counters().get_drop(DropReason::WrongSourcePort), 1);
    }
}

/// The discovery may end before the queue pairs can send.
#[test]
fn peers_discovered_in_rtr_have_the_key_in_rts() {
    let mut ends =
        [1, 2].map(|number| end(QueuePairType::ReliableConnection, &format!("192.0.2.{number}"), number, OWN));
    let capabilities = PeerCapabilities::STANDARD;
    let peers = [1, 0].map(|at: usize| Peer { address: ends[at].address, qpn: ends[at].qpn, capabilities });
    for (end, peer) in ends.iter_mut().zip(&peers) {
        end.connect_to(peer, None, QueuePairState::ReadyToReceive);
    }
    let mut pair = Pair::between(ends);
    (0..2).for_each(|at| pair.discover(at));
    pair.drive(Duration::from_millis(3));
    assert_eq!([pair.peer_of(0), pair.peer_of(1)], [OWN; 2]);
    for end in &mut pair.ends {
        let to_rts = QueuePairAttributes::default()
            .qp_state(QueuePairState::ReadyToSend)
            .timeout(14)
            .retry_cnt(7)
            .rnr_retry(7)
            .sq_psn(Psn::new(0xff_fff0))
            .max_rd_atomic(4);
        end.endpoint.modify_queue_pair(pair.now, end.qpn, &to_rts, None, &LIMITS).unwrap();
    }
    for _ in 0..2 {
        assert!(pair.send_bytes(0, 50_000) > 20);
        pair.send_bytes(1, 50_000);
    }
    let (now, bytes) = (pair.now, pair.ends[0].sge(0, 8));
    pair.ends[0].post(now, Operation::Send, &[bytes]);
    let mut packet = pair.ends[0].transmit(now).remove(0);
    let [source, destination] = [0, 1].map(|at: usize| pair.ends[at].address);
    let flow = Flow { source, destination, source_port: SEGMENTING_PORT };
    let (covered, field) = packet.split_last_chunk_mut::<4>().unwrap();
    assert_ne!(icrc::compute(&flow, 0, true, covered), u32::from_le_bytes(*field), "it has the key");
}

/// One end's program may connect long before the other one's.
#[test]
fn the_peer_may_come_later() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
    pair.discover(0);
    pair.drive(Duration::from_secs(8));
    let asked = pair.count(0, Counter::DiscoveryQuestions);
    assert!(asked > 10 && pair.ends[1].endpoint.counters().get(Counter::SentPackets) == 0);
    pair.discover(1);
    pair.drive(Duration::from_secs(20));
    assert_eq!([pair.peer_of(0), pair.peer_of(1)], [OWN; 2]);
}

/// The end that knows more than the other one must not send what the other one does not expect.
#[test]
fn bursts_and_offers_wait_until_the_peer_expects_them() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
    pair.discover(0);
    pair.discover(1);
    let questions = [pair.messages_of(0), pair.messages_of(1)];
    let [first, second] = [0, 1].map(|at: usize| pair.ends[at].address);
    pair.give(1, first, &questions[0][0].to_mad());
    let answer = pair.messages_of(1).remove(0);
    assert!(matches!(answer.content, DiscoveryContent::Answer(DiscoveryAnswer { proof: None, .. })));
    pair.give(0, second, &answer.to_mad());
    // The second end takes the first one for a standard peer.
    assert_eq!(pair.peer_of(0), PeerCapabilities { segmentation_offload: false, ..OWN });
    assert_eq!(pair.count(0, Counter::DiscoveredPeers), 0);
    let (now, bytes) = (pair.now, pair.ends[0].sge(0, 50_000));
    pair.ends[0].post(now, Operation::Send, &[bytes]);
    let packets = pair.ends[0].transmit(now);
    assert_eq!((packets.len(), packets[0][8] & 1), (1, 0));
    // The second one learns the share of the first, and gets the proof with it.
    pair.give(0, second, &questions[1][0].to_mad());
    let answer = pair.messages_of(0).into_iter().find(|message| message.receiver == pair.ends[1].qpn);
    pair.give(1, first, &answer.unwrap().to_mad());
    assert_eq!((pair.peer_of(1), pair.count(1, Counter::DiscoveredPeers)), (OWN, 1));
}

#[test]
fn a_standard_peer_stays_one() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN, PeerCapabilities::STANDARD]);
    pair.discover(0);
    let question = pair.messages_of(0).remove(0);
    let second = pair.ends[1].address;
    let refusal = question.to_mad().unsupported_response().unwrap();
    // Neither another host nor a refusal of another question ends the questions.
    pair.give(0, "192.0.2.9".parse().unwrap(), &refusal);
    pair.give(0, second, &Mad { transaction_id: refusal.transaction_id ^ 1, ..refusal });
    assert!(pair.ends[0].endpoint.next_timeout().is_some());
    pair.give(0, second, &refusal);
    assert_eq!(pair.ends[0].endpoint.next_timeout(), None);
    pair.drive(Duration::from_secs(100));
    assert_eq!(pair.count(0, Counter::DiscoveryQuestions), 1);
    assert_eq!(pair.send_bytes(0, 50_000), 1);
    assert_eq!(pair.peer_of(0), PeerCapabilities::STANDARD);
}

/// Only the peer of the connection gets an answer, and the question changes nothing.
#[test]
fn other_questions_get_silence() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
    let first = pair.ends[0].address;
    let question = pair.message(1, 7, DiscoveryContent::Question);
    // Before this end discovers its peer itself, it answers nothing.
    assert_eq!(pair.give(1, first, &question.to_mad()).dropped, Some(DropReason::Unexpected));
    pair.discover(1);
    pair.messages_of(1);
    let other = |change: fn(&mut mad::Discovery)| {
        let mut other = question;
        change(&mut other);
        other.to_mad()
    };
    let cases = [
        ("192.0.2.9".parse().unwrap(), question.to_mad(), DropReason::WrongAddress),
        (first, other(|question| question.sender = Qpn::new(question.sender.value() ^ 1)), DropReason::WrongAddress),
        (first, other(|question| question.receiver = Qpn::new(0x77)), DropReason::UnknownQueuePair),
    ];
    for (source, mad, reason) in cases {
        assert_eq!(pair.give(1, source, &mad).dropped, Some(reason));
        assert_eq!(pair.messages_of(1), []);
    }
    assert_eq!(pair.give(1, first, &question.to_mad()).dropped, None);
    let answers = pair.messages_of(1);
    assert_eq!((answers.len(), answers[0].nonce, answers[0].sender), (1, 7, pair.ends[1].qpn));
    assert_eq!(pair.peer_of(1), PeerCapabilities::STANDARD, "nothing is learned from a question");
    // Repetitions get fewer answers.
    let repeated = (0..100).filter(|_| pair.give(1, first, &question.to_mad()).dropped.is_none()).count();
    assert_eq!((repeated, pair.messages_of(1)), (0, vec![]));
    let qpn = pair.ends[1].qpn;
    pair.ends[1].endpoint.destroy_queue_pair(qpn);
    pair.now = pair.now + Duration::from_secs(1);
    assert_eq!(pair.give(1, first, &question.to_mad()).dropped, Some(DropReason::UnknownQueuePair));
}

#[test]
fn forged_answers_have_no_effect() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
    pair.discover(0);
    let question = pair.messages_of(0).remove(0);
    let second = pair.ends[1].address;
    let share = KeyShare::new([9; 16]);
    let answer = DiscoveryContent::Answer(DiscoveryAnswer { capabilities: OWN, share, proof: Some(1) });
    let right = pair.message(0, question.nonce, answer);
    for nonce in [0, question.nonce ^ 1, question.nonce ^ 1 << 63] {
        let forged = mad::Discovery { nonce, ..right };
        assert_eq!(pair.give(0, second, &forged.to_mad()).dropped, Some(DropReason::Unexpected));
    }
    assert_eq!(pair.give(0, "192.0.2.9".parse().unwrap(), &right.to_mad()).dropped, Some(DropReason::WrongAddress));
    assert_eq!(pair.peer_of(0), PeerCapabilities::STANDARD);
    // One that has seen the question can pretend to be native, but not to know the key.
    assert_eq!(pair.give(0, second, &right.to_mad()).dropped, None);
    assert_eq!(pair.count(0, Counter::DiscoveredPeers), 0);
    assert_eq!(pair.send_bytes(0, 50_000), 1);
}

/// The question belongs to the connection, and ends with it.
#[test]
fn a_reset_forgets_everything() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
    (0..2).for_each(|at| pair.discover(at));
    pair.drive(Duration::from_millis(3));
    assert_eq!([pair.peer_of(0), pair.peer_of(1)], [OWN; 2]);
    let question = pair.message(0, 7, DiscoveryContent::Question);
    let second = pair.ends[1].address;
    for state in [QueuePairState::Error, QueuePairState::Reset] {
        let (now, qpn) = (pair.now + Duration::from_secs(1), pair.ends[0].qpn);
        let attributes = QueuePairAttributes { qp_state: Some(state), ..QueuePairAttributes::default() };
        pair.ends[0].endpoint.modify_queue_pair(now, qpn, &attributes, None, &LIMITS).unwrap();
        pair.now = now;
        assert_eq!(pair.give(0, second, &question.to_mad()).dropped, Some(DropReason::WrongState));
    }
    assert_eq!(pair.ends[0].endpoint.next_timeout(), None);
}

/// Both ends connect again with the same numbers, one after the other, while packets of the discovery of the previous
/// connection are still on their way: they never get different keys. The second one may get none, because the first one
/// has confirmed its previous connection.
#[test]
fn connections_with_the_same_numbers_work_again() {
    for order in [[0, 1], [1, 0]] {
        for discovered_before in [false, true] {
            let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
            (0..2).for_each(|at| pair.discover(at));
            if discovered_before {
                pair.drive(Duration::from_millis(3));
            }
            for at in order {
                let now = pair.now;
                let peer = Peer {
                    address: pair.ends[1 - at].address,
                    qpn: pair.ends[1 - at].qpn,
                    capabilities: PeerCapabilities::STANDARD,
                };
                let qpn = pair.ends[at].qpn;
                let reset =
                    QueuePairAttributes { qp_state: Some(QueuePairState::Reset), ..QueuePairAttributes::default() };
                pair.ends[at].endpoint.modify_queue_pair(now, qpn, &reset, None, &LIMITS).unwrap();
                pair.ends[at].connect(&peer);
                pair.discover(at);
                pair.drive(Duration::from_micros(1_500));
            }
            for _ in 0..4 {
                pair.send_bytes(0, 50_000);
                pair.send_bytes(1, 50_000);
            }
            assert!([0, 1].iter().all(|at| pair.peer_of(*at).is_native()), "{order:?} {discovered_before}");
        }
    }
}

/// A datagram has the size of the question in any case (`MAD_BYTES`), so no answer is larger.
#[test]
fn an_answer_is_as_long_as_the_question() {
    let mut pair = strangers(QueuePairType::ReliableConnection, [OWN; 2]);
    (0..2).for_each(|at| pair.discover(at));
    let now = pair.now;
    let lengths: Vec<usize> = (0..2)
        .flat_map(|at| {
            pair.ends[at].endpoint.handle_timeout(now);
            let first = pair.ends[1 - at].address;
            let question = pair.message(at, 5, DiscoveryContent::Question);
            pair.give(at, first, &question.to_mad());
            std::iter::from_fn(|| pair.ends[at].transmit(now).pop()).map(|packet| packet.len()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(lengths, [20 + MAD_BYTES + 4; 4]);
}
