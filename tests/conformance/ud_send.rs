//! Datagrams: delivery, headers and ordering.

use rdma_verbs::verbs::{
    AccessFlags, CompletionQueueOptions, Counter, DropReason, ErrorKind, Payload, Qkey, Qpn, QueuePairState,
    ReceiveRequest, SendRequest,
};

use super::bytes::{check, check_all, fill};
use super::deviations::{QKEY_TAKEN_LITERALLY, SHORT_DATAGRAMS_FAIL};
use super::end::{Shape, too_short};
use super::suite::Scenario;
use super::ud::{
    HEADER, QKEY, address_handle, arrived, dropped, idle, init, packets_sent, post, ready, receive, shape, to_state,
};
use super::world::World;

macro_rules! scenarios {
    ($($name:ident: $clause:literal;)*) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(
            Scenario { name: concat!("ud/send/", stringify!($name)), clause: $clause, needs: &[], run: $name },
        )*];
    };
}

scenarios! {
    bytes_behind_the_header: "IBTA, unreliable service; ibv_poll_cq(3) byte_len: 40 bytes in front";
    zero_bytes: "IBTA, unreliable service: zero-length datagram; rdma-core: zero-length everything";
    immediate: "IBTA, transport functions: immediate data; Linux rxe: opcode 0x65";
    every_remainder_of_four: "IBTA, transport headers: pad count";
    largest_message: "IBTA, unreliable service: up to the path MTU";
    gathered_and_scattered: "IBTA, work requests: scatter and gather; the header may straddle entries";
    inline: "ibv_post_send(3) IBV_SEND_INLINE";
    to_itself: "rdma-core: self-connection and loopback";
    one_to_many: "IBTA, unreliable service: one queue pair, any number of peers";
    many_to_one: "ibv_poll_cq(3) src_qp";
    in_order: "IBTA, unreliable service: receives complete in the order of posting";
    unsignaled_are_silent: "ibv_post_send(3) IBV_SEND_SIGNALED";
    signaled_all: "ibv_create_qp(3) sq_sig_all";
    completes_without_a_receiver: "IBTA, unreliable service: complete once it left";
    never_acknowledged: "IBTA, unreliable service: no acknowledgement; Linux rxe: no NAK is generated";
    without_receive_dropped: "IBTA, unreliable service: no receive, silently dropped";
    too_long_for_receive_dropped: "Linux rxe: receive must hold payload + 40, else dropped; the receive stays";
    header_alone_needs_room: "Linux rxe: payload + 40";
    wrong_qkey_dropped: "IBTA, Q_Keys: Q_Key check; rdma-core: mismatch dropped silently";
    high_bit_means_own_qkey: "IBTA, Q_Keys: high-order bit of the request's Q_Key";
    high_bit_with_other_own_qkey: "IBTA, Q_Keys: high-order bit of the request's Q_Key";
    qkey_changed_in_rts: "IBTA, queue pair verbs: RTS to RTS: Q_Key";
    receiver_in_init_drops: "IBTA, queue pair states: INIT: no packets are received";
    receiver_in_rtr_takes: "IBTA, queue pair states: RTR: receives work";
    connected_queue_pair_takes_none: "IBTA, packet validation: opcode of another service is dropped";
    unknown_number_dropped: "IBTA, packet validation: destination QP";
    solicited_wakes: "ibv_req_notify_cq(3) solicited_only";
}

fn bytes_behind_the_header(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    fill(&left.region, 0, 500, 1);
    receive(&right, 7, 64, 600);
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(left.region.slice(..500).unwrap(), &ah, right.qp.qpn(), QKEY).wr_id(3).signaled());
    assert_eq!(arrived(&right, 7, 500, &left).immediate, None);
    left.sent(3);
    check_all(&right.region, 0, 64, 0);
    check(&right.region, 64 + HEADER, 500, 1);
    check_all(&right.region, 64 + HEADER + 500, 100, 0);
    left.silent();
    right.silent();
}

fn zero_bytes(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    receive(&right, 1, 0, 0);
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY).wr_id(2).signaled());
    arrived(&right, 1, 0, &left);
    left.sent(2);
    check_all(&right.region, HEADER, 64, 0);
}

fn immediate(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    for (wr_id, word) in (0u64..).zip([0, 0x0102_0304, u32::MAX]) {
        receive(&right, wr_id, 0, 64);
        let request = SendRequest::send_to_with_immediate(Payload::inline(b"word"), &ah, right.qp.qpn(), QKEY, word);
        post(&left, request);
        assert_eq!(arrived(&right, wr_id, 4, &left).immediate, Some(word));
        assert_eq!(right.region.to_vec(HEADER..HEADER + 4).unwrap(), b"word");
    }
    left.silent();
}

