//! Shared receive queues of datagram queue pairs: datagrams that fit are delivered, others are dropped without a
//! receive.

use std::time::Instant;

use rdma_verbs::verbs::{
    AccessFlags, AddressHandle, AsyncEvent, CompletionOpcode, CompletionStatus, ConnectOptions, Counter, DropReason,
    ErrorKind, GlobalRouteHeader, Payload, Qkey, QueuePair, QueuePairOptions, QueuePairState, QueuePairType,
    ReceiveRequest, SendRequest, SharedReceiveQueueAttributes, Success,
};

use super::deviations::{SHARED_DOMAIN_IGNORED, SHORT_DATAGRAMS_FAIL, SHORT_SHARED_FAILS};
use super::end::{End, address_vector, next, own_gid, patience, receive_without_memory, refused, silent, too_short};
use super::sharing::{MAX_SRQ, ROOM, Sharing};
use super::suite::Scenario;
use super::ud::{HEADER, INIT, MAX_MCAST_GRP, QKEY, group, ready, to_state};
use super::world::World;

const fn scenario(name: &'static str, clause: &'static str, run: fn(&World)) -> Scenario {
    Scenario { name, clause, needs: &[MAX_SRQ], run }
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("srq/ud/taken_in_order", "ibv_create_qp(3) srq; Linux rxe: header and payload", taken_in_order),
    scenario("srq/ud/immediate", "ibv_poll_cq(3) imm_data", immediate),
    scenario("srq/ud/reply_to_the_sender", "ibv_create_ah_from_wc(3)", reply_to_the_sender),
    scenario("srq/ud/empty_drops_silently", "rdma-core: datagrams know no RNR", empty_drops),
    scenario("srq/ud/too_small_stays_posted", "Linux rxe: a datagram that does not fit is dropped", too_small),
    scenario("srq/ud/wrong_qkey_takes_none", "Linux rxe: Q_Key", wrong_qkey),
    scenario("srq/ud/beside_connections", "ibv_create_srq(3): any queue pairs of the device", beside_connections),
    scenario("srq/ud/limit", "ibv_modify_srq(3) IBV_SRQ_LIMIT", limit),
    scenario("srq/ud/domain_of_the_queue", "ibv_post_srq_recv(3): the SRQ's protection domain", domain_of_the_queue),
    scenario("srq/ud/memory_gone", "rdma-core: keys are checked when the packet arrives", memory_gone),
    scenario("srq/ud/receives_stay_in_error", "rdma-core: ERR flushes no SRQ entries", receives_stay),
    scenario("srq/ud/own_receive_queue", "ibv_post_recv(3): a QP with an SRQ has no receive queue", own_receive_queue),
    Scenario {
        name: "srq/ud/multicast_takes_one_each",
        clause: "Linux rxe: every member gets its copy",
        needs: &[MAX_SRQ, MAX_MCAST_GRP],
        run: multicast,
    },
];

/// Datagram queue pairs that share the queue of `sharing`, and a sender with an address handle for them.
struct Datagrams {
    sharing: Sharing,
    receivers: Vec<QueuePair>,
    sender: End,
    ah: AddressHandle,
}

impl Datagrams {
    #[track_caller]
    fn new(world: &World, count: usize) -> Self {
        let sharing = Sharing::new(world, 0);
        let receivers = (0..count).map(|_| sharer(&sharing)).collect();
        let sender = ready(world, 1);
        let there = own_gid(&sharing.context);
        let ah = sender.pd.create_ah(&address_vector(&sender.context, there)).unwrap();
        Self { sharing, receivers, sender, ah }
    }

    #[track_caller]
    fn send(&self, receiver: usize, bytes: &[u8]) {
        self.send_as(receiver, bytes, QKEY);
    }

    #[track_caller]
    fn send_as(&self, receiver: usize, bytes: &[u8], qkey: Qkey) {
        let to = self.receivers[receiver].qpn();
        let request = SendRequest::send_to(Payload::inline(bytes), &self.ah, to, qkey).wr_id(1).signaled();
        self.sender.qp.post_send(&[request]).unwrap();
        self.sender.sent(1);
    }

