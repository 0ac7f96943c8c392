//! Threads that post, poll, connect and destroy concurrently.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rdma_verbs::verbs::{Completion, ConnectOptions, ErrorKind, Payload, SendRequest};

use super::bytes::{check, fill};
use super::end::{ALL_ACCESS, End, Shape, create_qp, patience};
use super::suite::Scenario;
use super::world::{World, connect};

const THREAD_SAFE: &str = "IBTA, verbs: verbs may be called at once; rdma-core thread safety";

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("threads/post_send/one_queue_pair", THREAD_SAFE, post_send_at_once),
    Scenario::new("threads/post_recv/one_queue_pair", THREAD_SAFE, post_recv_at_once),
    Scenario::new("threads/poll/each_completion_once", THREAD_SAFE, poll_at_once),
    Scenario::new("threads/ping_pong/one_thread_an_end", THREAD_SAFE, ping_pong),
    Scenario::new("threads/batch/others_wait_for_it", "API: SendBatch holds the queue", batch_holds),
    Scenario::new("threads/queue_pairs/many_on_one_queue", THREAD_SAFE, many_on_one_queue),
    Scenario::new("threads/connect/at_once", THREAD_SAFE, connect_at_once),
    Scenario::new("threads/destroy/while_others_poll", THREAD_SAFE, destroy_while_polling),
    Scenario::new("threads/modify/error_while_others_post", THREAD_SAFE, error_while_posting),
    Scenario::new("threads/reg_mr/while_traffic_flows", THREAD_SAFE, register_while_writing),
    Scenario::new("threads/handles/move_between_threads", "API: objects are Send", move_between),
];

/// Posts a request, waiting for a free slot.
fn post_patiently(end: &End, request: SendRequest<'_>) {
    let start = Instant::now();
    while let Err(error) = end.qp.post_send(&[request]) {
        assert_eq!(error.kind(), ErrorKind::QueueFull, "{error}");
        assert!(start.elapsed() < patience(), "the queue stays full");
        thread::yield_now();
    }
}

fn post_send_at_once(world: &World) {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    let (left, right) = world.pair();
    let mut seen = HashSet::new();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (left, right) = (&left, &right);
            scope.spawn(move || {
                for step in 0..EACH {
                    let (value, offset) = (number * EACH + step, number as usize * 8);
                    let bytes = value.to_ne_bytes();
                    let request = SendRequest::write(Payload::inline(&bytes), right.far(offset..offset + 8));
                    post_patiently(left, request.wr_id(value).signaled());
                }
            });
        }
        let mut last = [None; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let completion = left.next();
            assert!(completion.is_success() && seen.insert(completion.wr_id()), "{completion:?}");
            let of_thread = &mut last[(completion.wr_id() / EACH) as usize];
            assert!(*of_thread < Some(completion.wr_id()), "a thread's requests complete in its order");
            *of_thread = Some(completion.wr_id());
        }
    });
    left.silent();
    for number in 0..THREADS {
        let value = right.region.load_acquire_u64(number as usize * 8).unwrap();
        assert_eq!(value, number * EACH + EACH - 1, "the last one of each thread is there");
    }
}

fn post_recv_at_once(world: &World) {
    const EACH: u64 = 20;
    let (left, right) = world.pair();
    thread::scope(|scope| {
        for number in 0..4 {
            let right = &right;
            scope.spawn(move || (0..EACH).for_each(|step| right.receive(number * EACH + step, 0..8)));
        }
    });
    (0..4 * EACH).for_each(|_| left.post(&[SendRequest::send(Payload::inline(b"in"))]));
    let ids: HashSet<u64> = (0..4 * EACH).map(|_| right.next()).map(|completion| completion.wr_id()).collect();
    assert_eq!(ids.len() as u64, 4 * EACH, "each receive completes once");
    right.silent();
}

