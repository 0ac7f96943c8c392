//! One end of a connection or of an exchange of datagrams, like rdma-core's programs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::{
    AccessFlags, AddressHandle, AddressVector, Completion, CompletionChannel, CompletionQueue, CompletionQueueOptions,
    ConnectOptions, ConnectionInfo, ErrorKind, MemoryRegion, Mtu, Notify, Qkey, Qpn, QueuePair, QueuePairOptions,
    QueuePairType, ReceiveRequest, SendRequest,
};

use crate::pingpong::exchange::{DONE, RESPONSE_TIMEOUT, encode, receive_address};
use crate::pingpong::{Arguments, Outcome, first_gid, interrupted, open_device, print_address, print_speed};

const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// The contents of the buffer, except for the first byte of each page.
const FILL: u8 = 0x7b;
const PAGE: usize = 4096;
/// The Q_Key of rdma-core's programs.
const QKEY: Qkey = Qkey(0x1111_1111);
/// Length of the global route header (GRH) in front of a datagram.
const HEADER: usize = 40;

/// Runs one end over queue pairs of this type.
pub(crate) fn run(arguments: &Arguments, qp_type: QueuePairType) -> Outcome {
    let end = End::open(arguments, qp_type)?;
    let local = end.info()?;
    print_address("local address: ", &local);
    let remote = match &arguments.server {
        Some(server) => {
            let remote = ask_server(server, arguments.port, &local, arguments.mtu)?;
            print_address("remote address:", &remote);
            end.connect(&remote)?;
            remote
        }
        None => {
            let connect = |remote: &ConnectionInfo| end.connect(remote);
            let remote = answer_client(arguments.port, &local, arguments.mtu, connect)?;
            print_address("remote address:", &remote);
            remote
        }
    };
    let seconds = end.play().map_err(|error| format!("{error} (peer {})", remote.gid.to_ip()))?;
    print_speed(arguments, seconds);
    if arguments.chk { end.check() } else { Ok(()) }
}

/// The objects of this end. One buffer is sent from and received into, so a peer's message goes back to it.
pub(crate) struct End<'a> {
    arguments: &'a Arguments,
    /// Dropped first, so that nothing arrives for memory that is gone.
    qp: QueuePair,
    channel: Option<CompletionChannel>,
    cq: CompletionQueue,
    buffer: MemoryRegion,
    gid_index: u8,
    /// Offset of the message in the buffer.
    start: usize,
    /// Destination of datagrams.
    destination: OnceLock<(AddressHandle, Qpn)>,
}

impl<'a> End<'a> {
    pub(crate) fn open(arguments: &'a Arguments, qp_type: QueuePairType) -> Outcome<Self> {
        let context = open_device(arguments.ib_dev.as_deref())?;
        let gid_index = match arguments.gid_idx {
            Some(index) => index,
            None => first_gid(&context, arguments.ib_port)?,
        };
        let pd = context.alloc_pd()?;
        let is_datagram = qp_type == QueuePairType::UnreliableDatagram;
        let mtu = context.query_port(arguments.ib_port)?.active_mtu;
        if is_datagram && arguments.size > mtu.bytes() as usize {
            return Err(format!("the size is larger than the port's MTU ({mtu})").into());
        }
        let start = if is_datagram { HEADER } else { 0 };
        let buffer = pd.reg_mr(vec![FILL; start + arguments.size.max(1)], AccessFlags::LOCAL_WRITE)?;
        let cqe = arguments.rx_depth + 1;
        let channel = arguments.events.then(|| context.create_comp_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => context.create_cq_with(cqe, &CompletionQueueOptions::default().channel(channel, 0))?,
            None => context.create_cq(cqe)?,
        };
        let options = QueuePairOptions::default()
            .qp_type(qp_type)
            .qkey(QKEY)
            .max_send_wr(1)
            .max_recv_wr(arguments.rx_depth)
            .max_send_sge(1)
            .max_recv_sge(1)
            .port_num(arguments.ib_port)
            .gid_index(gid_index)
            .max_dest_rd_atomic(1);
        let qp = pd.create_qp_with(&cq, &cq, &options)?;
        qp.init()?;
        let end = Self { arguments, channel, cq, buffer, qp, gid_index, start, destination: OnceLock::new() };
        end.post_receives(arguments.rx_depth)?;
        if end.channel.is_some() {
            end.cq.req_notify(Notify::Any)?;
        }
        Ok(end)
    }

