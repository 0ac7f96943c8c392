//! Descriptors to wait on: event counters, timers, epoll sets; and waiting with a time limit.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::NotInherited;

/// An event counter, readable while it is not zero.
pub(crate) struct EventFd {
    _not_inherited: NotInherited,
    descriptor: OwnedFd,
    /// Whether reading it may block.
    blocks: bool,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Self::with_flags(libc::EFD_NONBLOCK)
    }

    /// Creates a blocking counter for a descriptor that programs get: its flags decide whether they block when they
    /// wait for events.
    pub(crate) fn for_programs() -> io::Result<Self> {
        Ok(Self { blocks: true, ..Self::with_flags(0)? })
    }

    fn with_flags(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let (descriptor, _not_inherited) = own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) })?;
        Ok(Self { _not_inherited, descriptor, blocks: false })
    }

    /// Makes it readable; a full counter already is. Returns false if the program has closed the descriptor, as daemons
    /// do with all open ones: then nothing can be signalled.
    pub(crate) fn signal(&self) -> bool {
        let one = 1u64;
        // SAFETY: the kernel reads eight bytes from a live local variable.
        let written = unsafe { libc::write(self.descriptor.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        written >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF)
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        if self.blocks { clear_at_once(&self.descriptor) } else { clear(&self.descriptor) }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A timer that is readable once it has expired.
pub(crate) struct Timer {
    _not_inherited: NotInherited,
    descriptor: OwnedFd,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes no pointers.
        let (descriptor, _not_inherited) = own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        Ok(Self { _not_inherited, descriptor })
    }

    /// Sets the timer: it becomes readable after this time. The previous setting is replaced.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        // Zero would disarm it.
        let after = after.max(Duration::from_nanos(1));
        let value = timespec(after);
        let interval = timespec(Duration::ZERO);
        let setting = libc::itimerspec { it_interval: interval, it_value: value };
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: the kernel reads one structure, which lives until the call returns; the old setting is not requested.
        check(unsafe { libc::timerfd_settime(descriptor, 0, &raw const setting, std::ptr::null_mut()) }).map(drop)
    }

    /// Makes it unreadable until it expires again.
    pub(crate) fn clear(&self) {
        clear(&self.descriptor);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Takes ownership of the result of a call that opens a descriptor.
fn own(made: libc::c_int) -> io::Result<(OwnedFd, NotInherited)> {
    let descriptor = check(made)?;
    // SAFETY: the kernel just created this descriptor for this call; it has no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let not_inherited = NotInherited::new(descriptor.as_fd());
    Ok((descriptor, not_inherited))
}

/// Makes an event counter or a timer unreadable.
fn clear(descriptor: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: the kernel writes at most eight bytes into a live local variable.
    unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
}

/// Makes a blocking event counter unreadable without blocking: the program may have read it already.
fn clear_at_once(descriptor: &OwnedFd) {
    const NOWHERE: libc::c_long = -1;
    let mut count = 0u64;
    let into = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: size_of::<u64>() };
    // SAFETY: the kernel writes at most eight bytes into a live local variable, which another one describes. Both
    // halves of the position mean that there is none.
    let read = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            descriptor.as_raw_fd(),
            &raw const into,
            1usize,
            NOWHERE,
            NOWHERE,
            libc::RWF_NOWAIT,
        )
    };
    // Kernels before 5.8 know the call, but not for event counters. Between the check and the read the program may be
    // quicker; then this thread blocks.
    let is_known = read >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
    if !is_known && wait_readable([descriptor.as_fd()], Some(Duration::ZERO)).is_ok_and(|[is_readable]| is_readable) {
        clear(descriptor);
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// The condition that an epoll set watches a descriptor for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// The descriptor is readable.
    Readable,
    /// The other end of a connection has closed it.
    End,
}

