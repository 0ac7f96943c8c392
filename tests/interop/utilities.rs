//! The other ends of rdma-core's programs for `librdmacm`: ucmatose, udaddy, mckey, cmtime, rdma_server, rdma_client.
//! Each speaks the program's protocol, and checks the bytes where the program carries any. `tests/interop/run` starts
//! both ends.

#[allow(dead_code, reason = "other programs use the rest")]
mod guest;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use guest::pattern;
use rdma_verbs::verbs::cm::{
    Connection, ConnectionOptions, DEFAULT_QKEY, Listener, ListenerOptions, MulticastGroup, Route,
};
use rdma_verbs::verbs::{
    self, AccessFlags, AddressVector, CompletionOpcode, CompletionQueue, Context, Gid, GlobalRouteHeader, MemoryRegion,
    ProtectionDomain, Qkey, Qpn, QueuePair, QueuePairOptions, QueuePairType, ReceiveRequest, SendRequest,
};

type Error = Box<dyn std::error::Error>;
type Outcome = Result<(), Error>;

const PATIENCE: Duration = Duration::from_secs(20);
const GRH: usize = 40;
const SEED: u32 = 7;
/// Bytes that no program sends fill the memory for receives: `rdma_server` and `rdma_client` send zeros.
const UNTOUCHED: u8 = 0xa5;
/// Length of the messages of rdma_server and rdma_client.
const SHORT: usize = 16;
/// The steps of cmtime after which its ends wait for each other over TCP, as its byte of them, in Debian 13.
const STEPS: [u8; 3] = [0, 12, 14];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    Ucmatose,
    Udaddy,
    /// Its server receives
    Mckey,
    Cmtime,
    /// rdma_server or rdma_client
    Rdma,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Client,
    Server,
}

#[derive(Parser)]
#[command(about = "Is the other end of a program of rdma-core for connections by address and port")]
struct Arguments {
    program: Program,
    /// Role of the program; this end has the other one
    role: Role,
    /// Own address
    local: IpAddr,
    /// Address of the program's end
    remote: IpAddr,
    #[arg(short, long)]
    port: u16,
    /// Number of connections
    #[arg(short, long, default_value_t = 1)]
    connections: usize,
    /// Number of messages each way, for each connection
    #[arg(short = 'C', long, default_value_t = 10)]
    messages: usize,
    /// Length of messages
    #[arg(short = 'S', long, default_value_t = 100)]
    size: usize,
    /// Multicast group of mckey
    #[arg(long)]
    group: Option<IpAddr>,
    /// The ends of cmtime wait for each other over TCP between its steps
    #[arg(long)]
    in_steps: bool,
}

struct Home {
    arguments: Arguments,
    context: Context,
    pd: ProtectionDomain,
}

/// A queue pair with memory for its messages: one that is sent, then those that are received.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
    /// Length of a message, and the bytes before it in a receive.
    size: usize,
    header: usize,
}

fn ensure(holds: bool, otherwise: &str) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.to_owned().into()) }
}

impl End {
    /// Makes a queue pair with so many receives posted.
    fn new(home: &Home, qp_type: QueuePairType, messages: usize, size: usize) -> Result<Self, Error> {
        let header = if qp_type == QueuePairType::UnreliableDatagram { GRH } else { 0 };
        let cq = home.context.create_cq(2 * messages as u32 + 2)?;
        let options = QueuePairOptions::default().qp_type(qp_type).max_send_wr(messages as u32 + 1);
        let options = options.max_recv_wr(messages as u32 + 1).qkey(DEFAULT_QKEY);
        let qp = home.pd.create_qp_with(&cq, &cq, &options)?;
        let mr = home.pd.alloc_mr(size + messages * (header + size), AccessFlags::LOCAL_WRITE)?;
        if header > 0 {
            qp.bring_up_ud()?;
        } else {
            qp.init()?;
        }
        let end = Self { qp, cq, mr, size, header };
        end.mr.write_at(0, &pattern(SEED, size))?;
        end.mr.write_at(size, &vec![UNTOUCHED; messages * (header + size)])?;
        for index in 0..messages {
            let at = end.place(index);
            end.qp.post_recv(&[ReceiveRequest::new(end.mr.slice(at..at + header + size)?)])?;
        }
        Ok(end)
    }

