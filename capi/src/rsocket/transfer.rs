//! Sending and receiving on streams: what one attempt of a call does. An attempt does not wait.

use std::ffi::c_int;
use std::time::Instant;

use super::endpoint::Endpoint;
use super::flow::Flow;
use super::mapped;
use super::sockets::Sockets;
use super::stream::{CLOSING, Inner, Phase, Stream, waiter};
use super::waiters::Waiters;
use crate::error::{Errno, INVALID, Result};
use crate::waiting::Attempt;

/// The first message of a call has so many bytes at most, each further one twice as many, up to a limit: the peer can
/// read the first while the next is on its way.
const FIRST: u32 = 2048;
const LARGEST: u32 = 65536;
/// Largest number of parts of a message (`IOV_MAX`).
const MAX_PARTS: usize = 1024;
const AGAIN: Errno = Errno(libc::EAGAIN);

/// The bytes of a call, in one or several parts of the program's memory.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    list: *const libc::iovec,
    count: usize,
    pub(super) length: usize,
}

impl Parts {
    /// # Safety
    /// The program's list has `count` entries, and stays as long as this is used, with the memory of the entries.
    pub(super) unsafe fn new(list: *const libc::iovec, count: usize) -> Result<Self> {
        if count > MAX_PARTS || (count > 0 && list.is_null()) {
            return Err(INVALID);
        }
        let mut length = 0_usize;
        for index in 0..count {
            // SAFETY: the caller's promise.
            let part = unsafe { (*list.add(index)).iov_len };
            length = length.checked_add(part).filter(|all| isize::try_from(*all).is_ok()).ok_or(INVALID)?;
        }
        Ok(Self { list, count, length })
    }

    /// Calls a function with each piece of a range, until it returns `false`.
    fn each(
        &self,
        mut skipped: usize,
        mut length: usize,
        mut call: impl FnMut(*mut u8, usize) -> Result<bool>,
    ) -> Result<()> {
        for index in 0..self.count {
            // SAFETY: the promise of `new`.
            let libc::iovec { iov_base, iov_len } = unsafe { *self.list.add(index) };
            let skip = skipped.min(iov_len);
            let piece = length.min(iov_len - skip);
            skipped -= skip;
            length -= piece;
            if piece > 0 && !call(iov_base.cast::<u8>().wrapping_add(skip), piece)? {
                break;
            }
        }
        Ok(())
    }

    /// Copies bytes to the program, as many as there is room for. Returns their number.
    pub(super) fn fill(&self, bytes: &[u8]) -> Result<usize> {
        let (mut done, most) = (0, bytes.len().min(self.length));
        self.each(0, most, |address, length| {
            // SAFETY: the promise of `new`: the program's memory for the data.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), address, length) };
            done += length;
            Ok(true)
        })?;
        Ok(done)
    }

    /// Returns a copy of all bytes, which are few.
    pub(super) fn to_vec(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.length);
        self.read(0, self.length as u32, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Passes a range on, piece by piece.
    pub(super) fn read(&self, skipped: usize, length: u32, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.each(skipped, length as usize, |address, length| {
            // SAFETY: the promise of `new`: the program's memory, which it does not change during the call.
            put(unsafe { std::slice::from_raw_parts(address, length) })?;
            Ok(true)
        })
    }

    /// Returns a range if it lies in one part.
    fn contiguous<'a>(&self, skipped: usize, length: u32) -> Option<&'a [u8]> {
        let mut found = None;
        let length = length as usize;
        let _ = self.each(skipped, length, |address, piece| {
            if piece == length {
                // SAFETY: as above; the caller uses it during the call.
                found = Some(unsafe { std::slice::from_raw_parts(address.cast_const(), length) });
            }
            Ok(false)
        });
        found
    }
}

/// How far a call is. It stays where it is until the call ends.
#[repr(C)]
pub(super) struct Progress {
    pub(super) done: usize,
    largest: u32,
    /// When a wait ends at the latest.
    deadline: Option<Instant>,
    is_begun: bool,
    entries: [libc::pollfd; 2],
}

impl Progress {
    pub(super) fn new() -> Self {
        let entry = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        Self { done: 0, largest: FIRST, deadline: None, is_begun: false, entries: [entry; 2] }
    }

