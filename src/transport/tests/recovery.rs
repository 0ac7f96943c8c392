//! Recovery on a wire that loses chosen packets, in virtual time and without delay.

use super::keyed::{agreed, connect};
use super::*;
use crate::wire::{Headers, Opcode, Packet};

const FIRST: Psn = Psn::new(0xff_fff0);
pub(super) const MTU: u32 = 1_024;
pub(super) const GAP_RUNS: PeerCapabilities = PeerCapabilities { extensions: PeerCapabilities::GAP_RUNS, ..NATIVE };
/// Duration that an attribute `timeout` of 14 stands for.
const TIMEOUT: Duration = Duration::from_nanos(4_096 << 14);

/// A packet that an end has sent.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) from: usize,
    pub(super) at: Time,
    pub(super) headers: Headers,
    pub(super) bytes: Vec<u8>,
}

impl Sent {
    /// Returns the distance of its PSN from the first one.
    pub(super) fn psn_offset(&self) -> i32 {
        self.headers.bth.psn.distance_from(FIRST)
    }

    pub(super) fn is_read_request(&self) -> bool {
        self.headers.bth.opcode == Opcode::RC_READ_REQUEST
    }

    pub(super) fn is_read_response(&self) -> bool {
        self.headers.bth.opcode.is_response() && self.headers.bth.opcode != Opcode::RC_ACKNOWLEDGE
    }

    /// Returns how many PSNs it takes.
    pub(super) fn packets(&self) -> u32 {
        self.headers.reth.filter(|_| self.is_read_request()).map_or(1, |reth| reth.length.div_ceil(MTU))
    }
}

/// Connects native peers with a key, which report all gaps to each other.
pub(super) fn keyed() -> Pair {
    keyed_with_timeout(14)
}

/// Connects native peers with a key and this code of the transport timeout.
pub(super) fn keyed_with_timeout(timeout: u8) -> Pair {
    let service = QueuePairType::ReliableConnection;
    let ends = [("192.0.2.1", 1), ("192.0.2.2", 2)].map(|(address, seed)| {
        let end = End::new(service, address, seed);
        End { timeout, ..end }
    });
    connect(ends, agreed(), GAP_RUNS)
}

impl Pair {
    pub(super) fn begin_write(&mut self, packets: u32) {
        let (now, local) = (self.now, self.ends[0].sge(0, packets * MTU));
        let rkey = self.ends[1].region.rkey();
        self.ends[0].post(now, Operation::Write { remote_addr: 0x10_0000, rkey }, &[local]);
    }

    pub(super) fn begin_read(&mut self, bytes: u32) {
        let (now, local) = (self.now, self.ends[0].sge(0, bytes));
        let rkey = self.ends[1].region.rkey();
        self.ends[0].post(now, Operation::Read { remote_addr: 0x10_0000, rkey }, &[local]);
    }

    /// Returns everything that an end sends now, without delivering it.
    pub(super) fn catch(&mut self, from: usize) -> Vec<Sent> {
        let mut caught = Vec::new();
        loop {
            let packets = self.ends[from].transmit(self.now);
            if packets.is_empty() {
                return caught;
            }
            caught.extend(packets.into_iter().map(|bytes| {
                let headers = Packet::parse(&bytes).unwrap().headers;
                Sent { from, at: self.now, headers, bytes }
            }));
        }
    }

    pub(super) fn deliver(&mut self, sent: &Sent) {
        let source = self.ends[sent.from].address;
        self.ends[1 - sent.from].handle(self.now, source, std::slice::from_ref(&sent.bytes));
    }

