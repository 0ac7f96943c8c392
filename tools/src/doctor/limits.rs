//! Limits of this process and of the kernel.

use std::net::{Ipv4Addr, UdpSocket};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{setsockopt, sockopt};

use super::check::Finding;
use super::system::{is_in_user_namespace, kernel_devices, number, size, status, sudo};

/// The least buffer that does not limit a stream: a quarter of the 4 MiB with which the figures of
/// `docs/performance.md` were measured.
const GOOD_BUFFER: u64 = 1 << 20;
/// The window of a standard peer: with less, streams between hosts lose packets.
const LEAST_BUFFER: u64 = 64 << 10;
/// Descriptors of a process with one device and some peers.
const LEAST_DESCRIPTORS: u64 = 128;
/// Each peer process and each exported region takes some more.
const GOOD_DESCRIPTORS: u64 = 1024;
/// Adapters pin the queues and all registered memory.
const LEAST_LOCKED: u64 = 64 << 20;
/// `CAP_IPC_LOCK` of `capabilities(7)`.
const CAP_IPC_LOCK: u32 = 14;

/// The receive buffer bounds the bytes that peers may have in flight.
pub(super) fn socket_buffers() -> Finding {
    let read = |name: &str| number(format!("/proc/sys/net/core/{name}"));
    judge_buffers(read("rmem_max"), read("wmem_max"))
}

fn judge_buffers(receive: Option<u64>, send: Option<u64>) -> Finding {
    let (Some(receive), Some(send)) = (receive, send) else {
        return Finding::skipped("/proc/sys/net/core/rmem_max and wmem_max cannot be read here");
    };
    let command = format!("{}sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304", sudo());
    let is = format!("rmem_max is {}, wmem_max is {}", size(receive), size(send));
    let least = receive.min(send);
    if least < LEAST_BUFFER {
        return Finding::problem(format!("{is}: packets of ordinary streams do not fit and are lost"), command);
    }
    if least >= GOOD_BUFFER {
        return Finding::ok(is);
    }
    // With a window of these bytes, a round trip of 1 ms gives window / 1 ms.
    let bound = receive / 1000;
    Finding::note(format!("{is}: peers may have only {} in flight", size(receive)))
        .detail(format!("a path with a round trip of 1 ms then carries at most {bound} MB/s; 4 MiB carry 4194 MB/s"))
        .detail("to keep it after a restart, add both settings to a file in /etc/sysctl.d")
        .command(command)
}

/// Bulk sends and receives, between peers with this software.
pub(super) fn segmentation() -> Finding {
    let socket = match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) {
        Ok(socket) => socket,
        Err(error) => return Finding::problem(format!("no UDP socket can be opened: {error}"), more_descriptors()),
    };
    let sends = setsockopt(&socket, sockopt::UdpGsoSegment, &1024).is_ok();
    let merges = setsockopt(&socket, sockopt::UdpGroSegment, &true).is_ok();
    judge_segmentation(sends, merges)
}

fn judge_segmentation(sends: bool, merges: bool) -> Finding {
    let why = match (sends, merges) {
        (true, true) => return Finding::ok("the kernel has UDP_SEGMENT and UDP_GRO"),
        (false, true) => "the kernel has no UDP_SEGMENT (Linux 4.18): each packet takes a system call",
        (true, false) => "the kernel has no UDP_GRO (Linux 5.0): packets are received one by one",
        (false, false) => {
            "the kernel has neither UDP_SEGMENT nor UDP_GRO (Linux 5.0): streams are several times slower"
        }
    };
    Finding::note(why).command("uname -r")
}

pub(super) fn descriptors() -> Finding {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) => judge_descriptors(soft, hard),
        Err(error) => Finding::skipped(format!("RLIMIT_NOFILE cannot be read: {}", error.desc())),
    }
}

/// Returns the command that gives the processes of a shell more descriptors.
pub(super) fn more_descriptors() -> String {
    raise_descriptors(getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard))
}

fn raise_descriptors(hard: u64) -> String {
    match hard.min(65_536) {
        wanted @ GOOD_DESCRIPTORS.. => format!("ulimit -n {wanted}"),
        _ => format!("{}prlimit --pid $$ --nofile=4096:4096", sudo()),
    }
}

fn judge_descriptors(soft: u64, hard: u64) -> Finding {
    let command = raise_descriptors(hard);
    if soft < LEAST_DESCRIPTORS {
        let why = format!("RLIMIT_NOFILE is {soft}: devices and connections to other processes need more descriptors");
        return Finding::problem(why, command);
    }
    if soft < GOOD_DESCRIPTORS {
        let why = format!("RLIMIT_NOFILE is {soft}: enough for some peers; each process and shared region takes more");
        return Finding::note(why).command(command);
    }
    Finding::ok(format!("RLIMIT_NOFILE is {soft}"))
}

