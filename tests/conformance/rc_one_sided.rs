//! WRITE and READ on reliable connections.

use std::time::Instant;

use rdma_verbs::verbs::{
    ConnectOptions, Payload, QueuePairCapabilities, ReceiveRequest, RegionList, RemoteMemory, Rkey, SendRequest,
};

use super::bytes::{check, check_all, fill, pattern};
use super::end::{ALL_ACCESS, Shape, patience};
use super::suite::Scenario;
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/write/bytes", "IBTA, reliable service: RDMA WRITE", write_bytes),
    Scenario::new(
        "rc/write/no_completion_at_the_peer",
        "IBTA, work requests: no completion at the responder",
        no_completion_at_the_peer,
    ),
    Scenario::new(
        "rc/write/zero_bytes_check_no_key",
        "IBTA, reliable service: no R_Key check",
        zero_write_checks_no_key,
    ),
    Scenario::new("rc/write/gathered", "IBTA, work request processing: gather list", write_gathered),
    Scenario::new("rc/write/inline", "ibv_post_send(3) IBV_SEND_INLINE", write_inline),
    Scenario::new("rc/write/whole_region", "IBTA, memory management: bounds are inclusive", write_whole_region),
    Scenario::new(
        "rc/write/immediate_takes_a_receive",
        "IBTA, reliable service: WRITE with immediate",
        immediate_notice,
    ),
    Scenario::new("rc/write/immediate_ignores_receive_memory", "IBTA, work requests", immediate_ignores_memory),
    Scenario::new("rc/write/immediate_of_nothing", "IBTA, reliable service", immediate_of_nothing),
    Scenario::new("rc/write/immediate_waits_for_a_receive", "IBTA, reliable service: RNR NAK", immediate_waits),
    Scenario::new(
        "rc/write/passive_peer_progress",
        "IBTA, work requests: the responder's program does nothing",
        passive_peer,
    ),
    Scenario::new("rc/write/last_byte_last", "ibv_query_qp_data_in_order(3)", last_byte_last),
    Scenario::new(
        "rc/write/overwrites_in_order",
        "IBTA, reliable service: requests execute in order",
        overwrites_in_order,
    ),
    Scenario::new(
        "rc/write/before_the_send_after_it",
        "IBTA, work request processing: ordering of WRITE and SEND",
        before_send,
    ),
    Scenario::new("rc/read/bytes_and_length", "IBTA, reliable service: RDMA READ; ibv_poll_cq(3) byte_len", read_bytes),
    Scenario::new("rc/read/scattered", "IBTA, work request processing: scatter list", read_scattered),
    Scenario::new("rc/read/zero_bytes_check_no_key", "IBTA, reliable service: no R_Key check", zero_read_checks_no_key),
    Scenario::new(
        "rc/read/passive_peer_progress",
        "IBTA, work requests: the responder's program does nothing",
        passive_read,
    ),
    Scenario::new(
        "rc/read/of_what_was_written_before",
        "IBTA, work request processing: READ after WRITE",
        read_after_write,
    ),
    Scenario::new(
        "rc/read/deeper_than_max_rd_atomic",
        "IBTA, transport functions: waits in the send queue",
        deep_reads,
    ),
    Scenario::new("rc/read/one_at_a_time", "IBTA, transport functions: max_rd_atomic 1", reads_one_at_a_time),
    Scenario::new(
        "rc/read/both_ways_at_once",
        "IBTA, reliable service: both directions are independent",
        reads_both_ways,
    ),
    Scenario::new("rc/read/other_bytes_stay", "IBTA, work request processing: scatter list", read_leaves_the_rest),
    Scenario::new("rc/read/into_another_region", "ibv_post_send(3) sg_list lkey", read_into_another_region),
];

fn write_bytes(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 10, 5000, 1);
    left.post(&[SendRequest::write(left.at(10..5010), right.far(333..5333)).wr_id(1).signaled()]);
    left.written(1);
    check_all(&right.region, 0, 333, 0);
    check(&right.region, 333, 5000, 1);
    check_all(&right.region, 5333, 1000, 0);
}

