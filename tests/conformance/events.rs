//! Asynchronous events: when they happen, which object they concern, and how they are acknowledged.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use rdma_verbs::types::EventObject;
use rdma_verbs::verbs::{
    AsyncEvent, CompletionStatus, ErrorKind, Payload, QueuePairAttributes, QueuePairState, ReceiveRequest, RegionList,
    RemoteMemory, Rkey, SendRequest,
};

use super::channel::is_readable;
use super::cq::{wait_finished, write_each};
use super::deviations::{DRAINED_UNREQUESTED, OVERFLOW_IGNORED};
use super::end::{End, SILENCE, Shape, address_vector, patience, receive_without_memory, too_long_for_peer, too_short};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new(
        "event/comm_est/before_ready_to_send",
        "IBTA, asynchronous events: communication established",
        comm_est,
    ),
    Scenario::new("event/comm_est/not_when_ready_to_send", "IBTA, asynchronous events", no_comm_est),
    Scenario::new("event/sq_drained/when_requested", "ibv_modify_qp(3) en_sqd_async_notify", sq_drained),
    Scenario::new(
        "event/sq_drained/only_if_requested",
        "ibv_modify_qp(3) en_sqd_async_notify",
        sq_drained_only_if_requested,
    ),
    Scenario::new("event/access_err/wrong_key", "IBTA, asynchronous events: local access violation", access_err),
    Scenario::new("event/req_err/message_too_long", "IBTA, asynchronous events: invalid request", req_err),
    Scenario::new("event/qp_fatal/receive_memory_gone", "IBTA, asynchronous events: local work queue error", qp_fatal),
    Scenario::new("event/order/as_they_happened", "ibv_get_async_event(3)", in_order),
    Scenario::new("event/context/each_has_its_own", "ibv_get_async_event(3)", each_context_its_own),
    Scenario::new("event/taker/each_goes_to_one", "ibv_get_async_event(3) threads", each_goes_to_one),
    Scenario::new("event/fd/readable_while_it_waits", "ibv_get_async_event(3) polling", readable_while_it_waits),
    Scenario::new("event/destroy/undelivered_is_discarded", "abi-and-suites 4.4 discard", undelivered_is_discarded),
    Scenario::new("event/destroy/queue_discards_its_events", "abi-and-suites 4.4 discard", queue_discards_events),
    Scenario::new("event/destroy/while_unacknowledged", "ibv_ack_async_event(3)", destroy_while_unacknowledged),
    Scenario::new("event/ack/counted_for_each_object", "ibv_ack_async_event(3)", counted_for_each_object),
    Scenario::new("event/ack/polled_is_acknowledged", "ibv_ack_async_event(3)", polled_is_acknowledged),
    Scenario::new("event/ack/wakes_the_waiting_thread", "ibv_ack_async_event(3)", ack_wakes),
];

/// A zero timeout, to check a condition without waiting.
const NOW: Duration = Duration::ZERO;

/// Returns a key that was never allocated.
fn forged(right: &End) -> RemoteMemory {
    let remote = right.region.remote();
    RemoteMemory::new(remote.addr(), Rkey(remote.rkey().0 ^ 1), remote.len())
}

/// Provokes an access error at the right end.
fn provoke(left: &End, right: &End) {
    left.qp.post_send(&[SendRequest::write(Payload::inline(b"x"), forged(right)).wr_id(1).signaled()]).unwrap();
    left.fails(1, CompletionStatus::RemoteAccessError);
}

/// Raises an event that every device supports.
fn raise(end: &End) {
    drain(end, Some(true));
}

fn raised_by(end: &End) -> AsyncEvent {
    AsyncEvent::SendQueueDrained(end.qp.qpn())
}

/// Connects two ends; the right one stays in RTR and has a receive posted.
fn half_connected(world: &World) -> (End, End) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let near = left.qp.connection_info().unwrap();
    left.qp.connect(&right.qp.connection_info().unwrap()).unwrap();
    right.qp.init().unwrap();
    let mut vector = address_vector(&right.context, near.gid);
    vector.hop_limit = 64;
    let device = right.context.query_device();
    let mut to_rtr = QueuePairAttributes::default()
        .qp_state(QueuePairState::ReadyToReceive)
        .ah_attr(vector)
        .path_mtu(right.context.query_port(1).unwrap().active_mtu)
        .dest_qp_num(near.qpn)
        .rq_psn(near.psn)
        .max_dest_rd_atomic(device.max_qp_rd_atom.min(4))
        .min_rnr_timer(12)
        .peer(near.capabilities);
    to_rtr.peer_key = right.qp.peer_key(&near);
    right.qp.modify(&to_rtr).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(5)]).unwrap();
    (left, right)
}

