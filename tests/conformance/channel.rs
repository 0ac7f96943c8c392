//! Completion channels: which completions raise events, on which channel, and when.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    CompletionChannel, CompletionQueue, CompletionQueueOptions, ConnectOptions, ErrorKind, Notify, Payload, QueuePair,
    ReceiveRequest, RegionList, SendRequest,
};
use tokio::io::unix::AsyncFd;

use super::cq::{wait_finished, write_each};
use super::deviations::FLUSH_UNSOLICITED;
use super::end::{End, SILENCE, Shape, create_qp, next, patience, refused};
use super::suite::{Capability, MODERATION, Scenario};
use super::world::{World, connect};

/// Timestamps of completions.
const COMPLETION_TIMESTAMPS: Capability =
    Capability { name: "completion_timestamp_mask", present: |device| device.completion_timestamp_mask != 0 };

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("channel/notify/one_event_an_arming", "ibv_req_notify_cq(3) one-shot", one_event_an_arming),
    Scenario::new("channel/notify/none_unless_armed", "ibv_req_notify_cq(3)", none_unless_armed),
    Scenario::new(
        "channel/notify/earlier_ones_do_not_count",
        "abi-and-suites 4.4 edge-like",
        earlier_ones_do_not_count,
    ),
    Scenario::new("channel/notify/armed_twice_is_once", "IBTA, completion results", armed_twice_is_once),
    Scenario::new("channel/notify/needs_a_channel", "ibv_create_cq(3) channel NULL", needs_a_channel),
    Scenario::new(
        "channel/solicited/sleeps_through_others",
        "IBTA, transport headers: solicited event",
        sleeps_through_others,
    ),
    Scenario::new(
        "channel/solicited/fires_for_failures",
        "IBTA, completion results: error completions",
        fires_for_failures,
    ),
    Scenario::new("channel/solicited/any_takes_precedence", "IBTA, completion results", any_takes_precedence),
    Scenario::new(
        "channel/many/context_identifies_the_queue",
        "ibv_get_cq_event(3) cq_context",
        context_identifies_the_queue,
    ),
    Scenario::new("channel/many/a_loop_over_all", "ibv_get_cq_event(3)", a_loop_over_all),
    Scenario::new("channel/many/each_event_goes_to_one", "ibv_get_cq_event(3) threads", each_event_goes_to_one),
    Scenario::new("channel/many/two_channels_keep_apart", "ibv_create_comp_channel(3)", two_channels_keep_apart),
    Scenario::new("channel/wait/ends_in_time", "ibv_get_cq_event(3)", ends_in_time),
    Scenario::new("channel/wait/wakes_for_a_peer", "ibv_get_cq_event(3) blocks", wakes_for_a_peer),
    Scenario::new("channel/poll/never_blocks", "abi-and-suites 4.4 O_NONBLOCK", never_blocks),
    Scenario::new("channel/fd/readable_while_it_waits", "ibv_get_cq_event(3) polling", readable_while_it_waits),
    Scenario::new("channel/fd/edges", "abi-and-suites 4.4 epoll", edges),
    Scenario::new("channel/moderate/by_count", "ibv_modify_cq(3) cq_count", by_count).needs(&[MODERATION]),
    Scenario::new("channel/moderate/by_period", "ibv_modify_cq(3) cq_period", by_period).needs(&[MODERATION]),
    Scenario::new("channel/moderate/failures_do_not_wait", "ibv_modify_cq(3)", failures_do_not_wait)
        .needs(&[MODERATION]),
    Scenario::new("channel/moderate/limits", "ibv_modify_cq(3) 16 bits", moderation_limits).needs(&[MODERATION]),
    Scenario::new("channel/destroy/queue_discards_its_events", "abi-and-suites 4.4 discard", discards_its_events),
    Scenario::new("channel/destroy/outlives_its_handle", "abi-and-suites 4.3 dependencies", outlives_its_handle),
    Scenario::new("cq/timestamp/only_if_requested", "ibv_create_cq_ex(3) wc_flags", only_if_requested),
    Scenario::new("cq/timestamp/between_clock_reads", "ibv_wc_read_completion_ts(3)", between_clock_reads)
        .needs(&[COMPLETION_TIMESTAMPS]),
    Scenario::new("cq/timestamp/failures_too", "ibv_wc_read_completion_ts(3)", failures_too)
        .needs(&[COMPLETION_TIMESTAMPS]),
];

