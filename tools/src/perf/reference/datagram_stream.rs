//! A stream of raw UDP datagrams with the minimum that a transport needs: a header, a CRC made and checked, the payload
//! copied out at the receiver, and a window, so that nothing is lost.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use socket2::{SockAddr, SockRef};

use super::frame::{self, CRC_BYTES, HEADER_BYTES, OVERHEAD_BYTES};
use super::{
    Measured, Role, Span, WALK_BYTES, WARM_UP_PART, WaitGuard, any_port, exchange, exchange_port, synchronize,
};

/// Maximum length of a send, including all segments.
const SEND_BYTES: usize = 65_507;
/// Maximum number of segments of a send that every kernel accepts.
const SEGMENTS: usize = 64;
/// Bytes of payload in flight, if the receive buffer holds them. In segments of 1 KiB, these are fewer than the packets
/// that the kernel queues between two interfaces (1,000), so nothing is lost where the kernel segments the sends.
const WINDOW_BYTES: usize = 896 << 10;
/// Number of sends in flight: each takes room in the receive buffer, even a small one.
const WINDOW_SENDS: usize = 1024;
/// Requested size of the receive buffer; the kernel grants at most its limit.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// The kernel's offload of several segments at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Offload {
    /// None: one send and one receive for every datagram.
    None,
    /// Segments sends and merges them again; the sender copies payload into a buffer that stays in the cache.
    Segmentation,
    /// Like `Segmentation`, but the kernel gathers the payload from the sender's memory.
    Gather,
}

/// A stream of segments of `payload` bytes, up to `segments` of them in a send if the kernel allows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DatagramStream {
    pub(crate) payload: usize,
    pub(crate) segments: usize,
    pub(crate) offload: Offload,
    pub(crate) bytes: u64,
}

impl DatagramStream {
    pub(super) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        if self.payload == 0 || self.payload > SEND_BYTES - OVERHEAD_BYTES || self.segments == 0 {
            let message = format!("a segment has 1 to {} bytes of payload", SEND_BYTES - OVERHEAD_BYTES);
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let socket = UdpSocket::bind(any_port(stream)?)?;
        socket.set_nonblocking(true)?;
        let buffer_bytes = receive_buffer(&socket)?;
        let peer = exchange_port(stream, socket.local_addr()?.port())?;
        let peer_buffer_bytes = exchange(stream, buffer_bytes as u64)? as usize;
        if self.offload != Offload::None {
            match role {
                Role::Client => setsockopt(&socket, sockopt::UdpGsoSegment, &((self.payload + OVERHEAD_BYTES) as i32))?,
                Role::Server => setsockopt(&socket, sockopt::UdpGroSegment, &true)?,
            }
        }
        let mut end = match role {
            Role::Client => End::Sender(Sender::new(self, socket, peer, peer_buffer_bytes)),
            Role::Server => End::Receiver(Receiver::new(self, socket, peer, buffer_bytes)),
        };
        let warm_up = self.whole_sends(self.bytes / WARM_UP_PART);
        let bytes = self.whole_sends(self.bytes);
        synchronize(stream)?;
        end.run_to(warm_up)?;
        synchronize(stream)?;
        let span = Span::start()?;
        end.run_to(warm_up + bytes)?;
        let (seconds, cpu_seconds) = span.end()?;
        Ok(Measured { times: None, messages: bytes / self.payload as u64, bytes, seconds, cpu_seconds })
    }

    /// Returns the bytes of payload of a send.
    fn send_payload(&self) -> usize {
        let fitting = SEND_BYTES / (self.payload + OVERHEAD_BYTES);
        let segments = if self.offload == Offload::None { 1 } else { fitting.min(SEGMENTS).min(self.segments) };
        segments * self.payload
    }

    /// Rounds up to whole sends, at least one.
    fn whole_sends(&self, bytes: u64) -> u64 {
        let send = self.send_payload() as u64;
        bytes.div_ceil(send).max(1) * send
    }

    /// Returns the bytes of payload that may be in flight to a receive buffer of this size, in the kernel's accounting.
    fn window(&self, buffer_bytes: usize) -> usize {
        let send = self.send_payload();
        WINDOW_BYTES.min(buffer_bytes / 4).min(WINDOW_SENDS * send).max(send)
    }
}

fn receive_buffer(socket: &UdpSocket) -> io::Result<usize> {
    let socket = SockRef::from(socket);
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.recv_buffer_size()
}

/// Returns the offset of the next send's payload in the memory that is cycled through.
fn walk(offset: usize, send_payload: usize) -> usize {
    if offset + 2 * send_payload > WALK_BYTES { 0 } else { offset + send_payload }
}

enum End<'a> {
    Sender(Sender<'a>),
    Receiver(Receiver<'a>),
}

impl End<'_> {
    /// Runs until this many bytes of payload have arrived since the beginning.
    fn run_to(&mut self, total: u64) -> io::Result<()> {
        match self {
            Self::Sender(sender) => sender.run_to(total),
            Self::Receiver(receiver) => receiver.run_to(total),
        }
    }
}

struct Sender<'a> {
    test: &'a DatagramStream,
    socket: UdpSocket,
    peer: SocketAddr,
    window: u64,
    source: Vec<u8>,
    /// Whole segments, for offloads that copy.
    staging: Vec<u8>,
    sent: u64,
    acknowledged: u64,
    /// Number of the next segment, and the offset of its payload.
    number: u64,
    offset: usize,
}

