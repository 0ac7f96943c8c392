//! Every verb of a reliable connection, in both directions, against the `peer` program on the kernel's own verbs: every
//! byte is checked, every remote error is provoked once. `tests/interop/run` starts both ends.
//!
//! `peer.c` documents the lines that are exchanged.

mod guest;
mod placement;
mod standard_peer;
mod windows;

use std::time::Duration;

use clap::Parser;
use guest::{Guest, Reply, pattern};
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionOpcode, CompletionQueue, CompletionStatus, ConnectOptions, Context,
    MemoryRegion, Payload, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, RegionList, RemoteMemory,
    Rkey, SendRequest,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Scenario = fn(&mut Home) -> Outcome;

const AREA_BYTES: usize = 1 << 18;
const PATIENCE: Duration = Duration::from_secs(30);
/// Offset of the atomics' target, in both ends' memory.
const COUNTER_OFFSET: usize = 4096;

#[derive(Parser)]
#[command(about = "Exercises every verb against the kernel's Soft-RoCE device, in both directions")]
struct Arguments {
    /// Own device, for example soft:192.0.2.1
    #[arg(long)]
    device: String,
    /// Address and port of the peer program
    #[arg(long)]
    peer: String,
}

/// The local end, without a connection.
struct Home {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    open: MemoryRegion,
    readable: MemoryRegion,
    guest: Guest,
}

/// A connection: a new queue pair at both ends.
struct Connection {
    qp: QueuePair,
    remote: Reply,
}

#[derive(Clone, Copy)]
struct Terms {
    /// Access that our queue pair grants the guest.
    access: AccessFlags,
    /// Access that the guest's queue pair grants us, as the letters of its `reset`.
    guest_access: &'static str,
    rnr_retry: u8,
    retry_cnt: u8,
}

const USUAL: Terms = Terms { access: AccessFlags::REMOTE, guest_access: "rwa", rnr_retry: 6, retry_cnt: 7 };

impl Home {
    fn new(arguments: &Arguments) -> Result<Self, Box<dyn std::error::Error>> {
        let context = verbs::open(&arguments.device)?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(512)?;
        let open = pd.alloc_mr(AREA_BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE)?;
        let readable = pd.alloc_mr(4096, AccessFlags::REMOTE_READ)?;
        let guest = Guest::connect(&arguments.peer, PATIENCE)?;
        Ok(Self { context, pd, cq, open, readable, guest })
    }

    fn connect(&mut self, terms: Terms) -> Result<Connection, Box<dyn std::error::Error>> {
        let remote = self.guest.command(&format!("reset access={}", terms.guest_access))?;
        let options = QueuePairOptions::default().access(terms.access).max_dest_rd_atomic(16);
        let qp = self.pd.create_qp_with(&self.cq, &self.cq, &options.max_inline_data(64))?;
        let path_mtu = remote.path_mtu()?;
        let mut info = remote.connection_info(path_mtu)?;
        info.max_dest_rd_atomic = 16;
        let options = ConnectOptions::default().path_mtu(path_mtu).timeout(14).retry_cnt(terms.retry_cnt);
        qp.connect_with(&info, &options.rnr_retry(terms.rnr_retry).min_rnr_timer(12))?;
        let own = qp.connection_info()?;
        let gid: String = own.gid.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.guest.command(&format!("connect {} {} {gid}", own.qpn.value(), own.psn.value()))?;
        Ok(Connection { qp, remote })
    }

    fn wait(&self) -> Result<Completion, Box<dyn std::error::Error>> {
        Ok(self.cq.wait(PATIENCE)?)
    }

    /// Posts one request and waits for its completion.
    fn perform(&self, qp: &QueuePair, request: SendRequest<'_>) -> Result<Completion, Box<dyn std::error::Error>> {
        qp.post_send(&[request.signaled()])?;
        self.wait()
    }

    fn perform_well(&self, qp: &QueuePair, request: SendRequest<'_>) -> Outcome {
        self.perform(qp, request)?.result()?;
        Ok(())
    }

