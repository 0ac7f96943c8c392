//! The shard's UDP sockets and their options.
//!
//! Packets arrive on one socket per address, bound to port 4791. They leave from a small pool of other sockets, because
//! a sending socket needs special properties:
//!
//! - *Not connected, and probing the path MTU*: then the kernel sets the IPv4 identification to 0 (to 0, 1, 2, … within
//!   a segmented send) and "don't fragment", which the ICRC covers. On a connected socket they cannot be predicted.
//! - *With or without UDP checksums*: single packets leave with checksum 0, as adapters and the kernel's transport send
//!   them. Segmentation needs checksums: the kernel refuses it on a socket without. So there are two kinds of sockets.
//! - *One source port per queue pair*: the ICRC covers the port, and networks spread flows by it, so a queue pair that
//!   changed it would reorder its own packets. A queue pair therefore uses sockets of one kind only: with checksums
//!   towards a peer that is known to accept segmented sends, without towards all others.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::engine::share::{Holder, holders, inode, is_kernel_transport_loaded};
use crate::engine::share::{JoinRequest, Membership};
use crate::sys::{
    DEFAULT_HOP_LIMIT, LocalAddress, NotInherited, OpenError, SendOptions, SocketOption, receive, send, set_option,
    set_traffic_class,
};
use crate::types::ROCE_PORT;

/// Sends with the same other traffic class after which it becomes the socket's. The change takes a system call.
const CLASS_SENDS: u32 = 64;
/// Source ports, by the standard's convention.
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Random ports that are tried before giving up.
const PORT_TRIES: u32 = 64;
/// Checks for unknown sockets in the group, and the pause between them. Meanwhile the new socket gets packets of an
/// unknown process that shares the port, so longer checks would end that process's connections.
const FOREIGN_CHECKS: u32 = 20;
const FOREIGN_PAUSE: Duration = Duration::from_millis(5);

/// Requested buffer sizes; the kernel reduces those above its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SocketSizes {
    /// Receive buffer in bytes, as `SO_RCVBUF` takes it.
    pub(crate) receive_bytes: usize,
    /// Send buffer in bytes, as `SO_SNDBUF` takes it.
    pub(crate) send_bytes: usize,
}

/// Header fields that the kernel reports for received packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ReportedFields {
    pub(super) hop_limit: bool,
    pub(super) traffic_class: bool,
}

/// A receive socket on port 4791 of an address.
pub(crate) struct ReceiveSocket {
    pub(super) address: LocalAddress,
    pub(crate) membership: Membership,
    /// Value of the kernel's count of dropped datagrams when it was last seen.
    pub(super) dropped: u32,
}

impl ReceiveSocket {
    /// Opens the socket; it receives the packets for queue pairs of the given blocks.
    pub(crate) fn open(request: JoinRequest<'_>, sizes: &SocketSizes) -> Result<Self, OpenError> {
        let address = request.address;
        let bind = || bind_receiver(address, sizes).map_err(|error| explain_bind_error(address.ip, error));
        let check = |socket: &Socket, known: &dyn Fn() -> Vec<u64>| refuse_foreign_members(address.ip, socket, known);
        let membership = Membership::join(request, bind, check)?;
        Ok(Self { address, membership, dropped: 0 })
    }

    /// Makes the kernel report these header fields of received packets. If it cannot, captures show the default values,
    /// and congestion marks are not detected.
    pub(super) fn report(&self, fields: ReportedFields) {
        let [hop_limit, traffic_class] = match self.address.ip {
            IpAddr::V4(_) => [SocketOption::ReportHopLimit4, SocketOption::ReportTrafficClass4],
            IpAddr::V6(_) => [SocketOption::ReportHopLimit6, SocketOption::ReportTrafficClass6],
        };
        for (option, on) in [(hop_limit, fields.hop_limit), (traffic_class, fields.traffic_class)] {
            if let Err(error) = set_option(self.membership.descriptor(), option, on) {
                tracing::debug!(
                    target: "rdma_verbs::device",
                    ?option, %error, "the kernel does not report a header field of received packets"
                );
            }
        }
    }
}

fn bind_receiver(address: LocalAddress, sizes: &SocketSizes) -> io::Result<Socket> {
    let socket = udp_socket(address.ip)?;
    // The kernel silently reduces a size above its limit.
    socket.set_recv_buffer_size(sizes.receive_bytes)?;
    set_option(socket.as_fd(), SocketOption::ReportOverflow, true)?;
    if address.ip.is_ipv6() {
        set_option(socket.as_fd(), SocketOption::AcceptNoChecksum6, true)?;
    }
    // An old kernel may not merge: then datagrams arrive one by one.
    let _ = set_option(socket.as_fd(), SocketOption::MergeReceived, true);
    socket.set_reuse_port(true)?;
    socket.bind(&address.socket_address(address.ip, ROCE_PORT).into())?;
    Ok(socket)
}

