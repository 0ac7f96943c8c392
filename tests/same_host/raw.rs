//! Ping-pongs of words in shared memory.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Failure, Wait, pin, time};

const BYTES: usize = 4_096;
/// Offsets of the words, in units of their size: each has cache lines of its own.
const PING: usize = 0;
const PONG: usize = 64;
/// A ping that ends the other process.
const LAST: u32 = u32::MAX;

/// A mapping, which stays until the process ends.
struct Words(*mut AtomicU32);

impl Words {
    /// Maps the memory of a file of [`BYTES`] bytes.
    fn of(file: &impl AsRawFd) -> Result<Self, Failure> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free range; the file has the length of the mapping and nothing truncates it.
        let begin = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if begin == libc::MAP_FAILED { Err(std::io::Error::last_os_error().into()) } else { Ok(Self(begin.cast())) }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < BYTES / size_of::<AtomicU32>());
        // SAFETY: the mapping is aligned, has this word and stays; both processes access it with atomics only.
        unsafe { &*self.0.add(index) }
    }

    /// Waits until the word has changed from a value, and returns the new one.
    fn change(&self, index: usize, old: u32, wait: Wait) -> u32 {
        loop {
            let now = self.word(index).load(Ordering::Acquire);
            if now != old {
                return now;
            }
            match wait {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Yield => std::thread::yield_now(),
                Wait::Sleep => {
                    let word = self.word(index).as_ptr();
                    // SAFETY: the word exists, and there is no time limit.
                    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, old, std::ptr::null::<()>()) };
                }
            }
        }
    }

    fn set(&self, index: usize, value: u32, wait: Wait) {
        self.word(index).store(value, Ordering::Release);
        if wait == Wait::Sleep {
            // SAFETY: the word exists.
            unsafe { libc::syscall(libc::SYS_futex, self.word(index).as_ptr(), libc::FUTEX_WAKE, 1) };
        }
    }
}

struct Answering(Child);

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures half of a round trip in nanoseconds.
pub(super) fn measure(wait: Wait, length: Duration) -> Result<f64, Failure> {
    // SAFETY: the name is a string that ends with a zero.
    let created = unsafe { libc::memfd_create(c"words".as_ptr(), libc::MFD_CLOEXEC) };
    if created < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the call has just returned the descriptor, so nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(created) });
    file.set_len(BYTES as u64)?;
    let words = Words::of(&file)?;
    pin(wait, false)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--raw", &format!("{wait:?}").to_lowercase()]).stdin(Stdio::from(file));
    let _answering = Answering(command.spawn()?);
    let mut number = 0;
    let taken = time(length, || {
        words.set(PING, number + 1, wait);
        words.change(PONG, number, wait);
        number += 1;
        Ok(())
    });
    words.set(PING, LAST, wait);
    taken
}

/// The other process: its standard input is the memory.
pub(super) fn answer(wait: Wait) -> Result<(), Failure> {
    pin(wait, true)?;
    let words = Words::of(&std::io::stdin())?;
    let mut number = 0;
    loop {
        number = words.change(PING, number, wait);
        if number == LAST {
            return Ok(());
        }
        words.set(PONG, number, wait);
    }
}
