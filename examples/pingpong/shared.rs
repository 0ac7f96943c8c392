//! One end of several connections that share a receive queue, like rdma-core's program.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_verbs::verbs::{
    AccessFlags, Completion, CompletionChannel, CompletionQueue, CompletionQueueOptions, ConnectOptions,
    ConnectionInfo, ErrorKind, MemoryRegion, Mtu, Notify, QueuePair, QueuePairOptions, QueuePairType, ReceiveRequest,
    SendRequest, SharedReceiveQueue,
};

use crate::pingpong::exchange::{DONE, RESPONSE_TIMEOUT, encode, receive_address};
use crate::pingpong::{Arguments, Outcome, first_gid, interrupted, open_device, print_address, print_speed};

const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// Number of addresses that are always sent, regardless of the number of queue pairs.
const MOST_QUEUE_PAIRS: usize = 256;
const FILL: u8 = 0x7b;
const PAGE: usize = 4096;

/// A ping-pong over several queue pairs. Without arguments, both ends run in this program.
#[derive(Parser)]
pub(crate) struct SharedArguments {
    #[command(flatten)]
    common: Arguments,
    /// Number of queue pairs.
    #[arg(short = 'q', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    num_qp: u32,
}

/// Runs one end.
pub(crate) fn run(arguments: &SharedArguments) -> Outcome {
    let end = End::open(arguments)?;
    let local = end.addresses()?;
    local.iter().for_each(|info| print_address("local address: ", info));
    let remote = match &end.arguments.server {
        Some(server) => {
            let remote = ask_server(server, end.arguments.port, &local, end.arguments.mtu)?;
            end.connect(&remote)?;
            remote
        }
        None => answer_client(&end, &local)?,
    };
    remote.iter().take(local.len()).for_each(|info| print_address("remote address:", info));
    let seconds = end.play()?;
    print_speed(end.arguments, seconds);
    if end.arguments.chk { end.check() } else { Ok(()) }
}

/// Runs both ends, each on its own thread and device.
pub(crate) fn run_both() -> Outcome {
    let arguments = |device, server: &[&str]| {
        let flags = ["srq_pingpong", "-c", "-n", "20000", "-d", device];
        SharedArguments::parse_from(flags.iter().chain(server))
    };
    let [one, other] = [arguments("soft:127.0.0.1", &["here"]), arguments("soft:127.0.0.2", &[])];
    let (client, server) = (End::open(&one)?, End::open(&other)?);
    println!(
        "Both ends of {} connections in this program: soft:127.0.0.1 and soft:127.0.0.2",
        client.queue_pairs.len()
    );
    client.connect(&server.addresses()?)?;
    server.connect(&client.addresses()?)?;
    let seconds = std::thread::scope(|scope| {
        let server = scope.spawn(|| server.play());
        let seconds = client.play();
        server.join().map_err(|_| "the server's thread panicked")??;
        seconds
    })?;
    print_speed(&one.common, seconds);
    client.check()?;
    server.check()
}

/// The objects of this end. One buffer is sent from and received into, by all queue pairs.
struct End<'a> {
    arguments: &'a Arguments,
    /// Dropped first: the peer may have sent more than the agreed number of messages, and one that finds a receive
    /// without its memory would get a NAK.
    queue_pairs: Vec<QueuePair>,
    channel: Option<CompletionChannel>,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    buffer: MemoryRegion,
}

impl<'a> End<'a> {
    fn open(arguments: &'a SharedArguments) -> Outcome<Self> {
        let SharedArguments { common: arguments, num_qp } = arguments;
        if arguments.rx_depth < *num_qp {
            let depth = arguments.rx_depth;
            return Err(format!("-r is {depth}, but {num_qp} queue pairs need at least one receive each").into());
        }
        let context = open_device(arguments.ib_dev.as_deref())?;
        let gid_index = match arguments.gid_idx {
            Some(index) => index,
            None => first_gid(&context, arguments.ib_port)?,
        };
        let pd = context.alloc_pd()?;
        let buffer = pd.reg_mr(vec![FILL; arguments.size.max(1)], AccessFlags::LOCAL_WRITE)?;
        let cqe = arguments.rx_depth + num_qp;
        let channel = arguments.events.then(|| context.create_comp_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => context.create_cq_with(cqe, &CompletionQueueOptions::default().channel(channel, 0))?,
            None => context.create_cq(cqe)?,
        };
        let srq = pd.create_srq(arguments.rx_depth, 1)?;
        let create = |_| {
            let options =
                QueuePairOptions::default().srq(&srq).max_send_wr(1).max_send_sge(1).port_num(arguments.ib_port);
            pd.create_qp_with(&cq, &cq, &options.gid_index(gid_index).max_dest_rd_atomic(1))
        };
        let queue_pairs = (0..*num_qp).map(create).collect::<Result<Vec<_>, _>>()?;
        let end = Self { arguments, channel, cq, srq, buffer, queue_pairs };
        end.post_receives(arguments.rx_depth)?;
        if end.channel.is_some() {
            end.cq.req_notify(Notify::Any)?;
        }
        Ok(end)
    }

    fn addresses(&self) -> Outcome<Vec<ConnectionInfo>> {
        self.queue_pairs.iter().map(|qp| Ok(qp.connection_info()?)).collect()
    }

