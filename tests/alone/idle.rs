//! Idle connections cost nothing: a thousand that have worked and now wait leave every thread of the process asleep.
//!
//! For the documented ten seconds: `RDMA_VERBS_IDLE_SECONDS=10 cargo test --test alone idle:: -- --nocapture`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, CompletionChannel, CompletionQueue, CompletionQueueOptions, Context, Notify, ProtectionDomain,
    QueuePair, QueuePairOptions, SendRequest,
};
use support::process::alone;

const QUEUE_PAIRS: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(30);
/// The default of `RDMA_VERBS_IDLE_SECONDS`.
const SECONDS: u64 = 3;
/// Duration without activity that counts as idle; longer than every deadline of finished work.
const QUIET: Duration = Duration::from_millis(500);

/// The activity of a thread since its start.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Life {
    name: String,
    /// Voluntary and involuntary context switches.
    switches: Vec<u64>,
    /// Nanoseconds on a processor, and number of times scheduled.
    ran: Vec<u64>,
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Returns the activity of a thread from its folder; an error if the thread ends meanwhile.
fn life(folder: &Path) -> io::Result<Life> {
    let read = |file| fs::read_to_string(folder.join(file));
    let status = read("status")?;
    let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
    Ok(Life {
        name: read("comm")?.trim().to_owned(),
        switches: switches.flat_map(numbers).collect(),
        // Time on a processor, time waiting for one, number of times scheduled; empty if the kernel does not count.
        ran: numbers(&read("schedstat")?).into_iter().step_by(2).collect(),
    })
}

/// Returns all threads but the caller's.
fn others() -> BTreeMap<String, Life> {
    let own = fs::read_link("/proc/thread-self").unwrap();
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let others = threads.filter(|thread| Some(thread.file_name().as_os_str()) != own.file_name());
    others
        // A thread that was joined a moment ago may still be in the list.
        .filter_map(|thread| Some((thread.file_name().into_string().unwrap(), life(&thread.path()).ok()?)))
        .collect()
}

/// Waits until no thread has done anything for a while, and returns them.
fn wait_quiet() -> BTreeMap<String, Life> {
    let start = Instant::now();
    let mut last = others();
    loop {
        thread::sleep(QUIET);
        let now = others();
        if now == last {
            return now;
        }
        assert!(start.elapsed() < PATIENCE, "they never rest:\n{last:#?}\n{now:#?}");
        last = now;
    }
}

struct End {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    channel: CompletionChannel,
    pd: ProtectionDomain,
    _context: Context,
}

impl End {
    fn open(address: &str) -> Self {
        let context = verbs::open(&format!("soft:{address}")).unwrap();
        let (pd, channel) = (context.alloc_pd().unwrap(), context.create_comp_channel().unwrap());
        let cq = context
            .create_cq_with(4 * QUEUE_PAIRS as u32, &CompletionQueueOptions::default().channel(&channel, 1))
            .unwrap();
        let qp = || pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(16).max_recv_wr(16)).unwrap();
        let qps = (0..QUEUE_PAIRS).map(|_| qp()).collect();
        Self { qps, cq, channel, pd, _context: context }
    }

    fn connect(&self, peer: &End) {
        for (qp, other) in self.qps.iter().zip(&peer.qps) {
            qp.connect(&other.connection_info().unwrap()).unwrap();
        }
    }

    /// Each connection writes a word to its slot at the peer, and reads it back into a second slot of its own.
    fn work(&self, peer: &End) {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let near = self.pd.alloc_mr(16 * QUEUE_PAIRS, access).unwrap();
        let far = peer.pd.alloc_mr(8 * QUEUE_PAIRS, access).unwrap();
        let range_of = |number: usize| -> Range<usize> { 8 * number..8 * (number + 1) };
        for (number, qp) in self.qps.iter().enumerate() {
            near.write_at(8 * number, &(number as u64 + 1).to_le_bytes()).unwrap();
            let remote = far.remote().slice(range_of(number)).unwrap();
            let write = SendRequest::write(near.slice(range_of(number)).unwrap(), remote);
            let read = SendRequest::read(near.slice(range_of(QUEUE_PAIRS + number)).unwrap(), remote);
            // The READ executes after the WRITE, and completes after it.
            qp.post_send(&[write, read.signaled()]).unwrap();
        }
        for _ in 0..QUEUE_PAIRS {
            self.cq.wait(PATIENCE).unwrap().result().unwrap();
        }
        let words = near.to_vec(range_of(QUEUE_PAIRS).start..).unwrap();
        for (number, word) in words.chunks_exact(8).enumerate() {
            assert_eq!(word, (number as u64 + 1).to_le_bytes());
        }
    }
}

fn seconds() -> u64 {
    std::env::var("RDMA_VERBS_IDLE_SECONDS").ok().map_or(SECONDS, |text| text.parse().expect("a number of seconds"))
}

#[test]
fn idle_connections_wake_no_thread() {
    alone(|| {
        let ends = ["127.98.3.1", "127.98.3.2"].map(End::open);
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        ends[0].work(&ends[1]);
        ends[1].work(&ends[0]);
        let last = ends[1].pd.alloc_mr(8, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
        thread::scope(|scope| {
            // A thread sleeps on the channel of one end; no thread uses the other end.
            let waiting = scope.spawn(|| {
                ends[0].cq.req_notify(Notify::Any).unwrap();
                ends[0].channel.wait_event(PATIENCE + Duration::from_secs(seconds())).unwrap()
            });
            let before = wait_quiet();
            let names: Vec<&str> = before.values().map(|life| life.name.as_str()).collect();
            assert!(names.iter().filter(|name| name.starts_with("rdma0")).count() >= 2, "engines of both: {names:?}");
            thread::sleep(Duration::from_secs(seconds()));
            let after = others();
            println!("{QUEUE_PAIRS} idle connections: in {} s nothing was done by any of {names:?}", seconds());
            assert_eq!(before, after, "a thread woke up");
            // The connections still work: a message arrives and wakes the waiting thread.
            let write = SendRequest::write(verbs::Payload::EMPTY, last.remote().slice(..0).unwrap());
            ends[0].qps[QUEUE_PAIRS - 1].post_send(&[write.signaled()]).unwrap();
            assert_eq!(waiting.join().unwrap(), 1);
            let served = others();
            let woke_up = |(id, life): (&String, &Life)| life.name.starts_with("rdma0") && served.get(id) != Some(life);
            assert!(after.iter().any(woke_up), "the far end is not polled: its thread served the message");
        });
    });
}
