//! Connections with a scripted congestion controller: they follow its decisions, and report events to it.

use std::sync::Mutex;

use super::fair_queue::Crowd;
use super::*;

const MTU: u64 = 1_024;

/// An event that a controller received.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum ControlCall {
    Sent(Sent),
    Acked(Acked),
    Congestion(CongestionEvent),
}

/// A controller with a constant window and rate, and its own factory.
#[derive(Clone)]
pub(super) struct Script {
    window: u64,
    rate: Option<u64>,
    /// Whether the rate is what the path carries.
    is_known: bool,
    heard: Arc<Mutex<Vec<ControlCall>>>,
    built: Arc<Mutex<Vec<PathFacts>>>,
}

impl CongestionControl for Script {
    fn on_sent(&mut self, sent: &Sent) {
        self.heard.lock().unwrap().push(ControlCall::Sent(*sent));
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.heard.lock().unwrap().push(ControlCall::Acked(*ack));
    }

    fn on_congestion(&mut self, event: &CongestionEvent) {
        self.heard.lock().unwrap().push(ControlCall::Congestion(*event));
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<u64> {
        self.rate
    }

    fn known_rate(&self, _: Option<Duration>) -> Option<u64> {
        self.rate.filter(|_| self.is_known)
    }
}

impl CongestionFactory for Script {
    fn build(&self, path: &PathFacts) -> Option<Box<dyn CongestionControl>> {
        self.built.lock().unwrap().push(*path);
        Some(Box::new(self.clone()))
    }
}

impl Script {
    pub(super) fn new(window: u64, rate: Option<u64>) -> Self {
        Self { window, rate, is_known: true, heard: Arc::default(), built: Arc::default() }
    }

    /// Creates a controller whose rate does not show what the path carries.
    pub(super) fn with_unknown_rate(window: u64, rate: u64) -> Self {
        Self { is_known: false, ..Self::new(window, Some(rate)) }
    }

    /// Creates an end with this controller.
    pub(super) fn end(&self, service: QueuePairType) -> End {
        let config = EndpointConfig { congestion: Some(Arc::new(self.clone())), ..EndpointConfig::default() };
        End::configured(service, "192.0.2.1", 1, None, config)
    }

    /// Creates two ends, the first with this controller.
    pub(super) fn ends(&self, service: QueuePairType) -> [End; 2] {
        [self.end(service), End::new(service, "192.0.2.2", 2)]
    }

    /// Connects a pair whose first end has this controller.
    pub(super) fn pair(&self, service: QueuePairType, capabilities: PeerCapabilities) -> Pair {
        Pair::connected(self.ends(service), capabilities)
    }

    /// Connects a native pair whose first end has this controller, with `count` queue pairs besides its own.
    fn crowd(&self, count: usize) -> Crowd {
        Crowd::of(self.reliable(NATIVE), count, NATIVE)
    }

    pub(super) fn reliable(&self, capabilities: PeerCapabilities) -> Pair {
        self.pair(QueuePairType::ReliableConnection, capabilities)
    }

    pub(super) fn heard(&self) -> Vec<ControlCall> {
        self.heard.lock().unwrap().clone()
    }

    /// Returns when packets left, and their bytes.
    fn sends(&self) -> Vec<(Time, u64)> {
        let heard = self.heard().into_iter();
        heard
            .filter_map(
                |heard| if let ControlCall::Sent(Sent { now, bytes, .. }) = heard { Some((now, bytes)) } else { None },
            )
            .collect()
    }

    fn acknowledged(&self) -> Vec<Acked> {
        let heard = self.heard().into_iter();
        heard.filter_map(|heard| if let ControlCall::Acked(ack) = heard { Some(ack) } else { None }).collect()
    }

