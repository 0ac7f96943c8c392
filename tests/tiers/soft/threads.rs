//! Many threads, many devices, and objects dropped while others are in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_verbs::memory::Backing;
use rdma_verbs::types::*;
use support::node::*;

#[test]
fn threads_post_to_one_queue_pair_and_poll_one_queue() {
    let (a, b) = pair("127.78.5.1", "127.78.5.2", 4_096, PeerKind::Native);
    let done = std::sync::atomic::AtomicU64::new(0);
    const EACH: u64 = 500;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let write = Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() };
                    while a.post_send(1, write, Data::Inline(&[b"x"])).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = [RawCompletion::default(); 8];
                while done.load(Ordering::Relaxed) < 3 * EACH {
                    let count = a.cq.poll(&mut out).unwrap();
                    assert!(out[..count].iter().all(|done| done.status.is_success()));
                    done.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
    });
}

#[test]
fn many_devices_in_one_process() {
    let nodes: Vec<Node> = (1..=12).map(|index| Node::new(&format!("127.78.6.{index}"), 4_096)).collect();
    for index in 0..6 {
        connect(&nodes[index], &nodes[11 - index], PeerKind::Native);
    }
    std::thread::scope(|scope| {
        for index in 0..6 {
            let (a, b) = (&nodes[index], &nodes[11 - index]);
            scope.spawn(move || {
                for round in 0..100 {
                    b.post_recv(round, &[b.sge(0, 64)]).unwrap();
                    a.post_send(round, Operation::Send, Data::Inline(&[b"hello"])).unwrap();
                    b.success(round);
                    a.success(round);
                }
            });
        }
    });
}

#[test]
fn regions_are_registered_and_deregistered_under_traffic() {
    let (a, b) = pair("127.78.5.3", "127.78.5.4", 1 << 16, PeerKind::Native);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mr = b.pd.reg_mr(Backing::from_vec(vec![0; 4_096]), None, AccessFlags::LOCAL_WRITE).unwrap();
                mr.dereg().unwrap();
            }
        });
        for round in 0..500 {
            let write = Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() };
            a.post_send(round, write, Data::Sges(&[a.sge(0, 1 << 16)])).unwrap();
            a.success(round);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn queue_pairs_are_destroyed_in_the_middle_of_transfers() {
    for round in 0..10 {
        let (a, b) = pair("127.78.5.5", "127.78.5.6", 1 << 20, PeerKind::Native);
        for _ in 0..8 {
            let write = Operation::Write { remote_addr: BASE, rkey: b.mr.rkey() };
            a.post_send(1, write, Data::Sges(&[a.sge(0, 1 << 20)])).unwrap();
        }
        match round % 3 {
            0 => drop((b, a)),
            1 => drop((a, b)),
            _ => a.mr.dereg().unwrap(),
        }
    }
}

/// Returns the median number of polls until a send completes when one thread polls both ends: the receiver for a while,
/// then the sender. Polls are counted, not time, because the thread may lose its processor meanwhile.
fn polls_of_a_send(from: &Node, to: &Node) -> u32 {
    let mut counts = [(); 25].map(|()| {
        to.post_recv(1, &[to.sge(0, 1)]).unwrap();
        // Longer than a poller's lease, so that earlier polls do not count.
        std::thread::sleep(Duration::from_millis(10));
        let (mut out, start) = ([RawCompletion::default()], Instant::now());
        while start.elapsed() < Duration::from_millis(10) {
            assert_eq!(to.cq.poll(&mut out).unwrap(), 0);
        }
        from.post_send(2, Operation::Send, Data::Inline(&[b"x"])).unwrap();
        to.success(1);
        let (completion, polls) = from.counted_completion();
        assert_eq!((completion.wr_id, completion.status), (2, CompletionStatus::Success), "{completion:?}");
        polls
    });
    counts.sort_unstable();
    counts[counts.len() / 2]
}

/// The receiver delays its acknowledgement so that a reply of the polling thread can carry it, but not while this
/// thread waits for the acknowledgement: the second poll of the sender's queue sends it.
#[test]
fn a_thread_that_polls_both_ends_does_not_wait_for_itself() {
    let (a, b) = pair("127.78.5.13", "127.78.5.14", 4_096, PeerKind::Native);
    let polls = polls_of_a_send(&a, &b);
    assert!(polls <= 100, "{polls} polls until the send completes");
}