/// Refuses to share the port with a process that the registry does not know: both would lose packets. A process that
/// was just killed may still have its socket for a moment.
fn refuse_foreign_members(address: IpAddr, own: &Socket, known: &dyn Fn() -> Vec<u64>) -> Result<(), OpenError> {
    let Some(own) = inode(own.as_fd()) else { return Ok(()) };
    let mut foreign = Vec::new();
    for _ in 0..FOREIGN_CHECKS {
        foreign = holders(address, ROCE_PORT);
        // Read after the sockets: a member that has joined meanwhile has bound its socket before it wrote its entry.
        let known = known();
        foreign.retain(|holder| holder.address == address && holder.inode != own && !known.contains(&holder.inode));
        if foreign.is_empty() {
            return Ok(());
        }
        std::thread::sleep(FOREIGN_PAUSE);
    }
    Err(port_taken(address, &foreign, io::ErrorKind::AddrInUse.into()))
}

fn explain_bind_error(address: IpAddr, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::AddrInUse => port_taken(address, &holders(address, ROCE_PORT), error),
        io::ErrorKind::AddrNotAvailable => {
            OpenError::new(format_args!("{address} is not an address of this machine (any more)"), error)
        }
        _ => OpenError::new(format_args!("cannot open the receive socket on {address}, port {ROCE_PORT}"), error),
    }
}

/// Builds the error of a taken port: its probable holder, and what to do.
fn port_taken(address: IpAddr, holders: &[Holder], source: io::Error) -> OpenError {
    let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
    let held = if names.is_empty() { "another socket".to_owned() } else { names.join(" and ") };
    let advice = if is_kernel_transport_loaded() {
        "the kernel's own transport is loaded and takes the port on all addresses: unload it (modprobe -r rdma_rxe), \
         or work in another network namespace"
    } else {
        "processes share an address only if they run as the same user, use this library and use the same folder in \
         /dev/shm (a process that cannot use it has logged a warning): stop the other one, or use another address of \
         this machine (on the loopback interface any of 127.0.0.0/8, as in soft:127.0.0.2), or work in another network \
         namespace"
    };
    OpenError::new(format_args!("UDP port {ROCE_PORT} of {address} is held by {held}; {advice}"), source)
}

/// Whether a sending socket's packets carry UDP checksums.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Checksums {
    /// No checksum: single packets only.
    Off,
    /// With checksums: segmented sends, too.
    On,
}

/// A sending socket.
pub(crate) struct SendSocket {
    _not_inherited: NotInherited,
    socket: Socket,
    pub(super) address: LocalAddress,
    pub(crate) port: u16,
    pub(super) checksums: Checksums,
    /// Traffic class of packets that are sent without an explicit one.
    class: u8,
    /// The last other traffic class, and how often it was used since.
    other_class: (u8, u32),
}

