//! Completion channels: blocking, by descriptor, in an asynchronous runtime; asynchronous events.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_verbs::provider::ErrorKind;
use rdma_verbs::types::*;
use support::PATIENCE;
use support::node::*;
use tokio::io::unix::AsyncFd;

#[test]
fn ping_pong_by_sleeping() {
    let (a, b) = pair("127.78.4.1", "127.78.4.2", 4_096, PeerKind::Native);
    b.post_recv(0, &[b.sge(0, 64)]).unwrap();
    let server = std::thread::spawn(move || {
        let (mut round, mut answered) = (0u64, 0);
        while answered < 500 {
            let done = b.completion_by_event();
            assert!(done.status.is_success(), "{done:?}");
            if done.opcode == CompletionOpcode::Send {
                answered += 1;
                continue;
            }
            b.post_recv(0, &[b.sge(0, 64)]).unwrap();
            b.post_send(1, Operation::Send, Data::Inline(&[&round.to_le_bytes()])).unwrap();
            round += 1;
        }
        b
    });
    for round in 0..500u64 {
        a.post_recv(1, &[a.sge(0, 64)]).unwrap();
        a.post_send(2, Operation::Send, Data::Inline(&[b"ping"])).unwrap();
        let seen = [a.completion_by_event(), a.completion_by_event()];
        assert!(seen.iter().all(|done| done.status.is_success()), "{seen:?}");
        assert_eq!(a.region().load_acquire_u64(0).unwrap(), round);
    }
    drop(server.join().unwrap());
}

#[test]
fn channel_is_quiet_when_nothing_happens() {
    let (a, _b) = pair("127.78.4.3", "127.78.4.4", 64, PeerKind::Native);
    a.cq.req_notify(false).unwrap();
    assert_eq!(a.channel.poll_event(), None);
    assert_eq!(a.channel.wait_event(Some(Duration::from_millis(30))).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn solicited_only_sleeps_through_the_others() {
    let (a, b) = pair("127.78.4.5", "127.78.4.6", 64, PeerKind::Native);
    (0..2).for_each(|_| b.post_recv(1, &[]).unwrap());
    b.cq.req_notify(true).unwrap();
    let send = |flags| {
        a.qp.send_begin();
        let data = Data::Inline(&[]);
        a.qp.send_push(&SendRequest { wr_id: 2, operation: Operation::Send, flags, data }).unwrap();
        a.qp.send_end(BatchEnd::Publish).unwrap();
    };
    send(SendFlags::SIGNALED);
    a.success(2);
    assert_eq!(b.channel.wait_event(Some(Duration::from_millis(30))).unwrap_err().kind(), ErrorKind::TimedOut);
    send(SendFlags::SIGNALED | SendFlags::SOLICITED);
    assert_eq!(b.channel.wait_event(Some(PATIENCE)).unwrap(), 77);
}

/// Newer versions of the runtime require a promise that the descriptor stays open; these tests keep it open.
#[allow(deprecated)]
fn watch<T: std::os::fd::AsRawFd>(descriptor: T) -> AsyncFd<T> {
    AsyncFd::new(descriptor).unwrap()
}

async fn completion(node: &Node, descriptor: &AsyncFd<BorrowedFd<'_>>) -> RawCompletion {
    let mut out = [RawCompletion::default()];
    loop {
        node.cq.req_notify(false).unwrap();
        if node.cq.poll(&mut out).unwrap() > 0 {
            return out[0];
        }
        while node.channel.poll_event().is_none() {
            let mut ready = descriptor.readable().await.unwrap();
            if node.channel.poll_event().is_some() {
                break;
            }
            ready.clear_ready();
        }
    }
}

async fn ping(node: &Node, rounds: u64) {
    let descriptor = watch(node.channel.fd());
    for round in 0..rounds {
        node.post_recv(1, &[node.sge(0, 64)]).unwrap();
        node.post_send(2, Operation::Send, Data::Inline(&[&round.to_le_bytes()])).unwrap();
        for _ in 0..2 {
            let done = completion(node, &descriptor).await;
            assert!(done.status.is_success(), "{done:?}");
        }
    }
}

#[test]
fn ping_pong_in_an_asynchronous_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = pair("127.78.4.7", "127.78.4.8", 4_096, PeerKind::Native);
    // Both post a receive and a send, then wait for the other's message.
    let both = async {
        tokio::join!(ping(&a, 500), ping(&b, 500));
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, both).await }).unwrap();
}

#[test]
fn descriptor_is_readable_after_work_of_the_engine_alone() {
    // The peer is silent: only the engine's own deadline leads to the completion.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = (Node::new("127.78.4.9", 64), Node::new("127.78.4.10", 64));
    a.try_connect(&b, PeerKind::Standard).unwrap();
    a.post_send(1, Operation::Send, Data::Inline(&[])).unwrap();
    let waiting = async {
        let descriptor = watch(a.channel.fd());
        completion(&a, &descriptor).await
    };
    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, waiting).await }).unwrap();
    assert_eq!(done.status, CompletionStatus::RetryExceededError);
}

