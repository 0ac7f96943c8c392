//! Completion queues: creation, polling, resizing, and the effects of an overflow.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rdma_verbs::verbs::{
    AsyncEvent, Completion, CompletionQueue, CompletionQueueOptions, ConnectOptions, ErrorKind, Payload, QueuePair,
    QueuePairState, ReceiveRequest, RegionList, SendRequest,
};

use super::deviations::OVERFLOW_IGNORED;
use super::end::{End, SILENCE, Shape, create_qp, next, patience, refused, silent};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("cq/create/at_least_as_requested", "ibv_create_cq(3) cqe", at_least_as_requested),
    Scenario::new("cq/create/sizes_out_of_range", "ibv_create_cq(3) EINVAL", sizes_out_of_range),
    Scenario::new("cq/create/every_vector_works", "ibv_create_cq(3) comp_vector", every_vector_works),
    Scenario::new(
        "cq/create/vector_out_of_range",
        "ibv_create_cq(3) comp_vector below num_comp_vectors",
        vector_out_of_range,
    ),
    Scenario::new("cq/create/foreign_channel", "IBTA, memory region verbs: objects of one HCA", foreign_channel),
    Scenario::new("cq/create/foreign_queue", "IBTA, queue pair verbs: objects of one HCA", foreign_queue),
    Scenario::new("cq/create/numbers_differ", "ibv_get_async_event(3) element.cq", numbers_differ),
    Scenario::new("cq/poll/oldest_first", "IBTA, completion results: order of completions", oldest_first),
    Scenario::new("cq/poll/as_many_as_fit", "ibv_poll_cq(3) num_entries", as_many_as_fit),
    Scenario::new("cq/poll/no_room", "ibv_poll_cq(3) num_entries 0", no_room),
    Scenario::new("cq/poll/reports_qp_num", "ibv_poll_cq(3) qp_num", reports_qp_num),
    Scenario::new("cq/poll/separate_queues", "ibv_create_qp(3) send_cq, recv_cq", separate_queues),
    Scenario::new("cq/poll/each_goes_to_one_thread", "abi-and-suites 4.2 threads", each_goes_to_one_thread),
    Scenario::new("cq/poll/outlives_its_handle", "abi-and-suites 4.3 dependencies", outlives_its_handle),
    Scenario::new("cq/poll/destroyed_queue_pair_leaves_nothing", "abi-and-suites 4.4 purge", destroyed_leaves_nothing),
    Scenario::new("cq/poll/slots_come_back", "abi-and-suites 4.4 send slots", slots_come_back),
    Scenario::new("cq/lend/rest_stays", "ibv_start_poll(3), ibv_end_poll(3)", rest_stays),
    Scenario::new("cq/lend/breaks_off", "ibv_start_poll(3), ibv_end_poll(3)", breaks_off),
    Scenario::new("cq/lend/mixes_with_poll", "abi-and-suites 4.4 mixing", mixes_with_poll),
    Scenario::new("cq/lend/may_post", "ibv_next_poll(3)", may_post),
    Scenario::new("cq/overflow/kept_ones_first", "IBTA, asynchronous events: CQ overrun", kept_ones_first),
    Scenario::new(
        "cq/overflow/all_queue_pairs_end",
        "IBTA, asynchronous events: CQ error; QP error",
        all_queue_pairs_end,
    ),
    Scenario::new("cq/overflow/other_queues_go_on", "IBTA, asynchronous events: affiliated errors", other_queues_go_on),
    Scenario::new("cq/overflow/wakes_the_sleeper", "abi-and-suites 4.4 overflow", wakes_the_sleeper),
    Scenario::new("cq/overflow/stays", "abi-and-suites 4.4 overflow", overflow_stays),
    Scenario::new("cq/overflow/just_full_is_none", "IBTA, asynchronous events: CQ overrun", just_full_is_none),
    Scenario::new("cq/resize/grows_in_order", "ibv_resize_cq(3)", grows_in_order),
    Scenario::new("cq/resize/shrinks_in_order", "ibv_resize_cq(3)", shrinks_in_order),
    Scenario::new("cq/resize/not_below_the_queued_entries", "abi-and-suites 4.4 EINVAL", not_below_the_queued_entries),
    Scenario::new("cq/resize/sizes_out_of_range", "ibv_resize_cq(3) EINVAL", resize_out_of_range),
    Scenario::new("cq/resize/larger_holds_more", "ibv_resize_cq(3)", larger_holds_more),
    Scenario::new("cq/resize/while_in_use", "ibv_resize_cq(3) outstanding completions", resized_while_in_use),
];

