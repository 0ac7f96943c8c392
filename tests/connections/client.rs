//! The process that connects, and its view of the one that listens.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{Connection, ConnectionOptions, Listener, Route};
use rdma_verbs::verbs::{CompletionQueue, ProtectionDomain, QueuePair};
use tokio::task::{JoinSet, LocalSet};

use super::holdings::Holdings;
use super::{CLIENT, Outcome, PORT, SERVER};

/// An attempt that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// The process that listens. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start() -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("--server").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("a child without pipes")?;
        let mut server = Self { child, input: Some(input), output: BufReader::new(output) };
        server.line()?;
        Ok(server)
    }

    pub(crate) fn order(&mut self, line: &str) -> Outcome {
        let input = self.input.as_mut().ok_or("the process that listens is to end")?;
        Ok(input.write_all(format!("{line}\n").as_bytes())?)
    }

    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err("the process that listens has ended".into());
        }
        Ok(line.trim().to_owned())
    }

    /// Waits until the order is carried out; returns the resources that the process holds then.
    pub(crate) fn holdings(&mut self) -> Outcome<Holdings> {
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// Ends the process in order.
    pub(crate) fn end(mut self) -> Outcome {
        drop(self.input.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the process that listens: {status}").into()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The results of a repetition; resources of the client first.
pub(crate) struct Repetition {
    pub(crate) setup: Duration,
    pub(crate) teardown: Duration,
    /// Time of each connect.
    pub(crate) connects: Vec<Duration>,
    /// Part of the time of the setup in which the client creates queue pairs.
    pub(crate) creation: Duration,
    pub(crate) idle_bytes: [i64; 2],
    pub(crate) setup_processor: [Duration; 2],
    pub(crate) left: Vec<String>,
}

/// Opens the client's device, and returns the route to the server.
pub(crate) fn route() -> Outcome<Route> {
    Ok(Route::to((SERVER, PORT))?.from(CLIENT)?)
}

struct Client {
    route: Route,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// Number of connections that are not begun.
    left: Cell<u32>,
    /// A connection is dropped before its queue pair.
    held: RefCell<Vec<(Connection, QueuePair)>>,
    connects: RefCell<Vec<Duration>>,
    creation: Cell<Duration>,
}

/// Sets up that many connections, holds them, and ends them.
pub(crate) fn repetition(server: &mut Server, route: &Route, count: u32, in_flight: u32) -> Outcome<Repetition> {
    let context = route.context();
    server.order("holdings")?;
    let before = [Holdings::now(context), server.holdings()?];
    let client = Rc::new(Client::new(route, count)?);
    server.order(&format!("accept {count}"))?;
    let begin = Instant::now();
    at_once(in_flight, || Rc::clone(&client).connect_all())?;
    let setup = begin.elapsed();
    let idle = [Holdings::now(context), server.holdings()?];
    let ports: Vec<SocketAddr> = client.held.borrow().iter().map(|(held, _)| held.local_addr()).collect();
    server.order("end")?;
    let begin = Instant::now();
    at_once(in_flight, || Rc::clone(&client).disconnect_all())?;
    let teardown = begin.elapsed();
    let (connects, creation) = (client.connects.take(), client.creation.get());
    drop(client);
    let after = [Holdings::now(context), server.holdings()?];
    let mut left = after[0].left_since(&before[0], "client");
    left.extend(after[1].left_since(&before[1], "server"));
    left.extend(taken_ports(&ports));
    let growth = |index: usize, field: fn(&Holdings) -> i64| field(&idle[index]) - field(&before[index]);
    let processor = |index| Duration::from_micros(growth(index, |held| held.processor_micros).max(0) as u64);
    Ok(Repetition {
        setup,
        teardown,
        connects,
        creation,
        idle_bytes: [0, 1].map(|index| growth(index, |held| held.rss_bytes) / i64::from(count)),
        setup_processor: [processor(0), processor(1)],
        left,
    })
}

/// Returns a text for the ports that cannot be bound: they still belong to a connection.
fn taken_ports(ports: &[SocketAddr]) -> Option<String> {
    let errors: Vec<_> = ports.iter().filter_map(|port| Listener::bind(port).err()).collect();
    errors.first().map(|error| format!("client: {} ports, {error}", errors.len()))
}

impl Client {
    fn new(route: &Route, count: u32) -> Outcome<Self> {
        Ok(Self {
            route: route.clone(),
            pd: route.context().alloc_pd()?,
            cq: route.context().create_cq(16)?,
            left: Cell::new(count),
            held: RefCell::default(),
            connects: RefCell::default(),
            creation: Cell::default(),
        })
    }

    /// Connects until none is left.
    async fn connect_all(self: Rc<Self>) -> Outcome {
        while let Some(others) = self.left.get().checked_sub(1) {
            self.left.set(others);
            self.connect().await?;
        }
        Ok(())
    }

    async fn connect(&self) -> Outcome {
        let begin = Instant::now();
        let qp = self.pd.create_qp(&self.cq, &self.cq)?;
        let created = Instant::now();
        self.creation.set(self.creation.get() + (created - begin));
        let connection = self.route.start_connect(&qp, &ConnectionOptions::new().deadline(DEADLINE))?.await?;
        self.connects.borrow_mut().push(created.elapsed());
        self.held.borrow_mut().push((connection, qp));
        Ok(())
    }

    /// Ends connections until none is held.
    async fn disconnect_all(self: Rc<Self>) -> Outcome {
        loop {
            let Some((connection, qp)) = self.held.borrow_mut().pop() else { return Ok(()) };
            connection.disconnect(&qp)?;
            connection.disconnected().await?;
        }
    }
}

/// Runs the same work that many times at once, on this thread.
fn at_once<F: Future<Output = Outcome> + 'static>(count: u32, work: impl Fn() -> F) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut works = JoinSet::new();
        (0..count).for_each(|_| drop(works.spawn_local(work())));
        works.join_all().await.into_iter().collect()
    })
}