#[test]
fn asynchronous_events_are_readable_until_taken() {
    let (a, b) = pair("127.78.4.11", "127.78.4.12", 64, PeerKind::Native);
    let is_readable = || {
        let descriptor: BorrowedFd<'_> = b.context.async_fd();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let descriptor = watch(descriptor.as_fd());
            tokio::time::timeout(Duration::from_millis(20), descriptor.readable()).await.is_ok()
        })
    };
    assert!(!is_readable());
    let write = Operation::Write { remote_addr: BASE, rkey: Rkey(b.mr.rkey().0 ^ 1) };
    a.post_send(1, write, Data::Inline(&[b"x"])).unwrap();
    assert_eq!(a.completion().status, CompletionStatus::RemoteAccessError);
    assert!(is_readable());
    assert_eq!(b.context.poll_async_event(), Some(AsyncEvent::QueuePairAccessError(b.qp.qpn())));
    assert_eq!(b.context.poll_async_event(), None);
    assert!(!is_readable());
}

#[test]
fn moderated_queue_signals_many_at_once_and_the_last_ones_in_time() {
    let (a, b) = pair("127.78.4.13", "127.78.4.14", 64, PeerKind::Native);
    b.cq.moderate(4, Duration::from_millis(20)).unwrap();
    (0..6).for_each(|_| b.post_recv(1, &[]).unwrap());
    b.cq.req_notify(false).unwrap();
    for _ in 0..4 {
        a.post_send(2, Operation::Send, Data::Inline(&[])).unwrap();
        a.success(2);
    }
    assert_eq!(b.channel.wait_event(Some(PATIENCE)).unwrap(), 77);
    for _ in 0..4 {
        b.success(1);
    }
    b.cq.req_notify(false).unwrap();
    let start = std::time::Instant::now();
    a.post_send(2, Operation::Send, Data::Inline(&[])).unwrap();
    a.success(2);
    assert_eq!(b.channel.wait_event(Some(PATIENCE)).unwrap(), 77);
    assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
}

/// Two threads post, one sleeps between completions without a timeout of its own: a lost event would leave it asleep
/// until the deadline.
#[test]
fn no_event_is_lost_under_stress() {
    let requests = 20_000_u64;
    for moderated in [false, true] {
        let (a, b) = pair("127.78.4.15", "127.78.4.16", 4_096, PeerKind::Native);
        if moderated {
            a.cq.moderate(5, Duration::from_micros(200)).unwrap();
        }
        let post = |offset: u64| {
            for number in 0..requests / 2 {
                let write = Operation::Write { remote_addr: BASE + offset, rkey: b.mr.rkey() };
                // A full queue: the other side has to poll first.
                while a.post_send(number, write, Data::Inline(&[b"stress"])).is_err() {
                    std::thread::yield_now();
                }
                if number % 7 == 0 {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| post(0));
            scope.spawn(|| post(64));
            let (mut done, mut sleeps) = (0, 0);
            while done < requests {
                let mut out = [RawCompletion::default(); 16];
                a.cq.req_notify(false).unwrap();
                let count = a.cq.poll(&mut out).unwrap();
                assert!(out[..count].iter().all(|completion| completion.status.is_success()));
                done += count as u64;
                if count == 0 {
                    sleeps += 1;
                    assert_eq!(a.channel.wait_event(Some(PATIENCE)).unwrap(), 77, "after {done}");
                }
            }
            assert!(sleeps > 0);
        });
    }
}

/// The shard that lost a completion fails its own queue pairs; polling fails those of the other shards.
#[test]
fn overflow_ends_the_queue_pairs_of_all_shards() {
    let device = rdma_verbs::provider::soft::SoftOptions::new().shards(2).open("soft:127.34.1.1").unwrap();
    let context = rdma_verbs::verbs::Context::from(device);
    assert_eq!(context.query_device().num_comp_vectors, 2);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let region = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
    let queue_pairs: Vec<_> = (0..4).map(|_| pd.create_qp(&cq, &cq).unwrap()).collect();
    queue_pairs.iter().for_each(|qp| qp.connect(&qp.connection_info().unwrap()).unwrap());
    for _ in 0..5 {
        let write = rdma_verbs::verbs::SendRequest::write(rdma_verbs::verbs::Payload::EMPTY, region.remote());
        queue_pairs[0].post_send(&[write.signaled()]).unwrap();
    }
    assert_eq!(context.wait_async_event(PATIENCE).unwrap(), AsyncEvent::CompletionQueueError(cq.number()));
    while cq.poll(&mut [rdma_verbs::verbs::Completion::default()]).is_ok() {}
    for qp in &queue_pairs {
        assert_eq!(qp.state().unwrap(), QueuePairState::Error);
    }
    let mut fatal: Vec<AsyncEvent> = std::iter::from_fn(|| context.poll_async_event()).collect();
    for qp in &queue_pairs {
        let before = fatal.len();
        fatal.retain(|event| *event != AsyncEvent::QueuePairFatal(qp.qpn()));
        assert_eq!(fatal.len(), before - 1, "{} once", qp.qpn());
    }
    assert_eq!(fatal, []);
}
