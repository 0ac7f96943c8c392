//! The link: every packet passes it on its way in and out, and it counts them.
//!
//! Captures attach here: [`Link::receive`] reports each datagram that arrives and its outcome, [`Link::send`] each
//! burst of datagrams that leaves.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::inbound::{Batch, Deliver, Delivery};
use super::link_sink::Rings;
use super::memory_links::{MemoryLinks, Placed};
use super::multicast::GroupSocket;
use super::path_errors::PathErrors;
use super::receive_sockets::{ReceiveSockets, Waiting};
use super::udp::{Checksums, ReceiveSocket, ReportedFields, SendSocket};
use crate::engine::capture::{Capture, CaptureSink, Departure};
use crate::engine::share::Route;
use crate::queue::Journal;
use crate::sys::{Clock, DEFAULT_HOP_LIMIT, SendOptions};
use crate::transport::{Datagram, Transmit};
use crate::types::{Counter, Counters, PathError, Time};

/// Longest UDP payload over IPv4, and the longest that the kernel merges or segments.
pub(crate) const MAX_SEND_BYTES: usize = 65_507;
/// Looks at the shared memory for each poll of the sockets while datagrams arrive at both, and while none arrives at
/// the sockets: each poll that finds nothing doubles the number.
const LOOKS_WITHOUT_SOCKETS: std::ops::RangeInclusive<u32> = 8..=64;

/// Outcome of a send.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The kernel accepted it.
    Accepted,
    /// The socket's send buffer is full: try again soon.
    Full,
    /// The kernel refused it. The transport retransmits it if necessary.
    Refused,
}

/// The sockets and the shared memory of a shard.
pub(crate) struct Link {
    sockets: ReceiveSockets,
    /// Whether the kernel reports hop limit and traffic class of received packets, for datagrams.
    reports_headers: bool,
    /// Whether the kernel reports the traffic class, for congestion marks.
    reports_marks: bool,
    senders: Vec<SendSocket>,
    last_sender: usize,
    memory: MemoryLinks,
    /// Looks at the shared memory since the sockets were last polled: they must not starve.
    looks_without_sockets: u32,
    /// Looks after which they are polled.
    most_looks_without_sockets: u32,
    counters: Counters,
    errors: PathErrors,
    sink: CaptureSink,
}

impl Link {
    pub(crate) fn new(clock: Clock, journal: &Arc<Journal>) -> Self {
        Self {
            sockets: ReceiveSockets::new(),
            reports_headers: false,
            reports_marks: false,
            senders: Vec::new(),
            last_sender: 0,
            memory: MemoryLinks::new(journal),
            looks_without_sockets: 0,
            most_looks_without_sockets: *LOOKS_WITHOUT_SOCKETS.start(),
            counters: Counters::default(),
            errors: PathErrors::new(clock, Arc::clone(journal)),
            sink: CaptureSink::default(),
        }
    }

    pub(crate) fn add_receiver(&mut self, socket: ReceiveSocket) {
        let fields = self.reported_fields();
        if fields != ReportedFields::default() {
            socket.report(fields);
        }
        self.sockets.add(socket);
    }

    /// Stops receiving on the addresses, and returns the sockets.
    pub(crate) fn take_receivers(&mut self) -> Vec<ReceiveSocket> {
        self.sockets.take()
    }

    fn reported_fields(&self) -> ReportedFields {
        let headers = self.reports_headers || !self.sink.is_idle();
        ReportedFields { hop_limit: headers, traffic_class: headers || self.reports_marks }
    }

    fn renew_reports(&self) {
        self.sockets.report(self.reported_fields());
    }

    pub(crate) fn reports_marks(&self) -> bool {
        self.reports_marks
    }

    /// Enables reports of congestion marks that queues in the network set on packets.
    pub(crate) fn report_marks(&mut self) {
        if !std::mem::replace(&mut self.reports_marks, true) {
            self.renew_reports();
        }
    }

