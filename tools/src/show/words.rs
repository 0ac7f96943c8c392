//! Requests in words: a line for each, and a line for each packet.

use std::fmt::Write as _;

use rdma_verbs::wire::{Headers, NakCode, Service, Syndrome};

use super::request::{Cause, Ending, Event, Kind, PacketLine, Request};
use super::source::Direction;
use crate::common::calendar;

/// A duration, in a unit that gives three or four digits.
pub(super) fn span(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..10_000 => format!("{:.1} µs", value / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", value / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", value / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// A number of bytes: exact, in KiB, MiB or GiB if it is a multiple.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{bytes} B"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(super) const fn service(service: Service) -> &'static str {
    match service {
        Service::ReliableConnection => "RC",
        Service::UnreliableConnection => "UC",
        Service::UnreliableDatagram => "UD",
        Service::ExtendedReliableConnection => "XRC",
        Service::CongestionNotification => "CNP",
    }
}

/// The request: what it does, how much of it, and where.
pub(super) fn title(request: &Request) -> String {
    let Headers { reth, atomic, flush, immediate, invalidate, xrc_srq, deth, .. } = &request.headers;
    let mut text = format!("{} ", request.kind.name());
    match (request.kind, reth, atomic) {
        (Kind::Write, Some(reth), _) => {
            let _ = write!(text, "{} to {:#x} key {}", size(request.bytes()), reth.va, reth.rkey);
        }
        (Kind::Read, Some(reth), _) => {
            let _ = write!(text, "{} from {:#x} key {}", size(request.bytes()), reth.va, reth.rkey);
        }
        (Kind::AtomicWrite, Some(reth), _) => {
            let _ = write!(text, "of 8 B at {:#x} key {}", reth.va, reth.rkey);
        }
        (Kind::Flush, Some(reth), _) => {
            let range = match flush.map(|flush| flush.selectivity) {
                Some(1) => "the whole region".to_owned(),
                _ => format!("{} at {:#x}", size(reth.length.into()), reth.va),
            };
            let placement = flush.map_or("", |flush| match flush.placement & 3 {
                1 => " to global visibility",
                2 => " to persistence",
                3 => " to global visibility and persistence",
                _ => "",
            });
            let _ = write!(text, "of {range} key {}{placement}", reth.rkey);
        }
        (Kind::CompareSwap, _, Some(atomic)) => {
            let (compare, swap) = (atomic.compare, atomic.swap_or_add);
            let _ = write!(text, "{compare:#x} to {swap:#x} at {:#x} key {}", atomic.va, atomic.rkey);
        }
        (Kind::FetchAdd, _, Some(atomic)) => {
            let _ = write!(text, "{:#x} at {:#x} key {}", atomic.swap_or_add, atomic.va, atomic.rkey);
        }
        _ => text.push_str(&size(request.bytes())),
    }
    if let Some(immediate) = immediate {
        let _ = write!(text, " with immediate data {immediate:#010x}");
    }
    if let Some(rkey) = invalidate {
        let _ = write!(text, " that invalidates key {rkey}");
    }
    if let Some(srq) = xrc_srq {
        let _ = write!(text, " for shared receive queue {srq}");
    }
    if let Some(deth) = deth {
        let _ = write!(text, " with Q_Key {}", deth.qkey);
    }
    if !request.has_beginning {
        text.push_str(", its beginning is not in the capture");
    }
    text
}

/// How it went: packets, result, and what should not have happened.
pub(super) fn course(request: &Request) -> String {
    let mut parts = vec![progress(request)];
    parts.extend(request.events.iter().map(event));
    if request.omitted_events > 0 {
        parts.push(format!("and {} more", count(request.omitted_events.into(), "such event")));
    }
    if request.lost > 0 {
        parts.push(format!("{} lost on the way", count(request.lost.into(), "packet")));
    }
    if request.missing() > 0 {
        let missing = count(request.missing().into(), "packet");
        parts.push(match request.ending {
            Some(Ending::Unreliable) => format!("{missing} missing: lost, or not captured"),
            _ => format!("{missing} not in the capture"),
        });
    }
    parts.join("; ")
}

fn progress(request: &Request) -> String {
    let seen = request.best();
    let distinct = u64::from(seen.packets - seen.again.min(seen.packets));
    let mut text = String::new();
    if distinct > 1 {
        let _ = write!(text, "{} in {}, ", count(distinct, "packet"), span(seen.last.saturating_sub(seen.first)));
    }
    match request.ending {
        Some(Ending::Done(time)) => {
            let responses = u64::from(request.response_packets);
            match (request.kind.has_result(), request.original) {
                (_, Some(original)) => {
                    let _ = write!(text, "returns {original:#x} ");
                }
                (true, None) => {
                    let _ = write!(text, "response of {} ", count(responses, "packet"));
                }
                (false, _) => text.push_str("acknowledged "),
            }
            let since = if distinct > 1 { (seen.last, " later") } else { (seen.first, "") };
            let after = span(time.saturating_sub(since.0));
            text.push_str(&if since.1.is_empty() { format!("after {after}") } else { format!("{after} later") });
        }
        Some(Ending::Refused(time, code)) => {
            let after = span(time.saturating_sub(seen.first));
            let _ = write!(text, "REFUSED after {after}: {}", refusal(code, request));
        }
        Some(Ending::AfterRefusal) => text.push_str("not executed, because an earlier request was refused"),
        Some(Ending::ResponseIncomplete) => {
            let responses = count(request.response_packets.into(), "packet");
            let _ = write!(text, "only {responses} of the response in the capture");
        }
        Some(Ending::Unanswered) => text.push_str("no response in the capture"),
        Some(Ending::Forgotten) => text.push_str("no response yet, and too many requests wait"),
        Some(Ending::Unreliable) | None => {
            if distinct <= 1 {
                text.push_str("1 packet");
            } else {
                text.truncate(text.len() - 2);
            }
        }
    }
    text
}

/// A NAK in words: which access it refuses, and why.
pub(super) fn refusal(code: NakCode, request: &Request) -> String {
    let key = request.headers.reth.map(|reth| (reth.rkey, reth.va, u64::from(reth.length)));
    let key = key.or(request.headers.atomic.map(|atomic| (atomic.rkey, atomic.va, 8)));
    match (code, key) {
        (NakCode::RemoteAccess, Some((rkey, va, length))) => format!(
            "remote access error: key {rkey} does not exist there, or does not allow {} of {} at {va:#x} \
             (bounds, access flags, protection domain)",
            article(request.kind),
            size(length),
        ),
        (NakCode::RemoteAccess, None) => "remote access error".to_owned(),
        (NakCode::InvalidRequest, _) => match request.kind {
            Kind::Send => {
                "invalid request: longer than the posted receive, or not allowed by the queue pair".to_owned()
            }
            _ => format!("invalid request: the peer's queue pair does not allow {}", article(request.kind)),
        },
        (NakCode::RemoteOperational, _) => "remote operational error: the peer could not execute it".to_owned(),
        (NakCode::InvalidRdRequest, _) => "invalid reliable datagram request".to_owned(),
        (NakCode::SequenceError, _) => "sequence error".to_owned(),
        (NakCode::Other(code), _) => format!("NAK with the reserved code {code}"),
    }
}

const fn article(kind: Kind) -> &'static str {
    match kind {
        Kind::Send => "a SEND",
        Kind::Write => "a WRITE",
        Kind::Read => "a READ",
        Kind::CompareSwap => "a COMPARE AND SWAP",
        Kind::FetchAdd => "a FETCH AND ADD",
        Kind::AtomicWrite => "an ATOMIC WRITE",
        Kind::Flush => "a FLUSH",
    }
}

