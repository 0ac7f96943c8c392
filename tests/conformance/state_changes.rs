//! State changes: ranges of attributes, query, draining, reset and reuse, destruction.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, ConnectOptions, ErrorKind, Mtu, Payload, Psn, Qpn, QueuePairAttributes,
    QueuePairCapabilities, QueuePairOptions, QueuePairState, QueuePairType, ReceiveRequest, SendRequest,
};

use super::attributes::{assert_reported, everything, set};
use super::bytes::{check, check_all, fill};
use super::deviations::{DRAINED_UNREQUESTED, WAITING_IS_DRAINED};
use super::end::{End, Shape, memory_gone, nothing, patience, refused};
use super::suite::Scenario;
use super::world::{World, connect};

use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};

const RC: QueuePairType = QueuePairType::ReliableConnection;
const UC: QueuePairType = QueuePairType::UnreliableConnection;
const MODIFY: &str = "ibv_modify_qp(3): EINVAL for attributes out of range; IBTA, queue pair verbs";
const QUERY: &str = "IBTA, queue pair verbs: Query Queue Pair; ibv_query_qp(3)";
const DRAIN: &str = "IBTA, queue pair states: Send Queue Drain";
const RESET: &str = "IBTA, queue pair states: Reset; ibv_modify_qp(3)";
const DESTROY: &str = "IBTA, queue pair verbs: Destroy Queue Pair; ibv_destroy_qp(3)";

macro_rules! scenarios {
    ($($name:literal $clause:ident $run:expr;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] =
            &[$(Scenario { name: $name, clause: $clause, needs: &[], run: $run },)*];
    };
}

scenarios! {
    "states/range/port_and_pkey" MODIFY port_and_pkey;
    "states/range/timers_and_retries" MODIFY timers_and_retries;
    "states/range/rd_atomic_limits" MODIFY rd_atomic_limits;
    "states/range/path_mtu_above_the_active_one" MODIFY path_mtu_above_the_active_one;
    "states/range/address" MODIFY address;
    "states/query/everything_that_was_set" QUERY everything_that_was_set;
    "states/query/creation_attributes" QUERY creation_attributes;
    "states/query/state_changed_by_a_failure" QUERY state_changed_by_a_failure;
    "states/sqd/rc_waits_for_started_requests" DRAIN rc_waits_for_started_requests;
    "states/sqd/idle_queue_is_drained_at_once" DRAIN |world| { drained_at_once(world, RC); drained_at_once(world, UC) };
    "states/sqd/no_event_unless_requested_this_time" DRAIN no_event_unless_requested_this_time;
    "states/sqd/rc_posted_later_waits_for_rts" DRAIN |world| posted_later_waits_for_rts(world, RC);
    "states/sqd/uc_posted_later_waits_for_rts" DRAIN |world| posted_later_waits_for_rts(world, UC);
    "states/sqd/rc_receives_go_on" DRAIN |world| receives_go_on(world, RC);
    "states/sqd/uc_receives_go_on" DRAIN |world| receives_go_on(world, UC);
    "states/sqd/attributes_change_only_when_drained" DRAIN attributes_change_only_when_drained;
    "states/sqd/path_changes_take_effect" DRAIN path_changes_take_effect;
    "states/reset/rc_forgets_what_is_outstanding" RESET |world| reset_forgets(world, RC);
    "states/reset/uc_forgets_what_is_outstanding" RESET |world| reset_forgets(world, UC);
    "states/reset/rc_serves_again_with_new_psns" RESET |world| serves_again(world, RC);
    "states/reset/uc_serves_again_with_new_psns" RESET |world| serves_again(world, UC);
    "states/destroy/rc_with_work_outstanding" DESTROY |world| destroyed_with_work(world, RC);
    "states/destroy/uc_with_work_outstanding" DESTROY |world| destroyed_with_work(world, UC);
}

fn shape(qp_type: QueuePairType) -> Shape {
    Shape { qp_type, ..Shape::default() }
}

fn pair(world: &World, qp_type: QueuePairType) -> (End, End) {
    world.pair_of(&shape(qp_type), &ConnectOptions::default())
}

