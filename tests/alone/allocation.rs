//! Posting, transport and polling allocate nothing: 100,000 requests in the verbs tier and in the owned tier, and each
//! kind of traffic between two devices of this process. Every allocation of the process counts, those of the engine's
//! threads included.

use rdma_verbs::owned::{self, BufferPool, Request};
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, Context, FlushFlags, ReceiveRequest, SendRequest, SharedMemory,
};
use support::PATIENCE;
use support::allocator;
use support::process::alone;

use super::traffic::{self, Ends};

const REQUESTS: usize = 100_000;
/// Number of requests in flight.
const DEPTH: usize = 16;
/// Number and size of the large messages.
const LARGE_MESSAGES: usize = 2_000;
const LARGE: usize = 64 << 10;
/// Number of parts of the requests that must have no repairs, and how many times as many parts are tried for them.
const PARTS: usize = 20;
const ATTEMPTS: usize = 20;

/// Runs `work` until all buffers have reached their size, then returns its number of allocations over `requests`
/// requests without repairs. `work` takes the number of requests.
///
/// On a busy machine a response may be so late that a probe requests it again. Repairs are recorded, so parts with a
/// repair do not count. Neither do those in which another process watches this one, as `rdma-verbs top` does.
fn allocations(traffic: &str, repairs: impl Fn() -> u64, requests: usize, mut work: impl FnMut(usize)) -> u64 {
    work(requests / 10);
    let (mut parts, mut count) = (0, 0);
    for attempts in 1..=PARTS * ATTEMPTS {
        let disturbances = || (repairs(), turns_of_the_mailbox());
        let (disturbances_before, before) = (disturbances(), allocator::allocations());
        work(requests / PARTS);
        let made = allocator::allocations() - before;
        if disturbances() != disturbances_before {
            continue;
        }
        (parts, count) = (parts + 1, count + made);
        if parts == PARTS {
            println!("{traffic}: {count} allocations over {requests} requests, {attempts} parts for {PARTS}");
            return count;
        }
    }
    panic!("{traffic}: only {parts} of {} parts had no repairs", PARTS * ATTEMPTS);
}