fn comm_est(world: &World) {
    let (left, right) = half_connected(world);
    right.no_event();
    left.qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(1).signaled()]).unwrap();
    left.sent(1);
    right.expect_established();
    right.received(5, 0);
    write_each(&left.qp, &right, [2]);
    left.written(2);
    right.no_event();
}

fn no_comm_est(world: &World) {
    let (left, right) = world.pair();
    write_each(&left.qp, &right, [1]);
    left.written(1);
    left.no_event();
    right.no_event();
}

fn drain(end: &End, notify: Option<bool>) {
    let mut drained = QueuePairAttributes::default().qp_state(QueuePairState::SendQueueDrained);
    drained.en_sqd_async_notify = notify;
    end.qp.modify(&drained).unwrap();
}

fn sq_drained(world: &World) {
    let (left, right) = world.pair();
    write_each(&left.qp, &right, 0..3);
    drain(&left, Some(true));
    assert_eq!(left.event(), AsyncEvent::SendQueueDrained(left.qp.qpn()));
    assert!(!left.qp.query().unwrap().sq_draining);
    left.no_event();
    // Requests that had not started continue in RTS.
    left.qp.modify(&QueuePairAttributes::default().qp_state(QueuePairState::ReadyToSend)).unwrap();
    write_each(&left.qp, &right, [3]);
    (0..4).for_each(|wr_id| left.written(wr_id));
}

fn sq_drained_only_if_requested(world: &World) {
    let (left, right) = world.pair();
    write_each(&left.qp, &right, 0..3);
    wait_finished(&left.qp);
    drain(&left, None);
    if DRAINED_UNREQUESTED.holds() {
        assert_eq!(left.event(), AsyncEvent::SendQueueDrained(left.qp.qpn()));
    }
    left.no_event();
}

fn access_err(world: &World) {
    let (left, right) = world.pair();
    provoke(&left, &right);
    right.failure_event(&[AsyncEvent::QueuePairAccessError]);
    right.becomes(QueuePairState::Error);
    right.no_event();
    left.no_event();
}

fn req_err(world: &World) {
    let (left, right) = world.pair();
    right.qp.post_recv(&[ReceiveRequest::new(right.region.slice(..4).unwrap()).wr_id(2)]).unwrap();
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"longer than four")).wr_id(1).signaled()]).unwrap();
    left.fails(1, too_long_for_peer());
    right.failure_event(&[AsyncEvent::QueuePairRequestError]);
    right.fails(2, too_short());
    right.no_event();
}

fn qp_fatal(world: &World) {
    let (left, right) = world.pair();
    let doomed = right.region(64, rdma_verbs::verbs::AccessFlags::LOCAL_WRITE);
    right.qp.post_recv(&[ReceiveRequest::new(&doomed).wr_id(2)]).unwrap();
    drop(doomed);
    left.qp.post_send(&[SendRequest::send(Payload::inline(b"where to?")).wr_id(1).signaled()]).unwrap();
    left.fails(1, CompletionStatus::RemoteOperationError);
    right.failure_event(&[AsyncEvent::QueuePairFatal]);
    right.fails(2, receive_without_memory());
    right.no_event();
}

/// Creates two ends that share a context.
fn two_ends(world: &World) -> [End; 2] {
    let context = world.device(1);
    [0, 1].map(|_| {
        let end = End::new(context.clone(), &Shape::default());
        end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
        end
    })
}

fn in_order(world: &World) {
    let [first, second] = two_ends(world);
    raise(&second);
    assert!(is_readable(first.context.as_fd(), patience()));
    raise(&first);
    assert_eq!([first.event(), first.event()], [raised_by(&second), raised_by(&first)]);
    first.no_event();
}

