//! Packet captures: their options and summary.

use std::path::PathBuf;

use super::Qpn;

/// Options of a packet capture: which packets, and which file.
///
/// The path may contain `%d` for the name of the device, `%p` for the process ID, and `%%` for a percent sign. If it is
/// a directory, the file in it is named `rdma-verbs-%d-%p.pcapng`. An existing file is overwritten, unless another
/// capture is writing it: in that case, a number is appended to the name (`file-2.pcapng`).
///
/// ```
/// use rdma_verbs::types::{CaptureOptions, Qpn};
///
/// let options = CaptureOptions::new("/tmp/%d-%p.pcapng").max_bytes(1 << 20).queue_pair(Qpn::new(0x11));
/// assert_eq!(options.queue_pairs, [Qpn::new(0x11)]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CaptureOptions {
    /// The file to write, or a directory for it.
    pub path: PathBuf,
    /// Maximum size of the file in bytes. When it is reached, the capture ends and notes this in the file.
    pub max_bytes: u64,
    /// The queue pairs to capture; all if empty.
    pub queue_pairs: Vec<Qpn>,
}

impl CaptureOptions {
    /// Default maximum size of a file: 64 MiB.
    pub const DEFAULT_MAX_BYTES: u64 = 64 << 20;
    /// Smallest maximum size of a file in bytes.
    pub const LEAST_MAX_BYTES: u64 = 8 << 10;

    /// Returns options that capture everything into this file, or a new one in this directory, up to 64 MiB.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: Self::DEFAULT_MAX_BYTES, queue_pairs: Vec::new() }
    }

    /// Sets the maximum size of the file in bytes, at least 8 KiB.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Restricts the capture to this queue pair and others added by this method.
    #[must_use]
    pub fn queue_pair(mut self, qpn: Qpn) -> Self {
        self.queue_pairs.push(qpn);
        self
    }
}

/// Summary of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CaptureSummary {
    /// Number of packets in the file or queued for it.
    pub packets: u64,
    /// Number of packets missing from the file because writing was too slow.
    pub lost: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Whether the capture ended because the file reached its maximum size.
    pub reached_max_bytes: bool,
}
