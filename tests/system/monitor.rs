//! Watching other processes of this user: their statistics, captures in them, and that neither side can harm the
//! other.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_verbs::monitor::{
    CaptureEnd, MonitorError, PathKind, Process, RemoteCaptureOptions, Snapshot, Watch, processes,
};
use rdma_verbs::provider::soft::SoftOptions;
use rdma_verbs::types::{Counter, QueuePairState, QueuePairType};
use rdma_verbs::verbs::cm::ListenerOptions;
use rdma_verbs::verbs::{
    self, AccessFlags, AddressVector, CompletionQueue, Context, MemoryRegion, Payload, ProtectionDomain, Qkey,
    QueuePair, QueuePairOptions, ReceiveRequest, SendRequest, SharedMemory,
};
use socket2::{Domain, SockAddr, Socket, Type};
use support::PATIENCE;
use support::process::{ignored_test, signal, unix_sockets};

use super::hold_host::processes::{Folder, OTHER_USER, copy_of_this_program, is_root};

const DEVICE: &str = "RDMA_VERBS_TEST_DEVICE";
const TARGET: &str = "RDMA_VERBS_TEST_TARGET";
const EVERY: Duration = Duration::from_millis(100);
const BYTES: usize = 1_000;

/// The objects of the process that is watched.
struct Objects {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
    queue_pairs: Vec<QueuePair>,
}

impl Objects {
    fn open(device: &str) -> Self {
        let context = verbs::open_soft(device, &SoftOptions::new().shared_memory(SharedMemory::Off)).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let memory = pd.alloc_mr(2 * BYTES, AccessFlags::LOCAL_WRITE).unwrap();
        let mut objects = Self { context, pd, cq, memory, queue_pairs: Vec::new() };
        objects.add_queue_pairs(1);
        objects
    }

    /// Adds queue pairs that are connected to themselves.
    fn add_queue_pairs(&mut self, count: usize) {
        let options = QueuePairOptions::default().sq_sig_all().max_send_wr(4).max_recv_wr(4);
        for _ in 0..count {
            let qp = self.pd.create_qp_with(&self.cq, &self.cq, &options).unwrap();
            qp.init().unwrap();
            qp.connect(&qp.connection_info().unwrap()).unwrap();
            self.queue_pairs.push(qp);
        }
    }

    fn send(&self, count: usize) {
        let qp = &self.queue_pairs[0];
        for _ in 0..count {
            qp.post_recv(&[ReceiveRequest::new(self.memory.slice(BYTES..).unwrap())]).unwrap();
            qp.post_send(&[SendRequest::send(Payload::from(self.memory.slice(..BYTES).unwrap()))]).unwrap();
            (0..2).for_each(|_| support::complete_one(&self.cq, qp));
        }
    }
}

/// Not a test: the process that is watched. It obeys commands.
#[test]
#[ignore = "started by the other tests"]
fn process() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    let mut objects = Some(Objects::open(&device));
    let mut others = Vec::new();
    println!("\nready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let open = || objects.as_ref().unwrap();
        match command {
            "send" => open().send(argument.parse().unwrap()),
            "queue_pairs" => objects.as_mut().unwrap().add_queue_pairs(argument.parse().unwrap()),
            "listen" => {
                let listener = ListenerOptions::default().on(&open().context).bind(argument).unwrap();
                std::mem::forget(listener);
            }
            "open" => others.push(Objects::open(argument)),
            "close" => objects = None,
            "limit" => {
                let limit = argument.parse().unwrap();
                let limits = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: the kernel reads one structure.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limits) }, 0);
            }
            // SAFETY: takes numbers.
            "protect" => assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0),
            "fork" => {
                // SAFETY: the child only sleeps, and exits without the destructors of its parent.
                match unsafe { libc::fork() } {
                    0 => {
                        std::thread::sleep(PATIENCE);
                        // SAFETY: ends the process.
                        unsafe { libc::_exit(0) };
                    }
                    child => {
                        println!("done {child}");
                        continue;
                    }
                }
            }
            other => panic!("no command: {other}"),
        }
        println!("done");
    }
}