    /// Runs for this time. Returns everything that was sent, including the packets that `is_lost` kept from arriving.
    pub(super) fn run(&mut self, time: Duration, mut is_lost: impl FnMut(&Sent) -> bool) -> Vec<Sent> {
        let (end, mut all) = (self.now + time, Vec::new());
        for _ in 0..1_000_000 {
            let sent: Vec<Sent> = (0..2).flat_map(|from| self.catch(from)).collect();
            for packet in &sent {
                if !is_lost(packet) {
                    self.deliver(packet);
                }
            }
            if sent.is_empty() {
                let next = self.ends.iter().filter_map(|end| end.endpoint.next_timeout()).min();
                let Some(next) = next.filter(|next| *next <= end) else { break };
                self.now = self.now.max(next);
                self.ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(self.now));
            }
            all.extend(sent);
        }
        self.now = end;
        all
    }

    pub(super) fn statuses(&self) -> Vec<CompletionStatus> {
        self.ends[0].poll().iter().map(|completion| completion.status).collect()
    }
}

fn requests(sent: &[Sent]) -> usize {
    sent.iter().filter(|sent| sent.from == 0).count()
}

/// The peer would refuse such a READ, or drop an earlier one whose responses are still missing.
#[test]
fn missing_responses_without_room_count_against_the_read_limit() {
    let mut pair = keyed();
    pair.begin_read(200 * MTU);
    pair.catch(0).iter().for_each(|sent| pair.deliver(sent));
    let responses = pair.catch(1);
    assert_eq!(responses.len(), 200);
    {
        let end = &pair.ends[0];
        let queue_pair = end.endpoint.find(end.qpn).unwrap();
        let path = queue_pair.common.path.as_ref().unwrap();
        path.window_share.change_in_flight(0, path.socket_packets - 150);
    }
    responses[100..104].iter().for_each(|sent| pair.deliver(sent));
    (0..30).for_each(|_| pair.begin_read(8));
    let sent = pair.catch(0);
    assert!(sent.len() <= 3, "{} requests beside one of at most four", sent.len());
}

/// Later responses show that its request was executed, and everything before it: at the peer, these requests are done.
#[test]
fn a_read_whose_response_is_lost_makes_room_for_another() {
    let mut pair = keyed();
    (0..12).for_each(|_| pair.begin_read(8));
    let requests = pair.catch(0);
    assert_eq!(requests.len(), 4, "as many as may be outstanding");
    requests.iter().for_each(|sent| pair.deliver(sent));
    let responses = pair.catch(1);
    responses[1..3].iter().for_each(|sent| pair.deliver(sent));
    let offsets = |sent: &[Sent]| -> Vec<i32> { sent.iter().map(Sent::psn_offset).collect() };
    let mut sent = pair.catch(0);
    assert_eq!(offsets(&sent), [4, 5, 6], "the last one may not have been executed");
    pair.deliver(&responses[3]);
    sent.extend(pair.catch(0));
    assert_eq!(offsets(&sent), [4, 5, 6, 0, 7], "and the first one is lost");
    sent.iter().for_each(|sent| pair.deliver(sent));
    pair.run(Duration::from_millis(10), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 12]);
}

#[test]
fn a_read_that_was_not_executed_makes_no_room() {
    let mut pair = keyed();
    (0..8).for_each(|_| pair.begin_read(8));
    let sent = pair.run(Duration::from_millis(50), |sent| sent.is_read_request());
    assert!(sent.len() > 4, "some are made again");
    assert!(sent.iter().all(|sent| sent.psn_offset() < 4), "no more than may be outstanding");
}

#[test]
fn retransmissions_to_a_silent_peer_back_off_and_end() {
    for is_read in [false, true] {
        let mut pair = keyed();
        if is_read {
            pair.begin_read(50 * MTU)
        } else {
            pair.begin_write(50)
        }
        let is_first = |sent: &Sent| sent.psn_offset() == 0 && (sent.from == 0) != is_read;
        let mut lost = false;
        let mut heard = 0;
        let sent = pair.run(TIMEOUT, |sent| {
            let is_silent = heard > 0 && (sent.from == 0 || !is_read);
            lost |= is_first(sent);
            heard += u32::from(sent.from == 1 && lost);
            is_silent || is_first(sent)
        });
        assert!(requests(&sent) < 100, "{} packets in one timeout", requests(&sent));
        let sent = pair.run(60 * TIMEOUT, |_| true);
        assert!(requests(&sent) < 600, "{} packets until it fails", requests(&sent));
        assert_eq!(pair.statuses(), [CompletionStatus::RetryExceededError]);
    }
}

