//! Asynchronous verbs over loopback: every operation, cancellation everywhere, both runtimes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rdma_verbs::asynchronous::{
    AsyncEvents, CompletionBatches, CompletionQueue, QueuePair, QueuePairOptions, RequestError,
};
use rdma_verbs::owned::{Buffer, BufferPool, FileBuffer, Request};
use rdma_verbs::verbs::{
    self, AsyncEvent, Cause, Completion, CompletionStatus, Context, ErrorKind, MemoryRegion, Payload, ProtectionDomain,
    QueuePairAttributes, QueuePairState, ReceiveRequest, RegionList, RemoteMemory, Rkey, SendRequest,
};
use support::ALL_ACCESS;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn runtimes() -> [Runtime; 2] {
    [
        Builder::new_current_thread().enable_all().build().unwrap(),
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    ]
}

/// Runs a test on a task of each runtime, with a time limit.
pub(super) fn on_both<F: Future<Output = ()> + Send + 'static>(test: impl Fn() -> F) {
    for runtime in runtimes() {
        let task = runtime.spawn(test());
        runtime.block_on(async { timeout(PATIENCE, task).await }).expect("in time").unwrap();
    }
}

pub(super) struct End {
    pub(super) context: Context,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) pool: BufferPool,
    pub(super) qp: QueuePair,
}

