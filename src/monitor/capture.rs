//! Captures of other processes.

use std::fmt;
use std::fs::File;
use std::time::{Duration, Instant};

use super::error::explain;
use super::process::PATIENCE;
use super::{MonitorError, Result};
use crate::engine::{CaptureNews, CaptureOutcome, CaptureRequest, Found, OpenCapture};
use crate::types::{CaptureOptions, CaptureSummary, Qpn};

/// Most queue pairs that a capture can be restricted to.
const MOST_QUEUE_PAIRS: usize = 64;
/// How long a process may take to complete the file.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time of one wait: longer ones could not be added to the time.
const LONGEST_WAIT: Duration = Duration::from_secs(1 << 30);

/// Options of a capture in another process.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RemoteCaptureOptions {
    /// Maximum size of the file in bytes. When it is reached, the capture ends and notes this in the file.
    pub max_bytes: u64,
    /// The queue pairs to capture, at most 64; all if empty.
    pub queue_pairs: Vec<Qpn>,
}

impl Default for RemoteCaptureOptions {
    fn default() -> Self {
        Self { max_bytes: CaptureOptions::DEFAULT_MAX_BYTES, queue_pairs: Vec::new() }
    }
}

impl RemoteCaptureOptions {
    /// Returns options that capture everything, up to 64 MiB.
    pub fn new() -> Self {
        Self::default()
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

/// Reason why a capture has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CaptureEnd {
    /// The requester stopped it.
    Stopped,
    /// The file has reached its maximum size.
    ReachedMaxBytes,
    /// The device was closed.
    DeviceClosed,
    /// The file could not be written; the text is the system's.
    WriteFailed(String),
    /// The process has ended. The file has the packets that were written until then, without the closing statistics.
    ProcessEnded,
}

/// The result of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RemoteCaptureResult {
    /// Reason for its end.
    pub end: CaptureEnd,
    /// The final counts; those that the process reported last, if it has ended.
    pub summary: CaptureSummary,
}

/// A capture in another process. Dropping it ends it.
///
/// ```
/// use std::{fs, time::Duration};
/// use rdma_verbs::monitor::{CaptureEnd, Process, RemoteCaptureOptions};
/// use rdma_verbs::verbs;
///
/// let context = verbs::open("soft:127.0.1.161")?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// let qp = pd.create_qp(&cq, &cq)?;
/// qp.connect(&qp.connection_info()?)?;
///
/// let path = std::env::temp_dir().join(format!("rdma-verbs-remote-{}.pcapng", std::process::id()));
/// let process = Process::find(std::process::id())?;
/// let options = RemoteCaptureOptions::new().max_bytes(1 << 20);
/// let mut capture = process.start_capture(Some("soft:127.0.1.161"), fs::File::create(&path)?, &options)?;
/// assert_eq!(capture.wait(Duration::from_millis(10))?, None);
/// let result = capture.stop()?;
/// assert_eq!(result.end, CaptureEnd::Stopped);
/// assert_eq!(fs::metadata(&path)?.len(), result.summary.bytes);
/// # fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a capture that is dropped ends"]
pub struct RemoteCapture {
    process: u32,
    device: String,
    inner: OpenCapture,
    summary: CaptureSummary,
    end: Option<CaptureEnd>,
}

impl RemoteCapture {
    pub(super) fn start(
        process: u32,
        found: &Found,
        device: Option<&str>,
        file: &File,
        options: &RemoteCaptureOptions,
    ) -> Result<Self> {
        if options.queue_pairs.len() > MOST_QUEUE_PAIRS {
            let reason =
                format!("{} queue pairs are named; at most {MOST_QUEUE_PAIRS} can be", options.queue_pairs.len());
            return Err(MonitorError::TooMany { process, reason });
        }
        let request = CaptureRequest {
            device: device.unwrap_or_default().to_owned(),
            max_bytes: options.max_bytes,
            queue_pairs: options.queue_pairs.clone(),
        };
        let started = found.capture(request, file, PATIENCE);
        let (inner, device) = started.map_err(|failure| explain(process, PATIENCE, failure))?;
        Ok(Self { process, device, inner, summary: CaptureSummary::default(), end: None })
    }

    /// Returns the name of the device whose packets are captured.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the counts that the process has reported last; it reports them about twice a second.
    ///
    /// # Errors
    /// What the process reports is malformed.
    pub fn summary(&mut self) -> Result<CaptureSummary> {
        self.take_news()?;
        Ok(self.summary)
    }

    /// Waits until the capture has ended, at most for this time. Returns `None` if it still runs then.
    ///
    /// # Errors
    /// What the process reports is malformed.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<RemoteCaptureResult>> {
        let deadline = Instant::now() + timeout.min(LONGEST_WAIT);
        loop {
            self.take_news()?;
            if let Some(end) = &self.end {
                return Ok(Some(RemoteCaptureResult { end: end.clone(), summary: self.summary }));
            }
            let waited = self.inner.wait(deadline);
            if !waited.map_err(|failure| explain(self.process, timeout, failure))? {
                return Ok(None);
            }
        }
    }

    /// Ends the capture, and waits until all captured packets are in the file.
    ///
    /// # Errors
    /// [`MonitorError::NoAnswer`] if the process does not complete the file within 10 s: it goes on with that, unless
    /// it is stopped.
    pub fn stop(mut self) -> Result<RemoteCaptureResult> {
        // If it cannot be told, the capture or the process has ended, and the news says which.
        let _ = self.inner.stop();
        let no_answer = MonitorError::NoAnswer { process: self.process, timeout: STOP_PATIENCE };
        self.wait(STOP_PATIENCE)?.ok_or(no_answer)
    }

    /// Handles what the process has reported.
    fn take_news(&mut self) -> Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        match self.inner.latest().map_err(|failure| explain(self.process, PATIENCE, failure))? {
            None => {}
            Some(CaptureNews::Progress(summary)) => self.summary = summary,
            Some(CaptureNews::ProcessEnded) => self.end = Some(CaptureEnd::ProcessEnded),
            Some(CaptureNews::Ended { outcome, summary, text }) => {
                self.summary = summary;
                self.end = Some(match outcome {
                    CaptureOutcome::Stopped => CaptureEnd::Stopped,
                    CaptureOutcome::ReachedMaxBytes => CaptureEnd::ReachedMaxBytes,
                    CaptureOutcome::DeviceClosed => CaptureEnd::DeviceClosed,
                    CaptureOutcome::WriteFailed => CaptureEnd::WriteFailed(text),
                });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RemoteCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RemoteCapture");
        debug.field("process", &self.process).field("device", &self.device).field("summary", &self.summary);
        debug.finish_non_exhaustive()
    }
}
