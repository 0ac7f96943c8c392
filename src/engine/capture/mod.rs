//! Captures: records the packets that pass the link in pcapng files, which Wireshark and similar tools read.
//!
//! A link without a capture makes one check per datagram ([`CaptureSink::is_idle`]). With one, the thread that drives
//! the shard rebuilds the headers and appends a block to a bounded buffer; the capture's own thread writes the buffer
//! to the file. A slow disk therefore only makes the capture lose packets, which are counted and reported in the file;
//! it never delays traffic.
//!
//! The file's size is bounded. When it reaches the bound, the capture ends: the file is completed and no further
//! packets are recorded.
#![forbid(unsafe_code)]

mod file;
#[cfg(feature = "sim")]
mod fuzz;
mod headers;
mod management;
mod pcapng;
mod sink;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use self::headers::{Addressing, WireHeaders};
use self::management::{MessageKey, RecentMessages};
use self::pcapng::{Direction, PacketBlock, Statistics, Timestamp};
use crate::sys::{Generation, OpenError, with_signals_blocked};
use crate::types::{CaptureOptions, CaptureSummary, Qpn};

pub(super) use self::file::prepare as prepare_file;
#[cfg(feature = "sim")]
pub use self::fuzz::capture_file;
pub(super) use self::sink::{Arrival, CaptureSink, Departure};

/// Most bytes that wait to be written.
const MOST_PENDING: usize = 4 << 20;
/// Number of waiting bytes that triggers a write.
const MANY_PENDING: usize = 256 << 10;
/// Longest time that fewer bytes wait.
const LONGEST_PENDING: Duration = Duration::from_millis(50);
/// Longest time that a device which is closed waits for the files of other processes: such a file may be on a disk that
/// never responds.
const LONGEST_CLOSE: Duration = Duration::from_secs(2);
/// How often it looks at them.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Bytes reserved for the file's last block.
const LAST_BLOCK_BYTES: u64 = 512;

/// A packet that passed the link.
#[derive(Clone, Copy, Debug)]
struct PacketRecord<'a> {
    time: Timestamp,
    direction: Direction,
    addressing: Addressing,
    /// Comment on the packet; empty: none.
    comment: &'a str,
    /// Identifies a message of the connection manager, to mark its repetitions; the comment is not empty then.
    message: Option<MessageKey>,
    /// From the base transport header to the ICRC.
    payload: &'a [u8],
}

/// A capture, in progress or ended. Dropping it ends it.
pub(crate) struct Capture {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    path: PathBuf,
    /// Queue pairs to record, sorted; empty: all.
    queue_pairs: Vec<Qpn>,
    /// Whether another process has opened the file.
    is_foreign: bool,
    /// The process that started it. A child made by `fork` has the file, but not the thread.
    generation: Generation,
}

/// State shared by the recording threads and the writing thread.
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is something to write, or the capture is to end.
    work: Condvar,
    /// Set when recording has ended.
    ended: AtomicBool,
    device: String,
    max_bytes: u64,
}

#[derive(Default)]
struct State {
    /// Whole blocks.
    pending: Vec<u8>,
    /// Size of the file, pending blocks included.
    bytes: u64,
    packets: u64,
    lost: u64,
    /// Packets lost since the last one that was recorded.
    lost_lately: u64,
    recent: RecentMessages,
    first: Timestamp,
    last: Timestamp,
    end: Option<End>,
}

/// Reason why recording ended.
#[derive(Debug)]
enum End {
    Stopped,
    ReachedMaxBytes,
    Failed(io::Error),
}

impl Capture {
    /// Starts a capture of the packets of a device.
    pub(crate) fn start(options: &CaptureOptions, device: &str) -> Result<Self, OpenError> {
        if options.max_bytes < CaptureOptions::LEAST_MAX_BYTES {
            let (given, least) = (options.max_bytes, CaptureOptions::LEAST_MAX_BYTES);
            return Err(file::invalid(format!("max_bytes of the capture is {given}; allowed are {least} and more")));
        }
        let (path, file) = file::create(options, device)?;
        Self::into_file(options, device, path, file)
    }

    /// Starts a capture into a file that another process has opened, and `prepare_file` has prepared.
    pub(crate) fn start_in(file: File, options: &CaptureOptions, device: &str) -> Result<Self, OpenError> {
        let mut capture = Self::into_file(options, device, PathBuf::new(), file)?;
        capture.is_foreign = true;
        Ok(capture)
    }

