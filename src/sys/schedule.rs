//! Scheduler attributes of a thread.

use std::io;

/// The shortest slice that Linux accepts.
const SLICE_NANOSECONDS: u64 = 100_000;
const NORMAL: u32 = libc::SCHED_OTHER as u32;

/// Requests short time slices for this thread: from Linux 6.12 on, a thread that wakes up goes before one that computes
/// with longer slices on the same core. Its share of the processor stays the same. This needs no privilege; older
/// kernels ignore it. A thread in a scheduling class other than the normal one is left unchanged.
pub(crate) fn ask_for_short_slices() -> io::Result<()> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: zeros are valid for all fields, which are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes into a live local variable. Thread 0 is the calling one.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    if attributes.sched_policy != NORMAL {
        return Ok(());
    }
    attributes.size = size;
    attributes.sched_runtime = SLICE_NANOSECONDS;
    // SAFETY: the kernel reads `size` bytes of a live local variable.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// Returns how often this thread was preempted by another one.
pub(crate) fn involuntary_switches() -> u64 {
    // SAFETY: zeros are valid for all fields, which are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one structure into a live local variable. It fails for wrong arguments only.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw as u64
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn switches_are_counted_per_thread() {
        let before = involuntary_switches();
        assert!(std::thread::spawn(involuntary_switches).join().unwrap() <= 100);
        assert!(involuntary_switches() >= before);
    }

    #[test]
    fn nothing_else_about_the_thread_changes() {
        let asked = std::thread::spawn(|| {
            // SAFETY: takes no pointers.
            let before = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
            ask_for_short_slices().unwrap();
            // SAFETY: as above.
            (before, unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) })
        });
        let (before, after) = asked.join().unwrap();
        assert_eq!(before, after);
    }
}
