//! `ping --serve`: returns the echoes of other hosts.
//!
//! It is open to all hosts that reach it, so everything has a bound: the number of clients, their memory, their rate
//! and the time that they may be silent. It returns each message to its sender, never longer than it came.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdma_verbs::verbs::cm::{
    Connection, ConnectionOptions, DatagramListener, DatagramRequest, Listener, ListenerOptions, Request,
};
use rdma_verbs::verbs::{
    AccessFlags, ConnectionInfo, Context, MemoryRegion, ProtectionDomain, Qkey, QueuePair, QueuePairOptions,
    QueuePairType, SendRequest,
};

use super::echo::{Arrival, Budget, Echo, PORT, ROUTE_HEADER_BYTES};
use super::protocol::{self, HEADER_BYTES, Header, Hello, Kind, MOST_DATA, NOTE_BYTES, Service, Welcome};
use crate::common::{is_interrupted, server_line};

/// A client that is silent for so long is disconnected; clients send a sign of life more often.
const MOST_SILENCE: Duration = Duration::from_secs(60);
/// How long a client may take to confirm the connection.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a thread looks whether its client has gone, or the server is to end.
const TICK: Duration = Duration::from_millis(200);

/// The server's settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) bind: Option<IpAddr>,
    pub(super) port: u16,
    /// Echoes a second that each connection may have, and all datagrams of a device together.
    pub(super) rate: u32,
    /// Clients at a time, with a connection each.
    pub(super) clients: u32,
}

impl Settings {
    fn interval(self) -> Duration {
        Duration::from_secs(1) / self.rate
    }
}

/// Serves until the process is interrupted.
pub(super) fn run(settings: Settings) -> io::Result<ExitCode> {
    let (connections, datagrams) = listen(settings).map_err(io::Error::other)?;
    let at = connections.local_addr();
    let Settings { port, rate, .. } = settings;
    let place = if at.ip().is_unspecified() { "all addresses".to_owned() } else { at.ip().to_string() };
    log(format_args!("answering on port {port} of {place}, up to {rate} echoes a second to each client"));
    std::thread::scope(|scope| {
        scope.spawn(|| serve_datagrams(&datagrams, settings));
        serve_connections(&connections, settings);
    });
    Ok(ExitCode::SUCCESS)
}

/// Listens on this address, or on all.
fn listen(settings: Settings) -> Result<(Listener, DatagramListener), String> {
    let Settings { bind, port, .. } = settings;
    let addresses = match bind {
        Some(address) => vec![address],
        None => vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
    };
    let mut failure = String::new();
    for address in addresses {
        let (address, options) = (SocketAddr::new(address, port), ListenerOptions::new());
        match options.bind(address).and_then(|listener| Ok((listener, options.bind_datagrams(address)?))) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => failure = format!("cannot listen on port {port} of {}: {error}", address.ip()),
        }
    }
    Err(failure)
}

/// One of the places for clients, until it is dropped.
struct Place(Arc<AtomicU32>);