fn go(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

fn drain(notify: bool) -> QueuePairAttributes {
    go(SendQueueDrained).en_sqd_async_notify(notify)
}

/// Checks that each change is refused, that the text contains these names, and that nothing changes.
fn all_refused<const N: usize>(end: &End, cases: [(QueuePairAttributes, &[&str]); N]) {
    let before = end.qp.query().unwrap();
    for (attributes, names) in cases {
        refused(end.qp.modify(&attributes), ErrorKind::InvalidArgument, names);
        assert_eq!(end.qp.query().unwrap(), before);
    }
}

const START: &[&str] = &["pkey_index", "port_num", "qp_access_flags"];
const TO_RECEIVE: &[&str] = &["ah_attr", "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"];
const TO_SEND: &[&str] = &["sq_psn", "max_rd_atomic", "timeout", "retry_cnt", "rnr_retry"];

fn port_and_pkey(world: &World) {
    let end = world.end(0, &Shape::default());
    let start = set(Init, &everything(&end), START);
    all_refused(
        &end,
        [
            (start.port_num(0), &["port_num", "0", "1"]),
            (start.port_num(77), &["port_num", "77"]),
            (start.pkey_index(999), &["pkey_index", "999"]),
        ],
    );
    end.qp.modify(&start).unwrap();
}

fn timers_and_retries(world: &World) {
    let end = world.end(0, &Shape::default());
    let all = everything(&end);
    end.qp.modify(&set(Init, &all, START)).unwrap();
    let receive = set(ReadyToReceive, &all, TO_RECEIVE);
    all_refused(&end, [(receive.min_rnr_timer(32), &["min_rnr_timer", "32", "31"])]);
    end.qp.modify(&receive.min_rnr_timer(31)).unwrap();
    let send = set(ReadyToSend, &all, TO_SEND);
    all_refused(
        &end,
        [
            (send.timeout(32), &["timeout", "32", "31"]),
            (send.retry_cnt(8), &["retry_cnt", "8", "7"]),
            (send.rnr_retry(8), &["rnr_retry", "8", "7"]),
        ],
    );
    let most = send.timeout(31).retry_cnt(7).rnr_retry(7);
    end.qp.modify(&most).unwrap();
    assert_reported(&end.qp, &most, &["timeout", "retry_cnt", "rnr_retry"]);
}

fn rd_atomic_limits(world: &World) {
    let end = world.end(0, &Shape::default());
    let (all, device) = (everything(&end), end.context.query_device());
    let (most_here, most_there) = (device.max_qp_rd_atom, device.max_qp_init_rd_atom);
    end.qp.modify(&set(Init, &all, START)).unwrap();
    let receive = set(ReadyToReceive, &all, TO_RECEIVE);
    if let Some(more) = most_here.checked_add(1) {
        let names = ["max_dest_rd_atomic", &more.to_string(), &most_here.to_string()];
        all_refused(&end, [(receive.max_dest_rd_atomic(more), &names)]);
    }
    end.qp.modify(&receive.max_dest_rd_atomic(most_here)).unwrap();
    let send = set(ReadyToSend, &all, TO_SEND);
    if let Some(more) = most_there.checked_add(1) {
        let names = ["max_rd_atomic", &more.to_string(), &most_there.to_string()];
        all_refused(&end, [(send.max_rd_atomic(more), &names)]);
    }
    end.qp.modify(&send.max_rd_atomic(most_there)).unwrap();
    let reported = end.qp.query().unwrap().attributes;
    assert_eq!((reported.max_dest_rd_atomic, reported.max_rd_atomic), (Some(most_here), Some(most_there)));
}

fn path_mtu_above_the_active_one(world: &World) {
    let end = world.end(0, &Shape::default());
    let (all, active) = (everything(&end), end.context.query_port(1).unwrap().active_mtu);
    end.qp.modify(&set(Init, &all, START)).unwrap();
    let receive = set(ReadyToReceive, &all, TO_RECEIVE);
    for mtu in Mtu::ALL.iter().copied().filter(|mtu| *mtu > active) {
        let names = ["path_mtu", &mtu.bytes().to_string(), &active.to_string()];
        all_refused(&end, [(receive.path_mtu(mtu), &names)]);
    }
    end.qp.modify(&receive.path_mtu(active)).unwrap();
    assert_eq!(end.qp.query().unwrap().attributes.path_mtu, Some(active));
}

fn address(world: &World) {
    let end = world.end(0, &Shape::default());
    let all = everything(&end);
    end.qp.modify(&set(Init, &all, START)).unwrap();
    let receive = set(ReadyToReceive, &all, TO_RECEIVE);
    let own = all.ah_attr.unwrap();
    let with = |ah_attr| receive.ah_attr(ah_attr);
    all_refused(
        &end,
        [
            (with(own.sgid_index(u8::MAX)), &["sgid_index", "255"]),
            (with(own.port_num(9)), &["port_num", "9"]),
            (with(own.dgid(rdma_verbs::verbs::Gid::ZERO)), &["dgid"]),
        ],
    );
    end.qp.modify(&receive).unwrap();
}

fn everything_that_was_set(world: &World) {
    for (qp_type, receive, send) in [(RC, TO_RECEIVE, TO_SEND), (UC, &TO_RECEIVE[..4], &TO_SEND[..1])] {
        let end = world.end(0, &shape(qp_type));
        let mut all = everything(&end);
        let vector = all.ah_attr.unwrap().traffic_class(0x48).hop_limit(7).flow_label(0x1_2345).sl(3);
        all.ah_attr = Some(vector);
        let mut reported = Vec::new();
        for (to, names) in [(Init, START), (ReadyToReceive, receive), (ReadyToSend, send)] {
            end.qp.modify(&set(to, &all, names)).unwrap();
            reported.extend_from_slice(names);
            assert_reported(&end.qp, &all, &reported);
            assert_eq!(end.qp.query().unwrap().qp_state, to);
        }
        let changed = go(ReadyToSend).qp_access_flags(AccessFlags::REMOTE_READ);
        end.qp.modify(&changed).unwrap();
        assert_reported(&end.qp, &changed, &["qp_access_flags"]);
        assert_reported(&end.qp, &all, &["ah_attr", "path_mtu", "dest_qp_num", "rq_psn", "sq_psn"]);
    }
}

fn creation_attributes(world: &World) {
    let cap =
        QueuePairCapabilities { max_send_wr: 5, max_recv_wr: 6, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 40 };
    for (qp_type, sq_sig_all) in [(RC, true), (RC, false), (UC, true)] {
        let end = world.end(0, &Shape { qp_type, sq_sig_all, cap, ..Shape::default() });
        let status = end.qp.query().unwrap();
        assert_eq!((status.qp_type, status.sq_sig_all, status.qp_state), (qp_type, sq_sig_all, Reset));
        assert_eq!((status.cap, end.qp.qp_type(), status.sq_draining), (end.qp.cap(), qp_type, false));
        let (given, actual) = (cap, status.cap);
        assert!(actual.max_send_wr >= given.max_send_wr && actual.max_recv_wr >= given.max_recv_wr, "{actual:?}");
        assert!(actual.max_send_sge >= given.max_send_sge && actual.max_recv_sge >= given.max_recv_sge, "{actual:?}");
        assert!(actual.max_inline_data >= given.max_inline_data, "{actual:?}");
    }
}

fn state_changed_by_a_failure(world: &World) {
    let (left, right) = world.pair();
    let before = left.qp.query().unwrap().attributes;
    let region = left.region(64, AccessFlags::LOCAL_WRITE);
    let mut batch = left.qp.send_batch().unwrap();
    batch.push(&SendRequest::send(&region).wr_id(1)).unwrap();
    region.revoke().unwrap();
    batch.post().unwrap();
    left.fails(1, memory_gone());
    left.becomes(Error);
    let after = left.qp.query().unwrap().attributes;
    assert_eq!((after.qp_state, after.dest_qp_num, after.sq_psn), (Some(Error), before.dest_qp_num, before.sq_psn));
    right.is_in(ReadyToSend);
}

/// Posts a SEND whose receive is not posted yet.
fn post_without_receive(left: &End, wr_id: u64) {
    left.qp.post_send(&[SendRequest::send(left.region.slice(..100).unwrap()).wr_id(wr_id).signaled()]).unwrap();
}

fn rc_waits_for_started_requests(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 100, 5);
    post_without_receive(&left, 1);
    left.qp.modify(&drain(true)).unwrap();
    if WAITING_IS_DRAINED.holds() {
        return assert_eq!(left.event(), AsyncEvent::SendQueueDrained(left.qp.qpn()));
    }
    assert!(left.qp.query().unwrap().sq_draining);
    left.no_event();
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(2)]).unwrap();
    right.received(2, 100);
    left.sent(1);
    check(&right.region, 0, 100, 5);
    assert_eq!(left.event(), AsyncEvent::SendQueueDrained(left.qp.qpn()));
    let status = left.qp.query().unwrap();
    assert_eq!((status.qp_state, status.sq_draining), (SendQueueDrained, false));
    left.no_event();
}

