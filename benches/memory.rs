//! The cost of accessing registered memory: copies in and out against a plain copy, and a lookup of a region by its key
//! against one in a plain list.

use std::hint::black_box;
use std::sync::{Arc, RwLock};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rdma_verbs::memory::{Backing, Region, RegionTable};
use rdma_verbs::types::{AccessFlags, DomainId};

const DOMAIN: DomainId = DomainId(1);
const ACCESS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);
/// Distance between the page offsets of source and target: with equal offsets, accesses to them alias in the processor.
const APART: usize = 2_112;
const SIZES: [usize; 6] = [8, 64, 256, 1024, 4096, 65_536];

fn copies(c: &mut Criterion) {
    let table = RegionTable::new(2);
    let own = table.register(DOMAIN, Backing::anonymous(1 << 17).unwrap(), 0u64, ACCESS).unwrap();
    let mut bytes = vec![0u8; 1 << 17];
    // SAFETY: `bytes` outlives the region, and nothing else uses it.
    let raw = unsafe { Backing::raw(bytes.as_mut_ptr(), bytes.len()) };
    let raw = table.register(DOMAIN, raw, 0u64, ACCESS).unwrap();
    for size in SIZES {
        let mut group = c.benchmark_group(format!("copy/{size}"));
        group.throughput(Throughput::Bytes(size as u64));
        let (source, mut target) = (vec![1u8; size], vec![0u8; size + APART]);
        let target = &mut target[APART..];
        group.bench_function("limit: plain copy", |b| {
            b.iter(|| black_box(&mut *target).copy_from_slice(black_box(&source)))
        });
        for (name, region) in [("own", &own), ("raw", &raw)] {
            group.bench_function(format!("{name} in"), |b| b.iter(|| region.write_at(0, black_box(&source)).unwrap()));
            group.bench_function(format!("{name} in, odd offset"), |b| {
                let source = &source[..size - 1];
                b.iter(|| region.write_at(3, black_box(source)).unwrap())
            });
            group.bench_function(format!("{name} out"), |b| {
                b.iter(|| region.read_at(0, black_box(&mut *target)).unwrap())
            });
            copies_by_key(&mut group, &table, (name, region), &source, target);
        }
        group.finish();
    }
    let mut group = c.benchmark_group("word");
    for (name, region) in [("own", &own), ("raw", &raw)] {
        group.bench_function(format!("{name} load"), |b| b.iter(|| region.load_acquire_u64(8).unwrap()));
        group.bench_function(format!("{name} fetch and add"), |b| b.iter(|| region.fetch_add_u64(8, 1).unwrap()));
    }
}

/// Copies as for a packet's payload: looks the region up by its key and checks its access flags.
fn copies_by_key(
    group: &mut BenchmarkGroup<'_, WallTime>,
    table: &RegionTable,
    (name, region): (&str, &Region),
    source: &[u8],
    target: &mut [u8],
) {
    let (view, key) = (table.read(), region.rkey().0);
    group.bench_function(format!("{name} in, by key"), |b| {
        let need = AccessFlags::REMOTE_WRITE;
        b.iter(|| view.write(black_box(key), DOMAIN, region.iova(), need, black_box(source)).unwrap())
    });
    group.bench_function(format!("{name} out, by key"), |b| {
        let need = AccessFlags::REMOTE_READ;
        b.iter(|| view.read(black_box(key), DOMAIN, region.iova(), need, black_box(&mut *target)).unwrap())
    });
}

fn lookup(c: &mut Criterion) {
    for count in [1, 100_000] {
        let mut group = c.benchmark_group(format!("lookup/{count}"));
        let table = RegionTable::new(count + 1);
        let regions: Vec<Arc<Region>> =
            (0..count).map(|_| table.register(DOMAIN, Backing::from_vec(vec![0; 64]), 0u64, ACCESS).unwrap()).collect();
        let view = table.read();
        let mut next = 0;
        group.bench_function("check, the key from its region", |b| {
            b.iter(|| {
                next = (next + 7919) % count;
                view.check(black_box(regions[next].rkey().0), DOMAIN, 8, 8, AccessFlags::REMOTE_WRITE).unwrap();
            })
        });
        let keys: Vec<u32> = regions.iter().map(|region| region.rkey().0).collect();
        plain_list(&mut group, count);
        group.bench_function("check, keys at hand", |b| {
            b.iter(|| {
                next = (next + 7919) % count;
                view.check(black_box(keys[next]), DOMAIN, 8, 8, AccessFlags::REMOTE_WRITE).unwrap();
            })
        });
        drop(view);
        group.bench_function("register and deregister", |b| {
            let mut bytes = vec![0; 64];
            b.iter(|| {
                let backing = Backing::from_vec(std::mem::take(&mut bytes));
                let region = table.register(DOMAIN, backing, 0u64, ACCESS).unwrap();
                assert!(table.deregister(&region));
                bytes = Region::into_backing(region).unwrap().into_vec().unwrap();
            })
        });
    }
    let table = RegionTable::new(1);
    let mut group = c.benchmark_group("view");
    let lock = RwLock::new(());
    group.bench_function("limit: a lock for readers", |b| b.iter(|| black_box(lock.read().unwrap())));
    group.bench_function("take and drop a view", |b| b.iter(|| black_box(table.read())));
}

/// Measures the memory accesses that a lookup among this many cannot avoid: a table entry, and the region that it
/// names, which may be anywhere.
fn plain_list(group: &mut BenchmarkGroup<'_, WallTime>, count: usize) {
    let mut list: Vec<Box<[u64; 8]>> = (0..count as u64).map(|number| Box::new([number; 8])).collect();
    list.shuffle(&mut StdRng::seed_from_u64(1));
    let mut next = 0;
    group.bench_function("limit: a plain list", |b| {
        b.iter(|| {
            next = (next + 7919) % count;
            black_box(list[black_box(next)][0]);
        })
    });
}

criterion_group!(benches, copies, lookup);
criterion_main!(benches);