    pub(super) fn events(&self) -> Vec<CongestionEvent> {
        let heard = self.heard().into_iter();
        heard.filter_map(|heard| if let ControlCall::Congestion(event) = heard { Some(event) } else { None }).collect()
    }
}

pub(super) fn write(pair: &mut Pair, bytes: u32) {
    let (sge, rkey) = (pair.ends[0].sge(0, bytes), pair.ends[1].region.rkey());
    let now = pair.now;
    pair.ends[0].post(now, Operation::Write { remote_addr: 0x10_0000, rkey }, &[sge]);
}

pub(super) fn read(pair: &mut Pair, bytes: u32) {
    let (sge, rkey) = (pair.ends[0].sge(0, bytes), pair.ends[1].region.rkey());
    let now = pair.now;
    pair.ends[0].post(now, Operation::Read { remote_addr: 0x10_0000, rkey }, &[sge]);
}

/// Asserts that all requests have succeeded, without a packet sent twice.
pub(super) fn expect_done(pair: &mut Pair, requests: usize) {
    let completions = pair.ends[0].poll();
    assert_eq!(completions.len(), requests);
    assert!(completions.iter().all(|completion| completion.status.is_success()), "{completions:?}");
    let counters = pair.ends[0].endpoint.counters();
    for counter in [Counter::RetransmittedPackets, Counter::TailProbe, Counter::LocalAckTimeout] {
        assert_eq!(counters.get(counter), 0, "{counter:?}");
    }
}

#[test]
fn a_controller_is_built_once_for_a_path_and_knows_it() {
    let script = Script::new(MTU, None);
    let pair = script.reliable(NATIVE);
    let built = script.built.lock().unwrap().clone();
    assert_eq!(built.len(), 1, "{built:?}");
    let PathFacts { own, peer, mtu, is_peer_native, socket_bytes } = built[0];
    assert_eq!((own, peer), (pair.ends[0].address, pair.ends[1].address));
    assert_eq!((mtu, is_peer_native, socket_bytes), (Mtu::Mtu1024, true, 1 << 20));
    let standard = Script::new(MTU, None);
    standard.reliable(PeerCapabilities::STANDARD);
    let built = standard.built.lock().unwrap().clone();
    assert_eq!((built.len(), built[0].is_peer_native, built[0].socket_bytes), (1, false, 64 << 10));
}

#[test]
fn the_window_bounds_what_is_in_flight_as_the_socket_does() {
    for (window, packets) in [(4 * MTU, 4), (5 * MTU - 1, 4), (40 * MTU, 40), (u64::MAX, 64)] {
        let script = Script::new(window, None);
        let mut pair = script.reliable(PeerCapabilities::STANDARD);
        write(&mut pair, 200_000);
        pair.drive(Duration::from_millis(1));
        assert_eq!(pair.most_in_flight, packets, "{window}");
        let most = script
            .heard()
            .iter()
            .map(|heard| if let ControlCall::Sent(sent) = heard { sent.in_flight } else { 0 })
            .max();
        assert_eq!(most, Some(u64::from(packets) * MTU));
        expect_done(&mut pair, 1);
    }
}

#[test]
fn a_window_below_one_packet_allows_one_packet() {
    for window in [0, 1, MTU - 1] {
        let script = Script::new(window, None);
        let mut pair = script.reliable(NATIVE);
        write(&mut pair, 10_000);
        read(&mut pair, 10_000);
        pair.drive(Duration::from_millis(1));
        assert_eq!(pair.most_in_flight, 1);
        assert!(script.sends().iter().all(|(_, bytes)| *bytes == MTU));
        expect_done(&mut pair, 2);
    }
}

#[test]
fn a_rate_spaces_packets_and_consumes_no_retries() {
    // A packet every 10 ms: longer than a probe waits. 16 packets, without a response, last longer than the transport
    // timer.
    let script = Script::new(u64::MAX, Some(100 * MTU));
    let mut pair = script.reliable(PeerCapabilities::STANDARD);
    let start = pair.now;
    write(&mut pair, 40 * MTU as u32);
    pair.drive(Duration::from_millis(10));
    let sends = script.sends();
    assert_eq!(sends.len(), 40);
    for (packet, (now, bytes)) in (0..).zip(sends) {
        assert_eq!((now, bytes), (start + packet * Duration::from_millis(10), MTU), "{packet}");
    }
    expect_done(&mut pair, 1);
}

#[test]
fn each_send_waits_until_the_previous_one_is_paid_for() {
    let script = Script::new(20 * MTU, Some(1_000 * MTU));
    let mut pair = script.reliable(NATIVE);
    let start = pair.now;
    write(&mut pair, 100 * MTU as u32);
    pair.drive(Duration::from_millis(20));
    let sends = script.sends();
    let sent_before = |end| -> u64 { sends.iter().filter(|(now, _)| *now < end).map(|(_, bytes)| *bytes).sum() };
    for burst in 0..5 {
        let begins = start + burst * Duration::from_millis(20);
        assert_eq!(sent_before(begins), u64::from(burst) * 20 * MTU, "burst {burst}");
    }
    assert_eq!(sent_before(Time::NEVER), 100 * MTU);
    expect_done(&mut pair, 1);
}

#[test]
fn acknowledgements_come_with_their_bytes_and_round_trips() {
    let script = Script::new(u64::MAX, None);
    let mut pair = script.reliable(NATIVE);
    write(&mut pair, 100 * MTU as u32);
    read(&mut pair, 10 * MTU as u32);
    pair.carry(0);
    let round_trip = Duration::from_micros(70);
    pair.now = pair.now + round_trip;
    pair.drive(Duration::from_millis(1));
    expect_done(&mut pair, 2);
    let sent: u64 = script.sends().iter().map(|(_, bytes)| bytes).sum();
    let acknowledged = script.acknowledged();
    assert_eq!((sent, acknowledged.iter().map(|ack| ack.bytes).sum()), (110 * MTU, 110 * MTU));
    let mut in_flight = 110 * MTU;
    for ack in &acknowledged {
        in_flight -= ack.bytes;
        assert_eq!((ack.in_flight, ack.now), (in_flight, pair.now));
    }
    assert_eq!(acknowledged[0].round_trip, Some(round_trip));
    assert!(acknowledged.iter().filter_map(|ack| ack.round_trip).all(|measured| measured == round_trip));
    assert_eq!(script.events(), []);
}

#[test]
fn a_lost_packet_is_a_congestion_event() {
    let script = Script::new(u64::MAX, None);
    let mut pair = script.reliable(NATIVE);
    write(&mut pair, 10 * MTU as u32);
    let mut packets = Vec::new();
    loop {
        match pair.ends[0].transmit(pair.now) {
            send if send.is_empty() => break,
            send => packets.extend(send),
        }
    }
    assert_eq!(packets.len(), 10);
    packets.remove(4);
    let source = pair.ends[0].address;
    pair.ends[1].handle(pair.now, source, &packets);
    pair.drive(Duration::from_millis(1));
    assert!(pair.ends[0].poll()[0].status.is_success());
    let events = script.events();
    assert_eq!(events.len(), 1, "{events:?}");
    // The report that the fifth packet is missing acknowledges four.
    assert_eq!((events[0].kind, events[0].in_flight), (CongestionKind::Loss, 6 * MTU));
    assert_eq!(script.acknowledged().iter().map(|ack| ack.bytes).sum::<u64>(), 10 * MTU);
}

/// A round trip is over when its packets have arrived, although one before them is lost again and again.
#[test]
fn packets_behind_a_gap_are_reported_to_the_controller_at_once_and_once() {
    let script = Script::new(u64::MAX, None);
    let gap_runs = PeerCapabilities { extensions: PeerCapabilities::GAP_RUNS, ..NATIVE };
    let mut pair = script.reliable(gap_runs);
    write(&mut pair, 10 * MTU as u32);
    let packets = pair.catch(0);
    packets[1..].iter().for_each(|sent| pair.deliver(sent));
    pair.catch(1).iter().for_each(|sent| pair.deliver(sent));
    let arrived: u64 = script.acknowledged().iter().map(|ack| ack.bytes).sum();
    let in_flight = script.acknowledged().last().map(|ack| ack.in_flight);
    assert_eq!((arrived, in_flight), (9 * MTU, Some(MTU)));
    pair.drive(Duration::from_millis(1));
    assert!(pair.ends[0].poll()[0].status.is_success());
    let acknowledged = script.acknowledged();
    assert_eq!(acknowledged.iter().map(|ack| ack.bytes).sum::<u64>(), 10 * MTU);
    assert_eq!(acknowledged.last().map(|ack| ack.in_flight), Some(0));
}

#[test]
fn a_transport_timeout_is_persistent_congestion() {
    let script = Script::new(u64::MAX, None);
    let mut pair = script.reliable(NATIVE);
    write(&mut pair, 10 * MTU as u32);
    let end = &mut pair.ends[0];
    while end.endpoint.counters().get(Counter::LocalAckTimeout) == 0 {
        while !end.transmit(pair.now).is_empty() {}
        pair.now = end.endpoint.next_timeout().expect("a clock runs");
        end.endpoint.handle_timeout(pair.now);
    }
    let kind = CongestionKind::Persistent;
    assert_eq!(script.events().len(), 1);
    let event = script.events()[0];
    assert_eq!((event.now, event.kind, event.in_flight), (pair.now, kind, 10 * MTU));
    // All packets leave again and count as sent again, although they were already in flight. Only the first is known to
    // be lost.
    let before = script.heard().len();
    end.transmit(pair.now);
    let again = |lost| ControlCall::Sent(Sent { now: pair.now, bytes: MTU, lost, in_flight: 10 * MTU });
    let heard = script.heard().split_off(before);
    assert_eq!((heard[0], heard[1..].iter().all(|heard| *heard == again(0))), (again(MTU), true));
    pair.drive(Duration::from_millis(1));
    assert!(pair.ends[0].poll()[0].status.is_success());
}

/// Together they have the window and rate of one flow.
#[test]
fn queue_pairs_with_a_common_peer_share_a_controller() {
    let script = Script::new(20 * MTU, Some(1_000 * MTU));
    let mut crowd = script.crowd(8);
    let (start, write) = (crowd.pair.now, crowd.write());
    (0..8).for_each(|member| crowd.post(member, write, 10 * MTU as u32, 1, 1));
    crowd.pair.drive(Duration::from_millis(20));
    crowd.expect_done(0..8, 1);
    assert_eq!(script.built.lock().unwrap().len(), 1);
    assert!(crowd.pair.most_in_flight <= 20, "{} in flight", crowd.pair.most_in_flight);
    let sends = script.sends();
    assert_eq!(sends.iter().map(|(_, bytes)| *bytes).sum::<u64>(), 80 * MTU);
    let (last, _) = sends.last().copied().unwrap();
    assert!(last >= start + Duration::from_millis(60), "80 packets of 1 ms in {:?}", last.saturating_since(start));
    assert_eq!(script.acknowledged().iter().map(|ack| ack.bytes).sum::<u64>(), 80 * MTU);
}

#[test]
fn queue_pairs_that_wait_for_the_pace_alternate() {
    let script = Script::new(u64::MAX, Some(1_000 * MTU));
    let mut crowd = script.crowd(4);
    let write = crowd.write();
    (0..4).for_each(|member| crowd.post(member, write, 100 * MTU as u32, 1, 1));
    crowd.pair.drive(Duration::from_millis(20));
    crowd.expect_done(0..4, 1);
    let mut sent = std::collections::BTreeMap::new();
    let mut left = 200;
    for (qpn, packets) in &crowd.pair.sends {
        left = usize::saturating_sub(left, *packets);
        *sent.entry(*qpn).or_insert(0) += if left > 0 { *packets } else { 0 };
    }
    assert!(sent.len() == 4 && sent.values().all(|packets| (25..=75).contains(packets)), "of 200: {sent:?}");
}

#[test]
fn queue_pairs_alternate_in_a_window_of_one_packet() {
    let script = Script::new(MTU, None);
    let mut crowd = script.crowd(4);
    let write = crowd.write();
    (0..4).for_each(|member| crowd.post(member, write, 10 * MTU as u32, 1, 1));
    crowd.pair.drive(Duration::from_millis(1));
    crowd.expect_done(0..4, 1);
    assert_eq!(crowd.pair.most_in_flight, 1);
}

/// Other queue pairs may wait for the room that these packets take.
#[test]
fn every_fourth_packet_on_a_shared_controlled_path_requests_an_acknowledgement() {
    let script = Script::new(100 * MTU, None);
    let mut crowd = script.crowd(2);
    let write = crowd.write();
    let mut requesting = |member, packets: u32| {
        crowd.post(member, write, packets * MTU as u32, 1, 1);
        let sent = crowd.pair.catch(0);
        (sent.len(), sent.iter().filter(|sent| sent.headers.bth.ack_request).count())
    };
    let (alone, among_others) = (requesting(0, 40), requesting(1, 40));
    assert!(alone.0 == 40 && alone.1 <= 4, "{alone:?}");
    assert!(among_others.0 == 40 && (10..=12).contains(&among_others.1), "{among_others:?}");
}

/// Messages that answer each other would otherwise leave with an acknowledgement each.
#[test]
fn a_message_of_one_packet_requests_no_acknowledgement_in_order_to_be_measured() {
    let mut pair = Script::new(100 * MTU, None).reliable(NATIVE);
    let mut requests_of = |bytes: u32| {
        let (sge, rkey) = (pair.ends[0].sge(0, bytes), pair.ends[1].region.rkey());
        let write = Operation::Write { remote_addr: 0x10_0000, rkey };
        pair.ends[0].post_flagged(pair.now, write, &[sge], SendFlags::empty());
        let sent = pair.catch(0);
        sent.iter().for_each(|sent| pair.deliver(sent));
        pair.carry(1);
        pair.now = pair.now + Duration::from_micros(20);
        sent.iter().filter(|sent| sent.headers.bth.ack_request).count()
    };
    assert_eq!(requests_of(8), 1, "none was requested recently");
    assert_eq!((0..10).map(|_| requests_of(8)).sum::<usize>(), 0);
    assert_eq!(requests_of(2 * MTU as u32), 1, "a longer message is measured");
}

#[test]
fn each_dscp_has_its_own_controller() {
    let script = Script::new(16 * MTU, None);
    let mut crowd = script.crowd(0);
    for (traffic_class, built) in [(0, 1), (0x28, 2), (0x28, 2), (0, 2)] {
        crowd.pair.ends[0].traffic_class = traffic_class;
        crowd.add(NATIVE, [None, None]);
        assert_eq!(script.built.lock().unwrap().len(), built, "class {traffic_class:#x}");
    }
}
