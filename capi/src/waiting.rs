//! Verbs that wait: what ends the waiting besides the event.
//!
//! A thread that waits for an event may be interrupted by a signal, and it may be cancelled (`pthread_cancel`), which
//! unwinds its stack from wherever it is. Frames of Rust that have something to clean up must not be unwound so, and
//! something that is half done would stay so. Hence a verb that waits is cancelled in one place only, which is a frame
//! that holds nothing; everywhere else it is not cancelled at all.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::error::{Errno, Result, set_errno};

/// What a look for an event came to.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) enum Look {
    /// The program has it.
    Found,
    /// There is none; this descriptor becomes readable when another look is worth it.
    Wait(RawFd),
    /// The verb fails.
    Failed(Errno),
}

impl From<Result<Look>> for Look {
    fn from(result: Result<Self>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}

mod unwinding {
    use std::ffi::c_int;

    pub(super) const CANCEL_DISABLE: c_int = 1;

    // As `libc` has them, but for the unwinding: these are where threads are cancelled.
    unsafe extern "C-unwind" {
        pub(super) fn poll(entries: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int;
        pub(super) fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
}

/// Sets whether the calling thread can be cancelled; what it was before.
#[inline]
fn set_cancel_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: writes to a live local variable; with this kind of cancellation nothing happens in here.
    unsafe { unwinding::pthread_setcancelstate(state, &raw mut before) };
    before
}

/// While this is there the calling thread is not cancelled.
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

/// Looks until there is an event, and waits in between. 0, or -1 and `errno`.
///
/// Nothing here or in its caller may need to be dropped, because this is where threads are cancelled: `look` is a plain
/// function's address with plain arguments, and does not unwind.
///
/// # Safety
/// The descriptor that `look` names is open until the next look.
#[inline(always)]
pub(crate) unsafe extern "C-unwind" fn wait_for(look: impl Fn() -> Look + Copy) -> c_int {
    loop {
        let before = set_cancel_state(unwinding::CANCEL_DISABLE);
        let looked = look();
        set_cancel_state(before);
        let descriptor = match looked {
            Look::Found => return 0,
            Look::Wait(descriptor) => descriptor,
            Look::Failed(error) => {
                set_errno(error);
                return -1;
            }
        };
        let mut asked = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure of our own, which nothing needs any more if the thread ends here.
        if unsafe { unwinding::poll(&raw mut asked, 1, -1) } < 0 && !goes_on() {
            return -1;
        }
        if asked.revents & libc::POLLNVAL != 0 {
            // The program has closed it, as daemons close all that is open.
            set_errno(Errno(libc::EBADF));
            return -1;
        }
    }
}

/// Whether waiting that has failed goes on; otherwise `errno` says why not.
fn goes_on() -> bool {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    let goes_on = error == libc::EINTR && !handlers_interrupt();
    set_errno(Errno(error));
    goes_on
}

/// Whether some signal's handler was installed so that it ends system calls. Waiting for a descriptor is ended by any
/// handler; reading from it, which the program takes this for, only by such a one. Faults do not count: they end no
/// waiting, and the runtimes of languages handle them.
fn handlers_interrupt() -> bool {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    (1..=libc::SIGRTMAX()).filter(|signal| !faults.contains(signal)).any(|signal| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: nothing is changed; the kernel writes one structure, for which zero is valid as well.
        let (known, action) = unsafe {
            let known = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
            (known, action.assume_init())
        };
        known
            && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// Fails with `EAGAIN` if the program does not let reading from a descriptor wait.
pub(crate) fn may_block(descriptor: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: a call without memory.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_NONBLOCK == 0 { Ok(()) } else { Err(Errno(libc::EAGAIN)) }
}
