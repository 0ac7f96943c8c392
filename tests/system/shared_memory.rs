//! Packets through memory that two processes of a user share: which connections take that path, what ends it, and what
//! other processes can do to it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr};
use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionQueue, ConnectOptions, ConnectionInfo, Context, Counter, ErrorKind, MemoryRegion,
    NoSharedMemory, PacketPath, Payload, QueuePair, QueuePairOptions, QueuePairState, ReceiveRequest, SendRequest,
    SharedMemory,
};
use support::process::{ignored_test, signal, unix_sockets};
use support::{PATIENCE, complete_one, poll_one};

use super::hold_host::processes::{Folder, OTHER_USER, copy_of_this_program, is_root};

const DEVICE: &str = "RDMA_VERBS_TEST_DEVICE";
const SHARES: &str = "RDMA_VERBS_TEST_SHARES";
const BYTES: usize = 20_000;
/// Timeout that lets an exchange outlast a busy machine.
const TIMEOUT: u8 = 18;

struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let qp = pd.create_qp_with(&cq, &cq, &QueuePairOptions::default().sq_sig_all()).unwrap();
        let memory = pd.alloc_mr(2 * BYTES, AccessFlags::LOCAL_WRITE).unwrap();
        qp.init().unwrap();
        Self { qp, cq, memory }
    }

    fn receive(&self) {
        self.qp.post_recv(&[ReceiveRequest::new(self.memory.slice(BYTES..).unwrap())]).unwrap();
    }

    /// Sends bytes that depend on the seed, and gets them back.
    fn exchange(&self, seed: u8) {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at as u8).wrapping_mul(seed)).collect();
        self.memory.write_at(0, &bytes).unwrap();
        self.receive();
        self.qp.post_send(&[SendRequest::send(Payload::from(self.memory.slice(..BYTES).unwrap()))]).unwrap();
        (0..2).for_each(|_| complete_one(&self.cq, &self.qp));
        assert!(self.memory.to_vec(BYTES..).unwrap() == bytes, "other bytes came back");
    }

    /// Returns what has been received, if the completion is that of a receive.
    fn answer(&self, completion: verbs::Completion) {
        let done = completion.result().unwrap_or_else(|failure| panic!("{failure:?}"));
        if done.opcode == verbs::CompletionOpcode::Receive {
            let bytes = self.memory.to_vec(BYTES..).unwrap();
            self.memory.write_at(0, &bytes).unwrap();
            self.receive();
            self.qp.post_send(&[SendRequest::send(Payload::from(self.memory.slice(..BYTES).unwrap()))]).unwrap();
        }
    }

    /// Exchanges until a further send leaves through shared memory.
    fn await_link(&self, context: &Context) {
        let sends = || context.counters().get(Counter::SharedMemorySends);
        let (before, end) = (sends(), Instant::now() + PATIENCE);
        while sends() == before {
            assert!(Instant::now() < end, "no memory is shared");
            self.exchange(3);
        }
    }
}

fn open(device: &str, shares: bool) -> Context {
    open_with(device, if shares { SharedMemory::Auto } else { SharedMemory::Off })
}

fn open_with(device: &str, setting: SharedMemory) -> Context {
    verbs::open_soft(device, &SoftOptions::new().shared_memory(setting)).unwrap()
}

/// Connects a queue pair to the process that connects to this one.
fn accept(context: &Context) -> (End, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nlistening {}", listener.local_addr().unwrap());
    let end = End::new(context);
    let (remote, stream) = end.qp.connection_info().unwrap().accept_tcp(&listener, PATIENCE).unwrap();
    end.receive();
    end.qp.connect_with(&remote, &ConnectOptions::default().timeout(TIMEOUT)).unwrap();
    let mut ready = &stream;
    ready.write_all(b"r").unwrap();
    (end, stream)
}

/// Not a test: the other process. It connects a queue pair, and returns what it receives.
#[test]
#[ignore = "started by the other tests"]
fn process() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    let context = open_with(&device, std::env::var(SHARES).unwrap().parse().unwrap());
    let (end, stream) = accept(&context);
    stream.set_read_timeout(Some(Duration::from_micros(1))).unwrap();
    loop {
        if let Some(completion) = poll_one(&end.cq) {
            end.answer(completion);
        }
        if stream.peek(&mut [0]).is_ok() {
            return;
        }
    }
}

