//! Atomics on reliable connections.

use std::thread;

use rdma_verbs::types::AtomicCapability;
use rdma_verbs::verbs::{CompletionOpcode, ConnectOptions, ErrorKind, Payload, SendRequest};

use super::end::{ALL_ACCESS, End, Shape, create_qp, refused};
use super::suite::{ATOMIC_CAP, Capability, Scenario};
use super::world::World;

/// Atomics of peers are atomic with respect to the host's own instructions as well.
const ATOMIC_CAP_GLOBAL: Capability =
    Capability { name: "atomic_cap_global", present: |device| device.atomic_cap == AtomicCapability::Global };
const ATOMICS: &[Capability] = &[ATOMIC_CAP];

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rc/atomic/add_returns_the_value_before", "IBTA, atomics: FetchAdd", add).needs(ATOMICS),
    Scenario::new("rc/atomic/add_wraps", "IBTA, atomics: FetchAdd: unsigned, 64 bits", add_wraps).needs(ATOMICS),
    Scenario::new("rc/atomic/add_zero_reads", "IBTA, atomics: FetchAdd", add_zero).needs(ATOMICS),
    Scenario::new("rc/atomic/swap_if_equal", "IBTA, atomics: CmpSwap", swap).needs(ATOMICS),
    Scenario::new("rc/atomic/no_swap_if_different", "IBTA, atomics: CmpSwap", no_swap).needs(ATOMICS),
    Scenario::new("rc/atomic/result_in_host_order", "ibv_post_send(3): the result is in host order", order)
        .needs(ATOMICS),
    Scenario::new("rc/atomic/neighbours_stay", "IBTA, atomics: eight bytes", neighbours_stay).needs(ATOMICS),
    Scenario::new("rc/atomic/result_fills_its_region", "IBTA, memory management: bounds are inclusive", exact_result)
        .needs(ATOMICS),
    Scenario::new("rc/atomic/misaligned_is_refused", "IBTA, atomics: naturally aligned", misaligned).needs(ATOMICS),
    Scenario::new("rc/atomic/other_lengths_are_refused", "IBTA, atomics: eight bytes", lengths).needs(ATOMICS),
    Scenario::new("rc/atomic/deeper_than_max_rd_atomic", "IBTA, transport functions: waits in the send queue", deep)
        .needs(ATOMICS),
    Scenario::new("rc/atomic/in_order_with_writes", "IBTA, work request processing: ordering", with_writes)
        .needs(ATOMICS),
    Scenario::new("rc/atomic/of_many_peers_add_up", "IBTA, memory management: atomicity on one device", many_peers)
        .needs(ATOMICS),
    Scenario::new("rc/atomic/lock_by_swap", "IBTA, memory management: atomicity on one device", lock_by_swap)
        .needs(ATOMICS),
    Scenario::new("rc/atomic/with_the_hosts_own", "ibv_query_device(3) IBV_ATOMIC_GLOB", with_host)
        .needs(&[ATOMIC_CAP_GLOBAL]),
];

#[track_caller]
fn fetch_add(left: &End, right: &End, add: u64) -> (u64, u64) {
    left.post(&[SendRequest::fetch_and_add(left.at(0..8), right.far(64..72), add).wr_id(1).signaled()]);
    assert_eq!(left.done(1, CompletionOpcode::FetchAndAdd).byte_len, 8);
    (left.region.load_acquire_u64(0).unwrap(), right.region.load_acquire_u64(64).unwrap())
}

#[track_caller]
fn compare_swap(left: &End, right: &End, compare: u64, swap: u64) -> (u64, u64) {
    left.post(&[SendRequest::compare_and_swap(left.at(0..8), right.far(64..72), compare, swap).wr_id(2).signaled()]);
    assert_eq!(left.done(2, CompletionOpcode::CompareAndSwap).byte_len, 8);
    (left.region.load_acquire_u64(0).unwrap(), right.region.load_acquire_u64(64).unwrap())
}

