//! Pacing without acknowledgements: READ responses and unreliable packets, on paths whose controller has a rate.

use super::congestion::Script;
use super::*;
use crate::wire::Opcode;

const MTU: u32 = 1_024;
/// Bytes of a full packet between the first and the last of a READ's response or of a message.
const FULL: u64 = 1_024 + 16;

/// Two ends, and the packets that the second one sends: departure, bytes and operation code.
struct Watched {
    pair: Pair,
    departures: Vec<(Time, usize, Opcode)>,
}

impl Watched {
    /// Connects two ends, the second with a controller.
    fn new(script: &Script, service: QueuePairType, capabilities: PeerCapabilities) -> Self {
        let ends = [End::new(service, "192.0.2.2", 2), script.end(service)];
        Self { pair: Pair::connected(ends, capabilities), departures: Vec::new() }
    }

    /// Connects two ends without a controller.
    fn uncontrolled(service: QueuePairType, capabilities: PeerCapabilities) -> Self {
        let ends = [End::new(service, "192.0.2.2", 2), End::new(service, "192.0.2.1", 1)];
        Self { pair: Pair::connected(ends, capabilities), departures: Vec::new() }
    }

    /// Limits the rate of the second end.
    fn limit(&mut self, rate_limit: u32, max_burst_sz: u32) {
        let limit = RateLimit { rate_limit, max_burst_sz, typical_pkt_sz: 0 };
        let end = &mut self.pair.ends[1];
        end.endpoint.limit_rate(self.pair.now, end.qpn, &limit).unwrap();
    }

    fn reliable(script: &Script) -> Self {
        Self::new(script, QueuePairType::ReliableConnection, NATIVE)
    }

    fn post(&mut self, from: usize, operation: impl FnOnce(u64, Rkey) -> Operation, bytes: u32) {
        let sge = self.pair.ends[from].sge(0, bytes);
        let operation = operation(0x10_0000, self.pair.ends[1 - from].region.rkey());
        let now = self.pair.now;
        self.pair.ends[from].post(now, operation, &[sge]);
    }

    /// Posts a READ of the first end from the second one.
    fn read(&mut self, packets: u32) {
        self.post(0, |remote_addr, rkey| Operation::Read { remote_addr, rkey }, packets * MTU);
    }

    fn write(&mut self, from: usize, packets: u32) {
        self.post(from, |remote_addr, rkey| Operation::Write { remote_addr, rkey }, packets * MTU);
    }

    /// Carries everything that leaves now. Returns false if nothing does.
    fn carry(&mut self) -> bool {
        let mut has_carried = false;
        for from in [0, 1] {
            loop {
                let sent = self.pair.ends[from].transmit(self.pair.now);
                if sent.is_empty() {
                    break;
                }
                has_carried = true;
                if from == 1 {
                    let now = self.pair.now;
                    self.departures.extend(sent.iter().map(|packet| (now, packet.len(), Opcode(packet[0]))));
                }
                let source = self.pair.ends[from].address;
                self.pair.ends[1 - from].handle(self.pair.now, source, &sent);
            }
        }
        has_carried
    }

    /// Carries everything that leaves before this time.
    fn run(&mut self, until: Time) {
        for _ in 0..100_000 {
            if self.carry() {
                continue;
            }
            let next = self.pair.ends.iter().filter_map(|end| end.endpoint.next_timeout()).min();
            let Some(next) = next.filter(|next| *next < until) else {
                self.pair.now = until;
                return;
            };
            self.pair.now = self.pair.now.max(next);
            self.pair.ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(next));
        }
        panic!("the endpoints never fell silent");
    }

    fn run_for(&mut self, milliseconds: u64) {
        self.run(self.pair.now + Duration::from_millis(milliseconds));
    }

    /// Returns each time at which the second end sent packets since the beginning, and their number.
    fn bursts(&self) -> Vec<(Time, usize)> {
        let mut bursts: Vec<(Time, usize)> = Vec::new();
        for (now, ..) in &self.departures {
            match bursts.last_mut().filter(|(last, _)| last == now) {
                Some((_, packets)) => *packets += 1,
                None => bursts.push((*now, 1)),
            }
        }
        bursts
    }

    fn expect_done(&self, end: usize, requests: usize) {
        let completions = self.pair.ends[end].poll();
        assert_eq!(completions.len(), requests);
        assert!(completions.iter().all(|completion| completion.status.is_success()), "{completions:?}");
        let counters = self.pair.ends[end].endpoint.counters();
        for counter in [Counter::RetransmittedPackets, Counter::LocalAckTimeout] {
            assert_eq!(counters.get(counter), 0, "{counter:?}");
        }
    }
}

