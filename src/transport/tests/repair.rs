//! Repair of missing packets between native peers: each lost packet is sent again once, and nothing else is.

use super::recovery::{MTU, Sent, keyed};
use super::*;
use crate::wire::Opcode;

/// Connects native peers. The response to a READ, at offset 0, has shown the first one that the other has the key.
fn pair_after_a_read() -> Pair {
    let mut pair = keyed();
    pair.begin_read(8);
    pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    pair
}

impl Pair {
    fn begin_atomic(&mut self) {
        let (now, local, rkey) = (self.now, self.ends[0].sge(0, 8), self.ends[1].region.rkey());
        self.ends[0].post(now, Operation::FetchAndAdd { remote_addr: 0x10_0000, rkey, add: 1 }, &[local]);
    }

    fn begin_unsignaled_write(&mut self) {
        let (now, local, rkey) = (self.now, self.ends[0].sge(0, 8), self.ends[1].region.rkey());
        let write = Operation::Write { remote_addr: 0x10_0000, rkey };
        self.ends[0].post_flagged(now, write, &[local], SendFlags::empty());
    }

    /// Carries everything that an end sends now, except for the packets at these offsets, which are lost.
    fn carry_without(&mut self, from: usize, lost: &[i32]) {
        let sent = self.catch(from);
        sent.iter().filter(|sent| !lost.contains(&sent.psn_offset())).for_each(|sent| self.deliver(sent));
    }
}

/// Returns the offsets of the requests among the sent packets.
fn requested(sent: &[Sent]) -> Vec<i32> {
    sent.iter().filter(|sent| sent.from == 0).map(Sent::psn_offset).collect()
}

#[test]
fn responses_of_atomics_behind_a_read_that_misses_some_are_kept() {
    let mut pair = pair_after_a_read();
    pair.begin_read(10 * MTU);
    (0..3).for_each(|_| pair.begin_atomic());
    pair.carry_without(0, &[]);
    pair.carry_without(1, &[3]);
    let sent = pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 4]);
    assert_eq!(requested(&sent), [3]);
}

/// Packets that are sent again at the same time form one range.
#[test]
fn later_reports_do_not_repeat_recent_retransmissions() {
    let mut pair = pair_after_a_read();
    (0..2).for_each(|_| pair.begin_atomic());
    (0..4).for_each(|_| pair.begin_write(1));
    let sent = pair.catch(0);
    assert_eq!(requested(&sent), [1, 2, 3, 4, 5, 6]);
    sent[2..5].iter().for_each(|sent| pair.deliver(sent));
    pair.carry_without(1, &[]);
    assert_eq!(requested(&pair.catch(0)), [1, 2]);
    pair.deliver(&sent[5]);
    let report = pair.catch(1);
    assert_eq!(report.len(), 1);
    pair.deliver(&report[0]);
    assert_eq!(requested(&pair.catch(0)), []);
}

#[test]
fn a_read_with_arriving_responses_is_not_missing() {
    let mut pair = pair_after_a_read();
    pair.begin_read(10 * MTU);
    (0..3).for_each(|_| pair.begin_write(1));
    pair.carry_without(0, &[1]);
    pair.carry_without(1, &[]);
    let again = pair.catch(0);
    assert_eq!(requested(&again), [1]);
    pair.deliver(&again[0]);
    let responses = pair.catch(1);
    pair.deliver(&responses[0]);
    let sent = pair.run(Duration::from_millis(1), |_| true);
    assert_eq!(requested(&sent), [], "within the wait of the probe");
}

#[test]
fn packets_behind_an_rnr_nak_are_retransmitted_once() {
    let mut pair = pair_after_a_read();
    pair.begin_atomic();
    let (now, local, into) = (pair.now, pair.ends[0].sge(0, 8), pair.ends[1].sge(512, 8));
    pair.ends[0].post(now, Operation::Send, &[local]);
    pair.begin_atomic();
    (0..3).for_each(|_| pair.begin_write(1));
    pair.carry_without(0, &[1, 3]);
    pair.carry_without(1, &[]);
    let again = pair.catch(0);
    assert_eq!(requested(&again), [1, 3]);
    pair.deliver(&again[0]);
    pair.carry_without(1, &[]);
    pair.ends[1].post_receive(&[into]);
    pair.now = pair.now + Duration::from_millis(1);
    let now = pair.now;
    (0..2).for_each(|_| pair.ends[0].endpoint.handle_timeout(now));
    let sent = pair.catch(0);
    assert_eq!(requested(&sent), [2, 3, 4, 5, 6]);
    sent.iter().for_each(|sent| pair.deliver(sent));
    pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 6]);
}