    /// Takes the next completion, which must be this receive, filled by a datagram to this queue pair with these bytes.
    #[track_caller]
    fn received(&self, wr_id: u64, receiver: usize, bytes: &[u8]) -> Success {
        let completion = next(&self.sharing.cq);
        let expected = (wr_id, self.receivers[receiver].qpn());
        assert_eq!((completion.wr_id(), completion.qpn()), expected, "{completion:?}");
        let success = completion.result().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((success.opcode, success.byte_len as usize), (CompletionOpcode::Receive, HEADER + bytes.len()));
        assert_eq!((success.source_qpn, success.global_route_header), (self.sender.qp.qpn(), true));
        let start = wr_id as usize * ROOM;
        let whole = self.sharing.inbox.to_vec(start..start + HEADER + bytes.len()).unwrap();
        assert_eq!(&whole[HEADER..], bytes);
        success
    }

    /// Checks that exactly `count` packets were dropped for this reason by this queue pair, without any other effect.
    #[track_caller]
    fn dropped(&self, receiver: usize, reason: DropReason, count: u64) {
        let (qp, start) = (&self.receivers[receiver], Instant::now());
        if !self.sharing.context.query_device().packet_counters {
            silent(&self.sharing.cq);
            return assert_eq!(qp.state().unwrap(), QueuePairState::ReadyToSend);
        }
        while qp.counters().get_drop(reason) < count {
            assert!(start.elapsed() < patience(), "{} is {}", reason.name(), qp.counters().get_drop(reason));
        }
        silent(&self.sharing.cq);
        assert_eq!(qp.counters().get_drop(reason), count);
        assert_eq!(qp.counters().get(Counter::SentRnr), 0);
        assert_eq!(qp.state().unwrap(), QueuePairState::ReadyToSend);
    }
}

/// Creates a datagram queue pair in RTS that takes its receives from the shared queue.
#[track_caller]
fn sharer(sharing: &Sharing) -> QueuePair {
    let options = QueuePairOptions::default().srq(&sharing.srq).max_inline_data(64);
    let qp = sharing
        .pd
        .create_qp_with(&sharing.cq, &sharing.cq, &options.qp_type(QueuePairType::UnreliableDatagram))
        .unwrap();
    bring_up_ud(&qp);
    qp
}

#[track_caller]
fn bring_up_ud(qp: &QueuePair) {
    let init = to_state(INIT).pkey_index(0).port_num(1).qkey(QKEY);
    qp.modify(&init).unwrap();
    qp.bring_up_ud().unwrap();
}

fn taken_in_order(world: &World) {
    let ends = Datagrams::new(world, 3);
    ends.sharing.post(0..6);
    for (wr_id, receiver) in [(0, 2), (1, 0), (2, 0), (3, 1), (4, 2), (5, 1)] {
        let text = format!("datagram {wr_id}");
        ends.send(receiver, text.as_bytes());
        ends.received(wr_id, receiver, text.as_bytes());
    }
    silent(&ends.sharing.cq);
}

fn immediate(world: &World) {
    let ends = Datagrams::new(world, 1);
    ends.sharing.post([3]);
    let to = ends.receivers[0].qpn();
    let request = SendRequest::send_to_with_immediate(Payload::inline(b"x"), &ends.ah, to, QKEY, 0x0102_0304);
    ends.sender.qp.post_send(&[request]).unwrap();
    assert_eq!(ends.received(3, 0, b"x").immediate, Some(0x0102_0304));
}

fn reply_to_the_sender(world: &World) {
    let ends = Datagrams::new(world, 2);
    ends.sharing.post([2]);
    ends.send(1, b"who are you?");
    let completion = next(&ends.sharing.cq);
    let start = 2 * ROOM;
    let header = ends.sharing.inbox.to_vec(start..start + GlobalRouteHeader::BYTES).unwrap();
    let ah = ends.sharing.pd.create_ah_from_completion(&completion, &header, 1).unwrap();
    let to = completion.result().unwrap().source_qpn;
    let into = ends.sender.region.slice(..HEADER + 64).unwrap();
    ends.sender.qp.post_recv(&[ReceiveRequest::new(into).wr_id(8)]).unwrap();
    let answer = SendRequest::send_to(Payload::inline(b"a sharer"), &ah, to, QKEY);
    ends.receivers[1].post_send(&[answer]).unwrap();
    let success = ends.sender.done(8, CompletionOpcode::Receive);
    assert_eq!((success.byte_len as usize, success.source_qpn), (HEADER + 8, ends.receivers[1].qpn()));
    assert_eq!(ends.sender.region.to_vec(HEADER..HEADER + 8).unwrap(), b"a sharer");
}

