//! READs whose responses are late or lost, on a path with a controller. A late response that counts as lost reduces the
//! window; the reduction is undone.

use super::path_report::controlled;
use super::recovery::{MTU, Sent, keyed};
use super::*;
use crate::types::ControlReport;
use crate::wire::Opcode;

/// A controller with a constant window, which counts its reductions.
#[derive(Clone, Copy, Default)]
struct Counting {
    /// Whether it considers losses random, and reduces nothing.
    is_tolerant: bool,
    events: u64,
    undone: u64,
}

impl CongestionControl for Counting {
    fn on_sent(&mut self, _: &crate::transport::Sent) {}

    fn on_ack(&mut self, _: &Acked) {}

    fn on_congestion(&mut self, _: &CongestionEvent) {
        self.events += u64::from(!self.is_tolerant);
    }

    fn on_spurious_reduction(&mut self) {
        self.undone += 1;
    }

    fn window(&self) -> u64 {
        1 << 20
    }

    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    fn report(&self) -> ControlReport {
        ControlReport {
            congestion_events: self.events,
            undone_events: self.undone,
            tolerates_losses: self.is_tolerant,
            ..ControlReport::new("counting")
        }
    }
}

impl CongestionFactory for Counting {
    fn build(&self, _: &PathFacts) -> Option<Box<dyn CongestionControl>> {
        Some(Box::new(*self))
    }
}

/// Reads 40 packets. `handle` gets the responses before they arrive; everything after it arrives without losses.
/// Returns the number of reductions, of those undone, and of packets requested again without need.
fn read(handle: impl FnOnce(&mut Pair, &[Sent])) -> (u64, u64, u64) {
    let mut pair = controlled(Counting::default());
    pair.begin_read(40 * MTU);
    let requests = pair.catch(0);
    requests.iter().for_each(|request| pair.deliver(request));
    let responses = pair.catch(1);
    assert_eq!(responses.len(), 40);
    handle(&mut pair, &responses);
    pair.run(Duration::from_millis(50), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    let report = &pair.ends[0].endpoint.path_reports(pair.now)[0];
    let control = report.control.expect("it is controlled");
    (control.congestion_events, control.undone_events, report.total.spurious)
}

/// Delivers all responses but these.
fn deliver_without(pair: &mut Pair, responses: &[Sent], missing: &[usize]) {
    let arrives = |index: &usize| !missing.contains(index);
    (0..responses.len()).filter(arrives).for_each(|index| pair.deliver(&responses[index]));
}

#[test]
fn a_response_that_arrives_before_it_is_requested_again_was_late() {
    let late = read(|pair, responses| {
        deliver_without(pair, responses, &[3]);
        pair.deliver(&responses[3]);
        assert!(pair.catch(0).iter().all(|sent| !sent.is_read_request()), "it is requested again");
    });
    assert_eq!(late, (1, 1, 0));
}

#[test]
fn a_response_that_arrives_twice_was_late() {
    let late = read(|pair, responses| {
        deliver_without(pair, &responses[..30], &[3, 4]);
        let again = pair.catch(0);
        assert_eq!(again.iter().map(Sent::packets).sum::<u32>(), 2);
        [3, 4].iter().for_each(|index| pair.deliver(&responses[*index]));
        again.iter().for_each(|request| pair.deliver(request));
        deliver_without(pair, &responses[30..], &[]);
    });
    assert_eq!(late, (1, 1, 2));
}

/// That the first response was late is known only when it arrives twice.
#[test]
fn late_responses_of_one_window_are_one_event() {
    let late = read(|pair, responses| {
        deliver_without(pair, &responses[..15], &[3]);
        let again = pair.catch(0);
        pair.deliver(&responses[3]);
        deliver_without(pair, &responses[15..30], &[5]);
        again.iter().for_each(|request| pair.deliver(request));
        pair.catch(1).iter().for_each(|response| pair.deliver(response));
        pair.deliver(&responses[20]);
        deliver_without(pair, &responses[30..], &[]);
    });
    assert_eq!(late, (1, 1, 1));
    let one_after_the_other = read(|pair, responses| {
        deliver_without(pair, &responses[..15], &[3]);
        pair.deliver(&responses[3]);
        deliver_without(pair, &responses[15..], &[5]);
    });
    assert_eq!(one_after_the_other, (2, 1, 0), "the second one is lost");
}

#[test]
fn a_lost_response_is_a_reason_for_the_reduction() {
    let lost = read(|pair, responses| deliver_without(pair, responses, &[3]));
    assert_eq!(lost, (1, 0, 0));
    let one_of_two = read(|pair, responses| {
        deliver_without(pair, responses, &[3, 8]);
        pair.deliver(&responses[3]);
    });
    assert_eq!(one_of_two, (1, 0, 0));
}

/// Loses the second response of a READ, so that the path counts as one that loses packets. Then reads 40 packets, for
/// which no response arrives. Returns when the first request is repeated, and the packets that count as lost.
fn read_in_silence(mut pair: Pair) -> (Duration, u64) {
    pair.begin_read(8 * MTU);
    let mut left = 2;
    pair.run(Duration::from_millis(1), |sent| {
        left -= i32::from(sent.is_read_response());
        left == 0
    });
    assert_eq!(pair.statuses().len(), 1);
    let lost_before = pair.ends[0].endpoint.counters().get(Counter::LostPackets);
    pair.begin_read(40 * MTU);
    let (begin, requests) = (pair.now, pair.catch(0));
    let sent = pair.run(Duration::from_millis(3), |sent| sent.from == 1);
    let again = sent.iter().find(|sent| sent.from == 0 && sent.headers.bth.psn == requests[0].headers.bth.psn);
    let lost = pair.ends[0].endpoint.counters().get(Counter::LostPackets) - lost_before;
    (again.expect("it is repeated").at.saturating_since(begin), lost)
}

/// All that was in flight behind a lost request waits for the probe if the peer's report of it is lost, too.
#[test]
fn a_silent_read_is_probed_soon_where_packets_may_be_lost() {
    let [tolerant, strict] = [true, false].map(|is_tolerant| Counting { is_tolerant, ..Counting::default() });
    let (wait, lost) = read_in_silence(controlled(tolerant));
    assert!(wait < Duration::from_micros(600), "{wait:?}");
    assert!(lost <= 3, "{lost} packets for 3 probes: the request may be lost, and not all responses");
    let (wait, _) = read_in_silence(controlled(strict));
    assert!(wait >= Duration::from_millis(2), "{wait:?} where a queue overflows");
    let (wait, _) = read_in_silence(keyed());
    assert!(wait >= Duration::from_millis(2), "{wait:?} within a host");
}

/// The network loses 64 responses in a row every 100 ms. That is more than are in flight, so responses to the probes
/// are lost, too. The first `first` responses arrive.
fn read_through_bursts(reads: u32, first: u32) {
    let mut pair = controlled(Counting::default());
    (0..reads).for_each(|_| pair.begin_read(16 * MTU));
    let (begin, mut arrived, mut lost, mut burst) = (pair.now, 0, 0, 0);
    pair.run(Duration::from_secs(1), |sent| {
        let age = sent.at.saturating_since(begin).as_millis();
        if age / 100 > burst {
            (burst, lost) = (age / 100, 0);
        }
        let is_lost = sent.is_read_response() && arrived >= first && lost < 64;
        lost += i32::from(is_lost);
        arrived += u32::from(sent.is_read_response() && !is_lost);
        is_lost
    });
    assert_eq!(pair.statuses(), vec![CompletionStatus::Success; reads as usize], "{first} arrived");
}

/// At least 16 packets are in flight when the losses begin.
#[test]
fn reads_get_past_a_burst_of_losses() {
    (2..=4).for_each(|reads| (0..=16 * (reads - 1)).for_each(|first| read_through_bursts(reads, first)));
}

/// Connects a pair whose first end has completed a READ, and writes early responses to memory since then.
fn has_read() -> Pair {
    let mut pair = controlled(Counting::default());
    pair.begin_read(MTU);
    pair.run(Duration::from_millis(1), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success]);
    pair
}

