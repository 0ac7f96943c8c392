//! `doctor --serve`: answers the checks of other hosts.
//!
//! It is open to all hosts that reach its port, so everything has a bound: the number of clients and their time, the
//! datagrams of each, and the size of what it returns. It makes no connection to an address other than the client's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rdma_verbs::verbs::{ConnectionInfo, RemoteMemory, SharedMemory};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::probe;
use super::protocol::{Channel, Message, TOKEN_BYTES, Token};
use super::traffic_class;
use super::transfer::{self, End};
use crate::common::server_line;

/// IPv4 and UDP headers; longer ones of IPv6 make a send fail.
const HEADER_BYTES: usize = 28;
const MAX_CLIENTS: usize = 8;
/// Time of a client, from its connection on.
const CLIENT_TIME: Duration = Duration::from_secs(60);
/// Datagrams that are returned to a client: those of the loss check, and some of each size.
const MAX_ECHOES: usize = 1000;
/// How often the thread that returns datagrams looks whether its client has gone.
const ECHO_TICK: Duration = Duration::from_millis(200);
/// Pause after a failed accept, for instance while no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process is interrupted.
pub(super) fn run(bind: Option<IpAddr>, port: u16) -> io::Result<usize> {
    let listener = listen(bind, port).map_err(|error| io::Error::new(error.kind(), refusal(port, &error)))?;
    server_line(
        "doctor",
        format_args!("answering on TCP and UDP port {port}; on the other host: rdma-verbs doctor HOST --port {port}"),
    );
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, peer)) = listener.accept() else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let place = Place::take(&clients);
        let Some(place) = place else { continue };
        // Without a thread, the closure is dropped, and with it the connection and the place.
        let _ = std::thread::Builder::new().name("doctor client".to_owned()).spawn(move || {
            let _place = place;
            let address = peer.ip().to_canonical();
            match client(stream, port) {
                Ok(()) => server_line("doctor", format_args!("{address}: done")),
                Err(error) => server_line("doctor", format_args!("{address}: {error}")),
            }
        });
    }
}

fn refusal(port: u16, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "; it may run already, or choose another port with --port",
        io::ErrorKind::AddrNotAvailable => "; --bind needs an address of this machine",
        _ => "",
    };
    format!("cannot listen on TCP port {port}: {error}{hint}")
}

/// Listens on this address, or on all.
fn listen(bind: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    match bind {
        Some(address) => TcpListener::bind((address, port)),
        None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
    }
}

