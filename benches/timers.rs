//! The cost of an endpoint's deadlines: setting one, moving it, and taking those that are due, with one owner and with
//! 10,000, against the standard library's heap, which can neither move nor clear a deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use rdma_verbs::transport::Deadlines;
use rdma_verbs::types::Time;

/// Distances of deadlines: transport timers of 67 ms, probes of 2 ms, held acknowledgements of 50 µs.
const AHEAD: [u64; 3] = [67_000_000, 2_000_000, 50_000];
/// Time between two events.
const STEP: u64 = 1_000;

/// The time of an endpoint, and the next owner.
struct Course {
    now: u64,
    owner: u32,
    owners: u32,
}

impl Course {
    fn new(owners: u32) -> Self {
        Self { now: 1, owner: 0, owners }
    }

    /// Returns the next owner and its new deadline.
    fn next(&mut self) -> (u32, Time) {
        self.now += STEP;
        // A prime step, so that neighbors do not follow each other.
        self.owner = (self.owner + 7_919) % self.owners;
        (self.owner, Time::from_nanos(self.now + AHEAD[self.owner as usize % AHEAD.len()]))
    }
}

fn filled(owners: u32) -> (Deadlines, Course) {
    let (mut deadlines, mut course) = (Deadlines::default(), Course::new(owners));
    for owner in 0..owners {
        let (_, time) = course.next();
        deadlines.set(owner, Some(time));
    }
    (deadlines, course)
}

fn timers(c: &mut Criterion) {
    for owners in [1, 10_000] {
        let mut group = c.benchmark_group(format!("timers/{owners}"));
        group.throughput(Throughput::Elements(1));
        standard_heap(&mut group, owners);
        let (mut deadlines, mut course) = filled(owners);
        group.bench_function("move a deadline", |b| {
            b.iter(|| {
                let (owner, time) = course.next();
                deadlines.set(black_box(owner), Some(time));
            })
        });
        let (mut deadlines, mut course) = filled(owners);
        group.bench_function("clear a deadline, and set it again", |b| {
            b.iter(|| {
                let (owner, time) = course.next();
                deadlines.set(black_box(owner), None);
                deadlines.set(black_box(owner), Some(time));
            })
        });
        let (mut deadlines, mut course) = filled(owners);
        group.bench_function("take the earliest, and set it again", |b| {
            b.iter(|| {
                let owner = deadlines.pop_expired(black_box(Time::NEVER)).unwrap();
                deadlines.set(owner, Some(course.next().1));
            })
        });
        let (mut deadlines, _) = filled(owners);
        group.bench_function("look, and nothing is due", |b| {
            b.iter(|| assert_eq!(deadlines.pop_expired(black_box(Time::ZERO)), None))
        });
        group.finish();
    }
}

fn standard_heap(group: &mut BenchmarkGroup<'_, WallTime>, owners: u32) {
    let mut course = Course::new(owners);
    let mut heap: BinaryHeap<Reverse<(Time, u32)>> =
        (0..owners).map(|owner| Reverse((course.next().1, owner))).collect();
    group.bench_function("limit: std's heap, take the earliest, and set it again", |b| {
        b.iter(|| {
            let Reverse((_, owner)) = black_box(&mut heap).pop().unwrap();
            heap.push(Reverse((course.next().1, owner)));
        })
    });
}

criterion_group!(benches, timers);
criterion_main!(benches);
