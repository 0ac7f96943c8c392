//! Captures the packets of a running process, on the socket that each process of the library serves its user.
//!
//! ```text
//! rdma-verbs capture PID                      until Ctrl-C, into rdma-verbs-PID.pcapng
//! rdma-verbs capture soft:192.0.2.1 --show    of the process that has this device open; prints messages, too
//! ```
//!
//! This program opens the file, and passes its descriptor: the process writes with the rights of this user, and nothing
//! else can be asked of it. `docs/capture.md` describes the command.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, Signal};
use rdma_verbs::monitor::{
    CaptureEnd, DeviceStatistics, MonitorError, Process, RemoteCapture, RemoteCaptureOptions, RemoteCaptureResult,
    Snapshot, processes,
};
use rdma_verbs::types::{CaptureOptions, CaptureSummary, Qpn};
use serde::Serialize;

use crate::common::{exit_code, note, print_json, printable};
use crate::show;

/// How often the counts are printed.
const PROGRESS: Duration = Duration::from_millis(500);
/// Longest wait for the statistics of a process that is searched for a device.
const STATISTICS: Duration = Duration::from_secs(2);
/// How often processes export statistics meanwhile.
const REFRESH: Duration = Duration::from_millis(100);
/// Names with a number that are tried for the file.
const MOST_NAMES: u32 = 1_000;
/// Queue pairs that a capture can be restricted to.
const MOST_QUEUE_PAIRS: usize = 64;

#[derive(Args)]
#[command(after_help = "Exit status: 0 done, 1 it failed, 2 wrong usage.\nExamples:\n  \
                        rdma-verbs capture 4711                          until Ctrl-C\n  \
                        rdma-verbs capture 4711 -w trouble.pcapng --duration 10\n  \
                        rdma-verbs capture soft:192.0.2.1 --show         prints the messages as they end\n\n\
                        `rdma-verbs show FILE` prints the messages in the file, Wireshark its packets.")]
pub(crate) struct Options {
    /// A process of this user, or a device: its name or one of its addresses. If several processes have the device
    /// open, they are listed.
    #[arg(value_name = "PID|DEVICE")]
    target: String,
    /// The device of the process, if it has several open.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The file; by default a new one in the current folder, rdma-verbs-PID.pcapng. An existing file is overwritten.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Ends after this time; by default with Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
    /// Ends when the file has this size; K, M and G are powers of 1024.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    bytes: u64,
    /// Only packets of this queue pair, 18 or 0x12; may be repeated.
    #[arg(long, value_name = "NUMBER", value_parser = show::queue_pair)]
    qp: Vec<u32>,
    /// Also prints the messages, request by request, as they end.
    #[arg(long)]
    show: bool,
    /// Prints one JSON document at the end; `docs/json.md` describes the fields.
    #[arg(long, conflicts_with = "show")]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.01..1e8).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "allowed are 0.01 to 1e8 seconds".to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    let shift = match text.chars().last() {
        Some('K' | 'k') => 10,
        Some('M' | 'm') => 20,
        Some('G' | 'g') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    let least = CaptureOptions::LEAST_MAX_BYTES;
    bytes.filter(|bytes| *bytes >= least).ok_or_else(|| format!("allowed are {least} and more, as 65536, 64K or 1G"))
}

/// Captures until the end.
pub(crate) fn run(options: &Options) -> ExitCode {
    if options.qp.len() > MOST_QUEUE_PAIRS {
        note!("capture: {} queue pairs; allowed are {MOST_QUEUE_PAIRS}", options.qp.len());
        return ExitCode::from(2);
    }
    exit_code("capture", capture(options).map_err(|Failure(error)| error))
}

/// Why there is no capture, in words.
#[derive(Debug)]
struct Failure(io::Error);

impl From<MonitorError> for Failure {
    fn from(error: MonitorError) -> Self {
        Self(io::Error::other(error))
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(io::Error::other(text))
    }
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    pid: u32,
    process: &'a str,
    device: &'a str,
    file: String,
    packets: u64,
    bytes: u64,
    lost_packets: u64,
    end: &'static str,
    /// Why the file cannot be written.
    error: Option<&'a str>,
}