/// A queue pair that is connected to itself, and whose completion queue is on a channel.
struct Announced {
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
    end: End,
}

fn queue_on(end: &End, channel: &CompletionChannel, cq_context: u64) -> (CompletionQueue, QueuePair) {
    let cq = end.context.create_cq_with(64, &CompletionQueueOptions::default().channel(channel, cq_context)).unwrap();
    let qp = create_qp(&end.pd, &cq, &cq, &Shape::default());
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    (cq, qp)
}

fn announced(world: &World, cq_context: u64) -> Announced {
    let end = world.end(0, &Shape::default());
    let channel = end.context.create_comp_channel().unwrap();
    let (cq, qp) = queue_on(&end, &channel, cq_context);
    Announced { qp, cq, channel, end }
}

impl Announced {
    fn write(&self, wr_id: u64) {
        write_each(&self.qp, &self.end, [wr_id]);
    }

    /// Checks that the next event is for this queue.
    #[track_caller]
    fn announces(&self, cq_context: u64) {
        assert_eq!(self.channel.wait_event(patience()).unwrap(), cq_context);
    }

    #[track_caller]
    fn quiet(&self) {
        let event = self.channel.wait_event(SILENCE).map_err(|error| error.kind());
        assert_eq!(event, Err(ErrorKind::TimedOut), "unexpected event");
    }
}

fn one_event_an_arming(world: &World) {
    let it = announced(world, 5);
    for round in 0..5 {
        it.cq.req_notify(Notify::Any).unwrap();
        (0..3).for_each(|_| it.write(round));
        it.announces(5);
        (0..3).for_each(|_| assert_eq!(next(&it.cq).wr_id(), round));
        it.quiet();
    }
}

fn none_unless_armed(world: &World) {
    let it = announced(world, 5);
    it.write(1);
    assert_eq!(next(&it.cq).wr_id(), 1);
    it.quiet();
}

fn earlier_ones_do_not_count(world: &World) {
    let it = announced(world, 5);
    it.write(1);
    wait_finished(&it.qp);
    it.cq.req_notify(Notify::Any).unwrap();
    it.quiet();
    assert_eq!(next(&it.cq).wr_id(), 1, "so one polls after arming");
    it.write(2);
    it.announces(5);
}

fn armed_twice_is_once(world: &World) {
    let it = announced(world, 5);
    it.cq.req_notify(Notify::Any).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    it.write(1);
    it.write(2);
    it.announces(5);
    wait_finished(&it.qp);
    it.quiet();
}

fn needs_a_channel(world: &World) {
    let cq = world.device(0).create_cq(8).unwrap();
    assert!(cq.channel().is_none());
    refused(cq.req_notify(Notify::Any), ErrorKind::InvalidState, &["req_notify", "channel"]);
}

/// Returns two ends, the right one's completion queue on a channel, with 32 receives posted.
fn receiving(world: &World) -> (End, Announced) {
    let (left, end) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let channel = end.context.create_comp_channel().unwrap();
    let cq = end.context.create_cq_with(64, &CompletionQueueOptions::default().channel(&channel, 7)).unwrap();
    let qp = create_qp(&end.pd, &cq, &cq, &Shape::default());
    let info = left.qp.connection_info().unwrap();
    left.qp.connect(&qp.connection_info().unwrap()).unwrap();
    qp.connect(&info).unwrap();
    for wr_id in 0..32 {
        qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(wr_id)]).unwrap();
    }
    (left, Announced { qp, cq, channel, end })
}

fn send(left: &End, request: SendRequest<'_>) {
    left.qp.post_send(&[request.wr_id(1).signaled()]).unwrap();
    left.sent(1);
}