/// Loses the first of 50 packets again and again for this long. Returns the packets that the requester sends after
/// that.
fn sent_after_the_first_was_lost_for(length: Duration) -> Vec<Sent> {
    let mut pair = keyed_with_timeout(24);
    // The peer's first response shows that it has the key.
    pair.begin_write(1);
    pair.run(TIMEOUT, |_| false);
    pair.begin_write(50);
    let start = pair.now;
    pair.run(length, |sent| sent.from == 0 && sent.psn_offset() == 1 && sent.at.saturating_since(start) < length);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    let mut sent = pair.run(Duration::from_secs(10), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    sent.retain(|sent| sent.from == 0);
    sent
}

#[test]
fn packets_that_the_peer_keeps_for_seconds_are_not_retransmitted() {
    let sent = sent_after_the_first_was_lost_for(Duration::from_secs(5));
    assert!(sent.len() <= 2, "{} packets", sent.len());
}

/// The peer keeps early packets for 10 seconds.
#[test]
fn packets_that_the_peer_has_dropped_are_retransmitted_at_once() {
    let sent = sent_after_the_first_was_lost_for(Duration::from_millis(10_100));
    assert!(sent.len() >= 50, "{} packets", sent.len());
    let took = sent[sent.len() - 1].at.saturating_since(sent[0].at);
    assert!(took < Duration::from_millis(5), "{took:?} from the first to the last packet");
}

/// The path carries no packets as long as the WRITE's.
#[test]
fn a_packet_that_never_arrives_fails_although_a_later_read_arrives() {
    let mut pair = keyed();
    // The peer's first response shows that it has the key.
    pair.begin_read(8);
    pair.run(TIMEOUT, |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    pair.begin_write(1);
    pair.begin_read(8);
    let mut sent = 0;
    for _ in 0..100 {
        sent += requests(&pair.run(TIMEOUT, |sent| sent.bytes.len() > 1_000));
    }
    assert_eq!(pair.statuses()[0], CompletionStatus::RetryExceededError, "after {sent} packets");
}

#[test]
fn a_timeout_and_an_early_response_cause_one_retransmission() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    pair.begin_read(10 * MTU);
    pair.catch(0).iter().for_each(|sent| pair.deliver(sent));
    let responses = pair.catch(1);
    pair.run(TIMEOUT - Duration::from_micros(50), |_| true);
    pair.deliver(&responses[5]);
    let sent = pair.run(Duration::from_micros(800), |sent| sent.from == 1);
    assert_eq!(requests(&sent), 1, "one of the timeout");
}

#[test]
fn late_responses_after_going_back_are_requested_once() {
    let mut pair = keyed();
    (0..4).for_each(|_| pair.begin_read(10 * MTU));
    pair.catch(0).iter().for_each(|sent| pair.deliver(sent));
    let late: Vec<Sent> = pair.catch(1);
    pair.run(TIMEOUT - Duration::from_micros(1), |_| true);
    pair.now = pair.now + Duration::from_micros(2);
    let now = pair.now;
    pair.ends[0].endpoint.handle_timeout(now);
    let mut requests = pair.catch(0);
    requests.iter().chain(&late[21..]).for_each(|sent| pair.deliver(sent));
    requests.extend(pair.run(Duration::from_millis(10), |_| false));
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 4]);
    for offset in 0..40 {
        let covers = |sent: &&Sent| {
            sent.from == 0 && (sent.psn_offset()..sent.psn_offset() + sent.packets() as i32).contains(&offset)
        };
        let times = requests.iter().filter(covers).count();
        assert!(times <= 1, "response {offset} was requested {times} times");
    }
}