fn every_remainder_of_four(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    for len in 1..=9 {
        right.region.write_at(0, &[0xee; 128]).unwrap();
        fill(&left.region, 0, len, len as u64);
        receive(&right, len as u64, 0, 64);
        post(&left, SendRequest::send_to(left.region.slice(..len).unwrap(), &ah, right.qp.qpn(), QKEY));
        arrived(&right, len as u64, len, &left);
        check(&right.region, HEADER, len, len as u64);
        check_all(&right.region, HEADER + len, 64 - len, 0xee);
    }
}

fn largest_message(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let largest = left.context.query_port(1).unwrap().active_mtu.bytes() as usize;
    fill(&left.region, 0, largest, 5);
    receive(&right, 1, 0, largest);
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(left.region.slice(..largest).unwrap(), &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, largest, &left);
    check(&right.region, HEADER, largest, 5);
}

fn gathered_and_scattered(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    fill(&left.region, 0, 300, 9);
    let from = [(0, 100), (100, 101), (101, 300)].map(|(start, end)| left.region.slice(start..end).unwrap());
    // The header takes the first entry and 20 bytes of the second.
    let into = [(0, 20), (1000, 1030), (2000, 2001), (3000, 4000)];
    let into = into.map(|(start, end)| right.region.slice(start..end).unwrap());
    right.qp.post_recv(&[ReceiveRequest::new(&into).wr_id(1)]).unwrap();
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(&from, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 300, &left);
    let mut found = right.region.to_vec(1020..1030).unwrap();
    found.extend(right.region.to_vec(2000..2001).unwrap());
    found.extend(right.region.to_vec(3000..3289).unwrap());
    assert_eq!(found, super::bytes::pattern(300, 9));
    check_all(&right.region, 3289, 100, 0);
}

fn inline(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 256);
    let mut bytes = super::bytes::pattern(200, 3);
    post(&left, SendRequest::send_to(Payload::inline(&bytes), &ah, right.qp.qpn(), QKEY));
    bytes.fill(0);
    arrived(&right, 1, 200, &left);
    check(&right.region, HEADER, 200, 3);
}

fn to_itself(world: &World) {
    let end = ready(world, 0);
    let ah = address_handle(&end, &end);
    receive(&end, 1, 0, 64);
    post(&end, SendRequest::send_to(Payload::inline(b"echo"), &ah, end.qp.qpn(), QKEY));
    arrived(&end, 1, 4, &end);
    assert_eq!(end.region.to_vec(HEADER..HEADER + 4).unwrap(), b"echo");
}

fn one_to_many(world: &World) {
    let sender = ready(world, 0);
    let receivers = [1, 2, 3].map(|index| ready(world, index));
    for (number, receiver) in receivers.iter().enumerate() {
        receive(receiver, 1, 0, 64);
        let (ah, byte) = (address_handle(&sender, receiver), [number as u8]);
        let request = SendRequest::send_to(Payload::inline(&byte), &ah, receiver.qp.qpn(), QKEY);
        post(&sender, request.wr_id(number as u64).signaled());
    }
    for (number, receiver) in receivers.iter().enumerate() {
        arrived(receiver, 1, 1, &sender);
        assert_eq!(receiver.region.to_vec(HEADER..HEADER + 1).unwrap(), [number as u8]);
        sender.sent(number as u64);
        receiver.silent();
    }
}

fn many_to_one(world: &World) {
    let receiver = ready(world, 0);
    for (wr_id, sender) in (0u64..).zip([1, 2, 3].map(|index| ready(world, index))) {
        receive(&receiver, wr_id, 0, 64);
        let ah = address_handle(&sender, &receiver);
        post(&sender, SendRequest::send_to(Payload::inline(&[wr_id as u8]), &ah, receiver.qp.qpn(), QKEY));
        arrived(&receiver, wr_id, 1, &sender);
        assert_eq!(receiver.region.to_vec(HEADER..HEADER + 1).unwrap(), [wr_id as u8]);
    }
}