fn sleeps_through_others(world: &World) {
    let (left, it) = receiving(world);
    it.cq.req_notify(Notify::SolicitedOnly).unwrap();
    send(&left, SendRequest::send(Payload::EMPTY));
    it.quiet();
    send(&left, SendRequest::send(Payload::EMPTY).solicited());
    it.announces(7);
    assert_eq!([next(&it.cq).wr_id(), next(&it.cq).wr_id()], [0, 1]);
}

fn fires_for_failures(world: &World) {
    let (_left, it) = receiving(world);
    it.cq.req_notify(Notify::SolicitedOnly).unwrap();
    let error = rdma_verbs::verbs::QueuePairState::Error;
    it.qp.modify(&rdma_verbs::verbs::QueuePairAttributes::default().qp_state(error)).unwrap();
    match FLUSH_UNSOLICITED.holds() {
        true => it.quiet(),
        false => it.announces(7),
    }
    assert!(!next(&it.cq).is_success());
}

fn any_takes_precedence(world: &World) {
    let (left, it) = receiving(world);
    it.cq.req_notify(Notify::Any).unwrap();
    it.cq.req_notify(Notify::SolicitedOnly).unwrap();
    send(&left, SendRequest::send(Payload::EMPTY));
    it.announces(7);
    it.cq.req_notify(Notify::SolicitedOnly).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    send(&left, SendRequest::send(Payload::EMPTY));
    it.announces(7);
}

fn context_identifies_the_queue(world: &World) {
    let it = announced(world, 1);
    let others = [(2, queue_on(&it.end, &it.channel, 2)), (u64::MAX, queue_on(&it.end, &it.channel, u64::MAX))];
    for (cq_context, (cq, qp)) in &others {
        cq.req_notify(Notify::Any).unwrap();
        write_each(qp, &it.end, [1]);
        it.announces(*cq_context);
    }
    it.cq.req_notify(Notify::Any).unwrap();
    it.write(1);
    it.announces(1);
    it.quiet();
}

fn a_loop_over_all(world: &World) {
    const QUEUES: usize = 5;
    const ROUNDS: u64 = 40;
    let it = announced(world, 99);
    let queues: Vec<_> = (0..QUEUES).map(|number| queue_on(&it.end, &it.channel, number as u64)).collect();
    let mut done = [0; QUEUES];
    for (cq, qp) in &queues {
        cq.req_notify(Notify::Any).unwrap();
        write_each(qp, &it.end, [0]);
    }
    while done.iter().any(|count| *count < ROUNDS) {
        let number = it.channel.wait_event(patience()).expect("an event is lost") as usize;
        let (cq, qp) = &queues[number];
        cq.req_notify(Notify::Any).unwrap();
        let mut polling = cq.polling();
        while let Some(completion) = polling.next().unwrap() {
            assert_eq!((completion.wr_id(), completion.qpn()), (done[number], qp.qpn()));
            done[number] += 1;
            if done[number] < ROUNDS {
                write_each(qp, &it.end, [done[number]]);
            }
        }
    }
    assert_eq!(done, [ROUNDS; QUEUES]);
}