    pub(crate) fn info(&self) -> Outcome<ConnectionInfo> {
        Ok(self.qp.connection_info()?)
    }

    pub(crate) fn connect(&self, remote: &ConnectionInfo) -> Outcome {
        if remote.qp_type == QueuePairType::UnreliableDatagram {
            self.qp.bring_up_ud()?;
            let mut vector = AddressVector::new(remote.gid, self.gid_index);
            (vector.port_num, vector.sl) = (self.arguments.ib_port, self.arguments.sl);
            let destination = self.qp.protection_domain().create_ah(&vector)?;
            self.destination.get_or_init(|| (destination, remote.qpn));
            return Ok(());
        }
        let options = ConnectOptions::default().path_mtu(self.arguments.mtu).sl(self.arguments.sl);
        Ok(self.qp.connect_with(remote, &options)?)
    }

    fn post_receives(&self, count: u32) -> Outcome {
        let mut batch = self.qp.recv_batch()?;
        for _ in 0..count {
            batch.push(&ReceiveRequest::new(self.buffer.slice(..self.start + self.arguments.size)?).wr_id(RECEIVE))?;
        }
        Ok(batch.post()?)
    }

    fn post_send(&self) -> Outcome {
        let message = self.buffer.slice(self.start..self.start + self.arguments.size)?;
        let request = match self.destination.get() {
            Some((destination, qpn)) => SendRequest::send_to(message, destination, *qpn, QKEY),
            None => SendRequest::send(message),
        };
        Ok(self.qp.post_send(&[request.wr_id(SEND).signaled()])?)
    }

    /// Runs all exchanges. Returns how many seconds they took.
    pub(crate) fn play(&self) -> Outcome<f64> {
        let iters = self.arguments.iters;
        let is_client = self.arguments.server.is_some();
        if is_client && self.arguments.chk {
            for page in (0..self.arguments.size).step_by(PAGE) {
                self.buffer.write_at(self.start + page, &[0])?;
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
                // The next message may be sent when the response has arrived and the last send has completed.
                if sent < iters && pending == 0 {
                    self.post_send()?;
                    pending = RECEIVE | SEND;
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
    pub(crate) fn check(&self) -> Outcome {
        let bytes = self.buffer.to_vec(self.start..self.start + self.arguments.size)?;
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

/// Sends the address first, then receives one; the server is ready to receive when its response arrives.
fn ask_server(server: &str, port: u16, local: &ConnectionInfo, mtu: Mtu) -> Outcome<ConnectionInfo> {
    let mut stream =
        TcpStream::connect((server, port)).map_err(|error| format!("cannot connect to {server}:{port}: {error}"))?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(encode(local).as_bytes())?;
    let remote = receive_address(&mut stream, local.qp_type, mtu)?;
    stream.write_all(DONE)?;
    Ok(remote)
}

/// Receives an address first and connects, then sends its own, and waits until the client has received it.
fn answer_client(
    port: u16,
    local: &ConnectionInfo,
    mtu: Mtu,
    connect: impl FnOnce(&ConnectionInfo) -> Outcome,
) -> Outcome<ConnectionInfo> {
    // Both IP versions if the system has both.
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = listener.map_err(|error| format!("cannot listen on port {port}: {error}"))?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    let remote = receive_address(&mut stream, local.qp_type, mtu)?;
    connect(&remote)?;
    stream.write_all(encode(local).as_bytes())?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done).map_err(|error| format!("the client did not confirm the connection: {error}"))?;
    Ok(remote)
}