impl End {
    pub(super) fn open(address: &str, options: &QueuePairOptions) -> End {
        let context = verbs::open(&format!("soft:{address}")).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = CompletionQueue::new(&context, 256).unwrap();
        let pool = BufferPool::new(&pd, 16 << 20).unwrap();
        let qp = QueuePair::with_options(&pd, &cq, options).unwrap();
        End { context, pd, cq, pool, qp }
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> Buffer {
        self.pool.copy_from(bytes).unwrap()
    }

    fn region(&self, len: usize) -> (MemoryRegion, RemoteMemory) {
        let region = self.pd.alloc_mr(len, ALL_ACCESS).unwrap();
        let remote = region.remote();
        (region, remote)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.pool.stats().outstanding
    }
}

pub(super) fn connect(left: &QueuePair, right: &QueuePair) {
    let (left_info, right_info) = (left.connection_info().unwrap(), right.connection_info().unwrap());
    left.connect(&right_info).unwrap();
    right.connect(&left_info).unwrap();
}

/// Two connected ends on 127.90.3.`first` and the following address.
fn pair_with(first: u8, options: &QueuePairOptions) -> (End, End) {
    let [left, right] = [first, first + 1].map(|host| End::open(&format!("127.90.3.{host}"), options));
    connect(&left.qp, &right.qp);
    (left, right)
}

fn pair(first: u8) -> (End, End) {
    pair_with(first, &QueuePairOptions::default())
}

pub(super) fn failure(result: Result<verbs::Success, RequestError>) -> verbs::CompletionError {
    match result.expect_err("a failure") {
        RequestError::Failed(error) => error,
        other => panic!("it was not posted: {other}"),
    }
}

#[test]
fn every_operation_is_a_future() {
    on_both(|| async {
        let (a, b) = pair(1);
        let (region, remote) = b.region(4096);
        let (sent, received) = tokio::join!(a.qp.send(a.bytes(b"hello")), b.qp.recv(b.pool.take(64).unwrap()));
        sent.0.unwrap();
        assert_eq!((received.0.unwrap().byte_len, &*received.1), (5, &b"hello"[..]));
        let (result, buffer) = a.qp.write(sent.1, remote).await;
        result.unwrap();
        assert_eq!(region.to_vec(..5).unwrap(), b"hello");
        let (result, buffer) = a.qp.read(buffer, remote.slice(1..4).unwrap()).await;
        result.unwrap();
        assert_eq!(*buffer, *b"ell");
        region.store_release_u64(8, 5).unwrap();
        let word = remote.slice(8..16).unwrap();
        let (result, buffer) = a.qp.fetch_and_add(buffer, word, 3).await;
        result.unwrap();
        assert_eq!(buffer.to_u64(), Some(5));
        let (result, buffer) = a.qp.compare_and_swap(buffer, word, 8, 100).await;
        result.unwrap();
        assert_eq!((buffer.to_u64(), region.load_acquire_u64(8).unwrap()), (Some(8), 100));
        let request = Request::write_with_immediate(buffer, remote, 9).solicited();
        let (written, received) = tokio::join!(a.qp.execute(request), b.qp.recv(received.1));
        written.0.unwrap();
        assert_eq!((received.0.unwrap().immediate, received.1.len()), (Some(9), 0));
        let file = std::fs::File::open("Cargo.toml").unwrap();
        let file = FileBuffer::map(&a.pd, &file, 0, 9, false).unwrap();
        let (result, file) = a.qp.write(file, remote).await;
        result.unwrap();
        assert_eq!((file.len(), region.to_vec(..9).unwrap()), (9, b"[package]".to_vec()));
        drop((written.1, received.1));
        assert_eq!((a.outstanding(), b.outstanding()), (0, 0));
    });
}

#[test]
fn many_tasks_share_a_queue_pair_and_a_task_uses_many() {
    on_both(|| async {
        // The queue is smaller than the number of tasks: they wait for slots.
        let (a, b) = pair_with(3, &QueuePairOptions::default().max_send_wr(4));
        let (region, remote) = b.region(64 * 16);
        let pool = a.pool.clone();
        let tasks: Vec<_> = (0..16)
            .map(|index| {
                let (qp, pool) = (a.qp.clone(), pool.clone());
                let target = remote.slice(index * 64..(index + 1) * 64).unwrap();
                tokio::spawn(async move {
                    let mut buffer = pool.take(8).unwrap();
                    for round in 0..50u64 {
                        buffer.clear();
                        buffer.extend_from_slice(&round.to_ne_bytes());
                        let (written, back) = qp.write(buffer, target).await;
                        written.unwrap();
                        buffer = back;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!((0..16).all(|index| region.load_acquire_u64(index * 64).unwrap() == 49));

        let more: Vec<_> = (0..8)
            .map(|_| {
                let near = QueuePair::new(&a.pd, &a.cq).unwrap();
                let far = QueuePair::new(&b.pd, &b.cq).unwrap();
                connect(&near, &far);
                (near, far)
            })
            .collect();
        for (index, (near, far)) in more.iter().enumerate() {
            let text = [index as u8; 100];
            let (sent, received) = tokio::join!(near.send(a.bytes(&text)), far.recv(b.pool.take(100).unwrap()));
            sent.0.unwrap();
            assert_eq!(*received.1, text);
        }
        assert_eq!((a.outstanding(), b.outstanding()), (0, 0));
    });
}

/// A future that is dropped after this many polls, whether it is woken or not.
pub(super) struct GivenUp<F> {
    future: Pin<Box<F>>,
    polls: usize,
}

impl<F: Future> Future for GivenUp<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        let polled = self.future.as_mut().poll(context).map(Some);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    }
}

pub(super) fn give_up<F: Future>(future: F, polls: usize) -> GivenUp<F> {
    GivenUp { future: Box::pin(future), polls }
}

/// Runs one future of a random kind, dropped after a random number of polls. Returns whether it was dropped.
async fn one_future(a: &End, remote: RemoteMemory, random: &mut SmallRng) -> bool {
    let polls = match random.random_range(0..4) {
        0 => random.random_range(0..3),
        1 | 2 => random.random_range(0..200),
        _ => usize::MAX,
    };
    let buffer = a.pool.take(64).unwrap();
    let result = match random.random_range(0..5) {
        0 => give_up(a.qp.write(a.bytes(b"bytes"), remote), polls).await,
        1 => give_up(a.qp.read(buffer, remote.slice(..64).unwrap()), polls).await,
        2 => give_up(a.qp.fetch_and_add(buffer, remote.slice(..8).unwrap(), 1), polls).await,
        3 => give_up(a.qp.send(a.bytes(b"message")), polls).await,
        // Nothing is sent to this end: the receive never completes, so it is always dropped.
        _ => give_up(a.qp.recv(buffer), polls.min(20)).await,
    };
    result.is_none()
}

#[test]
fn futures_may_be_dropped_at_any_point() {
    const FUTURES: usize = 4_000;
    const TASKS: usize = 8;
    for (seed, runtime) in runtimes().into_iter().enumerate() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let test = {
            let dropped = Arc::clone(&dropped);
            async move {
                // Small queues: some futures are dropped while they wait for a slot.
                let (a, b) = pair_with(5, &QueuePairOptions::default().max_send_wr(6).max_recv_wr(16));
                let a = Arc::new(a);
                let (_region, remote) = b.region(4096);
                let mut messages = b.qp.messages(&b.pool, 64, 16).unwrap();
                let sink = tokio::spawn(async move { while let Some(Ok(_)) = messages.next().await {} });
                let tasks: Vec<_> = (0..TASKS)
                    .map(|task| {
                        let (a, dropped) = (Arc::clone(&a), Arc::clone(&dropped));
                        tokio::spawn(async move {
                            let mut random = SmallRng::seed_from_u64((seed * TASKS + task) as u64);
                            for _ in 0..FUTURES / TASKS {
                                let gone = one_future(&a, remote, &mut random).await;
                                dropped.fetch_add(gone.into(), Ordering::Relaxed);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                // Abandoned receives come back when they are flushed.
                let flush = QueuePairAttributes::default().qp_state(QueuePairState::Error);
                a.qp.modify(&flush).unwrap();
                b.qp.modify(&flush).unwrap();
                sink.await.unwrap();
                while a.qp.buffers_in_flight() != (0, 0)
                    || b.qp.buffers_in_flight() != (0, 0)
                    || a.outstanding() + b.outstanding() > 0
                {
                    tokio::task::yield_now().await;
                }
                (a.pool.stats(), b.pool.stats(), a.qp.abandoned())
            }
        };
        let task = runtime.spawn(test);
        let (a, b, abandoned) = runtime.block_on(async { timeout(PATIENCE, task).await }).expect("in time").unwrap();
        let dropped = dropped.load(Ordering::Relaxed);
        println!(
            "{FUTURES} futures, {dropped} dropped at random points, {abandoned} of them after posting; buffers out {}, \
             in {}",
            a.taken + b.taken,
            a.returned + b.returned
        );
        assert!(dropped >= 1_000 && abandoned > 100, "{dropped} dropped, {abandoned} abandoned");
        assert_eq!((a.taken, b.taken), (a.returned, b.returned));
    }
}

#[test]
fn messages_arrive_in_order_within_their_bound() {
    on_both(|| async {
        let (a, b) = pair(7);
        assert!(b.qp.messages(&b.pool, 64, 0).is_err() && b.qp.messages(&b.pool, 64, 129).is_err());
        let mut messages = b.qp.messages(&b.pool, 64, 4).unwrap();
        assert_eq!((b.outstanding(), b.qp.buffers_in_flight().1), (4, 4));
        let sender = tokio::spawn(async move {
            for number in 0..200u64 {
                a.qp.send(a.bytes(&number.to_ne_bytes())).await.0.unwrap();
            }
            a
        });
        for number in 0..200u64 {
            // Canceled calls lose no message.
            let early = give_up(messages.next(), (number % 3) as usize).await;
            let message = match early {
                Some(message) => message,
                None => messages.next().await,
            };
            assert_eq!(message.unwrap().unwrap().buffer.to_u64(), Some(number));
            assert!(b.outstanding() <= 5);
        }
        let a = sender.await.unwrap();
        drop(messages);
        assert_eq!(b.outstanding(), 4, "they are still posted");
        b.qp.reset().unwrap();
        assert_eq!((a.outstanding(), b.outstanding(), b.qp.abandoned()), (0, 0, 4));
    });
}

#[test]
fn messages_go_on_when_the_pool_has_buffers_again() {
    on_both(|| async {
        let (a, b) = pair(9);
        let pool = BufferPool::new(&b.pd, 2 * 4096).unwrap();
        let mut messages = b.qp.messages(&pool, 4096, 2).unwrap();
        let mut held = Vec::new();
        for number in 0..2u8 {
            a.qp.send(a.bytes(&[number])).await.0.unwrap();
            held.push(messages.next().await.unwrap().unwrap().buffer);
        }
        let Some(Err(RequestError::Refused(error))) = messages.next().await else { panic!("no buffer is left") };
        assert_eq!(error.kind(), ErrorKind::ResourceLimit);
        held.clear();
        let (sent, message) = tokio::join!(a.qp.send(a.bytes(b"again")), messages.next());
        sent.0.unwrap();
        assert_eq!(*message.unwrap().unwrap().buffer, *b"again");
        let error = QueuePairAttributes::default().qp_state(QueuePairState::Error);
        b.qp.modify(&error).unwrap();
        // As a stream: one failure, then the end.
        let mut next = async || std::future::poll_fn(|task| Pin::new(&mut messages).poll_next(task)).await;
        assert!(matches!(next().await, Some(Err(RequestError::Failed(_)))));
        assert!(next().await.is_none());
    });
}

#[test]
fn failures_flushes_and_resets_end_the_futures() {
    on_both(|| async {
        let (a, b) = pair(11);
        let (_region, remote) = b.region(64);
        let nothing = RemoteMemory::new(remote.addr(), Rkey(remote.rkey().0 ^ 1), 64);
        let ((refused, buffer), (flushed, empty)) =
            tokio::join!(a.qp.write(a.bytes(b"bad"), nothing), a.qp.recv(a.pool.take(64).unwrap()));
        assert_eq!(failure(refused).status, CompletionStatus::RemoteAccessError);
        assert_eq!(*buffer, *b"bad");
        assert_eq!(failure(flushed).status, CompletionStatus::WorkRequestFlushedError);
        assert!(empty.is_empty());
        drop((buffer, empty));

        a.qp.reset().unwrap();
        b.qp.reset().unwrap();
        connect(&a.qp, &b.qp);
        let receiving = {
            let (qp, buffer) = (a.qp.clone(), a.pool.take(64).unwrap());
            tokio::spawn(async move { qp.recv(buffer).await })
        };
        while a.qp.buffers_in_flight().1 == 0 {
            tokio::task::yield_now().await;
        }
        a.qp.reset().unwrap();
        let (result, buffer) = receiving.await.unwrap();
        assert_eq!(failure(result).cause, Cause::Destroyed);
        let (result, buffer) = a.qp.send(buffer).await;
        assert!(matches!(result, Err(RequestError::Refused(error)) if error.kind() == ErrorKind::InvalidState));
        drop(buffer);
        assert_eq!(a.outstanding(), 0);
    });
}

#[test]
fn a_panicking_task_loses_no_buffer() {
    on_both(|| async {
        let (a, b) = pair(13);
        let (qp, buffer) = (a.qp.clone(), a.pool.take(64).unwrap());
        let task = tokio::spawn(async move {
            let mut receiving = Box::pin(qp.recv(buffer));
            let _ = give_up(&mut receiving, 2).await;
            std::panic::resume_unwind(Box::new("in the middle"));
        });
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!((a.outstanding(), a.qp.buffers_in_flight().1), (1, 1));
        b.qp.send(b.bytes(b"nobody listens")).await.0.unwrap();
        while a.outstanding() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(a.qp.abandoned(), 1);
    });
}

#[test]
fn when_the_runtime_ends_buffers_come_back() {
    for runtime in runtimes() {
        let (a, b) = runtime.block_on(async { pair(15) });
        let (qp, buffer) = (a.qp.clone(), a.pool.take(64).unwrap());
        let mut waiting = Box::pin(async move { qp.recv(buffer).await });
        runtime.block_on(async { assert!(give_up(&mut waiting, 1).await.is_none()) });
        assert_eq!(a.qp.buffers_in_flight().1, 1);
        drop(runtime);
        // Another runtime awaits the future, which reports that its queue pair is gone.
        let other = Builder::new_current_thread().enable_all().build().unwrap();
        let (result, buffer) = other.block_on(async { timeout(PATIENCE, waiting).await.unwrap() });
        assert_eq!(failure(result).cause, Cause::Destroyed);
        drop(buffer);
        assert_eq!((a.outstanding(), a.qp.buffers_in_flight()), (0, (0, 0)));
        let error = QueuePair::new(&a.pd, &a.cq).unwrap_err();
        assert!(error.to_string().contains("has ended"), "{error}");
        drop(b);
    }
}

#[test]
fn an_overflow_ends_all_futures_of_its_queue() {
    // The task polls as fast as it can, so the queue overflows only while the runtime is blocked.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = verbs::open("soft:127.90.3.17").unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = CompletionQueue::new(&context, 1).unwrap();
        let qp = QueuePair::new(&pd, &cq).unwrap();
        qp.connect(&qp.connection_info().unwrap()).unwrap();
        let pool = BufferPool::new(&pd, 1 << 20).unwrap();
        let mut futures: Vec<_> = (0..8).map(|_| Box::pin(qp.recv(pool.take(64).unwrap()))).collect();
        let mut quietly = TaskContext::from_waker(Waker::noop());
        for future in &mut futures {
            assert!(future.as_mut().poll(&mut quietly).is_pending());
        }
        let mut sends: Vec<_> = (0..8).map(|_| Box::pin(qp.send(pool.copy_from(b"x").unwrap()))).collect();
        for future in &mut sends {
            assert!(future.as_mut().poll(&mut quietly).is_pending());
        }
        std::thread::sleep(Duration::from_millis(50));
        let mut failed = 0;
        for future in futures {
            failed += usize::from(timeout(PATIENCE, future).await.expect("a result in time").0.is_err());
        }
        for future in sends {
            failed += usize::from(timeout(PATIENCE, future).await.expect("a result in time").0.is_err());
        }
        assert!(failed > 0);
        assert_eq!(pool.stats().outstanding, 0);
    });
}

#[test]
fn asynchronous_events_are_a_stream() {
    on_both(|| async {
        let (a, b) = pair(19);
        let mut events = AsyncEvents::new(&b.context).unwrap();
        assert!(give_up(events.next_event(), 3).await.is_none());
        let (_region, remote) = b.region(64);
        let nothing = RemoteMemory::new(remote.addr(), Rkey(remote.rkey().0 ^ 1), 64);
        let waiting =
            tokio::spawn(async move { std::future::poll_fn(|task| Pin::new(&mut events).poll_next(task)).await });
        a.qp.write(a.bytes(b"x"), nothing).await.0.unwrap_err();
        let event = waiting.await.unwrap().unwrap().unwrap();
        assert_eq!(event, AsyncEvent::QueuePairAccessError(b.qp.qpn()));
    });
}

#[test]
fn batches_of_the_verbs_tier_can_be_awaited() {
    on_both(|| async {
        let context = verbs::open("soft:127.90.3.21").unwrap();
        let pd = context.alloc_pd().unwrap();
        let mut batches = CompletionBatches::new(&context, 256).unwrap();
        let qp = pd.create_qp(batches.cq(), batches.cq()).unwrap();
        qp.connect(&qp.connection_info().unwrap()).unwrap();
        assert_eq!(batches.next(&mut []).await.unwrap(), 0);
        let mut out = [Completion::default(); 16];
        assert!(give_up(batches.next(&mut out), 30).await.is_none());
        for _ in 0..50 {
            let empty = ReceiveRequest::new(RegionList::EMPTY);
            qp.post_recv(&[empty; 8]).unwrap();
            qp.post_send(&[SendRequest::send(Payload::EMPTY).signaled(); 8]).unwrap();
            let mut seen = 0;
            while seen < 16 {
                let count = batches.next(&mut out).await.unwrap();
                assert!(count > 0 && out[..count].iter().all(Completion::is_success));
                seen += count;
            }
        }
    });
}

#[test]
fn an_idle_dispatcher_sleeps_and_is_woken_by_packets() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (a, b) = pair(23);
        for round in 0..3 {
            let receiving = async {
                let (result, buffer) = b.qp.recv(b.pool.take(64).unwrap()).await;
                result.unwrap();
                buffer
            };
            let sending = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                a.qp.send(a.bytes(&[round])).await.0.unwrap();
            };
            let (buffer, ()) = timeout(PATIENCE, async { tokio::join!(receiving, sending) }).await.unwrap();
            assert_eq!(*buffer, [round]);
        }
    });
}
