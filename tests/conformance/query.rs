//! Queries of a queue pair: all creation parameters and all attributes set, for every type; and completions purged by
//! RESET and destruction.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    ErrorKind, Payload, Qkey, QueuePairAttributes, QueuePairCapabilities, QueuePairOptions, QueuePairState,
    QueuePairStatus, QueuePairType, ReceiveRequest, SendRequest,
};

use super::attributes::{assert_reported, everything, set, walk};
use super::deviations::RD_ATOMIC_ROUNDED;
use super::end::{End, Shape, address_vector, create_qp, own_gid, patience, refused, silent};
use super::sharing::MAX_SRQ;
use super::suite::{Capability, Scenario, XRC};
use super::world::{World, connect};

use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};

const RC: QueuePairType = QueuePairType::ReliableConnection;
const UC: QueuePairType = QueuePairType::UnreliableConnection;
const UD: QueuePairType = QueuePairType::UnreliableDatagram;
const QUERY: &str = "ibv_query_qp(3)";

const fn scenario(name: &'static str, clause: &'static str, needs: &'static [Capability], run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs, run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("states/query/datagrams_everything_that_was_set", QUERY, &[], datagrams),
    scenario("states/query/creation_attributes_in_every_state", "ibv_query_qp(3) init_attr", &[], in_every_state),
    scenario("states/query/reset_forgets_what_was_set", "ibv_query_qp(3)", &[], reset_forgets),
    scenario("states/query/drained_changes_are_returned", QUERY, &[], drained_changes),
    scenario("states/query/queues_of_each_side", "ibv_query_qp(3) init_attr send_cq, recv_cq", &[], queues),
    scenario("states/query/shared_receive_queue", "ibv_query_qp(3) init_attr srq", &[MAX_SRQ], shared_queue),
    scenario("states/query/xrc_ends", "ibv_create_qp_ex(3) XRC_SEND, XRC_RECV", &[XRC], xrc_ends),
    scenario("states/query/destroyed_is_gone", "ibv_destroy_qp(3)", &[], destroyed),
    scenario("post/states/each_type", "ibv_post_send(3), ibv_post_recv(3) EINVAL", &[], posting_by_state),
    scenario("rc/reset/purges_both_queues", "ibv_modify_qp(3): RESET", &[], reset_purges_both),
    scenario("rc/destroy/purges_both_queues", "ibv_destroy_qp(3)", &[], destroy_purges_both),
    scenario("ud/errors/reset_purges_completions", "ibv_modify_qp(3): RESET", &[], datagrams_purged),
];

fn go(state: QueuePairState) -> QueuePairAttributes {
    QueuePairAttributes::default().qp_state(state)
}

fn query(end: &End) -> QueuePairStatus {
    end.qp.query().expect("query_qp")
}

fn datagrams(world: &World) {
    let end = world.end(0, &super::ud::shape());
    let all = everything(&end);
    let start = ["pkey_index", "port_num", "qkey"];
    end.qp.modify(&set(Init, &all, &start)).unwrap();
    assert_reported(&end.qp, &all, &start);
    end.qp.modify(&set(ReadyToReceive, &all, &[])).unwrap();
    end.qp.modify(&set(ReadyToSend, &all, &["sq_psn"])).unwrap();
    assert_reported(&end.qp, &all, &["pkey_index", "port_num", "qkey", "sq_psn"]);
    let changed = go(ReadyToSend).qkey(Qkey(0x7654_3210));
    end.qp.modify(&changed).unwrap();
    assert_reported(&end.qp, &changed, &["qkey"]);
    // Attributes that datagrams lack are not reported as if they had been set.
    let reported = query(&end).attributes;
    assert_eq!((reported.ah_attr, reported.dest_qp_num, reported.rq_psn, reported.path_mtu), (None, None, None, None));
    assert_eq!((reported.timeout, reported.max_rd_atomic, reported.qp_state), (None, None, Some(ReadyToSend)));
}

