//! The baseline: a plain socket, and a loop that receives datagrams and discards them.

use std::mem::zeroed;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::flood::{BURSTS, Flood, processor_time};

const BATCH: usize = 64;
const LARGEST: usize = 8_192;

/// A socket unrelated to the device.
pub(crate) struct Unrelated(UdpSocket);

impl Unrelated {
    pub(crate) fn bind() -> Self {
        Self(UdpSocket::bind(("127.46.0.3", 0)).expect("an address of the loopback interface"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("bound")
    }

    /// Receives and discards all datagrams. Returns their number.
    fn discard(&self, buffer: &mut [u8]) -> u64 {
        let pieces: Vec<libc::iovec> = buffer
            .chunks_mut(LARGEST)
            .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: LARGEST })
            .collect();
        let message = |piece: &libc::iovec| {
            // SAFETY: null pointers and zero lengths are values of all fields.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = (&raw const *piece).cast_mut();
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let mut count = 0;
        loop {
            let mut messages: Vec<libc::mmsghdr> = pieces.iter().map(message).collect();
            let (socket, first) = (self.0.as_raw_fd(), messages.as_mut_ptr());
            // SAFETY: the messages, the iovecs and the buffer live until the call returns, and the lengths are theirs.
            let received =
                unsafe { libc::recvmmsg(socket, first, BATCH as u32, libc::MSG_DONTWAIT as _, std::ptr::null_mut()) };
            match u64::try_from(received) {
                Ok(received) if received > 0 => count += received,
                _ => return count,
            }
        }
    }

    /// Returns the processor time of the loop for each datagram.
    pub(crate) fn nanoseconds_a_packet(&self, flood: &Flood) -> f64 {
        let mut buffer = vec![0; BATCH * LARGEST];
        let (mut time, mut count) = (Duration::ZERO, 0);
        for _ in 0..BURSTS {
            flood.burst();
            let start = processor_time();
            count += self.discard(&mut buffer);
            time += processor_time() - start;
        }
        time.as_nanos() as f64 / count.max(1) as f64
    }
}