fn poll_at_once(world: &World) {
    const ALL: u64 = 600;
    let (left, right) = world.pair();
    let (seen, count) = (Mutex::new(HashSet::new()), AtomicU64::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut out = [Completion::default(); 5];
                while count.load(Ordering::Acquire) < ALL && start.elapsed() < patience() {
                    let got = left.cq.poll(&mut out).unwrap();
                    for completion in &out[..got] {
                        assert!(completion.is_success() && seen.lock().unwrap().insert(completion.wr_id()));
                        count.fetch_add(1, Ordering::AcqRel);
                    }
                    thread::yield_now();
                }
            });
        }
        for wr_id in 0..ALL {
            post_patiently(&left, SendRequest::write(left.at(0..8), right.far(0..8)).wr_id(wr_id).signaled());
        }
    });
    assert_eq!(count.into_inner(), ALL);
    left.silent();
}

fn ping_pong(world: &World) {
    const ROUNDS: u64 = 300;
    let (left, right) = world.pair();
    let play = |end: &End, begins: bool| {
        let mut early = HashSet::new();
        // A message may arrive before the completion of the send that caused it is polled.
        let mut wait_for = |wr_id| {
            while !early.remove(&wr_id) {
                let completion = end.next();
                assert!(completion.is_success() && early.insert(completion.wr_id()), "{completion:?}");
            }
        };
        for round in 0..ROUNDS {
            let word = round.to_ne_bytes();
            let ball = SendRequest::send(Payload::inline(&word)).wr_id(round + 1000).signaled();
            if begins {
                end.receive(round, 0..8);
                end.post(&[ball]);
                wait_for(round);
                assert_eq!(end.region.load_acquire_u64(0).unwrap(), round);
            } else {
                wait_for(round);
                assert_eq!(end.region.load_acquire_u64(0).unwrap(), round);
                end.receive(round + 1, 0..8);
                end.post(&[ball]);
            }
            wait_for(round + 1000);
        }
    };
    right.receive(0, 0..8);
    thread::scope(|scope| {
        scope.spawn(|| play(&right, false));
        play(&left, true);
    });
}

fn batch_holds(world: &World) {
    let (left, right) = world.pair();
    let posted = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut batch = left.qp.send_batch().unwrap();
        let other = scope.spawn(|| {
            left.post(&[SendRequest::write(Payload::inline(&[2]), right.far(0..1)).wr_id(3).signaled()]);
            posted.store(true, Ordering::Release);
        });
        for wr_id in 0..3 {
            batch.push(&SendRequest::write(Payload::inline(&[1]), right.far(0..1)).wr_id(wr_id).signaled()).unwrap();
            thread::sleep(super::end::SILENCE / 4);
        }
        assert!(!posted.load(Ordering::Acquire), "the other thread waits for the batch");
        batch.post().unwrap();
        other.join().unwrap();
    });
    (0..4).for_each(|wr_id| left.written(wr_id));
    assert_eq!(right.region.to_vec(0..1).unwrap(), [2]);
}

fn many_on_one_queue(world: &World) {
    const PAIRS: usize = 8;
    const EACH: u64 = 50;
    let (hub, far) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let near = create_qp(&hub.pd, &hub.cq, &hub.cq, &Shape::default());
            let other = create_qp(&far.pd, &far.cq, &far.cq, &Shape::default());
            near.connect(&other.connection_info().unwrap()).unwrap();
            other.connect(&near.connection_info().unwrap()).unwrap();
            (near, other)
        })
        .collect();
    thread::scope(|scope| {
        for (number, (near, _)) in pairs.iter().enumerate() {
            let (hub, far) = (&hub, &far);
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    let to = far.far(number * 8..number * 8 + 8);
                    near.post_send(&[SendRequest::write(hub.at(0..8), to).wr_id(wr_id).signaled()]).unwrap();
                }
            });
        }
        let mut next = [0; PAIRS];
        for _ in 0..PAIRS as u64 * EACH {
            let completion = hub.next();
            let number = pairs.iter().position(|(near, _)| near.qpn() == completion.qpn()).expect("one of them");
            assert!(completion.is_success());
            assert_eq!(completion.wr_id(), next[number], "each queue pair in its own order");
            next[number] += 1;
        }
    });
    hub.silent();
    far.silent();
}

