//! Connections by address and port with both ends on one device, which is the one of the given address: an adapter, or
//! a software device. Each scenario prints a line; the exit status says whether all have passed.
//!
//! `tests/ibverbs/run` starts it on the kernel's rxe.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use clap::Parser;
use nix::poll::{PollFd, PollFlags, poll};
use rdma_verbs::verbs::cm::{
    ConnectError, Connection, ConnectionOptions, DEFAULT_QKEY, Listener, ListenerOptions, Request, Route,
};
use rdma_verbs::verbs::{
    self, AccessFlags, CompletionStatus, Context, ErrorKind, MemoryRegion, QueuePair, QueuePairOptions, QueuePairType,
    ReceiveRequest, SendRequest,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Longest time of any step.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of receives.
const RECEIVE: u64 = 1;
/// Length of messages: eight bytes, repeated.
const LENGTH: usize = 64;

#[derive(Parser)]
#[command(about = "Connects queue pairs by address and port, both ends on the device of one address")]
struct Arguments {
    /// An address of the device
    address: IpAddr,
    /// The device that the address belongs to
    #[arg(short, long)]
    device: Option<String>,
    /// An address on the same network without a host
    #[arg(long)]
    absent: Option<IpAddr>,
    /// Run only the scenarios whose names contain this
    #[arg(long, default_value = "")]
    only: String,
}

type Scenario = fn(&Arguments) -> Outcome;

/// The error of a scenario that cannot run with the given arguments.
#[derive(Debug)]
struct Skipped(&'static str);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Skipped {}

const SCENARIOS: &[(&str, Scenario)] = &[
    ("the device is that of the address", device),
    ("data flows, and both ends disconnect", data),
    ("many connections at once", many),
    ("the passive end disconnects", passive_disconnect),
    ("a dropped connection ends", dropped),
    ("the application rejects", reject),
    ("a dropped request is rejected", dropped_request),
    ("no application listens", no_listener),
    ("a port has one listener", port_in_use),
    ("a wildcard listener takes the request", wildcard),
    ("requests are noticed by descriptor", descriptors),
    ("tasks are woken", tasks),
    ("a rejected queue pair connects after a reset", again_after_reset),
    ("wrong arguments are refused", refusals),
    ("a host that is not there is given up", not_there),
    ("datagram queue pairs are resolved", datagrams),
    ("datagram requests are rejected", datagram_rejections),
    ("datagram tasks are woken", datagram_task),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.contains(&arguments.only)) {
        let start = Instant::now();
        match scenario(&arguments) {
            Ok(()) => {
                passed += 1;
                println!("ok      {name} ({} ms)", start.elapsed().as_millis());
            }
            Err(reason) if reason.is::<Skipped>() => {
                skipped += 1;
                println!("skipped {name}: {reason}");
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {name}: {error}");
            }
        }
    }
    if passed + failed + skipped == 0 {
        println!("no scenario has a name with {:?}", arguments.only);
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ensure(condition: bool, message: impl Into<String>) -> Outcome {
    if condition { Ok(()) } else { Err(message.into().into()) }
}

/// A queue pair with memory for a message of each direction, and a posted receive.
struct End {
    qp: QueuePair,
    sent: MemoryRegion,
    received: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Outcome<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(32)?);
        let region = || pd.alloc_mr(LENGTH, AccessFlags::LOCAL_WRITE);
        let end = Self { qp: pd.create_qp(&cq, &cq)?, sent: region()?, received: region()? };
        end.init()?;
        Ok(end)
    }

    /// Makes the queue pair ready to connect, with a receive into memory that has other bytes than each message.
    fn init(&self) -> Outcome {
        self.received.write_at(0, &std::array::from_fn::<u8, LENGTH, _>(|index| index as u8))?;
        self.qp.init()?;
        Ok(self.qp.post_recv(&[ReceiveRequest::new(&self.received).wr_id(RECEIVE)])?)
    }

    /// Waits for the receive, and returns the bytes that the message repeats.
    fn receive(&self) -> Outcome<[u8; 8]> {
        loop {
            let completion = self.qp.recv_cq().wait(PATIENCE)?;
            let length = completion.result()?.byte_len as usize;
            if completion.wr_id() == RECEIVE {
                ensure(length == LENGTH, format!("the message has {length} bytes instead of {LENGTH}"))?;
                let (mut bytes, message) = ([0; 8], self.received.to_vec(..)?);
                bytes.copy_from_slice(&message[..8]);
                ensure(message == bytes.repeat(LENGTH / 8), format!("the message is {message:?}"))?;
                return Ok(bytes);
            }
        }
    }

    fn send(&self, bytes: &[u8; 8]) -> Outcome {
        self.sent.write_at(0, &bytes.repeat(LENGTH / 8))?;
        Ok(self.qp.post_send(&[SendRequest::send(&self.sent).signaled()])?)
    }
}

fn options() -> ConnectionOptions {
    ConnectionOptions::new().deadline(PATIENCE)
}

fn at(arguments: &Arguments, port: u16) -> SocketAddr {
    SocketAddr::new(arguments.address, port)
}

fn route(arguments: &Arguments, to: SocketAddr) -> Outcome<Route> {
    Ok(Route::between(arguments.address, SocketAddr::new(arguments.address, to.port()))?)
}

/// Serves one connection: echoes a message, and waits for the client to disconnect.
fn echo(request: Request) -> Outcome<Connection> {
    let end = End::new(request.context())?;
    let connection = request.accept(&end.qp, &options().private_data(b"welcome"))?;
    end.send(&end.receive()?)?;
    ensure(connection.wait_disconnected(PATIENCE)?, "the client does not disconnect")?;
    connection.disconnect(&end.qp)?;
    Ok(connection)
}

fn serve(listener: Listener) -> JoinHandle<Outcome> {
    thread::spawn(move || {
        let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
        ensure(&request.private_data()[..6] == b"hello\0", "the request's data")?;
        echo(request).map(drop)
    })
}

fn ended(server: JoinHandle<Outcome>) -> Outcome {
    server.join().map_err(|_| "the server panicked")?
}

fn ask(route: &Route, bytes: &[u8; 8]) -> Outcome<(End, Connection)> {
    let end = End::new(route.context())?;
    let connection = route.connect(&end.qp, &options().private_data(b"hello"))?;
    end.send(bytes)?;
    let received = end.receive()?;
    ensure(received == *bytes, format!("{bytes:?} has come back as {received:?}"))?;
    Ok((end, connection))
}

fn device(arguments: &Arguments) -> Outcome {
    let route = route(arguments, at(arguments, 7471))?;
    let name = route.context().name();
    ensure(arguments.device.as_ref().is_none_or(|device| device == name), format!("the device is {name}"))?;
    let by_routing = Route::to(at(arguments, 7471))?;
    ensure(by_routing.context().name() == name, "the system routes from another device")
}

fn data(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    ensure(to.port() != 0, "the listener has no port")?;
    let server = serve(listener);
    let (end, connection) = ask(&route(arguments, to)?, b"12345678")?;
    ensure(connection.peer_addr() == to, format!("the peer is {}", connection.peer_addr()))?;
    ensure(connection.local_addr().port() != 0, "the client has no port")?;
    ensure(connection.private_data().len() == 196, "the reply has 196 bytes")?;
    ensure(&connection.private_data()[..8] == b"welcome\0", "the reply's data")?;
    connection.disconnect(&end.qp)?;
    ensure(connection.wait_disconnected(PATIENCE)?, "the server does not confirm")?;
    ended(server)
}

fn many(arguments: &Arguments) -> Outcome {
    const CLIENTS: usize = 8;
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        let mut servers = Vec::new();
        for _ in 0..CLIENTS {
            let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
            servers.push(thread::spawn(move || echo(request).map(drop)));
        }
        servers.into_iter().try_for_each(ended)
    });
    let route = route(arguments, to)?;
    let clients = (0..CLIENTS).map(|client| {
        let route = route.clone();
        thread::spawn(move || -> Outcome {
            let (end, connection) = ask(&route, &(client as u64).to_ne_bytes())?;
            Ok(connection.disconnect(&end.qp)?)
        })
    });
    clients.collect::<Vec<_>>().into_iter().try_for_each(ended)?;
    ended(server)
}