fn drained_at_once(world: &World, qp_type: QueuePairType) {
    let (left, _right) = pair(world, qp_type);
    left.qp.modify(&drain(true)).unwrap();
    assert_eq!(left.event(), AsyncEvent::SendQueueDrained(left.qp.qpn()));
    assert!(!left.qp.query().unwrap().sq_draining);
    left.no_event();
}

fn no_event_unless_requested_this_time(world: &World) {
    let (left, _right) = world.pair();
    let drained = AsyncEvent::SendQueueDrained(left.qp.qpn());
    let none = || match DRAINED_UNREQUESTED.holds() {
        true => assert_eq!(left.event(), drained),
        false => left.no_event(),
    };
    left.qp.modify(&drain(false)).unwrap();
    none();
    left.qp.modify(&go(ReadyToSend)).unwrap();
    left.qp.modify(&drain(true)).unwrap();
    assert_eq!(left.event(), drained);
    left.qp.modify(&go(ReadyToSend)).unwrap();
    left.qp.modify(&go(SendQueueDrained)).unwrap();
    none();
    left.no_event();
}

fn posted_later_waits_for_rts(world: &World, qp_type: QueuePairType) {
    let (left, right) = pair(world, qp_type);
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(2)]).unwrap();
    left.qp.modify(&drain(true)).unwrap();
    left.event();
    fill(&left.region, 0, 100, 6);
    post_without_receive(&left, 1);
    left.silent();
    right.silent();
    assert!(!left.qp.query().unwrap().sq_draining, "what was posted in SQD is not begun");
    left.resume(nothing());
    right.received(2, 100);
    left.sent(1);
    check(&right.region, 0, 100, 6);
}

