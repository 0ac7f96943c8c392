//! Datagrams that the server returns: which sizes come back, how many, and how soon.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::protocol::{TOKEN_BYTES, Token};
use super::traffic_class::{self, Passage};
use super::{path, system};

/// Datagrams of the loss check.
pub(super) const COUNT: usize = 200;
const SMALL_BYTES: usize = 64;
/// Pause between two of them: together they are no burst that fills a buffer.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a datagram may take to come back.
const WAIT: Duration = Duration::from_millis(300);
/// How long the last ones of the loss check may take.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Attempts for each size, because a datagram may be lost by chance.
const ATTEMPTS: usize = 4;
const NUMBER_BYTES: usize = 4;

/// Makes a socket send unfragmented packets only. Over IPv4, the kernel does so by default for packets up to its MTU of
/// the path, so longer ones must not be sent.
pub(super) fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    match socket.local_addr()? {
        SocketAddr::V4(_) => Ok(()),
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6DontFrag, &true).map_err(io::Error::from),
    }
}

/// Returns the kernel's MTU of the path to the address that the socket is connected to: the interface's, or less if a
/// router has reported it. Over IPv6, the interface's.
pub(super) fn path_mtu(socket: &UdpSocket) -> io::Result<usize> {
    if socket.peer_addr()?.is_ipv4() {
        return Ok(usize::try_from(getsockopt(socket, sockopt::IpMtu)?).unwrap_or(0));
    }
    let unknown = || io::Error::other("the MTU of the interface cannot be read");
    let interface = path::interface_of(socket.local_addr()?.ip()).ok_or_else(unknown)?;
    let mtu = system::number(format!("/sys/class/net/{interface}/mtu")).ok_or_else(unknown)?;
    Ok(usize::try_from(mtu).unwrap_or(usize::MAX))
}

/// Returns the size of IP and UDP headers.
pub(super) const fn header_bytes(address: &SocketAddr) -> usize {
    if address.is_ipv4() { 28 } else { 48 }
}

/// The fate of a size of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Echo {
    Returned,
    Silence,
    /// The kernel does not send it unfragmented: its MTU of the path is smaller.
    TooLong,
}

/// The datagrams of the loss check.
#[derive(Debug)]
pub(super) struct Losses {
    pub(super) sent: usize,
    pub(super) returned: usize,
    /// Sorted round trips.
    pub(super) round_trips: Vec<Duration>,
}

/// A socket that is connected to the server.
pub(super) struct Prober {
    socket: UdpSocket,
    token: Token,
    next: u32,
}

impl Prober {
    pub(super) fn new(local: SocketAddr, token: Token) -> io::Result<Self> {
        let socket = UdpSocket::bind(local)?;
        forbid_fragments(&socket)?;
        traffic_class::observe(&socket)?;
        Ok(Self { socket, token, next: 0 })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    pub(super) fn connect(&self, server: SocketAddr) -> io::Result<()> {
        self.socket.connect(server)
    }

    pub(super) fn server(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    pub(super) fn path_mtu(&self) -> io::Result<usize> {
        path_mtu(&self.socket)
    }

    /// Sends a datagram of this size, with its number.
    fn send(&mut self, bytes: usize) -> io::Result<u32> {
        let number = self.next;
        self.next += 1;
        let mut datagram = vec![0; bytes.max(TOKEN_BYTES + NUMBER_BYTES)];
        datagram[..TOKEN_BYTES].copy_from_slice(&self.token);
        datagram[TOKEN_BYTES..][..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
        loop {
            match self.socket.send(&datagram) {
                // An ICMP message about an earlier datagram: the send itself did not happen.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                sent => return sent.map(|_| number),
            }
        }
    }

    /// Returns the number and the size of the next datagram that comes back until then.
    fn receive(&self, until: Instant) -> Option<(u32, usize)> {
        let mut datagram = vec![0; 1 << 16];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.socket
                .set_read_timeout(Some(left).filter(|left| !left.is_zero()))
                .ok()
                .filter(|()| !left.is_zero())?;
            let Ok(bytes) = self.socket.recv(&mut datagram) else { continue };
            let number = datagram[..bytes].strip_prefix(&self.token).and_then(|rest| rest.first_chunk());
            if let Some(number) = number {
                return Some((u32::from_be_bytes(*number), bytes));
            }
        }
    }

    /// Sends an IP packet of this size until it comes back, a few times.
    pub(super) fn echo(&mut self, packet_bytes: usize) -> io::Result<Echo> {
        let bytes = packet_bytes.saturating_sub(header_bytes(&self.socket.peer_addr()?));
        for _ in 0..ATTEMPTS {
            // A router may have reported its MTU since.
            if packet_bytes > self.path_mtu()? {
                return Ok(Echo::TooLong);
            }
            match self.send(bytes) {
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => return Ok(Echo::TooLong),
                // A local firewall.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Echo::Silence),
                sent => sent?,
            };
            let until = Instant::now() + WAIT;
            while let Some((_, size)) = self.receive(until) {
                if size >= bytes {
                    return Ok(Echo::Returned);
                }
            }
        }
        Ok(Echo::Silence)
    }

    /// Sends a datagram with this traffic class until it comes back, a few times. Returns what became of the class.
    pub(super) fn traffic_class(&mut self, class: u8) -> io::Result<Option<Passage>> {
        let mut datagram = [0; SMALL_BYTES];
        datagram[..TOKEN_BYTES].copy_from_slice(&self.token);
        traffic_class::request(&mut datagram, class);
        for _ in 0..ATTEMPTS {
            let number = self.next.to_be_bytes();
            self.next += 1;
            datagram[TOKEN_BYTES..][..NUMBER_BYTES].copy_from_slice(&number);
            match traffic_class::send(&self.socket, &datagram, class) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
                // An ICMP message about an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                sent => sent?,
            };
            if let Some(passage) = self.passage(number, Instant::now() + WAIT) {
                return Ok(Some(passage));
            }
        }
        Ok(None)
    }

    /// Waits for the datagram with this number.
    fn passage(&self, number: [u8; NUMBER_BYTES], until: Instant) -> Option<Passage> {
        let mut datagram = [0; SMALL_BYTES];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_read_timeout(Some(left)).ok()?;
            let Ok((bytes, class)) = traffic_class::receive(&self.socket, &mut datagram) else { continue };
            let own = datagram[..bytes].strip_prefix(&self.token);
            if own.is_some_and(|rest| rest.starts_with(&number)) {
                return traffic_class::passage(&mut datagram[..bytes], class);
            }
        }
    }

    /// Sends small datagrams, and counts those that come back.
    pub(super) fn losses(&mut self) -> io::Result<Losses> {
        let first = self.next;
        let mut sent_at = Vec::with_capacity(COUNT);
        let mut round_trips: Vec<Option<Duration>> = vec![None; COUNT];
        for index in 0..=COUNT {
            let is_last = index == COUNT;
            if !is_last {
                sent_at.push(Instant::now());
                self.send(SMALL_BYTES)?;
            }
            let until = Instant::now() + if is_last { LAST_WAIT } else { PAUSE };
            while round_trips.iter().any(Option::is_none) {
                let Some((number, _)) = self.receive(until) else { break };
                let index = number.wrapping_sub(first) as usize;
                if let Some(sent) = sent_at.get(index) {
                    round_trips[index].get_or_insert(sent.elapsed());
                }
            }
        }
        let mut round_trips: Vec<Duration> = round_trips.into_iter().flatten().collect();
        round_trips.sort();
        Ok(Losses { sent: COUNT, returned: round_trips.len(), round_trips })
    }
}