fn empty_drops(world: &World) {
    let ends = Datagrams::new(world, 2);
    ends.send(0, b"lost");
    ends.dropped(0, DropReason::NoReceive, 1);
    ends.sharing.post([1]);
    // Datagrams are not retried: the next to arrive is a new one.
    silent(&ends.sharing.cq);
    ends.send(1, b"taken");
    ends.received(1, 1, b"taken");
    ends.send(1, b"lost as well");
    ends.dropped(1, DropReason::NoReceive, 1);
    ends.sender.silent();
}

fn too_small(world: &World) {
    let ends = Datagrams::new(world, 2);
    let small = ends.sharing.inbox.slice(4 * ROOM..4 * ROOM + HEADER + 3).unwrap();
    ends.sharing.srq.post_recv(&[ReceiveRequest::new(small).wr_id(4)]).unwrap();
    ends.sharing.post([5]);
    ends.send(0, b"four");
    if SHORT_SHARED_FAILS.holds() {
        let error = next(&ends.sharing.cq).result().unwrap_err();
        let status = SHORT_DATAGRAMS_FAIL.or(too_short(), CompletionStatus::RemoteInvalidRequestError);
        return assert_eq!((error.wr_id, error.status), (4, status));
    }
    ends.dropped(0, DropReason::ReceiveTooSmall, 1);
    assert_eq!(ends.sharing.inbox.to_vec(4 * ROOM..5 * ROOM).unwrap(), [0; ROOM]);
    ends.send(1, b"ABC");
    ends.received(4, 1, b"ABC");
    ends.send(0, b"four");
    ends.received(5, 0, b"four");
}

fn wrong_qkey(world: &World) {
    let ends = Datagrams::new(world, 1);
    ends.sharing.post([1]);
    ends.send_as(0, b"not for you", Qkey(QKEY.0 + 1));
    ends.dropped(0, DropReason::BadQkey, 1);
    ends.send(0, b"for you");
    ends.received(1, 0, b"for you");
}

fn beside_connections(world: &World) {
    let mut ends = Datagrams::new(world, 1);
    ends.sharing.connect_one(&ConnectOptions::default());
    ends.sharing.post(0..4);
    ends.sharing.send(0, b"message");
    ends.sharing.received(0, 0, b"message");
    ends.send(0, b"datagram");
    ends.received(1, 0, b"datagram");
    ends.sharing.send(0, b"message again");
    ends.sharing.received(2, 0, b"message again");
    ends.send(0, b"datagram again");
    ends.received(3, 0, b"datagram again");
    // The queue is empty for both: the connection waits, the datagram is lost.
    ends.send(0, b"lost");
    ends.dropped(0, DropReason::NoReceive, 1);
    ends.sharing.send(0, b"waits");
    silent(&ends.sharing.cq);
    ends.sharing.post([4]);
    ends.sharing.received(4, 0, b"waits");
}

fn limit(world: &World) {
    let ends = Datagrams::new(world, 2);
    ends.sharing.post(0..3);
    let armed = SharedReceiveQueueAttributes { srq_limit: Some(2), ..Default::default() };
    ends.sharing.srq.modify(&armed).unwrap();
    ends.send(0, b"two are left");
    ends.received(0, 0, b"two are left");
    ends.sharing.no_event();
    ends.send(1, b"one is left");
    ends.received(1, 1, b"one is left");
    ends.sharing.limit_reached();
    ends.send(1, b"none is left");
    ends.received(2, 1, b"none is left");
    ends.sharing.no_event();
}

