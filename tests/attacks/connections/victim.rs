//! The victim: a process of its own that listens on several ports, and clients that connect to it.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{
    Connection, ConnectionOptions, DEFAULT_QKEY, DatagramListener, Listener, ListenerOptions, Request, Route,
};
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, Context, MemoryRegion, QueuePair, QueuePairOptions, QueuePairType,
    ReceiveRequest, SendRequest,
};

use crate::world::{PATIENCE, device_options, new_address};

/// The address of the victim, in the environment of its process, and the difference of its ports to those here.
const ADDRESS: &str = "RDMA_VERBS_ATTACKED";
const OFFSET: &str = "RDMA_VERBS_ATTACKED_PORTS";
/// Accepts requests and returns messages.
pub(crate) const ECHO: u16 = 7_010;
/// Rejects requests, with private data.
pub(crate) const REJECT: u16 = 7_020;
/// Takes no request.
pub(crate) const IDLE: u16 = 7_030;
/// Accepts requests and waits for their senders.
pub(crate) const ACCEPT: u16 = 7_040;
/// Answers requests for a datagram queue pair.
pub(crate) const DATAGRAM: u16 = 7_050;
/// Takes no request for a datagram queue pair.
pub(crate) const IDLE_DATAGRAM: u16 = 7_060;
/// No listener has it.
pub(crate) const CLOSED: u16 = 7_999;
/// Private data of rejections by the application.
pub(crate) const REJECTED: &[u8] = b"rejected by the application";
/// Maximum number of connections that the victim accepts and that are not set up.
pub(crate) const MOST_ACCEPTED: usize = 1_000;
const BYTES: usize = 4_096;
/// Eight times 0.5 s: a flood may take the victim's processor for longer than a queue pair waits by default.
const PATIENT_TIMEOUT: u8 = 17;
/// Interval at which the victim looks after its connections.
const TURN: Duration = Duration::from_millis(5);

/// Returns whether this process is a victim, after it has ended.
pub(crate) fn is_victim() -> bool {
    let Ok(address) = std::env::var(ADDRESS) else { return false };
    let offset = std::env::var(OFFSET).expect("a number").parse().expect("a number");
    serve(address.parse().expect("an address"), offset);
    true
}

fn serve(address: Ipv4Addr, offset: u16) {
    let context = verbs::open_soft(&format!("soft:{address}"), &device_options()).expect("a device");
    let options = || ListenerOptions::new().on(&context);
    let bind = |options: ListenerOptions, port: u16| options.bind((address, port + offset)).expect("a listener");
    let datagrams = |port: u16| options().bind_datagrams((address, port + offset)).expect("a listener");
    let _idle = (bind(options().backlog(64), IDLE), datagrams(IDLE_DATAGRAM));
    let (echo, reject, accept) = (bind(options(), ECHO), bind(options(), REJECT), bind(options(), ACCEPT));
    let answer = datagrams(DATAGRAM);
    thread::spawn(move || echo_all(&echo));
    thread::spawn(move || reject_all(&reject));
    thread::spawn(move || accept_all(&accept));
    thread::spawn(move || answer_all(&answer));
    println!("ready");
    for command in std::io::stdin().lines() {
        match command.expect("a command").as_str() {
            "counters" => {
                let counters = context.counters();
                let counts: Vec<String> = counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
                println!("{}", counts.join(","));
            }
            other => panic!("{other}: no such command"),
        }
    }
}

fn echo_all(listener: &Listener) {
    loop {
        let request = listener.accept().expect("accept");
        thread::spawn(move || echo(request));
    }
}

/// Returns messages until the connection ends.
fn echo(request: Request) {
    let end = End::new(request.context());
    let Ok(connection) = request.accept(&end.qp, &ConnectionOptions::new()) else { return };
    while !connection.wait_disconnected(Duration::ZERO).expect("an event") {
        if let Ok(Some(length)) = end.next_receive(Duration::from_millis(20)) {
            end.send(length);
        }
    }
    let _ = connection.disconnect(&end.qp);
}