/// Returns the cost of these bytes at a rate.
fn cost(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / rate)
}

#[test]
fn read_responses_leave_in_bursts_that_are_paid_for() {
    for (capabilities, packets_per_second, burst) in
        [(NATIVE, 2_000, 2), (PeerCapabilities::STANDARD, 20_000, 5), (NATIVE, 20_000, 5)]
    {
        let rate = packets_per_second * u64::from(MTU);
        let mut watched =
            Watched::new(&Script::new(64 << 10, Some(rate)), QueuePairType::ReliableConnection, capabilities);
        watched.read(64);
        watched.run_for(100);
        watched.expect_done(0, 1);
        let bursts = watched.bursts();
        assert_eq!(bursts.iter().map(|(_, packets)| packets).sum::<usize>(), 64);
        for pair in bursts.windows(2) {
            let [(before, packets), (now, _)] = pair else { unreachable!() };
            assert!(*packets <= burst, "{packets} packets in a burst");
            let (least, waited) = (cost(*packets as u64 * FULL, rate), now.saturating_since(*before));
            // Costs are whole nanoseconds.
            assert!(waited + Duration::from_nanos(*packets as u64) >= least, "{waited:?}");
        }
    }
}

#[test]
fn without_a_known_rate_read_responses_leave_at_once() {
    let script = Script::with_unknown_rate(64 << 10, 2_000 * u64::from(MTU));
    let mut watched = Watched::reliable(&script);
    watched.read(64);
    let start = watched.pair.now;
    watched.run_for(10);
    watched.expect_done(0, 1);
    assert_eq!(watched.bursts(), [(start, 64)]);
    // They are not charged either.
    watched.write(1, 1);
    let start = watched.pair.now;
    watched.run_for(10);
    assert_eq!(watched.bursts()[1], (start, 1));
}

#[test]
fn responses_and_requests_share_the_pace() {
    let rate = 20_000 * u64::from(MTU);
    let mut watched = Watched::reliable(&Script::new(64 << 10, Some(rate)));
    watched.read(64);
    watched.write(1, 64);
    let start = watched.pair.now;
    watched.run_for(100);
    for end in [0, 1] {
        watched.expect_done(end, 1);
    }
    let (last, ..) = watched.departures[watched.departures.len() - 1];
    let took = last.saturating_since(start);
    // The last burst of either kind is not paid for.
    assert!(took >= cost(118 * u64::from(MTU), rate), "{took:?}");
    // Neither kind waits until the other is done.
    let half = start + took / 2;
    let early = watched.departures.iter().filter(|(now, ..)| *now < half);
    let responses = early.filter(|(.., opcode)| opcode.is_response()).count();
    assert!((16..=48).contains(&responses), "{responses} responses in the first half");
}

#[test]
fn acknowledgements_and_results_of_atomics_wait_for_no_pace() {
    let mut watched = Watched::reliable(&Script::new(64 << 10, Some(100 * u64::from(MTU))));
    watched.write(1, 2);
    assert!(watched.carry());
    let before = watched.departures.len();
    watched.post(0, |remote_addr, rkey| Operation::FetchAndAdd { remote_addr, rkey, add: 1 }, 8);
    watched.write(0, 1);
    let start = watched.pair.now;
    watched.run_for(1);
    watched.expect_done(0, 2);
    let sent: Vec<_> = watched.departures[before..].iter().map(|(_, _, opcode)| *opcode).collect();
    assert_eq!(sent, [Opcode::RC_ATOMIC_ACKNOWLEDGE, Opcode::RC_ACKNOWLEDGE]);
    // They cost nothing either: two packets of 10 ms each are paid for after 20 ms.
    watched.write(1, 1);
    watched.run_for(50);
    let (last, ..) = watched.departures[watched.departures.len() - 1];
    assert_eq!(last, start + Duration::from_millis(20));
}

#[test]
fn an_acknowledgement_stays_behind_the_read_before_it() {
    let mut watched = Watched::reliable(&Script::new(64 << 10, Some(1_000 * u64::from(MTU))));
    watched.read(8);
    watched.write(0, 1);
    watched.run_for(100);
    watched.expect_done(0, 2);
    let sent: Vec<_> = watched.departures.iter().map(|(_, _, opcode)| *opcode).collect();
    assert_eq!((sent.len(), sent[7], sent[8]), (9, Opcode::RC_READ_RESPONSE_LAST, Opcode::RC_ACKNOWLEDGE));
}