    /// Enables reports of hop limit and traffic class for datagrams.
    pub(crate) fn report_headers(&mut self) {
        if !std::mem::replace(&mut self.reports_headers, true) {
            self.renew_reports();
        }
    }

    pub(crate) fn has_group(&self, group: IpAddr) -> bool {
        self.sockets.groups.contains(group)
    }

    pub(crate) fn add_group(&mut self, socket: GroupSocket) -> io::Result<()> {
        self.sockets.groups.add(socket)
    }

    pub(crate) fn remove_group(&mut self, group: IpAddr) {
        self.sockets.groups.remove(group);
    }

    /// Prepares a sending socket for multicasts.
    pub(crate) fn allow_multicast(&self, address: IpAddr, port: u16, interface: u32) -> io::Result<()> {
        let fits = |socket: &&SendSocket| socket.port == port && socket.address.ip == address;
        self.senders.iter().find(fits).map_or(Ok(()), |socket| socket.allow_multicast(interface))
    }

    pub(crate) fn memory_links(&mut self) -> &mut MemoryLinks {
        &mut self.memory
    }

    pub(crate) fn add_sender(&mut self, socket: SendSocket) {
        self.senders.push(socket);
    }

    /// Returns the port of a socket that sends from this address: one without checksums, as adapters send, if there is
    /// one.
    pub(crate) fn port_of(&self, address: IpAddr) -> Option<u16> {
        let here = || self.senders.iter().filter(|socket| socket.address.ip == address);
        let plain = here().find(|socket| socket.checksums == Checksums::Off);
        plain.or_else(|| here().next()).map(|socket| socket.port)
    }

    /// Routes a request that waits for a listener, as if it arrived now.
    pub(crate) fn route_held(&mut self, datagram: &Datagram<'_>) -> Route {
        let route = self.sockets.route_held(datagram);
        self.counters.add(Counter::ForwardedPackets, (route == Route::Forwarded).into());
        route
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes the errors that the network has reported so far off the sockets.
    pub(crate) fn take_errors(&mut self) {
        for socket in &self.senders {
            self.errors.take(socket.descriptor());
        }
    }

    /// Returns the last error that the system or the network reported for packets to an address, not earlier than
    /// `since`.
    pub(crate) fn path_error(&self, now: Time, destination: IpAddr, since: Time) -> Option<PathError> {
        self.errors.find(now, destination, since)
    }

    pub(crate) fn add_capture(&mut self, capture: Arc<Capture>) {
        self.sink.add(capture);
        self.renew_reports();
    }

    pub(crate) fn remove_capture(&mut self, capture: &Arc<Capture>) {
        self.sink.remove(capture);
        self.renew_reports();
    }

    /// Whether packets are recorded.
    pub(crate) fn has_captures(&self) -> bool {
        !self.sink.is_idle()
    }

    pub(crate) fn take_captures(&mut self) -> Vec<Arc<Capture>> {
        let captures = self.sink.take();
        self.renew_reports();
        captures
    }

    /// Passes waiting datagrams to `deliver`, until there are no more or there were `most`, merged ones counted once.
    ///
    /// After each system call or record of a ring, `is_enough` decides whether to leave the rest to another batch. The
    /// receive call never waits, and no poll precedes it: the call itself reports an empty socket at the same cost.
    pub(crate) fn receive(&mut self, most: usize, deliver: impl Deliver, is_enough: impl Fn() -> bool) -> Batch {
        let Self { sockets, memory, counters, sink, .. } = self;
        let mut delivery = Delivery::new(counters, sink, deliver);
        if !memory.has_readers() {
            return sockets.receive(most, &mut delivery, is_enough).0;
        }
        let begins = memory.begins();
        let mut batch = Batch::default();
        if begins || self.looks_without_sockets >= self.most_looks_without_sockets {
            let (received, is_drained) = sockets.receive(most, &mut delivery, &is_enough);
            (self.looks_without_sockets, self.most_looks_without_sockets) =
                (0, looks_until_next(self.most_looks_without_sockets, received.datagrams > 0));
            if begins && is_drained {
                memory.note_drained();
            }
            batch = received;
            if batch.is_full || (batch.datagrams > 0 && is_enough()) {
                return batch;
            }
        }
        let taken = memory.receive(most, &mut delivery, &is_enough);
        delivery.note_records(taken.records);
        batch.datagrams += taken.datagrams;
        batch.is_full = taken.records >= most;
        self.looks_without_sockets += 1;
        if taken.records == 0 && batch.datagrams == 0 {
            batch = sockets.receive(most, &mut delivery, is_enough).0;
            (self.looks_without_sockets, self.most_looks_without_sockets) =
                (0, looks_until_next(self.most_looks_without_sockets, batch.datagrams > 0));
        }
        batch
    }

    /// Returns whether no datagram waits. If one does, it is kept for the next batch.
    #[inline]
    pub(crate) fn is_quiet(&mut self) -> bool {
        if self.sockets.has_found() {
            return false;
        }
        let has_readers = self.memory.has_readers();
        if has_readers {
            if !self.memory.is_quiet() {
                return false;
            }
            self.looks_without_sockets += 1;
            if self.looks_without_sockets < self.most_looks_without_sockets {
                return true;
            }
        }
        let waiting = self.sockets.find();
        if has_readers {
            (self.looks_without_sockets, self.most_looks_without_sockets) =
                (0, looks_until_next(self.most_looks_without_sockets, waiting != Waiting::Nothing));
        }
        if waiting == Waiting::Found {
            self.counters.add(Counter::ReceiveCalls, 1);
            // The next batch takes it.
            self.looks_without_sockets = self.most_looks_without_sockets;
        }
        waiting == Waiting::Nothing
    }

    /// Returns the rings of shared memory, for a sink. `None` if there are none.
    #[inline]
    pub(crate) fn memory_sinks(&mut self) -> Option<Rings<'_>> {
        self.memory.has_writers().then(|| Rings::new(&mut self.memory, &mut self.counters, !self.sink.is_idle()))
    }