fn reject_all(listener: &Listener) {
    loop {
        // The peer may have given up.
        let _ = listener.accept().expect("accept").reject(REJECTED);
    }
}

async fn accept(request: Request, qp: QueuePair) {
    let Ok(pending) = request.start_accept(&qp, &ConnectionOptions::new()) else { return };
    if let Ok(connection) = pending.await {
        let _ = connection.disconnected().await;
        let _ = connection.disconnect(&qp);
    }
}

fn accept_all(listener: &Listener) {
    let mut objects = None;
    let mut accepted: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let mut looked_after = Instant::now();
    loop {
        if let Some(request) = listener.accept_within(TURN).expect("accept")
            && accepted.len() < MOST_ACCEPTED
        {
            let (pd, cq) = objects.get_or_insert_with(|| {
                let context = request.context();
                (context.alloc_pd().expect("a domain"), context.create_cq(64).expect("a queue"))
            });
            let options = QueuePairOptions::default().max_send_wr(1).max_recv_wr(1);
            let qp = pd.create_qp_with(cq, cq, &options).expect("a queue pair");
            accepted.push(Box::pin(accept(request, qp)));
        }
        if looked_after.elapsed() >= TURN {
            let mut task = TaskContext::from_waker(Waker::noop());
            accepted.retain_mut(|accepting| accepting.as_mut().poll(&mut task).is_pending());
            looked_after = Instant::now();
        }
    }
}

fn answer_all(listener: &DatagramListener) {
    let mut objects: Option<(CompletionQueue, QueuePair)> = None;
    loop {
        let request = listener.accept().expect("accept");
        let (_, qp) = objects.get_or_insert_with(|| {
            let (pd, cq) = (request.context().alloc_pd(), request.context().create_cq(16));
            let (pd, cq) = (pd.expect("a domain"), cq.expect("a queue"));
            let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram);
            let qp = pd.create_qp_with(&cq, &cq, &options).expect("a queue pair");
            (cq, qp)
        });
        let _ = request.accept(qp, DEFAULT_QKEY, b"answered");
    }
}

/// A queue pair and memory for a message of each direction.
struct End {
    qp: QueuePair,
    received: MemoryRegion,
    sent: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Self {
        let pd = context.alloc_pd().expect("a domain");
        let cqs = [(); 2].map(|()| context.create_cq(16).expect("a completion queue"));
        let qp = pd.create_qp(&cqs[0], &cqs[1]).expect("a queue pair");
        let [received, sent] = [(); 2].map(|()| pd.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE).expect("a region"));
        qp.init().expect("init");
        qp.post_recv(&[ReceiveRequest::new(&received)]).expect("post_recv");
        Self { qp, received, sent }
    }

    /// Waits for a message, copies it to be sent, and posts the next receive. Returns its length, `None` if none comes.
    fn next_receive(&self, patience: Duration) -> Result<Option<usize>, String> {
        let Ok(completion) = self.qp.recv_cq().wait(patience) else { return Ok(None) };
        let length = completion.result().map_err(|failure| self.qp.explain(&failure).to_string())?.byte_len as usize;
        self.sent.write_at(0, &self.received.to_vec(..length).expect("in the region")).expect("in the region");
        self.qp.post_recv(&[ReceiveRequest::new(&self.received)]).map_err(|error| error.to_string())?;
        Ok(Some(length))
    }

    /// Sends what the region of messages to send begins with.
    fn send(&self, length: usize) {
        let data = self.sent.slice(..length).expect("in the region");
        if self.qp.post_send(&[SendRequest::send(data).signaled()]).is_ok() {
            let _ = self.qp.send_cq().wait(PATIENCE);
        }
    }
}