fn no_completion_at_the_peer(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..64);
    left.post(&[SendRequest::write(Payload::inline(b"quiet"), right.far(0..64)).wr_id(2).signaled()]);
    left.written(2);
    right.silent();
    // The receive has not been consumed.
    left.post(&[SendRequest::send(Payload::inline(b"loud"))]);
    right.received(1, 4);
}

fn zero_write_checks_no_key(world: &World) {
    let (left, right) = world.pair();
    let nowhere = RemoteMemory::new(0xdead_0000, Rkey(right.region.rkey().0 ^ 0xff00), 0);
    left.post(&[SendRequest::write(Payload::EMPTY, nowhere).wr_id(1).signaled()]);
    left.written(1);
    left.post(&[SendRequest::write(left.at(0..0), nowhere).wr_id(2).signaled()]);
    left.written(2);
}

fn zero_read_checks_no_key(world: &World) {
    let (left, right) = world.pair();
    let nowhere = RemoteMemory::new(0xdead_0000, Rkey(right.region.rkey().0 ^ 0xff00), 0);
    left.post(&[SendRequest::read(RegionList::EMPTY, nowhere).wr_id(1).signaled()]);
    left.read(1, 0);
    left.post(&[SendRequest::read(left.at(5..5), nowhere).wr_id(2).signaled()]);
    left.read(2, 0);
}

fn write_gathered(world: &World) {
    let (left, right) = world.pair();
    let bytes = pattern(9000, 2);
    left.region.write_at(20_000, &bytes[..5000]).unwrap();
    left.region.write_at(0, &bytes[5000..]).unwrap();
    let pieces = [left.at(20_000..25_000), left.at(0..4000)];
    left.post(&[SendRequest::write(&pieces, right.far(7..9007)).wr_id(1).signaled()]);
    left.written(1);
    check(&right.region, 7, 9000, 2);
}

fn write_inline(world: &World) {
    let (left, right) = world.pair();
    left.post(&[SendRequest::write(Payload::inline(&pattern(256, 3)), right.far(100..356)).wr_id(1).signaled()]);
    left.written(1);
    check(&right.region, 100, 256, 3);
    check_all(&right.region, 356, 100, 0);
}

fn write_whole_region(world: &World) {
    let (left, right) = world.pair();
    let len = right.region.len();
    fill(&left.region, 0, len, 4);
    left.post(&[SendRequest::write(&left.region, right.region.remote()).wr_id(1).signaled()]);
    left.written(1);
    check(&right.region, 0, len, 4);
}

fn immediate_notice(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 3000, 5);
    right.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY).wr_id(1)]).unwrap();
    let write = SendRequest::write_with_immediate(left.at(0..3000), right.far(500..3500), 0xfeed_0001);
    left.post(&[write.wr_id(2).signaled()]);
    right.notified(1, 3000, 0xfeed_0001);
    check(&right.region, 500, 3000, 5);
    left.written(2);
}

fn immediate_ignores_memory(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 8000..8004);
    let write = SendRequest::write_with_immediate(left.at(0..2000), right.far(0..2000), 6);
    fill(&left.region, 0, 2000, 6);
    left.post(&[write]);
    right.notified(1, 2000, 6);
    check(&right.region, 0, 2000, 6);
    check_all(&right.region, 8000, 4, 0);
}

fn immediate_of_nothing(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..8);
    let nowhere = RemoteMemory::new(0, Rkey(0), 0);
    left.post(&[SendRequest::write_with_immediate(Payload::EMPTY, nowhere, 7).wr_id(2).signaled()]);
    right.notified(1, 0, 7);
    left.written(2);
}

fn immediate_waits(world: &World) {
    let (left, right) = world.pair_of(&Shape::default(), &ConnectOptions::default().min_rnr_timer(1));
    let write = SendRequest::write_with_immediate(Payload::inline(b"later"), right.far(0..5), 8);
    left.post(&[write.wr_id(1).signaled()]);
    left.silent();
    right.receive(2, 100..101);
    right.notified(2, 5, 8);
    left.written(1);
    assert_eq!(right.region.to_vec(0..5).unwrap(), b"later");
}

