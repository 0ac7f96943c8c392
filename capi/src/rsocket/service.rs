//! The thread that serves the sockets of a process: it accepts peers' requests, completes connections, learns of their
//! end, exchanges the addresses of datagram sockets, and keeps connections alive.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::inside::Inside;
use super::sockets::{Socket, Sockets};
use crate::error::{Errno, Result, last_errno};

/// Number of events taken at a time.
const EVENTS: usize = 64;

/// Starts the thread, which blocks all signals.
pub(super) fn start(sockets: &'static Sockets) -> Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: sockets.alarm.fd() as u64 };
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: local structures; `sigfillset` initialises the set that the next call reads, which fills the other.
    unsafe {
        if libc::epoll_ctl(sockets.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, sockets.alarm.fd(), &raw mut event) != 0 {
            return Err(last_errno());
        }
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = std::thread::Builder::new().name("rsockets".to_owned()).spawn(move || run(sockets));
    // SAFETY: the set that the call above has filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started.map(drop).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
}

/// Serves as long as the process lives.
fn run(sockets: &'static Sockets) {
    let _inside = Inside::begin();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    loop {
        let timeout = keep_alive(sockets).map_or(-1, |wait| wait.as_millis().clamp(1, 60_000) as i32);
        // SAFETY: writes to the local list.
        let found = unsafe { libc::epoll_wait(sockets.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, timeout) };
        for event in events.iter().take(usize::try_from(found).unwrap_or(0)) {
            let number = event.u64 as RawFd;
            if number == sockets.alarm.fd() {
                sockets.alarm.clear();
            }
            match sockets.watched(number) {
                Some(Socket::Stream(stream)) => stream.serve(sockets),
                Some(Socket::Datagram(datagram)) => datagram.serve(),
                None => {}
            }
        }
    }
}

/// Sends what keeps connections alive. Returns the time until the next.
fn keep_alive(sockets: &Sockets) -> Option<Duration> {
    if sockets.kept_alive.load(Ordering::Acquire) == 0 {
        return None;
    }
    let now = Instant::now();
    let due = sockets.all().into_iter().filter_map(|socket| match socket {
        Socket::Stream(stream) => stream.keep_alive(now),
        Socket::Datagram(_) => None,
    });
    due.min()
}
