//! Environment variables: the only place that reads them.
//!
//! A program that has more rights than its caller (setuid, setgid, file capabilities) must not take orders from the
//! caller's environment: a variable that names a file would have the caller write where only the program may. The
//! kernel marks such a program at its start (`AT_SECURE`), and the C library's `secure_getenv` hides all variables from
//! it. This module does the same, and says so.

/// The value of an environment variable; `None` if it is not set, is not text, or must not be trusted.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    if !is_privileged() {
        return Some(value);
    }
    if !value.is_empty() {
        tracing::warn!("{name} is ignored: this program has more rights than the user who started it");
    }
    None
}

/// Whether this program was started with more rights than its caller has.
fn is_privileged() -> bool {
    // SAFETY: takes a number and reads what the kernel gave the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read() {
        assert_eq!(variable("PATH"), std::env::var("PATH").ok());
        assert_eq!(variable("RDMA_VERBS_THAT_IS_NOT_SET"), None);
        assert!(!is_privileged());
    }
}