/// Returns how often the thread that answers other processes was given a processor: the third field of its `schedstat`.
fn turns_of_the_mailbox() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let is_mailbox = |name: String| name.trim_end() == "rdma-mailbox";
    let mailboxes = threads.filter(|thread| std::fs::read_to_string(thread.join("comm")).is_ok_and(is_mailbox));
    let schedules = mailboxes.filter_map(|thread| std::fs::read_to_string(thread.join("schedstat")).ok());
    schedules.filter_map(|text| text.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

fn open(address: &str) -> Context {
    verbs::open(&format!("soft:{address}")).unwrap()
}

#[test]
fn nothing_is_allocated_per_request() {
    alone(|| {
        let before = allocator::allocations();
        drop(std::hint::black_box(Box::new(1)));
        assert!(allocator::allocations() > before, "the counter counts");
        type Tier = fn(&Context) -> Box<dyn FnMut(usize)>;
        let tiers: [(&str, &str, Tier); 4] = [
            ("verbs tier", "127.90.2.1", |context| Box::new(verbs_tier(context))),
            ("owned tier", "127.90.2.2", |context| Box::new(owned_tier(context))),
            ("owned tier, shared receive queue", "127.43.2.2", |context| Box::new(owned_shared(context))),
            ("owned tier, in batches", "127.90.2.3", |context| Box::new(owned_batches(context))),
        ];
        for (tier, address, work) in tiers {
            let context = open(address);
            let count = allocations(tier, || traffic::repairs(&context), REQUESTS, work(&context));
            assert_eq!(count, 0, "{tier}");
        }
    });
}

#[test]
fn nothing_is_allocated_at_either_end() {
    alone(|| {
        ends_allocate_nothing(["127.98.1.1", "127.98.1.2"], SharedMemory::Off);
        ends_allocate_nothing(["127.98.1.3", "127.98.1.4"], SharedMemory::Auto);
    });
}

fn ends_allocate_nothing(addresses: [&str; 2], shared_memory: SharedMemory) {
    let ends = Ends::connect(addresses, shared_memory);
    let of = |traffic: &str, requests, work: &dyn Fn(usize)| {
        let traffic = format!("{traffic}, shared memory {shared_memory}");
        assert_eq!(allocations(&traffic, || ends.repairs(), requests, work), 0);
    };
    for signal_every in [1, 16] {
        let traffic = format!("SEND 8 B, there and back, 1 of {signal_every} signaled");
        of(&traffic, REQUESTS, &|messages| ends.ping_pong(messages / 2, signal_every));
    }
    of("SEND 8 B, in batches", REQUESTS, &|messages| ends.batches(messages / traffic::BATCH));
    of("WRITE 64 KiB", LARGE_MESSAGES, &|messages| ends.writes(messages, LARGE));
    of("READ 64 KiB", LARGE_MESSAGES, &|messages| ends.reads(messages, LARGE));
    of("empty polls", REQUESTS, &|polls| {
        (0..polls).for_each(|poll| assert_eq!(ends.0[poll % 2].poll(), 0, "a completion of nothing"));
    });
}

/// Rounds of receives, sends, writes, reads and atomics; a quarter of the requests are receives.
fn verbs_tier(context: &Context) -> impl FnMut(usize) + use<> {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let qp = pd.create_qp(&cq, &cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let mr = pd.alloc_mr(8192, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE).unwrap();
    let remote = mr.remote();
    move |requests| {
        for _ in 0..requests / DEPTH {
            let near = |slot: usize| mr.slice(slot * 64..(slot + 1) * 64).unwrap();
            let far = |slot: usize| remote.slice(4096 + slot * 64..4096 + (slot + 1) * 64).unwrap();
            for slot in 0..DEPTH / 4 {
                qp.post_recv(&[ReceiveRequest::new(near(slot))]).unwrap();
                qp.post_send(&[SendRequest::send(near(16 + slot))]).unwrap();
                qp.post_send(&[SendRequest::write(near(16), far(slot))]).unwrap();
                let word = mr.slice(2048..2056).unwrap();
                let last = match slot % 2 {
                    0 => SendRequest::read(near(20 + slot), far(slot)),
                    _ => SendRequest::fetch_and_add(word, far(slot).slice(..8).unwrap(), 1),
                };
                qp.post_send(&[last.signaled()]).unwrap();
            }
            // A receive and a signaled request in each quarter.
            for _ in 0..DEPTH / 2 {
                let completion: Completion = cq.wait(PATIENCE).unwrap();
                completion.result().unwrap();
            }
        }
    }
}

fn owned_tier(context: &Context) -> impl FnMut(usize) + use<> {
    let pd = context.alloc_pd().unwrap();
    let cq = owned::CompletionQueue::new(context, 256).unwrap();
    let qp = owned::QueuePair::new(&pd, &cq, &cq).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE).unwrap();
    let pool = BufferPool::new(&pd, 1 << 20).unwrap();
    move |requests| {
        let bytes = [7; 64];
        for _ in 0..requests / DEPTH {
            for slot in 0..DEPTH / 4 {
                let far = mr.remote().slice(slot * 64..(slot + 1) * 64).unwrap();
                qp.post_recv(pool.take(64).unwrap(), 1).unwrap();
                qp.post_send(Request::send(pool.copy_from(&bytes).unwrap())).unwrap();
                qp.post_send(Request::write(pool.copy_from(&bytes).unwrap(), far)).unwrap();
                let last = match slot % 2 {
                    0 => Request::read(pool.take(64).unwrap(), far),
                    _ => Request::fetch_and_add(pool.take(8).unwrap(), far.slice(..8).unwrap(), 1),
                };
                qp.post_send(last.signaled()).unwrap();
            }
            for _ in 0..DEPTH {
                let finished = cq.wait(PATIENCE).unwrap();
                finished.result().unwrap();
                drop(finished);
            }
        }
        assert_eq!(pool.stats().outstanding, 0);
    }
}

/// Rounds of WRITE, ATOMIC WRITE and FLUSH, each round with one doorbell.
fn owned_batches(context: &Context) -> impl FnMut(usize) + use<> {
    let pd = context.alloc_pd().unwrap();
    let cq = owned::CompletionQueue::new(context, 256).unwrap();
    let grant = AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    let qp = owned::QueuePair::with_options(&pd, &cq, &cq, &owned::QueuePairOptions::default().access(grant)).unwrap();
    qp.connect(&qp.connection_info().unwrap()).unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | grant).unwrap();
    let pool = BufferPool::new(&pd, 1 << 20).unwrap();
    let mut batch = Vec::with_capacity(DEPTH);
    move |requests| {
        for _ in 0..requests / DEPTH {
            for _ in 0..DEPTH / 4 {
                batch.push(Request::write(pool.copy_from(&[7; 64]).unwrap(), mr.remote()));
                batch.push(Request::atomic_write(pool.copy_from(&[7; 8]).unwrap(), mr.remote()));
                batch.push(Request::flush(mr.remote(), FlushFlags::GLOBAL));
                batch.push(Request::flush(mr.remote(), FlushFlags::GLOBAL).signaled());
            }
            qp.post_send_all(&mut batch).unwrap();
            for _ in 0..DEPTH {
                cq.wait(PATIENCE).unwrap().result().unwrap();
            }
        }
        assert_eq!((pool.stats().outstanding, qp.buffers_in_flight()), (0, (0, 0)));
    }
}

/// Half of the requests are sends, alternating between two queue pairs, the others receives of the queue that they
/// share.
fn owned_shared(context: &Context) -> impl FnMut(usize) + use<> {
    let pd = context.alloc_pd().unwrap();
    let cq = owned::CompletionQueue::new(context, 256).unwrap();
    let srq = owned::SharedReceiveQueue::new(&pd, 64).unwrap();
    let qps = [0, 1]
        .map(|_| owned::QueuePair::with_options(&pd, &cq, &cq, &owned::QueuePairOptions::default().srq(&srq)).unwrap());
    qps[0].connect(&qps[1].connection_info().unwrap()).unwrap();
    qps[1].connect(&qps[0].connection_info().unwrap()).unwrap();
    let pool = BufferPool::new(&pd, 1 << 20).unwrap();
    move |requests| {
        for _ in 0..requests / DEPTH {
            for slot in 0..DEPTH / 2 {
                srq.post_recv(pool.take(64).unwrap(), slot as u64).unwrap();
                let request = Request::send(pool.copy_from(&[7; 64]).unwrap());
                qps[slot % 2].post_send(if slot + 2 >= DEPTH / 2 { request.signaled() } else { request }).unwrap();
            }
            for _ in 0..DEPTH {
                let finished = cq.wait(PATIENCE).unwrap();
                finished.result().unwrap();
                drop(finished);
            }
        }
        assert_eq!((pool.stats().outstanding, srq.buffers_in_flight()), (0, 0));
    }
}
