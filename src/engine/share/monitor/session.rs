//! A capture that another process has requested. It has a thread of its own, because its file may be slow.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::message::{CaptureOutcome, CaptureRequest, RefusalKind, Response};
use super::server::Connection;
use super::source::{Monitored, devices};
use crate::engine::capture::{Capture, prepare_file};
use crate::sys::{file_size_limit, has_ended, wait_readable, with_signals_blocked};
use crate::types::{CaptureOptions, CaptureSummary};

/// How often the thread looks whether the capture or the device has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the requester gets the counts.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// How long the last message waits for room. The requester may have read nothing.
const LAST_MESSAGE_WAIT: Duration = Duration::from_secs(2);

/// Starts the thread of a capture, which has `share` as long as it runs.
pub(super) fn start(connection: Connection, request: CaptureRequest, file: File, share: Arc<()>) {
    // Shared, so that it is still there if the thread cannot be started.
    let connection = Arc::new(connection);
    let of_thread = Arc::clone(&connection);
    let builder = Builder::new().name("rdma-remote".to_owned());
    let spawned = with_signals_blocked(|| {
        builder.spawn(move || {
            run(&of_thread, &request, file);
            drop(share);
        })
    });
    if let Err(error) = spawned {
        refuse(&connection, RefusalKind::Other, format!("its system cannot start a thread for the capture: {error}"));
    }
}

fn refuse(connection: &Connection, kind: RefusalKind, text: String) {
    connection.send(&Response::Refused { kind, text });
}

/// Makes the capture, from its start to its end.
fn run(connection: &Connection, request: &CaptureRequest, file: File) {
    let device = match find_device(&request.device) {
        Ok(device) => device,
        Err(text) => return refuse(connection, RefusalKind::Other, text),
    };
    let started = options(request).and_then(|options| {
        prepare_file(&file).map_err(|error| format!("the capture cannot be written to the file: {error}"))?;
        device.start_capture(file, &options)
    });
    let (capture, share) = match started {
        Ok(started) => started,
        Err(text) => return refuse(connection, RefusalKind::Other, text),
    };
    connection.send(&Response::Started { device: device.name().to_owned() });
    let weak = Arc::downgrade(&device);
    drop(device);
    let outcome = wait_for_end(connection, &capture, &weak);
    if let Some(device) = weak.upgrade() {
        device.detach_capture(&capture);
    }
    finish(connection, &capture, outcome);
    drop(share);
}

/// Returns the device with this name; the only one for the empty name.
fn find_device(name: &str) -> Result<Arc<dyn Monitored>, String> {
    let devices = devices();
    let names = || devices.iter().map(|device| device.name()).take(8).collect::<Vec<_>>().join(", ");
    let mut found = devices.iter().filter(|device| name.is_empty() || device.name() == name);
    match (found.next(), found.next()) {
        (Some(device), None) => Ok(Arc::clone(device)),
        (Some(_), Some(_)) if name.is_empty() => Err(format!("it has several devices; name one of {}", names())),
        (Some(_), Some(_)) => Err(format!("it has the device {name} open more than once")),
        (None, _) if name.is_empty() => Err("it has no device open".to_owned()),
        (None, _) => Err(format!("it has no device {name}; it has {}", names())),
    }
}

/// Returns the options of the capture. A write beyond the limit on the size of files would end the process.
fn options(request: &CaptureRequest) -> Result<CaptureOptions, String> {
    let (least, limit) = (CaptureOptions::LEAST_MAX_BYTES, file_size_limit());
    if request.max_bytes < least {
        return Err(format!("max_bytes of the capture is {}; allowed are {least} and more", request.max_bytes));
    }
    if limit < least {
        return Err(format!("it may write files of at most {limit} bytes (RLIMIT_FSIZE)"));
    }
    let options = CaptureOptions::new("").max_bytes(request.max_bytes.min(limit));
    Ok(request.queue_pairs.iter().fold(options, |options, qpn| options.queue_pair(*qpn)))
}

/// Waits until the capture ends, and reports its counts.
fn wait_for_end(connection: &Connection, capture: &Capture, device: &Weak<dyn Monitored>) -> CaptureOutcome {
    let (mut reported_at, mut reported) = (Instant::now(), CaptureSummary::default());
    loop {
        let wants_end = match wait_readable([connection.as_fd()], Some(LOOK_EVERY)) {
            // Anything but a request to stop is a mistake, or the end of the connection: the capture ends, too.
            Ok([true]) => !matches!(connection.receive(), Ok(None)),
            Ok([false]) => false,
            Err(_) => {
                std::thread::sleep(LOOK_EVERY);
                has_ended(connection.as_fd())
            }
        };
        if wants_end {
            return CaptureOutcome::Stopped;
        }
        if device.strong_count() == 0 {
            return CaptureOutcome::DeviceClosed;
        }
        if !capture.is_running() {
            // The result of `finish` tells whether writing failed.
            return CaptureOutcome::ReachedMaxBytes;
        }
        let summary = capture.summary();
        if reported_at.elapsed() >= REPORT_EVERY && summary != reported {
            connection.send(&Response::Progress(summary));
            (reported_at, reported) = (Instant::now(), summary);
        }
    }
}

/// Completes the file, and reports the end.
fn finish(connection: &Connection, capture: &Capture, outcome: CaptureOutcome) {
    let response = match capture.finish() {
        // A capture that its device has ended is complete, whatever was seen first.
        Ok(summary) => {
            let outcome = match outcome {
                CaptureOutcome::ReachedMaxBytes if !summary.reached_max_bytes => CaptureOutcome::DeviceClosed,
                other => other,
            };
            Response::Ended { outcome, summary, text: String::new() }
        }
        Err(error) => {
            let (outcome, summary) = (CaptureOutcome::WriteFailed, capture.summary());
            Response::Ended { outcome, summary, text: error.to_string() }
        }
    };
    let deadline = Instant::now() + LAST_MESSAGE_WAIT;
    while !connection.send(&response) && !has_ended(connection.as_fd()) && Instant::now() < deadline {
        std::thread::sleep(LOOK_EVERY);
    }
}
