//! Extended reliable connections, packet by packet: which queue a repetition names, and which memory its response comes
//! from.

use super::*;
use crate::queue::{SharedReceiveInit, SharedReceiveQueue, XrcDomain};
use crate::wire::{Flow, Opcode, Packet, icrc};

/// An initiator, and a target whose domain has two queues, in protection domains 1 and 2.
struct Extended {
    pair: Pair,
    /// Memory in the second queue's protection domain; the end's own region is in the first one's.
    second: Arc<Region>,
    queues: [Arc<SharedReceiveQueue>; 2],
    domain: Arc<XrcDomain>,
    /// The initiator's packets.
    sent: Vec<Vec<u8>>,
}

impl Extended {
    fn new() -> Self {
        let domain = XrcDomain::new();
        let events = AsyncEventQueue::new(16, None);
        let source = Some(ReceiveSource::Named(Arc::clone(&domain)));
        let mut ends = [
            End::receiving(QueuePairType::XrcSend, "192.0.2.1", 1, Some(ReceiveSource::Nothing)),
            End::receiving(QueuePairType::XrcReceive, "192.0.2.2", 2, source),
        ];
        let target = &ends[1];
        let queues = [1, 2].map(|number| {
            let feed = (target.completions.clone(), target.completions.attach(None));
            let queue = SharedReceiveQueue::new(SharedReceiveInit {
                number: SharedReceiveQueueNumber::new(number),
                domain: DomainId(number),
                max_wr: 8,
                max_sge: 1,
                srq_limit: 0,
                events: Arc::clone(&events),
                completions: Some(feed),
            });
            domain.add(&queue);
            queue
        });
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let backing = Backing::from_vec(vec![0; 4096]);
        let second = target.table.register(DomainId(2), backing, Some(0x80_0000), access).unwrap();
        let capabilities = PeerCapabilities::STANDARD;
        let peers = [1, 0].map(|at| Peer { address: ends[at].address, qpn: ends[at].qpn, capabilities });
        ends.iter_mut().zip(&peers).for_each(|(end, peer)| end.connect(peer));
        let pair = Pair::between(ends);
        Self { pair, second, queues, domain, sent: Vec::new() }
    }

    /// Posts a request that names a queue; its packets wait in `sent`. Returns the index of the first.
    fn post(&mut self, queue: usize, operation: Operation, sges: &[Sge]) -> usize {
        let now = self.pair.now;
        let end = &mut self.pair.ends[0];
        let request = SendRequest { wr_id: 7, operation, flags: SendFlags::SIGNALED, data: Data::Sges(sges) };
        end.send.begin();
        end.send.push_to_srq(&request, self.queues[queue].number()).unwrap();
        end.send.end(BatchEnd::Publish).unwrap();
        end.endpoint.handle_doorbell(now, end.qpn);
        let first = self.sent.len();
        self.sent.extend(end.transmit(now));
        first
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        self.pair.ends[0].sge(offset, length)
    }

    /// Delivers a packet of the initiator to the target. Returns its responses, as they left.
    fn arrive(&mut self, packet: usize) -> Vec<Vec<u8>> {
        let (source, payload) = (self.pair.ends[0].address, self.sent[packet].clone());
        self.pair.ends[1].handle(self.pair.now, source, &[payload]);
        let mut responses = Vec::new();
        loop {
            let burst = self.pair.ends[1].transmit(self.pair.now);
            if burst.is_empty() {
                return responses;
            }
            responses.extend(burst);
        }
    }

    /// Adds a copy of a packet that names another queue, with a matching ICRC. Returns its index.
    fn naming(&mut self, packet: usize, queue: usize) -> usize {
        let mut forged = self.sent[packet].clone();
        forged[12..16].copy_from_slice(&self.queues[queue].number().value().to_be_bytes());
        let [source, destination] = [0, 1].map(|at| self.pair.ends[at].address);
        icrc::append(&Flow { source, destination, source_port: 50_000 }, 0, &mut forged);
        self.sent.push(forged);
        self.sent.len() - 1
    }

    fn target_state(&self) -> QueuePairState {
        let target = &self.pair.ends[1];
        target.endpoint.queue_pair_state(target.qpn).unwrap()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.pair.ends[1].endpoint.counters().get_drop(reason)
    }
}

/// Returns the bytes that the responses of a READ carry.
fn payload_of(responses: &[Vec<u8>]) -> Vec<u8> {
    let packets = responses.iter().map(|response| Packet::parse(response).unwrap());
    packets
        .filter(|packet| packet.headers.bth.opcode != Opcode::RC_ACKNOWLEDGE)
        .flat_map(|p| p.payload.to_vec())
        .collect()
}