    /// Returns the wait for a descriptor, and for the thread's own.
    pub(super) fn wait(&mut self, fd: c_int, own: c_int, milliseconds: c_int) -> Attempt {
        (self.entries[0].fd, self.entries[1].fd) = (fd, own);
        Attempt::Wait { entries: self.entries.as_mut_ptr(), count: 2, milliseconds }
    }
}

/// Tries `step` until it returns something, as long as completions arrive and for the time of busy polling. Then
/// returns
/// `would_block` for a nonblocking call, or the wait. `is_ready` is what it waits for.
fn attempt(
    stream: &Stream,
    progress: &mut Progress,
    is_nonblocking: impl Fn(&Inner) -> bool,
    would_block: Errno,
    is_ready: impl Fn(&Inner) -> bool,
    mut step: impl FnMut(&mut Inner, &mut Progress) -> Result<Option<isize>>,
) -> Result<Attempt> {
    let signal = waiter(&stream.waiters)?;
    let result = (|| {
        let begin = Instant::now();
        let mut inner = stream.lock();
        loop {
            if inner.phase == Phase::Closed {
                return Err(Errno(libc::EBADF));
            }
            let mut has_changed = inner.process();
            if matches!(inner.phase, Phase::Connecting | Phase::Accepting) {
                has_changed |= inner.take_events();
            }
            if let Some(value) = step(&mut inner, progress)? {
                // The part of the ring that was read may be lent to the peer again.
                if inner.phase == Phase::Connected
                    && let Some(Err(error)) = inner.endpoint.as_mut().map(Endpoint::grant)
                {
                    inner.fail(error);
                }
                wake_others(&stream.waiters, has_changed);
                return Ok(Attempt::Done(value));
            }
            wake_others(&stream.waiters, has_changed);
            if is_nonblocking(&inner) {
                return Err(would_block);
            }
            if inner.phase == Phase::Connected && begin.elapsed() < Sockets::current()?.defaults.polling {
                continue;
            }
            let milliseconds = match progress.deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()).as_millis() as c_int,
                None => -1,
            };
            if let Some(fd) = Stream::arm(&mut inner, &is_ready)? {
                return Ok(progress.wait(fd, signal.fd(), milliseconds));
            }
        }
    })();
    if !matches!(result, Ok(Attempt::Wait { .. })) {
        stream.waiters.remove(&signal);
    }
    result
}

/// Wakes the other threads that wait for a stream that has changed.
pub(super) fn wake_others(waiters: &Waiters, has_changed: bool) {
    if has_changed {
        waiters.wake_others();
    }
}

/// Returns the error of a call on a stream that is not connected.
fn check_connected(inner: &Inner) -> Result<bool> {
    match inner.phase {
        Phase::Idle | Phase::Bound | Phase::Listening | Phase::Refused => Err(Errno(libc::ENOTCONN)),
        Phase::Closed => Err(Errno(libc::EBADF)),
        Phase::Connecting | Phase::Accepting => Ok(false),
        Phase::Connected | Phase::Disconnected | Phase::Failed => Ok(true),
    }
}

/// Tries to receive. Returns 0 at the end of the peer's data.
pub(super) fn receive(stream: &Stream, progress: &mut Progress, parts: Parts, flags: c_int) -> Result<Attempt> {
    let is_nonblocking = |inner: &Inner| inner.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let is_ready = |inner: &Inner| inner.has_data() || !inner.is_readable();
    let already = progress.done;
    let result = attempt(stream, progress, is_nonblocking, AGAIN, is_ready, |inner, progress| {
        if !check_connected(inner)? {
            return Ok(None);
        }
        take(inner, progress, parts, flags & libc::MSG_PEEK != 0)?;
        let waits = progress.done == 0 || flags & libc::MSG_WAITALL != 0;
        let is_partial = progress.done < parts.length && flags & libc::MSG_PEEK == 0;
        match inner.phase {
            _ if progress.done > 0 && !(waits && is_partial) => {}
            _ if parts.length == 0 => {}
            _ if inner.is_readable() => return Ok(None),
            // The data of the peer has no end here.
            Phase::Failed if progress.done == 0 => return Err(Errno(libc::ECONNRESET)),
            _ => {}
        }
        Ok(Some(progress.done as isize))
    });
    // Data that was received before an error is returned first.
    match result {
        Err(_) if already.max(progress.done) > 0 => Ok(Attempt::Done(progress.done as isize)),
        other => other,
    }
}

/// Copies received data to the program.
fn take(inner: &mut Inner, progress: &mut Progress, parts: Parts, peeks: bool) -> Result<()> {
    let Some(endpoint) = inner.endpoint.as_mut().filter(|endpoint| endpoint.flow.is_some()) else { return Ok(()) };
    let begin = progress.done;
    parts.each(begin, parts.length - begin, |address, length| {
        let skipped = if peeks { (progress.done - begin) as u32 } else { 0 };
        // No ring is larger, so that the count fits.
        let length = length.min(u32::MAX as usize);
        // SAFETY: the promise of `Parts::new`: the program's memory for the data.
        let copied = endpoint.copy_received(skipped, unsafe { std::slice::from_raw_parts_mut(address, length) })?;
        if !peeks && let Some(flow) = &mut endpoint.flow {
            flow.consume(copied);
        }
        progress.done += copied as usize;
        Ok(copied as usize == length)
    })
}

/// Tries to send all of the bytes.
pub(super) fn send(stream: &Stream, progress: &mut Progress, parts: Parts, flags: c_int) -> Result<Attempt> {
    send_by(stream, progress, parts.length, flags, Inner::can_send, |inner, done, length| {
        let Some(endpoint) = &mut inner.endpoint else { return Ok(0) };
        endpoint.send(
            length,
            |length| parts.contiguous(done, length),
            |skipped, length, put| parts.read(done + skipped, length, put),
        )
    })
}