fn passive_peer(world: &World) {
    let (left, right) = world.pair();
    left.post(&[SendRequest::write(Payload::inline(&[1]), right.far(99..100))]);
    let start = Instant::now();
    // Neither end calls a verb: the devices make progress by themselves.
    while right.region.load_acquire_u8(99).unwrap() == 0 {
        assert!(start.elapsed() < patience(), "the byte never came");
        std::thread::yield_now();
    }
}

fn last_byte_last(world: &World) {
    let (left, right) = world.pair();
    let lengths = [1usize, 2, 9, 63, 64, 65, 1000, 1024, 4097, 12_345];
    for (round, len) in (1u64..).zip(lengths.into_iter().cycle().take(60)) {
        let mut bytes = pattern(len, round);
        bytes[len - 1] = (round % 250) as u8 + 1;
        left.region.write_at(0, &bytes).unwrap();
        right.region.write_at(0, &vec![0; len]).unwrap();
        left.post(&[SendRequest::write(left.at(0..len), right.far(0..len)).signaled()]);
        let start = Instant::now();
        while right.region.load_acquire_u8(len - 1).unwrap() == 0 {
            assert!(start.elapsed() < patience(), "the last byte never came");
            std::hint::spin_loop();
        }
        assert!(right.region.to_vec(0..len).unwrap() == bytes, "{len} bytes are there when the last one is");
        left.written(0);
    }
}

fn overwrites_in_order(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20u64 {
        for step in 0..16u64 {
            let number = round * 16 + step + 1;
            let bytes = number.to_ne_bytes();
            let request = SendRequest::write(Payload::inline(&bytes), right.far(0..8)).wr_id(number);
            left.post(&[if step == 15 { request.signaled() } else { request }]);
        }
        left.written(round * 16 + 16);
        assert_eq!(right.region.load_acquire_u64(0).unwrap(), round * 16 + 16);
    }
}

fn before_send(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20 {
        right.receive(round, 40_000..40_001);
        fill(&left.region, 0, 30_000, round);
        left.post(&[
            SendRequest::write(left.at(0..30_000), right.far(0..30_000)),
            SendRequest::send(Payload::EMPTY).signaled(),
        ]);
        right.received(round, 0);
        check(&right.region, 0, 30_000, round);
        left.sent(0);
    }
}

fn read_bytes(world: &World) {
    let (left, right) = world.pair();
    fill(&right.region, 77, 6000, 1);
    left.post(&[SendRequest::read(left.at(3..6003), right.far(77..6077)).wr_id(1).signaled()]);
    left.read(1, 6000);
    check(&left.region, 3, 6000, 1);
    check(&right.region, 77, 6000, 1);
    right.silent();
}

fn read_scattered(world: &World) {
    let (left, right) = world.pair();
    fill(&right.region, 0, 5000, 2);
    let pieces = [left.at(9000..9003), left.at(100..2100), left.at(20_000..22_997)];
    left.post(&[SendRequest::read(&pieces, right.far(0..5000)).wr_id(1).signaled()]);
    left.read(1, 5000);
    let mut found = left.region.to_vec(9000..9003).unwrap();
    found.extend(left.region.to_vec(100..2100).unwrap());
    found.extend(left.region.to_vec(20_000..22_997).unwrap());
    assert!(found == pattern(5000, 2), "the pieces together are what was read");
}

fn passive_read(world: &World) {
    let (left, right) = world.pair();
    fill(&right.region, 0, 64, 3);
    left.post(&[SendRequest::read(left.at(0..64), right.far(0..64)).wr_id(1).signaled()]);
    let start = Instant::now();
    let expected = pattern(64, 3);
    while left.region.load_acquire_u8(63).unwrap() != expected[63] {
        assert!(start.elapsed() < patience(), "no response arrived");
        std::thread::yield_now();
    }
    left.read(1, 64);
    check(&left.region, 0, 64, 3);
}