/// One of the places for clients, until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Self> {
        let taken = clients
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < MAX_CLIENTS).then_some(count + 1));
        taken.is_ok().then(|| Self(clients.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves one client until it closes its connection.
fn client(stream: TcpStream, port: u16) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let (local, peer) = (stream.local_addr().map_err(text)?, stream.peer_addr().map_err(text)?);
    let (local, peer) = (canonical(local), canonical(peer));
    let mut channel = Channel::new(stream, CLIENT_TIME).map_err(text)?;
    let (mut echo, mut is_connected) = (None, false);
    let mut end: Option<(End, RemoteMemory)> = None;
    while let Some(message) = channel.receive()? {
        let response = match message {
            // Once for each client, so that its threads and devices are bounded.
            Message::Hello(..) if echo.is_some() => Err("a second HELLO".to_owned()),
            Message::Connect(_) if is_connected => Err("a second queue pair".to_owned()),
            Message::Hello(udp_port, token) => {
                let peer = SocketAddr::new(peer.ip(), udp_port);
                start_echo(with_port(local, port), peer, token).map(|started| {
                    echo = Some(started);
                    Message::Hello(port, token)
                })
            }
            Message::Connect(remote) => {
                is_connected = true;
                connect(local.ip(), peer.ip(), &remote.0).map(|(own, address)| {
                    end = Some((own, remote.1));
                    Message::Connect(Box::new(address))
                })
            }
            Message::Finish => {
                end.take().ok_or_else(|| "there is no queue pair".to_owned()).and_then(|(own, memory)| {
                    own.receive()?;
                    own.send(memory)?;
                    Ok(Message::Finish)
                })
            }
            Message::State(..) => {
                end.as_ref().map(|(own, _)| own.state()).ok_or_else(|| "there is no queue pair".to_owned())
            }
            Message::Failed(reason) => return Err(reason),
        };
        channel.send(&response.unwrap_or_else(Message::Failed))?;
    }
    drop(echo);
    Ok(())
}

/// Returns the address with IPv4 in its own form.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(short) => SocketAddr::new(short.into(), address.port()),
        // Keeps the scope.
        IpAddr::V6(_) => address,
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Opens a device on this address, and a queue pair that expects the client's requests.
fn connect(
    local: IpAddr,
    client: IpAddr,
    peer: &ConnectionInfo,
) -> Result<(End, (ConnectionInfo, RemoteMemory)), String> {
    // A client must not direct packets to another host.
    let gid = peer.gid.to_ip();
    if gid != client {
        return Err(format!("the queue pair is at {gid}, the TCP connection comes from {client}: NAT on the way?"));
    }
    let context = transfer::open(&format!("soft:{local}"), SharedMemory::Off).map_err(|error| error.to_string())?;
    let prepared = End::new(&context).and_then(|end| {
        let address = end.address()?;
        end.connect(peer)?;
        Ok((end, address))
    });
    prepared.map_err(|error| error.to_string())
}

/// The thread that returns a client's datagrams; it ends when this is dropped.
struct EchoThread(Arc<AtomicBool>);

impl Drop for EchoThread {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn start_echo(local: SocketAddr, peer: SocketAddr, token: Token) -> Result<EchoThread, String> {
    let socket = echo_socket(local, peer).map_err(|error| format!("UDP port {}: {error}", local.port()))?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = has_ended.clone();
    let thread = std::thread::Builder::new().name("doctor echo".to_owned());
    thread.spawn(move || return_datagrams(&socket, token, &ended)).map_err(|error| error.to_string())?;
    Ok(EchoThread(has_ended))
}

/// Opens a socket for one client's datagrams alone: the kernel sorts them by the client's address.
fn echo_socket(local: SocketAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(local))?;
    socket.connect(&SockAddr::from(peer))?;
    let socket = UdpSocket::from(socket);
    probe::forbid_fragments(&socket)?;
    traffic_class::observe(&socket)?;
    socket.set_read_timeout(Some(ECHO_TICK))?;
    Ok(socket)
}

fn return_datagrams(socket: &UdpSocket, token: Token, has_ended: &AtomicBool) {
    let mut datagram = vec![0; 1 << 16];
    let mut returned = 0;
    while returned < MAX_ECHOES && !has_ended.load(Ordering::Relaxed) {
        // Time-outs, and ICMP messages about datagrams that were returned.
        let Ok((bytes, class)) = traffic_class::receive(socket, &mut datagram) else { continue };
        if bytes >= TOKEN_BYTES && datagram[..TOKEN_BYTES] == token {
            returned += 1;
            // Fragments would return although packets of this size do not.
            if probe::path_mtu(socket).is_ok_and(|mtu| bytes + HEADER_BYTES > mtu) {
                continue;
            }
            // A datagram that cannot be returned is a finding of the client.
            let datagram = &mut datagram[..bytes];
            let _ = match traffic_class::note(datagram, class) {
                Some(wanted) => traffic_class::send(socket, datagram, wanted),
                None => socket.send(datagram),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use rdma_verbs::verbs::{Mtu, Psn, Qpn};

    use super::*;

    #[test]
    fn places_are_bounded() {
        let clients = Arc::new(AtomicUsize::new(0));
        let mut taken: Vec<Place> = (0..MAX_CLIENTS).map(|_| Place::take(&clients).unwrap()).collect();
        assert!(Place::take(&clients).is_none());
        taken.pop();
        assert!(Place::take(&clients).is_some());
    }

    #[test]
    fn queue_pairs_of_other_hosts_are_refused() {
        let (local, client, other) = ([127, 91, 0, 3].into(), [127, 91, 0, 4].into(), [192, 0, 2, 1].into());
        let peer =
            |address: IpAddr| ConnectionInfo::standard_peer(Qpn::new(17), Psn::new(5), address.into(), Mtu::Mtu1024);
        let error = connect(local, client, &peer(other)).err().unwrap();
        assert!(error.contains("192.0.2.1"), "{error}");
        assert!(connect(local, client, &peer(client)).is_ok());
    }

    #[test]
    fn datagrams_without_the_token_are_not_returned() {
        let client = UdpSocket::bind("127.91.0.2:0").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let token = *b"a token!";
        let echo = echo_socket("127.91.0.2:0".parse().unwrap(), client.local_addr().unwrap()).unwrap();
        client.connect(echo.local_addr().unwrap()).unwrap();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| return_datagrams(&echo, token, &has_ended));
            client.send(b"no token, and long enough").unwrap();
            client.send(b"short").unwrap();
            client.send(b"a token! and more").unwrap();
            let mut datagram = [0; 64];
            let first = client.recv(&mut datagram);
            let second = client.recv(&mut [0; 64]);
            has_ended.store(true, Ordering::Relaxed);
            assert_eq!(&datagram[..first.unwrap()], b"a token! and more");
            assert!(second.is_err());
        });
    }
}