/// A process that is watched, killed at the end.
struct Other {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Other {
    fn start(device: &str) -> Self {
        Self::spawn(ignored_test(concat!(module_path!(), "::process")), device)
    }

    fn spawn(mut command: Command, device: &str) -> Self {
        let mut child = command.env(DEVICE, device).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut other = Self { child, stdin, stdout: BufReader::new(stdout) };
        other.await_line("ready");
        other
    }

    /// Returns what follows the first line that begins so.
    fn await_line(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some(rest) = line.trim_end().strip_prefix(begin) {
                return rest.trim().to_owned();
            }
        }
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.stdin, "{command}").unwrap();
        self.await_line("done")
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn found(&self) -> Process {
        Process::find(self.id()).unwrap()
    }

    fn watch(&self) -> Watch {
        self.found().watch(EVERY).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the first snapshot for which this is true.
#[track_caller]
fn await_snapshot(watch: &mut Watch, is_wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let end = Instant::now() + PATIENCE;
    loop {
        let snapshot = watch.snapshot().unwrap();
        if is_wanted(&snapshot) {
            return snapshot;
        }
        assert!(Instant::now() < end, "{snapshot:?}");
        std::thread::sleep(EVERY / 4);
    }
}

#[test]
fn statistics_are_those_of_the_process() {
    let mut other = Other::start("soft:127.63.1.1");
    other.command("send 500");
    other.command("listen 127.63.1.1:4000");
    let mut watch = other.watch();
    let snapshot = watch.snapshot().unwrap();
    assert_eq!((snapshot.process, snapshot.every, snapshot.omitted_devices), (other.id(), EVERY, 0));
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap();
    assert_eq!((snapshot.name.as_str(), other.found().name()), (comm.trim(), comm.trim()));
    let [device] = &snapshot.devices[..] else { panic!("{snapshot:?}") };
    assert_eq!((device.name.as_str(), device.shared_memory), ("soft:127.63.1.1", SharedMemory::Off));
    assert_eq!(device.addresses, ["127.63.1.1".parse::<std::net::IpAddr>().unwrap()]);
    let objects = &device.objects;
    assert_eq!((objects.queue_pairs, objects.memory_regions, objects.completion_queues), (1, 1, 1));
    assert_eq!(device.states[QueuePairState::ReadyToSend as usize], 1);

    let [qp] = &device.queue_pairs[..] else { panic!("{device:?}") };
    assert_eq!((qp.qp_type, qp.state), (QueuePairType::ReliableConnection, QueuePairState::ReadyToSend));
    assert_eq!((qp.peer_address, qp.peer_qpn), (Some(device.addresses[0]), Some(qp.qpn)));
    assert_eq!((qp.path, qp.sends, qp.receives), (Some(PathKind::Sockets), 500, 500));
    assert!(qp.counters.get(Counter::SentBytes) > 500 * BYTES as u64 && qp.window > 0, "{qp:?}");
    assert_eq!((qp.pending_sends, qp.bytes_in_flight, qp.error.as_deref()), (0, 0, None));
    // Those of the link, too, which no queue pair has.
    assert!(device.counters.get(Counter::SendCalls) > 0);
    assert_eq!(device.counters.get(Counter::SentPackets), qp.counters.get(Counter::SentPackets));

    let [listener] = &device.listeners[..] else { panic!("{device:?}") };
    assert_eq!((listener.port(), listener.address), (Some(4_000), Some(device.addresses[0])));
    assert_eq!(listener.qp_type, QueuePairType::ReliableConnection);

    other.command("send 10");
    let later = await_snapshot(&mut watch, |later| later.devices[0].queue_pairs[0].sends == 510);
    assert!(later.taken_at > snapshot.taken_at && !later.is_overdue());
}

#[test]
fn datagrams_without_a_receive_are_not_counted_as_received() {
    let device = "soft:127.63.17.1";
    let context = verbs::open(device).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(Qkey(7)).sq_sig_all();
    let qp = pd.create_qp_with(&cq, &cq, &options).unwrap();
    qp.bring_up_ud().unwrap();
    let gid = context.query_gid(1, 0).unwrap().gid;
    let to = pd.create_ah(&AddressVector::new(gid, 0)).unwrap();
    let memory = pd.alloc_mr(128, AccessFlags::LOCAL_WRITE).unwrap();
    qp.post_recv(&[ReceiveRequest::new(&memory)]).unwrap();
    for _ in 0..3 {
        qp.post_send(&[SendRequest::send_to(Payload::inline(b"text"), &to, qp.qpn(), Qkey(7))]).unwrap();
    }
    // Three sends and one receive.
    (0..4).for_each(|_| support::complete_one(&cq, &qp));
    let mut watch = Process::find(std::process::id()).unwrap().watch(EVERY).unwrap();
    let snapshot = await_snapshot(&mut watch, |snapshot| {
        let device = snapshot.devices.iter().find(|found| found.name == device).expect("the device");
        device.queue_pairs[0].counters.get(Counter::ReceivedPackets) == 3
    });
    let device = snapshot.devices.iter().find(|found| found.name == device).expect("the device");
    assert_eq!((device.queue_pairs[0].sends, device.queue_pairs[0].receives), (3, 1));
}

#[test]
fn processes_are_listed_while_they_have_a_device() {
    let mut others = [2, 3].map(|number| Other::start(&format!("soft:127.63.2.{number}")));
    let is_listed = |id: u32| processes().unwrap().iter().any(|process| process.id() == id);
    assert!(others.iter().all(|other| is_listed(other.id())));
    let ids: Vec<u32> = processes().unwrap().iter().map(Process::id).collect();
    assert!(ids.is_sorted());
    let mut watches = [others[0].watch(), others[1].watch()];
    others[0].command("close");
    others[1].kill();
    for (other, watch) in others.iter().zip(&mut watches) {
        let end = Instant::now() + PATIENCE;
        while watch.snapshot().is_ok() {
            assert!(Instant::now() < end);
        }
        assert!(matches!(watch.snapshot(), Err(MonitorError::Ended { process }) if process == other.id()));
        assert!(!is_listed(other.id()));
        assert!(matches!(Process::find(other.id()), Err(MonitorError::NotFound { .. })));
    }
}

#[test]
fn a_stopped_process_shows_its_last_values_and_hangs_no_one() {
    let mut other = Other::start("soft:127.63.3.1");
    other.command("send 3");
    let (found, mut watch) = (other.found(), other.watch());
    signal(other.id(), "-STOP");
    let stopped = await_snapshot(&mut watch, Snapshot::is_overdue);
    assert_eq!(stopped.devices[0].queue_pairs[0].sends, 3);
    assert_eq!(Process::find(other.id()).unwrap(), found);
    let start = Instant::now();
    let refused = found.watch(EVERY).unwrap_err();
    assert!(matches!(refused, MonitorError::NoAnswer { .. }) && refused.to_string().contains("stopped"), "{refused}");
    assert!(start.elapsed() < PATIENCE);
    signal(other.id(), "-CONT");
    await_snapshot(&mut watch, |snapshot| !snapshot.is_overdue() && snapshot.taken_at > stopped.taken_at);
}

#[test]
fn watchers_and_intervals_are_bounded() {
    let other = Other::start("soft:127.63.4.1");
    let found = other.found();
    for given in [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(11)] {
        assert!(matches!(found.watch(given), Err(MonitorError::Interval { .. })));
    }
    let watches: Vec<Watch> = (0..8).map(|_| found.watch(EVERY).unwrap()).collect();
    let refused = found.watch(EVERY).unwrap_err();
    assert!(matches!(&refused, MonitorError::TooMany { .. }), "{refused}");
    drop(watches);
    let end = Instant::now() + PATIENCE;
    while found.watch(EVERY).is_err() {
        assert!(Instant::now() < end);
    }
}

#[test]
fn many_queue_pairs_are_bounded_and_summed() {
    let mut other = Other::start("soft:127.63.5.1");
    other.command("send 7");
    other.command("queue_pairs 1999");
    let mut watch = other.watch();
    let snapshot = watch.snapshot().unwrap();
    let device = &snapshot.devices[0];
    assert_eq!((device.queue_pairs.len(), device.omitted_queue_pairs.queue_pairs), (1_024, 976));
    assert_eq!(device.states[QueuePairState::ReadyToSend as usize], 2_000);
    assert_eq!(device.queue_pairs.iter().map(|qp| qp.sends).sum::<u64>() + device.omitted_queue_pairs.sends, 7);
    let again = await_snapshot(&mut watch, |again| again.taken_at > snapshot.taken_at);
    assert_eq!(again.devices[0].queue_pairs.len(), 1_024);
    // It takes its time, but its connections work.
    other.command("send 100");
}

/// The child has copies of the connections, which must not keep them open.
#[test]
fn a_child_of_the_process_does_not_keep_a_watch() {
    let mut other = Other::start("soft:127.63.6.1");
    let mut watch = other.watch();
    let child: u32 = other.command("fork").parse().unwrap();
    assert!(watch.snapshot().is_ok());
    other.kill();
    let end = Instant::now() + PATIENCE;
    while watch.snapshot().is_ok() {
        assert!(Instant::now() < end, "the child keeps the connection");
    }
    signal(child, "-KILL");
}

#[test]
fn a_protected_process_refuses() {
    let mut other = Other::start("soft:127.63.7.1");
    let mut watch = other.watch();
    other.command("protect");
    let refused = other.found().watch(EVERY).unwrap_err();
    assert!(matches!(refused, MonitorError::Privileged { .. }), "{refused}");
    let file = Target::new("protected");
    let refused = other.found().start_capture(None, file.create(), &RemoteCaptureOptions::new()).unwrap_err();
    assert!(matches!(refused, MonitorError::Privileged { .. }), "{refused}");
    // Those that it accepted before go on.
    assert!(watch.snapshot().is_ok());
}

#[test]
fn a_program_with_the_privileges_of_a_group_refuses() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("setgid");
    let program = copy_of_this_program(&folder, 0o755);
    std::os::unix::fs::chown(&program, None, Some(OTHER_USER)).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o2755)).unwrap();
    let original = ignored_test(concat!(module_path!(), "::process"));
    let mut command = Command::new(&program);
    command.args(original.get_args());
    let other = Other::spawn(command, "soft:127.63.8.1");
    let refused = other.found().watch(EVERY).unwrap_err();
    assert!(matches!(refused, MonitorError::Privileged { .. }), "{refused}");
}