    /// Posts a request that must fail with one of these statuses.
    fn perform_badly(&self, qp: &QueuePair, request: SendRequest<'_>, expected: &[CompletionStatus]) -> Outcome {
        let status = self.perform(qp, request)?.status();
        ensure(expected.contains(&status), &format!("{status:?} instead of {expected:?}"))
    }

    fn own_bytes_are(&self, offset: usize, expected: &[u8]) -> Outcome {
        let found = self.open.to_vec(offset..offset + expected.len())?;
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        ensure(wrong.is_none(), &format!("wrong byte at {wrong:?} of {}", expected.len()))
    }

    fn fill(&self, length: usize, seed: u32) -> Outcome {
        Ok(self.open.write_at(0, &pattern(seed, length))?)
    }
}

fn ensure(holds: bool, otherwise: &str) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.to_owned().into()) }
}

/// Message lengths around the edges of packets.
fn lengths(mtu: usize) -> [usize; 8] {
    [0, 1, 3, 100, mtu, mtu + 1, 5 * mtu + 7, 60_001]
}

fn our_writes_and_reads(home: &mut Home) -> Outcome {
    let connection = home.connect(USUAL)?;
    let memory = connection.remote.memory("open")?;
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    for (seed, length) in (1..).zip(lengths(mtu)) {
        home.fill(length, seed)?;
        let there = memory.slice(16..16 + length)?;
        home.perform_well(&connection.qp, SendRequest::write(home.open.slice(..length)?, there))?;
        home.guest.expect_pattern("open", 16, length, seed)?;
        home.open.write_at(0, &vec![0; length])?;
        home.perform_well(&connection.qp, SendRequest::read(home.open.slice(..length)?, there))?;
        home.own_bytes_are(0, &pattern(seed, length))?;
    }
    // Gathered from three SGEs, scattered to two, and inline.
    home.fill(3_000, 50)?;
    let pieces = [home.open.slice(..7)?, home.open.slice(7..1_500)?, home.open.slice(1_500..3_000)?];
    let there = memory.slice(0..3_000)?;
    home.perform_well(&connection.qp, SendRequest::write(RegionList::from(&pieces), there))?;
    home.guest.expect_pattern("open", 0, 3_000, 50)?;
    let ranges = [home.open.slice(10_000..11_001)?, home.open.slice(11_001..13_000)?];
    home.perform_well(&connection.qp, SendRequest::read(&ranges, there))?;
    home.own_bytes_are(10_000, &pattern(50, 3_000))?;
    let inline = pattern(51, 33);
    home.perform_well(&connection.qp, SendRequest::write(Payload::inline(&inline), memory.slice(0..33)?))?;
    home.guest.expect_pattern("open", 0, 33, 51)
}

fn our_atomics(home: &mut Home) -> Outcome {
    let connection = home.connect(USUAL)?;
    let counter = connection.remote.memory("open")?.slice(COUNTER_OFFSET..COUNTER_OFFSET + 8)?;
    home.guest.command(&format!("poke open {COUNTER_OFFSET} 40"))?;
    let old = home.open.slice(0..8)?;
    for before in [40_u64, 42, 44] {
        home.perform_well(&connection.qp, SendRequest::fetch_and_add(old, counter, 2))?;
        home.own_bytes_are(0, &before.to_ne_bytes())?;
    }
    home.perform_well(&connection.qp, SendRequest::compare_and_swap(old, counter, 1, 2))?;
    home.own_bytes_are(0, &46_u64.to_ne_bytes())?;
    home.perform_well(&connection.qp, SendRequest::compare_and_swap(old, counter, 46, u64::MAX))?;
    home.own_bytes_are(0, &46_u64.to_ne_bytes())?;
    let found = home.guest.command(&format!("peek open {COUNTER_OFFSET}"))?.number("value")?;
    ensure(found == u64::MAX, &format!("the counter is {found}"))
}