fn add(world: &World) {
    let (left, right) = world.pair();
    right.region.store_release_u64(64, 40).unwrap();
    assert_eq!(fetch_add(&left, &right, 2), (40, 42));
    assert_eq!(fetch_add(&left, &right, 1), (42, 43));
    right.silent();
}

fn add_wraps(world: &World) {
    let (left, right) = world.pair();
    right.region.store_release_u64(64, u64::MAX).unwrap();
    assert_eq!(fetch_add(&left, &right, 3), (u64::MAX, 2));
    assert_eq!(fetch_add(&left, &right, u64::MAX), (2, 1), "adding -1 subtracts");
    right.region.store_release_u64(64, 0xffff_ffff).unwrap();
    assert_eq!(fetch_add(&left, &right, 1), (0xffff_ffff, 1 << 32), "the carry crosses the middle");
}

fn add_zero(world: &World) {
    let (left, right) = world.pair();
    right.region.store_release_u64(64, 0x0123_4567_89ab_cdef).unwrap();
    assert_eq!(fetch_add(&left, &right, 0), (0x0123_4567_89ab_cdef, 0x0123_4567_89ab_cdef));
}

fn swap(world: &World) {
    let (left, right) = world.pair();
    right.region.store_release_u64(64, 7).unwrap();
    assert_eq!(compare_swap(&left, &right, 7, u64::MAX), (7, u64::MAX));
    assert_eq!(compare_swap(&left, &right, u64::MAX, 0), (u64::MAX, 0));
}

fn no_swap(world: &World) {
    let (left, right) = world.pair();
    right.region.store_release_u64(64, 1 << 40).unwrap();
    assert_eq!(compare_swap(&left, &right, 0, 5), (1 << 40, 1 << 40));
    assert_eq!(compare_swap(&left, &right, (1 << 40) + 1, 5), (1 << 40, 1 << 40));
}

fn order(world: &World) {
    let (left, right) = world.pair();
    let value = 0x0102_0304_0506_0708_u64;
    right.region.write_at(64, &value.to_ne_bytes()).unwrap();
    fetch_add(&left, &right, 0x10);
    assert_eq!(left.region.to_vec(0..8).unwrap(), value.to_ne_bytes());
    assert_eq!(right.region.to_vec(64..72).unwrap(), (value + 0x10).to_ne_bytes());
}

fn neighbours_stay(world: &World) {
    let (left, right) = world.pair();
    left.region.write_at(0, &[0xaa; 64]).unwrap();
    right.region.write_at(0, &[0xaa; 256]).unwrap();
    fetch_add(&left, &right, 1);
    compare_swap(&left, &right, 0, 1);
    assert_eq!(left.region.to_vec(8..64).unwrap(), [0xaa; 56]);
    assert_eq!(right.region.to_vec(0..64).unwrap(), [0xaa; 64]);
    assert_eq!(right.region.to_vec(72..256).unwrap(), [0xaa; 184]);
}

fn exact_result(world: &World) {
    let (left, right) = world.pair();
    right.region.store_release_u64(64, 5).unwrap();
    // A region of exactly eight bytes: nothing beyond can be named.
    let exact = left.region(8, ALL_ACCESS);
    left.post(&[SendRequest::fetch_and_add(&exact, right.far(64..72), 1).wr_id(1).signaled()]);
    left.done(1, CompletionOpcode::FetchAndAdd);
    assert_eq!(exact.load_acquire_u64(0).unwrap(), 5);
}

fn misaligned(world: &World) {
    let (left, right) = world.pair();
    for offset in [1, 4, 7] {
        let remote = right.far(offset..offset + 8);
        let request = SendRequest::fetch_and_add(left.at(0..8), remote, 1).signaled();
        refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["remote_addr", "8"]);
    }
    assert_eq!(right.region.to_vec(0..16).unwrap(), [0; 16]);
    assert_eq!(fetch_add(&left, &right, 1), (0, 1), "nothing was posted, nothing has failed");
}