/// The acknowledgement is queued before the READ's response, and reaches up to the READ.
#[test]
fn a_read_behind_kept_packets_does_not_delay_their_acknowledgement() {
    let mut pair = pair_after_a_read();
    pair.begin_write(1);
    (0..4).for_each(|_| pair.begin_unsignaled_write());
    pair.carry_without(0, &[1]);
    pair.carry_without(1, &[]);
    let again = pair.catch(0);
    assert_eq!(requested(&again), [1]);
    pair.begin_read(8);
    pair.carry_without(0, &[]);
    pair.deliver(&again[0]);
    for response in pair.catch(1) {
        pair.deliver(&response);
        assert_eq!(requested(&pair.catch(0)), []);
    }
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 2]);
}

impl Pair {
    /// Returns how long a lost WRITE waits for its repetition.
    fn probe_wait(&mut self) -> Duration {
        self.begin_write(1);
        let mut is_first = true;
        let sent = self.run(Duration::from_secs(5), |_| std::mem::take(&mut is_first));
        let times: Vec<Time> = sent.iter().filter(|sent| sent.from == 0).map(|sent| sent.at).collect();
        times[1].saturating_since(times[0])
    }
}

const SOON: Duration = Duration::from_millis(3);

#[test]
fn a_receiver_not_ready_wait_is_no_round_trip_sample() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let longest = QueuePairAttributes { min_rnr_timer: Some(0), ..QueuePairAttributes::default() };
    let qpn = pair.ends[1].qpn;
    pair.ends[1].endpoint.modify_queue_pair(Time::ZERO, qpn, &longest, None, &LIMITS).unwrap();
    pair.begin_write(1);
    pair.run(Duration::from_millis(1), |_| false);
    let (now, local, into) = (pair.now, pair.ends[0].sge(0, 8), pair.ends[1].sge(512, 8));
    pair.ends[0].post(now, Operation::Send, &[local]);
    pair.run(Duration::from_millis(1), |_| false);
    pair.ends[1].post_receive(&[into]);
    pair.run(Duration::from_secs(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 2]);
    assert!(pair.probe_wait() < SOON);
}

/// The report of missing packets may concern either copy (Karn's algorithm).
#[test]
fn a_probe_while_packets_are_missing_gives_no_long_sample() {
    let mut pair = pair_after_a_read();
    (0..5).for_each(|_| pair.begin_write(1));
    pair.carry_without(0, &[1]);
    pair.carry_without(1, &[]);
    pair.begin_write(1);
    let is_lost = |offset| move |sent: &Sent| sent.from == 0 && sent.psn_offset() >= offset;
    pair.run(Duration::from_millis(20), is_lost(1));
    pair.run(Duration::from_millis(20), |sent| is_lost(1)(sent) && !is_lost(6)(sent));
    pair.run(Duration::from_millis(20), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 6]);
    pair.begin_write(1);
    pair.run(Duration::from_millis(1), |_| false);
    assert!(pair.probe_wait() < SOON);
}

#[test]
fn the_response_of_a_repeated_read_gives_no_long_sample() {
    let mut pair = pair_after_a_read();
    pair.begin_read(8);
    pair.begin_write(1);
    pair.carry_without(0, &[]);
    let responses = pair.catch(1);
    let is_acknowledgement = |sent: &&Sent| sent.headers.bth.opcode == Opcode::RC_ACKNOWLEDGE;
    responses.iter().filter(is_acknowledgement).for_each(|sent| pair.deliver(sent));
    pair.now = pair.now + Duration::from_millis(50);
    let now = pair.now;
    pair.ends[0].endpoint.handle_timeout(now);
    let sent = pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(requested(&sent), [1]);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 2]);
    assert!(pair.probe_wait() < SOON);
}

/// The READ's response is longer than the path carries. Responses behind it are no progress.
#[test]
fn a_read_fails_if_one_response_never_arrives_although_later_ones_do() {
    let mut pair = pair_after_a_read();
    pair.begin_read(MTU);
    pair.begin_atomic();
    let mut sent = 0;
    for _ in 0..200 {
        sent += requested(&pair.run(Duration::from_millis(67), |sent| sent.bytes.len() > 1_000)).len();
    }
    let statuses = pair.statuses();
    assert_eq!(statuses.first(), Some(&CompletionStatus::RetryExceededError), "after {sent} packets");
}