#[test]
fn a_repeated_read_uses_the_domain_of_the_srq_that_it_names() {
    let mut ends = Extended::new();
    ends.pair.ends[1].region.write_at(0, &pattern(100)).unwrap();
    let rkeys = [ends.pair.ends[1].region.rkey(), ends.second.rkey()];
    let (into, from) = (ends.sge(0, 100), ends.sge(200, 8));
    let read = ends.post(0, Operation::Read { remote_addr: 0x10_0000, rkey: rkeys[0] }, &[into]);
    let write = ends.post(1, Operation::Write { remote_addr: 0x80_0000, rkey: rkeys[1] }, &[from]);
    assert_eq!(payload_of(&ends.arrive(read)), pattern(100));
    ends.arrive(write);
    // The queue named last is the second one, from whose domain the first region cannot be read.
    assert_eq!(payload_of(&ends.arrive(read)), pattern(100));
    assert_eq!((ends.target_state(), ends.dropped(DropReason::StaleDuplicate)), (QueuePairState::ReadyToSend, 0));
}

#[test]
fn a_request_for_another_srq_is_no_repetition() {
    let mut ends = Extended::new();
    let rkey = ends.pair.ends[1].region.rkey();
    let into = ends.sge(0, 8);
    let read = ends.post(0, Operation::Read { remote_addr: 0x10_0000, rkey }, &[into]);
    let add = Operation::FetchAndAdd { remote_addr: 0x10_0000, rkey, add: 5 };
    let atomic = ends.post(0, add, &[into]);
    for packet in [read, atomic] {
        assert_eq!(ends.arrive(packet).len(), 1);
    }
    // The second queue's domain grants none of these accesses, so a packet that names this queue must not get the
    // responses that the first queue's domain allows.
    for (count, packet) in [(1, read), (2, atomic)] {
        let forged = ends.naming(packet, 1);
        assert_eq!(ends.arrive(forged), Vec::<Vec<u8>>::new());
        assert_eq!(ends.dropped(DropReason::StaleDuplicate), count);
        assert_eq!(ends.arrive(packet).len(), 1, "the repetition itself gets a response");
    }
    assert_eq!(contents(&ends.pair.ends[1].region, 0, 8), 5u64.to_ne_bytes(), "the atomic was executed once");
    assert_eq!(ends.target_state(), QueuePairState::ReadyToSend);
}

#[test]
fn a_repetition_is_served_after_its_srq_is_destroyed() {
    let mut ends = Extended::new();
    let rkey = ends.second.rkey();
    ends.second.write_at(0, &pattern(64)).unwrap();
    let into = ends.sge(0, 64);
    let read = ends.post(1, Operation::Read { remote_addr: 0x80_0000, rkey }, &[into]);
    assert_eq!(payload_of(&ends.arrive(read)), pattern(64));
    ends.domain.remove(ends.queues[1].number());
    ends.queues[1].close();
    assert_eq!(payload_of(&ends.arrive(read)), pattern(64), "it was granted when it was executed");
    let fresh = ends.post(1, Operation::Read { remote_addr: 0x80_0000, rkey }, &[into]);
    assert_eq!(payload_of(&ends.arrive(fresh)), b"", "a new request is not");
    assert_eq!(ends.target_state(), QueuePairState::Error);
}

#[test]
fn a_message_uses_the_srq_that_its_first_packet_names() {
    let mut ends = Extended::new();
    let into = ends.pair.ends[1].sge(0, 4096);
    for queue in &ends.queues {
        queue.begin();
        queue.push(&ReceiveRequest { wr_id: u64::from(queue.number().value()), sges: &[into] }).unwrap();
        queue.end(BatchEnd::Publish).unwrap();
    }
    let from = ends.sge(0, 3000);
    let first = ends.post(0, Operation::Send, &[from]);
    while ends.sent.len() < first + 3 {
        let more = ends.pair.ends[0].transmit(ends.pair.now);
        assert!(!more.is_empty(), "three packets");
        ends.sent.extend(more);
    }
    ends.arrive(first);
    let forged = ends.naming(first + 1, 1);
    let responses = ends.arrive(forged);
    assert_eq!(ends.target_state(), QueuePairState::Error, "a message of two queues is refused");
    assert_eq!(responses.len(), 1);
    let flushed = ends.pair.ends[1].poll();
    assert_eq!(flushed.len(), 1, "the receive that was begun ends, once: {flushed:?}");
    assert_eq!(flushed[0].wr_id, 1);
    assert!(!flushed[0].status.is_success());
    assert_eq!(ends.queues.each_ref().map(|queue| queue.available()), [0, 1], "the other queue's receive stays");
}
