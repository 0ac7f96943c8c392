//! SEND on reliable connections.

use rdma_verbs::verbs::{ConnectOptions, Payload, QueuePairCapabilities, ReceiveRequest, RegionList, SendRequest};

use super::bytes::{check, check_all, fill, pattern};
use super::end::{ALL_ACCESS, Shape};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new(
        "rc/send/bytes_and_length",
        "IBTA, reliable service: SEND; ibv_poll_cq(3) byte_len",
        bytes_and_length,
    ),
    Scenario::new("rc/send/zero_bytes", "IBTA, reliable service: zero-length messages", zero_bytes),
    Scenario::new(
        "rc/send/immediate_as_given",
        "IBTA, transport functions; ibv_poll_cq(3) imm_data",
        immediate_as_given,
    ),
    Scenario::new(
        "rc/send/immediate_without_bytes",
        "IBTA, transport functions: immediate data",
        immediate_without_bytes,
    ),
    Scenario::new("rc/send/immediate_only_where_sent", "ibv_poll_cq(3) IBV_WC_WITH_IMM", immediate_only_where_sent),
    Scenario::new("rc/send/gathered", "IBTA, work request processing: gather list; ibv_post_send(3) sg_list", gathered),
    Scenario::new(
        "rc/send/scattered",
        "IBTA, work request processing: scatter list; ibv_post_recv(3) sg_list",
        scattered,
    ),
    Scenario::new("rc/send/empty_sges_in_lists", "ibv_post_send(3) sg_list: length 0 is 0 bytes", empty_sges),
    Scenario::new("rc/send/most_sges", "IBTA, queue pair verbs: max_send_sge, max_recv_sge as reported", most_sges),
    Scenario::new("rc/send/inline_is_copied", "ibv_post_send(3) IBV_SEND_INLINE", inline_is_copied),
    Scenario::new("rc/send/inline_at_the_limit", "ibv_create_qp(3) max_inline_data", inline_at_the_limit),
    Scenario::new("rc/send/inline_and_lists_mixed", "ibv_post_send(3) IBV_SEND_INLINE", inline_mixed),
    Scenario::new("rc/send/shorter_than_the_receive", "IBTA, reliable service; ibv_poll_cq(3) byte_len", shorter),
    Scenario::new("rc/send/both_ways_at_once", "IBTA, reliable service: both directions are independent", both_ways),
    Scenario::new(
        "rc/send/receives_in_posting_order",
        "IBTA, work request processing: receive queue order",
        posting_order,
    ),
    Scenario::new("rc/send/receive_queue_wraps", "ibv_post_recv(3): slots return with completions", queue_wraps),
    Scenario::new("rc/send/read_only_source", "ibv_reg_mr(3): local read is always allowed", read_only_source),
    Scenario::new("rc/send/same_source_twice", "ibv_post_send(3) sg_list may overlap for sends", same_source_twice),
];

fn bytes_and_length(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 1000, 1);
    right.receive(2, 64..2048);
    left.post(&[SendRequest::send(left.at(0..1000)).wr_id(1).signaled()]);
    right.received(2, 1000);
    left.sent(1);
    check_all(&right.region, 0, 64, 0);
    check(&right.region, 64, 1000, 1);
    check_all(&right.region, 1064, 1024, 0);
    left.silent();
    right.silent();
}

fn zero_bytes(world: &World) {
    let (left, right) = world.pair();
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(1)]).unwrap();
    right.receive(2, 0..8);
    left.post(&[SendRequest::send(Payload::EMPTY).wr_id(3).signaled()]);
    left.post(&[SendRequest::send(left.at(8..8)).wr_id(4).signaled()]);
    right.received(1, 0);
    right.received(2, 0);
    left.sent(3);
    left.sent(4);
    check_all(&right.region, 0, 64, 0);
}

fn immediate_as_given(world: &World) {
    let (left, right) = world.pair();
    for (wr_id, word) in (0u64..).zip([0, 1, 0x0102_0304, u32::MAX]) {
        right.receive(wr_id, 0..64);
        left.post(&[SendRequest::send_with_immediate(Payload::inline(b"word"), word)]);
        right.received_with(wr_id, 4, Some(word));
    }
    left.silent();
}