fn small(cqe: u32) -> Shape {
    Shape { cqe, ..Shape::default() }
}

/// Posts an empty WRITE to itself for each of these identifiers, one call each.
#[track_caller]
pub(crate) fn write_each(qp: &QueuePair, end: &End, wr_ids: impl IntoIterator<Item = u64>) {
    let remote = end.region.remote();
    for wr_id in wr_ids {
        qp.post_send(&[SendRequest::write(Payload::EMPTY, remote).wr_id(wr_id).signaled()]).unwrap();
    }
}

/// Much longer than a request takes between two ends of one machine.
const A_WHILE: std::time::Duration = std::time::Duration::from_millis(300);
/// How often a thread visits each processor in that time.
const VISITS: u32 = 15;

/// Waits until requests between two ends of one machine have finished, where the device does not report it: for
/// [`A_WHILE`], on each processor in turn. A processor that stands still meanwhile, as those of virtual machines may,
/// delays the visit as it delays the request, which a sleep anywhere else would not notice.
pub(crate) fn wait_a_while() {
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let processors: Vec<usize> = (0..CpuSet::count()).filter(|&number| own.is_set(number).unwrap()).collect();
    let visit = A_WHILE / (VISITS * processors.len() as u32);
    for &number in processors.iter().cycle().take(VISITS as usize * processors.len()) {
        let mut one = CpuSet::new();
        one.set(number).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
        std::thread::sleep(visit);
    }
    sched_setaffinity(Pid::from_raw(0), &own).unwrap();
}

/// Waits until all posted requests have finished, without polling a completion.
#[track_caller]
pub(crate) fn wait_finished(qp: &QueuePair) {
    if !qp.context().query_device().failure_causes {
        return wait_a_while();
    }
    let start = std::time::Instant::now();
    while qp.report().unwrap().unfinished > 0 {
        assert!(start.elapsed() < patience(), "{}", qp.explain_state());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[track_caller]
fn numbers(cq: &CompletionQueue, count: usize) -> Vec<u64> {
    (0..count).map(|_| next(cq).wr_id()).collect()
}

/// Creates another queue pair on the end's domain, connected to itself.
fn another(end: &End, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> QueuePair {
    let qp = create_qp(&end.pd, send_cq, recv_cq, &Shape::default());
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    qp
}

fn at_least_as_requested(world: &World) {
    let context = world.device(0);
    for cqe in [1, 7, 100, 4096] {
        assert!(context.create_cq(cqe).unwrap().cqe() >= cqe);
    }
}

fn sizes_out_of_range(world: &World) {
    let context = world.device(0);
    let most = context.query_device().max_cqe;
    refused(context.create_cq(0), ErrorKind::InvalidArgument, &["create_cq", "cqe", "0"]);
    refused(context.create_cq(most + 1), ErrorKind::InvalidArgument, &["cqe", &most.to_string()]);
    refused(context.create_cq(u32::MAX), ErrorKind::InvalidArgument, &["cqe", &most.to_string()]);
}

fn every_vector_works(world: &World) {
    let end = world.end(0, &Shape::default());
    let vectors = end.context.query_device().num_comp_vectors;
    assert!(vectors >= 1, "num_comp_vectors is {vectors}");
    for comp_vector in 0..vectors.min(8) {
        let cq = end.context.create_cq_with(8, &CompletionQueueOptions::default().comp_vector(comp_vector)).unwrap();
        let qp = another(&end, &cq, &cq);
        write_each(&qp, &end, [1]);
        assert_eq!(next(&cq).wr_id(), 1);
    }
}

fn vector_out_of_range(world: &World) {
    let context = world.device(0);
    let vectors = context.query_device().num_comp_vectors;
    for comp_vector in [vectors, u32::MAX] {
        let result = context.create_cq_with(8, &CompletionQueueOptions::default().comp_vector(comp_vector));
        refused(result, ErrorKind::InvalidArgument, &["comp_vector", &comp_vector.to_string()]);
    }
}

fn foreign_channel(world: &World) {
    let channel = world.device(1).create_comp_channel().unwrap();
    refused(
        world.device(0).create_cq_with(8, &CompletionQueueOptions::default().channel(&channel, 0)),
        ErrorKind::InvalidArgument,
        &["create_cq", "channel"],
    );
}

fn foreign_queue(world: &World) {
    let (context, other) = (world.device(0), world.device(1));
    let (pd, own, foreign) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap(), other.create_cq(8).unwrap());
    refused(pd.create_qp(&foreign, &own), ErrorKind::InvalidArgument, &["create_qp", "send_cq"]);
    refused(pd.create_qp(&own, &foreign), ErrorKind::InvalidArgument, &["create_qp", "recv_cq"]);
    pd.create_qp(&own, &own).unwrap();
}

fn numbers_differ(world: &World) {
    let context = world.device(0);
    let queues: Vec<_> = (0..20).map(|_| context.create_cq(1).unwrap()).collect();
    let mut seen: Vec<_> = queues.iter().map(CompletionQueue::number).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), queues.len());
    assert_eq!(queues[3].clone().number(), queues[3].number(), "a clone names the same queue");
}

