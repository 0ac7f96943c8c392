//! The exchange of connection data over TCP.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::connection_info::stream_error;
use super::{ConnectionInfo, Error, ErrorKind, Result};

/// Pause before the next attempt while the peer does not listen yet.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

impl ConnectionInfo {
    /// Connects to a peer that is waiting in [`ConnectionInfo::accept_tcp`] and exchanges connection data with it, all
    /// within `timeout`. It retries while the peer does not listen yet, so the two ends may start in any order.
    ///
    /// Returns the peer's data and the stream, with its timeouts off, for further use by the program.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] after `timeout`; [`ErrorKind::NotFound`] if the host name does not resolve; otherwise,
    /// as for [`ConnectionInfo::exchange`].
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// use std::net::TcpListener;
    /// use std::time::Duration;
    /// use rdma_verbs::verbs::{ConnectionInfo, Mtu, Psn, Qpn};
    ///
    /// # let gid = Ipv4Addr::new(192, 0, 2, 7).into();
    /// # let info = |qpn| ConnectionInfo::standard_peer(Qpn::new(qpn), Psn::new(5), gid, Mtu::Mtu1024);
    /// let (server_info, client_info) = (info(0x11), info(0x22));
    /// let timeout = Duration::from_secs(10);
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let client = std::thread::spawn(move || client_info.connect_tcp(address, timeout).map(|(info, _)| info));
    /// let (heard, _stream) = server_info.accept_tcp(&listener, timeout)?;
    /// assert_eq!((heard, client.join().unwrap()?), (client_info, server_info));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_tcp(&self, address: impl ToSocketAddrs, timeout: Duration) -> Result<(Self, TcpStream)> {
        let deadline = Deadline::after(timeout);
        let addresses: Vec<SocketAddr> = address
            .to_socket_addrs()
            .map_err(|error| {
                let error = io::Error::new(io::ErrorKind::NotFound, error);
                Error::from_io("exchange", "cannot find the peer's address", error)
            })?
            .collect();
        let stream = connect(&addresses, &deadline)?;
        self.exchange_until(stream, &deadline)
    }

    /// Waits for one peer that calls [`ConnectionInfo::connect_tcp`] and exchanges connection data with it, all within
    /// `timeout`.
    ///
    /// Returns the peer's data and the stream, with its timeouts off, for further use by the program. The listener
    /// stays open; other threads must not use it meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] after `timeout`; otherwise, as for [`ConnectionInfo::exchange`].
    pub fn accept_tcp(&self, listener: &TcpListener, timeout: Duration) -> Result<(Self, TcpStream)> {
        let deadline = Deadline::after(timeout);
        let stream = accept(listener, &deadline)?;
        self.exchange_until(stream, &deadline)
    }

    fn exchange_until(&self, stream: TcpStream, deadline: &Deadline) -> Result<(Self, TcpStream)> {
        let remote = self.exchange(&mut Bounded { stream: &stream, deadline })?;
        let untimed = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
        untimed.map_err(|error| stream_error("cannot reset the stream's timeouts", error))?;
        Ok((remote, stream))
    }
}

fn connect(addresses: &[SocketAddr], deadline: &Deadline) -> Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        for address in addresses {
            let Some(left) = deadline.left() else { break };
            match TcpStream::connect_timeout(address, left) {
                // The messages are small, and each waits for a response.
                Ok(stream) => return stream.set_nodelay(true).map(|()| stream).map_err(|e| stream_error("TCP", e)),
                Err(error) => last = error,
            }
        }
        let worth_waiting = last.kind() == io::ErrorKind::ConnectionRefused;
        match deadline.left() {
            Some(left) if worth_waiting => std::thread::sleep(RETRY_PAUSE.min(left)),
            Some(_) => return Err(Error::from_io("exchange", "cannot connect to the peer", last)),
            None => {
                let message = format!("cannot connect to the peer within {:?}: {last}", deadline.timeout);
                return Err(Error::new("exchange", ErrorKind::TimedOut, message));
            }
        }
    }
}

fn accept(listener: &TcpListener, deadline: &Deadline) -> Result<TcpStream> {
    // On Linux a socket's receive timeout bounds accept too.
    let socket = socket2::SockRef::from(listener);
    let failed = |error| stream_error("cannot wait for a peer", error);
    let before = socket.read_timeout().map_err(failed)?;
    let accepted = loop {
        let Some(left) = deadline.left() else { break Err(io::ErrorKind::TimedOut.into()) };
        socket.set_read_timeout(Some(left)).map_err(failed)?;
        match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && deadline.left().is_some() => {
                // A listener in non-blocking mode.
                std::thread::sleep(RETRY_PAUSE.min(left));
            }
            result => break result,
        }
    };
    socket.set_read_timeout(before).map_err(failed)?;
    let (stream, _) = accepted.map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            Error::new("exchange", ErrorKind::TimedOut, format!("no peer connected within {:?}", deadline.timeout))
        }
        _ => failed(error),
    })?;
    stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).map_err(failed)?;
    Ok(stream)
}

/// A stream whose operations all end by the deadline, so a peer that trickles bytes cannot extend it.
struct Bounded<'a> {
    stream: &'a TcpStream,
    deadline: &'a Deadline,
}

impl io::Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.left().ok_or(io::ErrorKind::TimedOut)?))?;
        self.stream.read(buffer)
    }
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.left().ok_or(io::ErrorKind::TimedOut)?))?;
        self.stream.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A point in time by which an operation must end.
struct Deadline {
    start: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(timeout: Duration) -> Self {
        Self { start: Instant::now(), timeout }
    }

    /// Returns the time left, never zero, or `None` after the deadline.
    fn left(&self) -> Option<Duration> {
        // Sockets round less than a microsecond down to zero, which means forever.
        self.timeout.checked_sub(self.start.elapsed()).filter(|left| *left >= Duration::from_micros(1))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::types::{Mtu, Psn, Qpn};

    fn info() -> ConnectionInfo {
        let gid = std::net::Ipv4Addr::LOCALHOST.into();
        ConnectionInfo::standard_peer(Qpn::new(3), Psn::new(4), gid, Mtu::Mtu1024)
    }

    #[test]
    fn nobody_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = info().accept_tcp(&listener, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = info().connect_tcp(address, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_silent_peer_and_a_trickling_peer_run_into_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _silent = TcpStream::connect(address).unwrap();
        let error = info().accept_tcp(&listener, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);

        let mut trickling = TcpStream::connect(address).unwrap();
        let trickle = std::thread::spawn(move || {
            for byte in info().to_bytes() {
                std::thread::sleep(Duration::from_millis(20));
                if trickling.write_all(&[byte]).is_err() {
                    return;
                }
            }
        });
        let error = info().accept_tcp(&listener, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        trickle.join().unwrap();
    }

    #[test]
    fn another_protocol_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let error = info().accept_tcp(&listener, Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("\"GET \""), "{error}");
    }
}