fn receives_go_on(world: &World, qp_type: QueuePairType) {
    let (left, right) = pair(world, qp_type);
    left.qp.modify(&drain(true)).unwrap();
    left.event();
    for wr_id in 0..3 {
        left.qp.post_recv(&[ReceiveRequest::new(&left.region).wr_id(wr_id)]).unwrap();
        fill(&right.region, 0, 3000, wr_id);
        right.qp.post_send(&[SendRequest::send(right.region.slice(..3000).unwrap()).wr_id(9).signaled()]).unwrap();
        left.received(wr_id, 3000);
        right.sent(9);
        check(&left.region, 0, 3000, wr_id);
    }
    left.is_in(SendQueueDrained);
}

fn attributes_change_only_when_drained(world: &World) {
    let (left, right) = world.pair();
    post_without_receive(&left, 1);
    left.qp.modify(&drain(true)).unwrap();
    let timeout = go(SendQueueDrained).timeout(18);
    if WAITING_IS_DRAINED.holds() {
        left.event();
        left.qp.modify(&timeout).unwrap();
        return assert_reported(&left.qp, &timeout, &["timeout"]);
    }
    let before = left.qp.query().unwrap();
    refused(left.qp.modify(&timeout), ErrorKind::InvalidState, &["draining", "timeout"]);
    assert_eq!(left.qp.query().unwrap(), before);
    right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(2)]).unwrap();
    left.event();
    left.qp.modify(&timeout).unwrap();
    assert_reported(&left.qp, &timeout, &["timeout"]);
}

/// The queue pair moves to another device's address: packets carry the new path's settings, and arrive.
fn path_changes_take_effect(world: &World) {
    let (left, right) = world.pair();
    left.qp.modify(&drain(true)).unwrap();
    left.event();
    let vector = left.qp.query().unwrap().attributes.ah_attr.unwrap().hop_limit(3).traffic_class(0x20);
    let moved = go(SendQueueDrained).ah_attr(vector).max_dest_rd_atomic(16);
    left.qp.modify(&moved).unwrap();
    assert_reported(&left.qp, &moved, &["ah_attr", "max_dest_rd_atomic"]);
    left.qp.modify(&go(ReadyToSend)).unwrap();
    for (from, to, seed) in [(&left, &right, 1), (&right, &left, 2)] {
        to.qp.post_recv(&[ReceiveRequest::new(to.region.slice(8192..).unwrap()).wr_id(2)]).unwrap();
        fill(&from.region, 0, 5000, seed);
        from.qp.post_send(&[SendRequest::send(from.region.slice(..5000).unwrap()).wr_id(1).signaled()]).unwrap();
        to.received(2, 5000);
        from.sent(1);
        check(&to.region, 8192, 5000, seed);
    }
    // The responder serves more READs at a time than the connection started with.
    let remote = left.region.remote();
    let reads = (0..4).map(|part| {
        let range = part * 512..(part + 1) * 512;
        SendRequest::read(right.region.slice(range.clone()).unwrap(), remote.slice(range).unwrap()).wr_id(part as u64)
    });
    right.qp.post_send(&reads.map(SendRequest::signaled).collect::<Vec<_>>()).unwrap();
    (0..4).for_each(|wr_id| right.read(wr_id, 512));
    check(&right.region, 0, 2048, 1);
}

