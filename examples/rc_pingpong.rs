//! Ping-pong over a reliable connection.
//!
//! With no arguments both ends run here, on two loopback addresses: every byte is checked, latency and bandwidth are
//! printed. With arguments it is one end, compatible with rdma-core's `ibv_rc_pingpong` in flags, in what is said over
//! TCP and in what is printed, so that the other end can be that program on a kernel or an adapter:
//!
//! ```text
//! cargo run --release --example rc_pingpong                            both ends
//! cargo run --release --example rc_pingpong -- -d soft_eth0 -g 0       server
//! cargo run --release --example rc_pingpong -- -d soft_eth0 HOST       client
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use rdma_verbs::verbs::{
    self, AccessFlags, Completion, CompletionChannel, CompletionOpcode, CompletionQueue, ConnectOptions,
    ConnectionInfo, Context, Counter, Gid, MemoryRegion, Mtu, Notify, ProtectionDomain, Psn, Qpn, QueuePair,
    ReceiveRequest, SendRequest,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Set by Ctrl-C; the loops end when they see it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ping-pong over a reliable connection. Without any argument, both ends run in this program.
#[derive(Parser)]
#[command(disable_version_flag = true)]
#[command(after_help = "RDMA_VERBS_CAPTURE=FOLDER captures all packets for Wireshark: see docs/capture.md.")]
struct Arguments {
    /// Listen on or connect to this TCP port.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Device, for example soft_eth0 or soft:192.0.2.1; by default the first one that is not the loopback.
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Size of a message in bytes.
    #[arg(short, long, default_value_t = 4096)]
    size: usize,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    mtu: Mtu,
    /// Receives to post at a time.
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: u32,
    /// Number of exchanges.
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u32,
    /// Service level.
    #[arg(short = 'l', long, default_value_t = 0)]
    sl: u8,
    /// Sleep on events instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Check what was received.
    #[arg(short, long)]
    chk: bool,
    /// Index of the own GID; by default the first IPv4 address, or else the first.
    #[arg(short, long)]
    gid_idx: Option<u8>,
    /// The server to connect to; without it, this is the server.
    server: Option<String>,
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "allowed are 256, 512, 1024, 2048 and 4096".to_owned())
}

fn main() -> ExitCode {
    let both_ends = std::env::args_os().len() == 1;
    let arguments = Arguments::parse();
    watch_for_interrupt();
    let outcome = if both_ends { both_ends::run() } else { one_end::run(&arguments) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupted() => ExitCode::from(130),
        Err(error) => {
            eprintln!("rc_pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// On Ctrl-C, lets the loops end and the queue pairs be destroyed; whatever hangs longer than that is left.
fn watch_for_interrupt() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(500));
            std::process::exit(130);
        }
    });
}

/// One end, as rdma-core's program.
mod one_end {
    use super::*;

    const RECEIVE: u64 = 1;
    const SEND: u64 = 2;
    /// What the buffer holds but for the first byte of each page.
    const FILL: u8 = 0x7b;
    const PAGE: usize = 4096;

    pub(super) fn run(arguments: &Arguments) -> Outcome {
        let end = End::open(arguments)?;
        let local = end.qp.connection_info()?;
        print_address("local address: ", &local);
        let remote = match &arguments.server {
            Some(server) => {
                let remote = ask_server(server, arguments.port, &local, arguments.mtu)?;
                print_address("remote address:", &remote);
                end.connect(&remote)?;
                remote
            }
            None => {
                let answer = |remote: &ConnectionInfo| end.connect(remote);
                let remote = answer_client(arguments.port, &local, arguments.mtu, answer)?;
                print_address("remote address:", &remote);
                remote
            }
        };
        let seconds = end.play().map_err(|error| format!("{error} (peer {})", remote.gid.to_ip()))?;
        print_speed(arguments, seconds);
        if arguments.chk { end.check() } else { Ok(()) }
    }

    fn print_address(which: &str, info: &ConnectionInfo) {
        let (qpn, psn, gid) = (info.qpn.value(), info.psn.value(), info.gid);
        println!("  {which} LID 0x0000, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}");
    }

    fn print_speed(arguments: &Arguments, seconds: f64) {
        let bytes = arguments.size as u64 * u64::from(arguments.iters) * 2;
        let (iters, megabits) = (arguments.iters, bytes as f64 * 8.0 / 1e6);
        println!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", megabits / seconds);
        println!("{iters} iters in {seconds:.2} seconds = {:.2} usec/iter", seconds * 1e6 / f64::from(iters));
    }