/// Tries to write all of the bytes to the ranges that the peer has mapped from an offset on. Ends where none is mapped.
pub(super) fn write_mapped(
    stream: &Stream,
    progress: &mut Progress,
    parts: Parts,
    offset: u64,
    flags: c_int,
) -> Result<Attempt> {
    let mut is_outside = false;
    let can = |inner: &Inner| inner.flow_is(Flow::can_write_mapped);
    let length = parts.length;
    let result = send_by(stream, progress, length, flags, can, |inner, done, length| {
        let Some(endpoint) = &mut inner.endpoint else { return Ok(0) };
        let target = offset.checked_add(done as u64).and_then(|offset| endpoint.mapped(offset));
        let Some(target) = target else {
            is_outside = true;
            return Err(INVALID);
        };
        endpoint.write_mapped(
            target,
            length,
            |length| parts.contiguous(done, length),
            |skipped, length, put| parts.read(done + skipped, length, put),
        )
    });
    match result {
        Err(_) if is_outside => Ok(Attempt::Done(progress.done as isize)),
        other => other,
    }
}

fn send_by(
    stream: &Stream,
    progress: &mut Progress,
    length: usize,
    flags: c_int,
    can_send: impl Fn(&Inner) -> bool,
    mut post: impl FnMut(&mut Inner, usize, u32) -> Result<u32>,
) -> Result<Attempt> {
    let is_nonblocking = |inner: &Inner| inner.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let is_ready = |inner: &Inner| can_send(inner) || !inner.is_writable();
    let result = attempt(stream, progress, is_nonblocking, AGAIN, is_ready, |inner, progress| {
        if !check_connected(inner)? {
            return Ok(None);
        }
        if !inner.is_writable() {
            return Err(Errno(libc::ECONNRESET));
        }
        if !mapped::announce(inner)? {
            return Ok(None);
        }
        while progress.done < length {
            let most = (length - progress.done).min(progress.largest as usize) as u32;
            let sent = post(inner, progress.done, most)?;
            if sent == 0 {
                // A stop here may be long: completions free what the next message needs.
                if inner.process() && can_send(inner) {
                    continue;
                }
                return Ok(None);
            }
            progress.done += sent as usize;
            progress.largest = (progress.largest * 2).min(LARGEST);
        }
        Ok(Some(progress.done as isize))
    });
    match result {
        Err(_) if progress.done > 0 => Ok(Attempt::Done(progress.done as isize)),
        other => other,
    }
}

/// Tries to complete a connection.
///
/// # Safety
/// The address has `length` bytes.
pub(super) unsafe fn connect(
    stream: &Stream,
    progress: &mut Progress,
    address: *const libc::sockaddr,
) -> Result<Attempt> {
    if !progress.is_begun {
        // SAFETY: the caller's promise.
        unsafe { stream.connect(address)? };
        progress.is_begun = true;
    }
    let is_connecting = |inner: &Inner| matches!(inner.phase, Phase::Connecting | Phase::Accepting);
    attempt(
        stream,
        progress,
        Inner::is_nonblocking,
        Errno(libc::EINPROGRESS),
        |inner| !is_connecting(inner),
        |inner, _| match inner.phase {
            _ if is_connecting(inner) => Ok(None),
            Phase::Refused => Err(Errno(std::mem::take(&mut inner.error))),
            _ => Ok(Some(0)),
        },
    )
}

/// Tries to accept a connection. Returns its number.
pub(super) fn accept(stream: &Stream, progress: &mut Progress) -> Result<Attempt> {
    let signal = waiter(&stream.waiters)?;
    let accepted = stream.accept();
    if let Ok(None) = accepted
        && !stream.lock().is_nonblocking()
    {
        return Ok(progress.wait(-1, signal.fd(), -1));
    }
    stream.waiters.remove(&signal);
    accepted?.map(|child| Attempt::Done(child.number() as isize)).ok_or(AGAIN)
}

/// Tries to end directions of a connection, and waits until the peer has acknowledged everything.
pub(super) fn shutdown(stream: &Stream, progress: &mut Progress, how: c_int) -> Result<Attempt> {
    let deadline = *progress.deadline.get_or_insert_with(|| Instant::now() + CLOSING);
    let has_sent_all = |inner: &Inner| inner.phase != Phase::Connected || !inner.flow_is(|flow| !flow.has_sent_all());
    attempt(
        stream,
        progress,
        |_| false,
        AGAIN,
        has_sent_all,
        |inner, progress| {
            if Instant::now() >= deadline {
                tracing::warn!(
                    target: "rdma_verbs::rsocket",
                    "the peer of a socket has not acknowledged everything; closing does not wait longer"
                );
                return Ok(Some(0));
            }
            if !progress.is_begun {
                progress.is_begun = stream.begin_shutdown(inner, how)?;
            }
            let is_done = progress.is_begun && (how == libc::SHUT_RD || has_sent_all(inner));
            let waits = inner.phase == Phase::Connected && !is_done;
            Ok((!waits).then_some(0))
        },
    )
}
