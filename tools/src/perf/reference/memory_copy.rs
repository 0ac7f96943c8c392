//! Copies within a process, and by the kernel from another one.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{Measured, Role, Span, WALK_BYTES, WARM_UP_PART, exchange, synchronize};

/// Copies of one size by the client, one after the other, from memory to memory of [`WALK_BYTES`] each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryCopy {
    pub(crate) size: usize,
    /// The kernel copies from the server's memory (`process_vm_readv`), instead of `memcpy` in the client.
    pub(crate) by_kernel: bool,
    pub(crate) bytes: u64,
}

impl MemoryCopy {
    pub(super) fn run(&self, role: Role, stream: &mut TcpStream) -> io::Result<Measured> {
        let length = (WALK_BYTES / self.size.max(1)).max(1) * self.size;
        let source = vec![7_u8; length];
        let peer = exchange(stream, std::process::id().into())?;
        let peer_memory = exchange(stream, source.as_ptr().addr() as u64)?;
        let messages = (self.bytes / self.size.max(1) as u64).max(1);
        let measured = match role {
            Role::Server => Measured { messages, bytes: messages * self.size as u64, ..Measured::default() },
            Role::Client if self.by_kernel => {
                let process = Pid::from_raw(i32::try_from(peer).map_err(io::Error::other)?);
                self.measure(messages, length, |offset, part| copy_from(process, peer_memory as usize + offset, part))?
            }
            Role::Client => self.measure(messages, length, |offset, part| {
                part.copy_from_slice(&source[offset..offset + part.len()]);
                Ok(())
            })?,
        };
        // The server's memory stays until the client has finished.
        synchronize(stream)?;
        Ok(measured)
    }

    fn measure(
        &self,
        messages: u64,
        length: usize,
        mut copy: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Measured> {
        let mut target = vec![0_u8; length];
        let mut copy_messages = |messages: u64| -> io::Result<()> {
            let mut offset = 0;
            for _ in 0..messages {
                copy(offset, std::hint::black_box(&mut target[offset..offset + self.size]))?;
                offset = (offset + self.size) % length;
            }
            Ok(())
        };
        copy_messages((messages / WARM_UP_PART).max(1))?;
        let span = Span::start()?;
        copy_messages(messages)?;
        let (seconds, cpu_seconds) = span.end()?;
        Ok(Measured { times: None, messages, bytes: messages * self.size as u64, seconds, cpu_seconds })
    }
}

/// Copies from another process's memory.
fn copy_from(process: Pid, base: usize, part: &mut [u8]) -> io::Result<()> {
    let wanted = part.len();
    let copied = process_vm_readv(process, &mut [IoSliceMut::new(part)], &[RemoteIoVec { base, len: wanted }])?;
    if copied == wanted { Ok(()) } else { Err(io::Error::other(format!("{copied} of {wanted} bytes were copied"))) }
}