    /// The objects of this end. One buffer is sent from and received into, so what a peer sends goes back to it.
    struct End<'a> {
        arguments: &'a Arguments,
        channel: Option<CompletionChannel>,
        cq: CompletionQueue,
        buffer: MemoryRegion,
        qp: QueuePair,
    }

    impl<'a> End<'a> {
        fn open(arguments: &'a Arguments) -> Outcome<Self> {
            let context = open_device(arguments.ib_dev.as_deref())?;
            let gid_index = match arguments.gid_idx {
                Some(index) => index,
                None => first_gid(&context, arguments.ib_port)?,
            };
            let pd = context.alloc_pd()?;
            let buffer = pd.reg_mr(vec![FILL; arguments.size.max(1)], AccessFlags::LOCAL_WRITE)?;
            let cqe = arguments.rx_depth + 1;
            let channel = arguments.events.then(|| context.create_comp_channel()).transpose()?;
            let cq = match &channel {
                Some(channel) => context.create_cq_on(channel, cqe, 0)?,
                None => context.create_cq(cqe)?,
            };
            let qp = pd
                .create_qp(&cq, &cq)
                .max_send_wr(1)
                .max_recv_wr(arguments.rx_depth)
                .max_send_sge(1)
                .max_recv_sge(1)
                .port_num(arguments.ib_port)
                .gid_index(gid_index)
                .max_dest_rd_atomic(1)
                .build()?;
            qp.init()?;
            let end = Self { arguments, channel, cq, buffer, qp };
            end.post_receives(arguments.rx_depth)?;
            if end.channel.is_some() {
                end.cq.req_notify(Notify::Any)?;
            }
            Ok(end)
        }

        fn connect(&self, remote: &ConnectionInfo) -> Outcome {
            let options = ConnectOptions::default().path_mtu(self.arguments.mtu).sl(self.arguments.sl);
            Ok(self.qp.connect_with(remote, &options)?)
        }

        fn post_receives(&self, count: u32) -> Outcome {
            let mut batch = self.qp.recv_batch()?;
            for _ in 0..count {
                batch.push(&ReceiveRequest::new(self.buffer.slice(..self.arguments.size)?).wr_id(RECEIVE))?;
            }
            Ok(batch.post()?)
        }

        fn post_send(&self) -> Outcome {
            let message = self.buffer.slice(..self.arguments.size)?;
            Ok(self.qp.post_send(&[SendRequest::send(message).wr_id(SEND).signaled()])?)
        }

        /// All exchanges; returns how many seconds they took.
        fn play(&self) -> Outcome<f64> {
            let iters = self.arguments.iters;
            let is_client = self.arguments.server.is_some();
            if is_client && self.arguments.chk {
                for page in (0..self.arguments.size).step_by(PAGE) {
                    self.buffer.write_at(page, &[0])?;
                }
            }
            let (mut sent, mut received, mut posted) = (0, 0, self.arguments.rx_depth);
            let mut pending = RECEIVE;
            if is_client {
                self.post_send()?;
                pending |= SEND;
            }
            let start = Instant::now();
            while sent < iters || received < iters {
                let mut completions = [Completion::default(); 2];
                for completion in self.next(&mut completions)? {
                    completion.result().map_err(|failure| self.qp.explain(&failure))?;
                    match completion.wr_id() {
                        SEND => sent += 1,
                        _ => {
                            received += 1;
                            posted -= 1;
                            if posted <= 1 {
                                self.post_receives(self.arguments.rx_depth - posted)?;
                                posted = self.arguments.rx_depth;
                            }
                        }
                    }
                    pending &= !completion.wr_id();
                    // The next message may go when the answer came and the last one has left.
                    if sent < iters && pending == 0 {
                        self.post_send()?;
                        pending = RECEIVE | SEND;
                    }
                }
            }
            Ok(start.elapsed().as_secs_f64())
        }

        /// Completions, once there are some.
        fn next<'c>(&self, completions: &'c mut [Completion]) -> Outcome<&'c [Completion]> {
            loop {
                let count = self.cq.poll(completions)?;
                if count > 0 {
                    return Ok(&completions[..count]);
                }
                if interrupted() {
                    return Err("interrupted".into());
                }
                if let Some(channel) = &self.channel {
                    // Completions that came between the poll and arming made no event, hence the poll after it.
                    if channel.wait_event(Some(Duration::from_millis(100)))?.is_some() {
                        self.cq.req_notify(Notify::Any)?;
                    }
                }
            }
        }

        /// The client has cleared the first byte of each page, and the same bytes went to and fro ever since.
        fn check(&self) -> Outcome {
            let bytes = self.buffer.to_vec(..self.arguments.size)?;
            let mut wrong_pages = 0;
            for (page, bytes) in bytes.chunks(PAGE).enumerate() {
                if bytes[0] != 0 || bytes[1..].iter().any(|byte| *byte != FILL) {
                    println!("invalid data in page {page}");
                    wrong_pages += 1;
                }
            }
            if wrong_pages > 0 { Err(format!("{wrong_pages} pages hold invalid data").into()) } else { Ok(()) }
        }
    }

    fn open_device(name: Option<&str>) -> Outcome<Context> {
        if let Some(name) = name {
            return Ok(verbs::open(name)?);
        }
        let devices = verbs::devices()?;
        let device = devices.iter().find(|device| device.name() != "soft_lo").or(devices.first());
        Ok(device.ok_or("there is no device")?.open()?)
    }

    fn first_gid(context: &Context, port: u8) -> Outcome<u8> {
        let table = context.gid_table(port)?;
        let entry = table.iter().find(|entry| entry.gid.to_ip().is_ipv4()).or(table.first());
        Ok(entry.ok_or("the device has no GID")?.gid_index)
    }

    /// 52 bytes: LID, QPN and PSN in hexadecimal, the GID's bytes likewise, a zero.
    const MESSAGE_BYTES: usize = 52;
    const DONE: &[u8; 5] = b"done\0";
    const ANSWER_WITHIN: Duration = Duration::from_secs(30);

    fn encode(info: &ConnectionInfo) -> String {
        let gid: String = info.gid.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("0000:{:06x}:{:06x}:{gid}\0", info.qpn.value(), info.psn.value())
    }

    fn decode(message: &[u8; MESSAGE_BYTES], mtu: Mtu) -> Option<ConnectionInfo> {
        let text = std::str::from_utf8(message).ok()?.trim_end_matches('\0');
        let mut fields = text.split(':');
        let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
        let (_lid, qpn, psn) = (number()?, number()?, number()?);
        let gid = u128::from_str_radix(fields.next()?, 16).ok()?;
        let gid = Gid::from_bytes(gid.to_be_bytes());
        Some(ConnectionInfo::stranger(Qpn::new(qpn), Psn::new(psn), gid, mtu))
    }

    fn hear(stream: &mut TcpStream, mtu: Mtu) -> Outcome<ConnectionInfo> {
        let mut message = [0; MESSAGE_BYTES];
        stream.read_exact(&mut message).map_err(|error| format!("cannot read the remote address: {error}"))?;
        let heard = decode(&message, mtu);
        heard.ok_or_else(|| format!("no remote address: \"{}\"", message.escape_ascii()).into())
    }

    /// Tells first, then hears; the server is ready to receive when its answer is here.
    fn ask_server(server: &str, port: u16, local: &ConnectionInfo, mtu: Mtu) -> Outcome<ConnectionInfo> {
        let mut stream = TcpStream::connect((server, port))
            .map_err(|error| format!("cannot connect to {server}:{port}: {error}"))?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(encode(local).as_bytes())?;
        let remote = hear(&mut stream, mtu)?;
        stream.write_all(DONE)?;
        Ok(remote)
    }

    /// Hears first and connects, then tells, and waits until the client has heard.
    fn answer_client(
        port: u16,
        local: &ConnectionInfo,
        mtu: Mtu,
        connect: impl FnOnce(&ConnectionInfo) -> Outcome,
    ) -> Outcome<ConnectionInfo> {
        // Both IP versions where the system has both.
        let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
        let listener = listener.map_err(|error| format!("cannot listen on port {port}: {error}"))?;
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let remote = hear(&mut stream, mtu)?;
        connect(&remote)?;
        stream.write_all(encode(local).as_bytes())?;
        let mut done = [0; DONE.len()];
        stream.read_exact(&mut done).map_err(|error| format!("the client did not say that it heard: {error}"))?;
        Ok(remote)
    }
}

