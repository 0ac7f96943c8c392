//! The program's standard error output, of which a library is a guest: what cannot be written there at once is dropped.
//! A pipe that nobody empties stops nobody, one that nobody reads ends no process, and once the program has given the
//! number to something else, nothing is written there.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a pipe has room for if it says that it has room.
const MOST_BYTES: usize = 4096;
/// How often a thread looks whether another one has written its line.
const TRIES: usize = 100;

/// A line is being written. Not a lock that is waited for: in a forked child it stays taken.
static WRITING: AtomicBool = AtomicBool::new(false);

/// The file that it is: file system and number.
static FILE: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// Writes lines, each in one call.
#[derive(Clone, Copy)]
pub(crate) struct ErrorOutput;

impl ErrorOutput {
    /// Before this library has any descriptor, which might have got the number.
    pub(crate) fn begin() -> Self {
        FILE.get_or_init(|| about().map(|about| (about.st_dev, about.st_ino)));
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
        // Dropped or not, there is nothing to be done about it.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the descriptor still is the file that it was at the beginning, or another one that text is written to: not a
/// descriptor of the program's or of this library's own that got the number after the output was closed.
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
    // SAFETY: the kernel writes one structure, for which zero is valid as well.
    unsafe { (libc::fstat(libc::STDERR_FILENO, about.as_mut_ptr()) == 0).then(|| about.assume_init()) }
}

fn is_terminal() -> bool {
    // SAFETY: a call without memory.
    unsafe { libc::isatty(libc::STDERR_FILENO) == 1 }
}

fn is_appended_to() -> bool {
    // SAFETY: a call without memory.
    unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFL) & libc::O_APPEND != 0 }
}

/// Whether a line can be written without waiting, and somebody may read it.
fn has_room() -> bool {
    let mut asked = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one structure of our own.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 && asked.revents == libc::POLLOUT }
}

/// The same terminal or pipe by a description of its own, which does not wait: what says that it has room may have less
/// than a line needs. `None`: it is something else, or may not be opened.
fn without_waiting() -> Option<OwnedFd> {
    if !matches!(about()?.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFIFO) {
        return None;
    }
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the path lives until the call returns.
    let number = unsafe { libc::open(c"/proc/self/fd/2".as_ptr(), flags) };
    // SAFETY: just opened, and nobody else's.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Writes, without the signal that a pipe without a reader raises.
fn write(line: &[u8]) {
    let own = without_waiting();
    let descriptor = own.as_ref().map_or(libc::STDERR_FILENO, AsRawFd::as_raw_fd);
    let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: each set is written before it is read; the line lives until the call returns. The mask is put back as it
    // was, and the signal taken back only if it was not there before.
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
