//! The resources that a process holds.

use std::fs;

use rdma_verbs::verbs::Context;
use serde::{Deserialize, Serialize};

const PAGE: i64 = 4_096;
/// Microseconds of a tick in `/proc/self/stat`.
const TICK: i64 = 10_000;

/// The resources that a process holds, and the processor time that it has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Holdings {
    pub(crate) rss_bytes: i64,
    pub(crate) descriptors: i64,
    pub(crate) threads: i64,
    pub(crate) objects: i64,
    pub(crate) processor_micros: i64,
}

fn entries(folder: &str) -> i64 {
    fs::read_dir(folder).map_or(0, |entries| entries.count() as i64)
}

/// Returns numbers of a line of `/proc`, the first one after `skipped` words.
fn numbers(path: &str, skipped: usize) -> impl Iterator<Item = i64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let words: Vec<i64> = text.split_whitespace().skip(skipped).map(|word| word.parse().unwrap_or(0)).collect();
    words.into_iter()
}

impl Holdings {
    /// Returns the resources of this process.
    pub(crate) fn now(context: &Context) -> Self {
        Self {
            rss_bytes: numbers("/proc/self/statm", 1).next().unwrap_or(0) * PAGE,
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            objects: context.live_objects().map_or(0, |objects| i64::from(objects.total())),
            processor_micros: numbers("/proc/self/stat", 13).take(2).sum::<i64>() * TICK,
        }
    }

    /// Returns what is left of the connections: a text for each kind of resource.
    pub(crate) fn left_since(&self, before: &Self, process: &str) -> Vec<String> {
        let counts = [
            ("descriptors", self.descriptors - before.descriptors),
            ("threads", self.threads - before.threads),
            ("objects", self.objects - before.objects),
        ];
        let left = counts.into_iter().filter(|(_, count)| *count != 0);
        left.map(|(name, count)| format!("{process}: {count} {name}")).collect()
    }
}
