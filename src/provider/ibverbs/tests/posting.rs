//! Classic and extended posting and polling, and the handling of requests if the library fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::provider::ibverbs::sys::{QpCap, Wc};
use crate::provider::{CompletionQueueInit, DatagramTarget};
use crate::types::{CompletionOpcode, CompletionStatus, FlushFlags, MemoryWindowType, Rkey};

fn extended() -> Machine {
    Machine { send_ops: 0x1bff, ..Machine::default() }
}

fn wc(wr_id: u64) -> Wc {
    Wc { wr_id, ..Wc::default() }
}

/// Posts one request, and returns the library's log.
fn posted_calls(world: &World, qp: &dyn QueuePair, operation: Operation, data: Data<'_>) -> Vec<String> {
    world.fake.log();
    qp.send_begin();
    qp.send_push(&request(1, operation, data)).unwrap();
    qp.send_end(BatchEnd::Publish).unwrap();
    // It completes at once.
    world.fake.complete(0, wc(*world.fake.sent().last().unwrap()));
    assert_eq!(world.poll().len(), 1);
    world.fake.log()
}

#[test]
fn extended_posting_builds_each_operation() {
    let world = World::new(extended());
    let (qp, mr) = (world.connected(), world.region(AccessFlags::LOCAL_WRITE).unwrap());
    let (remote_addr, rkey, result) = (0x5000, Rkey(0x99), [entry(&*mr, 8)]);
    let bytes: &[&[u8]] = &[b"ab", b"cd"];
    let word = 77u64.to_ne_bytes();
    let word: &[&[u8]] = &[&word];
    let cases: Vec<(Operation, Data<'_>, &[&str])> = vec![
        (Operation::Send, Data::Inline(bytes), &["wr_send flags 10", "  inline abcd"]),
        (Operation::Send, Data::Sges(&[]), &["wr_send flags 2", "  []"]),
        (Operation::SendWithImmediate(0x01020304), Data::Inline(&[]), &["wr_send_imm 0x1020304 flags 2", "  []"]),
        (Operation::SendWithInvalidate(rkey), Data::Sges(&[]), &["wr_send_inv 0x99 flags 2", "  []"]),
        (Operation::Write { remote_addr, rkey }, Data::Sges(&[]), &["wr_rdma_write 0x99 0x5000 flags 2", "  []"]),
        (
            Operation::WriteWithImmediate { remote_addr, rkey, immediate: 5 },
            Data::Sges(&[]),
            &["wr_rdma_write_imm 0x99 0x5000 0x5 flags 2", "  []"],
        ),
        (Operation::Read { remote_addr, rkey }, Data::Sges(&[]), &["wr_rdma_read 0x99 0x5000 flags 2", "  []"]),
        (
            Operation::CompareAndSwap { remote_addr, rkey, compare: 1, swap: 2 },
            Data::Sges(&result),
            &["wr_atomic_cmp_swp 0x99 0x5000 1 2 flags 2", "  [8]"],
        ),
        (
            Operation::FetchAndAdd { remote_addr, rkey, add: 3 },
            Data::Sges(&result),
            &["wr_atomic_fetch_add 0x99 0x5000 3 flags 2", "  [8]"],
        ),
        (Operation::LocalInvalidate(rkey), Data::Sges(&[]), &["wr_local_inv 0x99 flags 2"]),
        (
            Operation::AtomicWrite { remote_addr, rkey },
            Data::Inline(word),
            &["wr_atomic_write 0x99 0x5000 77 flags 10"],
        ),
        (
            Operation::Flush { remote_addr, rkey, length: 64, flags: FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION },
            Data::Sges(&[]),
            &["wr_flush 0x99 0x5000 64 kind 1 level 1 flags 2"],
        ),
    ];
    for (operation, data, expected) in cases {
        let expected = [&["wr_start"], expected, &["wr_complete"]].concat();
        assert_eq!(posted_calls(&world, &*qp, operation, data), expected, "{operation:?}");
    }
    drop((qp, mr));
    world.end();
}

#[test]
fn sge_lists_use_classic_posting() {
    let world = World::new(extended());
    let (qp, mr) = (world.connected(), world.region(AccessFlags::LOCAL_WRITE).unwrap());
    let list = [entry(&*mr, 5), entry(&*mr, 0), entry(&*mr, 6)];
    let log = posted_calls(&world, &*qp, Operation::SendWithImmediate(7), Data::Sges(&list));
    assert_eq!(log, ["post_send", "  opcode 3 flags 2 imm 0x7 [5, 6]"]);
    assert_eq!(posted_calls(&world, &*qp, Operation::Send, Data::Sges(&list[..1]))[1..3], ["wr_send flags 2", "  [5]"]);
}

