//! The cost of a request on its path through the queues, without a transport, against a lower bound: a queue of the
//! same records that only one thread uses, without locks, checks or atomics.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use rdma_verbs::queue::{CompletionQueue, ReceiveQueue, SendConsumer, SendHeader, SendQueue};
use rdma_verbs::types::{
    BatchEnd, Data, Lkey, Operation, RawCompletion, ReceiveRequest, Rkey, SendFlags, SendRequest, Sge,
};

const DEPTH: u32 = 256;
const MAX_INLINE: u32 = 64;

fn request(wr_id: u64, data: Data<'_>) -> SendRequest<'_> {
    let operation = Operation::Write { remote_addr: 0x1000, rkey: Rkey(1) };
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data }
}

fn entry() -> Sge {
    Sge { addr: 0x2000, length: 8, lkey: Lkey(1) }
}

/// Measures the lower bound: as many records go into a plain queue and come out again.
fn limit<T: Clone>(group: &mut BenchmarkGroup<'_, WallTime>, batch: u64, record: &T) {
    let mut queue = VecDeque::with_capacity(DEPTH as usize);
    group.bench_function(BenchmarkId::new("limit: a plain queue", batch), |bencher| {
        bencher.iter(|| {
            (0..batch).for_each(|_| queue.push_back(black_box(record).clone()));
            while let Some(record) = queue.pop_front() {
                black_box(&record);
            }
        });
    });
}

/// Reads and retires all published requests. Returns their number.
fn consume(consumer: &mut SendConsumer) -> u64 {
    let mut sum = 0;
    while consumer.retired() != consumer.published() {
        let index = consumer.retired();
        let header = consumer.header(index);
        sum += header.wr_id + u64::from(header.length);
        sum += consumer.sges(index).iter().map(|sge| sge.addr).sum::<u64>();
        sum += consumer.inline_data(index).iter().map(|byte| u64::from(*byte)).sum::<u64>();
        consumer.retire(index.wrapping_add(1));
    }
    sum
}

/// Measures one thread: push, publish, consume, retire, release.
fn same_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("send_queue");
    let sges = [entry()];
    for batch in [1, 32] {
        group.throughput(Throughput::Elements(batch));
        limit(&mut group, batch, &(SendHeader::default(), entry()));
    }
    let cases = [("sge", Data::Sges(&sges)), ("inline_8", Data::Inline(&[b"12345678"]))];
    for (name, data) in cases {
        for batch in [1, 32] {
            let queue = SendQueue::new(DEPTH, 4, MAX_INLINE);
            let mut consumer = queue.consumer().unwrap();
            group.throughput(Throughput::Elements(batch));
            group.bench_function(BenchmarkId::new(name, batch), |bencher| {
                bencher.iter(|| {
                    queue.begin();
                    (0..batch).for_each(|wr_id| queue.push(&request(wr_id, data)).unwrap());
                    queue.end(BatchEnd::Publish).unwrap();
                    let sum = consume(&mut consumer);
                    queue.release(consumer.retired());
                    black_box(sum)
                });
            });
        }
    }
    group.finish();
}

/// Measures two threads, one at each end; the time is that of a whole run.
fn two_threads(criterion: &mut Criterion) {
    const REQUESTS: u64 = 100_000;
    let mut group = criterion.benchmark_group("send_queue_two_threads");
    group.throughput(Throughput::Elements(REQUESTS)).sample_size(20);
    group.bench_function("for comparison: crossbeam's ArrayQueue", |bencher| {
        bencher.iter(|| {
            let queue = ArrayQueue::new(DEPTH as usize);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..REQUESTS {
                        while queue.push((SendHeader::default(), entry())).is_err() {
                            thread::yield_now();
                        }
                    }
                });
                let mut taken = 0;
                while taken < REQUESTS {
                    match queue.pop() {
                        Some(record) => taken += u64::from(black_box(record).1.length > 0),
                        None => thread::yield_now(),
                    }
                }
            });
        });
    });
    group.bench_function("sge", |bencher| {
        let sges = [entry()];
        bencher.iter(|| {
            let queue = SendQueue::new(DEPTH, 4, MAX_INLINE);
            let mut consumer = queue.consumer().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut next = 0;
                    while next < REQUESTS {
                        queue.begin();
                        let pushed = (next..REQUESTS.min(next + 16))
                            .take_while(|wr_id| queue.push(&request(*wr_id, Data::Sges(&sges))).is_ok())
                            .count();
                        queue.end(BatchEnd::Publish).unwrap();
                        next += pushed as u64;
                        if pushed == 0 {
                            thread::yield_now();
                        }
                    }
                });
                while consumer.retired() != REQUESTS as u32 {
                    if black_box(consume(&mut consumer)) == 0 {
                        thread::yield_now();
                    }
                    queue.release(consumer.retired());
                }
            });
        });
    });
    group.finish();
}

/// Measures one thread: push, publish, take, which frees the slot.
fn receives(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("receive_queue");
    let (sges, mut taken) = ([entry()], Vec::with_capacity(4));
    for batch in [1, 32] {
        group.throughput(Throughput::Elements(batch));
        limit(&mut group, batch, &(0_u64, entry()));
        let queue = ReceiveQueue::new(DEPTH, 4);
        let mut consumer = queue.consumer().unwrap();
        group.bench_function(BenchmarkId::new("sge", batch), |bencher| {
            bencher.iter(|| {
                queue.begin();
                (0..batch).for_each(|wr_id| queue.push(&ReceiveRequest { wr_id, sges: black_box(&sges) }).unwrap());
                queue.end(BatchEnd::Publish).unwrap();
                while let Some(request) = consumer.take(&mut taken) {
                    black_box((request, &taken));
                }
            });
        });
    }
    group.finish();
}

/// Measures push and poll of completions, with a send queue attached.
fn completions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("completion_queue");
    for batch in [1_usize, 16] {
        let send_queue = SendQueue::new(DEPTH, 1, 0);
        let queue = CompletionQueue::new(1, DEPTH, None);
        let token = queue.attach(Some(Arc::clone(&send_queue)));
        let mut out = [RawCompletion::default(); 16];
        group.throughput(Throughput::Elements(batch as u64));
        limit(&mut group, batch as u64, &RawCompletion::default());
        group.bench_function(BenchmarkId::new("push_poll", batch), |bencher| {
            bencher.iter(|| {
                for _ in 0..batch {
                    queue.push(token, black_box(RawCompletion::default()), false).unwrap();
                }
                black_box(queue.poll(&mut out))
            });
        });
    }
    let queue = CompletionQueue::new(1, DEPTH, None);
    let mut out = [RawCompletion::default(); 16];
    group.throughput(Throughput::Elements(1));
    group.bench_function("poll_empty", |bencher| bencher.iter(|| black_box(queue.poll(&mut out))));
    group.finish();
}

criterion_group!(benches, same_thread, two_threads, receives, completions);
criterion_main!(benches);