/// The peer's timers run meanwhile.
#[test]
fn a_read_response_waits_two_milliseconds_at_most() {
    let mut watched = Watched::reliable(&Script::new(64 << 10, Some(2 * u64::from(MTU))));
    watched.read(6);
    let start = watched.pair.now;
    watched.run_for(100);
    watched.expect_done(0, 1);
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    assert_eq!(watched.bursts(), [(at(0), 2), (at(2), 2), (at(4), 2)]);
}

#[test]
fn a_known_rate_takes_the_place_of_an_unreliable_connections_pauses() {
    let script = Script::new(u64::MAX, Some(1_000 * u64::from(MTU)));
    let mut watched = Watched::new(&script, QueuePairType::UnreliableConnection, PeerCapabilities::STANDARD);
    let start = watched.pair.now;
    watched.write(1, 50);
    watched.run_for(200);
    watched.expect_done(1, 1);
    for (packet, (now, packets)) in (0..).zip(watched.bursts()) {
        assert_eq!((now, packets), (start + packet * Duration::from_millis(1), 1), "{packet}");
    }
    assert_eq!(script.heard(), [], "it is not the controller's");
}

#[test]
fn without_a_known_rate_an_unreliable_connection_has_its_pauses() {
    let script = Script::with_unknown_rate(u64::MAX, 1_000 * u64::from(MTU));
    let mut watched = Watched::new(&script, QueuePairType::UnreliableConnection, PeerCapabilities::STANDARD);
    let start = watched.pair.now;
    watched.write(1, 64);
    watched.run_for(200);
    watched.expect_done(1, 1);
    let bursts: Vec<_> = watched.bursts().iter().map(|(_, packets)| *packets).collect();
    assert_eq!(bursts, [32, 32]);
    assert!(watched.pair.now > start);
}

/// A datagram queue pair of an end with a controlled path to the other end, and an address without one.
struct Datagrams {
    end: End,
    member: Member,
    paced: IpAddr,
    free: IpAddr,
    now: Time,
}

impl Datagrams {
    fn new(script: &Script) -> Self {
        let mut end = script.end(QueuePairType::ReliableConnection);
        let paced = "192.0.2.2".parse().unwrap();
        end.connect(&super::Peer { address: paced, qpn: Qpn::new(0x1234), capabilities: NATIVE });
        let member = Member::new(&mut end.endpoint, QueuePairType::UnreliableDatagram, None, &end.events);
        let step = |state| QueuePairAttributes { qp_state: Some(state), ..QueuePairAttributes::default() };
        let init = QueuePairAttributes {
            pkey_index: Some(0),
            port_num: Some(1),
            qkey: Some(Qkey(7)),
            ..step(QueuePairState::Init)
        };
        let ready = QueuePairAttributes { sq_psn: Some(Psn::new(0)), ..step(QueuePairState::ReadyToSend) };
        for attributes in [init, step(QueuePairState::ReadyToReceive), ready] {
            end.endpoint.modify_queue_pair(Time::ZERO, member.qpn, &attributes, None, &LIMITS).unwrap();
        }
        Self { end, member, paced, free: "192.0.2.3".parse().unwrap(), now: Time::from_nanos(1) }
    }

    fn post(&mut self, address: IpAddr, bytes: u32) {
        let destination = Destination {
            source: self.end.address,
            source_port: 50_000,
            address,
            traffic_class: 0,
            hop_limit: 64,
            qpn: Qpn::new(0x99),
            qkey: Qkey(7),
            is_too_long: false,
        };
        let sges = [self.end.sge(0, bytes)];
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        self.member.send.begin();
        let request = SendRequest { wr_id: 7, operation: Operation::Send, flags, data };
        self.member.send.push_to(&request, &destination).unwrap();
        self.member.send.end(BatchEnd::Publish).unwrap();
        self.end.endpoint.handle_doorbell(self.now, self.member.qpn);
    }

    /// Returns when datagrams leave, until all have.
    fn departures(&mut self) -> Vec<Time> {
        let mut departures = Vec::new();
        loop {
            match self.end.transmit(self.now).len() {
                0 => {}
                sent => {
                    departures.extend(std::iter::repeat_n(self.now, sent));
                    continue;
                }
            }
            let Some(next) = self.end.endpoint.next_timeout() else { return departures };
            self.now = next;
            self.end.endpoint.handle_timeout(next);
        }
    }
}

