//! The messages between a process that watches and one that is watched, over a connection that keeps their bounds.
//!
//! Each begins with a magic number, [`FORMAT`] and its kind. The first two never change their places, so processes with
//! different versions of the library find that out.

use std::time::Duration;

use super::MOST_NAME_BYTES;
use super::codec::{Decoder, Encoder, FORMAT};
use crate::types::{CaptureSummary, Qpn};

const MAGIC: u32 = u32::from_le_bytes(*b"RVmo");
/// Most bytes of a message.
pub(super) const MOST_BYTES: usize = 512;
/// Most queue pairs that a request for a capture names.
pub(super) const MOST_QUEUE_PAIRS: usize = 64;
/// Most bytes of a text.
const MOST_TEXT_BYTES: usize = 240;

/// Why a message is not understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotUnderstood {
    /// It is of another version.
    Version,
    /// It is malformed.
    Malformed,
}

/// A request for a capture, besides the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CaptureRequest {
    /// Name of the device; empty for the only one.
    pub(crate) device: String,
    pub(crate) max_bytes: u64,
    /// Queue pairs to record; all if empty.
    pub(crate) queue_pairs: Vec<Qpn>,
}

/// A message of a process that watches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// Export statistics, refreshed at this interval.
    Watch { every: Duration },
    /// Record packets into the file that the message carries.
    Capture(CaptureRequest),
    /// End the capture.
    Stop,
}

/// Why a process refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RefusalKind {
    /// The requester has another version.
    Version,
    /// It has more privileges than its user.
    Protected,
    /// There are too many watchers or captures.
    TooMany,
    /// The text says why.
    Other,
}

impl RefusalKind {
    const ALL: [Self; 4] = [Self::Version, Self::Protected, Self::TooMany, Self::Other];
}

/// How a capture has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CaptureOutcome {
    Stopped,
    ReachedMaxBytes,
    DeviceClosed,
    /// The text says why.
    WriteFailed,
}

impl CaptureOutcome {
    const ALL: [Self; 4] = [Self::Stopped, Self::ReachedMaxBytes, Self::DeviceClosed, Self::WriteFailed];
}

/// A message of a process that is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Response {
    /// The message carries the file of the page.
    Page,
    /// The request is refused; the connection ends.
    Refused { kind: RefusalKind, text: String },
    /// A capture of this device has begun.
    Started { device: String },
    /// The counts of the capture so far.
    Progress(CaptureSummary),
    /// The capture has ended.
    Ended { outcome: CaptureOutcome, summary: CaptureSummary, text: String },
}

fn begin(bytes: &mut Vec<u8>, kind: u8) -> Encoder<'_> {
    let mut encoder = Encoder(bytes);
    encoder.u32(MAGIC);
    encoder.u32(FORMAT);
    encoder.u8(kind);
    encoder
}

/// Returns the kind of a message, and the rest of it.
fn open(bytes: &[u8]) -> Result<(u8, Decoder<'_>), NotUnderstood> {
    let mut decoder = Decoder(bytes);
    if decoder.u32() != Some(MAGIC) {
        return Err(NotUnderstood::Malformed);
    }
    match decoder.u32() {
        Some(FORMAT) => Ok((decoder.u8().ok_or(NotUnderstood::Malformed)?, decoder)),
        Some(_) => Err(NotUnderstood::Version),
        None => Err(NotUnderstood::Malformed),
    }
}

impl Request {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Watch { every } => begin(&mut bytes, 1).u32(every.as_millis() as u32),
            Self::Capture(request) => {
                let mut encoder = begin(&mut bytes, 2);
                encoder.u64(request.max_bytes);
                encoder.text(&request.device, MOST_NAME_BYTES);
                let queue_pairs = &request.queue_pairs[..request.queue_pairs.len().min(MOST_QUEUE_PAIRS)];
                encoder.u8(queue_pairs.len() as u8);
                queue_pairs.iter().for_each(|qpn| encoder.u32(qpn.value()));
            }
            Self::Stop => drop(begin(&mut bytes, 3)),
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NotUnderstood> {
        let (kind, mut decoder) = open(bytes)?;
        Self::read(kind, &mut decoder).filter(|_| decoder.0.is_empty()).ok_or(NotUnderstood::Malformed)
    }

    fn read(kind: u8, decoder: &mut Decoder<'_>) -> Option<Self> {
        Some(match kind {
            1 => Self::Watch { every: Duration::from_millis(decoder.u32()?.into()) },
            2 => {
                let (max_bytes, device) = (decoder.u64()?, decoder.text(MOST_NAME_BYTES)?);
                let count = Some(decoder.u8()?).filter(|count| usize::from(*count) <= MOST_QUEUE_PAIRS)?;
                let queue_pairs = (0..count).map(|_| decoder.u32().map(Qpn::new)).collect::<Option<_>>()?;
                Self::Capture(CaptureRequest { device, max_bytes, queue_pairs })
            }
            3 => Self::Stop,
            _ => return None,
        })
    }
}