fn lengths(world: &World) {
    let (left, right) = world.pair();
    for len in [0, 4, 9, 16] {
        let request = SendRequest::compare_and_swap(left.at(0..len), right.far(64..128), 0, 1);
        refused(left.qp.post_send(&[request]), ErrorKind::InvalidArgument, &["post_send", "8"]);
    }
    assert_eq!(compare_swap(&left, &right, 0, 9), (0, 9));
}

fn deep(world: &World) {
    let options = ConnectOptions::default().max_rd_atomic(2);
    let (left, right) = world.pair_of(&Shape { max_dest_rd_atomic: Some(2), ..Shape::default() }, &options);
    let adds: Vec<_> = (0..50usize)
        .map(|number| {
            let into = left.at(number * 8..number * 8 + 8);
            SendRequest::fetch_and_add(into, right.far(64..72), 1).wr_id(number as u64).signaled()
        })
        .collect();
    left.post(&adds);
    for number in 0..50 {
        left.done(number, CompletionOpcode::FetchAndAdd);
        assert_eq!(left.region.load_acquire_u64(number as usize * 8).unwrap(), number, "executed in order");
    }
    assert_eq!(right.region.load_acquire_u64(64).unwrap(), 50);
}

fn with_writes(world: &World) {
    let (left, right) = world.pair();
    for round in 1..20u64 {
        let start = round * 1000;
        left.post(&[
            SendRequest::write(Payload::inline(&start.to_ne_bytes()), right.far(64..72)),
            SendRequest::fetch_and_add(left.at(0..8), right.far(64..72), 5),
            SendRequest::read(left.at(8..16), right.far(64..72)).wr_id(round).signaled(),
        ]);
        left.read(round, 8);
        assert_eq!(left.region.load_acquire_u64(0).unwrap(), start);
        assert_eq!(left.region.load_acquire_u64(8).unwrap(), start + 5);
    }
}

fn many_peers(world: &World) {
    const EACH: u64 = 200;
    let hub = world.end(1, &Shape::default());
    let others: Vec<_> = (0..3).map(|_| world.end(0, &Shape::default())).collect();
    let far_ends: Vec<_> = others.iter().map(|_| create_qp(&hub.pd, &hub.cq, &hub.cq, &Shape::default())).collect();
    for (near, far) in others.iter().zip(&far_ends) {
        near.qp.connect(&far.connection_info().unwrap()).unwrap();
        far.connect(&near.qp.connection_info().unwrap()).unwrap();
    }
    thread::scope(|scope| {
        for near in &others {
            let hub = &hub;
            scope.spawn(move || {
                let mut before = None;
                for number in 0..EACH {
                    left_add(near, hub, number);
                    let found = near.region.load_acquire_u64(0).unwrap();
                    assert!(before < Some(found), "the value only grows");
                    before = Some(found);
                }
            });
        }
    });
    assert_eq!(hub.region.load_acquire_u64(64).unwrap(), 3 * EACH, "no addition is lost");
}

fn left_add(near: &End, hub: &End, number: u64) {
    near.post(&[SendRequest::fetch_and_add(near.at(0..8), hub.far(64..72), 1).wr_id(number).signaled()]);
    near.done(number, CompletionOpcode::FetchAndAdd);
}

fn lock_by_swap(world: &World) {
    let (left, right) = world.pair();
    assert_eq!(compare_swap(&left, &right, 0, 1), (0, 1), "taken");
    assert_eq!(compare_swap(&left, &right, 0, 1), (1, 1), "not taken twice");
    left.post(&[SendRequest::write(Payload::inline(&[0; 8]), right.far(64..72))]);
    assert_eq!(compare_swap(&left, &right, 0, 1), (0, 1), "taken again");
}

fn with_host(world: &World) {
    const EACH: u64 = 300;
    let (left, right) = world.pair();
    thread::scope(|scope| {
        scope.spawn(|| (0..EACH).for_each(|number| left_add(&left, &right, number)));
        scope.spawn(|| {
            for _ in 0..EACH {
                right.region.fetch_add_u64(64, 1).unwrap();
                thread::yield_now();
            }
        });
    });
    assert_eq!(right.region.load_acquire_u64(64).unwrap(), 2 * EACH, "no addition is lost");
}