    /// Sends a packet or burst of the endpoint.
    pub(crate) fn send(&mut self, transmit: &Transmit, bytes: &[u8]) -> Sent {
        // Before it leaves: within one machine it has arrived when the call returns.
        let time = self.sink.time();
        let departure = self.depart(transmit, bytes);
        if let (Some(time), Some(departure)) = (time, departure) {
            let socket = self.find_sender(transmit.source, transmit.source_port);
            let has_checksum = socket.is_some_and(|index| self.senders[index].checksums == Checksums::On);
            self.sink.sent(time, transmit, bytes, has_checksum, departure);
        }
        match departure {
            None => Sent::Full,
            Some(Departure::Refused) => Sent::Refused,
            // A drop here is like any loss in the network.
            Some(Departure::Whole | Departure::Singly | Departure::Dropped) => Sent::Accepted,
        }
    }

    /// Returns `None` if the socket's send buffer is full. If the queue of the network interface is full,
    /// the packets count as lost in the network: retrying until it has room would delay everything behind them.
    #[inline]
    fn depart(&mut self, transmit: &Transmit, bytes: &[u8]) -> Option<Departure> {
        match self.memory.send(transmit, bytes) {
            Some(Placed::Whole) => {
                self.counters.add(Counter::SharedMemorySends, 1);
                return Some(Departure::Whole);
            }
            // The peer is stopped, or very late.
            Some(Placed::Lost) => {
                self.counters.add(Counter::SendQueueDrops, 1);
                return Some(Departure::Dropped);
            }
            None => {}
        }
        let Some(index) = self.find_sender(transmit.source, transmit.source_port) else {
            return Some(self.refused(transmit, &io::ErrorKind::AddrNotAvailable.into()));
        };
        let socket = &mut self.senders[index];
        debug_assert!(transmit.segment_size.is_none() || socket.checksums == Checksums::On);
        let options = SendOptions {
            segment_size: transmit.segment_size.map(|size| size as u16),
            traffic_class: socket.class_option(transmit.traffic_class),
            hop_limit: Some(transmit.hop_limit).filter(|limit| !matches!(*limit, 0 | DEFAULT_HOP_LIMIT)),
        };
        let mut took_errors = false;
        // Bounded: signals interrupt a non-blocking call a few times at most.
        for _ in 0..8 {
            match socket.send(transmit.destination, bytes, options) {
                Ok(()) => {
                    self.counters.add(Counter::SendCalls, 1);
                    return Some(Departure::Whole);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if is_queue_full(&error) => {
                    self.counters.add(Counter::SendQueueDrops, 1);
                    let sent = match options.segment_size {
                        Some(_) => send_until_queue_is_full(socket, transmit, bytes, options),
                        None => 0,
                    };
                    self.counters.add(Counter::SendCalls, sent);
                    return Some(Departure::Dropped);
                }
                // The outgoing interface cannot compute checksums, which segmentation needs. Or something else is
                // wrong, perhaps with the segments' length; the error of a single datagram shows it.
                Err(error) if options.segment_size.is_some() && is_about_segments(&error) => {
                    let (sent, refused, last) = send_singly(socket, transmit, bytes, options);
                    self.counters.add(Counter::SendCalls, sent);
                    return Some(match last {
                        Some(error) => {
                            self.counters.add(Counter::SendErrors, refused - 1);
                            self.refused(transmit, &error)
                        }
                        None => Departure::Singly,
                    });
                }
                // A pending error of earlier packets, perhaps to other hosts, fails this send: take it and try again.
                Err(_) if !took_errors && self.errors.take(socket.descriptor()) => took_errors = true,
                Err(error) => return Some(self.refused(transmit, &error)),
            }
        }
        None
    }

    fn refused(&mut self, transmit: &Transmit, error: &io::Error) -> Departure {
        self.counters.add(Counter::SendErrors, 1);
        self.errors.note_refused(transmit.destination, error, transmit.segment_size.unwrap_or(transmit.length));
        Departure::Refused
    }

    fn find_sender(&mut self, address: IpAddr, port: u16) -> Option<usize> {
        let fits = |socket: &SendSocket| socket.port == port && socket.address.ip == address;
        if !self.senders.get(self.last_sender).is_some_and(fits) {
            self.last_sender = self.senders.iter().position(fits)?;
        }
        Some(self.last_sender)
    }
}

/// Returns after how many looks at the shared memory the sockets are polled again, after a poll that found datagrams or
/// not.
fn looks_until_next(looks: u32, has_found: bool) -> u32 {
    if has_found { *LOOKS_WITHOUT_SOCKETS.start() } else { (2 * looks).min(*LOOKS_WITHOUT_SOCKETS.end()) }
}

/// Returns whether the queue of the network interface had no room.
fn is_queue_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Sends the packets of a burst one by one, up to the first for which the queue of the network interface has no room: a
/// burst longer than the queue would never pass as a whole. Returns the number of packets sent.
#[cold]
fn send_until_queue_is_full(socket: &SendSocket, transmit: &Transmit, bytes: &[u8], options: SendOptions) -> u64 {
    send_each(socket, transmit, bytes, options).take_while(io::Result::is_ok).count() as u64
}

/// Sends the segments of a burst one by one, while the caller takes the outcomes. Each leaves with identification 0,
/// while its ICRC covers its index in the burst; native peers, the only ones that get bursts, solve for such small
/// identifications.
fn send_each<'a>(
    socket: &'a SendSocket,
    transmit: &'a Transmit,
    bytes: &'a [u8],
    options: SendOptions,
) -> impl Iterator<Item = io::Result<()>> + 'a {
    let single = SendOptions { segment_size: None, ..options };
    let size = transmit.segment_size.unwrap_or(bytes.len()).max(1);
    bytes.chunks(size).map(move |segment| socket.send(transmit.destination, segment, single))
}