fn oldest_first(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, 0..50);
    assert_eq!(numbers(&end.cq, 50), (0..50).collect::<Vec<u64>>());
    end.silent();
}

fn as_many_as_fit(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, 0..10);
    wait_finished(&end.qp);
    let mut out = [Completion::default(); 4];
    let mut counts = Vec::new();
    let mut seen = Vec::new();
    loop {
        match end.cq.poll(&mut out).unwrap() {
            0 => break,
            count => {
                counts.push(count);
                seen.extend(out[..count].iter().map(Completion::wr_id));
            }
        }
    }
    assert_eq!(counts, [4, 4, 2]);
    assert_eq!(seen, (0..10).collect::<Vec<u64>>());
}

fn no_room(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, [7]);
    wait_finished(&end.qp);
    assert_eq!(end.cq.poll(&mut []).unwrap(), 0);
    end.written(7);
}

fn reports_qp_num(world: &World) {
    let end = world.loopback(&Shape::default());
    let others = [another(&end, &end.cq, &end.cq), another(&end, &end.cq, &end.cq)];
    for (wr_id, qp) in (0..).zip([&end.qp, &others[0], &others[1]]) {
        write_each(qp, &end, [wr_id, wr_id + 10]);
    }
    let mut seen: Vec<_> = (0..6).map(|_| next(&end.cq)).map(|done| (done.qpn(), done.wr_id())).collect();
    for (wr_id, qp) in (0..).zip([&end.qp, &others[0], &others[1]]) {
        let mine: Vec<u64> = seen.iter().filter(|(qpn, _)| *qpn == qp.qpn()).map(|(_, wr_id)| *wr_id).collect();
        assert_eq!(mine, [wr_id, wr_id + 10], "in the order of the queue pair");
        seen.retain(|(qpn, _)| *qpn != qp.qpn());
    }
    assert_eq!(seen, []);
}

fn separate_queues(world: &World) {
    let end = world.end(0, &Shape::default());
    let (sends, receives) = (end.context.create_cq(8).unwrap(), end.context.create_cq(8).unwrap());
    let qp = another(&end, &sends, &receives);
    qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(1)]).unwrap();
    qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(2).signaled()]).unwrap();
    assert_eq!((next(&sends).wr_id(), next(&receives).wr_id()), (2, 1));
    silent(&sends);
    silent(&receives);
}

fn each_goes_to_one_thread(world: &World) {
    const REQUESTS: u64 = 4_000;
    let end = world.loopback(&Shape::default());
    let (taken, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut out = [Completion::default(); 5];
                while !is_over.load(Ordering::Relaxed) {
                    let count = end.cq.poll(&mut out).unwrap();
                    taken.lock().unwrap().extend(out[..count].iter().map(Completion::wr_id));
                }
            });
        }
        for wr_id in 0..REQUESTS {
            let request = [SendRequest::write(Payload::EMPTY, end.region.remote()).wr_id(wr_id).signaled()];
            while end.qp.post_send(&request).is_err() {
                std::thread::yield_now();
            }
        }
        let start = std::time::Instant::now();
        while taken.lock().unwrap().len() < REQUESTS as usize && start.elapsed() < patience() {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    assert_eq!(taken, (0..REQUESTS).collect::<Vec<u64>>());
}