#[test]
fn missing_responses_do_not_shorten_the_wait_for_a_receiver() {
    let mut pair = keyed();
    pair.begin_read(10 * MTU);
    let (now, local) = (pair.now, pair.ends[0].sge(0, 8));
    pair.ends[0].post(now, Operation::Send, &[local]);
    let mut first = true;
    let sent = pair.run(Duration::from_micros(600), |sent| sent.is_read_response() && std::mem::take(&mut first));
    let count =
        |sent: &[Sent], offset| sent.iter().filter(|sent| sent.from == 0 && sent.psn_offset() == offset).count();
    assert_eq!(count(&sent, 10), 1, "the receiver is not ready for 640 µs");
    let into = pair.ends[1].sge(512, 8);
    pair.ends[1].post_receive(&[into]);
    let sent = pair.run(Duration::from_millis(10), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 2]);
    let requests: Vec<u32> = sent.iter().filter(|sent| sent.is_read_request()).map(Sent::packets).collect();
    assert!(requests.is_empty() || requests == [1], "READ requests of {requests:?} packets for one that was lost");
}

/// No transport timer runs, so only the probe and visible gaps can trigger a repetition.
#[test]
fn early_atomic_responses_after_going_back_stop_no_timer() {
    let mut pair = keyed_with_timeout(0);
    pair.begin_read(8);
    pair.run(Duration::from_millis(5), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    for _ in 0..3 {
        let (now, local, rkey) = (pair.now, pair.ends[0].sge(0, 8), pair.ends[1].region.rkey());
        pair.ends[0].post(now, Operation::FetchAndAdd { remote_addr: 0x10_0000, rkey, add: 1 }, &[local]);
    }
    let sent = pair.catch(0);
    [0, 2].iter().for_each(|offset| pair.deliver(&sent[*offset]));
    let is_first = |sent: &Sent| sent.headers.bth.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE && sent.psn_offset() == 1;
    pair.catch(1).iter().filter(|sent| !is_first(sent)).for_each(|sent| pair.deliver(sent));
    pair.run(Duration::from_millis(100), |_| true);
    let mut left = 1;
    let lose_once = |sent: &Sent| is_first(sent) && std::mem::replace(&mut left, 0) == 1;
    pair.run(Duration::from_secs(5), lose_once);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 3]);
}

/// The response may belong to either copy (Karn's algorithm). If it belongs to the first one, the next probe must not
/// come too early again.
#[test]
fn the_response_to_a_probe_is_no_sample_and_the_next_probe_waits_longer() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let first_wait = |pair: &mut Pair| {
        pair.begin_write(1);
        let mut first = true;
        let sent = pair.run(Duration::from_millis(60), |_| std::mem::take(&mut first));
        let times: Vec<Time> = sent.iter().filter(|sent| sent.from == 0).map(|sent| sent.at).collect();
        times[1].saturating_since(times[0])
    };
    let [guess, longer] = [first_wait(&mut pair), first_wait(&mut pair)];
    assert!(longer > 2 * guess && longer < 3 * guess, "{guess:?}, {longer:?}");
    pair.begin_write(1);
    pair.run(Duration::from_millis(60), |_| false);
    assert!(first_wait(&mut pair) < guess);
}

/// The repeated requests do not wait for each other, and those that are lost again do not wait for the probe.
#[test]
fn lost_read_requests_are_repeated_together() {
    let mut pair = keyed();
    pair.begin_read(8);
    pair.run(Duration::from_millis(1), |_| false);
    (0..4).for_each(|_| pair.begin_read(10 * MTU));
    let mut left = [2, 0, 1, 0];
    let is_lost = |sent: &Sent| {
        let read = ((sent.psn_offset() - 1) / 10).clamp(0, 3) as usize;
        let is_lost = sent.is_read_request() && left[read] > 0;
        left[read] -= u32::from(is_lost);
        is_lost
    };
    let sent = pair.run(Duration::from_millis(1), is_lost);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 5]);
    assert_eq!(sent.iter().filter(|sent| sent.is_read_request()).count(), 4 + 3);
}
