//! The resources that a process holds, and the files in the registry.

use std::fs;
use std::path::PathBuf;

use rdma_verbs::verbs::Context;
use serde::{Deserialize, Serialize};

/// Growth of memory that is no leak: allocators and queues may take it after the start.
const RSS_TOLERANCE: i64 = 8 << 20;
const PAGE: i64 = 4_096;

/// The resources that a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Holdings {
    pub(crate) rss_bytes: i64,
    pub(crate) descriptors: i64,
    pub(crate) threads: i64,
    pub(crate) objects: i64,
}

fn entries(folder: &str) -> i64 {
    fs::read_dir(folder).map_or(0, |entries| entries.count() as i64)
}

impl Holdings {
    /// Returns the resources of this process.
    pub(crate) fn now(context: &Context) -> Self {
        let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: i64 = pages.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
        let objects = context.live_objects().map_or(0, |objects| i64::from(objects.total()));
        Self {
            rss_bytes: pages * PAGE,
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            objects,
        }
    }

    /// Returns the difference to earlier resources.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            rss_bytes: self.rss_bytes - before.rss_bytes,
            descriptors: self.descriptors - before.descriptors,
            threads: self.threads - before.threads,
            objects: self.objects - before.objects,
        }
    }

    /// Returns whether a difference is a leak, in a process that shares its address with others. Each of these has a
    /// connection to it, which takes a descriptor only when the process polls its listener, possibly after the start.
    pub(crate) fn leaks(&self, others: usize) -> bool {
        let connections = others as i64;
        self.rss_bytes > RSS_TOLERANCE || self.descriptors > connections || self.threads > 0 || self.objects > 0
    }
}

/// Returns the registry files of these addresses below /dev/shm and /tmp, in all namespaces.
pub(crate) fn registry_entries(addresses: &[String]) -> Vec<PathBuf> {
    let folders = ["/dev/shm", "/tmp"].into_iter().flat_map(fs::read_dir).flatten().flatten();
    let folders = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with("rdma-verbs-"));
    let files = folders.flat_map(|folder| fs::read_dir(folder.path())).flatten().flatten().map(|file| file.path());
    let is_ours = |path: &PathBuf| {
        let name = path.to_string_lossy();
        addresses.iter().any(|address| name.ends_with(&format!("-{address}")))
    };
    files.filter(is_ours).collect()
}
