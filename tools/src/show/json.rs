//! JSON: a line for each request and message and one at the end, each of which is a document; with `--summary`, one
//! document.

use std::io;
use std::net::IpAddr;

use serde::Serialize;

use super::Frames;
use super::flow::Flow;
use super::request::{Ending, PacketLine, Request};
use super::source::Direction;
use super::summary::SumsObject;
use super::tracker::Management;
use super::words;
use crate::common::{to_json, to_json_line};

/// The command in the documents.
const LINES: &str = "show";
const SUMMARY: &str = "show --summary";

#[derive(Serialize)]
struct RequestObject {
    r#type: &'static str,
    /// Nanoseconds since 1970.
    time_ns: u64,
    connection: u32,
    service: &'static str,
    source: IpAddr,
    source_queue_pair: Option<u32>,
    destination: IpAddr,
    destination_queue_pair: u32,
    request: u64,
    kind: &'static str,
    bytes: u64,
    address: Option<u64>,
    key: Option<u32>,
    immediate: Option<u32>,
    invalidated_key: Option<u32>,
    compare: Option<u64>,
    swap_or_add: Option<u64>,
    original: Option<u64>,
    first_psn: u32,
    last_psn: Option<u32>,
    has_beginning: bool,
    packets: u32,
    retransmitted: u32,
    /// If both ends are in the capture.
    lost: u32,
    missing: u32,
    response_packets: u32,
    /// From the first packet to the last one.
    sent_ns: u64,
    /// From the first packet to the acknowledgement or the end of the response.
    latency_ns: Option<u64>,
    outcome: &'static str,
    refusal: Option<String>,
    is_problem: bool,
    events: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packet_list: Vec<PacketObject>,
}

#[derive(Serialize)]
struct PacketObject {
    time_ns: u64,
    direction: Option<&'static str>,
    psn: u32,
    opcode: &'static str,
    bytes: u32,
    is_again: bool,
}

#[derive(Serialize)]
struct MessageObject<'a> {
    r#type: &'static str,
    time_ns: u64,
    source: IpAddr,
    destination: IpAddr,
    text: &'a str,
    is_again: bool,
}

/// The counts of packets and requests, also of those that are not shown.
#[derive(Serialize)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) problems: u64,
    pub(super) roce_packets: u64,
    pub(super) malformed_packets: u64,
    pub(super) unfollowed_packets: u64,
    pub(super) unmatched_responses: u64,
    /// Packets again of requests that had been acknowledged.
    pub(super) late_retransmissions: u64,
    pub(super) congestion_notifications: u64,
    pub(super) lost_packets: u64,
    pub(super) is_cut: bool,
    #[serde(flatten)]
    pub(super) frames: Frames,
}

#[derive(Serialize)]
struct EndObject<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    counts: &'a Counts,
}

#[derive(Serialize)]
struct SummaryObject<'a> {
    connections: &'a [SumsObject],
    /// Of connections beyond the bound of the summary.
    omitted_requests: u64,
    #[serde(flatten)]
    counts: &'a Counts,
}

/// The line of a request.
pub(super) fn request(
    connection: u32,
    flow: &Flow,
    source_queue_pair: Option<u32>,
    request: &Request,
) -> io::Result<String> {
    let headers = &request.headers;
    let seen = request.best();
    let (reth, atomic) = (headers.reth, headers.atomic);
    to_json_line(
        LINES,
        &RequestObject {
            r#type: "request",
            time_ns: seen.first,
            connection,
            service: words::service(flow.service()),
            source: flow.key.source,
            source_queue_pair,
            destination: flow.key.destination,
            destination_queue_pair: flow.key.destination_qpn.value(),
            request: request.number,
            kind: request.kind.name(),
            bytes: request.bytes(),
            address: reth.map(|reth| reth.va).or(atomic.map(|atomic| atomic.va)),
            key: reth.map(|reth| reth.rkey.0).or(atomic.map(|atomic| atomic.rkey.0)),
            immediate: headers.immediate,
            invalidated_key: headers.invalidate.map(|rkey| rkey.0),
            compare: atomic.map(|atomic| atomic.compare),
            swap_or_add: atomic.map(|atomic| atomic.swap_or_add),
            original: request.original,
            first_psn: request.first.value(),
            last_psn: request.end.map(|psn| psn.value()),
            has_beginning: request.has_beginning,
            packets: seen.packets,
            retransmitted: seen.again,
            lost: request.lost,
            missing: request.missing(),
            response_packets: request.response_packets,
            sent_ns: seen.last.saturating_sub(seen.first),
            latency_ns: request.latency(),
            outcome: outcome(request.ending),
            refusal: match request.ending {
                Some(Ending::Refused(_, code)) => Some(words::refusal(code, request)),
                _ => None,
            },
            is_problem: request.is_problem(),
            events: request.events.iter().map(words::event).collect(),
            packet_list: request.lines.iter().map(packet).collect(),
        },
    )
}

pub(super) fn message(management: &Management) -> io::Result<String> {
    to_json_line(
        LINES,
        &MessageObject {
            r#type: "message",
            time_ns: management.time,
            source: management.source,
            destination: management.destination,
            text: &management.text,
            is_again: management.is_again,
        },
    )
}

/// The last line.
pub(super) fn end(counts: &Counts) -> io::Result<String> {
    to_json_line(LINES, &EndObject { r#type: "end", counts })
}

/// The document of `--summary`, with the sums of each direction of the connections.
pub(super) fn summary(connections: &[SumsObject], omitted_requests: u64, counts: &Counts) -> io::Result<String> {
    to_json(SUMMARY, &SummaryObject { connections, omitted_requests, counts })
}

const fn outcome(ending: Option<Ending>) -> &'static str {
    match ending {
        Some(Ending::Done(_)) => "done",
        Some(Ending::Refused(..)) => "refused",
        Some(Ending::AfterRefusal) => "not executed",
        Some(Ending::ResponseIncomplete) => "response incomplete",
        Some(Ending::Unanswered) | None => "no response",
        Some(Ending::Forgotten) => "not followed",
        Some(Ending::Unreliable) => "sent",
    }
}

fn packet(line: &PacketLine) -> PacketObject {
    PacketObject {
        time_ns: line.time,
        direction: match line.direction {
            Direction::Unknown => None,
            Direction::Inbound => Some("in"),
            Direction::Outbound => Some("out"),
        },
        psn: line.psn.value(),
        opcode: line.opcode.name(),
        bytes: line.bytes,
        is_again: line.is_again,
    }
}
