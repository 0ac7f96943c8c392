//! Ping-pongs of SENDs through links.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionChannel, CompletionOpcode, CompletionQueue, CompletionQueueOptions,
    ConnectOptions, ConnectionInfo, Context, Counter, MemoryRegion, Notify, QueuePair, QueuePairOptions,
    ReceiveRequest, SendRequest, SharedMemory,
};

use super::{Failure, Wait, pin, time};

const BYTES: usize = 8;
const RECEIVES: usize = 4;
/// Longest time until packets leave through memory.
const PATIENCE: Duration = Duration::from_secs(10);
const ADDRESSES: [&str; 2] = ["127.50.0.1", "127.50.0.2"];

struct End {
    context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
    wait: Wait,
    received: usize,
}

impl End {
    fn new(address: &str, wait: Wait) -> Result<Self, Failure> {
        let context =
            verbs::open_soft(&format!("soft:{address}"), &SoftOptions::new().shared_memory(SharedMemory::Auto))?;
        let (channel, pd) = (context.create_comp_channel()?, context.alloc_pd()?);
        let cq = context.create_cq_with(64, &CompletionQueueOptions::default().channel(&channel, 0))?;
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(8).max_recv_wr(8))?;
        let memory = pd.alloc_mr(2 * BYTES, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        let end = Self { context, channel, cq, qp, memory, wait, received: 0 };
        (0..RECEIVES).try_for_each(|_| end.post_receive())?;
        Ok(end)
    }

    fn post_receive(&self) -> Result<(), Failure> {
        Ok(self.qp.post_recv(&[ReceiveRequest::new(self.memory.slice(BYTES..)?)])?)
    }

    fn info(&self) -> Result<String, Failure> {
        let mut info = Vec::new();
        self.qp.connection_info()?.write_to(&mut info)?;
        Ok(info.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn connect(&self, line: &str) -> Result<(), Failure> {
        let digits = line.trim();
        let bytes: Result<Vec<u8>, _> =
            (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)).collect();
        // A busy machine takes the processor of an end for longer than it would wait by default.
        let options = ConnectOptions::default().timeout(18);
        Ok(self.qp.connect_with(&ConnectionInfo::from_bytes(&bytes?)?, &options)?)
    }

    /// All are signaled: there is room for few.
    fn send(&self) -> Result<(), Failure> {
        Ok(self.qp.post_send(&[SendRequest::send(self.memory.slice(..BYTES)?).signaled()])?)
    }

    /// Waits for a message.
    fn receive(&mut self) -> Result<(), Failure> {
        let mut completions = [Completion::default(); 8];
        while self.received == 0 {
            let mut count = self.cq.poll(&mut completions)?;
            if count == 0 && self.wait == Wait::Sleep {
                self.cq.req_notify(Notify::Any)?;
                count = self.cq.poll(&mut completions)?;
                if count == 0 {
                    self.channel.wait_event(PATIENCE)?;
                }
            }
            for completion in &completions[..count] {
                let done = completion.result()?;
                if done.opcode == CompletionOpcode::Receive {
                    self.received += 1;
                    self.post_receive()?;
                }
            }
        }
        self.received -= 1;
        Ok(())
    }
}

struct Answering(Child);

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures half of a round trip in nanoseconds.
pub(super) fn measure(wait: Wait, length: Duration) -> Result<f64, Failure> {
    pin(wait, false)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--link", &format!("{wait:?}").to_lowercase()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let _answering = Answering(child);
    let (mut input, output) = pipes.ok_or("a child without pipes")?;
    let mut lines = BufReader::new(output).lines();
    let mut end = End::new(ADDRESSES[0], wait)?;
    end.connect(&lines.next().ok_or("the other process ends")??)?;
    writeln!(input, "{}", end.info()?)?;
    lines.next().ok_or("the other process ends")??;
    let sends = |end: &End| end.context.counters().get(Counter::SharedMemorySends);
    let (before, last) = (sends(&end), Instant::now() + PATIENCE);
    while sends(&end) == before {
        if Instant::now() > last {
            return Err("no memory is shared".into());
        }
        end.send()?;
        end.receive()?;
    }
    time(length, || {
        end.send()?;
        end.receive()
    })
}

/// The other process.
pub(super) fn answer(wait: Wait) -> Result<(), Failure> {
    pin(wait, true)?;
    let mut end = End::new(ADDRESSES[1], wait)?;
    println!("{}", end.info()?);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    end.connect(&line)?;
    println!("ready");
    loop {
        end.receive()?;
        end.send()?;
    }
}
