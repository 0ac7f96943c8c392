//! Asks the kernel of a silent host whether it is there: a datagram to the RoCE port that is no packet, and a TCP
//! connection to the same number, which no one serves.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rdma_verbs::types::ROCE_PORT;

/// Datagrams that are sent: routers limit the rate of ICMP messages, and packets get lost.
const TRIES: usize = 3;
const WAIT: Duration = Duration::from_millis(300);
/// The kernel gives up a neighbour that does not answer after three seconds.
const TCP_WAIT: Duration = Duration::from_millis(3_500);

/// The state of a host, as its kernel shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Presence {
    /// The host says that nothing receives at the RoCE port.
    PortClosed,
    /// The network says that the host cannot be reached.
    Unreachable,
    /// The host is up, and drops packets to the RoCE port without a word.
    Up,
    /// Nothing at all.
    Silent,
}

/// Begins to find out what is at the address.
pub(super) fn start(local: IpAddr, remote: IpAddr) -> Receiver<Presence> {
    let (sender, receiver) = mpsc::channel();
    // Without a thread there is no result, like that of a silent host.
    let _ = std::thread::Builder::new().name("ping probe".to_owned()).spawn(move || {
        let _ = sender.send(presence(local, remote));
    });
    receiver
}

fn presence(local: IpAddr, remote: IpAddr) -> Presence {
    match datagrams(local, SocketAddr::new(remote, ROCE_PORT)) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Presence::PortClosed,
        Err(error) if is_unreachable(&error) => return Presence::Unreachable,
        Err(_) => {}
    }
    match TcpStream::connect_timeout(&SocketAddr::new(remote, ROCE_PORT), TCP_WAIT) {
        Ok(_) => Presence::Up,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Presence::Up,
        Err(error) if is_unreachable(&error) => Presence::Unreachable,
        Err(_) => Presence::Silent,
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
}

/// Sends empty datagrams, which every RoCE stack drops; the error is what an ICMP message says.
fn datagrams(local: IpAddr, remote: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind((local, 0))?;
    socket.connect(remote)?;
    socket.set_read_timeout(Some(WAIT))?;
    for _ in 0..TRIES {
        socket.send(&[])?;
        match socket.recv(&mut [0; 1]) {
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            other => return other.map(drop),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_closed_and_one_that_is_silent() {
        let (local, remote) = ([127, 91, 1, 1].into(), IpAddr::from([127, 91, 1, 2]));
        assert_eq!(presence(local, remote), Presence::PortClosed);
        let _holder = UdpSocket::bind((remote, ROCE_PORT)).unwrap();
        assert_eq!(presence(local, remote), Presence::Up);
    }
}
