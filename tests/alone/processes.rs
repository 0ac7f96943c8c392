//! Several processes of one user on one address: they start, stop, continue, exit and are killed, without disturbing
//! the others.
//!
//! The test starts itself again as members. Each member holds a reliable connection to every other and plays ping-pong
//! on it, checking every reply. A TCP connection, which closes when its process ends, shows whether a peer was killed:
//! any other failure is an error.
//!
//! `RDMA_VERBS_PROCESSES_SECONDS=60 cargo test --release --test alone processes:: -- --nocapture` runs it for a minute.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, CompletionQueueOptions, ConnectOptions, Context,
    ErrorKind, MemoryRegion, Notify, Payload, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
};
use support::process::{alone, ignored_test, signal};
use support::{PATIENCE, open_without_shared_memory};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Set in members: the name of the device.
const MEMBER: &str = "RDMA_VERBS_TEST_MEMBER";
/// Addresses of the listeners of the members to connect to.
const PEERS: &str = "RDMA_VERBS_TEST_PEERS";
const SECONDS: &str = "RDMA_VERBS_PROCESSES_SECONDS";
/// Pause between two exchanges on a connection.
const PAUSE: Duration = Duration::from_millis(3);
/// 0.5 s, eight times: longer than any process is stopped.
const TIMEOUT: u8 = 17;

// ---- A member ----

struct Member {
    context: Context,
    stop: AtomicBool,
    exchanges: AtomicU64,
    peers_lost: AtomicU64,
    errors: Mutex<Vec<String>>,
}

/// One end of a connection.
struct End {
    channel: verbs::CompletionChannel,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Outcome<Self> {
        let channel = context.create_comp_channel()?;
        let (pd, cq) =
            (context.alloc_pd()?, context.create_cq_with(16, &CompletionQueueOptions::default().channel(&channel, 0))?);
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().max_inline_data(16).sq_sig_all())?;
        let memory = pd.alloc_mr(16, AccessFlags::LOCAL_WRITE)?;
        qp.init()?;
        Ok(Self { channel, cq, qp, memory })
    }

    /// Connects, and waits until both ends are connected.
    fn connect(&self, remote: &verbs::ConnectionInfo, stream: &mut TcpStream) -> Outcome {
        self.qp.post_recv(&[ReceiveRequest::new(&self.memory)])?;
        self.qp.connect_with(remote, &ConnectOptions::default().timeout(TIMEOUT))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"r")?;
        stream.read_exact(&mut [0])?;
        Ok(())
    }

    fn send(&self, number: u64) -> Outcome {
        let bytes = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
        Ok(self.qp.post_send(&[SendRequest::send(Payload::inline(&bytes))])?)
    }

    /// Returns the next completion's opcode; `None` after 100 ms without one.
    fn completion(&self) -> Outcome<Option<CompletionOpcode>> {
        let mut completions = [Completion::default()];
        self.cq.req_notify(Notify::Any)?;
        if self.cq.poll(&mut completions)? == 0 {
            match self.channel.wait_event(Duration::from_millis(100)) {
                Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error.into()),
                _ => {}
            }
            if self.cq.poll(&mut completions)? == 0 {
                return Ok(None);
            }
        }
        let done = completions[0].result().map_err(|failure| self.qp.explain(&failure))?;
        Ok(Some(done.opcode))
    }

    /// Returns the number that arrived; posts the next receive.
    fn take_number(&self) -> Outcome<u64> {
        let bytes = self.memory.to_vec(..16)?;
        let (number, check) = (u64::from_le_bytes(bytes[..8].try_into()?), u64::from_le_bytes(bytes[8..].try_into()?));
        if check != !number {
            return Err(format!("{bytes:02x?} arrived").into());
        }
        self.qp.post_recv(&[ReceiveRequest::new(&self.memory)])?;
        Ok(number)
    }
}

