//! Datagrams: refused requests, failing requests, and the states of a datagram queue pair.

use rdma_verbs::verbs::{
    AccessFlags, AsyncEvent, DropReason, ErrorKind, Payload, Psn, Qkey, Qpn, QueuePairState, ReceiveRequest,
    RemoteMemory, Rkey, SendRequest,
};

use super::bytes::check_all;
use super::deviations::NO_SEND_QUEUE_ERROR;
use super::end::{address_vector, memory_gone, own_gid, receive_without_memory};
use super::suite::Scenario;
use super::ud::{
    HEADER, QKEY, address_handle, arrived, dropped, idle, init, packets_sent, post, ready, receive, shape, to_state,
};
use super::world::World;

macro_rules! scenarios {
    ($($name:ident: $clause:literal;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(
            Scenario { name: concat!("ud/errors/", stringify!($name)), clause: $clause, needs: &[], run: $name },
        )*];
    };
}

scenarios! {
    longer_than_mtu_refused: "rdma-core: UD messages longer than the path MTU: post error";
    no_destination_refused: "ibv_post_send(3) wr.ud.ah";
    other_operations_refused: "IBTA, work request processing: operations by service";
    destination_on_connection_refused: "IBTA, work request processing: only datagrams name a destination";
    handle_of_other_domain_refused: "IBTA, address handle verbs: protection domain";
    handle_of_other_device_refused: "IBTA, address handle verbs: protection domain";
    posting_before_rts_refused: "rdma-core: wrong state is a post error";
    batch_with_one_wrong_posts_nothing: "all or nothing";
    full_queue_and_back: "rdma-core: slots are released by polling";
    revoked_source_fails_alone: "IBTA, queue pair states: SQE: a send error leaves receives working";
    posted_in_sqe_is_flushed: "IBTA, queue pair states: SQE";
    out_of_sqe: "IBTA, queue pair states: SQE to RTS";
    revoked_receive_ends_it: "IBTA, queue pair states: a local error of a receive is fatal";
    flush_in_order: "IBTA, queue pair states: ERR: everything is flushed in order";
    drained_holds_back: "IBTA, queue pair states: SQD: nothing new begins";
    reset_and_again: "IBTA, queue pair states: RESET; rdma-core: reusable in full";
    destroyed_while_receiving: "IBTA, queue pair verbs: destroy with work outstanding";
    initialised_without_qkey_refused: "IBTA, queue pair verbs: RESET to INIT needs the Q_Key";
    path_attributes_refused: "IBTA, queue pair verbs: a datagram queue pair has no path";
    query_returns_attributes: "ibv_query_qp(3)";
    cannot_be_connected: "IBTA, unreliable service: datagrams have no peer";
    activation_names_the_state: "IBTA, queue pair states";
}

fn refused(result: rdma_verbs::verbs::Result<()>, kind: ErrorKind, words: &[&str]) {
    let error = result.expect_err("a refusal");
    assert_eq!((error.verb(), error.kind()), ("post_send", kind), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "\"{word}\" is not in \"{error}\"");
    }
}

fn longer_than_mtu_refused(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let mtu = left.context.query_port(1).unwrap().active_mtu.bytes();
    let long = left.region.slice(..mtu as usize + 1).unwrap();
    let request = SendRequest::send_to(long, &ah, right.qp.qpn(), QKEY);
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["active_mtu", &mtu.to_string()]);
    packets_sent(&left, 0);
    left.is_in(QueuePairState::ReadyToSend);
    left.silent();
}

fn no_destination_refused(world: &World) {
    let left = ready(world, 0);
    let request = SendRequest::send(Payload::inline(b"whither"));
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["destination", "remote_qkey"]);
}

fn other_operations_refused(world: &World) {
    let left = ready(world, 0);
    let remote = RemoteMemory::new(0x1000, Rkey(7), 64);
    let eight = left.region.slice(..8).unwrap();
    let requests = [
        SendRequest::write(eight, remote),
        SendRequest::write_with_immediate(eight, remote, 1),
        SendRequest::read(eight, remote),
        SendRequest::compare_and_swap(eight, remote, 1, 2),
        SendRequest::fetch_and_add(eight, remote, 1),
        SendRequest::send_with_invalidate(eight, Rkey(7)),
    ];
    for request in requests {
        refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["opcode", "takes SEND"]);
    }
    packets_sent(&left, 0);
}

fn destination_on_connection_refused(world: &World) {
    let (left, right) = world.pair();
    let ah = address_handle(&left, &right);
    let request = SendRequest::send_to(Payload::inline(b"x"), &ah, right.qp.qpn(), QKEY);
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["address handle", "connected"]);
    left.is_in(QueuePairState::ReadyToSend);
}

