//! Limits of containers.

use std::path::{Path, PathBuf};

use super::check::Finding;
use super::system::{is_in_user_namespace, number, read, size, status, sudo};
use crate::common::quoted;

const GROUPS: &str = "/sys/fs/cgroup";
/// With less, the buffers of the sockets and some registered memory may already end a program.
const LEAST_MEMORY: u64 = 64 << 20;

/// Bytes that the command allows beyond those in use.
const MORE_MEMORY: u64 = 1 << 30;

/// A filter is no problem by itself: the other checks find what it forbids.
pub(super) fn seccomp() -> Finding {
    judge_seccomp(status("Seccomp").as_deref())
}

fn judge_seccomp(mode: Option<&str>) -> Finding {
    match mode {
        None => Finding::skipped("/proc/self/status does not say whether there is a filter"),
        Some("0") => Finding::ok("no filter"),
        Some(_) => Finding::note("a seccomp filter is active, as in most containers")
            .detail("if a transfer fails here and not on the host, find out whether the filter is the cause: start the")
            .detail("container with --security-opt seccomp=unconfined"),
    }
}

/// A user namespace is no problem for software devices.
pub(super) fn user_namespace() -> Finding {
    if is_in_user_namespace() {
        return Finding::note(
            "this is a user namespace, as in rootless containers: root cannot load modules or raise limits",
        );
    }
    Finding::ok("this is the first user namespace")
}

/// Checks the limits of this process's control group and those above it.
pub(super) fn memory_limit() -> Finding {
    let text = read("/proc/self/cgroup").unwrap_or_default();
    let Some(group) = group_of(&text) else {
        return Finding::skipped("this process has no control group of version 2");
    };
    let limits = group.ancestors().filter_map(|group| {
        let folder = Path::new(GROUPS).join(group.strip_prefix("/").ok()?);
        let limit = number(folder.join("memory.max"))?;
        let used = number(folder.join("memory.current")).unwrap_or(0);
        // The kernel takes the cache of files back before it ends a program.
        let cache = read(folder.join("memory.stat")).and_then(|text| cache_of(&text)).unwrap_or(0);
        Some(Memory { limit, used: used.saturating_sub(cache), folder })
    });
    judge_memory(limits.min_by_key(Memory::left))
}

/// The limit of a control group, and what its processes use of it.
struct Memory {
    limit: u64,
    used: u64,
    folder: PathBuf,
}

impl Memory {
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Returns the bytes of files that no process has used for a while.
fn cache_of(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("inactive_file "))?.trim().parse().ok()
}

/// Returns this process's group of version 2.
fn group_of(text: &str) -> Option<PathBuf> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

fn judge_memory(tightest: Option<Memory>) -> Finding {
    let Some(memory) = tightest else {
        return Finding::ok("no limit");
    };
    let Memory { limit, used, folder } = &memory;
    let is = format!("{} of at most {} are used", size(*used), size(*limit));
    if memory.left() < LEAST_MEMORY {
        let why = format!("{is}: the kernel ends a program that registers or receives more");
        let file = quoted(&folder.join("memory.max").to_string_lossy());
        let command = format!("echo {} | {}tee {file}", used.saturating_add(MORE_MEMORY), sudo());
        return Finding::problem(why, command).detail("in a container: start it with a higher --memory");
    }
    Finding::ok(is)
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome::{Note, Ok, Problem, Skipped};
    use super::*;

    #[test]
    fn filters_are_noted() {
        assert_eq!([Some("0"), Some("2"), None].map(|mode| judge_seccomp(mode).outcome), [Ok, Note, Skipped]);
    }

    #[test]
    fn little_memory_is_a_problem() {
        assert_eq!(judge_memory(None).outcome, Ok);
        let judged =
            |limit, used| judge_memory(Some(Memory { limit, used, folder: PathBuf::from("/sys/fs/cgroup/a b") }));
        assert_eq!(judged(1 << 30, 1 << 20).outcome, Ok);
        assert_eq!(judged(1 << 30, (1 << 30) - 1).outcome, Problem);
        let over = judged(1 << 20, 1 << 30);
        assert_eq!(over.outcome, Problem);
        assert!(over.commands[0].starts_with("echo 2147483648 | "), "{over:?}");
        assert!(over.commands[0].ends_with("tee '/sys/fs/cgroup/a b/memory.max'"), "{over:?}");
    }

    #[test]
    fn the_cache_of_files_is_not_in_use() {
        assert_eq!(cache_of("anon 5\nfile 7\ninactive_file 4096\nactive_file 2\n"), Some(4096));
        assert_eq!(cache_of("anon 5\n"), None);
    }

    #[test]
    fn the_group_of_version_2() {
        assert_eq!(group_of("1:cpu:/a\n0::/user.slice/b\n"), Some(PathBuf::from("/user.slice/b")));
        assert_eq!(group_of("1:cpu:/a\n"), None);
    }
}
