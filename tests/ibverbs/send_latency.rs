//! The cost of the provider over libibverbs: eight-byte SENDs back and forth over a reliable connection, polling,
//! against a C program that does the same with libibverbs (`send_latency.c`).
//!
//! Both programs are ready before the first repetition and take turns; which one begins alternates. Each has both ends
//! in one thread, so that only posting, polling and the device itself are measured. Repetitions are short and many, so
//! that other load on the machine affects both alike. It prints the medians of their means and the ratio; the exit
//! status says whether the ratio is within the limit.
//!
//! `tests/ibverbs/run` starts it on the kernel's rxe.

use std::cell::Cell;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, MemoryRegion, Payload, ProtectionDomain,
    QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

// As in send_latency.c.
const MESSAGE_BYTES: usize = 8;
const WARM_UP: u32 = 10;
const EXCHANGES: u32 = 100;
const RECEIVES: usize = 64;
const SENDS: usize = 64;
/// One in this many sends is signaled, to free the slots.
const SIGNAL_EVERY: u32 = 32;

#[derive(Parser)]
#[command(about = "Measures what the provider over libibverbs costs, against a C program")]
struct Arguments {
    /// An adapter, for example rxe0
    #[arg(short, long)]
    device: String,
    /// The C program
    #[arg(long)]
    against: PathBuf,
    /// How often each of the two is measured
    #[arg(long, default_value_t = 151)]
    repetitions: usize,
    /// Highest ratio that is accepted
    #[arg(long, default_value_t = 1.05)]
    limit: f64,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("send_latency: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the two in turns; returns whether the ratio is within the limit.
fn measure(arguments: &Arguments) -> Outcome<bool> {
    let context = verbs::open(&arguments.device)?;
    let gid_index = context.default_gid_index(1)?;
    let mut reference = Reference::start(arguments, gid_index)?;
    let pd = context.alloc_pd()?;
    let (left, right) = (End::create(&pd)?, End::create(&pd)?);
    left.qp.connect(&right.qp.connection_info()?)?;
    right.qp.connect(&left.qp.connection_info()?)?;

    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for repetition in 0..arguments.repetitions {
        if repetition % 2 == 0 {
            theirs.push(reference.repeat()?);
            ours.push(repeat(&left, &right)?);
        } else {
            ours.push(repeat(&left, &right)?);
            theirs.push(reference.repeat()?);
        }
    }
    reference.finish()?;
    let count = arguments.repetitions;
    println!("half round trip of {MESSAGE_BYTES} bytes on {}, medians of {count}", arguments.device);
    let (theirs, ours) = (print("C, libibverbs", &mut theirs), print("this crate", &mut ours));
    let ratio = ours / theirs;
    println!("  {:<16}{ratio:>9.3}      (limit {})", "ratio", arguments.limit);
    Ok(ratio <= arguments.limit)
}

/// The C program.
struct Reference {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Reference {
    fn start(arguments: &Arguments, gid_index: u8) -> Outcome<Self> {
        let mut command = Command::new(&arguments.against);
        command.arg(&arguments.device).arg(gid_index.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, answers) = (process.stdin.take(), process.stdout.take());
        let (orders, answers) = orders.zip(answers).ok_or("the C program has no standard streams")?;
        Ok(Self { process, orders, answers: BufReader::new(answers) })
    }

    /// Runs one repetition; returns nanoseconds for half a round trip.
    fn repeat(&mut self) -> Outcome<f64> {
        self.orders.write_all(b"go\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim().parse().map_err(|_| format!("the C program answered {line:?}").into())
    }

    fn finish(mut self) -> Outcome {
        drop(self.orders);
        if self.process.wait()?.success() { Ok(()) } else { Err("the C program failed".into()) }
    }
}

/// One end of the connection.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    inbox: MemoryRegion,
    /// Number of posted receives.
    receives: Cell<usize>,
    sent: Cell<u32>,
}

impl End {
    fn create(pd: &ProtectionDomain) -> Outcome<Self> {
        let cq = pd.context().create_cq((SENDS + RECEIVES) as u32)?;
        let options = QueuePairOptions::default().max_send_wr(SENDS as u32).max_recv_wr(RECEIVES as u32);
        let options = options.max_send_sge(1).max_recv_sge(1).max_inline_data(MESSAGE_BYTES as u32);
        let qp = pd.create_qp_with(&cq, &cq, &options)?;
        qp.init()?;
        let inbox = pd.alloc_mr(MESSAGE_BYTES, AccessFlags::LOCAL_WRITE)?;
        let end = Self { qp, cq, inbox, receives: Cell::new(0), sent: Cell::new(0) };
        end.fill()?;
        Ok(end)
    }

    fn send(&self) -> Outcome {
        let sent = self.sent.get().wrapping_add(1);
        self.sent.set(sent);
        let request = SendRequest::send(Payload::inline(&[7; MESSAGE_BYTES]));
        let request = if sent.is_multiple_of(SIGNAL_EVERY) { request.signaled() } else { request };
        Ok(self.qp.post_send(&[request])?)
    }

    /// Waits for a message, taking other completions as well.
    fn receive(&self) -> Outcome {
        let mut completions = [Completion::default()];
        loop {
            if self.cq.poll(&mut completions)? == 0 {
                continue;
            }
            if completions[0].result()?.opcode == CompletionOpcode::Receive {
                break;
            }
        }
        let left = self.receives.get() - 1;
        self.receives.set(left);
        if left == RECEIVES / 2 { self.fill() } else { Ok(()) }
    }

    /// Refills the receives when half of them are used, as `ibv_rc_pingpong` does.
    fn fill(&self) -> Outcome {
        let mut batch = self.qp.recv_batch()?;
        for _ in self.receives.get()..RECEIVES {
            batch.push(&ReceiveRequest::new(&self.inbox))?;
        }
        batch.post()?;
        self.receives.set(RECEIVES);
        Ok(())
    }
}

fn exchange(left: &End, right: &End, count: u32) -> Outcome {
    for _ in 0..count {
        left.send()?;
        right.receive()?;
        right.send()?;
        left.receive()?;
    }
    Ok(())
}

/// Runs one repetition; returns nanoseconds for half a round trip.
fn repeat(left: &End, right: &End) -> Outcome<f64> {
    exchange(left, right, WARM_UP)?;
    let start = Instant::now();
    exchange(left, right, EXCHANGES)?;
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(EXCHANGES) / 2.0)
}

/// Prints the measurements and returns their median.
fn print(name: &str, means: &mut [f64]) -> f64 {
    means.sort_by(f64::total_cmp);
    let (least, median, most) = (means[0], means[means.len() / 2], means[means.len() - 1]);
    println!("  {name:<16}{:>9.3} µs   ({:.3} to {:.3})", median / 1e3, least / 1e3, most / 1e3);
    median
}