/// The peer reports the missing request whenever a later packet requests an acknowledgement. Such a report is no
/// progress.
#[test]
fn a_request_that_never_arrives_fails_although_later_ones_arrive() {
    for is_read in [false, true] {
        let mut pair = pair_after_a_read();
        if is_read {
            pair.begin_read(8)
        } else {
            pair.begin_atomic()
        }
        (0..3).for_each(|_| pair.begin_write(1));
        let mut sent = 0;
        for _ in 0..200 {
            let is_first = |sent: &Sent| sent.from == 0 && sent.psn_offset() == 1;
            sent += requested(&pair.run(Duration::from_millis(67), is_first)).len();
        }
        let statuses = pair.statuses();
        assert_eq!(statuses.first(), Some(&CompletionStatus::RetryExceededError), "after {sent} packets");
    }
}

/// The report was on its way while the packet was sent again.
#[test]
fn a_late_report_repeats_no_packets_executed_since() {
    let mut pair = pair_after_a_read();
    pair.begin_read(8);
    pair.begin_read(10 * MTU);
    (0..3).for_each(|_| pair.begin_write(1));
    let sent = pair.catch(0);
    [0, 2, 3, 4].iter().for_each(|index| pair.deliver(&sent[*index]));
    let reports = pair.catch(1);
    let is_report = |sent: &&Sent| sent.headers.bth.opcode == Opcode::RC_ACKNOWLEDGE;
    let report = reports.iter().rfind(is_report).unwrap();
    pair.deliver(report);
    let again = pair.catch(0);
    assert_eq!(requested(&again), [2]);
    pair.deliver(&again[0]);
    let responses = pair.catch(1);
    responses[..5].iter().for_each(|sent| pair.deliver(sent));
    pair.catch(0);
    pair.deliver(report);
    let again = pair.catch(0);
    assert!(again.iter().all(|sent| sent.psn_offset() == 1), "{:?}", requested(&again));
}

#[test]
fn a_probe_for_an_atomic_does_not_request_kept_responses_again() {
    let mut pair = pair_after_a_read();
    pair.begin_atomic();
    pair.begin_read(40 * MTU);
    let sent = pair.run(Duration::from_millis(60), |sent| sent.psn_offset() == 1 && sent.from == 1);
    assert!(requested(&sent).iter().skip(2).all(|offset| [1, 41].contains(offset)), "{:?}", requested(&sent));
    pair.run(Duration::from_millis(60), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 2]);
}

#[test]
fn an_acknowledgement_before_an_rnr_nak_covers_all_packets_before_it() {
    let mut pair = pair_after_a_read();
    pair.begin_write(1);
    (0..3).for_each(|_| pair.begin_unsignaled_write());
    let (now, local) = (pair.now, pair.ends[0].sge(0, 8));
    pair.ends[0].post(now, Operation::Send, &[local]);
    let sent = pair.catch(0);
    sent[1..].iter().for_each(|sent| pair.deliver(sent));
    pair.carry_without(1, &[]);
    let again = pair.catch(0);
    assert_eq!(requested(&again), [1]);
    pair.deliver(&again[0]);
    let offsets: Vec<i32> = pair.catch(1).iter().map(Sent::psn_offset).collect();
    assert_eq!(offsets, [4, 5], "an acknowledgement, and that there is no receive");
}

/// A READ begins every 30 ms, and the first round trips were short.
#[test]
fn consecutive_reads_on_a_path_that_became_longer_are_requested_once() {
    let mut pair = pair_after_a_read();
    let round_trip = Duration::from_millis(100);
    let (mut in_transit, mut sent_requests) = (std::collections::VecDeque::new(), 0);
    for step in 0..3_000 {
        if step % 30 == 0 {
            pair.begin_read(8);
        }
        pair.ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(pair.now));
        let requests = pair.catch(0);
        sent_requests += if step > 1_500 { requested(&requests).len() } else { 0 };
        requests.iter().for_each(|sent| pair.deliver(sent));
        in_transit.extend(pair.catch(1).into_iter().map(|sent| (pair.now + round_trip, sent)));
        while in_transit.front().is_some_and(|(at, _)| *at <= pair.now) {
            let (_, sent) = in_transit.pop_front().unwrap();
            pair.deliver(&sent);
        }
        pair.statuses();
        pair.now = pair.now + Duration::from_millis(1);
    }
    assert!((49..=60).contains(&sent_requests), "{sent_requests} requests for 50 READs");
}
