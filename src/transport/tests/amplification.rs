//! Responses to unsolicited packets never have more bytes than those packets.
//!
//! UDP payload bytes are counted, for which the ratio is worse than with all headers.

use super::forged::{FIRST, Forged};
use super::recovery::{GAP_RUNS, MTU};
use super::*;
use crate::wire::{Aeth, AtomicEth, FlushEth, Headers, Opcode, Packet, Reth, Syndrome};

/// Distances from the expected PSN, of requests that are not the next one.
const DISTANCES: [i32; 10] = [-(1 << 22), -5_000, -40, -3, -2, -1, 1, 30, 5_000, 1 << 22];
const COUNTS: [usize; 3] = [1, 2, 40];

/// Sets all headers that an opcode may have.
fn all_headers(headers: &mut Headers) {
    headers.reth = Some(Reth { va: 0x10_0000, rkey: Rkey(77), length: 1 << 30 });
    headers.atomic = Some(AtomicEth { va: 0x10_0000, rkey: Rkey(77), swap_or_add: 1, compare: 1 });
    headers.flush = Some(FlushEth { selectivity: 0, placement: 1 });
    headers.aeth = Some(Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 1 });
    headers.atomic_ack = Some(1);
    headers.immediate = Some(1);
    headers.invalidate = Some(Rkey(77));
    headers.bth.ack_request = true;
}

fn packets() -> impl Iterator<Item = (Opcode, usize)> {
    let reliable = Opcode::ALL.iter().copied().filter(|opcode| opcode.0 < 0x20);
    reliable.flat_map(|opcode| [0, 4].map(|payload| (opcode, payload)))
}

/// Returns the number of bytes that the second end sends by itself, until it has nothing left to send.
fn sent_bytes(pair: &mut Pair) -> usize {
    let mut buffer = vec![0; 65_536];
    let mut bytes = 0;
    let end = &mut pair.ends[1];
    loop {
        let view = end.table.read();
        if let Some(transmit) = end.endpoint.poll_transmit(pair.now, &view, &mut buffer, AckRelease::Now) {
            bytes += transmit.length;
            continue;
        }
        let Some(next) = end.endpoint.next_timeout() else { return bytes };
        pair.now = pair.now.max(next);
        end.endpoint.handle_timeout(pair.now);
    }
}

/// A new connection, one on which a request of each kind has succeeded, or one that ended by a refusal.
#[derive(Clone, Copy, Debug)]
enum Past {
    New,
    Used,
    Refused,
}

fn connection(capabilities: PeerCapabilities, past: Past) -> Pair {
    let mut pair = Pair::new(capabilities);
    let (local, into) = (pair.ends[0].sge(0, 8), pair.ends[1].sge(512, 8));
    let (rkey, remote_addr) = (pair.ends[1].region.rkey(), 0x10_0000);
    let operations = match past {
        Past::New => return pair,
        Past::Refused => vec![Operation::Write { remote_addr, rkey: Rkey(1) }],
        Past::Used => vec![
            Operation::Read { remote_addr, rkey },
            Operation::FetchAndAdd { remote_addr, rkey, add: 1 },
            Operation::Write { remote_addr, rkey },
            Operation::Send,
        ],
    };
    pair.ends[1].post_receive(&[into]);
    operations.iter().for_each(|operation| pair.ends[0].post(pair.now, *operation, &[local]));
    pair.drive(Duration::from_millis(1));
    assert_eq!(pair.ends[0].poll().len(), operations.len());
    sent_bytes(&mut pair);
    pair
}

/// Returns the ratio of the bytes of the responses to copies of a packet to the bytes of those copies.
fn amplification(pair: &mut Pair, opcode: Opcode, payload: usize, distance: i32, count: usize) -> f64 {
    let end = &pair.ends[1];
    let expected = end.endpoint.find(end.qpn).unwrap().responder.expected();
    let psn = expected.plus((distance & 0xff_ffff) as u32);
    let forged = Forged::new(opcode, psn).with(all_headers).payload(&vec![1; payload]);
    let mut received = 0;
    for _ in 0..count {
        received += forged.bytes(pair, 1).len();
        forged.arrive(pair, 1);
    }
    sent_bytes(pair) as f64 / received as f64
}