#[test]
fn datagrams_leave_at_the_pace_of_the_path_to_their_destination() {
    let rate = 20_000 * u64::from(MTU);
    let mut datagrams = Datagrams::new(&Script::new(64 << 10, Some(rate)));
    let start = datagrams.now;
    (0..40).for_each(|_| datagrams.post(datagrams.paced, MTU));
    let departures = datagrams.departures();
    assert_eq!(departures.len(), 40);
    let took = departures[39].saturating_since(start);
    let of = |packets: u64| cost(packets * u64::from(MTU), rate);
    assert!(took >= of(33) && took <= of(42), "{took:?}");
    let most = departures.chunk_by(|before, now| before == now).map(<[_]>::len).max();
    assert!(most <= Some(6), "{most:?} in a burst");
}

#[test]
fn datagrams_without_a_controlled_path_or_a_known_rate_leave_at_once() {
    let rate = 100 * u64::from(MTU);
    let mut datagrams = Datagrams::new(&Script::new(64 << 10, Some(rate)));
    let start = datagrams.now;
    (0..40).for_each(|_| datagrams.post(datagrams.free, MTU));
    assert_eq!(datagrams.departures(), [start; 40]);
    let mut datagrams = Datagrams::new(&Script::with_unknown_rate(64 << 10, rate));
    (0..40).for_each(|_| datagrams.post(datagrams.paced, MTU));
    assert_eq!(datagrams.departures(), [start; 40]);
}

#[test]
fn a_waiting_datagram_blocks_later_ones() {
    let rate = 100 * u64::from(MTU);
    let mut datagrams = Datagrams::new(&Script::new(64 << 10, Some(rate)));
    let start = datagrams.now;
    for address in [datagrams.paced, datagrams.free, datagrams.paced, datagrams.free] {
        datagrams.post(address, MTU);
    }
    let paid = datagrams.departures();
    assert_eq!(paid[..2], [start; 2]);
    assert!(paid[2] > start + Duration::from_millis(10) && paid[2] == paid[3], "{paid:?}");
}

#[test]
fn datagrams_and_a_connection_share_the_pace() {
    let mut datagrams = Datagrams::new(&Script::new(u64::MAX, Some(2_000 * u64::from(MTU))));
    let (sge, rkey) = (datagrams.end.sge(0, 500 * MTU), datagrams.end.region.rkey());
    datagrams.end.post(datagrams.now, Operation::Write { remote_addr: 0x10_0000, rkey }, &[sge]);
    (0..20).for_each(|_| datagrams.post(datagrams.paced, MTU));
    let (mut packets, mut of_datagrams) = (0, 0);
    while of_datagrams < 20 && packets < 1_000 {
        match datagrams.end.transmit(datagrams.now) {
            sent if sent.is_empty() => {
                datagrams.now = datagrams.end.endpoint.next_timeout().expect("something waits");
                datagrams.end.endpoint.handle_timeout(datagrams.now);
            }
            sent => {
                packets += sent.len();
                of_datagrams += sent.iter().filter(|packet| Opcode(packet[0]) == Opcode::UD_SEND_ONLY).count();
            }
        }
    }
    assert!(of_datagrams == 20 && packets < 200, "{of_datagrams} datagrams of {packets} packets");
}

#[test]
fn packets_behind_read_responses_wait_no_longer_than_the_responses_did() {
    let script = Script::new(64 << 10, Some(250 * u64::from(MTU)));
    let mut watched = Watched::reliable(&script);
    watched.read(200);
    watched.run_for(300);
    let (before, start) = (watched.departures.len(), watched.pair.now);
    watched.write(1, 1);
    watched.run_for(20);
    let is_write = |(_, _, opcode): &&(Time, usize, Opcode)| *opcode == Opcode::RC_WRITE_ONLY;
    let write = watched.departures[before..].iter().find(is_write).expect("it has left");
    assert!(write.0 <= start + Duration::from_millis(8), "after {:?}", write.0.saturating_since(start));
}

/// One megabyte per second, in kilobits.
const MEGABYTE: u32 = 8_000;