fn each_event_goes_to_one(world: &World) {
    const EVENTS: u64 = 60;
    let it = announced(world, 3);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while taken.load(Ordering::Acquire) < EVENTS {
                    match it.channel.wait_event(Duration::from_millis(20)) {
                        Ok(_) => _ = taken.fetch_add(1, Ordering::AcqRel),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
                    }
                }
            });
        }
        for number in 0..EVENTS {
            it.cq.req_notify(Notify::Any).unwrap();
            it.write(number);
            assert_eq!(next(&it.cq).wr_id(), number);
            let start = Instant::now();
            while taken.load(Ordering::Acquire) <= number {
                assert!(start.elapsed() < patience(), "event {number} is lost");
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(taken.into_inner(), EVENTS, "an event was handed out twice");
}

fn two_channels_keep_apart(world: &World) {
    let it = announced(world, 1);
    let other = it.end.context.create_comp_channel().unwrap();
    let (cq, qp) = queue_on(&it.end, &other, 2);
    cq.req_notify(Notify::Any).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    write_each(&qp, &it.end, [1]);
    assert_eq!(other.wait_event(patience()).unwrap(), 2);
    it.quiet();
    it.write(1);
    it.announces(1);
    assert_eq!(other.wait_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
}

fn ends_in_time(world: &World) {
    let it = announced(world, 1);
    it.cq.req_notify(Notify::Any).unwrap();
    let start = Instant::now();
    assert_eq!(it.channel.wait_event(Duration::from_millis(30)).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(start.elapsed() >= Duration::from_millis(30));
}

fn wakes_for_a_peer(world: &World) {
    let (left, it) = receiving(world);
    it.cq.req_notify(Notify::Any).unwrap();
    let sleeper = {
        let channel = it.channel.clone();
        std::thread::spawn(move || channel.wait_event(patience()).unwrap())
    };
    std::thread::sleep(SILENCE);
    send(&left, SendRequest::send(Payload::EMPTY));
    assert_eq!(sleeper.join().unwrap(), 7);
}

fn never_blocks(world: &World) {
    let it = announced(world, 4);
    it.cq.req_notify(Notify::Any).unwrap();
    (0..100).for_each(|_| assert_eq!(it.channel.poll_event(), None));
    it.write(1);
    wait_finished(&it.qp);
    let start = Instant::now();
    while it.channel.poll_event() != Some(4) {
        assert!(start.elapsed() < patience());
    }
    assert_eq!(it.channel.poll_event(), None);
}

/// Returns whether the descriptor becomes readable within the time.
pub(crate) fn is_readable(descriptor: BorrowedFd<'_>, within: Duration) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let watched = watch(descriptor);
        tokio::time::timeout(within, watched.readable()).await.is_ok()
    })
}

/// Newer versions of the runtime require a promise that the descriptor stays open; these scenarios keep it open.
#[allow(deprecated)]
fn watch(descriptor: BorrowedFd<'_>) -> AsyncFd<BorrowedFd<'_>> {
    AsyncFd::new(descriptor).unwrap()
}

fn readable_while_it_waits(world: &World) {
    let it = announced(world, 4);
    it.cq.req_notify(Notify::Any).unwrap();
    it.write(1);
    let start = Instant::now();
    // The descriptor may become readable spuriously, so the loop counts only events found.
    loop {
        assert!(is_readable(it.channel.as_fd(), patience()), "not readable, though an event comes");
        if it.channel.poll_event() == Some(4) {
            break;
        }
        assert!(start.elapsed() < patience());
    }
    assert_eq!(next(&it.cq).wr_id(), 1);
    assert_eq!(it.channel.poll_event(), None);
    assert!(!is_readable(it.channel.as_fd(), SILENCE), "readable, though nothing waits");
}

fn edges(world: &World) {
    let it = announced(world, 4);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let descriptor = watch(it.channel.as_fd());
        for number in 0..200 {
            it.cq.req_notify(Notify::Any).unwrap();
            it.write(number);
            let found = async {
                while it.channel.poll_event().is_none() {
                    let mut ready = descriptor.readable().await.unwrap();
                    if it.channel.poll_event().is_some() {
                        break;
                    }
                    ready.clear_ready();
                }
            };
            let found = tokio::time::timeout(patience(), found).await;
            found.unwrap_or_else(|_| panic!("the edge for event {number} is lost"));
            assert_eq!(next(&it.cq).wr_id(), number);
        }
    });
}

fn by_count(world: &World) {
    let it = announced(world, 6);
    it.cq.moderate(4, Duration::from_millis(60)).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    let start = Instant::now();
    (0..3).for_each(|number| it.write(number));
    wait_finished(&it.qp);
    let early = it.channel.poll_event();
    assert!(early.is_none() || start.elapsed() >= Duration::from_millis(60), "three are too few");
    it.write(3);
    if early.is_none() {
        it.announces(6);
    }
    (0..4).for_each(|number| assert_eq!(next(&it.cq).wr_id(), number));
}