    fn place(&self, index: usize) -> usize {
        self.size + index * (self.header + self.size)
    }

    fn send(&self, messages: usize) -> Outcome {
        for _ in 0..messages {
            self.qp.post_send(&[SendRequest::send(self.mr.slice(..self.size)?).signaled()])?;
        }
        Ok(())
    }

    fn send_to(&self, messages: usize, peer: &AddressVector, qpn: Qpn, qkey: Qkey) -> Outcome {
        let address = self.qp.protection_domain().create_ah(peer)?;
        for _ in 0..messages {
            let message = self.mr.slice(..self.size)?;
            // The immediate data names this end's queue pair.
            let own = self.qp.qpn().value();
            self.qp.post_send(&[SendRequest::send_to_with_immediate(message, &address, qpn, qkey, own).signaled()])?;
        }
        Ok(())
    }

    /// Waits for completions, of sends and receives in any order; returns the immediate data of the last message.
    fn complete(&self, count: usize) -> Result<Option<u32>, Error> {
        let mut immediate = None;
        for _ in 0..count {
            let done = self.cq.wait(PATIENCE)?.result()?;
            if done.opcode == CompletionOpcode::Receive {
                ensure(done.byte_len as usize == self.header + self.size, "a message has another length")?;
                // Where there is any, it names the sender's queue pair.
                let names_sender = done.immediate.is_none_or(|number| number == done.source_qpn.value());
                ensure(names_sender, "the immediate data is not the sender's queue pair")?;
                immediate = done.immediate.or(immediate);
            }
        }
        Ok(immediate)
    }

    /// Checks all messages, from an offset of each on.
    fn expect(&self, messages: usize, offset: usize, expected: &[u8]) -> Outcome {
        for index in 0..messages {
            let at = self.place(index) + self.header + offset;
            let found = self.mr.to_vec(at..at + expected.len())?;
            ensure(found == expected, &format!("message {index} has wrong bytes"))?;
        }
        Ok(())
    }
}

impl Home {
    fn route(&self) -> Result<Route, Error> {
        let Arguments { local, remote, port, .. } = self.arguments;
        Ok(Route::on(&self.context, SocketAddr::new(remote, port))?.from(local)?)
    }

    fn own_address(&self) -> SocketAddr {
        SocketAddr::new(self.arguments.local, self.arguments.port)
    }

    fn ends(&self, count: usize, messages: usize, size: usize) -> Result<Vec<End>, Error> {
        (0..count).map(|_| End::new(self, QueuePairType::ReliableConnection, messages, size)).collect()
    }

    fn listen(&self) -> Result<Listener, Error> {
        let listener = ListenerOptions::new().on(&self.context).backlog(1024).bind(self.own_address())?;
        println!("listening on {}", listener.local_addr());
        Ok(listener)
    }

    /// Accepts a connection for each end, or connects all of them at once if there is no listener.
    fn connect(&self, ends: &[End], listener: Option<&Listener>) -> Result<Vec<Connection>, Error> {
        let (options, mut pending) = (ConnectionOptions::new(), Vec::new());
        for end in ends {
            pending.push(match listener {
                Some(listener) => {
                    let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
                    request.start_accept(&end.qp, &options)?
                }
                None => self.route()?.start_connect(&end.qp, &options)?,
            });
        }
        Ok(pending.into_iter().map(|pending| pending.wait()).collect::<Result<_, _>>()?)
    }

    /// Connects in the role of this end.
    fn connect_in_role(&self, ends: &[End]) -> Result<Vec<Connection>, Error> {
        let listener = if self.arguments.role == Role::Client { Some(self.listen()?) } else { None };
        self.connect(ends, listener.as_ref())
    }