#[test]
fn type_2_windows_are_bound_by_extended_posting() {
    let world = World::new(extended());
    let (qp, mr) = (world.connected(), world.region(AccessFlags::MEMORY_WINDOW_BIND).unwrap());
    let window = world.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
    let rkey = Rkey(window.rkey().0 | 0x5a);
    let operation =
        Operation::BindMemoryWindow { rkey, lkey: mr.lkey(), addr: 0x10, length: 8, access: AccessFlags::REMOTE_READ };
    let log = posted_calls(&world, &*qp, operation, Data::Sges(&[]));
    assert_eq!(log[1], format!("wr_bind_mw type 2 {:#x} 0x10 8 access 0x4 flags 2", rkey.0));
    assert_eq!(window.rkey(), rkey);
    // A bind that is not posted does not bind.
    world.fake.fail("wr_complete", libc::ENOMEM);
    let again = Operation::BindMemoryWindow {
        rkey: Rkey(rkey.0 + 1),
        lkey: mr.lkey(),
        addr: 0x10,
        length: 8,
        access: AccessFlags::REMOTE_READ,
    };
    qp.send_begin();
    qp.send_push(&request(1, again, Data::Sges(&[]))).unwrap();
    refused(qp.send_end(BatchEnd::Publish), ErrorKind::QueueFull, &[]);
    assert_eq!(window.rkey(), rkey);
}

#[test]
fn an_address_handle_is_held_until_its_datagram_completes() {
    for machine in [Machine::default(), extended()] {
        let world = World::new(machine);
        let qp = world.datagrams();
        let handle = world.pd.create_ah(&AddressVector::new(PEER, 1)).unwrap();
        let target = DatagramTarget {
            handle: &*handle,
            remote_qpn: Qpn::new(8),
            remote_qkey: Qkey(0x11),
            long_fails_later: false,
        };
        qp.send_begin();
        let flags = SendFlags::empty();
        let first = SendRequest { wr_id: 1, operation: Operation::Send, flags, data: Data::Sges(&[]) };
        qp.send_push_to(&first, &target).unwrap();
        qp.send_end(BatchEnd::Publish).unwrap();
        drop(handle);
        assert!(world.fake.live().contains(&("ah", 1)), "an adapter may still read it");
        drop(qp);
        world.end();
    }
}

#[test]
fn a_driver_without_the_extended_interface_gets_classic_posts() {
    let world = World::new(Machine { ignores_send_ops: true, ..extended() });
    let qp = world.connected();
    assert_eq!(posted_calls(&world, &*qp, Operation::Send, Data::Sges(&[]))[0], "post_send");
    // The queue pairs of unsuccessful attempts are destroyed.
    assert!(world.fake.live().contains(&("qp", 1)));
}

#[test]
fn reported_sizes_are_limited_to_max_qp_wr() {
    let most = u32::MAX;
    let (max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data) = (most, most, 8, 8, 64);
    let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    let world = World::new(Machine { cap: Some(cap), ..Machine::default() });
    let qp = world.connected();
    let found = qp.query().unwrap().cap;
    assert_eq!((found.max_send_wr, found.max_recv_wr, found.max_send_sge), (1024, 1024, 8));
    let all: Vec<u64> = (0..1024).collect();
    post(&*qp, &all).unwrap();
    refused(post(&*qp, &[1]), ErrorKind::QueueFull, &["1024"]);
    drop(qp);
    world.end();
}