impl Place {
    fn take(clients: &Arc<AtomicU32>, most: u32) -> Option<Self> {
        let taken =
            clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < most).then_some(count + 1));
        taken.is_ok().then(|| Self(clients.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve_connections(listener: &Listener, settings: Settings) {
    let clients = Arc::new(AtomicU32::new(0));
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !is_interrupted() {
        threads.retain(|thread| !thread.is_finished());
        let request = match listener.accept_within(TICK) {
            Ok(Some(request)) => request,
            Ok(None) => continue,
            Err(error) => {
                log(format_args!("{error}"));
                std::thread::sleep(TICK);
                continue;
            }
        };
        let Some(place) = Place::take(&clients, settings.clients) else {
            refuse(request, &format!("it has {} clients, and takes no more", settings.clients));
            continue;
        };
        let thread = std::thread::Builder::new().name("ping client".to_owned()).spawn(move || {
            let _place = place;
            let peer = request.peer_addr().ip();
            match serve_client(request, settings) {
                Ok(text) => log(format_args!("{peer}: {text}")),
                Err(error) => log(format_args!("{peer}: {error}")),
            }
        });
        // Without a thread, the closure is dropped: that rejects the request.
        threads.extend(thread);
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// A refusal that does not reach the client is none that this end can mend.
fn refuse(request: Request, why: &str) {
    let _ = request.reject(&protocol::refusal(why));
}

/// A client: its request and its queue pairs.
struct Client {
    hello: Hello,
    pd: ProtectionDomain,
    echo: Echo,
    /// The memory that the client reads, or the address that was sent to it.
    memory: Option<MemoryRegion>,
}

impl Client {
    fn new(context: &Context, hello: Hello, settings: Settings) -> Result<Self, String> {
        let pd = context.alloc_pd().map_err(|error| error.to_string())?;
        let mut echo = Echo::new(context, Budget::new(settings.interval()))?;
        // Messages of an unreliable connection have places of their own, and those of READs need none.
        let is_echoed = hello.service == Service::Rc && !hello.is_one_sided;
        let bytes = if is_echoed { hello.bytes.max(NOTE_BYTES) } else { NOTE_BYTES };
        echo.add(&pd, QueuePairOptions::default(), bytes)?;
        let mut client = Self { hello, pd, echo, memory: None };
        if hello.is_one_sided {
            client.memory = Some(client.readable().map_err(|error| error.to_string())?);
        }
        client.echo.lanes[0].qp.init().map_err(|error| error.to_string())?;
        client.echo.fill()?;
        Ok(client)
    }

    /// Returns memory with what an echo contains.
    fn readable(&self) -> rdma_verbs::verbs::Result<MemoryRegion> {
        let region = self.pd.alloc_mr(self.hello.bytes, AccessFlags::REMOTE_READ)?;
        let header = Header { kind: Kind::Echo, sequence: 0, run: 0 };
        region.write_at(0, &header.encode())?;
        region.write_at(HEADER_BYTES, &protocol::pattern(self.hello.bytes - HEADER_BYTES))?;
        Ok(region)
    }

    /// Connects the unreliable connection to a client's, and tells it the address of this end.
    fn connect_unreliable(&mut self, note: &[u8], client: IpAddr) -> Result<(), String> {
        let text = |error: rdma_verbs::verbs::Error| error.to_string();
        if self.hello.service != Service::Uc || self.echo.lanes.len() > 1 {
            return Err("an address that was not asked for".to_owned());
        }
        let peer = ConnectionInfo::from_bytes(note).map_err(text)?;
        // A client must not direct packets to another host.
        if peer.gid.to_ip() != client {
            return Err(format!("its queue pair is at {}, its connection comes from {client}", peer.gid.to_ip()));
        }
        let local = self.echo.lanes[0].qp.query().map_err(text)?.attributes.ah_attr.ok_or("no address")?;
        let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableConnection);
        self.echo.add(&self.pd, options.gid_index(local.sgid_index), self.hello.bytes)?;
        let qp = &self.echo.lanes[1].qp;
        let info = qp.connection_info().map_err(text)?;
        qp.init().map_err(text)?;
        self.echo.fill()?;
        qp.connect(&peer).map_err(text)?;
        let mut message = Header { kind: Kind::Address, sequence: 0, run: 0 }.encode().to_vec();
        message.extend(info.to_bytes());
        // The completion is not awaited: the client's next message, or its end, shows whether it arrived.
        let region = self.pd.alloc_mr(message.len(), AccessFlags::empty()).map_err(text)?;
        region.write_at(0, &message).map_err(text)?;
        self.echo.lanes[0].qp.post_send(&[SendRequest::send(&region)]).map_err(text)?;
        self.memory = Some(region);
        Ok(())
    }
}

/// Serves one client until it disconnects. Returns what it has done, in words.
fn serve_client(request: Request, settings: Settings) -> Result<String, String> {
    let hello = match Hello::decode(request.private_data()) {
        Ok(hello) if hello.service != Service::Ud => hello,
        Ok(_) => return refused(request, "datagrams have no connection"),
        Err(why) => return refused(request, &why),
    };
    let peer = request.peer_addr().ip();
    let mut client = match Client::new(request.context(), hello, settings) {
        Ok(client) => client,
        Err(why) => return refused(request, &why),
    };
    let memory = client.memory.as_ref().map(MemoryRegion::remote);
    let welcome = Welcome { interval: settings.interval(), memory };
    let options = ConnectionOptions::new().private_data(&welcome.encode()).deadline(HANDSHAKE);
    let connection =
        request.accept(&*client.echo.lanes[0].qp, &options).map_err(|error| format!("no connection: {error}"))?;
    let served = serve_messages(&mut client, &connection, peer);
    let disconnected = connection.disconnect(&*client.echo.lanes[0].qp);
    served?;
    disconnected.map_err(|error| error.to_string())?;
    Ok(match hello.is_one_sided {
        true => "its READs have ended".to_owned(),
        false => format!("{} echoes over {}", client.echo.returned, hello.service.name()),
    })
}

fn refused(request: Request, why: &str) -> Result<String, String> {
    refuse(request, why);
    Err(format!("refused: {why}"))
}

fn serve_messages(client: &mut Client, connection: &Connection, peer: IpAddr) -> Result<(), String> {
    let has_ended =
        || connection.wait_disconnected(Duration::ZERO).map(|ended| ended || is_interrupted()).unwrap_or(true);
    let mut heard = Instant::now();
    while !has_ended() {
        match client.echo.serve_one(Instant::now() + TICK) {
            // The end of the connection, which the client's device may tell before the connection manager.
            Err(_) if has_ended() => break,
            Err(error) => return Err(error),
            Ok(None) if heard.elapsed() > MOST_SILENCE => return Err(format!("silent for {MOST_SILENCE:?}")),
            Ok(None) => {}
            Ok(Some(arrival)) => {
                heard = Instant::now();
                if let Arrival::Address(note) = arrival {
                    client.connect_unreliable(&note, peer)?;
                }
            }
        }
    }
    Ok(())
}

/// The datagram queue pair of a device, and the thread that serves it.
struct Datagrams {
    qp: Arc<QueuePair>,
    qkey: Qkey,
    /// Length of the longest datagram.
    longest: usize,
    thread: JoinHandle<()>,
}

impl Datagrams {
    fn start(context: &Context, settings: Settings) -> Result<Self, String> {
        let text = |error: rdma_verbs::verbs::Error| error.to_string();
        let pd = context.alloc_pd().map_err(text)?;
        let mtu = context.query_port(PORT).map_err(text)?.active_mtu.bytes() as usize;
        let longest = mtu.min(HEADER_BYTES + MOST_DATA);
        // Only those who asked can send to it. The highest bit would mean the sender's own Q_Key.
        let qkey = Qkey(rand::random::<u32>() >> 1);
        let mut echo = Echo::new(context, Budget::new(settings.interval()))?;
        let options = QueuePairOptions::default().qp_type(QueuePairType::UnreliableDatagram).qkey(qkey);
        echo.add(&pd, options, ROUTE_HEADER_BYTES + longest)?;
        let qp = echo.lanes[0].qp.clone();
        qp.bring_up_ud().map_err(text)?;
        echo.fill()?;
        let thread = std::thread::Builder::new().name("ping datagrams".to_owned());
        let thread = thread.spawn(move || return_datagrams(echo)).map_err(|error| error.to_string())?;
        Ok(Self { qp, qkey, longest, thread })
    }
}

fn return_datagrams(mut echo: Echo) {
    while !is_interrupted() {
        if let Err(error) = echo.serve_one(Instant::now() + TICK) {
            log(format_args!("datagrams: {error}"));
            return;
        }
    }
    log(format_args!("{} datagrams returned, {} dropped beyond the rate", echo.returned, echo.dropped));
}

fn serve_datagrams(listener: &DatagramListener, settings: Settings) {
    // One entry for each device that the listener has.
    let mut services: HashMap<String, Datagrams> = HashMap::new();
    while !is_interrupted() {
        services.retain(|_, service| !service.thread.is_finished());
        match listener.accept_within(TICK) {
            Ok(Some(request)) => admit(request, &mut services, settings),
            Ok(None) => {}
            Err(error) => {
                log(format_args!("{error}"));
                std::thread::sleep(TICK);
            }
        }
    }
    for (_, service) in services {
        let _ = service.thread.join();
    }
}

/// Tells a client the datagram queue pair of its device, which is created for the first one.
fn admit(request: DatagramRequest, services: &mut HashMap<String, Datagrams>, settings: Settings) {
    let peer = request.peer_addr().ip();
    let name = request.context().name().to_owned();
    let asked = Hello::decode(request.private_data()).and_then(|hello| {
        if hello.service != Service::Ud {
            return Err(format!("{} needs a connection", hello.service.name()));
        }
        if !services.contains_key(&name) {
            services.insert(name.clone(), Datagrams::start(request.context(), settings)?);
        }
        let service = &services[&name];
        if hello.bytes > service.longest {
            return Err(format!("{} bytes, and a datagram of this host has up to {}", hello.bytes, service.longest));
        }
        Ok(service)
    });
    let welcome = Welcome { interval: settings.interval(), memory: None };
    let done = match asked {
        Ok(service) => request.accept(&service.qp, service.qkey, &welcome.encode()).map(|()| {
            log(format_args!("{peer}: datagrams to queue pair {}", service.qp.qpn()));
        }),
        Err(why) => {
            log(format_args!("{peer}: refused: {why}"));
            request.reject(&protocol::refusal(&why))
        }
    };
    if let Err(error) = done {
        log(format_args!("{peer}: {error}"));
    }
}

/// Prints a line about a client, or about this server.
fn log(text: fmt::Arguments<'_>) {
    server_line("ping", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded() {
        let clients = Arc::new(AtomicU32::new(0));
        let mut taken: Vec<Place> = (0..3).map(|_| Place::take(&clients, 3).unwrap()).collect();
        assert!(Place::take(&clients, 3).is_none());
        taken.pop();
        assert!(Place::take(&clients, 3).is_some());
    }

    /// A queue pair at another host would receive what the client sends.
    #[test]
    fn unreliable_connections_to_other_hosts_are_refused() {
        let settings = Settings { bind: None, port: 1, rate: 1000, clients: 1 };
        let context = rdma_verbs::verbs::open("soft:127.91.2.1").unwrap();
        let hello = |service| Hello { service, is_one_sided: false, bytes: 72 };
        let mut client = Client::new(&context, hello(Service::Uc), settings).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16).unwrap();
        let note = pd.create_qp(&cq, &cq).unwrap().connection_info().unwrap().to_bytes();
        let error = client.connect_unreliable(&note, [127, 91, 2, 2].into()).unwrap_err();
        assert!(error.contains("127.91.2.1") && error.contains("127.91.2.2"), "{error}");
        let mut client = Client::new(&context, hello(Service::Rc), settings).unwrap();
        assert!(client.connect_unreliable(&note, [127, 91, 2, 1].into()).is_err());
    }
}
