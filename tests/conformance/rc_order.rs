//! Order of execution and completion, signaling, and when slots are freed.

use rdma_verbs::verbs::{CompletionOpcode, ConnectOptions, ErrorKind, Payload, QueuePairCapabilities, SendRequest};

use super::bytes::{check, fill};
use super::end::{Shape, refused};
use super::suite::{ATOMIC_CAP, Scenario};
use super::world::World;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/order/sends_complete_in_order", "IBTA, work request processing", sends_complete_in_order),
    Scenario::new("rc/order/mixed_operations_complete_in_order", "IBTA, work request processing", mixed)
        .needs(&[ATOMIC_CAP]),
    Scenario::new(
        "rc/order/read_holds_back_later_sends",
        "IBTA, work request processing: READs complete in their turn",
        read_first,
    ),
    Scenario::new("rc/fence/send_carries_what_was_read", "IBTA, work request processing: fence", fenced_send),
    Scenario::new("rc/fence/write_carries_what_was_read", "IBTA, work request processing: fence", fenced_write),
    Scenario::new("rc/fence/write_carries_atomic_result", "IBTA, work request processing: fence", fenced_after_atomic)
        .needs(&[ATOMIC_CAP]),
    Scenario::new("rc/fence/without_reads_it_changes_nothing", "IBTA, work request processing: fence", fence_alone),
    Scenario::new("rc/signal/unsignaled_is_silent", "ibv_post_send(3) IBV_SEND_SIGNALED", unsignaled_is_silent),
    Scenario::new("rc/signal/sq_sig_all", "ibv_create_qp(3) sq_sig_all", sq_sig_all),
    Scenario::new("rc/signal/every_fourth", "ibv_post_send(3) IBV_SEND_SIGNALED", every_fourth),
    Scenario::new(
        "rc/signal/later_one_frees_earlier_slots",
        "IBTA, work request processing: send queue slots",
        later_frees,
    ),
    Scenario::new("rc/signal/slot_is_held_until_polled", "ibv_post_send(3): poll before posting more", until_polled),
    Scenario::new(
        "rc/signal/unsignaled_alone_fill_the_queue",
        "IBTA, work request processing: send queue slots",
        unsignaled_fill,
    ),
    Scenario::new("rc/signal/solicited_changes_no_bytes", "IBTA, transport headers: solicited event", solicited),
    Scenario::new("rc/signal/wr_id_is_untouched", "ibv_poll_cq(3) wr_id", wr_ids),
];

fn sends_complete_in_order(world: &World) {
    let (left, right) = world.pair();
    (0..100).for_each(|wr_id| right.receive(wr_id, 0..2048));
    // Long and short alternate: a short one must not overtake a long one.
    for wr_id in 0..100 {
        let len = if wr_id % 2 == 0 { 2000 } else { 1 };
        left.post(&[SendRequest::send(left.at(0..len)).wr_id(wr_id).signaled()]);
    }
    for wr_id in 0..100 {
        right.received(wr_id, if wr_id % 2 == 0 { 2000 } else { 1 });
        left.sent(wr_id);
    }
}

fn mixed(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..64);
    right.receive(2, 0..64);
    left.post(&[
        SendRequest::read(left.at(0..30_000), right.far(0..30_000)).wr_id(1).signaled(),
        SendRequest::send(Payload::inline(b"a")).wr_id(2).signaled(),
        SendRequest::fetch_and_add(left.at(40_000..40_008), right.far(40_000..40_008), 1).wr_id(3).signaled(),
        SendRequest::write(Payload::inline(b"b"), right.far(50_000..50_001)).wr_id(4).signaled(),
        SendRequest::compare_and_swap(left.at(40_000..40_008), right.far(40_000..40_008), 1, 2).wr_id(5).signaled(),
        SendRequest::write_with_immediate(Payload::inline(b"c"), right.far(0..1), 9).wr_id(6).signaled(),
    ]);
    left.read(1, 30_000);
    left.sent(2);
    left.done(3, CompletionOpcode::FetchAndAdd);
    left.written(4);
    left.done(5, CompletionOpcode::CompareAndSwap);
    left.written(6);
    right.received(1, 1);
    right.notified(2, 1, 9);
}

