//! The control channel of the two processes over TCP: JSON values, each preceded by its length.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{Domain, Socket, Type};

use super::machine::is_interrupted;
use super::outcome::{Failure, Outcome};

/// Maximum length of a value: the addresses of some thousand queue pairs.
const MOST_BYTES: usize = 16 << 20;
/// How long a client tries to reach a server that does not listen yet.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a process may report an error or exit by itself after its peer is gone.
const EXIT_GRACE: Duration = Duration::from_millis(300);
/// Interval of checks for Ctrl-C while nothing happens.
const PAUSE: Duration = Duration::from_millis(50);

/// The connection to the other process.
pub(crate) struct Channel {
    stream: TcpStream,
}

impl Channel {
    /// Makes a channel over a stream.
    pub(crate) fn over(stream: TcpStream) -> Outcome<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        // Every wait for the peer checks for Ctrl-C.
        stream.set_read_timeout(Some(PAUSE))?;
        Ok(Self { stream })
    }

    /// Connects to a process that listens, or will do so soon.
    pub(crate) fn connect(host: &str, port: u16) -> Outcome<Self> {
        let failed = |error| Failure::Failed(format!("cannot connect to {host}:{port}: {error}"));
        let start = Instant::now();
        loop {
            match TcpStream::connect((host, port)) {
                Ok(stream) => return Self::over(stream),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && start.elapsed() < CONNECT_WITHIN => {
                    pause()?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Connects to the process that started this one. Over a cable that is gone with that process, nothing refuses the
    /// connection.
    pub(crate) fn join(address: SocketAddr) -> Outcome<Self> {
        Self::over(TcpStream::connect_timeout(&address, CONNECT_WITHIN)?)
    }

    /// Waits for another process to connect, until `may_wait` fails.
    pub(crate) fn accept(listener: &TcpListener, mut may_wait: impl FnMut() -> Outcome) -> Outcome<Self> {
        listener.set_nonblocking(true)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::over(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    may_wait()?;
                    pause()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends this process as soon as the process that started it is gone. A thread sleeps until then.
    pub(crate) fn end_with_peer(&self) -> Outcome {
        let stream = self.stream.try_clone()?;
        std::thread::spawn(move || {
            let hang_up = PollFlags::from_bits_retain(POLLRDHUP);
            let mut polled = [PollFd::new(stream.as_fd(), hang_up)];
            // A signal does not mean that the peer is gone.
            while poll(&mut polled, PollTimeout::NONE).is_err() {}
            std::thread::sleep(EXIT_GRACE);
            std::process::exit(1);
        });
        Ok(())
    }

    pub(crate) fn peer(&self) -> Outcome<SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }

    pub(crate) fn send<T: Serialize>(&mut self, value: &T) -> Outcome {
        let text = serde_json::to_vec(value).map_err(|error| format!("cannot be serialized: {error}"))?;
        let mut message = (text.len() as u32).to_be_bytes().to_vec();
        message.extend(text);
        self.stream.write_all(&message).map_err(|_| Failure::PeerLeft)
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(format!("the peer sent a message of {length} bytes; is it rdma-verbs perf?").into());
        }
        let mut text = vec![0; length];
        self.read(&mut text)?;
        serde_json::from_slice(&text)
            .map_err(|error| format!("the peer sent an unexpected message: {error}; is it the same version?").into())
    }

    /// Sends a value to the other process and receives one.
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(&mut self, value: &T) -> Outcome<T> {
        self.send(value)?;
        self.receive()
    }

    /// Waits until the other process calls this function, too.
    pub(crate) fn synchronize(&mut self) -> Outcome {
        self.exchange(&()).map(drop)
    }

    /// Returns whether a value from the other process is waiting; an error if the process is gone.
    pub(crate) fn has_message(&self) -> Outcome<bool> {
        self.stream.set_nonblocking(true)?;
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match seen {
            Ok(0) => Err(Failure::PeerLeft),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(Failure::PeerLeft),
        }
    }

    /// Lends the stream to reference programs, which have their own protocol. Their waits do not check for Ctrl-C.
    pub(crate) fn lend<T>(&mut self, use_it: impl FnOnce(&mut TcpStream) -> std::io::Result<T>) -> Outcome<T> {
        self.stream.set_read_timeout(Some(CONNECT_WITHIN * 3))?;
        let result = use_it(&mut self.stream);
        self.stream.set_read_timeout(Some(PAUSE))?;
        Ok(result?)
    }

    /// Closes the channel; the other process sees its end.
    pub(crate) fn close(&self) {
        // Fails only if the other process is gone.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn read(&mut self, mut out: &mut [u8]) -> Outcome {
        while !out.is_empty() {
            match self.stream.read(out) {
                Ok(0) => return Err(Failure::PeerLeft),
                Ok(count) => out = &mut out[count..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    check_interrupted()?;
                }
                Err(_) => return Err(Failure::PeerLeft),
            }
        }
        Ok(())
    }
}

pub(crate) fn check_interrupted() -> Outcome {
    if is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
}

fn pause() -> Outcome {
    std::thread::sleep(PAUSE);
    check_interrupted()
}

/// Listens for both IP versions where the system has both.
pub(crate) fn listen(port: u16) -> Outcome<TcpListener> {
    let both = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port)).into())?;
        socket.listen(8)?;
        Ok::<_, std::io::Error>(socket.into())
    };
    let listener = both().or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    listener.map_err(|error| format!("cannot listen on port {port}: {error}").into())
}
