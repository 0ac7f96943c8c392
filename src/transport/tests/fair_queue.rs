//! Many queue pairs with a common peer: the window that they share, and the queue for it.

use std::collections::BTreeMap;

use super::*;

const WRITE_BYTES: u32 = 64 << 10;
/// Returns native capabilities with a receive buffer that holds twice `window` packets of 1 KiB.
const fn ours_with(window: u32) -> PeerCapabilities {
    PeerCapabilities { receive_buffer_bytes: window * 2 * (1_024 + 832), ..NATIVE }
}

/// A pair of ends with many queue pairs each. The member that was called last acts for its end.
pub(super) struct Crowd {
    pub(super) pair: Pair,
    members: [Vec<Member>; 2],
}

impl Crowd {
    pub(super) fn new(count: usize, capabilities: PeerCapabilities) -> Self {
        Self::of(Pair::new(capabilities), count, capabilities)
    }

    /// Adds `count` queue pairs to the pair's own.
    pub(super) fn of(pair: Pair, count: usize, capabilities: PeerCapabilities) -> Self {
        let mut crowd = Self { pair, members: [Vec::new(), Vec::new()] };
        (0..count).for_each(|_| crowd.add(capabilities, [None, None]));
        crowd
    }

    /// Adds a queue pair at each end, whose completion queues notify.
    pub(super) fn add(&mut self, capabilities: PeerCapabilities, notify: [Option<Arc<dyn Notify>>; 2]) {
        let member = self.members[0].len();
        for ((end, members), notify) in self.pair.ends.iter_mut().zip(&mut self.members).zip(notify) {
            members.push(Member::notifying(&mut end.endpoint, end.service, None, &end.events, notify));
        }
        for at in 0..2 {
            let qpn = self.members[1 - at][member].qpn;
            let peer = Peer { address: self.pair.ends[1 - at].address, qpn, capabilities };
            self.call(at, member).connect(&peer);
        }
    }

    pub(super) fn call(&mut self, at: usize, member: usize) -> &mut End {
        let Member { send, receive, completions, qpn } = &self.members[at][member];
        let end = &mut self.pair.ends[at];
        (end.send, end.receive) = (send.clone(), receive.clone());
        (end.completions, end.qpn) = (completions.clone(), *qpn);
        end
    }

    /// Posts requests to one queue pair. Each `signaled`-th and the last generate a completion.
    pub(super) fn post(&mut self, member: usize, operation: Operation, bytes: u32, count: usize, signaled: usize) {
        let now = self.pair.now;
        let end = self.call(0, member);
        let sge = end.sge(0, bytes);
        end.send.begin();
        for request in 1..=count {
            let is_signaled = request % signaled == 0 || request == count;
            let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            end.send.push(&SendRequest { wr_id: request as u64, operation, flags, data: Data::Sges(&[sge]) }).unwrap();
        }
        end.send.end(BatchEnd::Publish).unwrap();
        end.endpoint.handle_doorbell(now, end.qpn);
    }

    pub(super) fn write(&self) -> Operation {
        Operation::Write { remote_addr: 0x10_0000, rkey: self.pair.ends[1].region.rkey() }
    }

    fn read(&self) -> Operation {
        Operation::Read { remote_addr: 0x10_0000, rkey: self.pair.ends[1].region.rkey() }
    }

    fn go_to(&mut self, at: usize, member: usize, state: QueuePairState) {
        let (now, attributes) =
            (self.pair.now, QueuePairAttributes { qp_state: Some(state), ..QueuePairAttributes::default() });
        let end = self.call(at, member);
        end.endpoint.modify_queue_pair(now, end.qpn, &attributes, None, &LIMITS).unwrap();
    }

    pub(super) fn destroy(&mut self, at: usize, member: usize) {
        let end = self.call(at, member);
        let qpn = end.qpn;
        assert!(end.endpoint.destroy_queue_pair(qpn));
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.pair.ends[0].endpoint.packets_in_flight(self.pair.ends[1].address)
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.pair.ends[0].endpoint.counters().get(counter)
    }

    /// Returns whether the last of `count` requests has completed. Asserts that all before it have succeeded.
    fn is_done(&mut self, member: usize, count: usize) -> bool {
        let completions = self.call(0, member).poll();
        assert!(completions.iter().all(|completion| completion.status.is_success()), "{completions:?}");
        completions.last().is_some_and(|last| last.wr_id == count as u64)
    }

    pub(super) fn expect_done(&mut self, members: impl IntoIterator<Item = usize>, count: usize) {
        for member in members {
            assert!(self.is_done(member, count), "queue pair {member} never completes");
        }
    }