    /// Ends the connections from this end, or after the program's end.
    fn disconnect(&self, ends: &[End], connections: &[Connection], is_first: bool) -> Outcome {
        for (end, connection) in ends.iter().zip(connections) {
            ensure(is_first || connection.wait_disconnected(PATIENCE)?, "the program does not disconnect")?;
            connection.disconnect(&end.qp)?;
        }
        for connection in connections {
            ensure(connection.wait_disconnected(PATIENCE)?, "the program does not confirm the end")?;
        }
        Ok(())
    }
}

/// The server sends messages, the client sends the bytes back that it has received last, and the server disconnects.
fn ucmatose(home: &Home) -> Outcome {
    let Arguments { connections, messages, size, .. } = home.arguments;
    let ends = home.ends(connections, messages, size)?;
    let connected = home.connect_in_role(&ends)?;
    let is_server = home.arguments.role == Role::Client;
    // The client replies when all messages of all connections have arrived.
    for end in &ends {
        if is_server {
            end.send(messages)?;
        } else {
            end.complete(messages)?;
        }
    }
    for end in &ends {
        if is_server {
            end.complete(2 * messages)?;
            end.expect(messages, 0, &pattern(SEED, size))?;
        } else {
            end.send(messages)?;
            end.complete(messages)?;
        }
    }
    home.disconnect(&ends, &connected, is_server)
}

/// The client sends datagrams with its number; the server sends its receive buffer back, which begins with a header.
fn udaddy(home: &Home) -> Outcome {
    let Arguments { connections, messages, size, role, remote, local, .. } = home.arguments;
    let new = |_| End::new(home, QueuePairType::UnreliableDatagram, messages, size);
    let ends = (0..connections).map(new).collect::<Result<Vec<_>, _>>()?;
    if role == Role::Server {
        let peers = ends.iter().map(|_| Ok(home.route()?.resolve_datagram(&ConnectionOptions::new())?));
        let peers = peers.collect::<Result<Vec<_>, Error>>()?;
        for (end, peer) in ends.iter().zip(peers) {
            end.send_to(messages, &peer.address, peer.qpn, peer.qkey)?;
        }
        for end in &ends {
            end.complete(2 * messages)?;
            end.expect(messages, GRH, &pattern(SEED, size)[..size - GRH])?;
        }
        return Ok(());
    }
    let listener = ListenerOptions::new().on(&home.context).bind_datagrams(home.own_address())?;
    println!("listening on {}", listener.local_addr());
    for end in &ends {
        let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
        request.accept(&end.qp, DEFAULT_QKEY, &[])?;
    }
    for end in &ends {
        let qpn = end.complete(messages)?.ok_or("a message has no immediate data")?;
        let peer = AddressVector::new(remote.into(), home.context.find_gid(1, local.into())?);
        end.send_to(messages, &peer, Qpn::new(qpn), DEFAULT_QKEY)?;
    }
    for end in &ends {
        end.complete(messages)?;
    }
    Ok(())
}

fn multicast_group(arguments: &Arguments) -> Result<MulticastGroup, Error> {
    Ok(MulticastGroup::via(arguments.local, arguments.group.ok_or("mckey needs --group")?)?)
}