fn outlives_its_handle(world: &World) {
    let end = world.end(0, &Shape::default());
    let cq = end.context.create_cq(8).unwrap();
    let qp = another(&end, &cq, &cq);
    drop(cq);
    write_each(&qp, &end, [3]);
    assert_eq!(next(qp.send_cq()).wr_id(), 3);
}

fn destroyed_leaves_nothing(world: &World) {
    let end = world.loopback(&Shape::default());
    let doomed = another(&end, &end.cq, &end.cq);
    write_each(&doomed, &end, 0..5);
    write_each(&end.qp, &end, [100]);
    wait_finished(&doomed);
    wait_finished(&end.qp);
    drop(doomed);
    assert_eq!(next(&end.cq).wr_id(), 100);
    end.silent();
}

fn slots_come_back(world: &World) {
    let mut shape = Shape::default();
    shape.cap.max_send_wr = 8;
    let end = world.loopback(&shape);
    let slots = end.qp.cap().max_send_wr as u64;
    let request = |wr_id| SendRequest::write(Payload::EMPTY, end.region.remote()).wr_id(wr_id);
    for round in 0..3 {
        for wr_id in 0..slots - 1 {
            end.qp.post_send(&[request(wr_id)]).unwrap();
        }
        end.qp.post_send(&[request(round).signaled()]).unwrap();
        wait_finished(&end.qp);
        let full = end.qp.post_send(&[request(99)]);
        refused(full, ErrorKind::QueueFull, &["post_send", &slots.to_string()]);
        end.written(round);
    }
    end.silent();
}

fn rest_stays(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, 0..5);
    wait_finished(&end.qp);
    let mut polling = end.cq.polling();
    for wr_id in 0..3 {
        let completion = polling.next().unwrap().expect("a completion");
        assert_eq!((completion.wr_id(), completion.is_success(), completion.qpn()), (wr_id, true, end.qp.qpn()));
    }
    assert_eq!(polling.count(), 3);
    drop(polling);
    assert_eq!(numbers(&end.cq, 2), [3, 4]);
    assert!(end.cq.polling().next().unwrap().is_none());
}

