//! Ping-pong of raw UDP datagrams without acknowledgements.
//!
//! The sockets are unconnected, like those of a transport with many peers; `recv` is called directly, without a
//! preceding epoll, and without requesting the sender's address.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Measured, PATIENCE, Role, Rounds, Wait, WaitGuard, any_port, exchange_port, synchronize};

/// Length of the largest IPv4 datagram.
pub(crate) const MOST_BYTES: usize = 65_507;
/// Interval at which the sleeping thread of [`Wait::HandOver`] checks whether to end.
const STOP_WITHIN: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DatagramLatency {
    pub(crate) size: usize,
    pub(crate) wait: Wait,
    pub(crate) iterations: u64,
    pub(crate) warm_up: u64,
}

impl DatagramLatency {
    pub(super) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        if self.size > MOST_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidInput, format!("a datagram has at most {MOST_BYTES} bytes")));
        }
        let socket = UdpSocket::bind(any_port(stream)?)?;
        let peer = exchange_port(stream, socket.local_addr()?.port())?;
        match self.wait {
            Wait::Spin => self.play(&mut Polling::new(socket, self.size, std::hint::spin_loop)?, peer, role, stream),
            Wait::Yield => self.play(&mut Polling::new(socket, self.size, std::thread::yield_now)?, peer, role, stream),
            Wait::Block => self.play(&mut Blocking::new(socket, self.size)?, peer, role, stream),
            Wait::HandOver => self.hand_over(socket, peer, role, stream),
        }
    }

    fn play(&self, end: &mut impl End, peer: SocketAddr, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        let message = vec![7; self.size];
        synchronize(stream)?;
        let rounds = Rounds { size: self.size, iterations: self.iterations, warm_up: self.warm_up };
        rounds.play(role, || match role {
            Role::Client => end.send(&message, peer).and_then(|()| end.receive()),
            Role::Server => end.receive().and_then(|()| end.send(&message, peer)),
        })
    }

    fn hand_over(
        &self,
        socket: UdpSocket,
        peer: SocketAddr,
        role: Role,
        stream: &mut TcpStream,
    ) -> io::Result<Measured> {
        socket.set_read_timeout(Some(STOP_WITHIN))?;
        let (arrived, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| hear_until(&socket, self.size, &arrived, &stop));
            let mut end = Spinning { socket: &socket, arrived: &arrived, taken: 0 };
            let measured = self.play(&mut end, peer, role, stream);
            stop.store(true, Ordering::Relaxed);
            sleeper.join().map_err(|_| io::Error::other("the receiving thread panicked"))??;
            measured
        })
    }
}

/// One end of the ping-pong.
trait End {
    fn send(&mut self, message: &[u8], peer: SocketAddr) -> io::Result<()>;
    fn receive(&mut self) -> io::Result<()>;
}

/// Calls `pause` between two polls.
struct Polling<P> {
    socket: UdpSocket,
    buffer: Vec<u8>,
    pause: P,
}

impl<P: Fn()> Polling<P> {
    fn new(socket: UdpSocket, size: usize, pause: P) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, buffer: vec![0; size.max(1)], pause })
    }
}

impl<P: Fn()> End for Polling<P> {
    #[inline]
    fn send(&mut self, message: &[u8], peer: SocketAddr) -> io::Result<()> {
        self.socket.send_to(message, peer).map(drop)
    }

    #[inline]
    fn receive(&mut self) -> io::Result<()> {
        let mut guard = WaitGuard::default();
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    guard.note_empty_poll()?;
                    (self.pause)();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sleeps in the kernel.
struct Blocking {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Blocking {
    fn new(socket: UdpSocket, size: usize) -> io::Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, buffer: vec![0; size.max(1)] })
    }
}

impl End for Blocking {
    fn send(&mut self, message: &[u8], peer: SocketAddr) -> io::Result<()> {
        self.socket.send_to(message, peer).map(drop)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.socket.recv(&mut self.buffer).map(drop)
    }
}

/// Polls only memory, which another thread changes when a datagram arrives.
struct Spinning<'a> {
    socket: &'a UdpSocket,
    arrived: &'a AtomicU64,
    taken: u64,
}

impl End for Spinning<'_> {
    fn send(&mut self, message: &[u8], peer: SocketAddr) -> io::Result<()> {
        self.socket.send_to(message, peer).map(drop)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.taken += 1;
        let mut guard = WaitGuard::default();
        while self.arrived.load(Ordering::Acquire) < self.taken {
            guard.note_unchanged()?;
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Counts arriving datagrams until `stop` is set.
fn hear_until(socket: &UdpSocket, size: usize, arrived: &AtomicU64, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; size.max(1)];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(_) => {
                arrived.fetch_add(1, Ordering::Release);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