impl SendSocket {
    /// Opens a socket on a random port.
    pub(crate) fn open(address: LocalAddress, checksums: Checksums, sizes: &SocketSizes) -> Result<Self, OpenError> {
        let fail = |error| OpenError::new(format_args!("cannot open a send socket on {}", address.ip), error);
        let socket = sender(address.ip, checksums, sizes).map_err(fail)?;
        let width = u32::from(SOURCE_PORTS.end() - SOURCE_PORTS.start()) + 1;
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..PORT_TRIES {
            let random = getrandom::u32().map_err(|error| fail(io::Error::other(error)))?;
            let port = SOURCE_PORTS.start() + (random % width) as u16;
            match socket.bind(&address.socket_address(address.ip, port).into()) {
                Ok(()) => {
                    return Ok(Self {
                        _not_inherited: NotInherited::new(socket.as_fd()),
                        socket,
                        address,
                        port,
                        checksums,
                        class: 0,
                        other_class: (0, 0),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(fail(error)),
            }
        }
        let message = format!("none of {PORT_TRIES} random ports from 49152 on was free on {}", address.ip);
        Err(OpenError::new(message, last))
    }

    /// Sends multicasts through this interface (0: the one of the local address), with the default hop limit.
    pub(super) fn allow_multicast(&self, interface: u32) -> io::Result<()> {
        match self.address.ip {
            // The kernel takes the interface that has the socket's own address.
            IpAddr::V4(_) => self.socket.set_multicast_ttl_v4(DEFAULT_HOP_LIMIT.into()),
            IpAddr::V6(_) => {
                self.socket.set_multicast_hops_v6(DEFAULT_HOP_LIMIT.into())?;
                self.socket.set_multicast_if_v6(interface)
            }
        }
    }

    /// Returns the traffic class option of a send; `None`: the socket's packets have this class. Most sends of a socket
    /// have the same class, and a send without the option costs less.
    #[inline]
    pub(super) fn class_option(&mut self, class: u8) -> Option<u8> {
        if class == self.class { None } else { self.option_for_other_class(class) }
    }

    #[cold]
    fn option_for_other_class(&mut self, class: u8) -> Option<u8> {
        let (other, uses) = self.other_class;
        let uses = if other == class { uses.saturating_add(1) } else { 1 };
        self.other_class = (class, uses);
        if uses % CLASS_SENDS != 0 {
            return Some(class);
        }
        if set_traffic_class(self.descriptor(), self.address.ip.is_ipv6(), class).is_err() {
            return Some(class);
        }
        (self.class, self.other_class) = (class, (self.class, 0));
        None
    }

    /// Returns the socket, for its error queue.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends packets to port 4791 of `destination`.
    #[inline]
    pub(super) fn send(&self, destination: IpAddr, bytes: &[u8], options: SendOptions) -> io::Result<()> {
        let destination = self.address.socket_address(destination, ROCE_PORT);
        send(self.socket.as_fd(), &destination, bytes, options)
    }
}

fn sender(address: IpAddr, checksums: Checksums, sizes: &SocketSizes) -> io::Result<Socket> {
    let socket = udp_socket(address)?;
    socket.set_send_buffer_size(sizes.send_bytes)?;
    let (probe, no_checksum, report) = match address {
        IpAddr::V4(_) => (SocketOption::ProbePathMtu4, SocketOption::NoChecksum4, SocketOption::ReportErrors4),
        IpAddr::V6(_) => (SocketOption::ProbePathMtu6, SocketOption::NoChecksum6, SocketOption::ReportErrors6),
    };
    // Needed for explanations only.
    let _ = set_option(socket.as_fd(), report, true);
    set_option(socket.as_fd(), probe, true)?;
    set_option(socket.as_fd(), no_checksum, checksums == Checksums::Off)?;
    match address {
        IpAddr::V4(_) => socket.set_ttl_v4(DEFAULT_HOP_LIMIT.into())?,
        IpAddr::V6(_) => {
            socket.set_unicast_hops_v6(DEFAULT_HOP_LIMIT.into())?;
            set_option(socket.as_fd(), SocketOption::AutoFlowLabel, false)?;
        }
    }
    Ok(socket)
}

pub(super) fn udp_socket(address: IpAddr) -> io::Result<Socket> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Capabilities of sockets on an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capabilities {
    /// Most datagrams in one segmented send; `None`: segmentation or merging does not work.
    pub(crate) max_segments: Option<usize>,
    /// Capacity of a receive socket in bytes, as the kernel counts.
    pub(crate) receive_buffer_bytes: u32,
}

/// Determines the capabilities by trying. Fails if the address is not one of this machine.
pub(crate) fn probe(address: LocalAddress, sizes: &SocketSizes) -> io::Result<Capabilities> {
    let receiver = udp_socket(address.ip)?;
    receiver.set_recv_buffer_size(sizes.receive_bytes)?;
    receiver.bind(&address.socket_address(address.ip, 0).into())?;
    let receive_buffer_bytes = u32::try_from(receiver.recv_buffer_size()?).unwrap_or(u32::MAX);
    let merges = set_option(receiver.as_fd(), SocketOption::MergeReceived, true).is_ok();
    // Newer kernels accept 128 datagrams per send, older ones 64.
    let max_segments = [128, 64].into_iter().find(|count| merges && segments_work(address, &receiver, *count));
    Ok(Capabilities { max_segments, receive_buffer_bytes })
}

/// Returns whether `count` datagrams sent as one arrive as one.
fn segments_work(address: LocalAddress, receiver: &Socket, count: usize) -> bool {
    const SEGMENT: u16 = 8;
    let attempt = || -> io::Result<bool> {
        let sender = udp_socket(address.ip)?;
        sender.bind(&address.socket_address(address.ip, 0).into())?;
        let port = receiver.local_addr()?.as_socket().map_or(0, |address| address.port());
        let bytes = vec![0; count * usize::from(SEGMENT)];
        let options = SendOptions { segment_size: Some(SEGMENT), ..Default::default() };
        send(sender.as_fd(), &address.socket_address(address.ip, port), &bytes, options)?;
        let mut buffer = vec![0; 65_536];
        // Within one machine a send delivers before it returns.
        let received = receive(receiver.as_fd(), &mut buffer)?;
        Ok(received
            .is_some_and(|received| received.length == bytes.len() && received.segment_size == Some(SEGMENT.into())))
    };
    attempt().unwrap_or(false)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::types::PeerCapabilities;

    const SIZES: SocketSizes = SocketSizes { receive_bytes: 1 << 20, send_bytes: 1 << 20 };

    fn local(address: &str) -> LocalAddress {
        LocalAddress { ip: address.parse().unwrap(), scope: 0 }
    }

    fn request(address: LocalAddress, blocks: &[u32]) -> JoinRequest<'_> {
        JoinRequest { address, blocks, capabilities: PeerCapabilities::STANDARD, recipient: None }
    }

    #[test]
    fn kernel_segments_and_merges_here() {
        let found = probe(local("127.77.2.1"), &SIZES).unwrap();
        assert!(found.max_segments.is_some_and(|count| count >= 64), "{found:?}");
        assert!(found.receive_buffer_bytes >= 200 << 10);
        assert!(probe(local("192.0.2.77"), &SIZES).is_err());
    }

    #[test]
    fn open_waits_for_the_socket_of_an_ending_process() {
        let address = local("127.77.2.6");
        let dying = bind_receiver(address, &SIZES).unwrap();
        let end = std::thread::spawn(move || {
            std::thread::sleep(FOREIGN_PAUSE * 2);
            drop(dying);
        });
        assert!(ReceiveSocket::open(request(address, &[1]), &SIZES).is_ok());
        end.join().unwrap();
    }

    #[test]
    fn taken_port_is_explained() {
        let address = local("127.77.2.2");
        let _other = UdpSocket::bind((address.ip, ROCE_PORT)).unwrap();
        let error = ReceiveSocket::open(request(address, &[1]), &SIZES).err().unwrap();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
        assert!(error.message.contains("4791") && error.message.contains("127.77.2.2"), "{}", error.message);
        assert!(error.message.contains("a process of user"), "{}", error.message);
    }

    #[test]
    fn foreign_member_of_the_group_is_refused() {
        let address = local("127.77.2.3");
        let foreign = udp_socket(address.ip).unwrap();
        foreign.set_reuse_port(true).unwrap();
        foreign.bind(&address.socket_address(address.ip, ROCE_PORT).into()).unwrap();
        let error = ReceiveSocket::open(request(address, &[1]), &SIZES).err().unwrap();
        assert!(error.message.contains("processes share an address only if"), "{}", error.message);
        drop(foreign);
        let first = ReceiveSocket::open(request(address, &[1]), &SIZES).unwrap();
        let second = ReceiveSocket::open(request(address, &[2]), &SIZES).unwrap();
        assert_eq!(first.address, second.address);
    }

    #[test]
    fn only_sockets_with_checksums_send_segments() {
        let (address, options) = (local("127.77.2.4"), SendOptions { segment_size: Some(4), ..Default::default() });
        let plain = SendSocket::open(address, Checksums::Off, &SIZES).unwrap();
        let segmenting = SendSocket::open(address, Checksums::On, &SIZES).unwrap();
        assert!(SOURCE_PORTS.contains(&plain.port) && plain.port != segmenting.port);
        plain.send(address.ip, b"abcd", SendOptions::default()).unwrap();
        assert!(plain.send(address.ip, b"abcdefgh", options).is_err());
        segmenting.send(address.ip, b"abcdefgh", options).unwrap();
    }

    #[test]
    fn frequent_traffic_class_becomes_the_sockets() {
        for address in ["127.77.2.5", "::1"] {
            let address = local(address);
            let mut sender = SendSocket::open(address, Checksums::On, &SIZES).unwrap();
            let receiver = UdpSocket::bind((address.ip, 0)).unwrap();
            let report = match address.ip {
                IpAddr::V4(_) => SocketOption::ReportTrafficClass4,
                IpAddr::V6(_) => SocketOption::ReportTrafficClass6,
            };
            set_option(receiver.as_fd(), report, true).unwrap();
            let mut named = |class: u8| {
                let traffic_class = sender.class_option(class);
                let options = SendOptions { traffic_class, ..Default::default() };
                let (to, mut buffer) = (receiver.local_addr().unwrap(), [0; 8]);
                send(sender.socket.as_fd(), &to, b"abcd", options).unwrap();
                let received = receive(receiver.as_fd(), &mut buffer).unwrap().unwrap();
                assert_eq!(received.traffic_class, Some(class));
                traffic_class.is_some()
            };
            let count = |named: &mut dyn FnMut(u8) -> bool, class| (0..100).filter(|_| named(class)).count();
            assert_eq!([0, 0x2a, 0x2a, 0].map(|class| count(&mut named, class)), [0, 63, 0, 63]);
            assert!((0..100).all(|turn| named(if turn % 2 == 0 { 0 } else { 2 }) == (turn % 2 == 1)), "in turns");
        }
    }

    #[test]
    fn error_names_an_address_of_another_machine() {
        let error = ReceiveSocket::open(request(local("192.0.2.78"), &[1]), &SIZES).err().unwrap();
        assert!(error.message.contains("192.0.2.78 is not an address of this machine"), "{}", error.message);
        assert!(SendSocket::open(local("192.0.2.78"), Checksums::Off, &SIZES).is_err());
    }
}