/// Returns the steps of a connection through all states.
fn steps(qp_type: QueuePairType) -> [(QueuePairState, &'static [&'static str]); 4] {
    let reliable = qp_type == RC;
    let receive: &[&str] = match qp_type {
        UD => &[],
        UC => &["ah_attr", "path_mtu", "dest_qp_num", "rq_psn"],
        _ => &["ah_attr", "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"],
    };
    let asking: &[&str] = &["sq_psn", "max_rd_atomic", "timeout", "retry_cnt", "rnr_retry"];
    let start: &[&str] = match qp_type {
        UD => &["pkey_index", "port_num", "qkey"],
        _ => &["pkey_index", "port_num", "qp_access_flags"],
    };
    let send = if reliable { asking } else { &asking[..1] };
    [(Init, start), (ReadyToReceive, receive), (ReadyToSend, send), (SendQueueDrained, &[])]
}

fn in_every_state(world: &World) {
    let cap =
        QueuePairCapabilities { max_send_wr: 9, max_recv_wr: 5, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 20 };
    for (qp_type, sq_sig_all) in [(RC, true), (UC, false), (UD, true)] {
        let end = world.end(0, &Shape { qp_type, sq_sig_all, cap, ..Shape::default() });
        let created = query(&end);
        let same = |state: QueuePairState| {
            let now = query(&end);
            assert_eq!((now.qp_type, now.sq_sig_all, now.cap), (qp_type, sq_sig_all, created.cap));
            assert_eq!((now.qp_state, now.attributes.qp_state), (state, Some(state)));
        };
        same(Reset);
        for step in steps(qp_type) {
            walk(&end, &[step]);
            same(step.0);
        }
        for state in [Error, Reset] {
            end.qp.modify(&go(state)).unwrap();
            same(state);
        }
    }
}

fn reset_forgets(world: &World) {
    for qp_type in [RC, UC, UD] {
        let end = world.end(0, &Shape { qp_type, ..Shape::default() });
        let fresh = query(&end);
        walk(&end, &steps(qp_type));
        assert_ne!(query(&end).attributes, fresh.attributes);
        end.qp.modify(&go(Reset)).unwrap();
        assert_eq!(query(&end), fresh, "as created");
    }
}

fn drained_changes(world: &World) {
    let end = world.end(0, &Shape::default());
    walk(&end, &steps(RC));
    let other = everything(&end).ah_attr.unwrap().traffic_class(0x20).hop_limit(9);
    let change = go(SendQueueDrained)
        .ah_attr(other)
        .timeout(19)
        .retry_cnt(1)
        .rnr_retry(3)
        .min_rnr_timer(8)
        .max_rd_atomic(2)
        .max_dest_rd_atomic(RD_ATOMIC_ROUNDED.or(4, 3));
    end.qp.modify(&change).unwrap();
    let given =
        ["ah_attr", "timeout", "retry_cnt", "rnr_retry", "min_rnr_timer", "max_rd_atomic", "max_dest_rd_atomic"];
    assert_reported(&end.qp, &change, &given);
    end.qp.modify(&go(ReadyToSend)).unwrap();
    assert_reported(&end.qp, &change, &given);
    assert_reported(&end.qp, &everything(&end), &["rq_psn", "sq_psn", "dest_qp_num", "path_mtu"]);
}

fn queues(world: &World) {
    let end = world.end(0, &Shape::default());
    let (sends, receives) = (end.context.create_cq(8).unwrap(), end.context.create_cq(16).unwrap());
    let qp = create_qp(&end.pd, &sends, &receives, &Shape::default());
    assert_eq!((qp.send_cq().number(), qp.recv_cq().number()), (sends.number(), receives.number()));
    assert_ne!(sends.number(), receives.number());
    assert!(qp.srq().is_none() && qp.xrc_domain().is_none());
    // The queue pair completes on the completion queues that it returns.
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    qp.post_recv(&[ReceiveRequest::new(end.at(0..8)).wr_id(1)]).unwrap();
    qp.post_send(&[SendRequest::send(Payload::EMPTY).wr_id(2).signaled()]).unwrap();
    assert_eq!(qp.recv_cq().wait(patience()).unwrap().wr_id(), 1);
    assert_eq!(qp.send_cq().wait(patience()).unwrap().wr_id(), 2);
}