/// A victim's process. Dropping it ends it.
pub(crate) struct Victim {
    pub(crate) address: Ipv4Addr,
    child: Child,
    commands: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Victim {
    pub(crate) fn start() -> Self {
        Self::start_on(new_address(), 0)
    }

    /// Starts a process on an address that others may have, if they have other ports.
    pub(crate) fn start_on(address: Ipv4Addr, offset: u16) -> Self {
        Self::start_with(Command::new(std::env::current_exe().expect("the own program")), address, offset)
    }

    /// Starts a process with a command that runs this program.
    pub(crate) fn start_with(mut command: Command, address: Ipv4Addr, offset: u16) -> Self {
        command.env(ADDRESS, address.to_string()).env(OFFSET, offset.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (commands, said) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut victim = Self { address, child, commands, said: BufReader::new(said) };
        assert_eq!(victim.line(), "ready");
        victim
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a process").is_some()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Returns a counter of the victim's device.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        writeln!(self.commands, "counters").expect("a pipe");
        let line = self.line();
        let mut counts = line.split(',').filter_map(|count| count.split_once(' '));
        let found = counts.find(|(found, _)| *found == name);
        found.unwrap_or_else(|| panic!("no counter {name} in {line}")).1.parse().expect("a number")
    }

    /// Returns the resident memory of the process in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the process exists");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.split_whitespace().next().and_then(|count| count.parse::<u64>().ok()).expect("a number") << 10
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of this process, connected to the victim's echo.
pub(crate) struct Client {
    pub(crate) address: Ipv4Addr,
    pub(crate) context: Context,
    connection: Connection,
    end: End,
    exchanges: AtomicU32,
}

impl Client {
    pub(crate) fn connect(victim: Ipv4Addr) -> Self {
        Self::connect_from(new_address(), victim)
    }

    pub(crate) fn connect_from(address: Ipv4Addr, victim: Ipv4Addr) -> Self {
        Self::connect_to(address, victim, ECHO)
    }

    pub(crate) fn connect_to(address: Ipv4Addr, victim: Ipv4Addr, port: u16) -> Self {
        let route = Route::between(IpAddr::V4(address), (victim, port)).expect("a route");
        let (context, end) = (route.context().clone(), End::new(route.context()));
        let options = ConnectionOptions::new().timeout(PATIENT_TIMEOUT).deadline(PATIENCE);
        let connection = route.connect(&end.qp, &options).unwrap_or_else(|error| panic!("a client: {error}"));
        let client = Self { address, context, connection, end, exchanges: AtomicU32::new(0) };
        client.exchange();
        client
    }

    /// Exchanges a message, over a connection that must not have ended. Each message has other bytes than the last one.
    #[track_caller]
    pub(crate) fn exchange(&self) {
        let count = self.exchanges.fetch_add(1, Ordering::Relaxed);
        let mut message: Vec<u8> = (0..1_500_u32).map(|index| (index * 7 + count) as u8).collect();
        message[..4].copy_from_slice(&count.to_be_bytes());
        self.end.sent.write_at(0, &message).expect("in the region");
        self.end.send(message.len());
        let length = self.end.next_receive(PATIENCE).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(length, Some(message.len()), "the message comes back: {}", self.end.qp.explain_state());
        assert!(self.end.received.to_vec(..message.len()).expect("in the region") == message, "it is changed");
        assert!(self.is_set_up(), "an end of the connection is reported");
    }

    /// Returns the number of its queue pair.
    pub(crate) fn qpn(&self) -> u32 {
        self.end.qp.qpn().value()
    }

    pub(crate) fn is_set_up(&self) -> bool {
        !self.connection.wait_disconnected(Duration::ZERO).expect("an event")
    }

    /// Waits until the connection has ended.
    pub(crate) fn wait_for_end(&self, patience: Duration) -> bool {
        self.connection.wait_disconnected(patience).expect("an event")
    }

    /// Ends the connection, which both ends must confirm.
    #[track_caller]
    pub(crate) fn disconnect(&self) {
        self.connection.disconnect(&self.end.qp).expect("disconnect");
        assert!(self.wait_for_end(PATIENCE), "the peer does not confirm");
    }
}