/// Not a test: a process of another user that wants to watch.
#[test]
#[ignore = "started by the other tests"]
fn stranger() {
    let Ok(target) = std::env::var(TARGET) else { return };
    let (path, id) = target.split_once(' ').unwrap();
    assert!(processes().unwrap().iter().all(|process| process.id().to_string() != id));
    assert!(matches!(Process::find(id.parse().unwrap()), Err(MonitorError::NotFound { .. })));
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let refused = socket.connect(&SockAddr::unix(path).unwrap()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    println!("kept out");
}

#[test]
fn other_users_are_kept_out() {
    if !is_root() {
        return;
    }
    let other = Other::start("soft:127.63.9.1");
    let sockets = unix_sockets(other.id(), "watch-");
    let [path] = &sockets[..] else { panic!("{sockets:?}") };
    let folder = Folder::new("stranger");
    let program = copy_of_this_program(&folder, 0o755);
    let original = ignored_test(concat!(module_path!(), "::stranger"));
    let mut command = Command::new(&program);
    command.args(original.get_args()).env(TARGET, format!("{path} {}", other.id()));
    let output = command.uid(OTHER_USER).gid(OTHER_USER).current_dir("/").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("kept out"), "{output:?}");
}

#[test]
fn garbage_does_not_disturb_the_process() {
    let mut other = Other::start("soft:127.63.10.1");
    let mut watch = other.watch();
    let sockets = unix_sockets(other.id(), "watch-");
    let address = SockAddr::unix(&sockets[0]).unwrap();
    for round in 0..2_000_usize {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.connect(&address).unwrap();
        let bytes: Vec<u8> = (0..round % 700).map(|index| (index * round) as u8).collect();
        let _ = socket.send(&bytes);
    }
    other.command("send 20");
    await_snapshot(&mut watch, |snapshot| snapshot.devices[0].queue_pairs[0].sends == 20);
}