fn shared_queue(world: &World) {
    let end = world.end(0, &Shape::default());
    let srq = end.pd.create_srq(8, 2).unwrap();
    let qp = end
        .pd
        .create_qp_with(&end.cq, &end.cq, &QueuePairOptions::default().srq(&srq).max_send_wr(7).max_recv_wr(70))
        .unwrap();
    assert_eq!(qp.srq().map(|srq| srq.number()), Some(srq.number()));
    let status = qp.query().unwrap();
    // There is no receive queue whose size could be reported.
    assert_eq!((status.cap.max_recv_wr, status.cap.max_recv_sge, status.qp_type), (0, 0, RC));
    assert!(status.cap.max_send_wr >= 7 && qp.xrc_domain().is_none());
    let (number, held) = (srq.number(), qp.srq().cloned().unwrap());
    drop(srq);
    assert_eq!((held.number(), held.query().unwrap().max_wr >= 8), (number, true), "it names a live queue");
}

fn xrc_ends(world: &World) {
    let end = world.end(0, &Shape::default());
    let domain = end.context.open_xrcd().unwrap();
    let target = end.pd.create_qp_with(&end.cq, &end.cq, &QueuePairOptions::default().xrc_target(&domain)).unwrap();
    let initiator = end
        .pd
        .create_qp_with(&end.cq, &end.cq, &QueuePairOptions::default().qp_type(QueuePairType::XrcSend).sq_sig_all())
        .unwrap();
    assert!(target.xrc_domain().is_some() && initiator.xrc_domain().is_none());
    let (of_target, of_initiator) = (target.query().unwrap(), initiator.query().unwrap());
    assert_eq!((of_target.qp_type, of_initiator.qp_type), (QueuePairType::XrcReceive, QueuePairType::XrcSend));
    assert_eq!((of_target.sq_sig_all, of_initiator.sq_sig_all), (false, true));
    let none = [of_target.cap.max_send_wr, of_target.cap.max_recv_wr, of_initiator.cap.max_recv_wr];
    assert_eq!(none, [0; 3], "queues that they do not have");
    assert!(of_initiator.cap.max_send_wr > 0);
    let (near, far) = (target.connection_info().unwrap(), initiator.connection_info().unwrap());
    target.connect(&far).unwrap();
    initiator.connect(&near).unwrap();
    for (qp, peer) in [(&target, &far), (&initiator, &near)] {
        let reported = qp.query().unwrap().attributes;
        assert_eq!((reported.dest_qp_num, reported.rq_psn), (Some(peer.qpn), Some(peer.psn)));
        assert_eq!(reported.ah_attr.map(|vector| vector.dgid), Some(peer.gid));
    }
    // An initiator serves no requests and a target sends none.
    assert_eq!(initiator.query().unwrap().attributes.max_dest_rd_atomic, None);
    assert_eq!(target.query().unwrap().attributes.retry_cnt, None);
}

fn destroyed(world: &World) {
    let (left, right) = world.pair();
    let number = right.qp.qpn();
    let End { qp, cq, pd, .. } = right;
    drop(qp);
    // Its number is no longer valid, and a new queue pair inherits nothing from it.
    let next = create_qp(&pd, &cq, &cq, &Shape::default());
    let status = next.query().unwrap();
    assert_eq!((status.qp_state, status.attributes.dest_qp_num), (Reset, None));
    assert_ne!(next.qpn(), number);
    left.is_in(ReadyToSend);
}