fn passive_disconnect(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
        let end = End::new(request.context())?;
        let connection = request.accept(&end.qp, &options())?;
        connection.disconnect(&end.qp)?;
        ensure(connection.wait_disconnected(PATIENCE)?, "the client does not confirm")
    });
    let route = route(arguments, to)?;
    let end = End::new(route.context())?;
    let connection = route.connect(&end.qp, &options())?;
    ensure(connection.wait_disconnected(PATIENCE)?, "the server does not disconnect")?;
    connection.disconnect(&end.qp)?;
    let status = end.qp.recv_cq().wait(PATIENCE)?.result().map_err(|failure| failure.status);
    ensure(status.err() == Some(CompletionStatus::WorkRequestFlushedError), "the receive is not flushed")?;
    ended(server)
}

fn dropped(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = serve(listener);
    drop(ask(&route(arguments, to)?, b"abcdefgh")?.1);
    ended(server)
}

fn reject(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        Ok(listener.accept_within(PATIENCE)?.ok_or("no request")?.reject(b"not now")?)
    });
    match connect_error(arguments, to)? {
        ConnectError::Rejected(rejected) => {
            ensure(rejected.private_data().len() == 148, "the rejection has 148 bytes")?;
            ensure(&rejected.private_data()[..8] == b"not now\0", "the rejection's data")?;
            ensure(!rejected.is_no_listener(), "there was a listener")?;
        }
        other => return Err(other.into()),
    }
    ended(server)
}