pub(super) fn event(event: &Event) -> String {
    match event {
        Event::Again { first, count: number, times, cause } => {
            let packets = count((*number).into(), "packet");
            let packets = format!("{packets} sent again{} from PSN {first}", repeated(*times));
            match cause {
                Cause::Gap => format!("{packets}, because the peer reported a gap"),
                Cause::ReceiverNotReady => format!("{packets} after the RNR wait"),
                Cause::Probe => format!("{packets} as a probe"),
                Cause::ResponseGap => format!("{packets}, because a part of the response did not arrive"),
                Cause::Silence(time) => format!("{packets} after {} without a response", span(*time)),
            }
        }
        Event::Gap { count: number } => {
            format!("{} before it missing: lost, or not captured", count((*number).into(), "packet"))
        }
        Event::Late { first, count: number } => {
            format!(
                "{} after later ones from PSN {first} (lost before, or overtaken)",
                count((*number).into(), "packet")
            )
        }
        Event::SequenceNak { psn } => format!("sequence NAK: PSN {psn} is missing there"),
        Event::ReceiverNotReady { microseconds, times } => {
            let wait = span(u64::from(*microseconds) * 1_000);
            format!("RNR NAK{}: no receive is posted there, wait of {wait}", repeated(*times))
        }
        Event::Dropped { psn, comment } => format!("PSN {psn} {comment}"),
    }
}

