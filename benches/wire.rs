//! The cost of the wire format: the invariant CRC against the CRC alone, and headers against a copy of the same length.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use rdma_verbs::types::{Psn, Qpn, Rkey};
use rdma_verbs::wire::icrc::{self, Match, Seed, Verify};
use rdma_verbs::wire::{Aeth, BTH_BYTES, Bth, Flow, Headers, ICRC_BYTES, Opcode, Packet, Reth, Syndrome, packet_bytes};

const PAYLOADS: [usize; 5] = [8, 64, 256, 1024, 4096];
/// Length of the longest of these packets.
const LARGEST: usize = 4_096 + 64;

fn flow() -> Flow {
    let address = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    Flow { source: address(1), destination: address(2), source_port: 0xc123 }
}

/// Returns a packet with a payload of this length, with its headers and its ICRC.
fn send_only(payload: usize) -> Vec<u8> {
    let headers = Headers { bth: bth(Opcode::RC_SEND_ONLY), ..Headers::default() };
    let mut packet = vec![0x5a; packet_bytes(Opcode::RC_SEND_ONLY, payload as u32)];
    headers.emit(&mut packet);
    icrc::append(&flow(), 0, &mut packet);
    packet
}

fn bth(opcode: Opcode) -> Bth {
    Bth { opcode, destination: Qpn::new(0x12_3456), psn: Psn::new(0x65_4321), ack_request: true, ..Bth::default() }
}

/// All cover the same bytes except the masked headers, which only the slow path covers for each packet.
fn invariant_crc(c: &mut Criterion) {
    let (flow, seed) = (flow(), Seed::new(&flow()));
    let options = Verify { first_identification: 0, solve: true, expected_df: true };
    for payload in PAYLOADS {
        let mut group = c.benchmark_group(format!("icrc/{payload}"));
        group.throughput(Throughput::Bytes(payload as u64));
        let mut packet = send_only(payload);
        let covered = packet.len() - ICRC_BYTES;
        group.bench_function("limit: crc32fast of the packet", |b| {
            b.iter(|| black_box(crc32fast::hash(black_box(&packet[..covered]))))
        });
        group.bench_function("check by the flow's seed", |b| {
            b.iter(|| assert!(seed.fits(black_box(0), black_box(&packet))))
        });
        group.bench_function("check with all headers", |b| {
            b.iter(|| assert!(matches!(icrc::verify(&flow, &options, black_box(&packet)), Match::Exact { .. })))
        });
        // The 17th segment of a send: its identification is looked up, too.
        group.bench_function("append by the flow's seed", |b| {
            b.iter(|| seed.append(&flow, black_box(16), black_box(&mut packet)))
        });
        group.bench_function("append with all headers", |b| {
            b.iter(|| icrc::append(&flow, black_box(16), black_box(&mut packet)))
        });
        group.finish();
    }
}

/// Returns the headers of the most frequent packets.
fn kinds() -> [(&'static str, Headers, usize); 4] {
    let reth = Reth { va: 0x7f00_1234_5678, rkey: Rkey(0x1234_5678), length: 65_536 };
    let aeth = Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 77 };
    [
        ("SEND ONLY", Headers { bth: bth(Opcode::RC_SEND_ONLY), ..Headers::default() }, 8),
        ("WRITE FIRST", Headers { bth: bth(Opcode::RC_WRITE_FIRST), reth: Some(reth), ..Headers::default() }, 4_096),
        ("WRITE MIDDLE", Headers { bth: bth(Opcode::RC_WRITE_MIDDLE), ..Headers::default() }, 4_096),
        ("ACKNOWLEDGE", Headers { bth: bth(Opcode::RC_ACKNOWLEDGE), aeth: Some(aeth), ..Headers::default() }, 0),
    ]
}

/// Emitting and parsing only access the headers: the payload's length makes no difference.
fn headers(c: &mut Criterion) {
    for (name, headers, payload) in kinds() {
        let mut group = c.benchmark_group(format!("headers/{name}"));
        group.throughput(Throughput::Elements(1));
        header_limit(&mut group, headers.length());
        let mut packet = [0; LARGEST];
        let packet = &mut packet[..packet_bytes(headers.bth.opcode, payload as u32)];
        group.bench_function("emit", |b| b.iter(|| black_box(&headers).emit(black_box(packet))));
        group.bench_function("parse", |b| b.iter(|| black_box(Packet::parse(black_box(packet)).unwrap())));
        let parsed = Packet::parse(packet).unwrap();
        assert_eq!((parsed.headers, parsed.payload.len()), (headers, payload));
        group.finish();
    }
}

/// Measures the lower bound of emitting: a copy of bytes that are ready.
fn header_limit(group: &mut BenchmarkGroup<'_, WallTime>, length: usize) {
    assert!(length >= BTH_BYTES);
    let (source, mut target) = ([0x5a_u8; LARGEST], [0_u8; LARGEST]);
    group.bench_function("limit: copy of as many bytes", |b| {
        b.iter(|| black_box(&mut target)[..length].copy_from_slice(&black_box(&source)[..length]))
    });
}

criterion_group!(benches, invariant_crc, headers);
criterion_main!(benches);