fn each_context_its_own(world: &World) {
    let end = world.loopback(&Shape::default());
    let bystander = world.device(0);
    raise(&end);
    assert_eq!(bystander.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(end.event(), raised_by(&end));
}

fn each_goes_to_one(world: &World) {
    let [first, second] = two_ends(world);
    let seen = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let start = std::time::Instant::now();
                while seen.lock().unwrap().len() < 2 && start.elapsed() < patience() {
                    if let Ok(event) = first.context.wait_async_event(Duration::from_millis(5)) {
                        seen.lock().unwrap().push(event);
                    }
                }
            });
        }
        raise(&first);
        raise(&second);
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.contains(&raised_by(&first)) && seen.contains(&raised_by(&second)), "{seen:?}");
    first.no_event();
}

fn readable_while_it_waits(world: &World) {
    let end = world.loopback(&Shape::default());
    raise(&end);
    assert!(is_readable(end.context.as_fd(), patience()));
    assert!(is_readable(end.context.as_fd(), patience()), "until it is taken");
    assert_eq!(end.event(), raised_by(&end));
    assert!(!is_readable(end.context.as_fd(), SILENCE));
}

fn undelivered_is_discarded(world: &World) {
    let [first, second] = two_ends(world);
    raise(&first);
    drained(&first);
    raise(&second);
    let End { qp, context, .. } = first;
    drop(qp);
    assert_eq!(second.event(), raised_by(&second));
    second.no_event();
    assert!(!is_readable(context.as_fd(), SILENCE));
}

/// Waits until an end is drained, without taking the event.
fn drained(end: &End) {
    end.is_drained();
    assert!(is_readable(end.context.as_fd(), patience()));
}

fn queue_discards_events(world: &World) {
    let end = world.loopback(&Shape { cqe: 2, ..Shape::default() });
    let entries = u64::from(end.cq.cqe());
    write_each(&end.qp, &end, 0..=entries);
    match OVERFLOW_IGNORED.holds() {
        true => assert!(is_readable(end.context.as_fd(), patience())),
        false => end.becomes(QueuePairState::Error),
    }
    let End { qp, cq, context, region, pd } = end;
    drop((qp, cq, region, pd));
    assert_eq!(context.wait_async_event(SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
}

fn destroy_while_unacknowledged(world: &World) {
    let end = world.loopback(&Shape::default());
    raise(&end);
    let event = take(&end);
    let object = EventObject::QueuePair(end.qp.qpn());
    let context = end.context.clone();
    drop(end);
    assert_eq!(context.wait_events_acked(object, SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(event.object(), object);
    drop(event);
    context.wait_events_acked(object, NOW).unwrap();
}

/// Takes the next event, unacknowledged.
fn take(end: &End) -> rdma_verbs::verbs::UnacknowledgedEvent {
    let start = std::time::Instant::now();
    loop {
        if let Some(event) = end.context.take_async_event() {
            return event;
        }
        assert!(start.elapsed() < patience(), "no event");
        std::thread::yield_now();
    }
}

fn counted_for_each_object(world: &World) {
    let [first, second] = two_ends(world);
    raise(&first);
    let mine = take(&first);
    raise(&second);
    let other = take(&first);
    assert_eq!((*mine, *other), (raised_by(&first), raised_by(&second)));
    let acked = |end: &End| match first.context.wait_events_acked(EventObject::QueuePair(end.qp.qpn()), NOW) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            false
        }
    };
    assert_eq!((acked(&first), acked(&second)), (false, false));
    drop(other);
    assert_eq!((acked(&first), acked(&second)), (false, true));
    drop(mine);
    assert_eq!((acked(&first), acked(&second)), (true, true));
    first.context.wait_events_acked(EventObject::CompletionQueue(first.cq.number()), NOW).unwrap();
}

fn polled_is_acknowledged(world: &World) {
    let end = world.loopback(&Shape::default());
    raise(&end);
    assert_eq!(end.event(), raised_by(&end));
    end.context.wait_events_acked(EventObject::QueuePair(end.qp.qpn()), NOW).unwrap();
}

fn ack_wakes(world: &World) {
    let end = world.loopback(&Shape::default());
    raise(&end);
    let event = take(&end);
    let (context, object) = (end.context.clone(), event.object());
    let waiter = std::thread::spawn(move || context.wait_events_acked(object, patience()));
    std::thread::sleep(SILENCE);
    assert!(!waiter.is_finished());
    drop(event);
    waiter.join().unwrap().unwrap();
}