    /// Asserts that there was no loss, and that nothing is pending.
    fn expect_idle_without_losses(&mut self, window: u32) {
        assert_eq!(self.in_flight(), 0);
        assert!(self.pair.most_in_flight <= window, "{} in flight", self.pair.most_in_flight);
        assert_eq!(self.counted(Counter::LocalAckTimeout), 0);
        let (again, probes) = (self.counted(Counter::RetransmittedPackets), self.counted(Counter::TailProbe));
        assert!(again <= probes, "{again} packets were sent again, {probes} of them as probes");
        assert_eq!(self.pair.ends[0].endpoint.next_timeout(), None);
    }
}

/// The deadlock to avoid: all queue pairs have packets in flight, none has requested an acknowledgement, and the
/// packets that would request one wait in the queue.
#[test]
fn many_queue_pairs_share_a_window() {
    for (count, window) in [(10, 256), (40, 256), (10, 16), (40, 16), (100, 64)] {
        let mut crowd = Crowd::new(count, ours_with(window));
        let write = crowd.write();
        (0..count).for_each(|member| crowd.post(member, write, WRITE_BYTES, 16, 4));
        // Shorter than the wait of a probe.
        crowd.pair.drive(Duration::from_millis(1));
        crowd.expect_done(0..count, 16);
        crowd.expect_idle_without_losses(window);
    }
}

/// As long as all have something to send, none is far ahead, and sends are full.
#[test]
fn grants_are_fair_and_fill_sends() {
    let (count, window) = (20, 256);
    let mut crowd = Crowd::new(count, ours_with(window));
    let write = crowd.write();
    (0..count).for_each(|member| crowd.post(member, write, WRITE_BYTES, 16, 4));
    crowd.pair.drive(Duration::from_millis(1));
    let total = 16 * u64::from(WRITE_BYTES) / 1_024;
    let mut sent: BTreeMap<Qpn, u64> = BTreeMap::new();
    let mut most_apart = 0;
    for (qpn, packets) in &crowd.pair.sends {
        let all = sent.entry(*qpn).or_default();
        *all += *packets as u64;
        if *all >= total {
            break; // the first is done, and the others may go ahead
        }
        if sent.len() == count {
            most_apart = most_apart.max(sent.values().max().unwrap() - sent.values().min().unwrap());
        }
    }
    // A grant covers the free room, up to 64 packets. Over many grants, random differences add up to several times
    // that.
    assert!(most_apart <= 6 * 64, "one is {most_apart} packets ahead, and 64 leave at once");
    let (sends, packets) = (crowd.pair.sends.len(), crowd.pair.packets as usize);
    assert!(packets >= 16 * sends, "{sends} sends of {packets} packets");
}

/// A READ takes half of the window at once: a queue pair that waits for more room than there is must not be granted
/// less.
#[test]
fn reads_wait_for_the_room_that_they_need() {
    for window in [16, 64, 256] {
        let mut crowd = Crowd::new(12, ours_with(window));
        let operations = [crowd.read(), crowd.write()];
        (0..12).for_each(|member| crowd.post(member, operations[member % 2], WRITE_BYTES, 8, 3));
        crowd.pair.drive(Duration::from_millis(1));
        crowd.expect_done(0..12, 8);
        crowd.expect_idle_without_losses(window);
    }
}

/// Standard peers take no bursts, so when the window is full, each queue pair has sent one packet without an
/// acknowledgement request.
#[test]
fn a_full_window_without_ack_requests_is_probed_soon() {
    let mut crowd = Crowd::new(64, PeerCapabilities::STANDARD);
    let write = crowd.write();
    (0..64).for_each(|member| crowd.post(member, write, 16 << 10, 4, 4));
    crowd.pair.drive(Duration::from_millis(1));
    crowd.expect_done(0..64, 4);
    crowd.expect_idle_without_losses(64);
}

/// Neither small nor large requests starve.
#[test]
fn small_and_large_requests_wait_for_each_other() {
    let mut crowd = Crowd::new(30, ours_with(32));
    let write = crowd.write();
    for member in 0..30 {
        let bytes = if member % 2 == 0 { 8 } else { WRITE_BYTES };
        crowd.post(member, write, bytes, 60, 7);
    }
    crowd.pair.drive(Duration::from_millis(1));
    crowd.expect_done(0..30, 60);
    crowd.expect_idle_without_losses(32);
}

