//! Inbound datagrams: received with few system calls and delivered one by one.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::multicast::GroupSocket;
use super::udp::ReceiveSocket;
use crate::engine::capture::{Arrival, CaptureSink};
use crate::engine::share::Route;
use crate::memory::SharedPart;
use crate::sys::{Received, SEVERAL, receive, receive_several};
use crate::transport::{CheckField, Datagram, DatagramOutcome, Medium, Similar};
use crate::types::{Counter, Counters};

/// The outcome of a packet for another socket. Its connection may have a key that this process does not have, so no
/// capture may show its check field.
const OF_ANOTHER_SOCKET: DatagramOutcome =
    DatagramOutcome { dropped: None, is_from_own_peer: false, ends_write: false, check_field: CheckField::Withheld };
/// Room for one datagram, or for as many as the kernel merges.
const PART_BYTES: usize = 65_536;
/// Datagrams in a row that arrive singly before a call receives several. Merged ones fill a call by themselves. If each
/// message gets a response before the next arrives, the second call finds nothing, and need not prepare eight slots.
const MOST_ALONE: usize = 2;

/// Result of receiving a bounded batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Batch {
    /// Number of datagrams, merged ones counted singly.
    pub(crate) datagrams: usize,
    /// Whether the bound was reached: there may be more.
    pub(crate) is_full: bool,
}

/// The recipient of a batch of datagrams, with counters and captures.
pub(super) struct Delivery<'a, D> {
    counters: &'a mut Counters,
    sink: &'a CaptureSink,
    deliver: D,
    /// Datagrams in a row that arrived singly.
    alone: usize,
}

impl<'a, D: Deliver> Delivery<'a, D> {
    #[inline]
    pub(super) fn new(counters: &'a mut Counters, sink: &'a CaptureSink, deliver: D) -> Self {
        Self { counters, sink, deliver, alone: 0 }
    }

    /// Counts records of shared memory.
    #[inline]
    pub(super) fn note_records(&mut self, count: usize) {
        self.counters.add(Counter::SharedMemoryReceives, count as u64);
    }

    /// Delivers a datagram that came through shared memory.
    #[inline]
    pub(super) fn take(&mut self, datagram: &Datagram<'_>) {
        let outcome = self.deliver.whole(datagram);
        if !self.sink.is_idle() {
            let arrival = Arrival::now(datagram.hop_limit, datagram.traffic_class, false);
            // It has no check field: a capture shows the ICRC that it would have.
            self.sink.received(datagram, &arrival, DatagramOutcome { check_field: CheckField::Keyed, ..outcome });
        }
    }

    /// Delivers a datagram whose payload, but for its first bytes, is still in shared memory. Returns false if it must
    /// be delivered as a whole.
    #[inline]
    pub(super) fn take_in_place(&mut self, datagram: &Datagram<'_>, rest: SharedPart<'_>) -> bool {
        self.sink.is_idle() && self.deliver.in_place(datagram, rest).is_some()
    }

    /// Delivers datagrams that differ in PSN, payload and acknowledgement request. `first` is the base transport header
    /// of the first one; the payloads, of equal length, are still in shared memory. Returns false if the first one must
    /// be delivered as a whole; then none was delivered.
    #[inline]
    pub(super) fn take_similar(&mut self, first: &Datagram<'_>, packets: Similar, payloads: SharedPart<'_>) -> bool {
        self.sink.is_idle() && self.deliver.similar(first, packets, payloads)
    }
}

/// A recipient of datagrams.
pub(crate) trait Deliver {
    /// Takes a datagram.
    fn whole(&mut self, datagram: &Datagram<'_>) -> DatagramOutcome;

    /// Takes a datagram whose payload, but for a private copy of the base transport header, is shared memory. Returns
    /// `None` if it needs the whole datagram.
    #[inline]
    fn in_place(&mut self, _: &Datagram<'_>, _: SharedPart<'_>) -> Option<DatagramOutcome> {
        None
    }

    /// Takes several datagrams whose payloads are shared memory; the first has a private copy of its base transport
    /// header. Returns false if it needs the first as a whole; then it has taken none.
    #[inline]
    fn similar(&mut self, _: &Datagram<'_>, _: Similar, _: SharedPart<'_>) -> bool {
        false
    }
}

impl<F: FnMut(&Datagram<'_>) -> DatagramOutcome> Deliver for F {
    #[inline]
    fn whole(&mut self, datagram: &Datagram<'_>) -> DatagramOutcome {
        self(datagram)
    }
}

/// Counts of one system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Datagrams received, merged ones counted once. 0: none waits.
    pub(super) received: usize,
    /// Datagrams delivered, merged ones counted singly, without those that do not fit a buffer.
    pub(super) datagrams: usize,
}

/// The buffers of a shard's sockets.
pub(super) struct Inbound {
    /// Parts of [`PART_BYTES`]. A part into which nothing is received is never backed by memory.
    buffer: Box<[u8]>,
}

