//! Handling of forks: a child gets copies of all descriptors, but none of the engine's threads. Its copies must not
//! keep sockets and locks of the parent alive, so the child replaces each registered descriptor with one for
//! `/dev/null`. The number stays taken, so a later close of it closes nothing else.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// Number of descriptors that can be replaced; the child keeps its copies of any further ones.
const PLACES: usize = 8_192;
const FREE: i32 = -1;

/// Counts the forks since the first process of this program that called [`watch_forks`], by one each or a few more.
static GENERATION: AtomicUsize = AtomicUsize::new(0);
static DESCRIPTORS: [AtomicI32; PLACES] = [const { AtomicI32::new(FREE) }; PLACES];
/// Slots from this index on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The process that an object was created in: a forked child is a different one, and does not own the objects it
/// inherits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation(usize);

impl Generation {
    /// Returns the generation of this process.
    #[inline]
    pub(crate) fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether this is the current process.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self == Self::now()
    }

    /// Returns a number that differs from those of the processes that this one was forked from.
    pub(crate) fn number(self) -> usize {
        self.0
    }
}

/// Makes each later fork begin a generation.
///
/// Threads that call it first at the same time each register the handler, which then counts each fork more than once.
/// A lock would count them once, but stay taken in a child that is forked meanwhile.
pub(crate) fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler only makes calls that are allowed between fork and exec, and is never unloaded before
        // the program ends.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        IS_WATCHED.store(true, Ordering::Release);
    }
}

/// Keeps a descriptor from surviving in children, until dropped. Drop it before the descriptor is closed.
pub(crate) struct NotInherited {
    place: Option<usize>,
    generation: Generation,
}

impl NotInherited {
    /// Registers a descriptor that its owner closes after dropping this.
    pub(crate) fn new(descriptor: BorrowedFd<'_>) -> Self {
        watch_forks();
        let number = descriptor.as_raw_fd();
        let claim = |place: &usize| {
            DESCRIPTORS[*place].compare_exchange(FREE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = (0..PLACES).find(claim);
        if let Some(place) = place {
            USED.fetch_max(place + 1, Ordering::AcqRel);
        }
        Self { place, generation: Generation::now() }
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        // In a child the slot may hold another descriptor by now.
        if let Some(place) = self.place
            && self.generation.is_current()
        {
            DESCRIPTORS[place].store(FREE, Ordering::Release);
        }
    }
}

/// Runs in the child before `fork` returns there. Only system calls and atomics are allowed.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a constant string with its terminator; the call is allowed here.
    let nowhere = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for place in &DESCRIPTORS[..USED.load(Ordering::Acquire)] {
        let descriptor = place.swap(FREE, Ordering::Relaxed);
        if descriptor == FREE {
            continue;
        }
        // SAFETY: the descriptor is a registered one; nothing in the child uses it in its old role, because its
        // owner belongs to another generation.
        unsafe {
            match nowhere {
                0.. => libc::dup3(nowhere, descriptor, libc::O_CLOEXEC),
                // Without a spare descriptor the number becomes free, which is the lesser evil.
                _ => libc::close(descriptor),
            };
        }
    }
    if nowhere >= 0 {
        // SAFETY: just opened here, and not shared with any other code.
        unsafe { libc::close(nowhere) };
    }
}

/// Runs a check in a forked child; the returned function waits for its result. The child has only this thread.
#[cfg(test)]
pub(crate) fn check_in_child(check: impl FnOnce() -> bool) -> impl FnOnce() -> bool {
    watch_forks();
    // SAFETY: the child runs the check, which uses no lock that another thread may hold, and exits without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    move || {
        let mut status = -1;
        // SAFETY: waits for the child of this process, and the kernel writes one number.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        waited == child && status == 0
    }
}
