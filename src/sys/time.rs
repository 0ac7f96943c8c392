//! The system's clocks, in nanoseconds.

/// Nanoseconds since an arbitrary point in the past. The standard library's clock keeps seconds and nanoseconds apart,
/// which costs a third more: much, for a value read twice per message.
#[inline]
pub(crate) fn monotonic_nanos() -> u64 {
    nanos_of(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds for which the calling thread has had a processor.
pub(crate) fn thread_nanos() -> u64 {
    nanos_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn nanos_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer refers to a whole `timespec`.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    debug_assert_eq!(result, 0, "every Linux has this clock");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