fn in_order(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    for wr_id in 0..100 {
        receive(&right, wr_id, wr_id as usize * 48, 8);
    }
    let mut batch = left.qp.send_batch().unwrap();
    for wr_id in 0..100u64 {
        let bytes = wr_id.to_ne_bytes();
        let request = SendRequest::send_to(Payload::inline(&bytes), &ah, right.qp.qpn(), QKEY);
        batch.push(&request.wr_id(wr_id).signaled()).unwrap();
    }
    batch.post().unwrap();
    for wr_id in 0..100 {
        left.sent(wr_id);
        arrived(&right, wr_id, 8, &left);
        let offset = wr_id as usize * 48 + HEADER;
        assert_eq!(right.region.to_vec(offset..offset + 8).unwrap(), wr_id.to_ne_bytes());
    }
}

fn unsignaled_are_silent(world: &World) {
    let left = idle(world, 0, &shape());
    left.qp.bring_up_ud().unwrap();
    let (right, most) = (ready(world, 1), u64::from(left.qp.cap().max_send_wr));
    let ah = address_handle(&left, &right);
    let request = SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY);
    // Four times the queue's size: each signaled request frees the slots of those before it.
    for wr_id in 0..4 * most {
        if wr_id % most == most - 1 {
            post(&left, request.wr_id(wr_id).signaled());
            left.sent(wr_id);
        } else {
            post(&left, request.wr_id(wr_id));
        }
    }
    left.silent();
    packets_sent(&left, 4 * most);
}

fn signaled_all(world: &World) {
    let left = idle(world, 0, &Shape { sq_sig_all: true, ..shape() });
    left.qp.bring_up_ud().unwrap();
    let ah = address_handle(&left, &left);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, Qpn::new(0x77), QKEY).wr_id(6));
    left.sent(6);
}

fn completes_without_a_receiver(world: &World) {
    let left = ready(world, 0);
    let right = world.end(1, &shape());
    let ah = address_handle(&left, &right);
    let number = right.qp.qpn();
    drop(right);
    for wr_id in 0..3 {
        post(&left, SendRequest::send_to(Payload::inline(b"?"), &ah, number, QKEY).wr_id(wr_id).signaled());
        left.sent(wr_id);
    }
    left.is_in(QueuePairState::ReadyToSend);
}

fn never_acknowledged(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    for qkey in [QKEY, Qkey(1), QKEY] {
        post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), qkey));
    }
    arrived(&right, 1, 0, &left);
    dropped(&right, DropReason::BadQkey, 1);
    dropped(&right, DropReason::NoReceive, 1);
    packets_sent(&right, 0);
    assert_eq!(left.qp.counters().get(Counter::ReceivedPackets), 0);
    left.silent();
}

fn without_receive_dropped(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::inline(b"lost"), &ah, right.qp.qpn(), QKEY).wr_id(1).signaled());
    left.sent(1);
    dropped(&right, DropReason::NoReceive, 1);
    receive(&right, 2, 0, 64);
    right.silent();
    post(&left, SendRequest::send_to(Payload::inline(b"kept"), &ah, right.qp.qpn(), QKEY));
    arrived(&right, 2, 4, &left);
    assert_eq!(right.region.to_vec(HEADER..HEADER + 4).unwrap(), b"kept");
}

fn too_long_for_receive_dropped(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 8);
    post(&left, SendRequest::send_to(Payload::inline(&[7; 9]), &ah, right.qp.qpn(), QKEY));
    if SHORT_DATAGRAMS_FAIL.holds() {
        right.fails(1, too_short());
        return right.is_in(QueuePairState::Error);
    }
    dropped(&right, DropReason::ReceiveTooSmall, 1);
    check_all(&right.region, 0, HEADER + 16, 0);
    post(&left, SendRequest::send_to(Payload::inline(&[8; 8]), &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 8, &left);
    check_all(&right.region, HEADER, 8, 8);
    right.is_in(QueuePairState::ReadyToSend);
}

fn header_alone_needs_room(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let short = right.region.slice(..HEADER - 1).unwrap();
    right.qp.post_recv(&[ReceiveRequest::new(short).wr_id(1)]).unwrap();
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    if SHORT_DATAGRAMS_FAIL.holds() {
        right.fails(1, too_short());
        return right.is_in(QueuePairState::Error);
    }
    dropped(&right, DropReason::ReceiveTooSmall, 1);
    check_all(&right.region, 0, HEADER, 0);
    right.to_error();
    right.flushed([1]);
}

fn wrong_qkey_dropped(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::inline(b"no"), &ah, right.qp.qpn(), Qkey(QKEY.0 ^ 1)).signaled());
    left.sent(0);
    dropped(&right, DropReason::BadQkey, 1);
    check_all(&right.region, 0, 64, 0);
    post(&left, SendRequest::send_to(Payload::inline(b"yes"), &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 3, &left);
}