fn connect_at_once(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    thread::scope(|scope| {
        for number in 0..4usize {
            let (left, right) = (&left, &right);
            scope.spawn(move || {
                for round in 0..5u64 {
                    let near_cq = left.context.create_cq(16).unwrap();
                    let near = create_qp(&left.pd, &near_cq, &near_cq, &Shape::default());
                    let far = create_qp(&right.pd, &right.cq, &right.cq, &Shape::default());
                    near.connect(&far.connection_info().unwrap()).unwrap();
                    far.connect(&near.connection_info().unwrap()).unwrap();
                    let value = number as u64 * 100 + round;
                    let to = right.far(number * 8..number * 8 + 8);
                    near.post_send(&[SendRequest::write(Payload::inline(&value.to_ne_bytes()), to).signaled()])
                        .unwrap();
                    assert!(super::end::next(&near_cq).is_success());
                    assert_eq!(right.region.load_acquire_u64(number * 8).unwrap(), value);
                }
            });
        }
    });
}

fn destroy_while_polling(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for end in [&left, &right] {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    end.cq.poll(&mut [Completion::default(); 4]).unwrap();
                    thread::yield_now();
                }
            });
        }
        for _ in 0..20 {
            let near = create_qp(&left.pd, &left.cq, &left.cq, &Shape::default());
            let far = create_qp(&right.pd, &right.cq, &right.cq, &Shape::default());
            near.connect(&far.connection_info().unwrap()).unwrap();
            far.connect(&near.connection_info().unwrap()).unwrap();
            let write = SendRequest::write(left.at(0..5000), right.far(0..5000)).signaled();
            near.post_send(&[write; 8]).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    left.silent();
    right.silent();
}

fn error_while_posting(world: &World) {
    let (left, right) = world.pair();
    let posted = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..2 {
            let (left, right, posted) = (&left, &right, &posted);
            scope.spawn(move || {
                for step in 0..50 {
                    let write = SendRequest::write(left.at(0..8), right.far(0..8));
                    left.post(&[write.wr_id(number * 1000 + step).signaled()]);
                    posted.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        while posted.load(Ordering::Acquire) < 20 {
            thread::yield_now();
        }
        left.to_error();
    });
    let mut failed = false;
    for _ in 0..100 {
        let completion = left.next();
        assert!(!failed || !completion.is_success(), "nothing succeeds after the first one flushed");
        failed |= !completion.is_success();
    }
    left.silent();
}

fn register_while_writing(world: &World) {
    let (left, right) = world.pair();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0..100 {
                let region = right.region(4096, ALL_ACCESS);
                fill(&region, 0, 4096, seed);
                check(&region, 0, 4096, seed);
            }
            done.store(true, Ordering::Release);
        });
        let mut round = 0;
        while !done.load(Ordering::Acquire) {
            round += 1;
            left.post(&[SendRequest::write(left.at(0..1000), right.far(0..1000)).wr_id(round).signaled()]);
            left.written(round);
        }
    });
}

fn move_between(world: &World) {
    let (left, right) = (world.end(0, &Shape::default()), world.end(1, &Shape::default()));
    connect(&left, &right, &ConnectOptions::default());
    let left = thread::spawn(move || {
        left.post(&[SendRequest::send(Payload::inline(b"moved")).wr_id(1).signaled()]);
        left
    })
    .join()
    .unwrap();
    right.receive(2, 0..8);
    right.received(2, 5);
    left.sent(1);
    thread::spawn(move || drop(left)).join().unwrap();
}