/// Returns whether the kernel may refuse a segmented send with this error because it is segmented.
fn is_about_segments(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

/// Sends the segments of a burst one by one; returns how many were sent, how many were refused, and the last error.
fn send_singly(
    socket: &SendSocket,
    transmit: &Transmit,
    bytes: &[u8],
    options: SendOptions,
) -> (u64, u64, Option<io::Error>) {
    let (mut sent, mut refused, mut last) = (0, 0, None);
    for outcome in send_each(socket, transmit, bytes, options) {
        match outcome {
            Ok(()) => sent += 1,
            Err(error) => {
                refused += 1;
                last = Some(error);
            }
        }
    }
    (sent, refused, last)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::udp::SocketSizes;
    use super::*;
    use crate::engine::share::JoinRequest;
    use crate::sys::LocalAddress;
    use crate::transport::{DatagramOutcome, Repeats};
    use crate::types::{PeerCapabilities, Qpn};

    const SIZES: SocketSizes = SocketSizes { receive_bytes: 1 << 20, send_bytes: 1 << 20 };

    /// Returns a link on an address with a sending socket of each kind, and their ports.
    fn link(address: &str) -> (Link, LocalAddress, u16, u16) {
        let address = LocalAddress { ip: address.parse().unwrap(), scope: 0 };
        let request =
            JoinRequest { address, blocks: &[0, 7], capabilities: PeerCapabilities::STANDARD, recipient: None };
        let mut link = Link::new(Clock::new(), &Arc::default());
        link.add_receiver(ReceiveSocket::open(request, &SIZES).unwrap());
        let plain = SendSocket::open(address, Checksums::Off, &SIZES).unwrap();
        let segmenting = SendSocket::open(address, Checksums::On, &SIZES).unwrap();
        let ports = (plain.port, segmenting.port);
        link.add_sender(plain);
        link.add_sender(segmenting);
        (link, address, ports.0, ports.1)
    }

    fn transmit(address: LocalAddress, port: u16, length: usize, segment_size: Option<usize>) -> Transmit {
        Transmit {
            source: address.ip,
            source_port: port,
            destination: address.ip,
            length,
            segment_size,
            traffic_class: 0,
            hop_limit: 64,
            qpn: Qpn::new(0x11),
            repeats: Repeats::default(),
            is_keyed: false,
        }
    }

    #[test]
    fn packets_pass_and_are_counted() {
        let (mut link, address, plain, segmenting) = link("127.77.3.1");
        let bytes: Vec<u8> = (0..250).collect();
        let accepted = link.send(&transmit(address, segmenting, 250, Some(100)), &bytes);
        assert!(matches!(accepted, Sent::Accepted));
        assert!(matches!(link.send(&transmit(address, plain, 250, None), &bytes), Sent::Accepted));
        let mut seen = Vec::new();
        let batch = link.receive(
            16,
            |datagram: &Datagram<'_>| {
                assert_eq!((datagram.source, datagram.destination), (address.ip, address.ip));
                seen.push((datagram.source_port, datagram.segment_index, datagram.payload.to_vec()));
                DatagramOutcome::default()
            },
            || false,
        );
        assert_eq!(batch, Batch { datagrams: 4, is_full: false });
        let expected = [
            (segmenting, 0, bytes[..100].to_vec()),
            (segmenting, 1, bytes[100..200].to_vec()),
            (segmenting, 2, bytes[200..].to_vec()),
            (plain, 0, bytes.clone()),
        ];
        assert_eq!(seen, expected);
        assert_eq!((link.counters.get(Counter::SendCalls), link.counters.get(Counter::ReceiveCalls)), (2, 2));
    }

    #[test]
    fn batch_is_bounded() {
        let (mut link, address, plain, _) = link("127.77.3.2");
        for _ in 0..5 {
            link.send(&transmit(address, plain, 4, None), b"abcd");
        }
        let take = |_: &Datagram<'_>| DatagramOutcome::default();
        assert_eq!(link.receive(3, take, || false), Batch { datagrams: 3, is_full: true });
        assert_eq!(link.receive(3, take, || true), Batch { datagrams: 1, is_full: false });
        assert_eq!(link.receive(3, take, || false), Batch { datagrams: 1, is_full: false });
    }

    #[test]
    fn unmerged_datagrams_are_received_by_few_calls() {
        let (mut link, address, plain, _) = link("127.77.3.7");
        let sent: Vec<Vec<u8>> = (0..30_u8).map(|number| vec![number; 4 + usize::from(number) * 300]).collect();
        for bytes in &sent {
            link.send(&transmit(address, plain, bytes.len(), None), bytes);
        }
        let mut seen = Vec::new();
        let take = |datagram: &Datagram<'_>| {
            seen.push(datagram.payload.to_vec());
            DatagramOutcome::default()
        };
        assert_eq!(link.receive(27, take, || false), Batch { datagrams: 27, is_full: true });
        assert_eq!(seen, sent[..27]);
        // Two singly, three times eight, and the last by a call that may receive no more.
        assert_eq!(link.counters.get(Counter::ReceiveCalls), 2 + 3 + 1);
        let take = |datagram: &Datagram<'_>| {
            seen.push(datagram.payload.to_vec());
            DatagramOutcome::default()
        };
        assert_eq!(link.receive(27, take, || false), Batch { datagrams: 3, is_full: false });
        assert_eq!(seen, sent);
    }

    #[test]
    fn refused_sends_are_counted() {
        let (mut link, address, plain, _) = link("127.77.3.3");
        assert!(matches!(link.send(&transmit(address, plain ^ 1, 4, None), b"abcd"), Sent::Refused));
        let mut unreachable = transmit(address, plain, 4, None);
        unreachable.destination = "255.255.255.255".parse().unwrap();
        assert!(matches!(link.send(&unreachable, b"abcd"), Sent::Refused));
        assert_eq!(link.counters.get(Counter::SendErrors), 2);
    }

    #[test]
    fn errors_of_one_address_do_not_affect_others() {
        let (mut link, address, plain, _) = link("127.77.3.5");
        let mut closed = transmit(address, plain, 4, None);
        closed.destination = "127.77.3.6".parse().unwrap();
        for _ in 0..3 {
            assert!(matches!(link.send(&closed, b"abcd"), Sent::Accepted));
            assert!(matches!(link.send(&transmit(address, plain, 4, None), b"abcd"), Sent::Accepted));
        }
        assert_eq!(link.receive(16, |_: &Datagram<'_>| DatagramOutcome::default(), || false).datagrams, 3);
        assert_eq!(link.counters.get(Counter::SendErrors), 0);
        let error = link.path_error(Time::NEVER, closed.destination, Time::ZERO).unwrap();
        assert_eq!((error.errno, error.count), (libc::ECONNREFUSED, 3));
        assert_eq!(link.path_error(Time::NEVER, address.ip, Time::ZERO), None);
    }

    #[test]
    fn overflow_of_the_socket_is_counted() {
        let (mut link, address, plain, _) = link("127.77.3.4");
        let bytes = [0; 4_000];
        for _ in 0..4_000 {
            link.send(&transmit(address, plain, bytes.len(), None), &bytes);
        }
        let received = link.receive(10_000, |_: &Datagram<'_>| DatagramOutcome::default(), || false).datagrams as u64;
        // The kernel reports the count of drops with the next datagram that is received.
        link.send(&transmit(address, plain, 4, None), b"abcd");
        link.receive(1, |_: &Datagram<'_>| DatagramOutcome::default(), || false);
        assert_eq!(received + link.counters.get(Counter::SocketOverflow), 4_000);
    }
}