fn capture(options: &Options) -> Result<ExitCode, Failure> {
    let interrupted = watch_for_signals()?;
    let (process, device) = find(options)?;
    let (path, file, is_new) = create(options.write.as_deref(), process.id())?;
    let mut remote_options = RemoteCaptureOptions::new().max_bytes(options.bytes);
    remote_options.queue_pairs = options.qp.iter().map(|number| Qpn::new(*number)).collect();
    let capture = match process.start_capture(device.as_deref(), file, &remote_options) {
        Ok(capture) => capture,
        Err(error) => {
            if is_new {
                // It is empty, and of no use. A failure leaves it there.
                let _ = std::fs::remove_file(&path);
            }
            return Err(error.into());
        }
    };
    let (id, name, shown) = (process.id(), printable(process.name()), path.display());
    let taken = capture.device().to_owned();
    note!("capturing {taken} of process {id} ({name}) into {shown}; Ctrl-C ends it");
    let reader = options.show.then(|| Reader::start(&path)).transpose()?;
    let result = follow(capture, options.duration, &interrupted, reader.as_ref());
    if let Some(reader) = reader {
        reader.end();
    }
    let RemoteCaptureResult { end, summary, .. } = result?;
    note!("{shown}: {}; {}", counts(&summary), reason(&end));
    let error = match &end {
        CaptureEnd::WriteFailed(error) => Some(error.as_str()),
        _ => None,
    };
    if options.json {
        let CaptureSummary { packets, bytes, lost: lost_packets, .. } = summary;
        let (file, end) = (shown.to_string(), end_name(&end));
        let document =
            Document { pid: id, process: &name, device: &taken, file, packets, bytes, lost_packets, end, error };
        print_json("capture", &document).map_err(Failure)?;
    }
    match error {
        Some(_) => Err("the file is not complete".to_owned().into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Returns a flag that is set by SIGINT and SIGTERM; the second signal ends the program at once.
fn watch_for_signals() -> Result<Arc<AtomicBool>, Failure> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    let failed = |error: &dyn std::fmt::Display| Failure::from(format!("signals cannot be waited for: {error}"));
    // All threads inherit the mask.
    signals.thread_block().map_err(|error| failed(&error))?;
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let wait = move || {
        while signals.wait().is_ok() {
            if set.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(|error| failed(&error))?;
    Ok(flag)
}

/// Waits for the end of the capture, and shows the counts on a terminal.
fn follow(
    mut capture: RemoteCapture,
    duration: Option<Duration>,
    interrupted: &AtomicBool,
    reader: Option<&Reader>,
) -> Result<RemoteCaptureResult, Failure> {
    let start = Instant::now();
    let has_terminal = io::stderr().is_terminal() && reader.is_none();
    let mut printed = start;
    loop {
        let left = duration.map_or(REFRESH, |duration| duration.saturating_sub(start.elapsed()).min(REFRESH));
        let result = capture.wait(left);
        if has_terminal && (printed.elapsed() >= PROGRESS || !matches!(result, Ok(None))) {
            printed = Instant::now();
            progress(&capture.summary().unwrap_or_default(), !matches!(result, Ok(None)));
        }
        if let Some(result) = result? {
            return Ok(result);
        }
        let is_over = duration.is_some_and(|duration| start.elapsed() >= duration);
        if is_over || interrupted.load(Ordering::Relaxed) || reader.is_some_and(Reader::has_ended) {
            if has_terminal {
                progress(&capture.summary().unwrap_or_default(), true);
            }
            return Ok(capture.stop()?);
        }
    }
}

/// Overwrites the line with the counts.
fn progress(summary: &CaptureSummary, is_last: bool) {
    let end = if is_last { "\n" } else { "" };
    // If the terminal is gone, the counts are not needed.
    let _ = write!(io::stderr(), "\r{}\x1b[K{end}", counts(summary));
}

fn counts(summary: &CaptureSummary) -> String {
    let lost = if summary.lost > 0 { format!(", {} packets lost by the capture", summary.lost) } else { String::new() };
    format!("{} packets, {} bytes{lost}", summary.packets, summary.bytes)
}

fn reason(end: &CaptureEnd) -> String {
    match end {
        CaptureEnd::Stopped => "complete".to_owned(),
        CaptureEnd::ReachedMaxBytes => "ended at the maximum size (--bytes)".to_owned(),
        CaptureEnd::DeviceClosed => "ended with the device, which the process has closed".to_owned(),
        CaptureEnd::WriteFailed(error) => format!("ended because the file cannot be written: {error}"),
        CaptureEnd::ProcessEnded => "ended with the process; its last packets may be missing".to_owned(),
        other => format!("ended: {other:?}"),
    }
}

const fn end_name(end: &CaptureEnd) -> &'static str {
    match end {
        CaptureEnd::Stopped => "stopped",
        CaptureEnd::ReachedMaxBytes => "maximum size",
        CaptureEnd::DeviceClosed => "device closed",
        CaptureEnd::WriteFailed(_) => "write failed",
        CaptureEnd::ProcessEnded => "process ended",
        _ => "other",
    }
}

/// Finds the process, and the device if one is named.
fn find(options: &Options) -> Result<(Process, Option<String>), Failure> {
    if let Ok(id) = options.target.parse::<u32>() {
        return Ok((Process::find(id)?, options.device.clone()));
    }
    let wanted = &options.target;
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for process in processes()? {
        let name = printable(process.name());
        match snapshot(&process) {
            Ok(snapshot) => match snapshot.devices.iter().find(|device| is_device(device, wanted)) {
                Some(device) => found.push((process, device.name.clone(), name)),
                None => others.extend(
                    snapshot
                        .devices
                        .iter()
                        .map(|device| format!("{} of process {} ({name})", printable(&device.name), process.id())),
                ),
            },
            // It may have the device, and cannot be captured.
            Err(error) => others.push(error.to_string()),
        }
    }
    if found.len() > 1 {
        let list = found.iter().map(|(process, _, name)| format!("{} ({name})", process.id()));
        let list = list.collect::<Vec<_>>().join(", ");
        return Err(Failure::from(format!("several processes have \"{wanted}\" open; name one by its ID: {list}")));
    }
    found.pop().map(|(process, device, _)| (process, Some(device))).ok_or_else(|| {
        let others = if others.is_empty() { "no device at all".to_owned() } else { others.join("\n  ") };
        Failure::from(format!("no process of this user has \"{wanted}\" in use; in use are:\n  {others}"))
    })
}

/// Whether this is the name of the device, with or without the provider, or one of its addresses.
fn is_device(device: &DeviceStatistics, wanted: &str) -> bool {
    let address = wanted.strip_prefix("soft:").unwrap_or(wanted).parse::<IpAddr>();
    device.name == wanted || address.is_ok_and(|address| device.addresses.contains(&address))
}

/// Reads the statistics of a process once.
fn snapshot(process: &Process) -> Result<Snapshot, MonitorError> {
    let mut watch = process.watch(REFRESH)?;
    let deadline = Instant::now() + STATISTICS;
    loop {
        let snapshot = watch.snapshot()?;
        if !snapshot.devices.is_empty() || Instant::now() >= deadline {
            return Ok(snapshot);
        }
        thread::sleep(REFRESH / 10);
    }
}

/// Opens the file. Returns whether it is new. The process empties it, once it has accepted the request.
fn create(path: Option<&Path>, process: u32) -> Result<(PathBuf, File, bool), Failure> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let failed = |path: &Path, error: io::Error| {
        Failure::from(format!("{} cannot be created or written: {error}", path.display()))
    };
    let created = |path: PathBuf| match options.clone().create_new(true).open(&path) {
        Ok(file) => Ok(Some((path, file, true))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(failed(&path, error)),
    };
    if let Some(path) = path {
        if let Some(created) = created(path.to_owned())? {
            return Ok(created);
        }
        let file = options.open(path).map_err(|error| failed(path, error))?;
        return Ok((path.to_owned(), file, false));
    }
    for number in 1..=MOST_NAMES {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        if let Some(created) = created(PathBuf::from(format!("rdma-verbs-{process}{suffix}.pcapng")))? {
            return Ok(created);
        }
    }
    Err(Failure::from("there are too many captures of this process in this folder; name a file with -w".to_owned()))
}

/// A thread that prints the messages in the file while it grows.
struct Reader {
    /// The file is complete.
    is_complete: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(path: &Path) -> Result<Self, Failure> {
        let is_complete = Arc::new(AtomicBool::new(false));
        let (path, flag) = (path.to_owned(), Arc::clone(&is_complete));
        let read = move || show::follow(path, flag);
        let thread = thread::Builder::new().name("show".into()).spawn(read);
        let thread = thread.map_err(|error| Failure::from(format!("no thread can be started for --show: {error}")))?;
        Ok(Self { is_complete, thread })
    }

    /// Whether it has ended by itself, as when the reader of its output has gone.
    fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    fn end(self) {
        self.is_complete.store(true, Ordering::Release);
        // A panic is printed by the thread.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_least_value() {
        assert_eq!(bytes("65536"), Ok(65_536));
        assert_eq!(bytes("64K"), Ok(65_536));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        for wrong in ["", "K", "1", "8191", "-1", "1T", "99999999999G", "é"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn devices_have_names_and_addresses() {
        let mut device = DeviceStatistics::new("soft_eth0");
        device.addresses = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        for name in ["soft_eth0", "192.0.2.1", "soft:192.0.2.1", "2001:db8::1"] {
            assert!(is_device(&device, name), "{name}");
        }
        assert!(!is_device(&device, "soft_eth1") && !is_device(&device, "192.0.2.2"));
    }
}
