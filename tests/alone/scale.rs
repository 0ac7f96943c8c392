//! Many objects on one device: 10,000 queue pairs, 100,000 regions; the cost of each, and that nothing is left behind.

use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, Context, ErrorKind, LiveObjects, Payload, ProtectionDomain, QueuePair,
    QueuePairOptions, SendRequest,
};
use support::allocator::bytes;
use support::process::alone;
use support::{PATIENCE, entries};

const QUEUE_PAIRS: usize = 10_000;
const REGIONS: usize = 100_000;
/// Upper bound for an idle queue pair's memory beyond its rings.
const MOST_BYTES: usize = 4_096;
/// Number of requests in each queue.
const DEPTH: u32 = 16;

/// Returns the process' numbers of descriptors and threads.
fn holdings() -> (usize, usize) {
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

struct Device {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Device {
    fn open(address: &str) -> Self {
        let context = verbs::open(&format!("soft:{address}")).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(2 * QUEUE_PAIRS as u32).unwrap());
        Self { context, pd, cq }
    }

    fn queue_pair(&self, depth: u32) -> QueuePair {
        self.pd
            .create_qp_with(&self.cq, &self.cq, &QueuePairOptions::default().max_send_wr(depth).max_recv_wr(depth))
            .unwrap()
    }
}

/// Returns the average bytes of a connected queue pair with queues of this depth.
fn bytes_of_queue_pair(device: &Device, depth: u32) -> usize {
    const SAMPLES: usize = 500;
    let before = bytes();
    let queue_pairs: Vec<QueuePair> = (0..SAMPLES).map(|_| connected(device, depth)).collect();
    let used = bytes() - before;
    drop(queue_pairs);
    used as usize / SAMPLES
}

/// Creates a queue pair connected to itself, so that both halves are fully set up.
fn connected(device: &Device, depth: u32) -> QueuePair {
    let qp = device.queue_pair(depth);
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    qp
}

fn write(qp: &QueuePair, remote: verbs::RemoteMemory, wr_id: usize) {
    qp.post_send(&[SendRequest::write(Payload::EMPTY, remote).wr_id(wr_id as u64).signaled()]).unwrap();
}

/// Creates, connects, uses and destroys all queue pairs; returns the live objects meanwhile.
fn many_queue_pairs(device: &Device) -> LiveObjects {
    let region = device.pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
    let queue_pairs: Vec<QueuePair> = (0..QUEUE_PAIRS).map(|_| connected(device, DEPTH)).collect();
    // All work: a sample, from the first to the last, completes a request.
    for (wr_id, qp) in queue_pairs.iter().enumerate().step_by(97) {
        write(qp, region.remote(), wr_id);
        let done = device.cq.wait(PATIENCE).unwrap();
        assert_eq!((done.wr_id(), done.qpn(), done.is_success()), (wr_id as u64, qp.qpn(), true));
    }
    let mut numbers: Vec<u32> = queue_pairs.iter().map(|qp| qp.qpn().value()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), QUEUE_PAIRS);
    device.context.live_objects().unwrap()
}

fn many_regions(device: &Device) -> Duration {
    let start = Instant::now();
    let regions: Vec<_> = (0..REGIONS).map(|_| device.pd.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap()).collect();
    let registered = start.elapsed();
    assert!(device.context.live_objects().unwrap().memory_regions as usize >= REGIONS);
    for (number, region) in regions.iter().enumerate().step_by(1_001) {
        region.write_at(0, &number.to_le_bytes()).unwrap();
    }
    for (number, region) in regions.iter().enumerate().step_by(1_001) {
        assert_eq!(region.to_vec(..8).unwrap(), number.to_le_bytes(), "regions do not overlap");
    }
    registered
}

/// Bounds the time of all parts by the first part's: no operation is quadratic.
fn assert_even(name: &str, first: Duration, all: Duration, parts: u32) {
    println!("{name}: the first part {first:.1?}, all {parts} parts {all:.1?}");
    assert!(all < first * parts * 20 + Duration::from_secs(2), "{name} get slower the more there are");
}

#[test]
fn many_objects_cost_little_and_leave_nothing() {
    alone(|| {
        let device = Device::open("127.34.8.1");
        let limits = device.context.query_device();
        assert!(limits.max_qp as usize >= QUEUE_PAIRS && limits.max_mr as usize >= REGIONS, "{limits:?}");

        // Creates the tables and threads that stay with the device.
        many_queue_pairs(&device);
        let rings = (bytes_of_queue_pair(&device, 2 * DEPTH) - bytes_of_queue_pair(&device, DEPTH)) / DEPTH as usize;
        let whole = bytes_of_queue_pair(&device, DEPTH);
        let beyond = whole - rings * DEPTH as usize;
        println!(
            "a connected queue pair with queues of {DEPTH}: {whole} bytes, of them {rings} a place; {beyond} beyond"
        );
        assert!(beyond <= MOST_BYTES, "{beyond} bytes beyond the rings");

        let (before, held, alive) = (bytes(), holdings(), device.context.live_objects().unwrap());
        let start = Instant::now();
        let most = many_queue_pairs(&device);
        let elapsed = start.elapsed();
        let (left, holdings_left, objects_left) =
            (bytes() - before, holdings(), device.context.live_objects().unwrap());
        println!(
            "{QUEUE_PAIRS} queue pairs created, connected and destroyed in {:.2} s; {} objects at most; {} leaked \
             objects, {left} bytes, {} descriptors ({} in all), {} threads ({} in all)",
            elapsed.as_secs_f64(),
            most.total(),
            i64::from(objects_left.total()) - i64::from(alive.total()),
            holdings_left.0 as isize - held.0 as isize,
            holdings_left.0,
            holdings_left.1 as isize - held.1 as isize,
            holdings_left.1,
        );
        assert_eq!(most.queue_pairs as usize, QUEUE_PAIRS, "the count is of real objects: {most:?}");
        assert_eq!(objects_left, alive, "objects leak");
        assert_eq!(holdings_left, held, "descriptors or threads leak");
        assert!(left.unsigned_abs() < 64 << 10, "{left} bytes stay behind");

        let start = Instant::now();
        let part = Device::open("127.34.8.2");
        let first: Vec<_> =
            (0..REGIONS / 10).map(|_| part.pd.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap()).collect();
        let first_part = start.elapsed();
        drop((first, part));
        let registered = many_regions(&device);
        assert_even("regions", first_part, registered, 10);
        let (before, alive) = (bytes(), device.context.live_objects().unwrap());
        many_regions(&device);
        let objects = device.context.live_objects().unwrap();
        let leaked = i64::from(objects.memory_regions) - i64::from(alive.memory_regions);
        println!("{REGIONS} regions again; {leaked} leaked objects, {} bytes", bytes() - before);
        assert_eq!(objects, alive, "regions leak");
        assert!((bytes() - before).unsigned_abs() < 64 << 10, "regions leave memory behind");

        limits_hold(&device);
        let Device { context, pd, cq } = device;
        drop((pd, cq));
        drop(context);
    });
}

/// Creation fails beyond the limit, and succeeds again once there is room.
fn limits_hold(device: &Device) {
    let most = device.context.query_device().max_qp as usize;
    let mut queue_pairs: Vec<QueuePair> = (0..most).map(|_| device.queue_pair(1)).collect();
    let refused = device.pd.create_qp(&device.cq, &device.cq).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceLimit, "{refused}");
    assert!(refused.to_string().contains(&most.to_string()), "{refused}");
    queue_pairs.pop();
    queue_pairs.push(device.queue_pair(1));
}