/// A file of one test, removed at its end.
struct Target(PathBuf);

impl Target {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rdma-verbs-remote-{name}-{}.pcapng", std::process::id())))
    }

    fn create(&self) -> File {
        File::create(&self.0).unwrap()
    }

    fn bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the number of packets in a capture, all of whose blocks are whole.
fn packets_in(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap();
    let (mut rest, mut packets) = (&bytes[..], 0);
    while !rest.is_empty() {
        let word = |offset: usize| u32::from_le_bytes(rest[offset..offset + 4].try_into().unwrap());
        let length = word(4) as usize;
        assert_eq!(word(length - 4) as usize, length);
        packets += usize::from(word(0) == 6);
        rest = &rest[length..];
    }
    packets
}

#[test]
fn packets_are_captured_until_the_requester_stops() {
    let mut other = Other::start("soft:127.63.11.1");
    let target = Target::new("stopped");
    std::fs::write(&target.0, "old contents, which are removed").unwrap();
    let file = File::options().write(true).open(&target.0).unwrap();
    let mut capture = other.found().start_capture(None, file, &RemoteCaptureOptions::new()).unwrap();
    assert_eq!(capture.device(), "soft:127.63.11.1");
    other.command("send 30");
    let end = Instant::now() + PATIENCE;
    while capture.summary().unwrap().packets < 60 {
        assert!(Instant::now() < end, "no progress is reported");
        assert_eq!(capture.wait(EVERY).unwrap(), None);
    }
    let captures = await_snapshot(&mut other.watch(), |_| true).devices[0].captures;
    let result = capture.stop().unwrap();
    assert_eq!((captures, &result.end), (1, &CaptureEnd::Stopped));
    // At least a packet and its acknowledgement, each sent and received.
    assert!(result.summary.packets >= 60, "{result:?}");
    assert_eq!((packets_in(&target.0) as u64, target.bytes()), (result.summary.packets, result.summary.bytes));
    other.command("send 5");
    assert_eq!(target.bytes(), result.summary.bytes);
    await_snapshot(&mut other.watch(), |snapshot| snapshot.devices[0].captures == 0);
}

