//! A victim, an honest process that exchanges with it through memory, and hostile ones.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::sim::Random;
use rdma_verbs::verbs::Counter;

use super::offer::{Offer, RING_BYTES, WHOLE_BYTES, connect, is_refused, sealed};
use crate::connections::victim::{Client, Victim};
use crate::world::{PATIENCE, new_address};

/// The role of another process, its address and the victim's, in its environment.
const ROLE: &str = "RDMA_VERBS_ATTACK_ROLE";
const ADDRESSES: &str = "RDMA_VERBS_ATTACK_ADDRESSES";
/// Blocks of queue pair numbers.
const BLOCKS: u16 = 4_096;
/// Offset of the records in a ring, and of the bell's word.
const RECORDS: u64 = 4_096;
const BELL: u64 = 128;
/// Exchanges of the honest process in a check.
const EXCHANGES: u64 = 5;

/// Runs the role of this process, if it has one. Returns whether it has.
pub(crate) fn is_other_process() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let addresses = std::env::var(ADDRESSES).expect("addresses");
    let (own, victim) = addresses.split_once(' ').expect("two addresses");
    let [own, victim] = [own, victim].map(|address| address.parse().expect("an address"));
    match role.as_str() {
        "honest" => exchange_honestly(own, victim),
        "hostile" => exchange_while_rings_change(own, victim),
        other => panic!("{other}: no such role"),
    }
    true
}

/// Exchanges for each line of the standard input, and writes the number of sends through memory.
fn exchange_honestly(own: Ipv4Addr, victim: Ipv4Addr) {
    let client = Client::connect_from(own, victim);
    println!("{}", client.qpn());
    for line in std::io::stdin().lines() {
        let count: u64 = line.expect("a line").parse().expect("a number");
        (0..count).for_each(|_| client.exchange());
        println!("{}", client.context.counters().get(Counter::SharedMemorySends));
    }
}

/// Exchanges, and connects again when a connection fails, while threads change the rings.
fn exchange_while_rings_change(own: Ipv4Addr, victim: Ipv4Addr) {
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 1..=2 {
        thread::spawn(move || change_rings(&mut Random::new(seed)));
    }
    loop {
        // It fails when its rings do.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let client = Client::connect_from(own, victim);
            (0..500).for_each(|_| client.exchange());
        }));
    }
}

/// Returns the first addresses of the rings that a process has mapped.
fn rings_of(process: &str) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let rings = maps.lines().filter(|line| line.contains("/memfd:rdma-verbs "));
    rings.filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok()).collect()
}

/// Changes the rings of this process forever: at any place, and where the ends read and write now.
fn change_rings(random: &mut Random) {
    // Writing through the file fails if a ring is unmapped meanwhile.
    let memory = File::options().read(true).write(true).open("/proc/self/mem").expect("the own memory");
    loop {
        for begin in rings_of("self") {
            // Some exchanges succeed in between.
            thread::sleep(Duration::from_micros(random.below(3_000)));
            for _ in 0..random.below(200) {
                change_ring(random, &memory, begin);
            }
        }
    }
}

fn change_ring(random: &mut Random, memory: &File, begin: u64) {
    let mut word = [0; 8];
    let _ = memory.read_at(&mut word, begin);
    let read = u64::from_le_bytes(word);
    let near = RECORDS + (read + random.below(300_000)) % RING_BYTES as u64;
    let place = match random.below(10) {
        0 => 0,
        1 => BELL,
        2 | 3 => RECORDS + random.below(RING_BYTES as u64),
        4 => random.below(WHOLE_BYTES as u64 - 8),
        _ => near,
    } & !7;
    let _ = memory.read_at(&mut word, begin + place);
    let old = u64::from_le_bytes(word);
    let new = match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => random.number(),
        3 => random.below(70_000),
        4 => old & !0x1_ffff | random.below(1 << 17),
        5 => old ^ 1 << random.below(64),
        6 => old & 0x1_ffff | random.number() & !0x1_ffff,
        _ => old.wrapping_add(random.below(16)),
    };
    let _ = memory.write_at(&new.to_le_bytes(), begin + place);
}

/// Another process with a role, which ends when this is dropped.
pub(super) struct Other {
    child: Child,
    commands: Mutex<ChildStdin>,
    said: Mutex<BufReader<ChildStdout>>,
    pub(super) address: Ipv4Addr,
    qpn: u32,
}

