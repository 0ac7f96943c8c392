//! The limits on the sizes of files and the number of descriptors.

/// Returns the largest size of a file that this process may write. A write beyond it raises `SIGXFSZ`, which ends the
/// process.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer refers to a whole `rlimit`, which the kernel writes.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    // Without an answer, no limit is known.
    if result == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Returns the number of descriptors that this process may have.
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer refers to a whole `rlimit`, which the kernel writes.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { u64::MAX }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tests_may_write_files() {
        assert!(file_size_limit() > 1 << 20);
    }
}