#[test]
fn a_capture_ends_with_the_requester_the_device_the_process_or_the_file() {
    let mut other = Other::start("soft:127.63.12.1");
    let found = other.found();
    let options = RemoteCaptureOptions::new();
    // The requester.
    let target = Target::new("dropped");
    let capture = found.start_capture(None, target.create(), &options).unwrap();
    other.command("send 5");
    drop(capture);
    await_snapshot(&mut other.watch(), |snapshot| snapshot.devices[0].captures == 0);
    assert!(packets_in(&target.0) >= 10);
    // The file.
    let target = Target::new("full");
    let mut capture = found.start_capture(None, target.create(), &options.clone().max_bytes(20_000)).unwrap();
    other.command("send 60");
    let result = capture.wait(PATIENCE).unwrap().expect("the end");
    assert!(result.end == CaptureEnd::ReachedMaxBytes && target.bytes() <= 20_000, "{result:?}");
    // The device.
    let target = Target::new("closed");
    other.command("open soft:127.63.12.2");
    let refused = found.start_capture(None, target.create(), &options).unwrap_err();
    assert!(refused.to_string().contains("soft:127.63.12.1, soft:127.63.12.2"), "{refused}");
    let refused = found.start_capture(Some("soft_x"), target.create(), &options).unwrap_err();
    assert!(refused.to_string().contains("no device soft_x"), "{refused}");
    let mut closed = found.start_capture(Some("soft:127.63.12.1"), target.create(), &options).unwrap();
    other.command("send 5");
    other.command("close");
    // It is complete when the device is closed.
    assert!(packets_in(&target.0) >= 10);
    let result = closed.wait(PATIENCE).unwrap().expect("the end");
    assert_eq!((result.end, result.summary.bytes), (CaptureEnd::DeviceClosed, target.bytes()));
    // The process.
    let target = Target::new("killed");
    let mut killed = found.start_capture(None, target.create(), &options).unwrap();
    other.kill();
    assert_eq!(killed.wait(PATIENCE).unwrap().expect("the end").end, CaptureEnd::ProcessEnded);
}

