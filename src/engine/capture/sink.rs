//! The sink: the link reports every packet to it, and it records them in the running captures.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::headers::Addressing;
use super::management::{self, MessageKey};
use super::pcapng::{Direction, Timestamp};
use super::{Capture, PacketRecord};
use crate::sys::DEFAULT_HOP_LIMIT;
use crate::transport::{CheckField, Datagram, DatagramOutcome, Sending, Transmit};
use crate::types::{DropReason, Qpn};
use crate::wire::{BTH_BYTES, Flow, ICRC_BYTES, Opcode, icrc};

/// Bytes of a base transport header up to the end of the destination QPN.
const DESTINATION_END: usize = 8;

/// Payload, headers and ICRC: anything longer is not a RoCE packet, so its identification is not solved for.
const LONGEST_PACKET: usize = 4_096 + 12 + 32 + 4;

/// How a burst of datagrams left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Departure {
    /// As one segmented send, as the endpoint wrote it.
    Whole,
    /// One by one, because the kernel could not segment it.
    Singly,
    /// The queue of the local network interface dropped all of it, or some.
    Dropped,
    /// The kernel refused it, so it did not leave.
    Refused,
}

/// Metadata of a received datagram, besides its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    time: Timestamp,
    hop_limit: u8,
    traffic_class: u8,
    /// Whether the kernel merged it with others, which it does only if they have checksums.
    is_merged: bool,
}

impl Arrival {
    /// Returns an arrival with the current time.
    pub(crate) fn now(hop_limit: Option<u8>, traffic_class: Option<u8>, is_merged: bool) -> Self {
        Self {
            time: now(),
            hop_limit: hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
            traffic_class: traffic_class.unwrap_or(0),
            is_merged,
        }
    }
}

/// The running captures of a link.
#[derive(Default)]
pub(crate) struct CaptureSink {
    captures: Vec<Arc<Capture>>,
}

impl CaptureSink {
    /// Returns whether no capture runs. Called for every datagram.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.captures.is_empty()
    }

    pub(crate) fn add(&mut self, capture: Arc<Capture>) {
        self.captures.push(capture);
    }

    pub(crate) fn remove(&mut self, capture: &Arc<Capture>) {
        self.captures.retain(|present| !Arc::ptr_eq(present, capture));
    }

    pub(crate) fn take(&mut self) -> Vec<Arc<Capture>> {
        std::mem::take(&mut self.captures)
    }

    /// Returns the time, if a capture runs.
    #[inline]
    pub(crate) fn time(&self) -> Option<Timestamp> {
        (!self.is_idle()).then(now)
    }

    /// Records a burst of datagrams that left at this time.
    #[cold]
    pub(crate) fn sent(
        &self,
        time: Timestamp,
        transmit: &Transmit,
        bytes: &[u8],
        has_checksum: bool,
        departure: Departure,
    ) {
        let size = transmit.segment_size.unwrap_or(bytes.len()).max(1);
        for (index, payload) in bytes.chunks(size).enumerate() {
            let expected = index as u16;
            let addressing = Addressing {
                source: transmit.source,
                destination: transmit.destination,
                source_port: transmit.source_port,
                hop_limit: if transmit.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { transmit.hop_limit },
                traffic_class: transmit.traffic_class,
                identification: if departure == Departure::Singly { 0 } else { expected },
                dont_fragment: true,
                has_checksum,
            };
            let mut comment = String::new();
            match transmit.repeats.get(index) {
                Sending::First => {}
                Sending::Again => comment.push_str("retransmission"),
                Sending::Probe => comment.push_str("probe"),
            }
            if departure == Departure::Refused {
                append(&mut comment, "refused by the system, did not leave");
            } else if departure == Departure::Dropped {
                append(&mut comment, "the interface's queue dropped this send, or some of it");
            } else if addressing.identification != expected && transmit.destination.is_ipv4() && !transmit.is_keyed {
                append(&mut comment, &format!("sent singly, its ICRC is for identification {expected}"));
            }
            let field = if transmit.is_keyed { CheckField::Keyed } else { CheckField::Icrc };
            let payload = without_key(field, &addressing, payload, &mut comment);
            let direction = Direction::Outbound;
            let (comment, payload) = (&comment, &payload);
            self.record(transmit.qpn, &PacketRecord { time, direction, addressing, comment, message: None, payload });
        }
    }

    /// Records a datagram that arrived.
    #[cold]
    pub(crate) fn received(&self, datagram: &Datagram<'_>, arrival: &Arrival, outcome: DatagramOutcome) {
        let (identification, dont_fragment) = match outcome.check_field {
            CheckField::Icrc => solve(datagram),
            CheckField::Keyed | CheckField::Withheld => (datagram.segment_index, true),
        };
        let addressing = Addressing {
            source: datagram.source,
            destination: datagram.destination,
            source_port: datagram.source_port,
            hop_limit: arrival.hop_limit,
            traffic_class: arrival.traffic_class,
            identification,
            dont_fragment,
            has_checksum: arrival.is_merged || outcome.is_from_own_peer,
        };
        let mut comment = outcome.dropped.map(drop_comment).unwrap_or_default();
        let payload = without_key(outcome.check_field, &addressing, datagram.payload, &mut comment);
        let record = PacketRecord {
            time: arrival.time,
            direction: Direction::Inbound,
            addressing,
            comment: &comment,
            message: None,
            payload: &payload,
        };
        self.record(destination(datagram.payload), &record);
    }

    /// Records a packet. A management datagram gets its contents as a further comment.
    fn record(&self, qpn: Qpn, record: &PacketRecord<'_>) {
        let wanting = || self.captures.iter().filter(|capture| capture.wants(qpn));
        let Some(datagram) = management::datagram(record.payload) else {
            return wanting().for_each(|capture| capture.record(record));
        };
        let mut comment = record.comment.to_owned();
        append(&mut comment, &datagram.as_ref().map_or_else(ToString::to_string, ToString::to_string));
        let datagram = datagram.as_ref().ok();
        let message = datagram.and_then(|mad| MessageKey::of(record, mad));
        let secretless = datagram.and_then(|mad| management::without_secret(record.payload, mad, &record.addressing));
        if secretless.is_some() {
            append(&mut comment, "key share withheld");
        }
        let payload = secretless.as_deref().unwrap_or(record.payload);
        let record = PacketRecord { comment: &comment, message, payload, ..*record };
        wanting().for_each(|capture| capture.record(&record));
    }
}

