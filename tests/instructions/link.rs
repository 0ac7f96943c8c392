//! Executes WRITEs of one device of a process in the memory of another, for `tests/instructions/run`, which counts the
//! processor's instructions with callgrind. One thread drives both devices, so the counts are nearly the same in every
//! run. Those of SENDs through a ring are not: they depend on the time.
//!
//! `link_instructions write BYTES COUNT [BATCH]`: BATCH messages are posted before the completion of the last one is
//! polled, one by default.

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionQueue, Context, Counter, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairOptions, SendRequest, SharedMemory,
};

const ADDRESSES: [&str; 2] = ["127.50.1.1", "127.50.1.2"];
const REGION_BYTES: usize = 1 << 16;
const MOST_BATCH: usize = 64;
/// Longest time until messages go through memory.
const PATIENCE: Duration = Duration::from_secs(60);

struct End {
    context: Context,
    _pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn new(address: &str) -> Result<Self, Box<dyn Error>> {
        let options = SoftOptions::new().shared_memory(SharedMemory::Auto);
        let context = verbs::open_soft(&format!("soft:{address}"), &options)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(4 * MOST_BATCH as u32)?);
        let depth = 2 * MOST_BATCH as u32;
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(depth).max_recv_wr(depth))?;
        let memory = pd.alloc_mr(REGION_BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        qp.init()?;
        Ok(Self { context, _pd: pd, cq, qp, memory })
    }

    /// Returns the number of WRITEs so far that needed no packet.
    fn direct(&self) -> u64 {
        self.context.counters().get(Counter::DirectRequests)
    }

    /// Writes a batch to the other end, and waits until the last one is complete.
    fn write(&self, other: &Self, bytes: usize, batch: usize) -> Result<(), Box<dyn Error>> {
        let remote = other.memory.remote().slice(..bytes)?;
        for number in 1..=batch {
            let request = SendRequest::write(self.memory.slice(..bytes)?, remote);
            self.qp.post_send(&[if number == batch { request.signaled() } else { request }])?;
        }
        let (mut completions, last) = ([Completion::default(); 16], Instant::now() + PATIENCE);
        while self.cq.poll(&mut completions)? == 0 {
            if Instant::now() > last {
                return Err("messages do not arrive".into());
            }
            // Until both ends share memory, a packet may wait there.
            other.cq.poll(&mut [Completion::default(); 16])?;
        }
        completions[0].result()?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, bytes, count, rest @ ..] = &arguments[..] else { return Err("write BYTES COUNT [BATCH]".into()) };
    let (bytes, count): (usize, usize) = (bytes.parse()?, count.parse()?);
    let batch: usize = rest.first().map_or(Ok(1), |batch| batch.parse())?;
    if operation != "write" || bytes > REGION_BYTES || !(1..=MOST_BATCH).contains(&batch) {
        return Err(format!("WRITEs of at most {REGION_BYTES} bytes and {MOST_BATCH} in a batch").into());
    }
    let (near, far) = (End::new(ADDRESSES[0])?, End::new(ADDRESSES[1])?);
    let infos = [near.qp.connection_info()?, far.qp.connection_info()?];
    near.qp.connect(&infos[1])?;
    far.qp.connect(&infos[0])?;
    let last = Instant::now() + PATIENCE;
    while near.direct() == 0 {
        if Instant::now() > last {
            return Err("no memory is shared".into());
        }
        near.write(&far, bytes, 1)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = near.direct();
    (0..count.div_ceil(batch)).try_for_each(|_| near.write(&far, bytes, batch))?;
    if near.direct() == before { Err("the messages do not go through memory".into()) } else { Ok(()) }
}
