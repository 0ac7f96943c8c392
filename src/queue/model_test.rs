//! Compares the queues with plain models, and runs them under load from several threads.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{CompletionQueue, QueueError, SendConsumer, SendQueue};
use crate::types::{BatchEnd, Data, Operation, RawCompletion, SendFlags, SendRequest, Sge};

const MAX_SGE: u32 = 3;
const MAX_INLINE: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    Push { sges: usize, inline: Option<usize> },
    Publish,
    Rollback,
    Take(u32),
    Release(u32),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..=MAX_SGE as usize, proptest::option::of(0..=MAX_INLINE as usize))
            .prop_map(|(sges, inline)| Step::Push { sges, inline }),
        3 => Just(Step::Publish),
        1 => Just(Step::Rollback),
        4 => (0_u32..4).prop_map(Step::Take),
        4 => prop_oneof![4 => 0_u32..6, 1 => any::<u32>()].prop_map(Step::Release),
        1 => Just(Step::Reset),
    ]
}

/// The expected contents of a request. They all derive from its number, so that mixed-up parts are detected.
#[derive(Clone, Debug, PartialEq)]
struct Image {
    wr_id: u64,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

fn image(wr_id: u64, sges: usize, inline: Option<usize>) -> Image {
    let entry = |segment| Sge { addr: wr_id * 100 + segment, length: segment as u32, ..Sge::default() };
    let byte = |index| (wr_id as usize * 31 + index) as u8;
    match inline {
        None => Image { wr_id, sges: (0..sges as u64).map(entry).collect(), inline: Vec::new() },
        Some(length) => Image { wr_id, sges: Vec::new(), inline: (0..length).map(byte).collect() },
    }
}

fn push(queue: &SendQueue, image: &Image, is_inline: bool) -> Result<(), QueueError> {
    let (head, tail) = image.inline.split_at(image.inline.len() / 3);
    let segments = [head, tail];
    let data = if is_inline { Data::Inline(&segments) } else { Data::Sges(&image.sges) };
    let flags = SendFlags::empty();
    queue.push(&SendRequest { wr_id: image.wr_id, operation: Operation::Send, flags, data })
}

fn read(consumer: &SendConsumer, index: u32) -> Image {
    Image {
        wr_id: consumer.header(index).wr_id,
        sges: consumer.sges(index).to_vec(),
        inline: consumer.inline_data(index).to_vec(),
    }
}

/// A model of the ring: two lists and a count.
#[derive(Default)]
struct Model {
    batch: Vec<Image>,
    published: VecDeque<Image>,
    /// Retired requests whose slots are not free yet.
    finished: u32,
}

impl Model {
    fn used(&self) -> u32 {
        self.batch.len() as u32 + self.published.len() as u32 + self.finished
    }
}

proptest! {
    #[test]
    fn ring_behaves_like_its_model(
        limit in 0_u32..9,
        start in prop_oneof![Just(0), (1_u64 << 32) - 40..1 << 32, (1_u64 << 33) - 20..1 << 33],
        steps in vec(step(), 1..200),
    ) {
        let queue = SendQueue::starting_at(start, limit, MAX_SGE, MAX_INLINE);
        let mut consumer = queue.consumer().unwrap();
        let mut model = Model::default();
        let mut next_id = 0;
        queue.begin();
        for step in steps {
            match step {
                Step::Push { sges, inline } => {
                    let image = image(next_id, sges, inline);
                    next_id += 1;
                    let result = push(&queue, &image, inline.is_some());
                    if model.used() == limit {
                        prop_assert_eq!(result, Err(QueueError::Full { limit }));
                    } else {
                        prop_assert_eq!(result, Ok(()));
                        model.batch.push(image);
                    }
                }
                Step::Publish => {
                    prop_assert_eq!(queue.end(BatchEnd::Publish), Ok(model.batch.len() as u32));
                    model.published.extend(model.batch.drain(..));
                    queue.begin();
                }
                Step::Rollback => {
                    prop_assert_eq!(queue.end(BatchEnd::Rollback), Ok(0));
                    model.batch.clear();
                    queue.begin();
                }
                Step::Take(count) => {
                    let count = count.min(model.published.len() as u32);
                    let up_to = consumer.retired().wrapping_add(count);
                    for index in 0..count {
                        let expected = model.published.pop_front().unwrap();
                        prop_assert_eq!(read(&consumer, consumer.retired().wrapping_add(index)), expected);
                    }
                    consumer.retire(up_to);
                    model.finished += count;
                }
                Step::Release(ahead) => {
                    let released = consumer.retired().wrapping_sub(model.finished);
                    queue.release(released.wrapping_add(ahead));
                    let is_stale = ahead > i32::MAX as u32;
                    model.finished -= if is_stale { 0 } else { ahead.min(model.finished) };
                }
                Step::Reset => {
                    prop_assert_eq!(consumer.reset(), consumer.published());
                    model.published.clear();
                    model.finished = 0;
                }
            }
            prop_assert_eq!(queue.pending(), model.published.len() as u32 + model.finished);
            prop_assert_eq!(queue.outstanding(), model.published.len() as u32);
            prop_assert_eq!(consumer.published().wrapping_sub(consumer.retired()), queue.outstanding());
            for (expected, offset) in model.published.iter().zip(0_u32..) {
                prop_assert_eq!(&read(&consumer, consumer.retired().wrapping_add(offset)), expected);
            }
        }
    }
}

const THREADS: u64 = 3;
const PER_THREAD: u64 = 20_000;

/// Posts the requests of one thread in batches, some of which are rolled back first.
fn produce(queue: &SendQueue, thread: u64) {
    let mut next = 0;
    while next < PER_THREAD {
        queue.begin();
        let batch = (1 + next % 5).min(PER_THREAD - next);
        let pushed = (0..batch)
            .take_while(|offset| {
                let number = next + offset;
                let inline = number.is_multiple_of(2).then_some(number as usize % MAX_INLINE as usize);
                let image = image(number * THREADS + thread, number as usize % MAX_SGE as usize, inline);
                push(queue, &image, inline.is_some()).is_ok()
            })
            .count() as u64;
        if pushed < batch && next % 7 == 3 {
            assert_eq!(queue.end(BatchEnd::Rollback), Ok(0));
        } else {
            assert_eq!(queue.end(BatchEnd::Publish), Ok(pushed as u32));
            next += pushed;
        }
        if pushed < batch {
            thread::yield_now();
        }
    }
}

/// Reads, checks and completes everything, signaling every third request and the last.
fn execute(mut consumer: SendConsumer, completions: &CompletionQueue, token: super::SourceToken) {
    let mut next_of = [0_u64; THREADS as usize];
    let mut done = 0;
    while done < THREADS * PER_THREAD {
        let index = consumer.retired();
        if consumer.published() == index {
            thread::yield_now();
            continue;
        }
        let found = read(&consumer, index);
        let (thread, number) = (found.wr_id % THREADS, found.wr_id / THREADS);
        assert_eq!(number, next_of[thread as usize], "each thread's requests come in its order");
        next_of[thread as usize] += 1;
        let inline = number.is_multiple_of(2).then_some(number as usize % MAX_INLINE as usize);
        assert_eq!(found, image(found.wr_id, number as usize % MAX_SGE as usize, inline));
        let retired = index.wrapping_add(1);
        consumer.retire(retired);
        done += 1;
        if done % 3 == 0 || done == THREADS * PER_THREAD {
            let completion = RawCompletion { wr_id: found.wr_id, retired, ..RawCompletion::default() };
            completions.push(token, completion, false).unwrap();
        }
    }
}

#[test]
fn queues_hold_under_load() {
    let queue = SendQueue::starting_at((1 << 32) - 1000, 13, MAX_SGE, MAX_INLINE);
    let consumer = queue.consumer().unwrap();
    let completions = CompletionQueue::new(1, 32, None);
    let token = completions.attach(Some(Arc::clone(&queue)));
    let is_over = AtomicBool::new(false);
    let poll = || {
        let mut out = [RawCompletion::default(); 4];
        let mut polled = 0;
        while !is_over.load(Relaxed) || !completions.is_empty() {
            let count = completions.poll(&mut out) as u64;
            polled += count;
            queue.release(out[0].retired.wrapping_add(5));
            if count == 0 {
                thread::yield_now();
            }
        }
        polled
    };
    thread::scope(|scope| {
        let pollers = [scope.spawn(poll), scope.spawn(poll)];
        let producers: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn({
                    let queue = &queue;
                    move || produce(queue, number)
                })
            })
            .collect();
        execute(consumer, &completions, token);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        is_over.store(true, Relaxed);
        let polled: u64 = pollers.into_iter().map(|poller| poller.join().unwrap()).sum();
        assert_eq!(polled, (THREADS * PER_THREAD).div_ceil(3));
    });
    assert_eq!((queue.pending(), completions.overflowed()), (0, false));
}