/// Receives are accepted from INIT on and sends from RTS on, for every type; in ERR both are accepted and flushed.
fn posting_by_state(world: &World) {
    for qp_type in [UC, UD] {
        let end = world.end(0, &Shape { qp_type, ..Shape::default() });
        let vector = address_vector(&end.context, own_gid(&end.context));
        let handle = end.pd.create_ah(&vector).unwrap();
        let send = |wr_id: u64| {
            let request = match qp_type {
                UD => SendRequest::send_to(Payload::EMPTY, &handle, end.qp.qpn(), Qkey(1)),
                _ => SendRequest::send(Payload::EMPTY),
            };
            end.qp.post_send(&[request.wr_id(wr_id)])
        };
        let receive = |wr_id: u64| end.qp.post_recv(&[ReceiveRequest::new(end.at(0..64)).wr_id(wr_id)]);
        refused(send(0), ErrorKind::InvalidState, &["post_send", "RESET", "RTS"]);
        refused(receive(0), ErrorKind::InvalidState, &["post_recv", "RESET", "INIT"]);
        let steps = steps(qp_type);
        walk(&end, &steps[..1]);
        refused(send(0), ErrorKind::InvalidState, &["post_send", "INIT", "RTS"]);
        receive(1).unwrap();
        walk(&end, &steps[1..2]);
        refused(send(0), ErrorKind::InvalidState, &["post_send", "RTR", "RTS"]);
        receive(2).unwrap();
        walk(&end, &steps[2..]);
        // Drained: accepted now, started in RTS.
        send(3).unwrap();
        receive(4).unwrap();
        end.silent();
        end.to_error();
        let ended = (0..4).map(|_| end.next().wr_id());
        // Completions are ordered within each queue, but not between the two queues.
        let (sends, receives): (Vec<u64>, Vec<u64>) = ended.partition(|wr_id| *wr_id == 3);
        assert_eq!((sends, receives), (vec![3], vec![1, 2, 4]));
        send(5).unwrap();
        end.flushed([5]);
        receive(6).unwrap();
        end.flushed_receive(6);
    }
}

/// Returns a pair in which left has a completed send and a completed receive on separate queues, both unpolled.
fn unpolled(world: &World) -> (End, End, [rdma_verbs::verbs::CompletionQueue; 2]) {
    let (mut left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let receives = left.context.create_cq(64).unwrap();
    left.qp = create_qp(&left.pd, &left.cq, &receives, &Shape::default());
    connect(&left, &right, &Default::default());
    left.receive(1, 0..8);
    right.receive(2, 0..8);
    left.post(&[SendRequest::send(Payload::inline(b"out")).wr_id(3).signaled()]);
    right.received(2, 3);
    right.post(&[SendRequest::send(Payload::inline(b"in")).wr_id(4).signaled()]);
    right.sent(4);
    let start = Instant::now();
    // The message from the right came after the acknowledgement, so the SEND is complete as well.
    while left.region.to_vec(0..2).unwrap() != b"in" {
        assert!(start.elapsed() < patience(), "the message does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    let queues = [left.cq.clone(), receives];
    (left, right, queues)
}

fn reset_purges_both(world: &World) {
    let (left, _right, [sends, receives]) = unpolled(world);
    left.qp.modify(&go(Reset)).unwrap();
    silent(&sends);
    silent(&receives);
}

fn destroy_purges_both(world: &World) {
    let (left, _right, [sends, receives]) = unpolled(world);
    drop(left);
    silent(&sends);
    silent(&receives);
}

fn datagrams_purged(world: &World) {
    let (left, right) = (super::ud::ready(world, 0), super::ud::ready(world, 1));
    let handle = super::ud::address_handle(&left, &right);
    super::ud::receive(&right, 1, 0, 64);
    right.region.write_at(40, b"----").unwrap();
    let text = Payload::inline(b"here");
    let request = SendRequest::send_to(text, &handle, right.qp.qpn(), super::ud::QKEY);
    super::ud::post(&left, request.wr_id(2).signaled());
    let start = Instant::now();
    while right.region.to_vec(40..44).unwrap() != b"here" {
        assert!(start.elapsed() < patience(), "the datagram does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    for end in [&left, &right] {
        end.qp.modify(&go(Reset)).unwrap();
        end.silent();
    }
}