/// Returns the packet without secrets: a check field under its connection's mask would reveal the mask.
fn without_key<'a>(
    field: CheckField,
    addressing: &Addressing,
    payload: &'a [u8],
    comment: &mut String,
) -> Cow<'a, [u8]> {
    let covered = payload.len().saturating_sub(ICRC_BYTES);
    let mut shown = match field {
        CheckField::Keyed | CheckField::Withheld if covered >= BTH_BYTES => payload.to_vec(),
        _ => return Cow::Borrowed(payload),
    };
    if field == CheckField::Keyed {
        let icrc = addressing.icrc(&shown[..covered]);
        shown[covered..].copy_from_slice(&icrc.to_le_bytes());
    } else {
        shown[covered..].fill(0);
        append(comment, "check field withheld");
    }
    Cow::Owned(shown)
}

fn append(comment: &mut String, text: &str) {
    if !comment.is_empty() {
        comment.push_str("; ");
    }
    comment.push_str(text);
}

fn now() -> Timestamp {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as Timestamp)
}

/// Returns identification and "don't fragment" of a packet that arrived. The socket does not report them, but the ICRC
/// covers them, so they are computed from it.
pub(super) fn solve(datagram: &Datagram<'_>) -> (u16, bool) {
    if datagram.payload.len() > LONGEST_PACKET {
        return (datagram.segment_index, true);
    }
    let flow = Flow { source: datagram.source, destination: datagram.destination, source_port: datagram.source_port };
    let options = icrc::Verify { first_identification: datagram.segment_index, solve: true, expected_df: true };
    let mut verified = icrc::verify(&flow, &options, datagram.payload);
    if verified == icrc::Match::Wrong && datagram.payload.first() == Some(&Opcode::RC_FLUSH.0) {
        verified = icrc::verify_as_linux(&flow, &options, datagram.payload);
    }
    match verified {
        icrc::Match::Exact { identification } => (identification, true),
        icrc::Match::Solved { identification, dont_fragment } => (identification, dont_fragment),
        icrc::Match::Wrong => (datagram.segment_index, true),
    }
}

/// Returns the destination QPN of a packet; 0 if it is too short to have one.
fn destination(payload: &[u8]) -> Qpn {
    let number = payload.get(DESTINATION_END - 4..DESTINATION_END).and_then(|bytes| bytes.try_into().ok());
    Qpn::new(number.map_or(0, u32::from_be_bytes) & 0x00ff_ffff)
}

/// Returns the counter name of a drop reason in words: "dropped: bad ICRC".
fn drop_comment(reason: DropReason) -> String {
    let words = reason.name().trim_start_matches("drop_").split('_').map(|word| match word {
        "icrc" => "ICRC",
        "qpn" => "QPN",
        "psn" => "PSN",
        "pkey" => "P_Key",
        "qkey" => "Q_Key",
        "cnp" => "congestion notification",
        word => word,
    });
    format!("dropped: {}", words.collect::<Vec<_>>().join(" "))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::Medium;

    #[test]
    fn drop_reasons_are_named() {
        assert_eq!(drop_comment(DropReason::BadIcrc), "dropped: bad ICRC");
        assert_eq!(drop_comment(DropReason::UnknownQueuePair), "dropped: unknown QPN");
        assert_eq!(drop_comment(DropReason::OutOfOrderResponse), "dropped: out of order response");
    }

    #[test]
    fn identification_is_solved_for() {
        let flow =
            Flow { source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), source_port: 0xd000 };
        let mut payload = [0x11; 64];
        for (identification, dont_fragment) in [(0, true), (0xbeef, true), (7, false)] {
            let value = icrc::compute(&flow, identification, dont_fragment, &payload[..60]);
            payload[60..].copy_from_slice(&value.to_le_bytes());
            let datagram = Datagram {
                source: flow.source,
                destination: flow.destination,
                source_port: flow.source_port,
                segment_index: 0,
                hop_limit: None,
                traffic_class: None,
                payload: &payload,
                medium: Medium::Network,
            };
            assert_eq!(solve(&datagram), (identification, dont_fragment));
        }
        let far_too_long = vec![0x11; 65_536];
        let datagram = Datagram {
            source: flow.source,
            destination: flow.destination,
            source_port: 1,
            segment_index: 4,
            hop_limit: None,
            traffic_class: None,
            payload: &far_too_long,
            medium: Medium::Network,
        };
        assert_eq!(solve(&datagram), (4, true));
        assert_eq!(destination(&payload), Qpn::new(0x11_1111));
        assert_eq!(destination(&payload[..7]), Qpn::new(0));
    }
}
