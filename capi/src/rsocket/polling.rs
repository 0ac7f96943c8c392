//! Waiting for several sockets and ordinary descriptors.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inside::Inside;
use super::sockets::{Socket, Sockets};
use super::stream::{Inner, Phase, Stream};
use super::transfer::wake_others;
use super::waiters::{Signal, Waiters};
use crate::error::{Errno, INVALID, Result, last_errno, set_errno};
use crate::waiting::{Attempt, wait_for_any};

/// Largest number of descriptors.
const MAX_ENTRIES: usize = 1 << 20;

thread_local! {
    /// The entries that the thread waits for, and those of `rselect`. Both stay as long as the thread, which may be
    /// cancelled while it waits.
    static WAITED: RefCell<Vec<libc::pollfd>> = const { RefCell::new(Vec::new()) };
    static SELECTED: RefCell<Vec<libc::pollfd>> = const { RefCell::new(Vec::new()) };
}

fn waiters(socket: &Socket) -> &Waiters {
    match socket {
        Socket::Stream(stream) => &stream.waiters,
        Socket::Datagram(datagram) => &datagram.waiters,
    }
}

/// Returns the events of a stream, of those in `asked`, and errors.
fn events_of(inner: &Inner, asked: i16) -> i16 {
    let mut found = 0;
    let mut add = |event: i16, is_so: bool| found |= if is_so { event } else { 0 };
    match inner.phase {
        Phase::Listening => add(libc::POLLIN, !inner.listening.accepted.is_empty()),
        Phase::Connected | Phase::Disconnected | Phase::Failed => {
            add(libc::POLLIN, inner.has_data() || !inner.is_readable());
            add(libc::POLLOUT, inner.can_send());
        }
        Phase::Refused => add(libc::POLLIN | libc::POLLOUT, true),
        _ => {}
    }
    found &= asked;
    match inner.phase {
        // Programs take it for the end, so that data which the thread waits for comes before it.
        Phase::Disconnected if found & libc::POLLIN != 0 && inner.has_data() => found,
        Phase::Disconnected => found | libc::POLLHUP,
        Phase::Failed | Phase::Refused => found | libc::POLLERR,
        Phase::Closed => libc::POLLNVAL,
        _ => found,
    }
}

/// Returns the events of a stream; if there are none and the thread is going to wait, also the descriptor for that.
fn check_stream(stream: &Stream, asked: i16, waits: bool) -> Result<(i16, RawFd)> {
    let mut inner = stream.lock();
    let mut has_changed = inner.process();
    if matches!(inner.phase, Phase::Connecting | Phase::Accepting) {
        has_changed |= inner.take_events();
    }
    let mut found = events_of(&inner, asked);
    let mut fd = -1;
    if found == 0 && waits {
        match Stream::arm(&mut inner, |inner| events_of(inner, asked) != 0)? {
            Some(armed) => fd = armed,
            None => found = events_of(&inner, asked),
        }
    }
    drop(inner);
    wake_others(&stream.waiters, has_changed);
    Ok((found, fd))
}

/// Looks at all entries once. Returns the number of those with events. If there are none and the thread is going to
/// wait, `waited` has what to wait for.
fn check(entries: &mut [libc::pollfd], waited: &mut Vec<libc::pollfd>, waits: bool) -> Result<c_int> {
    let mut count = 0;
    waited.clear();
    for entry in entries.iter_mut() {
        let mut to_wait = libc::pollfd { fd: entry.fd, events: entry.events, revents: 0 };
        entry.revents = 0;
        if let Ok(socket) = Sockets::find(entry.fd) {
            let (found, fd) = match &socket {
                Socket::Stream(stream) => check_stream(stream, entry.events, waits)?,
                Socket::Datagram(datagram) => datagram.check(entry.events, waits)?,
            };
            entry.revents = found;
            (to_wait.fd, to_wait.events) = (fd, libc::POLLIN);
            count += c_int::from(found != 0);
        }
        waited.push(to_wait);
    }
    // The ordinary ones at once.
    let mut ordinary: Vec<(usize, libc::pollfd)> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.fd >= 0 && Sockets::find(entry.fd).is_err() {
            ordinary.push((index, libc::pollfd { revents: 0, ..*entry }));
        }
    }
    if !ordinary.is_empty() {
        let mut list: Vec<libc::pollfd> = ordinary.iter().map(|(_, entry)| *entry).collect();
        // SAFETY: a local list, with its length.
        if unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, 0) } < 0 {
            return Err(last_errno());
        }
        for ((index, _), polled) in ordinary.iter().zip(&list) {
            entries[*index].revents = polled.revents;
            count += c_int::from(polled.revents != 0);
        }
    }
    Ok(count)
}