/// Both ends, each on a thread and a device of its own.
mod both_ends {
    use super::*;

    const DEVICES: [&str; 2] = ["soft:127.0.0.1", "soft:127.0.0.2"];
    /// Message sizes and how often each is played.
    const LATENCY: [(usize, u32); 3] = [(8, 20_000), (4096, 10_000), (65_536, 2_000)];
    const LARGEST: usize = 65_536;
    const TRANSFER_BYTES: usize = 64 << 20;
    const TRANSFER_MESSAGE_BYTES: usize = 1 << 20;
    const TRANSFERS: u64 = 4;
    const PATIENCE: Duration = Duration::from_secs(20);

    pub(super) fn run() -> Outcome {
        let [left, right] = DEVICES;
        println!("Both ends of a reliable connection in this program: {left} and {right}\n");
        let (client, server) = (End::open(left)?, End::open(right)?);
        client.qp.connect(&server.qp.connection_info()?)?;
        server.qp.connect(&client.qp.connection_info()?)?;

        println!("Latency: SEND, polling, half of a round trip in µs");
        println!("{:>12} {:>10} {:>9} {:>9} {:>9}", "bytes", "messages", "p50", "p99", "max");
        for (size, count) in LATENCY {
            let histogram = ping_pong(&client, &server, size, count)?;
            let half = |nanoseconds: u64| nanoseconds as f64 / 2000.0;
            let [p50, p99] = [0.5, 0.99].map(|quantile| half(histogram.value_at_quantile(quantile)));
            println!("{size:>12} {count:>10} {p50:>9.2} {p99:>9.2} {:>9.2}", half(histogram.max()));
        }

        println!("\nBandwidth: messages of {} KiB", TRANSFER_MESSAGE_BYTES >> 10);
        transfer(&client, &server)?;

        let messages: u64 = LATENCY.iter().map(|(size, count)| *size as u64 * u64::from(*count) * 2).sum();
        let transferred = TRANSFER_BYTES as u64 * TRANSFERS * 2;
        let repeated = client.qp.counters().get(Counter::RetransmittedPackets)
            + server.qp.counters().get(Counter::RetransmittedPackets);
        println!("\nAll {} bytes are right. {repeated} packets had to be repeated.", messages + transferred);
        Ok(())
    }

