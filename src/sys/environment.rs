//! Environment variables: the only module that reads them.
//!
//! A program with more privileges than its caller (setuid, setgid, file capabilities) must not trust the caller's
//! environment: a variable that names a file would let the caller write where only the program may. The kernel marks
//! such a program at its start (`AT_SECURE`), and the C library's `secure_getenv` hides all variables from it. This
//! module does the same, and logs a warning.

use super::own_user;

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

/// Returns whether the kernel keeps other processes of this user from tracing this one: a program that is privileged,
/// that has asked for it (`PR_SET_DUMPABLE`), for instance by changing its user, or that has capabilities which other
/// processes of its user lack. Those of root usually have the same ones.
pub(crate) fn is_protected() -> bool {
    // SAFETY: takes numbers and returns one.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    is_privileged() || dumpable != 1 || own_user() != 0 && has_capabilities()
}

/// Header of `capget(2)`: the version with 64 capabilities (`_LINUX_CAPABILITY_VERSION_3`), and the calling thread.
const OF_THIS_THREAD: [u32; 2] = [0x2008_0522, 0];
/// The effective, permitted and inheritable capabilities, for each half of the 64.
type Capabilities = [[u32; 3]; 2];

/// Returns whether this thread has capabilities, like that of a service to which the system has given some.
fn has_capabilities() -> bool {
    let (mut header, mut capabilities) = (OF_THIS_THREAD, Capabilities::default());
    // SAFETY: the kernel reads and writes the header's two numbers, and writes the six of the capabilities.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, &raw mut capabilities) };
    result == 0 && capabilities.iter().any(|[_, permitted, _]| *permitted != 0)
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

    #[test]
    fn capabilities_of_a_thread_are_seen() {
        let shown = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
            u64::from_str_radix(permitted.trim(), 16).unwrap() != 0
        };
        let changes = std::thread::spawn(move || {
            assert_eq!(has_capabilities(), shown());
            let (mut header, none) = (OF_THIS_THREAD, Capabilities::default());
            // SAFETY: the kernel reads and writes the header's two numbers, and reads the six of the capabilities. It
            // changes this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, &raw const none) }, 0);
            assert!(!has_capabilities() && !shown());
        });
        changes.join().unwrap();
    }
}