fn domain_of_the_queue(world: &World) {
    let mut ends = Datagrams::new(world, 0);
    let other = ends.sharing.context.alloc_pd().unwrap();
    let options = QueuePairOptions::default().srq(&ends.sharing.srq);
    let qp = other
        .create_qp_with(&ends.sharing.cq, &ends.sharing.cq, &options.qp_type(QueuePairType::UnreliableDatagram))
        .unwrap();
    bring_up_ud(&qp);
    ends.receivers.push(qp);
    ends.sharing.post([7]);
    ends.send(0, b"across");
    if SHARED_DOMAIN_IGNORED.holds() {
        let error = next(&ends.sharing.cq).result().unwrap_err();
        return assert_eq!((error.wr_id, error.status), (7, CompletionStatus::LocalQueuePairOperationError));
    }
    ends.received(7, 0, b"across");
}

fn memory_gone(world: &World) {
    let ends = Datagrams::new(world, 2);
    let region = ends.sharing.pd.alloc_mr(128, AccessFlags::LOCAL_WRITE).unwrap();
    ends.sharing.srq.post_recv(&[ReceiveRequest::new(&region).wr_id(8)]).unwrap();
    region.dereg().unwrap();
    ends.sharing.post([9]);
    ends.send(0, b"nowhere");
    let error = next(&ends.sharing.cq).result().unwrap_err();
    let qpn = ends.receivers[0].qpn();
    assert_eq!((error.wr_id, error.qpn, error.status), (8, qpn, receive_without_memory()));
    ends.sharing.failure_event(AsyncEvent::QueuePairFatal(qpn));
    ends.sharing.last_event(qpn);
    super::sharing::ends(&ends.receivers[0]);
    ends.send(1, b"goes on");
    ends.received(9, 1, b"goes on");
}

fn receives_stay(world: &World) {
    let ends = Datagrams::new(world, 2);
    ends.sharing.post([1, 2]);
    ends.receivers[0].modify(&to_state(QueuePairState::Error)).unwrap();
    ends.sharing.last_event(ends.receivers[0].qpn());
    silent(&ends.sharing.cq);
    ends.send(0, b"dropped");
    for wr_id in [1, 2] {
        ends.send(1, b"still there");
        ends.received(wr_id, 1, b"still there");
    }
    ends.receivers[0].reset().unwrap();
    bring_up_ud(&ends.receivers[0]);
    ends.sharing.post([3]);
    ends.send(0, b"back again");
    ends.received(3, 0, b"back again");
}

fn own_receive_queue(world: &World) {
    let ends = Datagrams::new(world, 1);
    let cap = ends.receivers[0].cap();
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
    let room = ends.sharing.inbox.slice(..ROOM).unwrap();
    let number = ends.sharing.srq.number().to_string();
    let posted = ends.receivers[0].post_recv(&[ReceiveRequest::new(room)]);
    refused(posted, ErrorKind::InvalidArgument, &["post_recv", "shared receive queue", &number]);
}

fn multicast(world: &World) {
    let ends = Datagrams::new(world, 2);
    let to = group(&ends.sender, 0);
    ends.receivers.iter().for_each(|qp| qp.attach_mcast(to).unwrap());
    ends.sharing.post([1, 2, 3]);
    let ah = ends.sender.pd.create_ah(&address_vector(&ends.sender.context, to)).unwrap();
    let request = SendRequest::send_to(Payload::inline(b"to all"), &ah, rdma_verbs::verbs::Qpn::MULTICAST, QKEY);
    ends.sender.qp.post_send(&[request]).unwrap();
    let mut found = Vec::new();
    for _ in 0..2 {
        let completion = next(&ends.sharing.cq);
        assert_eq!(completion.result().unwrap().byte_len as usize, HEADER + 6);
        let start = completion.wr_id() as usize * ROOM + HEADER;
        assert_eq!(ends.sharing.inbox.to_vec(start..start + 6).unwrap(), b"to all");
        found.push((completion.wr_id(), completion.qpn()));
    }
    found.sort_unstable();
    assert_eq!([found[0].0, found[1].0], [1, 2]);
    assert_ne!(found[0].1, found[1].1, "each member takes one");
    silent(&ends.sharing.cq);
}