fn read_first(world: &World) {
    let shape = Shape { region_bytes: 1 << 20, ..Shape::default() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    right.receive(9, 0..1);
    left.post(&[
        SendRequest::read(left.at(0..1 << 20), right.far(0..1 << 20)).wr_id(1).signaled(),
        SendRequest::send(Payload::EMPTY).wr_id(2).signaled(),
    ]);
    // The SEND completes at the peer long before the READ's response is complete.
    right.received(9, 0);
    left.read(1, 1 << 20);
    left.sent(2);
}

fn fenced_send(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20 {
        fill(&right.region, 0, 20_000, round);
        right.receive(round, 30_000..50_000);
        left.post(&[
            SendRequest::read(left.at(0..20_000), right.far(0..20_000)),
            SendRequest::send(left.at(0..20_000)).fence().wr_id(round).signaled(),
        ]);
        right.received(round, 20_000);
        left.sent(round);
        check(&right.region, 30_000, 20_000, round);
    }
}

fn fenced_write(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20 {
        fill(&right.region, 0, 8, round);
        left.post(&[
            SendRequest::read(left.at(0..8), right.far(0..8)),
            SendRequest::write(left.at(0..8), right.far(100..108)).fence().signaled(),
        ]);
        left.written(0);
        check(&right.region, 100, 8, round);
    }
}

fn fenced_after_atomic(world: &World) {
    let (left, right) = world.pair();
    for round in 0..20u64 {
        left.post(&[
            SendRequest::fetch_and_add(left.at(0..8), right.far(0..8), 1),
            SendRequest::write(left.at(0..8), right.far(8..16)).fence().signaled(),
        ]);
        left.written(0);
        assert_eq!(right.region.load_acquire_u64(8).unwrap(), round);
    }
}

fn fence_alone(world: &World) {
    let (left, right) = world.pair();
    for round in 0..10 {
        right.receive(round, 0..16);
        left.post(&[SendRequest::send(Payload::inline(b"fenced")).fence().wr_id(round).signaled()]);
        right.received(round, 6);
        left.sent(round);
    }
}

fn unsignaled_is_silent(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..64);
    left.post(&[
        SendRequest::send(Payload::inline(b"x")).wr_id(1),
        SendRequest::write(Payload::inline(b"y"), right.far(100..101)).wr_id(2),
        SendRequest::read(left.at(0..8), right.far(0..8)).wr_id(3),
        SendRequest::write(Payload::inline(b"z"), right.far(101..102)).wr_id(4).signaled(),
    ]);
    left.written(4);
    right.received(1, 1);
    left.silent();
    assert_eq!(right.region.to_vec(100..102).unwrap(), b"yz");
}

fn sq_sig_all(world: &World) {
    let shape = Shape { sq_sig_all: true, ..Shape::default() };
    let (left, right) = world.pair_of(&shape, &ConnectOptions::default());
    right.receive(9, 0..64);
    left.post(&[
        SendRequest::write(Payload::inline(b"y"), right.far(100..101)).wr_id(1),
        SendRequest::read(left.at(0..8), right.far(0..8)).wr_id(2),
        SendRequest::send(Payload::inline(b"x")).wr_id(3),
        SendRequest::write(Payload::inline(b"z"), right.far(100..101)).wr_id(4).signaled(),
    ]);
    left.written(1);
    left.read(2, 8);
    left.sent(3);
    left.written(4);
    right.received(9, 1);
    left.silent();
}

