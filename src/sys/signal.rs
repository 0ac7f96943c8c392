//! Keeps signals away from the engine's threads: the application's threads handle them. The exceptions are fault
//! signals, which a thread raises itself: blocked, they would end the process whatever handler is installed.

use std::mem::MaybeUninit;

/// Runs `work` with all signals but those of faults blocked for this thread; threads started inside inherit the mask
/// and keep it.
pub(crate) fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set it is given, which the next two calls change. `pthread_sigmask` reads
    // that set and writes the previous mask; both are live local variables.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = work();
    if blocked {
        // SAFETY: the call above succeeded, so it wrote `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blocks(signal: libc::c_int) -> bool {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: no new mask is given; the current one is written into a live local variable and then read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn threads_started_inside_block_signals_and_the_caller_does_not() {
        let inside = with_signals_blocked(|| std::thread::spawn(|| blocks(libc::SIGTERM)));
        assert!(inside.join().unwrap());
        assert!(!blocks(libc::SIGTERM));
    }

    #[test]
    fn signals_of_faults_are_not_blocked() {
        let blocked = || [libc::SIGSEGV, libc::SIGBUS].map(blocks);
        assert_eq!(with_signals_blocked(|| std::thread::spawn(blocked)).join().unwrap(), [false; 2]);
    }
}