    fn into_file(options: &CaptureOptions, device: &str, path: PathBuf, file: File) -> Result<Self, OpenError> {
        let mut pending = Vec::new();
        let comment = format!(
            "packets of device {device} in process {}; keyed packets are shown with the standard's ICRC",
            std::process::id()
        );
        pcapng::section_header(&mut pending, concat!("rdma-verbs ", env!("CARGO_PKG_VERSION")), &comment);
        pcapng::interface(&mut pending, device);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { bytes: pending.len() as u64, pending, ..State::default() }),
            work: Condvar::new(),
            ended: AtomicBool::new(false),
            device: device.to_owned(),
            max_bytes: options.max_bytes,
        });
        let writer = Arc::clone(&shared);
        let spawned =
            with_signals_blocked(|| Builder::new().name("rdma-capture".into()).spawn(move || writer.write(file)));
        let thread = spawned
            .map_err(|source| OpenError { message: "no thread can be started for the capture".to_owned(), source })?;
        tracing::info!(target: "rdma_verbs::capture", device, path = %path.display(), "capture begins");
        let mut queue_pairs = options.queue_pairs.clone();
        queue_pairs.sort_unstable();
        let (thread, generation) = (Mutex::new(Some(thread)), Generation::now());
        Ok(Self { shared, thread, path, queue_pairs, is_foreign: false, generation })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the counts so far.
    pub(crate) fn summary(&self) -> CaptureSummary {
        if !self.generation.is_current() {
            return CaptureSummary::default();
        }
        let state = self.shared.lock();
        CaptureSummary {
            packets: state.packets,
            lost: state.lost,
            bytes: state.bytes,
            reached_max_bytes: matches!(state.end, Some(End::ReachedMaxBytes)),
            ..CaptureSummary::default()
        }
    }

    /// Returns whether packets are still recorded.
    pub(crate) fn is_running(&self) -> bool {
        !self.shared.ended.load(Ordering::Relaxed)
    }

    /// Ends the capture and waits until everything is in the file. Fails if the file could not be written.
    pub(crate) fn finish(&self) -> io::Result<CaptureSummary> {
        if !self.generation.is_current() {
            return Err(io::Error::other("the capture belongs to the parent process"));
        }
        self.shared.end(&mut self.shared.lock(), End::Stopped);
        // Locked until the file is complete: another thread that ends the capture waits for that, too.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            return Err(io::Error::other("the capture's thread has panicked"));
        }
        if let Some(End::Failed(error)) = &self.shared.lock().end {
            return Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error));
        }
        Ok(self.summary())
    }

    /// Returns whether everything is in the file.
    fn is_complete(&self) -> bool {
        match self.thread.try_lock() {
            Ok(thread) => thread.as_ref().is_none_or(JoinHandle::is_finished),
            // A thread waits for it.
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Poisoned(thread)) => thread.get_ref().as_ref().is_none_or(JoinHandle::is_finished),
        }
    }

    /// Returns whether packets of this queue pair are recorded now.
    fn wants(&self, qpn: Qpn) -> bool {
        let takes_more = !self.shared.ended.load(Ordering::Relaxed);
        takes_more && (self.queue_pairs.is_empty() || self.queue_pairs.binary_search(&qpn).is_ok())
    }

    fn record(&self, packet: &PacketRecord<'_>) {
        let mut state = self.shared.lock();
        if state.end.is_none() {
            self.shared.append(&mut state, packet);
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.generation.is_current() && self.is_foreign {
            self.shared.end(&mut self.shared.lock(), End::Stopped);
        } else if self.generation.is_current() {
            // Callers that want the result use `finish`; a failure was also logged when it happened.
            let _ = self.finish();
        } else {
            // The child has no such thread, so there is nothing to detach.
            std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Ends the captures of a device that is closed. A file of this process is complete then. One of another process is
/// complete if it is written soon: the process that requested the capture must not keep the device open with it.
pub(super) fn close(captures: &[Arc<Capture>]) {
    let deadline = Instant::now() + LONGEST_CLOSE;
    let (foreign, own): (Vec<_>, Vec<_>) = captures.iter().partition(|capture| capture.is_foreign);
    for capture in &foreign {
        capture.shared.end(&mut capture.shared.lock(), End::Stopped);
    }
    // A failure is logged.
    own.into_iter().for_each(|capture| drop(capture.finish()));
    for capture in foreign {
        while !capture.is_complete() && Instant::now() < deadline {
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends recording for this reason, unless it has ended already.
    fn end(&self, state: &mut State, end: End) {
        if state.end.is_none() {
            state.end = Some(end);
        }
        self.ended.store(true, Ordering::Relaxed);
        self.work.notify_one();
    }

    fn append(&self, state: &mut State, packet: &PacketRecord<'_>) {
        state.last = packet.time;
        if state.packets + state.lost == 0 {
            state.first = packet.time;
        }
        let is_repeated = packet.message.is_some_and(|message| state.recent.remember(message));
        let comment = if is_repeated { &format!("{}; again", packet.comment) } else { packet.comment };
        let headers = WireHeaders::build(&packet.addressing, packet.payload);
        let longest = packet.payload.len() + comment.len() + pcapng::PACKET_OVERHEAD;
        let before = state.pending.len();
        let Some(headers) = headers.filter(|_| before + longest <= MOST_PENDING) else {
            state.lost += 1;
            state.lost_lately += 1;
            return;
        };
        let block = PacketBlock {
            time: packet.time,
            direction: packet.direction,
            headers: headers.as_bytes(),
            payload: packet.payload,
            lost: state.lost_lately,
            comment: Some(comment).filter(|comment| !comment.is_empty()),
        };
        pcapng::packet(&mut state.pending, &block);
        let after = state.pending.len();
        let bytes = state.bytes + (after - before) as u64;
        if bytes + LAST_BLOCK_BYTES > self.max_bytes {
            state.pending.truncate(before);
            return self.end(state, End::ReachedMaxBytes);
        }
        state.bytes = bytes;
        state.packets += 1;
        state.lost_lately = 0;
        if before == 0 || (before < MANY_PENDING && after >= MANY_PENDING) {
            self.work.notify_one();
        }
    }

    /// Runs the writing thread.
    fn write(&self, file: File) {
        let (mut batch, mut written, mut is_last) = (Vec::new(), 0, false);
        while !is_last {
            is_last = self.take(&mut batch);
            // Another process that has opened the file shares its position, and may move it.
            if let Err(error) = file.write_all_at(&batch, written) {
                tracing::warn!(
                    target: "rdma_verbs::capture",
                    device = self.device, %error, "the capture cannot be written and ends"
                );
                // Half a block at the end would make the file unreadable.
                let _ = file.set_len(written);
                let mut state = self.lock();
                state.pending = Vec::new();
                state.bytes = written;
                state.end = Some(End::Failed(error));
                return self.ended.store(true, Ordering::Relaxed);
            }
            written += batch.len() as u64;
            batch.clear();
        }
    }

    /// Waits for bytes to write and swaps them for an empty buffer. Returns whether they are the last.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        let recover = PoisonError::into_inner;
        let is_idle = |state: &mut State| state.pending.is_empty() && state.end.is_none();
        let state = self.work.wait_while(self.lock(), is_idle).unwrap_or_else(recover);
        let is_little = |state: &mut State| state.pending.len() < MANY_PENDING && state.end.is_none();
        let waited = self.work.wait_timeout_while(state, LONGEST_PENDING, is_little);
        let (mut state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::swap(&mut state.pending, batch);
        let Some(end) = &state.end else { return false };
        let has_reached_max_bytes = matches!(end, End::ReachedMaxBytes);
        let comment = self.closing_comment(end, &state);
        let statistics = Statistics {
            start: state.first,
            end: state.last,
            received: state.packets + state.lost,
            lost: state.lost,
            comment: &comment,
        };
        let before = batch.len();
        pcapng::statistics(batch, &statistics);
        state.bytes += (batch.len() - before) as u64;
        // A subscriber may be slow, and a thread that drives the shard may wait for the buffer.
        drop(state);
        if has_reached_max_bytes {
            tracing::warn!(
                target: "rdma_verbs::capture",
                device = self.device, max_bytes = self.max_bytes, "the capture has reached its maximum size and ends"
            );
        }
        true
    }

    /// Returns the comment of the file's last block.
    fn closing_comment(&self, end: &End, state: &State) -> String {
        let max_bytes = self.max_bytes;
        let mut comment = match end {
            End::ReachedMaxBytes => {
                format!("ended because the file reached its bound of {max_bytes} bytes: later packets are missing")
            }
            End::Stopped | End::Failed(_) => "ended by the program".to_owned(),
        };
        if state.lost > 0 {
            comment = format!("{comment}; {} packets are missing because writing was too slow", state.lost);
        }
        comment
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
