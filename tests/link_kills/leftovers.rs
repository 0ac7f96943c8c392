//! The traces of killed processes: mappings of rings in this process, and sockets in the registry.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Returns the number of rings that this process has mapped.
pub(crate) fn mapped_rings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains("/memfd:rdma-verbs ")).count()
}

/// The files of the user's processes in the registry.
pub(crate) struct RegistryFiles(BTreeSet<PathBuf>);

impl RegistryFiles {
    pub(crate) fn now() -> Self {
        let folder = format!("/dev/shm/rdma-verbs-{}", nix::unistd::geteuid());
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        Self(entries.map(|entry| entry.path()).collect())
    }

    /// Returns the later files that belong to no process that lives.
    pub(crate) fn stale_since(&self, before: &Self) -> BTreeSet<PathBuf> {
        self.0.difference(&before.0).filter(|path| is_stale(path)).cloned().collect()
    }
}

/// Returns the number of this process's network namespace.
fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

/// Returns whether a file exists and has the name of a process that no longer accepts connections. A socket without its
/// final name is removed after a minute.
fn is_stale(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((kind, process)) = name.rsplit_once('-') else { return false };
    // Processes of other network namespaces have files of their own.
    let is_of_process = ["inbox", "life", "links"].contains(&kind) || kind == format!("{}-connections", namespace());
    is_of_process && UnixStream::connect(path.with_file_name(format!("life-{process}"))).is_err() && path.exists()
}