#[test]
fn completions_carry_the_programs_wr_ids() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    post(&*qp, &[10, 20]).unwrap();
    post_recv(&*qp, &[30]).unwrap();
    let (sent, received) = (world.fake.sent(), world.fake.received());
    world.fake.complete(0, wc(u64::MAX)); // of no request
    world.fake.complete(0, wc(sent[0]));
    world.fake.complete(0, wc(sent[0])); // reported twice
    let (opcode, wc_flags, imm_data) = (128, 3, 0x01020304u32.to_be());
    let message = Wc { opcode, wc_flags, imm_data, byte_len: 9, src_qp: 77, qp_num: 0xffff_ffff, ..wc(received[0]) };
    world.fake.complete(0, message);
    // The other fields of a failed completion are meaningless.
    world.fake.complete(0, Wc { status: 12, opcode: 128, byte_len: 5, ..wc(sent[1]) });
    let found = world.poll();
    assert_eq!(found.iter().map(|one| one.wr_id).collect::<Vec<_>>(), [10, 30, 20]);
    assert_eq!(found.iter().map(|one| one.retired).collect::<Vec<_>>(), [1, 1, 2]);
    assert!(found.iter().all(|one| one.qpn == qp.qpn()));
    assert_eq!((found[1].opcode, found[1].byte_len), (CompletionOpcode::Receive, 9));
    assert_eq!(found[1].immediate_or_key, 0x01020304);
    assert_eq!((found[2].status, found[2].byte_len), (CompletionStatus::RetryExceededError, 0));
}

#[test]
fn a_failed_poll_is_reported() {
    let world = World::new(Machine::default());
    world.fake.fail("poll_cq", 1);
    refused(world.cq.poll(&mut [RawCompletion::default(); 4]), ErrorKind::System, &["poll_cq"]);
}

#[test]
fn completions_from_before_reset_are_dropped() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    post(&*qp, &[10]).unwrap();
    post_recv(&*qp, &[11]).unwrap();
    let old = [world.fake.sent(), world.fake.received()].concat();
    qp.modify(&to(QueuePairState::Reset)).unwrap();
    refused(post(&*qp, &[12]), ErrorKind::InvalidState, &["RESET"]);
    connect(&*qp, AddressVector::new(PEER, 1)).unwrap();
    post(&*qp, &[20]).unwrap();
    old.into_iter().for_each(|wr_id| world.fake.complete(0, wc(wr_id)));
    world.fake.complete(0, wc(*world.fake.sent().last().unwrap()));
    let found = world.poll();
    assert_eq!(found.iter().map(|one| (one.wr_id, one.retired)).collect::<Vec<_>>(), [(20, 2)]);
}

#[test]
fn a_list_refused_at_its_first_request_is_not_posted() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    for (errno, kind) in [(libc::ENOMEM, ErrorKind::QueueFull), (libc::EINVAL, ErrorKind::InvalidArgument)] {
        world.fake.fail("post_send", errno);
        world.fake.fail_at(Some(0));
        refused(post(&*qp, &[1, 2]), kind, &[]);
    }
    world.fake.fail("post_send", 0);
    post(&*qp, &[3]).unwrap();
    world.fake.complete(0, wc(world.fake.sent()[0]));
    assert_eq!(world.poll().iter().map(|one| (one.wr_id, one.retired)).collect::<Vec<_>>(), [(3, 1)]);
}

/// The machine asserts that the library's critical sections do not overlap.
#[test]
fn posts_and_polls_of_threads_do_not_overlap() {
    let (max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data) = (1024, 4, 4, 4, 16);
    let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    let mut machine = Machine { cap: Some(cap), ..extended() };
    (machine.attributes.completion_timestamp_mask, machine.attributes.hca_core_clock) = (u64::MAX, 1_000_000);
    let mut world = World::new(machine);
    let init = CompletionQueueInit { cqe: 1024, timestamps: true, ..CompletionQueueInit::default() };
    world.cq = world.context.create_cq_with(&init).unwrap();
    let qp = world.connected();
    let polled = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..300).for_each(|wr_id| post(&*qp, &[wr_id]).unwrap()));
        }
    });
    world.fake.sent().into_iter().for_each(|wr_id| world.fake.complete_at(1, wc(wr_id), 1));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| while polled.fetch_add(world.poll().len() as u64, Ordering::Relaxed) < 600 {});
        }
    });
    assert_eq!(polled.load(Ordering::Relaxed), 600);
}

/// Nothing is posted to a queue pair in RESET, where an adapter would keep it for later, and every posted request is
/// counted.
#[test]
fn reset_and_posts_exclude_each_other() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    world.fake.slow_down();
    let (done, accepted) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let posted = post(&*qp, &[1]).is_ok();
                accepted.fetch_add(posted.into(), Ordering::Relaxed);
            }
        });
        for _ in 0..300 {
            qp.modify(&to(QueuePairState::Reset)).unwrap();
            connect(&*qp, AddressVector::new(PEER, 1)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!world.fake.log().contains(&"posted in RESET".to_owned()));
    qp.modify(&to(QueuePairState::Reset)).unwrap();
    connect(&*qp, AddressVector::new(PEER, 1)).unwrap();
    post(&*qp, &[7]).unwrap();
    let all = world.fake.sent();
    assert_eq!(all.len() as u64, accepted.load(Ordering::Relaxed) + 1);
    let reported: Vec<(u64, u64)> = all
        .iter()
        .flat_map(|wr_id| {
            world.fake.complete(0, wc(*wr_id));
            world.poll()
        })
        .map(|one| (one.wr_id, one.retired.into()))
        .collect();
    assert_eq!(reported, [(7, all.len() as u64)], "requests posted before RESET are forgotten");
}

