//! Packet captures of a software device, started by the verb, the options or the environment.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use super::device::Device;
use super::limit::Share;
use super::options::SoftOptions;
use crate::engine::{self, Engine};
use crate::provider::{Capture, Error, ErrorKind, Result};
use crate::sys::{self, OpenError};
use crate::types::{CaptureOptions, CaptureSummary};

/// Environment variable naming the file or folder that every device's packets are captured into.
const PATH_VARIABLE: &str = "RDMA_VERBS_CAPTURE";
/// Environment variable with the largest size of a capture file in bytes.
const BYTES_VARIABLE: &str = "RDMA_VERBS_CAPTURE_BYTES";

/// A capture started by `start_capture`.
pub(super) struct SoftCapture {
    capture: Arc<engine::Capture>,
    /// Weak, so that a capture does not keep the device open.
    device: Weak<Device>,
    _share: Share,
}

impl SoftCapture {
    pub(super) fn start(device: &Arc<Device>, options: &CaptureOptions) -> Result<Self> {
        let share = device.counts.captures.take("start_capture")?;
        let started = device.engine.start_capture(options, &device.interface.device_name);
        let capture = started.map_err(|error| explain("start_capture", error))?;
        Ok(Self { capture, device: Arc::downgrade(device), _share: share })
    }

    fn detach(&self) {
        if let Some(device) = self.device.upgrade() {
            device.engine.detach_capture(&self.capture);
        }
    }
}

impl Capture for SoftCapture {
    fn path(&self) -> &Path {
        self.capture.path()
    }

    fn summary(&self) -> CaptureSummary {
        self.capture.summary()
    }

    fn stop(&self) -> Result<CaptureSummary> {
        self.detach();
        self.capture.finish().map_err(|error| {
            let message = format!("the capture file {} could not be completed", self.path().display());
            Error::from_io("stop_capture", message, error)
        })
    }
}

impl Drop for SoftCapture {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Starts the capture that the options request, or else the environment. It lasts as long as the device.
pub(super) fn start_with_device(engine: &Engine, device: &str, options: &SoftOptions) -> Result<()> {
    let from_environment = match &options.capture {
        Some(_) => None,
        None => options_from(sys::variable)?,
    };
    let Some(wanted) = options.capture.as_ref().or(from_environment.as_ref()) else { return Ok(()) };
    match engine.start_capture(wanted, device) {
        // The engine keeps it until the device is closed.
        Ok(_) => Ok(()),
        Err(mut error) => {
            if from_environment.is_some() {
                error.message = format!("{} (requested by the environment variable {PATH_VARIABLE})", error.message);
            }
            Err(explain("open_device", error))
        }
    }
}

fn options_from(variable: impl Fn(&str) -> Option<String>) -> Result<Option<CaptureOptions>> {
    let Some(path) = variable(PATH_VARIABLE).filter(|path| !path.is_empty()) else { return Ok(None) };
    let options = CaptureOptions::new(path);
    let Some(bytes) = variable(BYTES_VARIABLE).filter(|bytes| !bytes.is_empty()) else { return Ok(Some(options)) };
    let least = CaptureOptions::LEAST_MAX_BYTES;
    match bytes.parse() {
        Ok(bytes) if bytes >= least => Ok(Some(options.max_bytes(bytes))),
        _ => {
            let message = format!(
                "the environment variable {BYTES_VARIABLE} is \"{bytes}\"; allowed are whole numbers of bytes from \
                 {least} on"
            );
            Err(Error::new("open_device", ErrorKind::InvalidArgument, message))
        }
    }
}

fn explain(verb: &'static str, error: OpenError) -> Error {
    match error.source.get_ref() {
        // Not a system failure: the message already explains it.
        None if error.source.kind() == io::ErrorKind::InvalidInput && error.source.raw_os_error().is_none() => {
            Error::new(verb, ErrorKind::InvalidArgument, error.message)
        }
        _ => Error::from_io(verb, error.message, error.source),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn read(path: Option<&str>, bytes: Option<&str>) -> Result<Option<CaptureOptions>> {
        options_from(|name| match name {
            PATH_VARIABLE => path.map(str::to_owned),
            BYTES_VARIABLE => bytes.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn capture_options_come_from_the_environment() {
        assert_eq!(read(None, Some("100000")).unwrap(), None);
        assert_eq!(read(Some(""), None).unwrap(), None);
        assert_eq!(read(Some("/x"), None).unwrap(), Some(CaptureOptions::new("/x")));
        assert_eq!(read(Some("/x"), Some("100000")).unwrap(), Some(CaptureOptions::new("/x").max_bytes(100_000)));
    }

    #[test]
    fn invalid_sizes_are_explained() {
        for bytes in ["many", "-1", "8191", "1e9"] {
            let error = read(Some("/x"), Some(bytes)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("allowed are whole numbers of bytes from 8192 on"), "{error}");
        }
    }
}