/// The time of a call. It stays where it is until the call ends.
#[repr(C)]
struct Time {
    begin: Instant,
    milliseconds: c_int,
    is_registered: bool,
}

impl Time {
    fn new(milliseconds: c_int) -> Self {
        Self { begin: Instant::now(), milliseconds, is_registered: false }
    }

    /// Returns the time that is left; `None` for no limit.
    fn left(&self) -> Option<Duration> {
        let all = Duration::from_millis(u64::try_from(self.milliseconds).ok()?);
        Some(all.saturating_sub(self.begin.elapsed()))
    }
}

/// # Safety
/// The entries are the program's, or none.
unsafe fn slice<'a>(entries: *mut libc::pollfd, count: usize) -> Result<&'a mut [libc::pollfd]> {
    match count {
        0 => Ok(&mut []),
        _ if entries.is_null() => Err(Errno(libc::EFAULT)),
        count if count > MAX_ENTRIES => Err(INVALID),
        // SAFETY: the caller's promise.
        count => Ok(unsafe { std::slice::from_raw_parts_mut(entries, count) }),
    }
}

/// Adds the thread to the waiters of all sockets, or removes it.
fn register(entries: &[libc::pollfd], signal: &Arc<Signal>, is_on: bool) {
    for socket in entries.iter().filter_map(|entry| Sockets::find(entry.fd).ok()) {
        match is_on {
            true => waiters(&socket).add(signal),
            false => waiters(&socket).remove(signal),
        }
    }
}

fn poll_once(entries: &mut [libc::pollfd], time: &mut Time, waited: &mut Vec<libc::pollfd>) -> Result<Attempt> {
    let defaults = Sockets::current()?.defaults;
    loop {
        let count = check(entries, waited, false)?;
        let is_over = time.left().is_some_and(|left| left.is_zero());
        if count > 0 || is_over {
            return Ok(Attempt::Done(count as isize));
        }
        if time.is_registered || time.begin.elapsed() >= defaults.polling {
            break;
        }
    }
    let signal = Signal::of_thread()?;
    signal.clear();
    register(entries, &signal, true);
    time.is_registered = true;
    let count = check(entries, waited, true)?;
    if count > 0 {
        return Ok(Attempt::Done(count as isize));
    }
    let own = libc::pollfd { fd: signal.fd(), events: libc::POLLIN, revents: 0 };
    waited.push(own);
    // A fraction of a millisecond is one: otherwise the end would be busy.
    let left = time.left().map_or(defaults.wake_up, |left| left.min(defaults.wake_up));
    let milliseconds = left.as_micros().div_ceil(1000) as c_int;
    Ok(Attempt::Wait { entries: waited.as_mut_ptr(), count: waited.len(), milliseconds })
}

/// # Safety
/// The entries are the program's, and `time` is the caller's.
unsafe extern "C" fn try_poll(entries: *mut libc::pollfd, count: usize, time: *mut Time) -> Attempt {
    let poll = || {
        let _inside = Inside::begin();
        // SAFETY: the caller's promise.
        let (entries, time) = unsafe { (slice(entries, count)?, &mut *time) };
        let polled = WAITED
            .try_with(|waited| poll_once(entries, time, &mut waited.borrow_mut()))
            .unwrap_or(Err(Errno(libc::ENOMEM)));
        if time.is_registered && !matches!(polled, Ok(Attempt::Wait { .. })) {
            register(entries, &Signal::of_thread()?, false);
        }
        polled
    };
    poll().into()
}

/// # Safety
/// The entries are the program's.
unsafe extern "C" fn give_up(entries: *mut libc::pollfd, count: usize) {
    // SAFETY: the caller's promise.
    if let (Ok(entries), Ok(signal)) = (unsafe { slice(entries, count) }, Signal::of_thread()) {
        register(entries, &signal, false);
    }
}

