//! A process with listeners and connections. It obeys the lines that it reads, and replies with one line to each.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{ConnectionOptions, Listener, ListenerOptions, Request};
use rdma_verbs::verbs::{Counter, Error, ErrorKind};

use super::end::{Client, End, Greeting, Outcome, WRONG};
use super::{LIMIT, REPLY};

/// How long a server waits for a request before it checks whether its time is over.
const SLICE: Duration = Duration::from_millis(50);
/// Longest time of an attempt, and of an exchange, while other processes are killed and stopped. A client whose server
/// is killed between a message and its echo learns nothing.
const SHORT: Duration = Duration::from_secs(3);

/// The work of a process's servers.
#[derive(Default)]
struct Served {
    accepted: AtomicU64,
    /// Requests whose initiator has given up.
    failed: AtomicU64,
    /// Connections that the peer, or another process of its host, has ended.
    ended: AtomicU64,
    /// Connections between the wrong ends.
    wrong: Mutex<Vec<String>>,
}

impl Served {
    /// Serves a connection until its end: echoes each message.
    fn serve(&self, request: Request, name: &str) -> Outcome {
        let greeting = Greeting::parse(request.private_data())?;
        if greeting.server != name {
            return Err(format!("{WRONG}: {greeting:?} has arrived at {name}").into());
        }
        let end = End::new(request.context())?;
        let options = ConnectionOptions::new().private_data(&greeting.to_bytes());
        let Ok(connection) = request.accept(&end.qp, &options) else {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        self.accepted.fetch_add(1, Ordering::Relaxed);
        while !connection.wait_disconnected(Duration::ZERO)? {
            match end.receive()? {
                Some(message) if message == greeting => end.send(&message)?,
                Some(message) => return Err(format!("{WRONG}: {message:?} on {greeting:?}").into()),
                None => {}
            }
        }
        connection.disconnect(&end.qp)?;
        self.ended.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Notes how a connection has ended. That of a killed client ends with an error.
    fn note(&self, outcome: Outcome) {
        if let Err(error) = outcome
            && error.to_string().contains(WRONG)
        {
            self.wrong.lock().unwrap().push(error.to_string());
        }
    }
}

/// A listener with the thread that takes its requests.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(listener: Listener, name: &str, served: &Arc<Served>) -> Self {
        let (stop, served, name) = (Arc::new(AtomicBool::new(false)), Arc::clone(served), name.to_owned());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Some(request) = listener.accept_within(SLICE).unwrap() else { continue };
                let (served, name) = (Arc::clone(&served), name.clone());
                std::thread::spawn(move || served.note(served.serve(request, &name)));
            }
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Random connections of a process, and how they ended.
#[derive(Default)]
struct Roaming {
    stop: AtomicBool,
    connected: AtomicU64,
    failed: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Roaming {
    /// Connects to random servers until it is stopped.
    fn run(&self, servers: &[(SocketAddr, String)]) {
        while !self.stop.load(Ordering::Relaxed) {
            let (address, name) = &servers[rand::random_range(0..servers.len())];
            let visited =
                Client::connect(address.ip(), *address, name, rand::random_range(1..4), SHORT).and_then(|clients| {
                    self.connected.fetch_add(clients.len() as u64, Ordering::Relaxed);
                    clients.iter().try_for_each(|client| client.exchange(SHORT))
                });
            if let Err(error) = visited {
                self.failed.fetch_add(1, Ordering::Relaxed);
                if error.to_string().contains(WRONG) {
                    self.wrong.lock().unwrap().push(error.to_string());
                }
                // A refusal comes at once.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// The state of the process.
#[derive(Default)]
pub(super) struct Member {
    served: Arc<Served>,
    listeners: BTreeMap<SocketAddr, Listener>,
    servers: BTreeMap<SocketAddr, Server>,
    clients: Vec<Client>,
    roaming: Arc<Roaming>,
    roamers: Vec<JoinHandle<()>>,
}

impl Member {
    /// Obeys all lines of the standard input.
    pub(super) fn run(mut self) {
        for line in std::io::stdin().lines() {
            let reply = self.obey(&line.unwrap()).unwrap_or_else(|error| format!("failed: {error}"));
            // The test harness may have begun a line.
            println!("\n{REPLY}{}", reply.replace('\n', " "));
        }
    }

    fn obey(&mut self, line: &str) -> Outcome<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["listen", address, backlog] => self.listen(address.parse()?, backlog.parse()?),
            ["serve", address, name] => self.serve(address.parse()?, name),
            ["close", address] => self.close(address.parse()?),
            ["call", address, name, count] => {
                let address: SocketAddr = address.parse()?;
                self.call(address.ip(), address, name, count.parse()?)
            }
            ["call-from", source, address, name, count] => {
                self.call(source.parse()?, address.parse()?, name, count.parse()?)
            }
            ["lost"] => self.lose(),
            ["ended"] => Ok(self.served.ended.load(Ordering::Relaxed).to_string()),
            ["exchange"] => self.exchange(),
            ["hang-up"] => {
                let clients = std::mem::take(&mut self.clients);
                let count = clients.len();
                clients.into_iter().try_for_each(Client::hang_up)?;
                Ok(format!("hung up {count}"))
            }
            ["forwarded", address] => {
                let context = rdma_verbs::verbs::cm::Route::to((address, 1))?.from(address)?.context().clone();
                Ok(context.counters().get(Counter::ForwardedPackets).to_string())
            }
            ["served"] => self.report(),
            ["roam", ref servers @ ..] => self.roam(servers),
            ["rest"] => self.rest(),
            _ => Err(format!("unknown: {line}").into()),
        }
    }

    fn call(&mut self, source: IpAddr, address: SocketAddr, name: &str, count: usize) -> Outcome<String> {
        self.clients.extend(Client::connect(source, address, name, count, LIMIT)?);
        self.exchange()
    }

    /// Counts the connections that end within a second, without a call of this end.
    fn lose(&self) -> Outcome<String> {
        let end = Instant::now() + Duration::from_secs(1);
        let mut lost = 0;
        for client in &self.clients {
            lost += usize::from(client.has_ended(end.saturating_duration_since(Instant::now()))?);
        }
        Ok(format!("lost {lost}"))
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Outcome<String> {
        match ListenerOptions::new().backlog(backlog).bind(address) {
            Ok(listener) => {
                self.listeners.insert(address, listener);
                Ok("listens".to_owned())
            }
            Err(error) => Ok(describe(&error)),
        }
    }

    fn serve(&mut self, address: SocketAddr, name: &str) -> Outcome<String> {
        let listener = self.listeners.remove(&address).ok_or("no such listener")?;
        self.servers.insert(address, Server::start(listener, name, &self.served));
        Ok("serves".to_owned())
    }

    fn close(&mut self, address: SocketAddr) -> Outcome<String> {
        drop(self.listeners.remove(&address));
        self.servers.remove(&address).into_iter().for_each(Server::end);
        Ok("closed".to_owned())
    }

    /// Makes an exchange on each connection.
    fn exchange(&self) -> Outcome<String> {
        self.clients.iter().try_for_each(|client| client.exchange(LIMIT))?;
        Ok(format!("exchanged {}", self.clients.len()))
    }

    fn report(&self) -> Outcome<String> {
        let Served { accepted, failed, wrong, .. } = &*self.served;
        let (accepted, failed) = (accepted.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
        Ok(format!("accepted {accepted} failed {failed} wrong {:?}", wrong.lock().unwrap()))
    }

    /// Starts to connect to random ones of the servers, which are pairs of an address and a name.
    fn roam(&mut self, servers: &[&str]) -> Outcome<String> {
        let servers = servers.chunks(2).map(|pair| Ok((pair[0].parse()?, pair[1].to_owned())));
        let servers = servers.collect::<Outcome<Vec<(SocketAddr, String)>>>()?;
        for _ in 0..2 {
            let (roaming, servers) = (Arc::clone(&self.roaming), servers.clone());
            self.roamers.push(std::thread::spawn(move || roaming.run(&servers)));
        }
        Ok("roams".to_owned())
    }

    fn rest(&mut self) -> Outcome<String> {
        let Roaming { stop, connected, failed, wrong } = &*self.roaming;
        stop.store(true, Ordering::Relaxed);
        self.roamers.drain(..).for_each(|roamer| roamer.join().unwrap());
        let (connected, failed) = (connected.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
        Ok(format!("connected {connected} failed {failed} wrong {:?}", wrong.lock().unwrap()))
    }
}

fn describe(error: &Error) -> String {
    let kind = if error.kind() == ErrorKind::AddressInUse { "address in use" } else { "another error" };
    format!("{kind}: {error}")
}
