//! Verbs that wait for events, and how signals and cancellation end a wait.
//!
//! A thread that waits for an event may be interrupted by a signal, and it may be cancelled (`pthread_cancel`), which
//! unwinds its stack from wherever it is. Unwinding must not pass Rust frames with destructors, nor leave anything half
//! done. A verb that waits therefore has a single cancellation point, in a frame without destructors; cancellation is
//! disabled in the rest of it, and in verbs that post, poll, arm or acknowledge ([`Uncancelled`]).

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::error::{Errno, Result, set_errno};

/// The result of polling for an event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum PollResult {
    /// An event was returned to the program.
    Found,
    /// No event; this descriptor becomes readable when polling again is worthwhile.
    Wait(RawFd),
    /// The verb fails.
    Failed(Errno),
}

impl From<Result<PollResult>> for PollResult {
    fn from(result: Result<Self>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}

mod unwinding {
    use std::ffi::c_int;

    pub(super) const CANCEL_DISABLE: c_int = 1;

    // As in `libc`, except that they may unwind, because a thread may be cancelled in them.
    unsafe extern "C-unwind" {
        pub(super) fn poll(entries: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int;
        pub(super) fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
}

/// Sets whether the calling thread can be cancelled, and returns the previous state.
#[inline]
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: writes to a live local variable; with deferred cancellation nothing is unwound in this call.
    unsafe { unwinding::pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Disables cancellation of the calling thread until it is dropped.
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self(set_cancel_state(unwinding::CANCEL_DISABLE))
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        set_cancel_state(self.0);
    }
}

/// Returns a function for librdmacm's table: one in which a thread may be cancelled is there itself. The others hold
/// locks and values with destructors where they write to descriptors or to the log, which are cancellation points of
/// the C library.
macro_rules! table_entry {
    ("C-unwind" $name:ident $arguments:tt -> $result:ty) => {
        $name
    };
    ("C" $name:ident($($argument:ident: $kind:ty),*) -> $result:ty) => {{
        unsafe extern "C" fn uncancelled($($argument: $kind),*) -> $result {
            let _held = $crate::waiting::Uncancelled::begin();
            // SAFETY: the caller's promise: the function's own arguments.
            unsafe { $name($($argument),*) }
        }
        uncancelled
    }};
}

pub(crate) use table_entry;

/// Polls until there is an event, and waits in between. Returns 0, or -1 and `errno`.
///
/// Neither this function nor its caller may hold a value with a destructor, because threads are cancelled here.
/// `try_event` only calls a function with plain arguments, and does not unwind.
///
/// # Safety
/// The descriptor that `try_event` returns stays open until the next call.
#[inline(always)]
pub(crate) unsafe extern "C-unwind" fn wait_for(try_event: impl Fn() -> PollResult + Copy) -> c_int {
    loop {
        let before = set_cancel_state(unwinding::CANCEL_DISABLE);
        let result = try_event();
        set_cancel_state(before);
        let descriptor = match result {
            PollResult::Found => return 0,
            PollResult::Wait(descriptor) => descriptor,
            PollResult::Failed(error) => {
                set_errno(error);
                return -1;
            }
        };
        let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one local structure, which is not needed any more if the thread ends here.
        if unsafe { unwinding::poll(&raw mut entry, 1, -1) } < 0 && !should_retry() {
            return -1;
        }
        if entry.revents & libc::POLLNVAL != 0 {
            // The program has closed it, as daemons close all open descriptors.
            set_errno(Errno(libc::EBADF));
            return -1;
        }
    }
}

/// The result of trying a call that may have to wait for one of several descriptors.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Attempt {
    /// The call returns this number.
    Done(isize),
    /// Trying again is worthwhile when a descriptor has an event, or after so many milliseconds. The entries are those
    /// of a list that stays until the next attempt.
    Wait {
        entries: *mut libc::pollfd,
        count: usize,
        milliseconds: c_int,
    },
    Failed(Errno),
}

impl From<Result<Attempt>> for Attempt {
    fn from(result: Result<Self>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}

/// Tries a call until it is done, and waits in between. `restarts` tells whether signals whose handlers were installed
/// with `SA_RESTART` leave it waiting. Returns -1 and `errno` if it fails. `give_up` is called if the wait fails.
///
/// Neither this function nor its caller may hold a value with a destructor, because threads are cancelled here. The
/// functions only call one with plain arguments, and do not unwind.
///
/// # Safety
/// The list that `attempt` returns stays until the next call of it.
#[inline(always)]
pub(crate) unsafe extern "C-unwind" fn wait_for_any(
    restarts: bool,
    attempt: impl Fn() -> Attempt + Copy,
    give_up: impl Fn() + Copy,
) -> isize {
    loop {
        let before = set_cancel_state(unwinding::CANCEL_DISABLE);
        let result = attempt();
        set_cancel_state(before);
        let (entries, count, milliseconds) = match result {
            Attempt::Done(value) => return value,
            Attempt::Wait { entries, count, milliseconds } => (entries, count, milliseconds),
            Attempt::Failed(error) => {
                set_errno(error);
                return -1;
            }
        };
        // SAFETY: the caller's promise.
        if unsafe { unwinding::poll(entries, count as libc::nfds_t, milliseconds) } < 0 && !(restarts && should_retry())
        {
            let error = crate::error::last_errno();
            give_up();
            set_errno(error);
            return -1;
        }
    }
}

/// Returns whether to continue a wait that failed. If not, `errno` has the reason.
fn should_retry() -> bool {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    let should_retry = error == libc::EINTR && !handlers_interrupt();
    set_errno(Errno(error));
    should_retry
}

/// Returns whether any signal's handler is installed to interrupt system calls (without `SA_RESTART`). Any handler
/// interrupts `poll`, but only such a handler interrupts `read`, and programs expect these verbs to behave like `read`.
/// Handlers of faults do not count: faults interrupt no wait, and language runtimes install such handlers.
fn handlers_interrupt() -> bool {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    (1..=libc::SIGRTMAX()).filter(|signal| !faults.contains(signal)).any(|signal| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: nothing is changed; the kernel writes one structure, for which zero is also valid.
        let (known, action) = unsafe {
            let known = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
            (known, action.assume_init())
        };
        known
            && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// Fails with `EAGAIN` if the program made reading from a descriptor nonblocking.
pub(crate) fn may_block(descriptor: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the call takes no pointers.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_NONBLOCK == 0 { Ok(()) } else { Err(Errno(libc::EAGAIN)) }
}