pub(super) unsafe extern "C-unwind" fn rpoll(
    entries: *mut libc::pollfd,
    count: libc::nfds_t,
    milliseconds: c_int,
) -> c_int {
    let mut time = Time::new(milliseconds);
    let (time, count) = (&raw mut time, count as usize);
    // SAFETY: the program's entries. Those that the thread waits for stay until the next attempt.
    unsafe { wait_for_any(false, || try_poll(entries, count, time), || give_up(entries, count)) as c_int }
}

/// The sets of `rselect`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sets {
    count: c_int,
    /// For reading, writing, and exceptions; each may be null.
    sets: [*mut libc::fd_set; 3],
}

impl Sets {
    /// Returns whether a descriptor is in a set.
    ///
    /// # Safety
    /// The sets are the program's, and the descriptor is less than `FD_SETSIZE`.
    unsafe fn has(&self, set: usize, fd: RawFd) -> bool {
        // SAFETY: the caller's promise.
        !self.sets[set].is_null() && unsafe { libc::FD_ISSET(fd, self.sets[set]) }
    }
}

/// Makes entries of the sets; returns their list. Fails with a null pointer and `errno`.
///
/// # Safety
/// The sets are the program's.
unsafe extern "C" fn entries_of(sets: *const Sets, count: *mut usize) -> *mut libc::pollfd {
    // SAFETY: the caller's promise.
    let sets = unsafe { &*sets };
    if !(0..=libc::FD_SETSIZE as c_int).contains(&sets.count) {
        set_errno(INVALID);
        return std::ptr::null_mut();
    }
    let make = |entries: &RefCell<Vec<libc::pollfd>>| {
        let mut entries = entries.borrow_mut();
        entries.clear();
        // A list without entries has an address as well.
        entries.reserve(1);
        for fd in 0..sets.count {
            // SAFETY: the caller's promise, and the check above.
            let [reads, writes, excepts] = [0, 1, 2].map(|set| unsafe { sets.has(set, fd) });
            let events = if reads { libc::POLLIN } else { 0 } | if writes { libc::POLLOUT } else { 0 };
            if reads || writes || excepts {
                entries.push(libc::pollfd { fd, events, revents: 0 });
            }
        }
        // SAFETY: the caller's promise.
        unsafe { count.write(entries.len()) };
        entries.as_mut_ptr()
    };
    SELECTED.try_with(make).unwrap_or_else(|_| {
        set_errno(Errno(libc::ENOMEM));
        std::ptr::null_mut()
    })
}

/// Puts the events of the entries into the sets; returns their number.
///
/// # Safety
/// The sets and the entries are those of [`entries_of`].
unsafe extern "C" fn to_sets(sets: *const Sets, entries: *mut libc::pollfd, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    let (sets, Ok(entries)) = (unsafe { &*sets }, (unsafe { slice(entries, count) })) else { return -1 };
    let wanted = [libc::POLLIN | libc::POLLHUP, libc::POLLOUT, !(libc::POLLIN | libc::POLLOUT)];
    let mut found = 0;
    for (set, events) in sets.sets.iter().zip(wanted).filter(|(set, _)| !set.is_null()) {
        // SAFETY: the program's set.
        unsafe { libc::FD_ZERO(*set) };
        for entry in entries.iter().filter(|entry| entry.revents & events != 0) {
            // SAFETY: as above.
            unsafe { libc::FD_SET(entry.fd, *set) };
            found += 1;
        }
    }
    found
}

pub(super) unsafe extern "C-unwind" fn rselect(
    count: c_int,
    readable: *mut libc::fd_set,
    writable: *mut libc::fd_set,
    exceptional: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    let sets = Sets { count, sets: [readable, writable, exceptional] };
    let mut entry_count = 0;
    // SAFETY: the program's sets and time; the entries stay until this thread's next call.
    unsafe {
        let entries = entries_of(&raw const sets, &raw mut entry_count);
        if entries.is_null() {
            return -1;
        }
        let milliseconds = match timeout.is_null() {
            true => -1,
            false => {
                let (seconds, micros) = ((*timeout).tv_sec, (*timeout).tv_usec);
                let all = seconds.saturating_mul(1000).saturating_add(micros.saturating_add(999) / 1000);
                all.clamp(0, c_int::MAX.into()) as c_int
            }
        };
        match rpoll(entries, entry_count as libc::nfds_t, milliseconds) {
            found if found < 0 => found,
            _ => to_sets(&raw const sets, entries, entry_count),
        }
    }
}