fn repeated(times: u32) -> String {
    if times == 1 { String::new() } else { format!(" {times} times") }
}

/// A packet, with its time after the first one.
pub(super) fn packet(line: &PacketLine, start: u64) -> String {
    let direction = match line.direction {
        Direction::Unknown => "   ",
        Direction::Inbound => "in ",
        Direction::Outbound => "out",
    };
    let arrow = if line.opcode.is_response() { '<' } else { '>' };
    let mut text = format!(
        "+{:<8} {direction} {arrow} PSN {} {}, {} B",
        span(line.time.saturating_sub(start)),
        line.psn,
        line.opcode,
        line.bytes
    );
    if line.is_again {
        text.push_str(", again");
    }
    match line.syndrome {
        Some(Syndrome::Nak(code)) => {
            let _ = write!(text, ", NAK: {}", nak_name(code));
        }
        Some(Syndrome::ReceiverNotReady { .. }) => text.push_str(", RNR NAK"),
        Some(Syndrome::Reserved(byte)) => {
            let _ = write!(text, ", reserved syndrome {byte:#04x}");
        }
        Some(Syndrome::Ack { .. }) | None => {}
    }
    text
}

pub(super) const fn nak_name(code: NakCode) -> &'static str {
    match code {
        NakCode::SequenceError => "sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
        NakCode::InvalidRdRequest => "invalid RD request",
        NakCode::Other(_) => "reserved code",
    }
}

/// A time in UTC: `2026-11-28 19:20:01.123456789 UTC`.
pub(super) fn date(nanoseconds: u64) -> String {
    let (seconds, fraction) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = calendar::date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{fraction:09} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_fitting_units() {
        assert_eq!(
            [0, 999, 1_500, 35_400, 1_280_000, 12_800_000, 2_500_000_000].map(span),
            ["0 ns", "999 ns", "1.5 µs", "35 µs", "1.28 ms", "13 ms", "2.50 s"]
        );
        assert_eq!(
            [0, 64, 1_024, 65_536, 65_537, 3 << 20, 1 << 30].map(size),
            ["0 B", "64 B", "1 KiB", "64 KiB", "65537 B", "3 MiB", "1 GiB"]
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00.000000000 UTC");
        assert_eq!(date(951_782_400_000_000_001), "2000-02-29 00:00:00.000000001 UTC");
        assert_eq!(date(1_795_894_801_123_456_789), "2026-11-28 19:40:01.123456789 UTC");
        assert!(date(u64::MAX).starts_with("2554-07-21"));
    }
}