    /// An end with two buffers to receive into and one to send from.
    struct End {
        pd: ProtectionDomain,
        cq: CompletionQueue,
        qp: QueuePair,
        inbox: MemoryRegion,
        outbox: MemoryRegion,
    }

    impl End {
        fn open(device: &str) -> Outcome<Self> {
            let context = verbs::open(device)?;
            let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
            let qp = pd.create_qp(&cq, &cq).build()?;
            let inbox = pd.alloc_mr(2 * LARGEST, AccessFlags::LOCAL_WRITE)?;
            let outbox = pd.alloc_mr(LARGEST, AccessFlags::LOCAL_WRITE)?;
            Ok(Self { pd, cq, qp, inbox, outbox })
        }

        /// Posts the receive for message `number`: the two halves of the inbox take turns.
        fn post_receive(&self, number: u32, size: usize) -> Outcome {
            let start = slot(number);
            Ok(self.qp.post_recv(&[ReceiveRequest::new(self.inbox.slice(start..start + size)?)])?)
        }

        /// Polls until a message came; completions of sends pass by.
        fn receive(&self) -> Outcome<usize> {
            let mut completion = [Completion::default()];
            let mut empty_polls = 0u32;
            let mut since = None;
            loop {
                if self.cq.poll(&mut completion)? == 0 {
                    empty_polls += 1;
                    if empty_polls.is_multiple_of(1 << 16) {
                        let since = *since.get_or_insert_with(Instant::now);
                        if interrupted() || since.elapsed() > PATIENCE {
                            return Err("no message came".into());
                        }
                    }
                    continue;
                }
                let done = completion[0].result().map_err(|failure| self.qp.explain(&failure))?;
                if done.opcode == CompletionOpcode::Receive {
                    return Ok(done.byte_len as usize);
                }
            }
        }
    }

    fn slot(number: u32) -> usize {
        (number as usize % 2) * LARGEST
    }

    /// The client measures; the server sends back what it received, from where it received it, and then checks it.
    fn ping_pong(client: &End, server: &End, size: usize, count: u32) -> Outcome<Histogram<u64>> {
        for number in 0..2 {
            server.post_receive(number, size)?;
            client.post_receive(number, size)?;
        }
        std::thread::scope(|scope| {
            let server = scope.spawn(move || serve(server, size, count));
            let histogram = play(client, size, count);
            server.join().map_err(|_| "the server's thread panicked")??;
            histogram
        })
    }

