//! Environment variables: the only module that reads them.
//!
//! A program with more privileges than its caller (setuid, setgid, file capabilities) must not trust the caller's
//! environment: a variable that names a file would let the caller write where only the program may. The kernel marks
//! such a program at its start (`AT_SECURE`), and the C library's `secure_getenv` hides all variables from it. This
//! module does the same, and logs a warning.

/// Returns the value of an environment variable; `None` if it is not set, is not text, or must not be trusted.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    if !is_privileged() {
        return Some(value);
    }
    if !value.is_empty() {
        tracing::warn!(
            target: "rdma_verbs::settings",
            "{name} is ignored: this program has more privileges than the user who started it"
        );
    }
    None
}

/// Returns whether this program was started with more privileges than its caller has.
fn is_privileged() -> bool {
    // SAFETY: takes a number and reads the auxiliary vector that the kernel passed to the process at its start.
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