fn high_bit_means_own_qkey(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), Qkey(0x8000_0000)));
    if QKEY_TAKEN_LITERALLY.holds() {
        return right.silent();
    }
    arrived(&right, 1, 0, &left);
}

fn high_bit_with_other_own_qkey(world: &World) {
    let left = world.end(0, &shape());
    init(&left, Qkey(5));
    left.qp.bring_up_ud().unwrap();
    let right = ready(world, 1);
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), Qkey(0x8000_0000 | QKEY.0)));
    dropped(&right, DropReason::BadQkey, 1);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
}

fn qkey_changed_in_rts(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let mut change = to_state(QueuePairState::ReadyToSend);
    change.qkey = Some(Qkey(0x42));
    right.qp.modify(&change).unwrap();
    assert_eq!(right.qp.query().unwrap().attributes.qkey, Some(Qkey(0x42)));
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    dropped(&right, DropReason::BadQkey, 1);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), Qkey(0x42)));
    arrived(&right, 1, 0, &left);
}

fn receiver_in_init_drops(world: &World) {
    // The second queue pair is in RTS, so that the socket receives the address's packets.
    let (left, other) = (ready(world, 0), ready(world, 1));
    let right = idle(world, 1, &shape());
    receive(&right, 1, 0, 64);
    receive(&other, 2, 0, 64);
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, other.qp.qpn(), QKEY));
    arrived(&other, 2, 0, &left);
    right.silent();
    right.qp.bring_up_ud().unwrap();
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
}

fn receiver_in_rtr_takes(world: &World) {
    let (left, right) = (ready(world, 0), idle(world, 1, &shape()));
    right.qp.modify(&to_state(QueuePairState::ReadyToReceive)).unwrap();
    receive(&right, 1, 0, 64);
    let ah = address_handle(&left, &right);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
    right.no_event();
}

fn connected_queue_pair_takes_none(world: &World) {
    let (near, far) = world.pair();
    let left = ready(world, 2);
    let ah = address_handle(&left, &far);
    far.qp.post_recv(&[ReceiveRequest::new(&far.region).wr_id(1)]).unwrap();
    post(&left, SendRequest::send_to(Payload::inline(b"astray"), &ah, far.qp.qpn(), QKEY));
    dropped(&far, DropReason::WrongService, 1);
    check_all(&far.region, 0, 64, 0);
    near.qp.post_send(&[SendRequest::send(Payload::inline(b"mine"))]).unwrap();
    far.received(1, 4);
}

fn unknown_number_dropped(world: &World) {
    let (left, right) = (ready(world, 0), ready(world, 1));
    let ah = address_handle(&left, &right);
    let unknown = Qpn::new(right.qp.qpn().value() ^ 1);
    receive(&right, 1, 0, 64);
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, unknown, QKEY));
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
    if right.context.query_device().packet_counters {
        assert_eq!(right.context.counters().get_drop(DropReason::UnknownQueuePair), 1);
    }
    right.silent();
}

fn solicited_wakes(world: &World) {
    let left = ready(world, 0);
    let context = world.device(1);
    let channel = context.create_comp_channel().unwrap();
    let (pd, cq) = (
        context.alloc_pd().unwrap(),
        context.create_cq_with(16, &CompletionQueueOptions::default().channel(&channel, 5)).unwrap(),
    );
    let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE).unwrap();
    let qp = super::end::create_qp(&pd, &cq, &cq, &shape());
    let right = super::end::End { qp, region, cq, pd, context };
    init(&right, QKEY);
    right.qp.bring_up_ud().unwrap();
    let ah = address_handle(&left, &right);
    receive(&right, 1, 0, 64);
    receive(&right, 2, 0, 64);
    right.cq.req_notify(rdma_verbs::verbs::Notify::SolicitedOnly).unwrap();
    post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY));
    arrived(&right, 1, 0, &left);
    assert_eq!(channel.wait_event(super::end::SILENCE).unwrap_err().kind(), ErrorKind::TimedOut);
    // Datagrams may be lost or late, and those of a busy adapter are. One that arrives without an event takes the only
    // receive, so that the next ones have no event either.
    let woken = (0..3).find_map(|_| {
        post(&left, SendRequest::send_to(Payload::EMPTY, &ah, right.qp.qpn(), QKEY).solicited());
        match channel.wait_event(super::end::patience() / 4) {
            Ok(cq_context) => Some(cq_context),
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!(woken, Some(5), "no datagram has arrived, or one without an event");
    arrived(&right, 2, 0, &left);
}