/// Some requests may be in flight when the caller gets its buffers back.
#[test]
fn a_partial_post_destroys_the_queue_pair() {
    for bad in [Some(1), None] {
        let world = World::new(Machine::default());
        let qp = world.connected();
        world.fake.fail("post_send", libc::ENOMEM);
        world.fake.fail_at(bad);
        refused(post(&*qp, &[1, 2]), ErrorKind::ResourceLimit, &["destroyed", "in part"]);
        assert_eq!(world.fake.live().iter().find(|(kind, _)| *kind == "qp"), None);
        world.fake.complete(0, wc(world.fake.sent()[0]));
        assert_eq!(world.poll(), []);
        refused(post(&*qp, &[3]), ErrorKind::InvalidState, &["destroyed"]);
        drop(qp);
        world.end();
    }
}

/// A queue pair whose requests may be in flight is destroyed; a shared queue stays, because others use it.
#[test]
fn shared_receives_possibly_in_flight_stay() {
    for wr_ids in [&[1][..], &[1, 2]] {
        let world = World::new(Machine::default());
        let srq = world.shared_queue().unwrap();
        world.fake.fail("post_recv", libc::EIO);
        world.fake.fail_at(None);
        post_srq_recv(&*srq, wr_ids).unwrap();
        for wr_id in world.fake.received() {
            world.fake.complete(0, wc(wr_id));
        }
        assert_eq!(world.poll().iter().map(|one| one.wr_id).collect::<Vec<_>>(), wr_ids);
        world.fake.fail_at(Some(0));
        refused(post_srq_recv(&*srq, wr_ids), ErrorKind::System, &[]);
        drop(srq);
        world.end();
    }
}

/// Adapters remove the completions of a queue pair that is destroyed, and libraries may keep the slots of its receives.
#[test]
fn batches_do_not_rely_on_slots_of_lost_receives() {
    let world = World::new(Machine::default());
    let srq = world.shared_queue().unwrap();
    let most = srq.query().unwrap().max_wr;
    for wr_id in 0..most.into() {
        post_srq_recv(&*srq, &[wr_id]).unwrap();
    }
    refused(post_srq_recv(&*srq, &[100, 101]), ErrorKind::QueueFull, &["16"]);
    // The last of them completes at another queue pair: the others may be lost.
    world.fake.complete(0, wc(*world.fake.received().last().unwrap()));
    assert_eq!(world.poll().len(), 1);
    refused(post_srq_recv(&*srq, &[100, 101]), ErrorKind::QueueFull, &["16"]);
    post_srq_recv(&*srq, &[100]).unwrap();
    drop(srq);
    world.end();
}

/// The adapter was removed from the machine: its queue pairs cannot be destroyed either.
#[test]
fn requests_possibly_in_flight_stay_if_destroy_fails() {
    let world = World::new(Machine::default());
    let qp = world.connected();
    for (verb, post) in [("post_send", post as fn(&dyn QueuePair, &[u64]) -> _), ("post_recv", post_recv)] {
        world.fake.fail(verb, libc::EIO);
        world.fake.fail_at(None);
        world.fake.fail("destroy_qp", libc::EIO);
        post(&*qp, &[1, 2]).unwrap();
        world.fake.fail(verb, 0);
    }
    // Completions, if any arrive, are still reported, and counting goes on.
    world.fake.complete(0, Wc { status: 5, ..wc(world.fake.sent()[1]) });
    world.fake.complete(0, Wc { status: 5, ..wc(world.fake.received()[1]) });
    assert_eq!(world.poll().iter().map(|one| (one.wr_id, one.retired)).collect::<Vec<_>>(), [(2, 2), (2, 2)]);
    world.fake.fail("destroy_qp", 0);
    qp.destroy().unwrap();
    drop(qp);
    world.end();
}
