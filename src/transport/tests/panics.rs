//! A panic in the code of a queue pair costs only that queue pair. The panics come from code that it calls (the
//! notification of a completion queue), or from a broken record of responses.

use super::fair_queue::Crowd;
use super::*;

/// A completion queue's notification that panics.
struct Panicking;

/// A request without packets: it completes while its queue pair is polled for packets.
const LOCAL: Operation = Operation::LocalInvalidate(Rkey(1));

impl Notify for Panicking {
    fn notify(&self, _: u32) {
        panic!("the notification of a completion panics");
    }

    fn notify_within(&self, _: u32, _: Duration, _: u32) {
        unreachable!("moderation is off");
    }
}

const BYSTANDER: usize = 0;
const VICTIM: usize = 1;

/// Creates a bystander and a victim. The victim's completion queue at the end `panicking`, if there is one, panics.
fn start(panicking: Option<usize>) -> Crowd {
    let mut crowd = Crowd::new(1, NATIVE);
    let notify = [0, 1].map(|at| (panicking == Some(at)).then(|| Arc::new(Panicking) as Arc<dyn Notify>));
    crowd.add(NATIVE, notify);
    for at in 0..2 {
        let end = crowd.call(at, VICTIM);
        let sge = end.sge(0, 100);
        (0..4).for_each(|_| end.post_receive(&[sge]));
        if panicking == Some(at) {
            end.completions.req_notify(false);
        }
    }
    crowd
}

/// Asserts that the victim is in the error state at this end, and that its requests, or receives, have ended with it.
fn check_victim(crowd: &mut Crowd, at: usize, succeeded: usize, flushed: usize) {
    let end = crowd.call(at, VICTIM);
    assert_eq!(end.endpoint.queue_pair_state(end.qpn), Some(QueuePairState::Error));
    assert_eq!(end.events.poll(), Some(AsyncEvent::QueuePairFatal(end.qpn)));
    let completions = end.poll();
    let ended = |status| completions.iter().filter(|completion| completion.status == status).count();
    assert_eq!(ended(CompletionStatus::Success), succeeded, "{completions:?}");
    assert_eq!(ended(CompletionStatus::WorkRequestFlushedError), flushed, "{completions:?}");
    assert!(completions.iter().all(|completion| completion.status.is_success() || completion.cause == Cause::Panic));
}

/// Returns the datagrams of one send that a queue pair makes at the first end.
fn send_of(crowd: &mut Crowd, member: usize) -> Vec<Vec<u8>> {
    crowd.post(member, Operation::Send, 100, 1, 1);
    let now = crowd.pair.now;
    crowd.call(0, member).transmit(now)
}

/// Returns the outcomes of datagrams that arrive together at the second end.
fn arrive(crowd: &mut Crowd, datagrams: &[Vec<u8>]) -> Vec<DatagramOutcome> {
    let now = crowd.pair.now;
    let [first, second] = &mut crowd.pair.ends;
    let view = second.table.read();
    let mut outcomes = Vec::new();
    for payload in datagrams {
        let (source, destination) = (first.address, second.address);
        let (source_port, segment_index, hop_limit, traffic_class) = (50_000, 0, None, None);
        let datagram = Datagram {
            source,
            destination,
            source_port,
            segment_index,
            hop_limit,
            traffic_class,
            payload,
            medium: Medium::Network,
        };
        outcomes.push(second.endpoint.handle_arrival(now, &view, &datagram));
    }
    second.endpoint.settle_arrivals(now);
    outcomes
}

/// Asserts that the other queue pair of the shard continues.
fn check_bystander(crowd: &mut Crowd) {
    let write = crowd.write();
    for _ in 0..20 {
        crowd.post(BYSTANDER, write, 3_000, 50, 1);
        crowd.pair.drive(Duration::from_secs(1));
        crowd.expect_done([BYSTANDER], 50);
    }
    assert_eq!(crowd.in_flight(), 0);
}

#[test]
fn a_panic_of_the_requester_costs_one_queue_pair() {
    let mut crowd = start(Some(0));
    crowd.post(VICTIM, Operation::Send, 100, 3, 1);
    crowd.pair.drive(Duration::from_millis(1));
    // The acknowledgement is for all three; the first completion panics.
    check_victim(&mut crowd, 0, 1, 2 + 4);
    check_bystander(&mut crowd);
}

#[test]
fn a_panic_of_a_timer_costs_one_queue_pair() {
    let mut crowd = start(Some(0));
    crowd.destroy(1, VICTIM);
    crowd.post(VICTIM, Operation::Send, 100, 3, 1);
    crowd.pair.drive(Duration::from_secs(1));
    let end = crowd.call(0, VICTIM);
    let completions = end.poll();
    assert_eq!(completions[0].status, CompletionStatus::RetryExceededError);
    assert!(completions[1..].iter().all(|completion| completion.cause == Cause::Panic), "{completions:?}");
    assert_eq!(completions.len(), 3 + 4);
    check_bystander(&mut crowd);
}