#[test]
fn only_plain_files_of_the_user_are_written() {
    let other = Other::start("soft:127.63.13.1");
    let (found, options) = (other.found(), RemoteCaptureOptions::new());
    let refusal = |file: File, words: &str| {
        let refused = found.start_capture(None, file, &options).unwrap_err();
        assert!(matches!(refused, MonitorError::Refused { .. }), "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    };
    let target = Target::new("plain");
    std::fs::write(&target.0, "kept").unwrap();
    refusal(File::open(&target.0).unwrap(), "not open for writing");
    assert_eq!(std::fs::read(&target.0).unwrap(), b"kept");
    refusal(File::options().write(true).open("/dev/null").unwrap(), "not a regular file");
    refusal(File::from(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().1)), "not a regular file");
    let link = Target::new("link");
    std::fs::hard_link(&target.0, &link.0).unwrap();
    refusal(File::options().write(true).open(&target.0).unwrap(), "2 names");
    assert_eq!(std::fs::read(&target.0).unwrap(), b"kept");
    let least = found.start_capture(None, link.create(), &options.clone().max_bytes(100)).unwrap_err();
    assert!(least.to_string().contains("allowed are 8192 and more"), "{least}");
}

/// A write beyond the limit would raise a signal.
#[test]
fn a_capture_keeps_the_limit_on_the_size_of_files() {
    let mut other = Other::start("soft:127.63.14.1");
    let (target, mut watch) = (Target::new("limit"), other.watch());
    other.command("limit 30000");
    let refused = other.found().watch(EVERY).unwrap_err();
    assert!(refused.to_string().contains("at most 30000 bytes (RLIMIT_FSIZE)"), "{refused}");
    let options = RemoteCaptureOptions::new().max_bytes(1 << 30);
    let mut capture = other.found().start_capture(None, target.create(), &options).unwrap();
    other.command("send 100");
    let result = capture.wait(PATIENCE).unwrap().expect("the end");
    assert!(result.end == CaptureEnd::ReachedMaxBytes && target.bytes() <= 30_000, "{result:?}");
    await_snapshot(&mut watch, |snapshot| snapshot.devices[0].queue_pairs[0].sends == 100);
}

/// The requester and the process share the position in the file, and a write beyond the limit would raise a signal.
#[test]
fn the_requester_may_use_its_file_meanwhile() {
    let mut other = Other::start("soft:127.63.16.1");
    let target = Target::new("shared");
    let mut file = target.create();
    other.command("limit 30000");
    let given = file.try_clone().unwrap();
    let capture = other.found().start_capture(None, given, &RemoteCaptureOptions::new()).unwrap();
    for position in [10_000, 29_999, 100_000] {
        file.seek(SeekFrom::Start(position)).unwrap();
        other.command("send 2");
        std::thread::sleep(EVERY);
    }
    let result = capture.stop().unwrap();
    assert_eq!((&result.end, target.bytes()), (&CaptureEnd::Stopped, result.summary.bytes));
    assert_eq!(packets_in(&target.0) as u64, result.summary.packets);
}

#[test]
fn captures_are_bounded() {
    let other = Other::start("soft:127.63.15.1");
    let target: Vec<Target> = (0..17).map(|number| Target::new(&format!("many-{number}"))).collect();
    let (found, options) = (other.found(), RemoteCaptureOptions::new());
    let start = |target: &Target| found.start_capture(None, target.create(), &options);
    let captures: Vec<_> = target[..16].iter().map(|target| start(target).unwrap()).collect();
    let refused = start(&target[16]).unwrap_err();
    assert!(matches!(refused, MonitorError::TooMany { .. }), "{refused}");
    drop(captures);
    let end = Instant::now() + PATIENCE;
    while start(&target[16]).is_err() {
        assert!(Instant::now() < end);
    }
}