fn breaks_off(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, 0..5);
    wait_finished(&end.qp);
    let mut seen = Vec::new();
    let count = end.cq.poll_with(|completion| {
        seen.push(completion.wr_id());
        if completion.wr_id() == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((count.unwrap(), seen), (2, vec![0, 1]));
    assert_eq!(end.cq.poll_with(|_| ControlFlow::Continue(())).unwrap(), 3);
    assert_eq!(end.cq.poll_with(|_| ControlFlow::Continue(())).unwrap(), 0);
}

fn mixes_with_poll(world: &World) {
    let end = world.loopback(&Shape::default());
    write_each(&end.qp, &end, 0..4);
    wait_finished(&end.qp);
    let mut polling = end.cq.polling();
    assert_eq!(polling.next().unwrap().map(Completion::wr_id), Some(0));
    assert_eq!(numbers(&end.cq, 1), [1]);
    assert_eq!(polling.next().unwrap().map(Completion::wr_id), Some(2));
    let mut other = end.cq.polling();
    assert_eq!(other.next().unwrap().map(Completion::wr_id), Some(3));
    assert_eq!(polling.next().unwrap().map(Completion::wr_id), None);
}

fn may_post(world: &World) {
    let end = world.loopback(&small(4));
    write_each(&end.qp, &end, [0]);
    wait_finished(&end.qp);
    let mut posted = 0;
    // Each completion posts the next request, but the call must still return.
    let count = end.cq.poll_with(|completion| {
        posted += 1;
        write_each(&end.qp, &end, [completion.wr_id() + 1]);
        wait_finished(&end.qp);
        ControlFlow::Continue(())
    });
    let count = count.unwrap();
    assert!(count >= 1 && count <= end.cq.cqe() as usize, "{count}");
    assert_eq!(posted, count);
    end.written(count as u64);
    end.silent();
}

/// Checks that the end's queue has overflowed, and that its queue pair has failed with it.
#[track_caller]
fn has_overflowed(end: &End) {
    if !OVERFLOW_IGNORED.holds() {
        return end.becomes(QueuePairState::Error);
    }
    assert_eq!(end.event(), AsyncEvent::CompletionQueueError(end.cq.number()));
    end.is_in(QueuePairState::ReadyToSend);
}

/// Creates a completion queue, and a queue pair with one completion more than the queue can hold.
fn overflowed(world: &World, cqe: u32) -> (End, u64) {
    let end = world.loopback(&small(cqe));
    let entries = u64::from(end.cq.cqe());
    write_each(&end.qp, &end, 0..=entries);
    has_overflowed(&end);
    (end, entries)
}

fn kept_ones_first(world: &World) {
    let (end, entries) = overflowed(world, 4);
    assert_eq!(numbers(&end.cq, entries as usize), (0..entries).collect::<Vec<u64>>());
    for _ in 0..2 {
        let error = end.cq.poll(&mut [Completion::default()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceLimit, "{error}");
        assert!(error.to_string().contains(&entries.to_string()), "{error}");
    }
    if !OVERFLOW_IGNORED.holds() {
        assert_eq!(end.event(), AsyncEvent::CompletionQueueError(end.cq.number()));
        assert_eq!(end.event(), AsyncEvent::QueuePairFatal(end.qp.qpn()));
    }
    end.no_event();
}

fn all_queue_pairs_end(world: &World) {
    let end = world.loopback(&small(4));
    let entries = u64::from(end.cq.cqe());
    let other = end.context.create_cq(8).unwrap();
    let idle = [another(&end, &end.cq, &other), another(&end, &other, &end.cq)];
    let fresh = create_qp(&end.pd, &end.cq, &end.cq, &Shape::default());
    write_each(&end.qp, &end, 0..=entries);
    has_overflowed(&end);
    if OVERFLOW_IGNORED.holds() {
        idle.iter().for_each(|qp| assert_eq!(qp.state().unwrap(), QueuePairState::ReadyToSend));
        return end.no_event();
    }
    assert_eq!(end.event(), AsyncEvent::CompletionQueueError(end.cq.number()), "the queue first, and once");
    let mut fatal: Vec<_> = (0..3).map(|_| end.event()).collect();
    for qp in [&end.qp, &idle[0], &idle[1]] {
        let event = AsyncEvent::QueuePairFatal(qp.qpn());
        let index = fatal.iter().position(|found| *found == event).unwrap_or_else(|| panic!("no {event:?}"));
        fatal.swap_remove(index);
        assert_eq!(qp.state().unwrap(), QueuePairState::Error);
    }
    assert_eq!(fresh.state().unwrap(), QueuePairState::Reset, "it has nothing to complete");
    end.no_event();
}

fn other_queues_go_on(world: &World) {
    let end = world.loopback(&small(4));
    let other = end.context.create_cq(8).unwrap();
    let bystander = another(&end, &other, &other);
    write_each(&end.qp, &end, 0..=u64::from(end.cq.cqe()));
    has_overflowed(&end);
    assert_eq!(bystander.state().unwrap(), QueuePairState::ReadyToSend);
    write_each(&bystander, &end, [5]);
    assert_eq!(next(&other).wr_id(), 5);
}

fn wakes_the_sleeper(world: &World) {
    let end = world.end(0, &Shape::default());
    let channel = end.context.create_comp_channel().unwrap();
    let cq = end.context.create_cq_with(2, &CompletionQueueOptions::default().channel(&channel, 9)).unwrap();
    let entries = u64::from(cq.cqe());
    let qp = another(&end, &cq, &cq);
    write_each(&qp, &end, 0..entries);
    wait_finished(&qp);
    cq.req_notify(rdma_verbs::verbs::Notify::SolicitedOnly).unwrap();
    write_each(&qp, &end, [entries]);
    match OVERFLOW_IGNORED.holds() {
        true => {
            assert_eq!(channel.wait_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(end.event(), AsyncEvent::CompletionQueueError(cq.number()));
        }
        false => assert_eq!(channel.wait_event(patience()).unwrap(), 9),
    }
    assert_eq!(numbers(&cq, entries as usize).len(), entries as usize);
    refused(cq.poll(&mut [Completion::default()]), ErrorKind::ResourceLimit, &["poll_cq"]);
}

fn overflow_stays(world: &World) {
    let (end, entries) = overflowed(world, 2);
    assert_eq!(numbers(&end.cq, entries as usize).len(), entries as usize);
    end.cq.resize(100).unwrap();
    refused(end.cq.poll(&mut [Completion::default()]), ErrorKind::ResourceLimit, &["poll_cq"]);
    // Its queue pairs work again only with another queue.
    let other = end.context.create_cq(8).unwrap();
    let qp = another(&end, &other, &other);
    write_each(&qp, &end, [1]);
    assert_eq!(next(&other).wr_id(), 1);
}

fn just_full_is_none(world: &World) {
    let end = world.loopback(&small(4));
    let entries = u64::from(end.cq.cqe());
    for _ in 0..3 {
        write_each(&end.qp, &end, 0..entries);
        wait_finished(&end.qp);
        assert_eq!(numbers(&end.cq, entries as usize), (0..entries).collect::<Vec<u64>>());
    }
    end.is_in(QueuePairState::ReadyToSend);
    end.no_event();
}

fn grows_in_order(world: &World) {
    let end = world.loopback(&small(8));
    write_each(&end.qp, &end, 0..8);
    wait_finished(&end.qp);
    end.cq.resize(300).unwrap();
    assert!(end.cq.cqe() >= 300);
    write_each(&end.qp, &end, 8..50);
    assert_eq!(numbers(&end.cq, 50), (0..50).collect::<Vec<u64>>());
}

fn shrinks_in_order(world: &World) {
    let end = world.loopback(&small(300));
    write_each(&end.qp, &end, 0..10);
    wait_finished(&end.qp);
    assert_eq!(numbers(&end.cq, 4), [0, 1, 2, 3]);
    end.cq.resize(6).unwrap();
    assert!(end.cq.cqe() >= 6);
    assert_eq!(numbers(&end.cq, 6), (4..10).collect::<Vec<u64>>());
}

fn not_below_the_queued_entries(world: &World) {
    let end = world.loopback(&small(64));
    write_each(&end.qp, &end, 0..10);
    wait_finished(&end.qp);
    refused(end.cq.resize(9), ErrorKind::InvalidArgument, &["resize_cq", "9"]);
    assert!(end.cq.cqe() >= 64, "nothing changed");
    end.cq.resize(10).unwrap();
    assert_eq!(numbers(&end.cq, 10), (0..10).collect::<Vec<u64>>());
}

fn resize_out_of_range(world: &World) {
    let context = world.device(0);
    let cq = context.create_cq(16).unwrap();
    let most = context.query_device().max_cqe;
    refused(cq.resize(0), ErrorKind::InvalidArgument, &["resize_cq", "cqe", "0"]);
    refused(cq.resize(most + 1), ErrorKind::InvalidArgument, &["resize_cq", "cqe", &most.to_string()]);
    assert!(cq.cqe() >= 16);
}

fn larger_holds_more(world: &World) {
    let end = world.loopback(&small(4));
    end.cq.resize(40).unwrap();
    write_each(&end.qp, &end, 0..40);
    wait_finished(&end.qp);
    end.is_in(QueuePairState::ReadyToSend);
    assert_eq!(numbers(&end.cq, 40), (0..40).collect::<Vec<u64>>());
}

fn resized_while_in_use(world: &World) {
    const REQUESTS: u64 = 3_000;
    const REQUESTS_BETWEEN: u64 = 10;
    let (left, right) = world.pair_of(&small(300), &ConnectOptions::default());
    let (is_over, posted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, cqe) in (0..).zip([300, 700, 301, 1000].into_iter().cycle()) {
                // Never below the number of outstanding requests.
                left.cq.resize(cqe).unwrap();
                // A thread that did nothing else would keep the device from its work.
                while posted.load(Ordering::Relaxed) < number * REQUESTS_BETWEEN {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            for wr_id in 0..REQUESTS {
                let request = [SendRequest::write(Payload::EMPTY, right.region.remote()).wr_id(wr_id).signaled()];
                while left.qp.post_send(&request).is_err() {
                    std::thread::yield_now();
                }
                posted.store(wr_id, Ordering::Relaxed);
            }
        });
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| numbers(&left.cq, REQUESTS as usize)));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(seen.unwrap(), (0..REQUESTS).collect::<Vec<u64>>());
    });
    left.is_in(QueuePairState::ReadyToSend);
    left.no_event();
}