fn by_period(world: &World) {
    let it = announced(world, 6);
    let period = Duration::from_millis(30);
    it.cq.moderate(100, period).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    let start = Instant::now();
    it.write(1);
    it.announces(6);
    assert!(start.elapsed() >= period, "after {:?}", start.elapsed());
    assert_eq!(next(&it.cq).wr_id(), 1);
}

fn failures_do_not_wait(world: &World) {
    let (_left, it) = receiving(world);
    it.cq.moderate(u16::MAX, Duration::from_micros(65_535)).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    let error = rdma_verbs::verbs::QueuePairState::Error;
    it.qp.modify(&rdma_verbs::verbs::QueuePairAttributes::default().qp_state(error)).unwrap();
    assert_eq!(it.channel.poll_event(), Some(7), "at once");
}

fn moderation_limits(world: &World) {
    let it = announced(world, 6);
    let too_long = it.cq.moderate(2, Duration::from_micros(65_536));
    refused(too_long, ErrorKind::InvalidArgument, &["modify_cq", "cq_period", "65536", "65535"]);
    it.cq.moderate(50, Duration::from_micros(65_535)).unwrap();
    it.cq.moderate(0, Duration::ZERO).unwrap();
    it.cq.req_notify(Notify::Any).unwrap();
    it.write(1);
    it.announces(6);
    assert_eq!(next(&it.cq).wr_id(), 1);
}

fn discards_its_events(world: &World) {
    let it = announced(world, 1);
    let (cq, qp) = queue_on(&it.end, &it.channel, 2);
    cq.req_notify(Notify::Any).unwrap();
    write_each(&qp, &it.end, [1]);
    assert_eq!(next(&cq).wr_id(), 1);
    it.cq.req_notify(Notify::Any).unwrap();
    it.write(1);
    wait_finished(&it.qp);
    drop((qp, cq));
    it.announces(1);
    it.quiet();
    assert!(!is_readable(it.channel.as_fd(), SILENCE));
}

fn outlives_its_handle(world: &World) {
    let it = announced(world, 8);
    let Announced { qp, cq, channel, end } = it;
    drop(channel);
    cq.req_notify(Notify::Any).unwrap();
    write_each(&qp, &end, [1]);
    let channel = cq.channel().expect("the queue keeps it");
    assert_eq!(channel.wait_event(patience()).unwrap(), 8);
}

fn only_if_requested(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, [1]);
    assert_eq!(end.next().timestamp(), None);
}

fn between_clock_reads(world: &World) {
    let end = world.end(0, &Shape::default());
    let cq = end.context.create_cq_with(64, &CompletionQueueOptions::default().timestamps()).unwrap();
    let qp = create_qp(&end.pd, &cq, &cq, &Shape::default());
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let before = end.context.query_clock().unwrap();
    let mut last = before;
    for wr_id in 0..20 {
        write_each(&qp, &end, [wr_id]);
        let timestamp = next(&cq).timestamp().expect("it was requested");
        assert!(timestamp >= last, "{timestamp} after {last}");
        last = timestamp;
    }
    assert!(last <= end.context.query_clock().unwrap());
    // The timestamp is taken at completion, not at the poll.
    write_each(&qp, &end, [1]);
    wait_finished(&qp);
    let between = end.context.query_clock().unwrap();
    assert!(next(&cq).timestamp().unwrap() <= between);
}

fn failures_too(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let cq = left.context.create_cq_with(64, &CompletionQueueOptions::default().timestamps()).unwrap();
    let left = End { qp: create_qp(&left.pd, &cq, &cq, &Shape::default()), cq, ..left };
    connect(&left, &right, &ConnectOptions::default());
    let before = left.context.query_clock().unwrap();
    left.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    left.to_error();
    let flushed = left.next();
    assert!(!flushed.is_success());
    assert!(flushed.timestamp().expect("it was requested") >= before);
}