fn read_after_write(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20 {
        fill(&left.region, 0, 10_000, round);
        left.post(&[
            SendRequest::write(left.at(0..10_000), right.far(0..10_000)),
            SendRequest::read(left.at(20_000..30_000), right.far(0..10_000)).wr_id(round).signaled(),
        ]);
        left.read(round, 10_000);
        check(&left.region, 20_000, 10_000, round);
    }
}

fn deep_reads(world: &World) {
    let options = ConnectOptions::default().max_rd_atomic(4);
    let (left, right) = world.pair_of(&Shape { max_dest_rd_atomic: Some(4), ..Shape::default() }, &options);
    fill(&right.region, 0, 64 * 512, 4);
    let reads: Vec<_> = (0..64usize)
        .map(|number| {
            let range = number * 512..(number + 1) * 512;
            SendRequest::read(left.at(range.clone()), right.far(range)).wr_id(number as u64).signaled()
        })
        .collect();
    left.post(&reads);
    (0..64).for_each(|number| left.read(number, 512));
    check(&left.region, 0, 64 * 512, 4);
}

fn reads_one_at_a_time(world: &World) {
    let options = ConnectOptions::default().max_rd_atomic(1);
    let (left, right) = world.pair_of(&Shape { max_dest_rd_atomic: Some(1), ..Shape::default() }, &options);
    fill(&right.region, 0, 20_000, 5);
    for wr_id in 0..16 {
        let read = SendRequest::read(left.at(0..20_000), right.far(0..20_000)).wr_id(wr_id * 2).signaled();
        left.post(&[
            read,
            SendRequest::write(left.at(0..8), right.far(30_000..30_008)).wr_id(wr_id * 2 + 1).signaled(),
        ]);
    }
    for wr_id in 0..16 {
        left.read(wr_id * 2, 20_000);
        left.written(wr_id * 2 + 1);
    }
    check(&left.region, 0, 20_000, 5);
}

fn reads_both_ways(world: &World) {
    let (left, right) = world.pair();
    fill(&left.region, 0, 9000, 6);
    fill(&right.region, 0, 9000, 7);
    for wr_id in 0..10 {
        left.post(&[SendRequest::read(left.at(10_000..19_000), right.far(0..9000)).wr_id(wr_id).signaled()]);
        right.post(&[SendRequest::read(right.at(10_000..19_000), left.far(0..9000)).wr_id(wr_id).signaled()]);
    }
    for wr_id in 0..10 {
        left.read(wr_id, 9000);
        right.read(wr_id, 9000);
    }
    check(&left.region, 10_000, 9000, 7);
    check(&right.region, 10_000, 9000, 6);
}

fn read_leaves_the_rest(world: &World) {
    let (left, right) = world.pair();
    left.region.write_at(0, &[0x5a; 4096]).unwrap();
    fill(&right.region, 0, 1001, 8);
    left.post(&[SendRequest::read(left.at(1003..2004), right.far(0..1001)).wr_id(1).signaled()]);
    left.read(1, 1001);
    check_all(&left.region, 0, 1003, 0x5a);
    check(&left.region, 1003, 1001, 8);
    check_all(&left.region, 2004, 2000, 0x5a);
}

fn read_into_another_region(world: &World) {
    let cap = QueuePairCapabilities { max_send_sge: 4, ..Shape::default().cap };
    let (left, right) = world.pair_of(&Shape { cap, ..Shape::default() }, &ConnectOptions::default());
    let other = left.region(4096, ALL_ACCESS);
    fill(&right.region, 0, 2000, 9);
    let pieces = [left.at(0..1000), other.slice(96..1096).unwrap()];
    left.post(&[SendRequest::read(&pieces, right.far(0..2000)).wr_id(1).signaled()]);
    left.read(1, 2000);
    let mut found = left.region.to_vec(0..1000).unwrap();
    found.extend(other.to_vec(96..1096).unwrap());
    assert!(found == pattern(2000, 9), "both regions hold their part");
    check_all(&other, 0, 96, 0);
}