fn connect_error(arguments: &Arguments, to: SocketAddr) -> Outcome<ConnectError> {
    let route = route(arguments, to)?;
    let end = End::new(route.context())?;
    Ok(route.connect(&end.qp, &options()).err().ok_or("it is connected")?)
}

fn dropped_request(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        drop(listener.accept_within(PATIENCE)?.ok_or("no request")?);
        Ok(())
    });
    let error = connect_error(arguments, to)?;
    ensure(matches!(error, ConnectError::Rejected(_)), error.to_string())?;
    ended(server)
}

fn no_listener(arguments: &Arguments) -> Outcome {
    match connect_error(arguments, at(arguments, 7999))? {
        ConnectError::Rejected(rejected) => ensure(rejected.is_no_listener(), rejected.to_string()),
        other => Err(other.into()),
    }
}

fn port_in_use(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let error = Listener::bind(to).err().ok_or("the port has two listeners")?;
    ensure(error.kind() == ErrorKind::AddressInUse, error.to_string())?;
    drop(listener);
    Listener::bind(to)?;
    Ok(())
}

fn wildcard(arguments: &Arguments) -> Outcome {
    let any: IpAddr = if arguments.address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let context = route(arguments, at(arguments, 1))?.context().clone();
    for listener in [Listener::bind((any, 0))?, ListenerOptions::new().on(&context).bind((any, 0))?] {
        let to = listener.local_addr();
        let server = serve(listener);
        let (end, connection) = ask(&route(arguments, to)?, b"wildcard")?;
        connection.disconnect(&end.qp)?;
        ended(server)?;
    }
    Ok(())
}

fn descriptors(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let route = route(arguments, listener.local_addr())?;
    let client = thread::spawn(move || -> Outcome {
        let (end, connection) = ask(&route, b"by poll.")?;
        Ok(connection.disconnect(&end.qp)?)
    });
    wait_readable(&listener)?;
    let request = listener.accept_within(Duration::ZERO)?.ok_or("the descriptor is readable without a request")?;
    echo(request)?;
    ended(client)
}

fn wait_readable(listener: &Listener) -> Outcome {
    let descriptors = listener.descriptors()?;
    let first = *descriptors.first().ok_or("no descriptor")?;
    ensure(first.as_raw_fd() >= 0, "the descriptor")?;
    let mut waited = [PollFd::new(first, PollFlags::POLLIN)];
    ensure(poll(&mut waited, 20_000_u16)? == 1, "the descriptor does not become readable")
}

/// Wakes the thread that runs a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn run<F: Future>(future: F) -> Outcome<F::Output> {
    let (mut future, end) = (pin!(future), Instant::now() + PATIENCE);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            return Ok(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        ensure(!left.is_zero(), "the task is not woken")?;
        thread::park_timeout(left);
    }
}

fn tasks(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        let request = run(listener.accept_async())??;
        let end = End::new(request.context())?;
        let connection = run(request.start_accept(&end.qp, &options())?)??;
        run(connection.disconnected())??;
        Ok(connection.disconnect(&end.qp)?)
    });
    let route = route(arguments, to)?;
    let end = End::new(route.context())?;
    let connection = run(route.start_connect(&end.qp, &options())?)??;
    connection.disconnect(&end.qp)?;
    run(connection.disconnected())??;
    ended(server)
}

fn again_after_reset(arguments: &Arguments) -> Outcome {
    let listener = Listener::bind(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        listener.accept_within(PATIENCE)?.ok_or("no request")?.reject(b"")?;
        echo(listener.accept_within(PATIENCE)?.ok_or("no second request")?).map(drop)
    });
    let route = route(arguments, to)?;
    let end = End::new(route.context())?;
    ensure(route.connect(&end.qp, &options()).is_err(), "it is connected")?;
    end.qp.reset()?;
    while end.qp.recv_cq().wait(Duration::from_millis(10)).is_ok() {}
    end.init()?;
    let connection = route.connect(&end.qp, &options())?;
    end.send(b"once mor")?;
    ensure(end.receive()? == *b"once mor", "the message")?;
    connection.disconnect(&end.qp)?;
    ended(server)
}