fn our_messages(home: &mut Home) -> Outcome {
    let connection = home.connect(USUAL)?;
    let memory = connection.remote.memory("open")?;
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    for (seed, length) in (60..).zip(lengths(mtu)) {
        home.fill(length, seed)?;
        home.guest.command(&format!("recv 2 {}", AREA_BYTES / 4))?;
        home.perform_well(&connection.qp, SendRequest::send(home.open.slice(..length)?))?;
        let received = home.guest.command("poll recv")?;
        received.expect(&[("status", "success"), ("opcode", "recv"), ("byte_len", &length.to_string())])?;
        home.guest.expect_pattern("receive", 0, length, seed)?;
        home.perform_well(&connection.qp, SendRequest::send_with_immediate(home.open.slice(..length)?, 0x1234))?;
        let received = home.guest.command("poll recv")?;
        ensure(received.number("imm")? == 0x1234, "wrong immediate data")?;
        home.guest.expect_pattern("receive", AREA_BYTES / 4, length, seed)?;
        home.guest.command(&format!("recv 1 {}", AREA_BYTES / 4))?;
        let there = memory.slice(0..length)?;
        let request = SendRequest::write_with_immediate(home.open.slice(..length)?, there, 77);
        home.perform_well(&connection.qp, request)?;
        let received = home.guest.command("poll recv")?;
        received.expect(&[("opcode", "recv_write_imm"), ("imm", "77"), ("byte_len", &length.to_string())])?;
        home.guest.expect_pattern("open", 0, length, seed)?;
    }
    Ok(())
}

fn our_send_with_invalidate(home: &mut Home) -> Outcome {
    let connection = home.connect(USUAL)?;
    let window = home.guest.command("bind 0 4096")?;
    window.expect(&[("status", "success")])?;
    let rkey = Rkey(window.number("rkey")? as u32);
    home.fill(100, 90)?;
    let there = RemoteMemory::new(window.number("addr")?, rkey, 4096).slice(0..100)?;
    home.perform_well(&connection.qp, SendRequest::write(home.open.slice(..100)?, there))?;
    home.guest.expect_pattern("open", 0, 100, 90)?;
    home.guest.command("recv 1 4096")?;
    home.perform_well(&connection.qp, SendRequest::send_with_invalidate(home.open.slice(..100)?, rkey))?;
    home.guest.command("poll recv")?.expect(&[("status", "success"), ("invalidated", &rkey.0.to_string())])?;
    let refused = [CompletionStatus::RemoteAccessError];
    home.perform_badly(&connection.qp, SendRequest::write(home.open.slice(..100)?, there), &refused)
}

fn guests_writes_and_reads(home: &mut Home) -> Outcome {
    let connection = home.connect(USUAL)?;
    let (addr, rkey) = (home.open.iova(), home.open.rkey().0);
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    for (seed, length) in (100..).zip(lengths(mtu)) {
        let done = home.guest.command(&format!("write {} {rkey} {length} {seed}", addr + 32))?;
        done.expect(&[("status", "success")])?;
        home.own_bytes_are(32, &pattern(seed, length))?;
        let done = home.guest.command(&format!("read {} {rkey} {length} {seed}", addr + 32))?;
        done.expect(&[("status", "success"), ("check", "good")])?;
    }
    let done = home.guest.command(&format!("write {addr} {rkey} 1000 130 count=32"))?;
    done.expect(&[("status", "success"), ("done", "32")])?;
    home.own_bytes_are(0, &pattern(130, 32_000))?;
    let done = home.guest.command(&format!("read {addr} {rkey} 1000 130 count=32"))?;
    done.expect(&[("status", "success"), ("check", "good")])
}

fn guests_atomics(home: &mut Home) -> Outcome {
    let _connection = home.connect(USUAL)?;
    let (addr, rkey) = (home.open.iova() + COUNTER_OFFSET as u64, home.open.rkey().0);
    home.open.write_at(COUNTER_OFFSET, &7_u64.to_ne_bytes())?;
    let done = home.guest.command(&format!("faa {addr} {rkey} 3 count=16"))?;
    done.expect(&[("status", "success"), ("old", "52")])?;
    let done = home.guest.command(&format!("cas {addr} {rkey} 55 1000"))?;
    done.expect(&[("status", "success"), ("old", "55")])?;
    home.own_bytes_are(COUNTER_OFFSET, &1000_u64.to_ne_bytes())
}

