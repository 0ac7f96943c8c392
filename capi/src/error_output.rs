//! Writes the log to the program's standard error output without disturbing the program: text that cannot be written
//! at once is dropped. A full pipe blocks no thread, a pipe without a reader raises no SIGPIPE, and once the program
//! has reused the descriptor's number, nothing is written there.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;

/// Number of bytes that fit into any pipe that is reported as writable.
const MOST_BYTES: usize = 4096;
/// Number of times that a thread checks whether another one has written its line, before it drops its own.
const TRIES: usize = 100;

/// Whether a line is being written. Not a mutex, because in a forked child it may stay taken forever.
static WRITING: AtomicBool = AtomicBool::new(false);

/// Identity of the output's file: device and inode number.
static FILE: OnceBox<Option<(u64, u64)>> = OnceBox::new();

/// Writes lines, each in one call.
#[derive(Clone, Copy)]
pub(crate) struct ErrorOutput;

impl ErrorOutput {
    /// Creates the output. Must be called before this library opens a descriptor, which might get the number of a
    /// closed output.
    pub(crate) fn begin() -> Self {
        FILE.get_or_init(|| Box::new(about().map(|about| (about.st_dev, about.st_ino))));
        Self
    }
}

impl io::Write for ErrorOutput {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let free = || WRITING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        for _ in 0..TRIES {
            if free() {
                if is_open() && has_room() {
                    write(&line[..line.len().min(MOST_BYTES)]);
                }
                WRITING.store(false, Ordering::Release);
                break;
            }
            std::thread::yield_now();
        }
        // Success even if the line was dropped, because the caller could not do anything about it.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns whether the descriptor is still the initial file, or another one meant for text: a terminal, or a file that
/// is appended to. Anything else is a descriptor of the program or of this library that got the number after the output
/// was closed.
fn is_open() -> bool {
    let Some(about) = about() else { return false };
    match about.st_mode & libc::S_IFMT {
        libc::S_IFCHR if is_terminal() => true,
        libc::S_IFREG if is_appended_to() => true,
        _ => FILE.get().copied().flatten() == Some((about.st_dev, about.st_ino)),
    }
}

fn about() -> Option<libc::stat> {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one structure, for which zero is also valid.
    unsafe { (libc::fstat(libc::STDERR_FILENO, about.as_mut_ptr()) == 0).then(|| about.assume_init()) }
}

fn is_terminal() -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::isatty(libc::STDERR_FILENO) == 1 }
}

fn is_appended_to() -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFL) & libc::O_APPEND != 0 }
}

/// Returns whether a line can be written without blocking, and whether the output still has a reader.
fn has_room() -> bool {
    let mut entry = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one local structure.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 && entry.revents == libc::POLLOUT }
}

/// Opens the same terminal or pipe again, with a separate, nonblocking file description: one that is reported as
/// writable may have less room than a line needs. Returns `None` if it is something else, or cannot be opened.
fn without_waiting() -> Option<OwnedFd> {
    if !matches!(about()?.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFIFO) {
        return None;
    }
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the path lives until the call returns.
    let number = unsafe { libc::open(c"/proc/self/fd/2".as_ptr(), flags) };
    // SAFETY: just opened, with no other owner.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Writes a line, without raising SIGPIPE if the output is a pipe without a reader.
fn write(line: &[u8]) {
    let own = without_waiting();
    let descriptor = own.as_ref().map_or(libc::STDERR_FILENO, AsRawFd::as_raw_fd);
    let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: each set is written before it is read; the line lives until the call returns. The mask is restored, and
    // the signal is consumed only if it was not pending before.
    unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::sigpending(pending.as_mut_ptr());
        let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), mask.as_mut_ptr());
        let written = libc::write(descriptor, line.as_ptr().cast(), line.len());
        if written < 0 && !was_pending && io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE) {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
}