/// Not a test: the same, but it sleeps while there is nothing to return.
#[test]
#[ignore = "started by the other tests"]
fn sleeping_process() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    let context = open(&device, true);
    let (end, _stream) = accept(&context);
    while let Ok(completion) = end.cq.wait(PATIENCE) {
        end.answer(completion);
    }
}

/// Another process, which is killed at the end.
pub(super) struct Other {
    pub(super) child: Child,
    _stdin: ChildStdin,
    pub(super) address: String,
}

impl Other {
    fn start(device: &str, shares: bool) -> Self {
        Self::start_with(device, if shares { SharedMemory::Auto } else { SharedMemory::Off })
    }

    fn start_with(device: &str, setting: SharedMemory) -> Self {
        let mut command = ignored_test(concat!(module_path!(), "::process"));
        command.env(DEVICE, device).env(SHARES, setting.name());
        Self::spawn(command)
    }

    /// Starts it, and waits until it says where it listens.
    pub(super) fn spawn(mut command: std::process::Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the process says where it listens").unwrap();
            if let Some(address) = line.strip_prefix("listening ") {
                break address.to_owned();
            }
        };
        Self { child, _stdin: stdin, address }
    }

    fn connect(&self, end: &End) -> TcpStream {
        self.connect_with(end, &ConnectOptions::default().timeout(TIMEOUT))
    }

    fn connect_with(&self, end: &End, options: &ConnectOptions) -> TcpStream {
        let (remote, stream) = end.qp.connection_info().unwrap().connect_tcp(&self.address, PATIENCE).unwrap();
        end.qp.connect_with(&remote, options).unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(&mut &stream, &mut ready).unwrap();
        stream
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn processes_that_agree_exchange_through_memory() {
    let (context, other) = (open("soft:127.62.4.1", true), Other::start("soft:127.62.4.2", true));
    let end = End::new(&context);
    let _stream = other.connect(&end);
    end.await_link(&context);
    assert_eq!(end.qp.report().unwrap().packet_path, Some(PacketPath::SharedMemory));
    assert!(end.qp.explain_state().ends_with("Packets go through shared memory"), "{}", end.qp.explain_state());
    (1..200).for_each(|seed| end.exchange(seed));
    let counters = context.counters();
    let [sent, received] =
        [Counter::SharedMemorySends, Counter::SharedMemoryReceives].map(|counter| counters.get(counter));
    assert!(sent >= 199 && received >= 199, "{sent} sends, {received} receives");
}

/// It sleeps before each message, and only the bell of the ring wakes it.
#[test]
fn a_sleeping_process_is_woken() {
    let context = open("soft:127.62.14.1", true);
    let mut command = ignored_test(concat!(module_path!(), "::sleeping_process"));
    command.env(DEVICE, "soft:127.62.14.2");
    let other = Other::spawn(command);
    let end = End::new(&context);
    let _stream = other.connect(&end);
    end.await_link(&context);
    let before = context.counters().get(Counter::SharedMemorySends);
    for seed in 1..=30 {
        std::thread::sleep(Duration::from_millis(5));
        end.exchange(seed);
    }
    assert!(context.counters().get(Counter::SharedMemorySends) >= before + 30);
}

#[test]
fn memory_is_shared_only_if_both_ends_want_it() {
    for (number, shares) in [(0, [true, false]), (1, [false, true]), (2, [false, false])] {
        let devices = [1, 2].map(|end| format!("soft:127.62.5.{}", 2 * number + end));
        let (context, other) = (open(&devices[0], shares[0]), Other::start(&devices[1], shares[1]));
        let end = End::new(&context);
        let _stream = other.connect(&end);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            end.exchange(5);
        }
        assert_eq!(context.counters().get(Counter::SharedMemorySends), 0, "{shares:?}");
        let Some(PacketPath::Sockets(reason)) = end.qp.report().unwrap().packet_path else { panic!("{shares:?}") };
        // This end may have been connected before the other one announced itself.
        let is_known = match reason {
            NoSharedMemory::SwitchedOffByPeer | NoSharedMemory::Pending => shares[0],
            NoSharedMemory::SwitchedOff => !shares[0],
            _ => false,
        };
        assert!(is_known, "{shares:?}: {reason}");
    }
}