fn handle_of_other_domain_refused(world: &World) {
    let left = ready(world, 0);
    let other = left.context.alloc_pd().unwrap();
    let gid = own_gid(&left.context);
    let ah = other.create_ah(&address_vector(&left.context, gid)).unwrap();
    let request = SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY);
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["protection domain"]);
}

fn handle_of_other_device_refused(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&right, &left);
    let request = SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY);
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["protection domain"]);
}

fn posting_before_rts_refused(world: &World) {
    let left = world.end(0, &shape());
    let ah = address_handle(&left, &left);
    let request = SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY);
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidState, &["RESET"]);
    init(&left, QKEY);
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidState, &["INIT"]);
    left.qp.modify(&to_state(QueuePairState::ReadyToReceive)).unwrap();
    refused(left.qp.post_send(&[request]), ErrorKind::InvalidState, &["RTR"]);
}

fn batch_with_one_wrong_posts_nothing(world: &World) {
    let left = ready(world, 0);
    let ah = address_handle(&left, &left);
    let good = SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY).signaled();
    let bad = SendRequest::send(Payload::EMPTY);
    refused(left.qp.post_send(&[good, bad, good]), ErrorKind::InvalidArgument, &["destination"]);
    left.silent();
    packets_sent(&left, 0);
}

fn full_queue_and_back(world: &World) {
    let left = ready(world, 0);
    let ah = address_handle(&left, &left);
    let request = SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY).signaled();
    let most = left.qp.cap().max_send_wr;
    for wr_id in 0..u64::from(most) {
        post(&left, request.wr_id(wr_id));
    }
    refused(left.qp.post_send(&[request]), ErrorKind::QueueFull, &["poll"]);
    left.sent(0);
    post(&left, request.wr_id(u64::from(most)));
    for wr_id in 1..=u64::from(most) {
        left.sent(wr_id);
    }
}

/// Returns two ends, the left one in SQE after a send from deregistered memory. `None` if that leads to ERR.
fn in_send_queue_error(world: &World) -> Option<(super::end::End, super::end::End)> {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let gone = left.region(64, AccessFlags::LOCAL_WRITE);
    let good = SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY);
    let bad = SendRequest::send_to(gone.slice(..).unwrap(), &ah, right.qp.qpn(), QKEY);
    let mut batch = left.qp.send_batch().unwrap();
    for request in [good.wr_id(1), bad.wr_id(2), good.wr_id(3)] {
        batch.push(&request).unwrap();
    }
    gone.dereg().unwrap();
    batch.post().unwrap();
    left.fails(2, memory_gone());
    left.flushed([3]);
    let stays = !NO_SEND_QUEUE_ERROR.holds();
    left.becomes(if stays { QueuePairState::SendQueueError } else { QueuePairState::Error });
    dropped(&right, DropReason::NoReceive, 1);
    stays.then_some((left, right))
}

fn revoked_source_fails_alone(world: &World) {
    let Some((left, right)) = in_send_queue_error(world) else { return };
    receive(&left, 9, 0, 64);
    let back = address_handle(&right, &left);
    post(&right, SendRequest::send_to(Payload::inline(b"still"), &back, left.qp.qpn(), QKEY));
    arrived(&left, 9, 5, &right);
    packets_sent(&left, 1);
}

fn posted_in_sqe_is_flushed(world: &World) {
    let Some((left, right)) = in_send_queue_error(world) else { return };
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY).wr_id(4));
    left.flushed([4]);
    packets_sent(&left, 1);
}

fn out_of_sqe(world: &World) {
    let Some((left, right)) = in_send_queue_error(world) else { return };
    left.qp.modify(&to_state(QueuePairState::ReadyToSend)).unwrap();
    receive(&right, 1, 0, 64);
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::inline(b"again"), &ah, right.qp.qpn(), QKEY).wr_id(5).signaled());
    left.sent(5);
    arrived(&right, 1, 5, &left);
}

fn revoked_receive_ends_it(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let gone = right.region(128, AccessFlags::LOCAL_WRITE);
    right.qp.post_recv(&[ReceiveRequest::new(&gone).wr_id(1)]).unwrap();
    receive(&right, 2, 0, 64);
    gone.dereg().unwrap();
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::inline(b"x"), &ah, right.qp.qpn(), QKEY));
    right.fails(1, receive_without_memory());
    right.flushed([2]);
    right.becomes(QueuePairState::Error);
    right.failure_event(&[AsyncEvent::QueuePairFatal]);
    left.is_in(QueuePairState::ReadyToSend);
}