fn immediate_without_bytes(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..64);
    left.post(&[SendRequest::send_with_immediate(Payload::EMPTY, 77).wr_id(2).signaled()]);
    right.received_with(1, 0, Some(77));
    left.sent(2);
    check_all(&right.region, 0, 64, 0);
}

fn immediate_only_where_sent(world: &World) {
    let (left, right) = world.pair();
    (0..3).for_each(|wr_id| right.receive(wr_id, 0..64));
    let plain = SendRequest::send(Payload::inline(b"plain"));
    left.post(&[plain, SendRequest::send_with_immediate(Payload::inline(b"not"), 5), plain]);
    right.received(0, 5);
    right.received_with(1, 3, Some(5));
    right.received(2, 5);
}

fn gathered(world: &World) {
    let (left, right) = world.pair();
    let bytes = pattern(3000, 4);
    left.region.write_at(5000, &bytes[..1]).unwrap();
    left.region.write_at(100, &bytes[1..1400]).unwrap();
    left.region.write_at(3000, &bytes[1400..]).unwrap();
    right.receive(1, 0..4096);
    let pieces = [left.at(5000..5001), left.at(100..1499), left.at(3000..4600)];
    left.post(&[SendRequest::send(&pieces).wr_id(2).signaled()]);
    right.received(1, 3000);
    left.sent(2);
    check(&right.region, 0, 3000, 4);
}

fn scattered(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 3000, 5);
    let pieces = [right.at(9000..9001), right.at(100..1499), right.at(4000..8000)];
    right.qp.post_recv(&[ReceiveRequest::new(&pieces).wr_id(1)]).unwrap();
    left.post(&[SendRequest::send(left.at(0..3000))]);
    right.received(1, 3000);
    let mut found = right.region.to_vec(9000..9001).unwrap();
    found.extend(right.region.to_vec(100..1499).unwrap());
    found.extend(right.region.to_vec(4000..5600).unwrap());
    assert!(found == pattern(3000, 5), "the pieces together are the message");
    check_all(&right.region, 0, 100, 0);
    check_all(&right.region, 1499, 2501, 0);
    check_all(&right.region, 5600, 3400, 0);
}

fn empty_sges(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 20, 6);
    let into = [right.at(50..50), right.at(0..10), right.at(60..60), right.at(10..20)];
    right.qp.post_recv(&[ReceiveRequest::new(&into).wr_id(1)]).unwrap();
    let from = [left.at(0..7), left.at(100..100), left.at(7..20), left.at(0..0)];
    left.post(&[SendRequest::send(&from)]);
    right.received(1, 20);
    check(&right.region, 0, 20, 6);
    check_all(&right.region, 20, 80, 0);
}

fn most_sges(world: &World) {
    let max_sge = world.device(0).query_device().max_sge;
    let cap = QueuePairCapabilities { max_send_sge: max_sge, max_recv_sge: max_sge, ..Shape::default().cap };
    let (left, right) = world.pair_of(&Shape { cap, ..Shape::default() }, &ConnectOptions::default());
    let count = max_sge as usize;
    fill(&left.region, 0, count * 100, 7);
    let into: Vec<_> = (0..count).map(|piece| right.at(piece * 150..piece * 150 + 100)).collect();
    right.qp.post_recv(&[ReceiveRequest::new(&into[..]).wr_id(1)]).unwrap();
    let from: Vec<_> = (0..count).map(|piece| left.at(piece * 100..piece * 100 + 100)).collect();
    left.post(&[SendRequest::send(&from[..])]);
    right.received(1, max_sge * 100);
    let expected = pattern(count * 100, 7);
    for piece in 0..count {
        let found = right.region.to_vec(piece * 150..piece * 150 + 150).unwrap();
        assert!(found[..100] == expected[piece * 100..][..100], "piece {piece}");
        assert_eq!(found[100..], [0; 50], "after piece {piece}");
    }
}

fn inline_is_copied(world: &World) {
    let (left, right) = world.pair();
    // Nothing can be sent before a receive is posted, so the bytes are used long after posting.
    let mut bytes = pattern(100, 8);
    left.post(&[SendRequest::send(Payload::inline(&bytes)).wr_id(1).signaled()]);
    bytes.fill(0xee);
    left.silent();
    right.receive(2, 0..200);
    right.received(2, 100);
    left.sent(1);
    check(&right.region, 0, 100, 8);
    drop(bytes);
}