fn every_fourth(world: &World) {
    let (left, right) = world.pair();
    for wr_id in 0..80u64 {
        let bytes = wr_id.to_ne_bytes();
        let write = SendRequest::write(Payload::inline(&bytes), right.far(0..8)).wr_id(wr_id);
        left.post(&[if wr_id % 4 == 3 { write.signaled() } else { write }]);
    }
    (0..20).for_each(|number| left.written(number * 4 + 3));
    left.silent();
}

/// Returns ends with send queues of four.
fn small_queue() -> Shape {
    Shape { cap: QueuePairCapabilities { max_send_wr: 4, ..Shape::default().cap }, ..Shape::default() }
}

fn later_frees(world: &World) {
    let (left, right) = world.pair_of(&small_queue(), &ConnectOptions::default());
    let slots = left.qp.cap().max_send_wr;
    let write = SendRequest::write(left.at(0..8), right.far(0..8));
    for round in 0..10 {
        (1..slots).for_each(|_| left.post(&[write]));
        left.post(&[write.wr_id(round).signaled()]);
        refused(left.qp.post_send(&[write]), ErrorKind::QueueFull, &["post_send"]);
        left.written(round);
    }
}

fn until_polled(world: &World) {
    let (left, right) = world.pair_of(&small_queue(), &ConnectOptions::default());
    let slots = left.qp.cap().max_send_wr;
    let number = |wr_id: u32| right.far(wr_id as usize * 8..wr_id as usize * 8 + 8);
    // In one call: no completion comes before all are posted.
    let write = |wr_id: u32| SendRequest::write(Payload::inline(&[7; 8]), number(wr_id)).wr_id(wr_id.into()).signaled();
    left.post(&(0..slots).map(write).collect::<Vec<_>>());
    // All are complete, but unpolled.
    while right.region.load_acquire_u8(slots as usize * 8 - 1).unwrap() != 7 {
        std::thread::yield_now();
    }
    let more = SendRequest::write(left.at(0..8), right.far(0..8)).wr_id(99).signaled();
    refused(left.qp.post_send(&[more]), ErrorKind::QueueFull, &["post_send", &slots.to_string()]);
    left.written(0);
    left.post(&[more]);
    refused(left.qp.post_send(&[more]), ErrorKind::QueueFull, &["post_send"]);
    (1..slots).for_each(|wr_id| left.written(wr_id.into()));
    left.written(99);
}

fn unsignaled_fill(world: &World) {
    let (left, right) = world.pair_of(&small_queue(), &ConnectOptions::default());
    let slots = left.qp.cap().max_send_wr;
    for _ in 0..slots {
        left.post(&[SendRequest::write(left.at(0..8), right.far(0..8))]);
    }
    left.silent();
    // Nothing was signaled, so nothing can ever be polled: only RESET or an error frees the slots.
    let names = ["post_send", "max_send_wr", &slots.to_string(), "signal"];
    refused(left.qp.post_send(&[SendRequest::send(Payload::EMPTY)]), ErrorKind::QueueFull, &names);
}

fn solicited(world: &World) {
    let (left, right) = world.pair();
    right.receive(1, 0..64);
    right.receive(2, 0..64);
    left.post(&[SendRequest::send(Payload::inline(b"come")).solicited().wr_id(3).signaled()]);
    left.post(&[SendRequest::write_with_immediate(Payload::inline(b"here"), right.far(8..12), 5).solicited()]);
    right.received(1, 4);
    right.notified(2, 4, 5);
    left.sent(3);
    assert_eq!(right.region.to_vec(0..12).unwrap(), b"come\0\0\0\0here");
}

fn wr_ids(world: &World) {
    let (left, right) = world.pair();
    for wr_id in [0, 1, u64::MAX, 1 << 63, 0xdead_beef_0000_0001] {
        right.receive(!wr_id, 0..8);
        left.post(&[SendRequest::send(Payload::EMPTY).wr_id(wr_id).signaled()]);
        right.received(!wr_id, 0);
        left.sent(wr_id);
    }
}