/// Returns whether the other process is gone: then failures are expected.
fn is_gone(stream: &mut TcpStream) -> bool {
    let _ = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(2))));
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Returns whether the peer has sent a byte on a non-blocking stream; an error if the peer is gone.
fn has_message(stream: &mut TcpStream) -> Outcome<bool> {
    match stream.read(&mut [0]) {
        Ok(0) => Err("the peer is gone".into()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Member {
    /// Runs one end of a connection and records how it ended.
    fn run(&self, stream: &mut TcpStream, play: impl FnOnce(&mut TcpStream) -> Outcome) {
        if let Err(error) = play(stream) {
            if is_gone(stream) {
                self.peers_lost.fetch_add(1, Ordering::Relaxed);
            } else {
                self.errors.lock().unwrap().push(error.to_string());
            }
        }
    }

    fn exchange(&self, end: &End, stream: &mut TcpStream) -> Outcome {
        stream.set_nonblocking(true)?;
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            number += 1;
            end.send(number)?;
            let (mut sent, mut replied) = (false, false);
            while !(sent && replied) {
                match end.completion()? {
                    Some(CompletionOpcode::Receive) => replied = true,
                    Some(_) => sent = true,
                    None => drop(has_message(stream)?),
                }
            }
            let reply = end.take_number()?;
            if reply != number {
                return Err(format!("{reply} came instead of {number}").into());
            }
            self.exchanges.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
        Ok(stream.write_all(b"q")?)
    }

    fn echo(&self, end: &End, stream: &mut TcpStream) -> Outcome {
        stream.set_nonblocking(true)?;
        loop {
            match end.completion()? {
                Some(CompletionOpcode::Receive) => end.send(end.take_number()?)?,
                Some(_) => {}
                None if has_message(stream)? => return Ok(()),
                None => {}
            }
        }
    }

    fn call(&self, peer: &str) -> Outcome {
        let end = End::new(&self.context)?;
        // A peer that was killed before it replied is no error.
        let Ok((remote, mut stream)) = end.qp.connection_info()?.connect_tcp(peer, PATIENCE) else {
            self.peers_lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        self.run(&mut stream, |stream| {
            end.connect(&remote, stream)?;
            self.exchange(&end, stream)
        });
        Ok(())
    }

    /// Accepts the next call, and starts a thread for it.
    fn take_call(self: &Arc<Self>, listener: &TcpListener) -> Outcome<Option<std::thread::JoinHandle<()>>> {
        let end = End::new(&self.context)?;
        let (remote, mut stream) = match end.qp.connection_info()?.accept_tcp(listener, Duration::from_millis(300)) {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
            // The caller was killed during the exchange.
            Err(error) if error.kind() == ErrorKind::Protocol => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let member = Arc::clone(self);
        Ok(Some(std::thread::spawn(move || {
            member.run(&mut stream, |stream| {
                end.connect(&remote, stream)?;
                member.echo(&end, stream)
            });
        })))
    }
}

/// Not a test: the members' program.
#[test]
#[ignore = "started by the other tests"]
fn member_process() {
    let Ok(device) = std::env::var(MEMBER) else { return };
    // Packets are steered by the kernel.
    let context = open_without_shared_memory(&device).unwrap_or_else(|error| panic!("{error}"));
    let (stop, exchanges) = (AtomicBool::new(false), AtomicU64::new(0));
    let member = Member { context, stop, exchanges, peers_lost: AtomicU64::new(0), errors: Mutex::default() };
    let member = Arc::new(member);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("listening {}", listener.local_addr().unwrap());
    let peers = std::env::var(PEERS).unwrap_or_default();
    let mut threads: Vec<_> = peers
        .split_whitespace()
        .map(|peer| {
            let (member, peer) = (Arc::clone(&member), peer.to_owned());
            std::thread::spawn(move || member.call(&peer).unwrap_or_else(|error| panic!("{error}")))
        })
        .collect();
    let waiter = Arc::clone(&member);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        waiter.stop.store(true, Ordering::Relaxed);
    });
    while !member.stop.load(Ordering::Relaxed) {
        threads.extend(member.take_call(&listener).unwrap_or_else(|error| panic!("{error}")));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let errors = std::mem::take(&mut *member.errors.lock().unwrap());
    let (exchanges, lost) = (member.exchanges.load(Ordering::Relaxed), member.peers_lost.load(Ordering::Relaxed));
    let forwarded = member.context.counters().get(verbs::Counter::ForwardedPackets);
    println!("exchanges {exchanges} lost {lost} forwarded {forwarded} errors {}", errors.len());
    assert!(errors.is_empty(), "{errors:#?}");
}

// ---- The test's side ----

struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
    listens_on: String,
}

impl Process {
    fn start(device: &str, peers: &[String]) -> Self {
        let mut command = ignored_test(concat!(module_path!(), "::member_process"));
        command.env(MEMBER, device).env(PEERS, peers.join(" ")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, stdin, stdout, listens_on: String::new() };
        process.listens_on = process.line("listening ");
        process
    }

    /// Waits for a line with these words and returns the text after them.
    fn line(&mut self, words: &str) -> String {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("a member ended without saying '{words}'");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a failure, no process is left behind; killing one that has ended does no harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends all processes properly; returns their sums of exchanges and of forwarded packets.
fn end(processes: Vec<Process>) -> (u64, u64) {
    let mut sums = (0, 0);
    let mut processes = processes;
    processes.iter_mut().for_each(|process| drop(process.stdin.take()));
    for mut process in processes {
        let said = process.line("exchanges ");
        let words: Vec<&str> = said.split_whitespace().collect();
        sums.0 += words[0].parse::<u64>().unwrap();
        sums.1 += words[4].parse::<u64>().unwrap();
        let mut rest = String::new();
        process.stdout.read_to_string(&mut rest).unwrap();
        assert!(process.child.wait().unwrap().success(), "{said}\n{rest}");
    }
    sums
}

/// Returns the registry files of an address, in all folders and namespaces.
fn registry_entries(address: &str) -> Vec<std::path::PathBuf> {
    let folders = ["/dev/shm", "/tmp"].into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let folders = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with("rdma-verbs-"));
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path())).flatten().flatten();
    let ending = format!("-{address}");
    files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(&ending)).collect()
}

fn addresses(processes: &[Process]) -> Vec<String> {
    processes.iter().map(|process| process.listens_on.clone()).collect()
}

#[test]
fn killed_stopped_and_started_members_disturb_no_other() {
    alone(|| {
        const MEMBERS: usize = 8;
        let (device, address) = ("soft:127.93.0.1", "127.93.0.1");
        let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(6);
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut processes: Vec<Process> = Vec::new();
        while processes.len() < MEMBERS {
            let peers = addresses(&processes);
            processes.push(Process::start(device, &peers));
        }
        let end_at = Instant::now() + Duration::from_secs(seconds);
        let (mut kills, mut stops) = (0, 0);
        while Instant::now() < end_at {
            std::thread::sleep(Duration::from_millis(random.random_range(100..500)));
            let victim = random.random_range(0..processes.len());
            match random.random_range(0..4) {
                0 => {
                    stops += 1;
                    signal(processes[victim].child.id(), "-STOP");
                    std::thread::sleep(Duration::from_millis(random.random_range(10..800)));
                    signal(processes[victim].child.id(), "-CONT");
                    continue;
                }
                // Two at once: the order in which the kernel closes their sockets is undefined.
                1 if processes.len() > 4 => {
                    kills += 2;
                    processes.swap_remove(victim).kill();
                    processes.swap_remove(random.random_range(0..processes.len())).kill();
                }
                _ => {
                    kills += 1;
                    processes.swap_remove(victim).kill();
                }
            }
            std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
            while processes.len() < MEMBERS {
                let peers = addresses(&processes);
                processes.push(Process::start(device, &peers));
            }
        }
        let (exchanges, forwarded) = end(processes);
        println!(
            "processes: {seconds} s, {kills} killed, {stops} stopped, {exchanges} exchanges, {forwarded} forwarded"
        );
        assert!(exchanges > 1_000, "{exchanges}");
        assert_eq!(registry_entries(address), Vec::<std::path::PathBuf>::new(), "stale entries");
    });
}

#[test]
fn sixty_four_processes_share_an_address() {
    alone(|| {
        let mut processes: Vec<Process> = Vec::new();
        while processes.len() < 64 {
            let last = processes.last().map(|process| process.listens_on.clone());
            processes.push(Process::start("soft:127.93.0.2", last.as_slice()));
        }
        std::thread::sleep(Duration::from_millis(500));
        let (exchanges, _) = end(processes);
        assert!(exchanges > 63, "{exchanges}");
        assert_eq!(registry_entries("127.93.0.2"), Vec::<std::path::PathBuf>::new(), "stale entries");
    });
}