impl Other {
    pub(super) fn start(role: &str, victim: Ipv4Addr) -> Self {
        let address = new_address();
        let mut command = sharing(Command::new(std::env::current_exe().expect("the own program")));
        command.env(ROLE, role).env(ADDRESSES, format!("{address} {victim}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (commands, said) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (commands, said) = (Mutex::new(commands), Mutex::new(BufReader::new(said)));
        let mut other = Self { child, commands, said, address, qpn: 0 };
        if role == "honest" {
            other.qpn = other.number() as u32;
        }
        other
    }

    fn number(&self) -> u64 {
        let mut line = String::new();
        self.said.lock().expect("a pipe").read_line(&mut line).expect("a line");
        line.trim_end().parse().expect("the process goes on")
    }

    /// Exchanges messages, and returns the number of sends through memory so far.
    fn exchange(&self, count: u64) -> u64 {
        writeln!(self.commands.lock().expect("a pipe"), "{count}").expect("the process goes on");
        self.number()
    }

    /// Exchanges until packets leave through memory.
    pub(super) fn await_link(&self) {
        let end = Instant::now() + PATIENCE;
        let before = self.exchange(1);
        while self.exchange(1) == before {
            assert!(Instant::now() < end, "no memory is shared");
        }
    }

    /// Returns the block of its queue pair.
    pub(super) fn block(&self) -> u16 {
        (self.qpn >> 12) as u16
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sharing(mut command: Command) -> Command {
    command.env("RDMA_VERBS_SHARED_MEMORY", "auto");
    command
}

/// A victim, and an honest process that shares memory with it.
pub(super) struct Scene {
    pub(super) victim: Victim,
    pub(super) honest: Other,
    /// The number of rings of the victim while there is no attack.
    pub(super) quiet: usize,
    block: Option<u16>,
    errors: PathBuf,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with(Command::new(std::env::current_exe().expect("the own program")))
    }

    /// The victim can have this many descriptors.
    pub(super) fn with_limit(descriptors: usize) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\"")]);
        command.arg(std::env::current_exe().expect("the own program"));
        Self::with(command)
    }

    fn with(command: Command) -> Self {
        let address = new_address();
        let errors = std::env::temp_dir().join(format!("rdma-verbs-victim-{address}-{}", std::process::id()));
        let mut command = sharing(command);
        command.stderr(File::create(&errors).expect("a file"));
        let victim = Victim::start_with(command, address, 0);
        let honest = Other::start("honest", address);
        honest.await_link();
        let quiet = rings_of(&victim.id().to_string()).len();
        assert_eq!(quiet, 2, "a ring in each direction");
        Self { victim, honest, quiet, block: None, errors }
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.victim.address
    }

    /// Checks that the honest process goes on through memory, and that the victim has not panicked.
    #[track_caller]
    pub(super) fn check(&mut self) {
        let before = self.honest.exchange(1);
        let after = self.honest.exchange(EXCHANGES);
        assert!(after > before, "the honest process no longer sends through memory");
        let said = fs::read_to_string(&self.errors).expect("a file");
        assert!(!said.contains("panicked"), "{said}");
        assert!(!self.victim.has_ended(), "the victim ends: {said}");
    }

    /// Returns an offer that makes sense, from a new address.
    pub(super) fn offer(&mut self) -> Offer {
        let block = self.block.unwrap_or_else(|| self.find_block());
        self.block = Some(block);
        self.offer_at(block)
    }

    /// Returns an offer to a block.
    pub(super) fn offer_at(&self, recipient: u16) -> Offer {
        Offer { recipient, source: new_address(), destination: self.address(), name: [7; 16], blocks: vec![9] }
    }

    /// Finds a block of the victim by trying all.
    fn find_block(&self) -> u16 {
        let memory = sealed(WHOLE_BYTES);
        let number = std::os::fd::AsRawFd::as_raw_fd(&memory);
        let is_it = |block: &u16| !is_refused(&connect(self.victim.id()), &self.offer_at(*block).bytes(), &[number]);
        let block = (0..BLOCKS).find(is_it).expect("a block of the victim");
        self.await_links(self.quiet);
        block
    }

    /// Returns the number of descriptors of the victim.
    pub(super) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.victim.id())).expect("a process").count()
    }

    /// Waits until the victim has no more than this many descriptors.
    #[track_caller]
    pub(super) fn await_descriptors(&self, most: usize) {
        let end = Instant::now() + PATIENCE;
        while self.descriptors() > most {
            assert!(Instant::now() < end, "{} descriptors instead of {most}", self.descriptors());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the victim has no more than this many rings.
    #[track_caller]
    pub(super) fn await_links(&self, most: usize) {
        let end = Instant::now() + PATIENCE;
        let process = self.victim.id().to_string();
        loop {
            // A ring that is taken apart is gone with the next pass of its shard.
            let count = rings_of(&process).len() + offers_of(&process);
            if count <= most {
                return;
            }
            assert!(Instant::now() < end, "{count} rings instead of {most}");
            self.honest.exchange(1);
        }
    }

    /// Changes the limit of the victim's descriptors.
    pub(super) fn limit_descriptors(&self, most: usize) {
        let arguments = [format!("--pid={}", self.victim.id()), format!("--nofile={most}:")];
        let status = Command::new("prlimit").args(arguments).status().expect("prlimit of util-linux");
        assert!(status.success(), "prlimit");
    }

    /// Returns the processor time that the thread of the victim has used that accepts connections.
    pub(super) fn acceptor_time(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.victim.id())).expect("threads");
        let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let acceptor = tasks.flatten().find(|task| name(task).trim() == "rdma-mailbox").expect("the thread");
        let stat = fs::read_to_string(acceptor.path().join("stat")).expect("numbers of the thread");
        let words: Vec<&str> = stat.rsplit(") ").next().expect("numbers").split(' ').collect();
        let ticks: u64 = [words[11], words[12]].iter().map(|word| word.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }
}

/// Returns the number of rings that a process has mapped and others have created.
fn offers_of(process: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    maps.lines().filter(|line| line.contains("/memfd:offer")).count()
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.errors);
    }
}
