//! Captures of packets: what to capture, and what became of it.

use std::path::PathBuf;

use super::Qpn;

/// What to capture, and where to.
///
/// The path may contain `%d` for the name of the device, `%p` for the process's number, and `%%` for a percent sign. If
/// it names a folder, the file in it is called `rdma-verbs-%d-%p.pcapng`. A file that is there is overwritten, unless
/// another capture is writing it: then a number is added to the name (`file-2.pcapng`).
///
/// ```
/// use rdma_verbs::types::{CaptureConfig, Qpn};
///
/// let config = CaptureConfig::new("/tmp/%d-%p.pcapng").max_bytes(1 << 20).queue_pair(Qpn::new(0x11));
/// assert_eq!(config.queue_pairs, [Qpn::new(0x11)]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CaptureConfig {
    /// The file to write, or a folder for it.
    pub path: PathBuf,
    /// Most bytes of the file. When they are reached the capture ends and says so in the file.
    pub max_bytes: u64,
    /// Only packets of these queue pairs; of all if there are none here.
    pub queue_pairs: Vec<Qpn>,
}

impl CaptureConfig {
    /// Most bytes of a file unless something else is said: 64 MiB.
    pub const DEFAULT_MAX_BYTES: u64 = 64 << 20;
    /// Fewest bytes that a file may be limited to.
    pub const LEAST_MAX_BYTES: u64 = 8 << 10;

    /// Captures everything into this file, or a new one in this folder, up to 64 MiB.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: Self::DEFAULT_MAX_BYTES, queue_pairs: Vec::new() }
    }

    /// Most bytes of the file, at least 8 KiB.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Captures only this queue pair and others that are named so.
    #[must_use]
    pub fn queue_pair(mut self, qpn: Qpn) -> Self {
        self.queue_pairs.push(qpn);
        self
    }
}

/// What a capture has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CaptureSummary {
    /// Packets in the file, or on their way into it.
    pub packets: u64,
    /// Packets that are not in the file because writing was too slow.
    pub lost: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// It ended by itself, because the file was as large as it may be.
    pub reached_max_bytes: bool,
}