fn flush_in_order(world: &World) {
    let left = ready(world, 0);
    let ah = address_handle(&left, &left);
    (1..=3).for_each(|wr_id| receive(&left, wr_id, 0, 64));
    left.to_error();
    left.flushed(1..=3);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, left.qp.qpn(), QKEY).wr_id(4));
    left.flushed([4]);
    receive(&left, 5, 0, 64);
    left.flushed_receive(5);
    packets_sent(&left, 0);
}

fn drained_holds_back(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    left.qp.modify(&to_state(QueuePairState::SendQueueDrained)).unwrap();
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY).wr_id(2).signaled());
    left.silent();
    right.silent();
    left.resume(SendRequest::send_to(Payload::EMPTY, &ah, Qpn::new(0xff_fffe), QKEY));
    left.sent(2);
    arrived(&right, 1, 0, &left);
}

fn reset_and_again(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
    receive(&right, 2, 0, 64);
    right.qp.reset().unwrap();
    right.silent();
    assert_eq!(right.qp.query().unwrap().attributes.qkey, None);
    init(&right, Qkey(0x77));
    right.qp.bring_up_ud().unwrap();
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), Qkey(0x77)));
    dropped(&right, DropReason::NoReceive, 1);
    receive(&right, 3, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), Qkey(0x77)));
    arrived(&right, 3, 0, &left);
}

fn destroyed_while_receiving(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let number = right.qp.qpn();
    (0..50).for_each(|wr_id| receive(&right, wr_id, 0, 64));
    let request = SendRequest::send_to(Payload::inline(&[7; 64]), &ah, number, QKEY);
    let super::end::End { qp, region, cq, .. } = right;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..200).for_each(|wr_id| {
                post(&left, request.wr_id(wr_id).signaled());
                left.sent(wr_id);
            })
        });
        drop(qp);
    });
    // Completions are removed with their queue pair.
    super::end::silent(&cq);
    let bytes = region.to_vec(HEADER..HEADER + 64).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7) || bytes.iter().all(|byte| *byte == 0), "{bytes:?}");
    check_all(&region, HEADER + 64, 64, 0);
}

fn modify_refused(end: &super::end::End, attributes: &rdma_verbs::verbs::QueuePairAttributes, names: &[&str]) {
    let before = end.qp.query().unwrap();
    let error = end.qp.modify(attributes).expect_err("a refusal");
    for name in names {
        assert!(error.to_string().contains(name), "\"{name}\" is not in \"{error}\"");
    }
    assert_eq!(end.qp.query().unwrap(), before, "nothing changed");
}

fn initialised_without_qkey_refused(world: &World) {
    let end = world.end(0, &shape());
    let mut attributes = to_state(QueuePairState::Init);
    (attributes.pkey_index, attributes.port_num) = (Some(0), Some(1));
    modify_refused(&end, &attributes, &["qkey"]);
}

fn path_attributes_refused(world: &World) {
    let end = idle(world, 0, &shape());
    let gid = own_gid(&end.context);
    let mut attributes = to_state(QueuePairState::ReadyToReceive);
    attributes.ah_attr = Some(address_vector(&end.context, gid));
    attributes.rq_psn = Some(Psn::new(1));
    modify_refused(&end, &attributes, &["ah_attr", "rq_psn"]);
}

fn query_returns_attributes(world: &World) {
    let end = idle(world, 0, &shape());
    end.qp.modify(&to_state(QueuePairState::ReadyToReceive)).unwrap();
    let mut attributes = to_state(QueuePairState::ReadyToSend);
    attributes.sq_psn = Some(Psn::new(0x12_3456));
    end.qp.modify(&attributes).unwrap();
    let found = end.qp.query().unwrap();
    assert_eq!(found.qp_state, QueuePairState::ReadyToSend);
    let (port, pkey) = (found.attributes.port_num, found.attributes.pkey_index);
    assert_eq!((found.attributes.qkey, port, pkey), (Some(QKEY), Some(1), Some(0)));
    assert_eq!(found.attributes.sq_psn, Some(Psn::new(0x12_3456)));
    assert_eq!(found.attributes.dest_qp_num, None);
}

fn cannot_be_connected(world: &World) {
    let end = world.end(0, &shape());
    let info = end.qp.connection_info().unwrap();
    let error = end.qp.connect(&info).unwrap_err();
    assert!(error.to_string().contains("does not take") || error.to_string().contains("atagram"), "{error}");
}

fn activation_names_the_state(world: &World) {
    let end = ready(world, 0);
    let error = end.qp.bring_up_ud().unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidState && error.to_string().contains("RTS"), "{error}");
    let (left, _right) = world.pair();
    let error = left.qp.bring_up_ud().unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("bring_up_ud", ErrorKind::InvalidArgument));
}