fn reset_forgets(world: &World, qp_type: QueuePairType) {
    let (left, right) = pair(world, qp_type);
    left.qp.modify(&drain(true)).unwrap();
    left.event();
    post_without_receive(&left, 1);
    left.qp.post_recv(&[ReceiveRequest::new(&left.region).wr_id(2)]).unwrap();
    // An unpolled completion is removed as well.
    left.qp.post_recv(&[ReceiveRequest::new(&left.region).wr_id(3)]).unwrap();
    right.qp.post_send(&[SendRequest::send(Payload::inline(b"unread")).wr_id(4).signaled()]).unwrap();
    right.sent(4);
    let start = Instant::now();
    while left.region.to_vec(..6).unwrap() != b"unread" {
        assert!(start.elapsed() < patience(), "the message does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    left.qp.modify(&go(Reset)).unwrap();
    left.silent();
    left.no_event();
    let status = left.qp.query().unwrap();
    assert_eq!((status.qp_state, status.sq_draining, status.cap), (Reset, false, left.qp.cap()));
    refused(left.qp.post_send(&[SendRequest::send(Payload::EMPTY)]), ErrorKind::InvalidState, &["RESET"]);
    refused(left.qp.post_recv(&[ReceiveRequest::new(&left.region)]), ErrorKind::InvalidState, &["RESET"]);
}

fn serves_again(world: &World, qp_type: QueuePairType) {
    let (left, right) = pair(world, qp_type);
    for round in 0..4 {
        right.qp.post_recv(&[ReceiveRequest::new(&right.region).wr_id(round)]).unwrap();
        fill(&left.region, 0, 4000, round);
        left.qp.post_send(&[SendRequest::send(left.region.slice(..4000).unwrap()).wr_id(7).signaled()]).unwrap();
        right.received(round, 4000);
        left.sent(7);
        check(&right.region, 0, 4000, round);
        if round % 2 == 1 {
            left.to_error();
        }
        let before = left.qp.connection_info().unwrap().psn;
        left.qp.reset().unwrap();
        right.qp.reset().unwrap();
        assert_ne!(left.qp.connection_info().unwrap().psn, before, "one in 16 million");
        connect(&left, &right, &ConnectOptions::default());
    }
    check_all(&left.region, 4000, 64, 0);
}

fn destroyed_with_work(world: &World, qp_type: QueuePairType) {
    let End { qp, region, cq, pd, context } = world.end(0, &shape(qp_type));
    let absent = qp.connection_info().unwrap().qpn(Qpn::new(0x1234));
    qp.connect_with(&absent, &ConnectOptions::default().timeout(0)).unwrap();
    qp.post_recv(&[ReceiveRequest::new(region.slice(..64).unwrap()).wr_id(1)]).unwrap();
    let requests: Vec<_> =
        (0..20).map(|wr_id| SendRequest::send(region.slice(64..).unwrap()).wr_id(wr_id).signaled()).collect();
    qp.post_send(&requests).unwrap();
    let (qpn, psn) = (qp.qpn(), Psn::new(0));
    drop(qp);
    super::end::silent(&cq);
    assert_eq!(context.wait_async_event(Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::TimedOut);
    // The objects that it was made of can be reused.
    let other = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().qp_type(qp_type)).unwrap();
    assert_ne!((other.qpn(), other.connection_info().unwrap().psn), (qpn, psn));
    other.connect(&other.connection_info().unwrap()).unwrap();
    other.post_recv(&[ReceiveRequest::new(region.slice(..64).unwrap()).wr_id(5)]).unwrap();
    other.post_send(&[SendRequest::send(Payload::inline(b"alive")).wr_id(6)]).unwrap();
    let received = super::end::next(&cq);
    assert_eq!((received.wr_id(), received.result().unwrap().byte_len), (5, 5));
    region.dereg().unwrap();
}
