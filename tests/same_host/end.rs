//! Ends of connections, and ping-pongs of SENDs through links.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
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

/// One end of a connection.
pub(super) struct End {
    pub(super) context: Context,
    channel: CompletionChannel,
    pub(super) cq: CompletionQueue,
    pub(super) qp: QueuePair,
    pub(super) memory: MemoryRegion,
    wait: Wait,
    received: usize,
}

/// Opens a device on an address.
pub(super) fn open(address: &str, sharing: SharedMemory) -> Result<Context, Failure> {
    Ok(verbs::open_soft(&format!("soft:{address}"), &SoftOptions::new().shared_memory(sharing))?)
}

impl End {
    pub(super) fn new(context: &Context, wait: Wait) -> Result<Self, Failure> {
        let context = context.clone();
        let (channel, pd) = (context.create_comp_channel()?, context.alloc_pd()?);
        let cq = context.create_cq_with(64, &CompletionQueueOptions::default().channel(&channel, 0))?;
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_send_wr(8).max_recv_wr(8))?;
        let memory = pd.alloc_mr(2 * BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        qp.init()?;
        let end = Self { context, channel, cq, qp, memory, wait, received: 0 };
        (0..RECEIVES).try_for_each(|_| end.post_receive())?;
        Ok(end)
    }

    fn post_receive(&self) -> Result<(), Failure> {
        Ok(self.qp.post_recv(&[ReceiveRequest::new(self.memory.slice(BYTES..)?)])?)
    }

    pub(super) fn info(&self) -> Result<String, Failure> {
        let mut info = Vec::new();
        self.qp.connection_info()?.write_to(&mut info)?;
        Ok(to_hex(&info))
    }

    pub(super) fn connect(&self, line: &str) -> Result<(), Failure> {
        // A busy machine takes the processor of an end for longer than it would wait by default.
        let options = ConnectOptions::default().timeout(18);
        Ok(self.qp.connect_with(&ConnectionInfo::from_bytes(&from_hex(line)?)?, &options)?)
    }

    /// All are signaled: there is room for few.
    pub(super) fn send(&self) -> Result<(), Failure> {
        Ok(self.qp.post_send(&[SendRequest::send(self.memory.slice(..BYTES)?).signaled()])?)
    }

    /// Waits for a message.
    pub(super) fn receive(&mut self) -> Result<(), Failure> {
        while !self.try_receive()? {}
        Ok(())
    }

    /// Takes a message, if one has arrived. An end that sleeps waits for an event first.
    pub(super) fn try_receive(&mut self) -> Result<bool, Failure> {
        if self.received == 0 {
            let mut completions = [Completion::default(); 8];
            let mut count = self.cq.poll(&mut completions)?;
            if count == 0 && self.wait == Wait::Sleep {
                self.cq.req_notify(Notify::Any)?;
                count = self.cq.poll(&mut completions)?;
                if count == 0 {
                    self.channel.wait_event(PATIENCE)?;
                }
            }
            for completion in &completions[..count] {
                if completion.result()?.opcode == CompletionOpcode::Receive {
                    self.received += 1;
                    self.post_receive()?;
                }
            }
        }
        let has_received = self.received > 0;
        self.received -= usize::from(has_received);
        Ok(has_received)
    }
}

/// Exchanges messages until one is counted that goes through memory.
pub(super) fn warm_up(
    context: &Context,
    counter: Counter,
    mut exchange: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let count = || context.counters().get(counter);
    let (before, last) = (count(), Instant::now() + PATIENCE);
    while count() == before {
        if Instant::now() > last {
            return Err("no memory is shared".into());
        }
        exchange()?;
    }
    Ok(())
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex(line: &str) -> Result<Vec<u8>, Failure> {
    let digits = line.trim();
    let bytes: Result<_, _> =
        (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)).collect();
    Ok(bytes?)
}

/// The other process, which ends with this value.
pub(super) struct Other {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts this program with these arguments.
    pub(super) fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or("a child without pipes")?;
        Ok(Self { child, input, lines: BufReader::new(output).lines() })
    }

    pub(super) fn line(&mut self) -> Result<String, Failure> {
        Ok(self.lines.next().ok_or("the other process ends")??)
    }

    pub(super) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        Ok(writeln!(self.input, "{line}")?)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a line from the process that started this one.
pub(super) fn read_line() -> Result<String, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line)
}

/// Measures half of a round trip in nanoseconds.
pub(super) fn measure(wait: Wait, length: Duration) -> Result<f64, Failure> {
    pin(wait, false)?;
    let mut other = Other::start(&["--link", &format!("{wait:?}").to_lowercase()])?;
    let mut end = End::new(&open(ADDRESSES[0], SharedMemory::Auto)?, wait)?;
    end.connect(&other.line()?)?;
    other.tell(&end.info()?)?;
    other.line()?;
    let context = end.context.clone();
    let mut exchange = || {
        end.send()?;
        end.receive()
    };
    warm_up(&context, Counter::SharedMemorySends, &mut exchange)?;
    time(length, exchange)
}

/// The other process.
pub(super) fn answer(wait: Wait) -> Result<(), Failure> {
    pin(wait, true)?;
    let mut end = End::new(&open(ADDRESSES[1], SharedMemory::Auto)?, wait)?;
    println!("{}", end.info()?);
    end.connect(&read_line()?)?;
    println!("ready");
    loop {
        end.receive()?;
        end.send()?;
    }
}