impl Response {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Page => drop(begin(&mut bytes, 16)),
            Self::Refused { kind, text } => {
                let mut encoder = begin(&mut bytes, 17);
                encoder.u8(*kind as u8);
                encoder.text(text, MOST_TEXT_BYTES);
            }
            Self::Started { device } => begin(&mut bytes, 18).text(device, MOST_NAME_BYTES),
            Self::Progress(summary) => write_summary(&mut begin(&mut bytes, 19), summary),
            Self::Ended { outcome, summary, text } => {
                let mut encoder = begin(&mut bytes, 20);
                encoder.u8(*outcome as u8);
                write_summary(&mut encoder, summary);
                encoder.text(text, MOST_TEXT_BYTES);
            }
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NotUnderstood> {
        let (kind, mut decoder) = open(bytes)?;
        Self::read(kind, &mut decoder).filter(|_| decoder.0.is_empty()).ok_or(NotUnderstood::Malformed)
    }

    fn read(kind: u8, decoder: &mut Decoder<'_>) -> Option<Self> {
        Some(match kind {
            16 => Self::Page,
            17 => {
                let kind = *RefusalKind::ALL.get(usize::from(decoder.u8()?))?;
                Self::Refused { kind, text: decoder.text(MOST_TEXT_BYTES)? }
            }
            18 => Self::Started { device: decoder.text(MOST_NAME_BYTES)? },
            19 => Self::Progress(read_summary(decoder)?),
            20 => {
                let outcome = *CaptureOutcome::ALL.get(usize::from(decoder.u8()?))?;
                Self::Ended { outcome, summary: read_summary(decoder)?, text: decoder.text(MOST_TEXT_BYTES)? }
            }
            _ => return None,
        })
    }
}

fn write_summary(encoder: &mut Encoder<'_>, summary: &CaptureSummary) {
    encoder.u64(summary.packets);
    encoder.u64(summary.lost);
    encoder.u64(summary.bytes);
    encoder.u8(summary.reached_max_bytes.into());
}

fn read_summary(decoder: &mut Decoder<'_>) -> Option<CaptureSummary> {
    Some(CaptureSummary {
        packets: decoder.u64()?,
        lost: decoder.u64()?,
        bytes: decoder.u64()?,
        reached_max_bytes: decoder.u8()? != 0,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requests() -> [Request; 4] {
        let many = CaptureRequest {
            device: "d".repeat(MOST_NAME_BYTES),
            max_bytes: u64::MAX,
            queue_pairs: (0..MOST_QUEUE_PAIRS as u32).map(Qpn::new).collect(),
        };
        let watch = Request::Watch { every: Duration::from_millis(1_500) };
        [watch, Request::Capture(CaptureRequest::default()), Request::Capture(many), Request::Stop]
    }

    fn responses() -> [Response; 5] {
        let summary = CaptureSummary { packets: 1, lost: 2, bytes: u64::MAX, reached_max_bytes: true };
        [
            Response::Page,
            Response::Refused { kind: RefusalKind::TooMany, text: "t".repeat(MOST_TEXT_BYTES) },
            Response::Started { device: "soft_lo".to_owned() },
            Response::Progress(summary),
            Response::Ended { outcome: CaptureOutcome::WriteFailed, summary, text: "full".to_owned() },
        ]
    }

    #[test]
    fn messages_are_read_as_written_and_fit() {
        for request in requests() {
            let bytes = request.to_bytes();
            assert!(bytes.len() <= MOST_BYTES);
            assert_eq!(Request::parse(&bytes), Ok(request));
            assert_eq!(Request::parse(&bytes[..bytes.len() - 1]), Err(NotUnderstood::Malformed));
        }
        for response in responses() {
            let bytes = response.to_bytes();
            assert!(bytes.len() <= MOST_BYTES);
            assert_eq!(Response::parse(&bytes), Ok(response));
            assert_eq!(Response::parse(&[&bytes[..], &[0]].concat()), Err(NotUnderstood::Malformed));
        }
    }

    #[test]
    fn other_versions_are_recognized() {
        let mut bytes = Request::Stop.to_bytes();
        bytes[4] ^= 1;
        assert_eq!(Request::parse(&bytes), Err(NotUnderstood::Version));
        assert_eq!(Response::parse(&bytes[..8]), Err(NotUnderstood::Version));
        bytes[0] ^= 1;
        assert_eq!(Request::parse(&bytes), Err(NotUnderstood::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(kind in any::<u8>(), rest in proptest::collection::vec(any::<u8>(), 0..MOST_BYTES)) {
            let mut bytes = Vec::new();
            begin(&mut bytes, kind);
            bytes.extend(rest);
            let _ = (Request::parse(&bytes), Response::parse(&bytes));
        }
    }
}