    fn connect(&self, remote: &[ConnectionInfo]) -> Outcome {
        let options = ConnectOptions::default().path_mtu(self.arguments.mtu).sl(self.arguments.sl);
        for (qp, remote) in self.queue_pairs.iter().zip(remote) {
            qp.connect_with(remote, &options)?;
        }
        Ok(())
    }

    fn post_receives(&self, count: u32) -> Outcome {
        let mut batch = self.srq.recv_batch()?;
        for _ in 0..count {
            batch.push(&ReceiveRequest::new(self.buffer.slice(..self.arguments.size)?).wr_id(RECEIVE))?;
        }
        Ok(batch.post()?)
    }

    fn post_send(&self, qp: &QueuePair) -> Outcome {
        let message = self.buffer.slice(..self.arguments.size)?;
        Ok(qp.post_send(&[SendRequest::send(message).wr_id(SEND).signaled()])?)
    }

    /// Runs all exchanges of all queue pairs. Returns how many seconds they took.
    fn play(&self) -> Outcome<f64> {
        let (iters, count) = (self.arguments.iters, self.queue_pairs.len() as u32);
        let is_client = self.arguments.server.is_some();
        if is_client && self.arguments.chk {
            for page in (0..self.arguments.size).step_by(PAGE) {
                self.buffer.write_at(page, &[0])?;
            }
        }
        let (mut sent, mut received, mut posted) = (0, 0, self.arguments.rx_depth);
        let mut pending = vec![if is_client { RECEIVE | SEND } else { RECEIVE }; count as usize];
        if is_client {
            self.queue_pairs.iter().try_for_each(|qp| self.post_send(qp))?;
        }
        let start = Instant::now();
        while sent < iters || received < iters {
            let mut completions = [Completion::default(); 16];
            for completion in self.next(&mut completions)? {
                let index = self.queue_pairs.iter().position(|qp| qp.qpn() == completion.qpn());
                let index = index.ok_or("a completion of an unknown queue pair")?;
                let qp = &self.queue_pairs[index];
                completion.result().map_err(|failure| qp.explain(&failure))?;
                match completion.wr_id() {
                    SEND => sent += 1,
                    _ => {
                        received += 1;
                        posted -= 1;
                        if posted <= count {
                            self.post_receives(self.arguments.rx_depth - posted)?;
                            posted = self.arguments.rx_depth;
                        }
                    }
                }
                pending[index] &= !completion.wr_id();
                // The next message may be sent when the response has arrived and the last send has completed.
                if sent < iters && pending[index] == 0 {
                    self.post_send(qp)?;
                    pending[index] = RECEIVE | SEND;
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Waits for completions.
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
                // Completions that were queued between the poll and arming raise no event, so poll again.
                match channel.wait_event(Duration::from_millis(100)) {
                    Ok(_) => self.cq.req_notify(Notify::Any)?,
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Checks the buffer: the client has cleared the first byte of each page, and the same bytes went back and forth
    /// since.
    fn check(&self) -> Outcome {
        let bytes = self.buffer.to_vec(..self.arguments.size)?;
        // The other program's remaining fill depends on its version.
        let fill = if self.arguments.server.is_some() { FILL } else { *bytes.get(1).unwrap_or(&0) };
        let mut wrong_pages = 0;
        for (page, bytes) in bytes.chunks(PAGE).enumerate() {
            if bytes[0] != 0 || bytes[1..].iter().any(|byte| *byte != fill) {
                println!("invalid data in page {page}");
                wrong_pages += 1;
            }
        }
        if wrong_pages > 0 { Err(format!("{wrong_pages} pages hold invalid data").into()) } else { Ok(()) }
    }
}

/// Sends the fixed number of addresses; those without a queue pair are empty.
fn send_addresses(stream: &mut TcpStream, local: &[ConnectionInfo]) -> Outcome {
    let no_queue_pair = "0000:000000:000000:00000000000000000000000000000000\0";
    let mut text: String = local.iter().map(encode).collect();
    (local.len()..MOST_QUEUE_PAIRS).for_each(|_| text.push_str(no_queue_pair));
    Ok(stream.write_all(text.as_bytes())?)
}

fn receive_addresses(stream: &mut TcpStream, mtu: Mtu) -> Outcome<Vec<ConnectionInfo>> {
    (0..MOST_QUEUE_PAIRS).map(|_| receive_address(stream, QueuePairType::ReliableConnection, mtu)).collect()
}

/// Sends the addresses first, then receives; the server is ready to receive when its response arrives.
fn ask_server(server: &str, port: u16, local: &[ConnectionInfo], mtu: Mtu) -> Outcome<Vec<ConnectionInfo>> {
    let mut stream =
        TcpStream::connect((server, port)).map_err(|error| format!("cannot connect to {server}:{port}: {error}"))?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    send_addresses(&mut stream, local)?;
    let remote = receive_addresses(&mut stream, mtu)?;
    stream.write_all(DONE)?;
    Ok(remote)
}

/// Receives addresses first and connects, then sends its own, and waits until the client has received them.
fn answer_client(end: &End<'_>, local: &[ConnectionInfo]) -> Outcome<Vec<ConnectionInfo>> {
    let port = end.arguments.port;
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = listener.map_err(|error| format!("cannot listen on port {port}: {error}"))?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    let remote = receive_addresses(&mut stream, end.arguments.mtu)?;
    end.connect(&remote)?;
    send_addresses(&mut stream, local)?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done).map_err(|error| format!("the client did not confirm the connection: {error}"))?;
    Ok(remote)
}
