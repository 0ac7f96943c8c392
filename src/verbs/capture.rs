//! Captures of a device's packets.

use std::fmt;
use std::path::Path;

use super::{CaptureSummary, Result};
use crate::provider;

/// An in-progress capture, started by [`Context::start_capture`](super::Context::start_capture). It ends when it is
/// stopped or dropped, or when the device is closed.
///
/// ```
/// use rdma_verbs::verbs::{self, CaptureOptions};
///
/// let context = verbs::open("soft:127.0.1.93")?;
/// let file = std::env::temp_dir().join("rdma-verbs-example-%p.pcapng");
/// let capture = context.start_capture(&CaptureOptions::new(file))?;
/// println!("{} packets in {}", capture.summary().packets, capture.path().display());
/// # let file = capture.path().to_owned();
/// capture.stop()?;
/// # std::fs::remove_file(file).unwrap();
/// # Ok::<(), verbs::Error>(())
/// ```
#[must_use = "a capture that is dropped ends"]
pub struct Capture {
    inner: Box<dyn provider::Capture>,
}

impl Capture {
    pub(super) fn new(inner: Box<dyn provider::Capture>) -> Self {
        Self { inner }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.inner.path()
    }

    /// Returns the totals so far.
    pub fn summary(&self) -> CaptureSummary {
        self.inner.summary()
    }

    /// Ends the capture and returns its totals. All captured packets are then in the file.
    ///
    /// # Errors
    /// The file could not be written completely, for example because the disk is full.
    pub fn stop(self) -> Result<CaptureSummary> {
        self.inner.stop()
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("path", &self.path()).field("summary", &self.summary()).finish()
    }
}