fn refusals(arguments: &Arguments) -> Outcome {
    let to = at(arguments, 7998);
    let route = route(arguments, to)?;
    let end = End::new(route.context())?;
    let long = options().private_data(&[1; 57]);
    match route.connect(&end.qp, &long).err().ok_or("57 bytes are sent")? {
        ConnectError::Verb(error) => ensure(error.kind() == ErrorKind::InvalidArgument, error.to_string())?,
        other => return Err(other.into()),
    }
    let foreign: SocketAddr = "192.0.2.77:7471".parse()?;
    let error = ListenerOptions::new().on(route.context()).bind(foreign).err().ok_or("a foreign address is bound")?;
    ensure(error.kind() == ErrorKind::NotFound, error.to_string())
}

fn not_there(arguments: &Arguments) -> Outcome {
    let absent = arguments.absent.ok_or(Skipped("needs --absent"))?;
    let route = Route::between(arguments.address, (absent, 7471))?;
    let limit = Duration::from_millis(1500);
    for is_task in [false, true] {
        let (end, start) = (End::new(route.context())?, Instant::now());
        let options = ConnectionOptions::new().deadline(limit);
        let outcome = match is_task {
            false => route.connect(&end.qp, &options),
            true => run(route.start_connect(&end.qp, &options)?)?,
        };
        let error = outcome.err().ok_or("it is connected")?;
        ensure(matches!(error, ConnectError::TimedOut | ConnectError::Unreachable(_)), error.to_string())?;
        ensure(start.elapsed() < limit + Duration::from_secs(3), format!("it took {:?}", start.elapsed()))?;
    }
    Ok(())
}

fn datagram_qp(context: &Context) -> Outcome<QueuePair> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram);
    Ok(pd.create_qp_with(&cq, &cq, &options)?)
}

fn serve_datagrams(arguments: &Arguments) -> Outcome<(SocketAddr, JoinHandle<Outcome>)> {
    let listener = ListenerOptions::new().bind_datagrams(at(arguments, 0))?;
    let to = listener.local_addr();
    let server = thread::spawn(move || -> Outcome {
        let request = listener.accept_within(PATIENCE)?.ok_or("no request")?;
        ensure(request.private_data().len() == 180 && request.private_data().starts_with(b"who?\0"), "the data")?;
        let qp = datagram_qp(request.context())?;
        ensure(request.peer_addr().port() != 0, "the client has no port")?;
        request.accept(&qp, DEFAULT_QKEY, &qp.qpn().value().to_be_bytes())?;
        Ok(())
    });
    Ok((to, server))
}

fn check_datagram_peer(peer: &verbs::cm::DatagramPeer) -> Outcome {
    ensure(peer.private_data.len() == 136, "the response has 136 bytes")?;
    ensure(peer.private_data[..4] == peer.qpn.value().to_be_bytes(), "the queue pair")?;
    ensure(peer.qkey == DEFAULT_QKEY, "the Q_Key")
}

fn datagrams(arguments: &Arguments) -> Outcome {
    let (to, server) = serve_datagrams(arguments)?;
    let peer = route(arguments, to)?.resolve_datagram(&options().private_data(b"who?"))?;
    check_datagram_peer(&peer)?;
    route(arguments, to)?.context().alloc_pd()?.create_ah(&peer.address)?;
    ended(server)
}

fn datagram_rejections(arguments: &Arguments) -> Outcome {
    let listener = ListenerOptions::new().bind_datagrams(at(arguments, 0))?;
    let to = listener.local_addr();
    let server =
        thread::spawn(move || -> Outcome { Ok(listener.accept_within(PATIENCE)?.ok_or("no request")?.reject(b"no")?) });
    match route(arguments, to)?.resolve_datagram(&options()) {
        Err(ConnectError::Rejected(rejected)) => ensure(!rejected.is_no_listener(), rejected.to_string())?,
        other => return Err(format!("{other:?}").into()),
    }
    ended(server)?;
    match route(arguments, at(arguments, 7997))?.resolve_datagram(&options()) {
        Err(ConnectError::Rejected(rejected)) => ensure(rejected.is_no_listener(), rejected.to_string()),
        other => Err(format!("{other:?}").into()),
    }
}

fn datagram_task(arguments: &Arguments) -> Outcome {
    let (to, server) = serve_datagrams(arguments)?;
    let peer = run(route(arguments, to)?.start_resolve_datagram(&options().private_data(b"who?"))?)??;
    check_datagram_peer(&peer)?;
    ended(server)
}