impl<'a> Sender<'a> {
    fn new(test: &'a DatagramStream, socket: UdpSocket, peer: SocketAddr, buffer_bytes: usize) -> Self {
        let send_payload = test.send_payload();
        let segments = send_payload / test.payload;
        Self {
            window: test.window(buffer_bytes) as u64,
            source: (0..WALK_BYTES.max(send_payload)).map(|index| index as u8).collect(),
            staging: vec![0; send_payload + segments * OVERHEAD_BYTES],
            test,
            socket,
            peer,
            sent: 0,
            acknowledged: 0,
            number: 0,
            offset: 0,
        }
    }

    fn run_to(&mut self, total: u64) -> io::Result<()> {
        let send_payload = self.test.send_payload();
        while self.sent < total {
            while self.sent + send_payload as u64 > self.acknowledged + self.window {
                self.take_acknowledgement()?;
            }
            match self.test.offload {
                Offload::Gather => self.send_gathered(self.number, self.offset)?,
                Offload::None | Offload::Segmentation => self.send_copied(self.number, self.offset)?,
            }
            self.sent += send_payload as u64;
            self.number += (send_payload / self.test.payload) as u64;
            self.offset = walk(self.offset, send_payload);
        }
        while self.acknowledged < total {
            self.take_acknowledgement()?;
        }
        Ok(())
    }

    fn send_copied(&mut self, first: u64, start: usize) -> io::Result<()> {
        let payload = self.test.payload;
        let offsets = (start..).step_by(payload);
        for ((number, offset), out) in
            (first..).zip(offsets).zip(self.staging.chunks_exact_mut(payload + OVERHEAD_BYTES))
        {
            frame::write(out, number, offset, &self.source[offset..offset + payload]);
        }
        retry(|| self.socket.send_to(&self.staging, self.peer))
    }

    fn send_gathered(&self, first: u64, start: usize) -> io::Result<()> {
        let payload = self.test.payload;
        let count = self.test.send_payload() / payload;
        let mut around = [([0; HEADER_BYTES], [0; CRC_BYTES]); SEGMENTS];
        let mut pieces = [IoSlice::new(&[]); 3 * SEGMENTS];
        let offset_of = |segment: usize| start + segment * payload;
        for (segment, around) in around[..count].iter_mut().enumerate() {
            let offset = offset_of(segment);
            *around = frame::around(first + segment as u64, offset, &self.source[offset..offset + payload]);
        }
        for (segment, (header, crc)) in around[..count].iter().enumerate() {
            let offset = offset_of(segment);
            pieces[3 * segment] = IoSlice::new(header);
            pieces[3 * segment + 1] = IoSlice::new(&self.source[offset..offset + payload]);
            pieces[3 * segment + 2] = IoSlice::new(crc);
        }
        let peer = SockAddr::from(self.peer);
        retry(|| SockRef::from(&self.socket).send_to_vectored(&pieces[..3 * count], &peer))
    }

    fn take_acknowledgement(&mut self) -> io::Result<()> {
        let mut bytes = [0; 8];
        look_until(|| self.socket.recv(&mut bytes))?;
        self.acknowledged = self.acknowledged.max(u64::from_le_bytes(bytes));
        Ok(())
    }
}

struct Receiver<'a> {
    test: &'a DatagramStream,
    socket: UdpSocket,
    peer: SocketAddr,
    /// Number of payload bytes between acknowledgements.
    stride: u64,
    memory: Vec<u8>,
    buffer: Vec<u8>,
    received: u64,
    acknowledged: u64,
    /// Number of the next segment.
    number: u64,
}

impl<'a> Receiver<'a> {
    fn new(test: &'a DatagramStream, socket: UdpSocket, peer: SocketAddr, buffer_bytes: usize) -> Self {
        let stride = (test.window(buffer_bytes) / 4) as u64;
        let memory = vec![0; WALK_BYTES.max(test.send_payload())];
        let (received, acknowledged, number) = (0, 0, 0);
        Self { test, socket, peer, stride, memory, buffer: vec![0; 1 << 16], received, acknowledged, number }
    }

    fn run_to(&mut self, total: u64) -> io::Result<()> {
        while self.received < total {
            let length = look_until(|| self.socket.recv(&mut self.buffer))?;
            // Merged segments have one size.
            for segment in self.buffer[..length].chunks(self.test.payload + OVERHEAD_BYTES) {
                self.received += frame::take(segment, self.number, &mut self.memory)? as u64;
                self.number += 1;
            }
            self.acknowledge(total)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, total: u64) -> io::Result<()> {
        if self.received - self.acknowledged >= self.stride || self.received == total {
            retry(|| self.socket.send_to(&self.received.to_le_bytes(), self.peer))?;
            self.acknowledged = self.received;
        }
        Ok(())
    }
}

/// Polls until the call no longer reports that it would block.
fn look_until(mut receive: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut guard = WaitGuard::default();
    loop {
        match receive() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                guard.note_empty_poll()?;
                std::hint::spin_loop();
            }
            result => return result,
        }
    }
}

/// Sends, and tries again if the send buffer is full.
fn retry(mut send: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    look_until(&mut send).map(drop)
}