#[test]
fn a_queue_pair_that_ends_blocks_no_others() {
    for first in 0..12 {
        let mut crowd = Crowd::new(12, ours_with(16));
        let write = crowd.write();
        (0..12).for_each(|member| crowd.post(member, write, WRITE_BYTES, 4, 4));
        crowd.pair.carry(0); // the window is full, all but one or two wait
        let gone = [first, (first + 1) % 12, (first + 2) % 12];
        crowd.destroy(0, gone[0]);
        crowd.go_to(0, gone[1], QueuePairState::Reset);
        crowd.go_to(0, gone[2], QueuePairState::Error);
        crowd.pair.drive(Duration::from_millis(1));
        crowd.expect_done((0..12).filter(|member| !gone.contains(member)), 4);
        crowd.expect_idle_without_losses(16);
    }
}

/// One of two processes at the peer's address is gone: the queue pairs connected to it delay no others.
#[test]
fn a_silent_peer_delays_no_other() {
    let mut crowd = Crowd::new(16, ours_with(16));
    let write = crowd.write();
    (0..8).for_each(|member| crowd.destroy(1, member));
    (0..16).for_each(|member| crowd.post(member, write, WRITE_BYTES, 4, 4));
    let start = crowd.pair.now;
    let mut left: Vec<usize> = (8..16).collect();
    while !left.is_empty() {
        crowd.pair.drive(Duration::from_millis(1));
        left.retain(|member| !crowd.is_done(*member, 4));
        let waited = crowd.pair.now.saturating_since(start);
        assert!(waited < Duration::from_millis(500), "{left:?} wait for those without a response");
        let end = &mut crowd.pair.ends[0];
        let Some(next) = end.endpoint.next_timeout() else { continue };
        crowd.pair.now = crowd.pair.now.max(next);
        end.endpoint.handle_timeout(crowd.pair.now);
    }
    crowd.pair.drive(Duration::from_secs(1));
    for member in 0..8 {
        let completions = crowd.call(0, member).poll();
        assert_eq!(completions[0].status, CompletionStatus::RetryExceededError, "queue pair {member}");
    }
    assert_eq!(crowd.in_flight(), 0);
}

/// Without a response, each queue pair tries only single packets: they do not count against the window, and more from
/// all queue pairs together would fill the socket.
#[test]
fn many_queue_pairs_send_few_packets_to_a_silent_peer() {
    let mut crowd = Crowd::new(50, ours_with(64));
    let write = crowd.write();
    (0..50).for_each(|member| crowd.destroy(1, member));
    (0..50).for_each(|member| crowd.post(member, write, WRITE_BYTES, 4, 4));
    crowd.pair.drive(Duration::from_secs(1));
    let rounds = crowd.counted(Counter::TailProbe) + crowd.counted(Counter::LocalAckTimeout);
    assert!(crowd.pair.packets <= 64 + 2 * rounds, "{} packets in {rounds} rounds", crowd.pair.packets);
    assert_eq!(crowd.in_flight(), 0);
}

/// A queue pair that goes back for a lost packet and finds the room taken waits for a grant, not for the peer.
#[test]
fn waiting_for_a_grant_consumes_no_retries() {
    let mut crowd = Crowd::new(2, ours_with(16));
    let write = crowd.write();
    let now = crowd.pair.now;
    crowd.post(0, write, 4 << 10, 1, 1);
    while !crowd.pair.ends[0].transmit(now).is_empty() {}
    crowd.post(1, write, WRITE_BYTES, 1, 1);
    while !crowd.pair.ends[0].transmit(now).is_empty() {}
    assert_eq!(crowd.in_flight(), 16);
    let qpn = crowd.members[0][0].qpn;
    let endpoint = &mut crowd.pair.ends[0].endpoint;
    let slot = endpoint.slot_of(qpn).unwrap();
    // The peer has requested the first packet again; the other queue pair was first to take the room.
    let queue_pair = endpoint.at(slot).unwrap();
    queue_pair.requester.go_back();
    queue_pair.requester.note_in_flight(&queue_pair.common);
    endpoint.handle_doorbell(now, qpn);
    while !crowd.pair.ends[0].transmit(now).is_empty() {}
    assert_eq!(crowd.in_flight(), 16);
    let queue_pair = crowd.pair.ends[0].endpoint.at(slot).unwrap();
    assert!(queue_pair.requester.waits_for_grant());
    for wait in 1..20 {
        queue_pair.handle_timeout(now + Duration::from_millis(100) * wait);
    }
    assert_eq!(queue_pair.requester.rounds(), 0);
    crowd.pair.ends[0].endpoint.destroy_queue_pair(crowd.members[0][1].qpn);
    crowd.pair.drive(Duration::from_millis(1));
    crowd.expect_done([0], 1);
}
