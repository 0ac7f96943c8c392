//! What a request costs on its way through the queues, without any transport.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rdma_verbs::queue::{CompletionQueue, SendConsumer, SendQueue};
use rdma_verbs::types::{BatchEnd, Data, Lkey, Operation, RawCompletion, Rkey, SendFlags, SendRequest, Sge};

const DEPTH: u32 = 256;
const MAX_INLINE: u32 = 64;

fn request(wr_id: u64, data: Data<'_>) -> SendRequest<'_> {
    let operation = Operation::Write { remote_addr: 0x1000, rkey: Rkey(1) };
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data }
}

/// Reads and retires everything that is published.
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

/// One thread: push, publish, consume, retire, release.
fn same_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("send_queue");
    let sges = [Sge { addr: 0x2000, length: 8, lkey: Lkey(1) }];
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

/// Two threads, one at each end; the time is that of a whole run.
fn two_threads(criterion: &mut Criterion) {
    const REQUESTS: u64 = 100_000;
    let mut group = criterion.benchmark_group("send_queue_two_threads");
    group.throughput(Throughput::Elements(REQUESTS)).sample_size(20);
    group.bench_function("sge", |bencher| {
        let sges = [Sge { addr: 0x2000, length: 8, lkey: Lkey(1) }];
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

/// Push and poll of completions, with a send queue attached.
fn completions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("completion_queue");
    for batch in [1_usize, 16] {
        let send_queue = SendQueue::new(DEPTH, 1, 0);
        let queue = CompletionQueue::new(1, DEPTH, None);
        let token = queue.attach(Some(Arc::clone(&send_queue)));
        let mut out = [RawCompletion::default(); 16];
        group.throughput(Throughput::Elements(batch as u64));
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

criterion_group!(benches, same_thread, two_threads, completions);
criterion_main!(benches);