fn guests_messages(home: &mut Home) -> Outcome {
    let connection = home.connect(USUAL)?;
    let (addr, rkey) = (home.open.iova(), home.open.rkey().0);
    let mtu = connection.remote.path_mtu()?.bytes() as usize;
    for (seed, length) in (140..).zip(lengths(mtu)) {
        let inbox = home.open.slice(100_000..100_000 + length.max(1))?;
        let receives = [1, 2, 3].map(|wr_id| ReceiveRequest::new(inbox).wr_id(wr_id));
        connection.qp.post_recv(&receives)?;
        home.guest.command(&format!("send {length} {seed}"))?.expect(&[("status", "success")])?;
        let received = home.wait()?;
        ensure((received.wr_id(), received.result()?.byte_len) == (1, length as u32), "wrong receive completion")?;
        home.own_bytes_are(100_000, &pattern(seed, length))?;
        home.guest.command(&format!("send_imm {length} {seed} 4711"))?.expect(&[("status", "success")])?;
        ensure(home.wait()?.result()?.immediate == Some(4711), "wrong immediate data")?;
        let done = home.guest.command(&format!("write_imm {addr} {rkey} {length} {seed} 4712"))?;
        done.expect(&[("status", "success")])?;
        let received = home.wait()?.result()?;
        let found = (received.opcode, received.immediate, received.byte_len);
        let expected = (CompletionOpcode::ReceiveWriteWithImmediate, Some(4712), length as u32);
        ensure(found == expected, &format!("{found:?} instead of {expected:?}"))?;
        home.own_bytes_are(0, &pattern(seed, length))?;
    }
    Ok(())
}

fn errors_that_the_guest_reports(home: &mut Home) -> Outcome {
    use CompletionStatus::{
        ReceiverNotReadyRetryExceededError, RemoteAccessError, RemoteInvalidRequestError, RemoteOperationError,
        RetryExceededError,
    };
    let connection = home.connect(USUAL)?;
    let memory = connection.remote.memory("open")?;
    let bad_key = RemoteMemory::new(memory.addr(), Rkey(memory.rkey().0 ^ 0x5500), 4096);
    home.perform_badly(&connection.qp, SendRequest::write(home.open.slice(..64)?, bad_key), &[RemoteAccessError])?;

    let connection = home.connect(USUAL)?;
    let memory = connection.remote.memory("open")?;
    let beyond = RemoteMemory::new(memory.addr() + memory.len() - 8, memory.rkey(), 4096);
    home.perform_badly(&connection.qp, SendRequest::read(home.open.slice(..64)?, beyond), &[RemoteAccessError])?;

    let connection = home.connect(USUAL)?;
    let readable = connection.remote.memory("readable")?;
    home.perform_badly(&connection.qp, SendRequest::write(home.open.slice(..64)?, readable), &[RemoteAccessError])?;

    let connection = home.connect(Terms { guest_access: "r", ..USUAL })?;
    let memory = connection.remote.memory("open")?;
    let refused = [RemoteInvalidRequestError];
    home.perform_badly(&connection.qp, SendRequest::write(home.open.slice(..64)?, memory), &refused)?;

    // Linux reports an operational error for a receive that is too small; the standard requires an invalid request.
    let connection = home.connect(USUAL)?;
    home.guest.command("recv 1 16")?;
    let refused = [RemoteOperationError, RemoteInvalidRequestError];
    home.perform_badly(&connection.qp, SendRequest::send(home.open.slice(..64)?), &refused)?;

    let connection = home.connect(Terms { rnr_retry: 2, ..USUAL })?;
    let exceeded = [ReceiverNotReadyRetryExceededError];
    home.perform_badly(&connection.qp, SendRequest::send(home.open.slice(..64)?), &exceeded)?;

    let connection = home.connect(Terms { retry_cnt: 2, ..USUAL })?;
    home.guest.command("destroy")?;
    home.perform_badly(&connection.qp, SendRequest::send(home.open.slice(..64)?), &[RetryExceededError])
}