/// The first packet goes through memory, in both directions.
#[test]
fn a_required_link_is_there_when_the_connection_is() {
    for (number, peer_shares) in [(0, SharedMemory::Auto), (1, SharedMemory::Require)] {
        let devices = [1, 2].map(|end| format!("soft:127.62.8.{}", 2 * number + end));
        let (context, other) =
            (open_with(&devices[0], SharedMemory::Require), Other::start_with(&devices[1], peer_shares));
        let end = End::new(&context);
        let _stream = other.connect(&end);
        (1..20).for_each(|seed| end.exchange(seed));
        let counters = context.counters();
        let [sends, receives] = [Counter::SendCalls, Counter::ReceiveCalls].map(|counter| counters.get(counter));
        assert_eq!(sends, 0, "the peer has {peer_shares}");
        // A peer with `auto` does not wait for its own link: its first responses may come through sockets.
        assert!(receives == 0 || peer_shares == SharedMemory::Auto, "{receives} packets came through sockets");
        assert!(counters.get(Counter::SharedMemorySends) >= 19);
    }
}

/// One thread connects both ends of one process.
#[test]
fn a_process_has_required_links_to_itself() {
    let ends = ["soft:127.62.9.1", "soft:127.62.9.2"]
        .map(|device| open_with(device, SharedMemory::Require))
        .map(|context| (End::new(&context), context));
    let infos = [0, 1].map(|index| ends[index].0.qp.connection_info().unwrap());
    ends[0].0.qp.connect(&infos[1]).unwrap();
    ends[1].0.qp.connect(&infos[0]).unwrap();
    assert!(ends.iter().all(|(end, _)| end.qp.report().unwrap().packet_path == Some(PacketPath::SharedMemory)));
}

/// Returns why a queue pair of a device that requires shared memory cannot be connected, and checks that it can still
/// be, afterwards.
#[track_caller]
fn refusal(device: &str, remote: &ConnectionInfo) -> String {
    let context = open_with(device, SharedMemory::Require);
    let end = End::new(&context);
    let error = end.qp.connect(remote).unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("modify_qp", ErrorKind::Unsupported), "{error}");
    assert_eq!(end.qp.query().unwrap().qp_state, QueuePairState::Init);
    error.to_string()
}

#[test]
fn a_required_link_that_cannot_be_names_the_cause() {
    let peer = open("soft:127.62.10.2", false);
    let end = End::new(&peer);
    end.qp.connect(&end.qp.connection_info().unwrap()).unwrap();
    let mut remote = end.qp.connection_info().unwrap();
    let text = refusal("soft:127.62.10.1", &remote);
    assert!(text.contains("to 127.62.10.2 has none: the peer's device has shared memory switched off;"), "{text}");
    remote.qpn = verbs::Qpn::new(remote.qpn.value() ^ 0x80_0000);
    let text = refusal("soft:127.62.10.1", &remote);
    assert!(text.contains("no process of this user has announced the peer's queue pair"), "{text}");
    remote.gid = verbs::Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 9));
    let text = refusal("soft:127.62.10.1", &remote);
    assert!(text.contains("of another host or another network namespace"), "{text}");
}

/// Not a test: receives RoCEv2 packets as another user.
#[test]
#[ignore = "started by the other tests"]
fn holder_of_the_port() {
    let Ok(address) = std::env::var(DEVICE) else { return };
    let _socket = std::net::UdpSocket::bind((address.as_str(), 4791)).unwrap();
    println!("\nlistening {address}");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn another_user_is_named_where_a_link_is_required() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("required");
    let mut command = std::process::Command::new(copy_of_this_program(&folder, 0o755));
    command.args(["--exact", "shared_memory::holder_of_the_port", "--ignored", "--nocapture"]);
    command.uid(OTHER_USER).gid(OTHER_USER).current_dir("/").env(DEVICE, "127.62.11.2");
    let _holder = Other::spawn(command);
    let own = open("soft:127.62.11.3", true);
    let mut remote = End::new(&own).qp.connection_info().unwrap();
    remote.gid = verbs::Gid::from(std::net::Ipv4Addr::new(127, 62, 11, 2));
    let text = refusal("soft:127.62.11.1", &remote);
    assert!(text.contains(&format!("the peer's process is of another user ({OTHER_USER})")), "{text}");
}

