//! The device that receives the garbage, and a connection on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::types::{Qpn, ROCE_PORT};
use rdma_verbs::verbs::{
    AccessFlags, Completion, CompletionQueue, Context, Counter, MemoryRegion, QueuePair, QueuePairOptions,
    ReceiveRequest, SendRequest,
};
use support::open_without_shared_memory;

use super::flood::{BURSTS, Flood, processor_time};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 46, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(127, 46, 0, 2);
const MESSAGE: usize = 1_024;
const DEPTH: usize = 64;
/// Duration for which a thread polls so that the device's own thread leaves the device to it.
const POLLING: Duration = Duration::from_micros(600);
/// Duration of silence after which all late packets are presumed to have arrived.
const SETTLING: Duration = Duration::from_millis(20);

/// One end of the connection.
struct End {
    context: Context,
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
}

impl End {
    fn open(address: Ipv4Addr) -> Self {
        let context = open_without_shared_memory(&format!("soft:{address}")).expect("a device");
        let (pd, cq) = (context.alloc_pd().expect("a domain"), context.create_cq(1_024).expect("a queue"));
        let depth = DEPTH as u32;
        let qp = pd
            .create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(depth).max_recv_wr(depth))
            .expect("a queue pair");
        let region = pd.alloc_mr(MESSAGE, AccessFlags::LOCAL_WRITE).expect("a region");
        Self { context, cq, qp, region }
    }

    fn poll(&self) -> usize {
        let mut completions = [Completion::default(); DEPTH];
        let count = self.cq.poll(&mut completions).expect("poll");
        for completion in &completions[..count] {
            if let Err(failure) = completion.result() {
                panic!("{}", self.qp.explain(&failure));
            }
        }
        count
    }

    fn receive(&self, count: usize) {
        let requests = vec![ReceiveRequest::new(&self.region); count];
        self.qp.post_recv(&requests).expect("post_recv");
    }

    fn send(&self, count: usize) {
        let requests = vec![SendRequest::send(&self.region).signaled(); count];
        self.qp.post_send(&requests).expect("post_send");
    }
}

/// The device and its peer.
pub(crate) struct Victim {
    end: End,
    peer: End,
}

impl Victim {
    pub(crate) fn new() -> Self {
        let (end, peer) = (End::open(ADDRESS), End::open(PEER));
        let infos = [&end, &peer].map(|end| end.qp.connection_info().expect("connection_info"));
        end.qp.connect(&infos[1]).expect("connect");
        peer.qp.connect(&infos[0]).expect("connect");
        end.receive(DEPTH);
        Self { end, peer }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (ADDRESS, ROCE_PORT).into()
    }

    pub(crate) fn peer(&self) -> Ipv4Addr {
        PEER
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.end.qp.qpn()
    }

    /// Returns the processor time for each packet that the engine discards, driven by a polling thread.
    pub(crate) fn nanoseconds_a_packet(&self, flood: &Flood) -> f64 {
        let (mut time, mut count) = (Duration::ZERO, 0);
        for _ in 0..BURSTS {
            // After some polling, the device's own thread leaves the device to this one and sleeps through the burst.
            let begin = Instant::now();
            while begin.elapsed() < POLLING {
                self.end.poll();
            }
            flood.burst();
            let before = self.end.context.counters();
            let start = processor_time();
            // Receives a burst. Polls that find nothing would yield the processor, which is no cost of garbage.
            self.end.poll();
            time += processor_time() - start;
            let since = self.end.context.counters().since(&before);
            assert_eq!(since.get(Counter::SentPackets), 0, "garbage has a response");
            count += since.total_drops();
        }
        time.as_nanos() as f64 / count.max(1) as f64
    }

    /// Returns the messages per second from the peer to the device beside a flood, driven by one thread.
    pub(crate) fn rate_beside(&self, flood: &Flood, length: Duration) -> f64 {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| flood.run(&stop));
            thread::sleep(SETTLING);
            let (begin, mut count) = (Instant::now(), 0);
            self.peer.send(DEPTH / 2);
            let mut outstanding = DEPTH / 2;
            while outstanding > 0 {
                let done = self.peer.poll();
                outstanding -= done;
                count += done;
                let arrived = self.end.poll();
                self.end.receive(arrived);
                if begin.elapsed() < length {
                    self.peer.send(done);
                    outstanding += done;
                }
            }
            let rate = count as f64 / begin.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            rate
        })
    }
}
