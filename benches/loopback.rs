//! The overhead of the driving scheme over the sockets below it: an 8-byte polling SEND ping-pong against a raw
//! non-blocking UDP ping-pong of the same payload, on loopback.
//!
//! All run in turns between the same two processes, each pinned to its own core, so that other load of the machine
//! affects all alike. Raw UDP runs twice: between empty receives it spins, which is best on idle cores, or yields, like
//! the engine, which is best on busy ones. The output has the medians of the repetitions' means, and our ratio to the
//! faster of the two.
//!
//! `cargo bench --bench loopback`; with `-- --check`, the exit code indicates whether the ratio is at most 1.5.

use std::cell::Cell;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, MemoryRegion, Payload, QueuePair,
    QueuePairOptions, ReceiveRequest, SendRequest, SharedMemory, SoftOptions,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Number of exchanges of a repetition, and of those before it that are not measured.
const EXCHANGES: u32 = 20_000;
const WARM_UP: u32 = 2_000;
const REPETITIONS: usize = 9;
const MESSAGE_BYTES: usize = 8;
const RECEIVES: usize = 64;
/// Interval of signaled sends, which free the slots of the sends before them.
const SIGNAL_EVERY: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(30);
const RATIO_LIMIT: f64 = 1.5;
/// Set in the second process, to the address on which the first one listens.
const PARTNER: &str = "RDMA_VERBS_BENCH_PARTNER";