/// Not a test: a process that may not write files as long as a ring.
#[test]
#[ignore = "started by the other tests"]
fn process_without_long_files() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    let limit = libc::rlimit { rlim_cur: 1 << 18, rlim_max: 1 << 18 };
    // SAFETY: the kernel reads one structure. Threads that are sent a signal for a longer file block it.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    let context = open_with(&device, SharedMemory::Require);
    let end = End::new(&context);
    println!("\nerror {}", end.qp.connect(&end.qp.connection_info().unwrap()).unwrap_err());
}

#[test]
fn a_denied_system_call_is_named_where_a_link_is_required() {
    let mut command = ignored_test(concat!(module_path!(), "::process_without_long_files"));
    let output = command.env(DEVICE, "soft:127.62.12.1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("this system denies shared memory: File too large"), "{text}");
}

/// The surviving queue pair fails with the cause that it has over UDP, and a connection to the next process at the
/// address goes through memory again.
#[test]
fn after_a_crash_the_next_connection_shares_memory_again() {
    let context = open("soft:127.62.13.1", true);
    let other = Other::start("soft:127.62.13.2", true);
    let end = End::new(&context);
    let stream = other.connect_with(&end, &ConnectOptions::default().timeout(12).retry_cnt(3));
    end.await_link(&context);
    drop((stream, other));
    end.qp.post_send(&[SendRequest::send(Payload::from(end.memory.slice(..BYTES).unwrap()))]).unwrap();
    let failure = end.cq.wait(PATIENCE).unwrap().result().unwrap_err();
    assert_eq!(failure.status, verbs::CompletionStatus::RetryExceededError);
    let why = end.qp.explain(&failure);
    assert!(why.contains("the peer's process has ended or closed its device"), "{why}");
    let other = Other::start("soft:127.62.13.2", true);
    let end = End::new(&context);
    let _stream = other.connect(&end);
    end.await_link(&context);
}

/// Its rings are unmapped, and the next process at its address gets rings of its own.
#[test]
fn a_killed_process_ends_its_links() {
    let context = open("soft:127.62.6.1", true);
    for _ in 0..3 {
        let other = Other::start("soft:127.62.6.2", true);
        let end = End::new(&context);
        let _stream = other.connect(&end);
        end.await_link(&context);
        signal(other.child.id(), "-KILL");
        // The queue pair goes without waiting for its retries.
    }
    assert!(mapped_rings() <= 2, "{} rings are mapped", mapped_rings());
}

/// Time for which a ring is full before sends to it are lost.
const FULL: Duration = Duration::from_millis(30);
/// Rounds in which a ring is filled, on a machine that may be busy.
const MOST_ROUNDS: usize = 40;

/// A ring to a process that is stopped fills up. Queue pairs that send through another ring or through sockets go on at
/// once, not after the time after which the peer counts as stopped. Lost packets are sent again.
#[test]
fn a_stopped_process_does_not_hold_others_back() {
    let context = open("soft:127.62.8.1", true);
    let stopped = Other::start("soft:127.62.8.2", true);
    let others = [Other::start("soft:127.62.8.3", true), Other::start("soft:127.62.8.4", false)];
    let (end, beside) = (End::new(&context), [End::new(&context), End::new(&context)]);
    let _stream = stopped.connect(&end);
    let _streams = [0, 1].map(|index| others[index].connect(&beside[index]));
    end.await_link(&context);
    beside[0].await_link(&context);
    let whole = end.memory.slice(..BYTES).unwrap();
    let drops = || context.counters().get(Counter::SendQueueDrops);
    let has_gone_on = (0..MOST_ROUNDS).any(|_| {
        signal(stopped.child.id(), "-STOP");
        let before = drops();
        (0..40).for_each(|_| end.qp.post_send(&[SendRequest::send(Payload::from(whole))]).unwrap());
        let until = Instant::now() + PATIENCE;
        let mut begun_before_losses = [Vec::new(), Vec::new()];
        while drops() == before {
            assert!(Instant::now() < until, "the ring never was full");
            for (end, begun) in beside.iter().zip(&mut begun_before_losses) {
                let begin = Instant::now();
                end.exchange(5);
                begun.extend((drops() == before).then_some(begin));
            }
        }
        // The ring was full by then at the latest.
        let full = Instant::now() - FULL;
        let has_gone_on = begun_before_losses.iter().all(|begun| begun.iter().any(|begin| *begin >= full));
        signal(stopped.child.id(), "-CONT");
        // The process answers one message, and refuses the others until it has been answered.
        for _ in 0..40 {
            end.receive();
            (0..2).for_each(|_| complete_one(&end.cq, &end.qp));
        }
        has_gone_on
    });
    assert!(has_gone_on, "no exchange beside a full ring ends before its sends are lost");
    beside.iter().for_each(|beside| beside.exchange(11));
}

/// Returns the number of rings that this process has mapped.
fn mapped_rings() -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let count = maps.lines().filter(|line| line.contains("/memfd:rdma-verbs ")).count();
        if count <= 2 || Instant::now() > deadline {
            return count;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects to the socket for links of a process.
fn connect_to_links(process: u32) -> OwnedFd {
    let paths = unix_sockets(process, "links-");
    let path = paths[0].replace("new-", "");
    let socket =
        nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let address = UnixAddr::new(path.as_str()).unwrap();
    nix::sys::socket::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).unwrap();
    socket
}

/// Sends a message with descriptors. Returns whether the process closes the connection.
fn is_refused(socket: &OwnedFd, bytes: &[u8], descriptors: &[std::os::fd::RawFd]) -> bool {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights };
    let pieces = [std::io::IoSlice::new(bytes)];
    let number = std::os::fd::AsRawFd::as_raw_fd(socket);
    nix::sys::socket::sendmsg::<()>(number, &pieces, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
    let mut welcome = [0; 8];
    matches!(nix::sys::socket::recv(number, &mut welcome, MsgFlags::empty()), Ok(0) | Err(_))
}

/// Offers that make no sense are refused. The links that exist go on.
#[test]
fn senseless_offers_are_refused() {
    let (context, other) = (open("soft:127.62.7.1", true), Other::start("soft:127.62.7.2", true));
    let end = End::new(&context);
    let _stream = other.connect(&end);
    end.await_link(&context);
    let victim = other.child.id();
    let file = tempfile();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    let right = |first: u8| {
        let mut hello = [0; 96];
        (hello[0], hello[1]) = (first, 1);
        hello
    };
    assert!(is_refused(&connect_to_links(victim), b"", &[number]), "an empty message");
    assert!(is_refused(&connect_to_links(victim), &right(3), &[]), "no descriptor");
    assert!(is_refused(&connect_to_links(victim), &right(3), &[number; 3]), "three descriptors");
    assert!(is_refused(&connect_to_links(victim), &right(2), &[number]), "another version");
    assert!(is_refused(&connect_to_links(victim), &[3; 97], &[number]), "a longer message");
    assert!(is_refused(&connect_to_links(victim), &right(3), &[number]), "an unknown address");
    // An address and a block that exist, with a file whose length is not sealed.
    let qpn = end.qp.qpn().value();
    let mut hello = right(3);
    hello[2..4].copy_from_slice(&((qpn >> 12) as u16).to_le_bytes());
    for place in [8, 24] {
        hello[place..place + 16].copy_from_slice(&std::net::Ipv4Addr::new(127, 62, 7, 1).to_ipv6_mapped().octets());
    }
    let own = std::process::id();
    assert!(is_refused(&connect_to_links(own), &hello, &[number]), "a file of a file system");
    let unsealed = memory_file(4_096 + (1 << 19));
    let number = std::os::fd::AsRawFd::as_raw_fd(&unsealed);
    assert!(is_refused(&connect_to_links(own), &hello, &[number]), "a file that can be truncated");
    (1..50).for_each(|seed| end.exchange(seed));
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("rdma-verbs-offer-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(4_096 + (1 << 19)).unwrap();
    file
}

/// Returns a file without a name, and without seals.
fn memory_file(length: u64) -> OwnedFd {
    // SAFETY: the name is a string that ends with a zero.
    let created =
        unsafe { libc::memfd_create(c"rdma-verbs-offer".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(created >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has just returned the descriptor, so nothing else owns it.
    let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(created) });
    file.set_len(length).unwrap();
    file.into()
}