fn inline_at_the_limit(world: &World) {
    let (left, right) = world.pair();
    let limit = left.qp.cap().max_inline_data as usize;
    assert!(limit >= 256, "at least the requested size");
    right.receive(1, 0..limit + 1);
    left.post(&[SendRequest::send(Payload::inline(&pattern(limit, 9)))]);
    right.received(1, limit as u32);
    check(&right.region, 0, limit, 9);
}

fn inline_mixed(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 300, 10);
    (0..4).for_each(|slot| right.receive(slot, slot as usize * 1000..(slot as usize + 1) * 1000));
    let inline = pattern(200, 11);
    let (inline, listed) = (SendRequest::send(Payload::inline(&inline)), SendRequest::send(left.at(0..300)));
    left.post(&[inline, listed, inline, listed]);
    for slot in 0..4 {
        let (len, seed) = if slot % 2 == 0 { (200, 11) } else { (300, 10) };
        right.received(slot, len);
        check(&right.region, slot as usize * 1000, len as usize, seed);
    }
}

fn shorter(world: &World) {
    let (left, right) = world.pair();
    right.region.write_at(0, &[9; 4096]).unwrap();
    for (wr_id, len) in [(1, 1), (2, 7), (3, 4095)] {
        fill(&left.region, 0, len, wr_id);
        right.receive(wr_id, 0..4096);
        left.post(&[SendRequest::send(left.at(0..len))]);
        right.received(wr_id, len as u32);
        check(&right.region, 0, len, wr_id);
    }
    check_all(&right.region, 4095, 1, 9);
}

fn both_ways(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20 {
        left.receive(round, 0..1024);
        right.receive(round, 0..1024);
        fill(&left.region, 2048, 700, round);
        fill(&right.region, 2048, 900, round + 100);
        left.post(&[SendRequest::send(left.at(2048..2748))]);
        right.post(&[SendRequest::send(right.at(2048..2948))]);
        left.received(round, 900);
        right.received(round, 700);
        check(&left.region, 0, 900, round + 100);
        check(&right.region, 0, 700, round);
    }
}

fn posting_order(world: &World) {
    let (left, right) = world.pair();
    for wr_id in 0..64 {
        right.receive(wr_id * 3, wr_id as usize * 16..wr_id as usize * 16 + 16);
    }
    for number in 0..64u64 {
        left.post(&[SendRequest::send(Payload::inline(&number.to_be_bytes()))]);
    }
    for number in 0..64 {
        right.received(number * 3, 8);
        let found = right.region.to_vec(number as usize * 16..number as usize * 16 + 8).unwrap();
        assert_eq!(found, number.to_be_bytes());
    }
}

fn queue_wraps(world: &World) {
    let cap = QueuePairCapabilities { max_recv_wr: 3, max_send_wr: 3, ..Shape::default().cap };
    let (left, right) = world.pair_of(&Shape { cap, ..Shape::default() }, &ConnectOptions::default());
    for number in 0..50 {
        right.receive(number, 0..8);
        left.post(&[SendRequest::send(Payload::inline(&number.to_be_bytes())).wr_id(number).signaled()]);
        right.received(number, 8);
        left.sent(number);
        assert_eq!(right.region.to_vec(0..8).unwrap(), number.to_be_bytes());
    }
}

fn read_only_source(world: &World) {
    let (left, right) = world.pair();
    let source = left.pd.reg_mr(pattern(500, 12), rdma_verbs::verbs::AccessFlags::empty()).unwrap();
    right.receive(1, 0..500);
    left.post(&[SendRequest::send(&source)]);
    right.received(1, 500);
    check(&right.region, 0, 500, 12);
}

fn same_source_twice(world: &World) {
    let (left, right) = world.pair();
    let source = left.region(64, ALL_ACCESS);
    fill(&source, 0, 64, 13);
    right.receive(1, 0..256);
    let (all, half) = (source.slice(..).unwrap(), source.slice(..32).unwrap());
    left.post(&[SendRequest::send(&[all, half, all])]);
    right.received(1, 160);
    check(&right.region, 0, 64, 13);
    check(&right.region, 64, 32, 13);
    check(&right.region, 96, 64, 13);
}