fn errors_that_we_report(home: &mut Home) -> Outcome {
    let (addr, rkey) = (home.open.iova(), home.open.rkey().0);
    let cases = [
        (format!("write {addr} {} 64 1", rkey ^ 0x5500), "rem_access_err"),
        (format!("read {} {rkey} 64 1", addr + AREA_BYTES as u64 - 8), "rem_access_err"),
        (format!("write {} {} 64 1", home.readable.iova(), home.readable.rkey().0), "rem_access_err"),
        ("send 64 1".to_owned(), "rnr_retry_exc_err"),
    ];
    for (command, expected) in cases {
        let _connection = home.connect(USUAL)?;
        home.guest.command(&command)?.expect(&[("status", expected)])?;
    }
    let _connection = home.connect(Terms { access: AccessFlags::REMOTE_READ, ..USUAL })?;
    home.guest.command(&format!("write {addr} {rkey} 64 1"))?.expect(&[("status", "rem_inv_req_err")])?;

    let connection = home.connect(USUAL)?;
    connection.qp.post_recv(&[ReceiveRequest::new(home.open.slice(..16)?)])?;
    home.guest.command("send 64 1")?.expect(&[("status", "rem_inv_req_err")])?;
    let status = home.wait()?.status();
    ensure(status == CompletionStatus::LocalLengthError, &format!("{status:?} at the receiver"))?;

    let connection = home.connect(USUAL)?;
    drop(connection.qp);
    home.guest.command("send 64 1 wait=20000")?.expect(&[("status", "retry_exc_err")])
}

fn run(arguments: &Arguments) -> Outcome {
    let mut home = Home::new(arguments)?;
    let scenarios: [(&str, Scenario); 24] = [
        ("a peer of unknown capabilities", standard_peer::stays_standard),
        ("our WRITEs and READs", our_writes_and_reads),
        ("our atomics", our_atomics),
        ("our messages", our_messages),
        ("our SEND with invalidate", our_send_with_invalidate),
        ("the guest's WRITEs and READs", guests_writes_and_reads),
        ("the guest's atomics", guests_atomics),
        ("the guest's messages", guests_messages),
        ("errors that the guest reports", errors_that_the_guest_reports),
        ("errors that we report", errors_that_we_report),
        ("our FLUSHes", placement::our_flushes),
        ("FLUSHes that the guest refuses", placement::flushes_that_the_guest_refuses),
        ("the guest's FLUSHes", placement::guests_flushes),
        ("FLUSHes that we refuse", placement::flushes_that_we_refuse),
        ("our ATOMIC WRITEs", placement::our_atomic_writes),
        ("ATOMIC WRITEs that the guest refuses", placement::atomic_writes_that_the_guest_refuses),
        ("the guest's ATOMIC WRITEs", placement::guests_atomic_writes),
        ("ATOMIC WRITEs that we refuse", placement::atomic_writes_that_we_refuse),
        ("the guest's windows", windows::the_guests_windows),
        ("the guest's windows, invalidated", windows::the_guests_windows_invalidated),
        ("the guest's windows, invalid access", windows::the_guests_windows_refuse_access),
        ("our windows", windows::our_windows),
        ("our windows, invalidated", windows::our_windows_invalidated),
        ("our windows, invalid access", windows::our_windows_refuse_access),
    ];
    for (name, scenario) in scenarios {
        scenario(&mut home).map_err(|error| format!("{name}: {error}; counters {}", counted(&home.context)))?;
        println!("ok: {name}");
    }
    home.guest.command("quit")?;
    Ok(())
}

/// Formats the counters that are not zero.
fn counted(context: &Context) -> String {
    let counters = context.counters();
    let shown = counters.iter().filter(|(_, value)| *value > 0).map(|(name, value)| format!("{name}={value}"));
    shown.collect::<Vec<_>>().join(" ")
}

fn main() -> std::process::ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("interop_one_sided: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