#[test]
fn responses_to_unsolicited_packets_have_no_more_bytes_than_they() {
    let mut worst = 0.0_f64;
    for (past, (opcode, payload)) in
        [Past::New, Past::Used, Past::Refused].iter().flat_map(|past| packets().map(move |packet| (*past, packet)))
    {
        for (distance, count) in DISTANCES.iter().flat_map(|distance| COUNTS.map(|count| (*distance, count))) {
            let capabilities = if count == 2 { NATIVE } else { PeerCapabilities::STANDARD };
            let mut pair = connection(capabilities, past);
            let ratio = amplification(&mut pair, opcode, payload, distance, count);
            worst = worst.max(ratio);
            assert!(ratio <= 1.0, "{ratio}: {count} of {opcode} at {distance}, {payload} bytes, {past:?}");
        }
    }
    assert!(worst > 0.5, "there are responses, but at most {worst}");
}

/// A sender that knows the key and the address may repeat a READ, but only this often.
#[test]
fn a_read_is_repeated_a_bounded_number_of_times() {
    let mut pair = Pair::new(PeerCapabilities::STANDARD);
    let (rkey, length) = (pair.ends[1].region.rkey(), 100_000);
    let read = Forged::new(Opcode::RC_READ_REQUEST, FIRST)
        .with(|headers| headers.reth = Some(Reth { va: 0x10_0000, rkey, length }));
    let mut responses = 0;
    for _ in 0..1_000 {
        read.arrive(&mut pair, 1);
        responses += sent_bytes(&mut pair) / length as usize;
    }
    assert!((64..200).contains(&responses), "{responses} times");
}

/// A duplicate READ may end earlier than the original one (IBTA 9.4.4).
#[test]
fn a_repeated_read_gets_no_more_bytes_than_it_requests() {
    for capabilities in [NATIVE, PeerCapabilities::STANDARD, GAP_RUNS] {
        let mut pair = Pair::new(capabilities);
        let rkey = pair.ends[1].region.rkey();
        let mut read = |from: u32, length| {
            let reth = Reth { va: 0x10_0000 + u64::from(from * MTU), rkey, length };
            let request = Forged::new(Opcode::RC_READ_REQUEST, FIRST.plus(from));
            request.with(|headers| headers.reth = Some(reth)).arrive(&mut pair, 1);
            let responses = pair.catch(1);
            responses.iter().map(|sent| Packet::parse(&sent.bytes).unwrap().payload.len()).collect::<Vec<_>>()
        };
        assert_eq!(read(0, 2_500), [1_024, 1_024, 452]);
        assert_eq!(read(1, 1_476), [1_024, 452]);
        assert_eq!(read(0, 1_500), [1_024, 476]);
        assert_eq!(read(0, 8), [8]);
        assert_eq!(read(1, 700), [700]);
        assert_eq!(read(2, 0), [0]);
    }
}

/// A genuine peer that repeats a packet because its acknowledgement was lost gets another one.
#[test]
fn a_lost_acknowledgement_is_repeated_at_once() {
    for payload in [4, 8, 1_024] {
        let mut pair = Pair::new(PeerCapabilities::STANDARD);
        let into = pair.ends[1].sge(0, 2_048);
        pair.ends[1].post_receive(&[into]);
        let send = Forged::new(Opcode::RC_SEND_ONLY, FIRST)
            .payload(&vec![1; payload])
            .with(|headers| headers.bth.ack_request = true);
        for _ in 0..20 {
            send.arrive(&mut pair, 1);
            assert_eq!(sent_bytes(&mut pair), 20, "{payload} bytes");
        }
    }
}