fn main() -> ExitCode {
    let outcome = match std::env::var(PARTNER) {
        Ok(address) => respond(&address).map(|()| true),
        Err(_) => request(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("loopback: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the first process: starts the second one, measures, prints.
fn request() -> Outcome<bool> {
    let check = std::env::args().any(|argument| argument == "--check");
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let mut partner = Command::new(std::env::current_exe()?).env(PARTNER, address).stdin(Stdio::null()).spawn()?;
    let cores = pin(0)?;

    let udp = Udp::bind("127.0.0.1")?;
    let verbs = Verbs::open("soft:127.0.0.21")?;
    let (remote, mut stream) = verbs.qp.connection_info()?.accept_tcp(&listener, PATIENCE)?;
    verbs.qp.connect(&remote)?;
    udp.exchange_ports(&mut stream)?;

    let (mut spin_means, mut yield_means, mut verbs_means) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        if cores > 1 {
            spin_means.push(measure(|| udp.request(Pause::Spin))?);
        }
        yield_means.push(measure(|| udp.request(Pause::Yield))?);
        verbs_means.push(measure(|| verbs.request())?);
    }
    // The partner stays until its last response has arrived.
    stream.write_all(b"done")?;
    if !partner.wait()?.success() {
        return Err("the second process failed".into());
    }

    println!("half round trip of {MESSAGE_BYTES} bytes, two processes on {cores} core(s), median of {REPETITIONS}");
    let spinning = print("raw UDP, spinning", &mut spin_means);
    let yielding = print("raw UDP, yielding", &mut yield_means);
    let sending = print("SEND, polling", &mut verbs_means);
    let ratio = sending / spinning.min(yielding);
    println!("  {:<22}{ratio:>8.3}      (limit {RATIO_LIMIT})", "ratio");
    Ok(!check || ratio <= RATIO_LIMIT)
}

/// Runs the second process: responds in the same order.
fn respond(address: &str) -> Outcome {
    let cores = pin(1)?;
    let udp = Udp::bind("127.0.0.1")?;
    let verbs = Verbs::open("soft:127.0.0.22")?;
    let (remote, mut stream) = verbs.qp.connection_info()?.connect_tcp(address, PATIENCE)?;
    verbs.qp.connect(&remote)?;
    udp.exchange_ports(&mut stream)?;
    for _ in 0..REPETITIONS {
        if cores > 1 {
            for _ in 0..WARM_UP + EXCHANGES {
                udp.respond(Pause::Spin)?;
            }
        }
        for _ in 0..WARM_UP + EXCHANGES {
            udp.respond(Pause::Yield)?;
        }
        for _ in 0..WARM_UP + EXCHANGES {
            verbs.respond()?;
        }
    }
    stream.read_exact(&mut [0; 4])?;
    Ok(())
}

/// Returns the mean of half a round trip in microseconds.
fn measure(mut exchange: impl FnMut() -> Outcome) -> Outcome<f64> {
    for _ in 0..WARM_UP {
        exchange()?;
    }
    let start = Instant::now();
    for _ in 0..EXCHANGES {
        exchange()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(EXCHANGES) / 2.0)
}

/// How an end waits for a message. On a single core, nothing would proceed without yielding.
#[derive(Clone, Copy)]
enum Pause {
    Spin,
    Yield,
}

/// One end of the raw UDP exchange.
struct Udp {
    socket: UdpSocket,
}

impl Udp {
    fn bind(address: &str) -> Outcome<Self> {
        let socket = UdpSocket::bind((address, 0))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// Exchanges ports with the other end, and connects the socket.
    fn exchange_ports<S: Read + Write>(&self, stream: &mut S) -> Outcome {
        let own = self.socket.local_addr()?;
        stream.write_all(&own.port().to_be_bytes())?;
        let mut port = [0; 2];
        stream.read_exact(&mut port)?;
        Ok(self.socket.connect((own.ip(), u16::from_be_bytes(port)))?)
    }

    fn request(&self, pause: Pause) -> Outcome {
        self.socket.send(&[7; MESSAGE_BYTES])?;
        self.receive(pause)
    }

    fn respond(&self, pause: Pause) -> Outcome {
        self.receive(pause)?;
        self.socket.send(&[7; MESSAGE_BYTES])?;
        Ok(())
    }

    fn receive(&self, pause: Pause) -> Outcome {
        let mut message = [0; MESSAGE_BYTES];
        loop {
            match self.socket.recv(&mut message) {
                Ok(MESSAGE_BYTES) => return Ok(()),
                Ok(length) => return Err(format!("received {length} bytes").into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match pause {
                    Pause::Spin => std::hint::spin_loop(),
                    Pause::Yield => std::thread::yield_now(),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// One end of a reliable connection.
struct Verbs {
    cq: CompletionQueue,
    qp: QueuePair,
    inbox: MemoryRegion,
    sent: Cell<u32>,
    /// Number of posted receives.
    receives: Cell<usize>,
}

impl Verbs {
    fn open(device: &str) -> Outcome<Self> {
        let context = verbs::open_soft(device, &SoftOptions::new().shared_memory(SharedMemory::Off))?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_inline_data(MESSAGE_BYTES as u32))?;
        qp.init()?;
        let inbox = pd.alloc_mr(MESSAGE_BYTES, AccessFlags::LOCAL_WRITE)?;
        let verbs = Self { cq, qp, inbox, sent: Cell::new(0), receives: Cell::new(0) };
        verbs.fill()?;
        Ok(verbs)
    }

    fn request(&self) -> Outcome {
        self.send()?;
        self.receive()
    }

    fn respond(&self) -> Outcome {
        self.receive()?;
        self.send()
    }

    fn send(&self) -> Outcome {
        let sent = self.sent.get().wrapping_add(1);
        self.sent.set(sent);
        let request = SendRequest::send(Payload::inline(&[7; MESSAGE_BYTES]));
        let request = if sent.is_multiple_of(SIGNAL_EVERY) { request.signaled() } else { request };
        Ok(self.qp.post_send(&[request])?)
    }

    fn receive(&self) -> Outcome {
        let mut completions = [Completion::default()];
        loop {
            if self.cq.poll(&mut completions)? == 0 {
                continue;
            }
            let done = completions[0].result().map_err(|failure| self.qp.explain(&failure))?;
            if done.opcode == CompletionOpcode::Receive {
                return self.note_received();
            }
        }
    }

    /// Posts more receives when half of them are used, as `ibv_rc_pingpong` does.
    fn note_received(&self) -> Outcome {
        let left = self.receives.get() - 1;
        self.receives.set(left);
        if left == RECEIVES / 2 { self.fill() } else { Ok(()) }
    }

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

/// Prints the measurements and returns their median; infinite if there are none.
fn print(name: &str, means: &mut [f64]) -> f64 {
    means.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (means.first(), means.last()) else { return f64::INFINITY };
    let median = means[means.len() / 2];
    println!("  {name:<22}{median:>8.3} µs   ({least:.3} to {most:.3})");
    median
}

/// Pins this process to its first or last allowed core. Returns the number of allowed cores, at most 2.
fn pin(which: usize) -> Outcome<usize> {
    // SAFETY: an all-zero `cpu_set_t` is a valid, empty set; it is a plain array of bits.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `cpu_set_t` and the size is its size; 0 means this thread.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: every index is below the size of the set.
    let cores: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &allowed) }).collect();
    let core = if which == 0 { cores.first() } else { cores.last() };
    let core = *core.ok_or("no core may be used")?;
    // SAFETY: as above.
    let mut chosen: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index came from the set of the same size.
    unsafe { libc::CPU_SET(core, &mut chosen) };
    // SAFETY: as for `sched_getaffinity`; the set is only read.
    if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &chosen) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(cores.len().min(2))
}
