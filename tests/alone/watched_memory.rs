//! A program that polls for the completion of its own WRITE and then watches its memory: the peer's WRITE arrives as
//! soon as at a program that never polls.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{ConnectOptions, MemoryRegion, Payload, SendRequest};
use support::{ALL_ACCESS, End, PATIENCE, complete_one, poll_one};

const WORD: usize = 8;
const ROUNDS: usize = 41;
/// Polling for this long, the program gets the longest lease, of 4 ms.
const POLLED: Duration = Duration::from_millis(5);
/// Longer than a lease.
const WITHOUT_LEASE: Duration = Duration::from_millis(10);
/// Scheduling of the device's thread on a busy machine. The longest lease is eight times as long.
const USUAL: Duration = Duration::from_micros(500);

struct Peers {
    watcher: (End, MemoryRegion),
    peer: (End, MemoryRegion),
    number: u64,
}

impl Peers {
    fn connect() -> Self {
        let [watcher, peer] = ["127.98.4.1", "127.98.4.2"].map(|address| {
            let end = End::open(address);
            let region = end.pd.alloc_mr(WORD, ALL_ACCESS).unwrap();
            (end, region)
        });
        watcher.0.connect(&peer.0, &ConnectOptions::default());
        Self { watcher, peer, number: 0 }
    }

    /// Writes from one end to the other's memory.
    fn write(&mut self, from_peer: bool) {
        self.number += 1;
        let (from, to) = if from_peer { (&self.peer, &self.watcher) } else { (&self.watcher, &self.peer) };
        let bytes = self.number.to_le_bytes();
        let request = SendRequest::write(Payload::inline(&bytes), to.1.remote());
        from.0.qp.post_send(&[request.signaled()]).unwrap();
    }

    /// Returns the time from a post of the peer until the watcher's memory has the word. The watcher makes no call.
    fn watch(&mut self) -> Duration {
        let start = Instant::now();
        self.write(true);
        let mut word = [0; WORD];
        while word != self.number.to_le_bytes() {
            self.watcher.1.read_at(0, &mut word).unwrap();
            assert!(start.elapsed() < PATIENCE, "{}", self.watcher.0.qp.explain_state());
        }
        let waited = start.elapsed();
        complete_one(&self.peer.0.cq, &self.peer.0.qp);
        waited
    }

    /// The watcher polls for long, then writes and takes the completion.
    fn poll(&mut self) {
        let start = Instant::now();
        while start.elapsed() < POLLED {
            assert!(poll_one(&self.watcher.0.cq).is_none());
        }
        self.write(false);
        complete_one(&self.watcher.0.cq, &self.watcher.0.qp);
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn write_does_not_wait_for_the_lease_of_a_program_that_watches_its_memory() {
    let mut peers = Peers::connect();
    peers.watch();
    let (mut idle, mut leased) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        sleep(WITHOUT_LEASE);
        idle.push(peers.watch());
        peers.poll();
        leased.push(peers.watch());
    }
    let (idle, leased) = (median(idle), median(leased));
    println!("a WRITE arrives after {idle:?} without polls, and after {leased:?} behind a poll");
    assert!(leased < 3 * idle.max(USUAL / 3), "{leased:?}, and {idle:?} without polls");
}