impl Inbound {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; PART_BYTES * SEVERAL].into() }
    }

    /// Receives a datagram, or merged ones, and keeps the bytes until [`Inbound::take_found`] or another call.
    #[inline]
    pub(super) fn find(&mut self, socket: &impl Source) -> io::Result<Option<Received>> {
        receive(socket.descriptor(), &mut self.buffer[..PART_BYTES])
    }

    /// Delivers the result of [`Inbound::find`]; returns how many datagrams there are.
    #[inline]
    pub(super) fn take_found(
        &self,
        socket: &mut impl Source,
        found: &Received,
        delivery: &mut Delivery<'_, impl Deliver>,
    ) -> usize {
        split(socket, &self.buffer, found, delivery)
    }

    /// Receives at most `most` datagrams with one system call, and delivers them.
    #[inline]
    pub(super) fn take(
        &mut self,
        socket: &mut impl Source,
        most: usize,
        delivery: &mut Delivery<'_, impl Deliver>,
    ) -> Taken {
        if delivery.alone >= MOST_ALONE && most > 1 {
            return self.take_several(socket, most, delivery);
        }
        let received = match self.find(socket) {
            Ok(Some(received)) => received,
            Ok(None) => return Taken { received: 0, datagrams: 0 },
            // A signal, or an error that was pending on the socket and is now cleared.
            Err(_) => return Taken { received: 1, datagrams: 0 },
        };
        delivery.counters.add(Counter::ReceiveCalls, 1);
        delivery.alone = if received.segment_size.is_some() { 0 } else { delivery.alone + 1 };
        Taken { received: 1, datagrams: split(socket, &self.buffer, &received, delivery) }
    }

    #[cold]
    fn take_several(
        &mut self,
        socket: &mut impl Source,
        most: usize,
        delivery: &mut Delivery<'_, impl Deliver>,
    ) -> Taken {
        let mut received = [None; SEVERAL];
        let most = most.min(SEVERAL);
        let Ok(count) = receive_several(socket.descriptor(), &mut self.buffer, PART_BYTES, &mut received[..most])
        else {
            return Taken { received: 1, datagrams: 0 };
        };
        if count > 0 {
            delivery.counters.add(Counter::ReceiveCalls, 1);
        }
        let mut datagrams = 0;
        for (received, part) in received.iter().take(count).zip(self.buffer.chunks(PART_BYTES)) {
            if let Some(received) = received {
                datagrams += split(socket, part, received, delivery);
            }
        }
        Taken { received: count, datagrams }
    }
}

/// A receiving socket.
pub(super) trait Source {
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the address that its packets were sent to.
    fn destination(&self) -> IpAddr;

    /// Returns the last seen value of the kernel's count of dropped datagrams.
    fn dropped(&mut self) -> &mut u32;

    /// Determines the process that the packet is for, and forwards the packet if that is another process.
    fn route(&self, datagram: &Datagram<'_>) -> Route;
}

impl Source for ReceiveSocket {
    #[inline]
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.membership.descriptor()
    }

    #[inline]
    fn destination(&self) -> IpAddr {
        self.address.ip
    }

    #[inline]
    fn dropped(&mut self) -> &mut u32 {
        &mut self.dropped
    }

    #[inline]
    fn route(&self, datagram: &Datagram<'_>) -> Route {
        self.membership.route(datagram)
    }
}

impl Source for GroupSocket {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }

    fn destination(&self) -> IpAddr {
        self.group
    }

    fn dropped(&mut self) -> &mut u32 {
        &mut self.dropped
    }

    /// Every process that has joined gets its own copy.
    fn route(&self, _: &Datagram<'_>) -> Route {
        Route::Here
    }
}

/// Delivers one datagram, or merged ones one by one; returns how many.
#[inline]
fn split(
    socket: &mut impl Source,
    buffer: &[u8],
    received: &Received,
    delivery: &mut Delivery<'_, impl Deliver>,
) -> usize {
    let Delivery { counters, sink, deliver, .. } = delivery;
    if let Some(dropped) = received.dropped {
        counters.add(Counter::SocketOverflow, dropped.wrapping_sub(*socket.dropped()).into());
        *socket.dropped() = dropped;
    }
    if received.truncated {
        return 0;
    }
    let bytes = &buffer[..received.length];
    let mut datagram = Datagram {
        source: received.source.ip(),
        destination: socket.destination(),
        source_port: received.source.port(),
        segment_index: 0,
        hop_limit: received.hop_limit,
        traffic_class: received.traffic_class,
        payload: bytes,
        medium: Medium::Network,
    };
    let segment_size = received.segment_size.filter(|size| *size < bytes.len());
    let arrival =
        (!sink.is_idle()).then(|| Arrival::now(received.hop_limit, received.traffic_class, segment_size.is_some()));
    let mut take = |datagram: &Datagram<'_>| {
        let outcome = match socket.route(datagram) {
            Route::Here => deliver.whole(datagram),
            Route::Forwarded => {
                counters.add(Counter::ForwardedPackets, 1);
                OF_ANOTHER_SOCKET
            }
            Route::Lost => DatagramOutcome { dropped: deliver.whole(datagram).dropped, ..OF_ANOTHER_SOCKET },
            Route::Probe => return,
        };
        if let Some(arrival) = &arrival {
            sink.received(datagram, arrival, outcome);
        }
    };
    let Some(segment_size) = segment_size else {
        take(&datagram);
        return 1;
    };
    let mut count = 0;
    for payload in bytes.chunks(segment_size) {
        datagram.payload = payload;
        datagram.segment_index = count as u16;
        take(&datagram);
        count += 1;
    }
    count
}