/// Everything that is sent at first is lost: a READ, a WRITE and a READ.
#[test]
fn a_probe_for_a_read_does_not_acknowledge_the_request_behind_it() {
    let mut pair = has_read();
    pair.begin_read(MTU);
    pair.begin_write(1);
    pair.begin_read(MTU);
    assert_eq!(pair.catch(0).len(), 3);
    let sent = pair.run(Duration::from_millis(50), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 3]);
    let writes = sent.iter().filter(|sent| sent.headers.bth.opcode == Opcode::RC_WRITE_ONLY);
    assert_eq!(writes.count(), 1, "it completes without having arrived");
}

/// The first of four READs and the report of it are lost.
#[test]
fn the_copies_that_a_probe_requests_are_no_late_responses() {
    let mut pair = has_read();
    (0..4).for_each(|_| pair.begin_read(4 * MTU));
    let requests = pair.catch(0);
    assert_eq!(requests.len(), 4);
    requests[1..].iter().for_each(|request| pair.deliver(request));
    assert_eq!(pair.catch(1).len(), 1, "the report");
    pair.run(Duration::from_millis(50), |_| false);
    assert_eq!(pair.statuses(), [CompletionStatus::Success; 4]);
    let control = pair.ends[0].endpoint.path_reports(pair.now)[0].control.expect("it is controlled");
    assert_eq!((control.congestion_events, control.undone_events), (1, 0));
}