#[test]
fn a_panic_of_the_responder_costs_one_queue_pair() {
    let mut crowd = start(Some(1));
    crowd.post(VICTIM, Operation::Send, 100, 3, 1);
    crowd.pair.drive(Duration::from_secs(1));
    check_victim(&mut crowd, 1, 1, 3);
    // The peer gets no more responses.
    let statuses: Vec<_> = crowd.call(0, VICTIM).poll().iter().map(|completion| completion.status).collect();
    assert_eq!(statuses[0], CompletionStatus::RetryExceededError);
    assert_eq!(statuses[1..], [CompletionStatus::WorkRequestFlushedError; 2 + 4]);
    check_bystander(&mut crowd);
}

#[test]
fn a_panic_of_the_response_queue_costs_one_queue_pair() {
    let mut crowd = start(None);
    let qpn = crowd.call(1, VICTIM).qpn;
    let endpoint = &mut crowd.pair.ends[1].endpoint;
    let slot = endpoint.slot_of(qpn).unwrap();
    endpoint.at(slot).unwrap().responder.break_responses();
    crowd.post(VICTIM, Operation::Send, 100, 3, 1);
    crowd.pair.drive(Duration::from_secs(1));
    check_victim(&mut crowd, 1, 1, 3);
    check_bystander(&mut crowd);
}

#[test]
fn a_datagram_behind_that_of_a_panic_is_taken() {
    let mut crowd = start(None);
    let sge = crowd.call(1, BYSTANDER).sge(0, 100);
    crowd.call(1, BYSTANDER).post_receive(&[sge]);
    let datagrams = [send_of(&mut crowd, VICTIM), send_of(&mut crowd, BYSTANDER)].concat();
    let qpn = crowd.call(1, VICTIM).qpn;
    let endpoint = &mut crowd.pair.ends[1].endpoint;
    let slot = endpoint.slot_of(qpn).unwrap();
    endpoint.at(slot).unwrap().responder.break_responses();
    let outcomes = arrive(&mut crowd, &datagrams);
    assert_eq!(outcomes.iter().map(|outcome| outcome.dropped).collect::<Vec<_>>(), [None, None]);
    check_victim(&mut crowd, 1, 1, 3);
    assert_eq!(crowd.call(1, BYSTANDER).poll().len(), 1);
}

#[test]
fn the_check_field_of_a_datagram_that_causes_a_panic_is_withheld() {
    let mut crowd = start(Some(1));
    let datagrams = send_of(&mut crowd, VICTIM);
    let outcomes = arrive(&mut crowd, &datagrams);
    assert_eq!(outcomes[0].dropped, Some(DropReason::WrongState));
    assert_eq!(outcomes[0].check_field, CheckField::Withheld);
    assert_eq!(crowd.pair.ends[1].endpoint.counters().get_drop(DropReason::WrongState), 1);
    check_victim(&mut crowd, 1, 1, 3);
    // When sent again, the datagram is dropped before any code of the connection handles it.
    let qpn = crowd.call(1, VICTIM).qpn;
    let received = |crowd: &Crowd| {
        let counters = crowd.pair.ends[1].endpoint.queue_pair_counters(qpn).unwrap();
        (counters.get(Counter::ReceivedPackets), counters.get_drop(DropReason::WrongState))
    };
    let (packets, drops) = received(&crowd);
    let outcomes = arrive(&mut crowd, &datagrams);
    assert_eq!(outcomes[0].dropped, Some(DropReason::WrongState));
    assert_eq!(received(&crowd), (packets, drops + 1));
}

#[test]
fn a_panic_in_a_send_loses_no_packets_of_others() {
    let mut crowd = start(Some(0));
    crowd.post(VICTIM, LOCAL, 0, 1, 1);
    // The bystander's send leaves in the same call.
    assert_eq!(send_of(&mut crowd, BYSTANDER).len(), 1);
    let end = crowd.call(0, VICTIM);
    assert_eq!(end.endpoint.queue_pair_state(end.qpn), Some(QueuePairState::Error));
    assert_eq!(end.endpoint.panics(), 1);
}

#[test]
fn a_second_panic_of_a_queue_pair_is_not_caught() {
    let mut crowd = start(Some(0));
    crowd.post(VICTIM, LOCAL, 0, 1, 1);
    let now = crowd.pair.now;
    assert!(crowd.call(0, VICTIM).transmit(now).is_empty());
    crowd.call(0, VICTIM).completions.req_notify(false);
    let again = std::panic::AssertUnwindSafe(|| crowd.post(VICTIM, Operation::Send, 100, 1, 1));
    assert!(std::panic::catch_unwind(again).is_err());
}