/// A set of descriptors that is readable while one of its members is. Descriptors leave it when they are closed.
pub(crate) struct Epoll {
    _not_inherited: NotInherited,
    descriptor: OwnedFd,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let (descriptor, _not_inherited) = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { _not_inherited, descriptor })
    }

    /// Adds a descriptor to the set.
    pub(crate) fn add(&self, descriptor: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, interest, 0)
    }

    /// Adds a descriptor that [`Epoll::ready`] names by this number.
    pub(crate) fn add_numbered(&self, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, Interest::Readable, number)
    }

    /// Changes what a member is watched for.
    pub(crate) fn change(&self, descriptor: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor, interest, 0)
    }

    /// Removes a member that stays open.
    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, descriptor, Interest::Readable, 0)
    }

    /// Returns the numbers of members that are readable, up to `N` of them, without waiting.
    pub(crate) fn ready<const N: usize>(&self) -> impl Iterator<Item = u64> + use<N> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
        // SAFETY: the kernel writes at most `N` event structures, which live until the call returns.
        let found = unsafe { libc::epoll_wait(self.descriptor.as_raw_fd(), events.as_mut_ptr(), N as i32, 0) };
        events.into_iter().take(usize::try_from(found).unwrap_or_default()).map(|event| event.u64)
    }

    fn control(
        &self,
        operation: libc::c_int,
        descriptor: BorrowedFd<'_>,
        interest: Interest,
        number: u64,
    ) -> io::Result<()> {
        let events = match interest {
            Interest::Readable => libc::EPOLLIN,
            // An error and the end of both directions are always reported.
            Interest::End => libc::EPOLLRDHUP,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: number };
        let (set, member) = (self.descriptor.as_raw_fd(), descriptor.as_raw_fd());
        // SAFETY: the kernel reads one event structure, which lives until the call returns.
        check(unsafe { libc::epoll_ctl(set, operation, member, &raw mut event) }).map(drop)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// Waits until one of the descriptors is readable or the time is over (`None`: for ever); returns which are readable. A
/// signal ends the wait early, with none readable.
pub(crate) fn wait_readable<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut entries = descriptors.map(entry);
    Ok(if wait(&mut entries, timeout)? { entries.map(|entry| entry.revents != 0) } else { [false; N] })
}

#[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
/// Does the same as [`wait_readable`] for any number of descriptors.
pub(crate) fn wait_any_readable(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut entries: Vec<_> = descriptors.iter().map(|descriptor| entry(*descriptor)).collect();
    let is_any = wait(&mut entries, timeout)?;
    Ok(entries.iter().map(|entry| is_any && entry.revents != 0).collect())
}

fn entry(descriptor: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// Waits until one of the descriptors is readable; returns false after a signal.
fn wait(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<bool> {
    let limit = timeout.map(timespec);
    let limit_pointer = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: the entries and the time limit live until the call returns, and the count is that of the entries. No
    // signal mask is given.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), count, limit_pointer, std::ptr::null()) };
    match check(ready) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn event_is_readable_until_cleared() {
        let event = EventFd::new().unwrap();
        assert_eq!(wait_readable([event.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
        event.signal();
        event.signal();
        assert_eq!(wait_readable([event.as_fd()], None).unwrap(), [true]);
        event.clear();
        assert_eq!(wait_readable([event.as_fd()], Some(Duration::from_micros(10))).unwrap(), [false]);
    }

    #[test]
    fn event_for_programs_never_blocks_whoever_clears_it() {
        let event = EventFd::for_programs().unwrap();
        event.clear();
        event.signal();
        event.signal();
        event.clear();
        assert_eq!(wait_readable([event.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
        event.clear();
    }

    #[test]
    fn event_for_programs_is_cleared_by_two_threads_at_once() {
        const ROUNDS: usize = 20_000;
        let event = EventFd::for_programs().unwrap();
        let (come, gone) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let end = Instant::now() + Duration::from_secs(30);
        // Without sleeping, or one of them would be late. A thread that waits too long wakes the other, so that both
        // end.
        let meet = |place: &AtomicUsize, round: usize| {
            place.fetch_add(1, Ordering::SeqCst);
            while place.load(Ordering::SeqCst) < 2 * (round + 1) {
                if Instant::now() > end {
                    event.signal();
                    panic!("the other thread waits in round {round}");
                }
                std::thread::yield_now();
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    for round in 0..ROUNDS {
                        event.signal();
                        meet(&come, round);
                        event.clear();
                        meet(&gone, round);
                    }
                });
            }
        });
        assert_eq!(wait_readable([event.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
    }

    #[test]
    fn timer_is_readable_from_its_time_on() {
        let timer = Timer::new().unwrap();
        assert_eq!(wait_readable([timer.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
        timer.set(Duration::from_secs(1_000)).unwrap();
        assert_eq!(wait_readable([timer.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
        timer.set(Duration::ZERO).unwrap();
        assert_eq!(wait_readable([timer.as_fd()], None).unwrap(), [true]);
        timer.clear();
        assert_eq!(wait_readable([timer.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
    }

    #[test]
    fn nested_sets_are_readable_with_their_members() {
        let (event, inner, outer) = (EventFd::new().unwrap(), Epoll::new().unwrap(), Epoll::new().unwrap());
        inner.add(event.as_fd(), Interest::Readable).unwrap();
        outer.add(inner.as_fd(), Interest::Readable).unwrap();
        assert_eq!(wait_readable([outer.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
        event.signal();
        assert_eq!(wait_readable([outer.as_fd()], Some(Duration::ZERO)).unwrap(), [true]);
        event.clear();
        assert_eq!(wait_readable([outer.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
    }
}