/// Both ends join the group, and the client sends messages to it, with its queue pair's number. They have the bytes of
/// memory that mckey does not initialize, the same in all of them.
fn mckey(home: &Home) -> Outcome {
    let Arguments { messages, size, role, local, remote, .. } = home.arguments;
    let group = multicast_group(&home.arguments)?;
    let end = End::new(home, QueuePairType::UnreliableDatagram, messages, size)?;
    let membership = group.join(&end.qp)?;
    println!("listening on {}", group.group_addr());
    let is_sender = role == Role::Server;
    let source = if is_sender {
        end.send_to(messages, &group.address(), group.qpn(), group.qkey())?;
        local
    } else {
        remote
    };
    // A sender that is a member receives its own messages.
    let number = end.complete(if is_sender { 2 * messages } else { messages })?;
    ensure(number.is_some(), "a message has no immediate data")?;
    for index in 0..messages {
        let header = end.mr.to_vec(end.place(index)..end.place(index) + GRH)?;
        let header = header.first_chunk().and_then(GlobalRouteHeader::from_bytes).ok_or("no route header")?;
        let addresses = (Gid::from(header.source), Gid::from(header.destination));
        let expected = (Gid::from(source), Gid::from(group.group_addr()));
        ensure(addresses == expected, &format!("message {index} is from {addresses:?} instead of {expected:?}"))?;
    }
    if is_sender {
        end.expect(messages, 0, &pattern(SEED, size))?;
    } else {
        let first = end.mr.to_vec(end.place(0) + GRH..end.place(0) + GRH + size)?;
        ensure(first != [UNTOUCHED].repeat(size), "the first message has no bytes")?;
        end.expect(messages, 0, &first)?;
    }
    membership.leave()?;
    Ok(())
}

/// The client connects many times at once, and disconnects.
fn cmtime(home: &Home) -> Outcome {
    let Arguments { connections, role, in_steps, .. } = home.arguments;
    if in_steps {
        return cmtime_in_steps(home);
    }
    let ends = home.ends(connections, 1, 1)?;
    let connected = home.connect_in_role(&ends)?;
    home.disconnect(&ends, &connected, role == Role::Server)
}

/// Three times: once with one connection, then with many, then with many without queue pairs at the program's end.
fn cmtime_in_steps(home: &Home) -> Outcome {
    let Arguments { connections, role, port, local, remote, .. } = home.arguments;
    let is_client = role == Role::Server;
    let listeners = if is_client { None } else { Some((TcpListener::bind((local, port))?, home.listen()?)) };
    let mut steps = match &listeners {
        Some((steps, _)) => steps.accept()?.0,
        None => TcpStream::connect((remote, port))?,
    };
    steps.set_read_timeout(Some(PATIENCE))?;
    let mut wait = |step: u8| -> Outcome {
        let mut byte = [step];
        if is_client {
            steps.write_all(&byte)?;
        }
        steps.read_exact(&mut byte)?;
        ensure(byte == [step], "the program is at another step")?;
        if !is_client {
            steps.write_all(&byte)?;
        }
        Ok(())
    };
    for count in [1, connections, connections] {
        wait(STEPS[0])?;
        let ends = home.ends(count, 1, 1)?;
        let connected = home.connect(&ends, listeners.as_ref().map(|(_, listener)| listener))?;
        wait(STEPS[1])?;
        home.disconnect(&ends, &connected, is_client)?;
        wait(STEPS[2])?;
    }
    Ok(())
}

/// The client sends 16 bytes, the server sends 16 bytes back: zeros.
fn rdma(home: &Home) -> Outcome {
    let ends = home.ends(1, 1, SHORT)?;
    let connected = home.connect_in_role(&ends)?;
    let is_client = home.arguments.role == Role::Server;
    let end = &ends[0];
    if is_client {
        end.send(1)?;
        end.complete(2)?;
    } else {
        end.complete(1)?;
        end.send(1)?;
        end.complete(1)?;
    }
    end.expect(1, 0, &[0; SHORT])?;
    home.disconnect(&ends, &connected, false)
}

fn run(arguments: Arguments) -> Outcome {
    let context = match arguments.program {
        Program::Mckey => multicast_group(&arguments)?.context().clone(),
        _ => verbs::open(&format!("soft:{}", arguments.local))?,
    };
    let pd = context.alloc_pd()?;
    let home = Home { arguments, context, pd };
    match home.arguments.program {
        Program::Ucmatose => ucmatose(&home),
        Program::Udaddy => udaddy(&home),
        Program::Mckey => mckey(&home),
        Program::Cmtime => cmtime(&home),
        Program::Rdma => rdma(&home),
    }
}

fn main() -> std::process::ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("interop_utilities: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