    fn play(end: &End, size: usize, count: u32) -> Outcome<Histogram<u64>> {
        let mut histogram = Histogram::new(3)?;
        let mut bytes = vec![0; size];
        for number in 0..count {
            fill(&mut bytes, number.into());
            end.outbox.write_at(0, &bytes)?;
            let start = Instant::now();
            post(end, SendRequest::send(end.outbox.slice(..size)?), number)?;
            let received = end.receive()?;
            histogram.record(start.elapsed().as_nanos() as u64)?;
            end.inbox.read_at(slot(number), &mut bytes)?;
            check(&bytes, size, received, number.into())?;
            if number + 2 < count {
                end.post_receive(number, size)?;
            }
        }
        Ok(histogram)
    }

    fn serve(end: &End, size: usize, count: u32) -> Outcome {
        let mut bytes = vec![0; size];
        for number in 0..count {
            let received = end.receive()?;
            let start = slot(number);
            post(end, SendRequest::send(end.inbox.slice(start..start + size)?), number)?;
            end.inbox.read_at(start, &mut bytes)?;
            check(&bytes, size, received, number.into())?;
            // The client has only this answer to go on: its next message goes to the other half.
            if number + 2 < count {
                end.post_receive(number, size)?;
            }
        }
        Ok(())
    }

    /// Every 16th send is signaled, which frees the slots of those before it.
    fn post(end: &End, request: SendRequest<'_>, number: u32) -> Outcome {
        let request = if number % 16 == 15 { request.signaled() } else { request };
        Ok(end.qp.post_send(&[request])?)
    }

    /// WRITE and READ of a large region, in messages, several at a time.
    fn transfer(client: &End, server: &End) -> Outcome {
        let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let near = client.pd.alloc_mr(TRANSFER_BYTES, AccessFlags::LOCAL_WRITE)?;
        let far = server.pd.alloc_mr(TRANSFER_BYTES, rights)?;
        let mut bytes = vec![0; TRANSFER_BYTES];
        for (name, is_write) in [("WRITE", true), ("READ", false)] {
            let mut seconds = 0.0;
            for round in 0..TRANSFERS {
                let seed = round + if is_write { 1 << 32 } else { 1 << 33 };
                let (from, to) = if is_write { (&near, &far) } else { (&far, &near) };
                fill(&mut bytes, seed);
                from.write_at(0, &bytes)?;
                seconds += move_all(client, &near, &far, is_write)?;
                to.read_at(0, &mut bytes)?;
                check(&bytes, TRANSFER_BYTES, TRANSFER_BYTES, seed)?;
            }
            let rate = (TRANSFER_BYTES as u64 * TRANSFERS) as f64 / seconds;
            println!("{name:>12} {:>9.2} GB/s {:>9.2} Gbit/s", rate / 1e9, rate * 8.0 / 1e9);
        }
        Ok(())
    }

    fn move_all(client: &End, near: &MemoryRegion, far: &MemoryRegion, is_write: bool) -> Outcome<f64> {
        const AT_A_TIME: usize = 8;
        const COUNT: usize = TRANSFER_BYTES / TRANSFER_MESSAGE_BYTES;
        let remote = far.remote();
        let (mut posted, mut done) = (0, 0);
        let start = Instant::now();
        while done < COUNT {
            while posted < COUNT && posted - done < AT_A_TIME {
                let range = posted * TRANSFER_MESSAGE_BYTES..(posted + 1) * TRANSFER_MESSAGE_BYTES;
                let (here, there) = (near.slice(range.clone())?, remote.slice(range)?);
                let request = match is_write {
                    true => SendRequest::write(here, there),
                    false => SendRequest::read(here, there),
                };
                client.qp.post_send(&[request.signaled()])?;
                posted += 1;
            }
            let completion = client.cq.wait(PATIENCE)?;
            let success = completion.result().map_err(|failure| client.qp.explain(&failure))?;
            // A late completion of the ping-pong's sends may come first.
            done += usize::from(success.opcode != CompletionOpcode::Send);
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Bytes that differ from message to message and from place to place.
    fn fill(bytes: &mut [u8], seed: u64) {
        for (place, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&word(seed, place as u64).to_le_bytes()[..chunk.len()]);
        }
    }

    fn check(bytes: &[u8], size: usize, received: usize, seed: u64) -> Outcome {
        if received != size {
            return Err(format!("message {seed}: {received} bytes came instead of {size}").into());
        }
        for (place, chunk) in bytes.chunks(8).enumerate() {
            if chunk != &word(seed, place as u64).to_le_bytes()[..chunk.len()] {
                return Err(format!("message {seed}: the bytes from {} on are wrong", place * 8).into());
            }
        }
        Ok(())
    }

    fn word(seed: u64, place: u64) -> u64 {
        let mixed = (seed.rotate_left(32) ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    }
}