/// Software devices pin nothing.
pub(super) fn memlock() -> Finding {
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) => soft,
        Err(error) => return Finding::skipped(format!("RLIMIT_MEMLOCK cannot be read: {}", error.desc())),
    };
    let capabilities = status("CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0);
    // The kernel requires the capability in the initial user namespace.
    let is_exempt = capabilities >> CAP_IPC_LOCK & 1 == 1 && !is_in_user_namespace();
    judge_memlock(limit, is_exempt, &kernel_devices())
}

fn judge_memlock(limit: u64, is_exempt: bool, adapters: &[String]) -> Finding {
    let is = match limit {
        u64::MAX => "RLIMIT_MEMLOCK is unlimited".to_owned(),
        _ => format!("RLIMIT_MEMLOCK is {}", size(limit)),
    };
    if adapters.is_empty() {
        return Finding::ok(format!("{is}; software devices lock no memory, and there are no adapters"));
    }
    if is_exempt {
        return Finding::ok(format!("{is}, but CAP_IPC_LOCK exempts this process"));
    }
    if limit >= LEAST_LOCKED {
        return Finding::ok(is);
    }
    let why = format!("{is}: {} locks all registered memory, and registrations beyond it fail", adapters.join(", "));
    // `limits.conf(5)`: "*" is for all users but root.
    let lines = "printf '%s\\n' '* - memlock unlimited' 'root - memlock unlimited'";
    Finding::problem(why, format!("{lines} | {}tee /etc/security/limits.d/rdma.conf", sudo()))
        .detail("then log in again; in a service: LimitMEMLOCK=infinity; in a container: --ulimit memlock=-1")
}

/// This library needs no such right; debuggers do.
pub(super) fn ptrace() -> Finding {
    judge_ptrace(number("/proc/sys/kernel/yama/ptrace_scope"))
}

fn judge_ptrace(scope: Option<u64>) -> Finding {
    match scope {
        None | Some(0) => Finding::ok("debuggers may attach to the processes of this user"),
        Some(scope) => {
            let who = if scope == 1 { "only to their own children, or as root" } else { "only as root, or not at all" };
            Finding::note(format!(
                "ptrace_scope is {scope}: gdb, strace and perf attach {who}; transfers do not need it"
            ))
            .command(format!("{}sysctl -w kernel.yama.ptrace_scope=0", sudo()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome::{Note, Ok, Problem, Skipped};
    use super::*;

    #[test]
    fn buffers_cost_speed_before_they_lose_packets() {
        let outcome = |receive, send| judge_buffers(receive, send).outcome;
        assert_eq!(outcome(Some(4 << 20), Some(4 << 20)), Ok);
        assert_eq!(outcome(Some(212_992), Some(4 << 20)), Note);
        assert_eq!(outcome(Some(4 << 20), Some(4096)), Problem);
        assert_eq!(outcome(None, Some(4096)), Skipped);
        let default = judge_buffers(Some(212_992), Some(212_992));
        assert!(default.details[0].contains("at most 212 MB/s"), "{default:?}");
    }

    #[test]
    fn descriptors_are_judged_by_the_soft_limit() {
        assert_eq!(judge_descriptors(1 << 20, 1 << 20).outcome, Ok);
        let some = judge_descriptors(256, 4096);
        assert_eq!((some.outcome, some.commands), (Note, vec!["ulimit -n 4096".to_owned()]));
        let few = judge_descriptors(40, 40);
        assert!(few.outcome == Problem && few.commands[0].contains("prlimit"), "{few:?}");
    }

    #[test]
    fn locked_memory_matters_to_adapters_only() {
        let adapter = ["mlx5_0".to_owned()];
        assert_eq!(judge_memlock(65_536, false, &[]).outcome, Ok);
        assert_eq!(judge_memlock(65_536, false, &adapter).outcome, Problem);
        assert_eq!(judge_memlock(65_536, true, &adapter).outcome, Ok);
        assert_eq!(judge_memlock(u64::MAX, false, &adapter).outcome, Ok);
    }

    #[test]
    fn old_kernels_are_slower() {
        assert_eq!(judge_segmentation(true, true).outcome, Ok);
        for (sends, merges) in [(true, false), (false, true), (false, false)] {
            assert_eq!(judge_segmentation(sends, merges).outcome, Note);
        }
    }

    #[test]
    fn debuggers_may_be_restricted() {
        assert_eq!([None, Some(0), Some(1), Some(3)].map(|scope| judge_ptrace(scope).outcome), [Ok, Ok, Note, Note]);
    }
}