#[test]
fn a_rate_limit_holds_on_a_path_without_a_controller() {
    for (service, capabilities, burst) in [
        (QueuePairType::ReliableConnection, NATIVE, 4),
        (QueuePairType::ReliableConnection, PeerCapabilities::STANDARD, 1),
        (QueuePairType::UnreliableConnection, NATIVE, 4),
    ] {
        let mut watched = Watched::uncontrolled(service, capabilities);
        watched.limit(MEGABYTE, 4 * MTU);
        watched.write(1, 100);
        let start = watched.pair.now;
        watched.run_for(1_000);
        watched.expect_done(1, 1);
        let bursts = watched.bursts();
        assert!(bursts.iter().all(|(_, packets)| *packets <= burst), "{service:?} {bursts:?}");
        let (last, ..) = watched.departures[99];
        let took = last.saturating_since(start);
        // All bursts but the last are paid for.
        assert!((99_800..=104_200).contains(&took.as_micros()), "{service:?} {took:?}");
    }
}

#[test]
fn a_rate_limit_consumes_no_retries() {
    let mut watched = Watched::uncontrolled(QueuePairType::ReliableConnection, NATIVE);
    // One packet in 80 ms, which is longer than the transport timer runs.
    watched.limit(100, 1);
    watched.write(1, 10);
    watched.run_for(2_000);
    watched.expect_done(1, 1);
    assert_eq!(watched.bursts().len(), 10);
}

#[test]
fn removing_a_rate_limit_releases_waiting_packets() {
    let mut watched = Watched::uncontrolled(QueuePairType::ReliableConnection, NATIVE);
    watched.limit(1, 1);
    watched.write(1, 10);
    watched.run_for(10);
    assert_eq!(watched.departures.len(), 1);
    watched.limit(0, 0);
    let now = watched.pair.now;
    watched.run_for(1);
    assert_eq!(watched.bursts()[1], (now, 9));
    watched.expect_done(1, 1);
}

#[test]
fn reads_are_charged_for_their_responses_and_responses_to_the_peer_are_free() {
    let mut watched = Watched::uncontrolled(QueuePairType::ReliableConnection, NATIVE);
    watched.limit(MEGABYTE, MTU);
    let start = watched.pair.now;
    for _ in 0..2 {
        watched.post(1, |remote_addr, rkey| Operation::Read { remote_addr, rkey }, 10 * MTU);
    }
    watched.read(64);
    watched.run_for(100);
    for (end, requests) in [(1, 2), (0, 1)] {
        watched.expect_done(end, requests);
    }
    let requests = watched.departures.iter().filter(|(.., opcode)| *opcode == Opcode::RC_READ_REQUEST);
    let requests: Vec<_> = requests.map(|(now, ..)| now.saturating_since(start).as_micros()).collect();
    assert_eq!((requests.len(), requests[0]), (2, 0));
    assert!((10_240..10_400).contains(&requests[1]), "{requests:?}");
    let responses = watched.departures.iter().filter(|(.., opcode)| opcode.is_response());
    assert!(responses.clone().count() == 64 && responses.clone().all(|(now, ..)| *now == start));
}

#[test]
fn a_rate_limit_ends_with_a_reset() {
    let mut watched = Watched::uncontrolled(QueuePairType::ReliableConnection, NATIVE);
    watched.limit(1, 1);
    let peers = [1, 0].map(|at| {
        let end = &watched.pair.ends[at];
        super::Peer { address: end.address, qpn: end.qpn, capabilities: NATIVE }
    });
    let reset = QueuePairAttributes { qp_state: Some(QueuePairState::Reset), ..QueuePairAttributes::default() };
    for (end, peer) in watched.pair.ends.iter_mut().zip(&peers) {
        end.endpoint.modify_queue_pair(Time::ZERO, end.qpn, &reset, None, &LIMITS).unwrap();
        end.connect(peer);
    }
    watched.write(1, 10);
    let now = watched.pair.now;
    watched.run_for(1);
    assert_eq!(watched.bursts(), [(now, 10)]);
}

#[test]
fn a_rate_limit_holds_for_datagrams() {
    let mut datagrams = Datagrams::new(&Script::with_unknown_rate(64 << 10, 1));
    let limit = RateLimit { rate_limit: MEGABYTE, max_burst_sz: 4 * MTU, typical_pkt_sz: 0 };
    let qpn = datagrams.member.qpn;
    datagrams.end.endpoint.limit_rate(datagrams.now, qpn, &limit).unwrap();
    let start = datagrams.now;
    (0..40).for_each(|_| datagrams.post(datagrams.free, MTU));
    let departures = datagrams.departures();
    assert_eq!(departures.len(), 40);
    let took = departures[39].saturating_since(start);
    assert!(took >= Duration::from_micros(36 * 1_024) && took <= Duration::from_micros(42 * 1_100), "{took:?}");
    let most = departures.chunk_by(|before, now| before == now).map(<[_]>::len).max();
    assert_eq!(most, Some(4));
}
