//! Bursts as values: a sink that keeps packets as headers and payloads gets what the UDP sink writes.

use super::*;
use crate::memory::AccessError;
use crate::transport::burst::NoPayload;
use crate::transport::packet_check::Departing;
use crate::wire::icrc::Seed;
use crate::wire::{Bth, Flow, Headers, Opcode, Packet, packet_bytes};

/// The packets of all sends as headers and payloads, as they are given.
#[derive(Default)]
struct PlainSink {
    packets: Vec<(Headers, Vec<u8>)>,
    sends: usize,
    /// There is no room for sends of this queue pair.
    full: Option<Qpn>,
}

struct PlainWriter<'a> {
    sink: &'a mut PlainSink,
    capacity: usize,
    begun_at: usize,
    bytes: usize,
}

impl BurstSink for PlainSink {
    type Writer<'a> = PlainWriter<'a>;

    fn open<'a>(&'a mut self, envelope: &'a Envelope) -> Option<PlainWriter<'a>> {
        if self.full == Some(envelope.qpn) {
            return None;
        }
        let begun_at = self.packets.len();
        let capacity = if envelope.segmentation_offload { 7 } else { 1 };
        Some(PlainWriter { sink: self, capacity, begun_at, bytes: 0 })
    }
}

impl BurstWriter for PlainWriter<'_> {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn packets(&self) -> usize {
        self.sink.packets.len() - self.begun_at
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_full(&self) -> bool {
        self.packets() >= self.capacity
    }

    fn fits(&self, _: usize) -> bool {
        !self.is_full()
    }

    fn add<P: PayloadSource>(&mut self, burst: &mut Burst<'_, P>) -> Result<u32, AccessError> {
        for index in 0..burst.count {
            if index > 0 {
                burst.advance(index);
            }
            let mut payload = vec![0; burst.payload_bytes as usize];
            match burst.payload.read_next(&mut payload) {
                _ if self.is_full() => return Ok(index),
                Ok(_) => self.sink.packets.push((*burst.headers, payload)),
                Err(error) if index == 0 => return Err(error),
                Err(_) => return Ok(index),
            }
            self.bytes += packet_bytes(burst.headers.bth.opcode, burst.payload_bytes);
        }
        Ok(burst.count)
    }

    fn finish(mut self) {
        self.sink.sends += usize::from(self.packets() > 0);
        self.begun_at = self.sink.packets.len();
    }
}

/// Without [`BurstWriter::finish`] nothing is sent.
impl Drop for PlainWriter<'_> {
    fn drop(&mut self) {
        self.sink.packets.truncate(self.begun_at);
    }
}

/// Creates a pair whose first end has posted messages of all lengths that bursts consist of: one packet, a few, and
/// many.
fn posted() -> Pair {
    let mut pair = Pair::new(NATIVE);
    let rkey = Rkey(7);
    let operations = [
        (Operation::Send, 100),
        (Operation::Write { remote_addr: 0x10_0000, rkey }, 3_001),
        (Operation::Write { remote_addr: 0x10_0000, rkey }, 40_000),
        (Operation::Send, 0),
        (Operation::Read { remote_addr: 0x10_0000, rkey }, 5_000),
    ];
    let now = pair.now;
    let bytes: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
    let sge = pair.ends[0].sge(0, 40_000);
    pair.ends[0].table.read().write(sge.lkey.0, DomainId(1), sge.addr, AccessFlags::LOCAL_WRITE, &bytes).unwrap();
    for (operation, bytes) in operations {
        let end = &mut pair.ends[0];
        let sge = end.sge(0, bytes);
        end.post(now, operation, &[sge]);
    }
    pair
}

/// Returns the packets that leave as datagrams.
fn datagrams(pair: &mut Pair) -> Vec<(Headers, Vec<u8>)> {
    let mut buffer = vec![0; 65_536];
    let mut packets = Vec::new();
    let end = &mut pair.ends[0];
    let view = end.table.read();
    while let Some(transmit) = end.endpoint.poll_transmit(pair.now, &view, &mut buffer, AckRelease::Now) {
        for datagram in buffer[..transmit.length].chunks(transmit.segment_size.unwrap_or(transmit.length)) {
            let packet = Packet::parse(datagram).expect("a packet");
            packets.push((packet.headers, packet.payload.to_vec()));
        }
    }
    packets
}

#[test]
fn both_sinks_get_the_same_packets() {
    let expected = datagrams(&mut posted());
    assert!(expected.len() > 20, "{}", expected.len());
    let mut pair = posted();
    let mut sink = PlainSink::default();
    let end = &mut pair.ends[0];
    let view = end.table.read();
    let mut sends = 0;
    while end.endpoint.poll_transmit_into(pair.now, &view, &mut sink, AckRelease::Now) {
        sends += 1;
    }
    assert_eq!(sink.sends, sends);
    assert_eq!(sink.packets.len(), expected.len());
    for (index, (plain, datagram)) in sink.packets.iter().zip(&expected).enumerate() {
        assert_eq!(plain.0, datagram.0, "packet {index}");
        assert!(plain.1 == datagram.1, "the payload of packet {index}");
    }
}

/// Adds a packet to a send without finishing it.
fn begin(sink: &mut impl BurstSink) {
    let flow = Flow { source: [192, 0, 2, 1].into(), destination: [192, 0, 2, 2].into(), source_port: 50_000 };
    let envelope = Envelope {
        flow,
        traffic_class: 0,
        hop_limit: 64,
        qpn: Qpn::new(2),
        destination: Qpn::new(3),
        segmentation_offload: true,
        seed: Seed::new(&flow),
        flushes_as_linux: false,
        check: Departing::Icrc,
    };
    let mut headers = Headers { bth: Bth::with_payload(Opcode::RC_SEND_ONLY, 0), ..Headers::default() };
    let mut writer = sink.open(&envelope).unwrap();
    assert_eq!(writer.add(&mut Burst::single(&mut headers, 0, NoPayload, Sending::First)), Ok(1));
}

#[test]
fn a_queue_pair_without_room_waits_and_then_sends_everything() {
    let expected = datagrams(&mut posted());
    let mut pair = posted();
    let end = &mut pair.ends[0];
    let mut sink = PlainSink { full: Some(end.qpn), ..PlainSink::default() };
    let view = end.table.read();
    for _ in 0..3 {
        assert!(!end.endpoint.poll_transmit_into(pair.now, &view, &mut sink, AckRelease::Now));
        assert!(end.endpoint.has_stalled() && !end.endpoint.has_nothing_to_send());
        assert!(!end.endpoint.has_more_to_send(), "the driver would not rest");
    }
    sink.full = None;
    assert!(!end.endpoint.poll_transmit_into(pair.now, &view, &mut sink, AckRelease::Now));
    end.endpoint.resume_stalled();
    while end.endpoint.poll_transmit_into(pair.now, &view, &mut sink, AckRelease::Now) {}
    assert!(!end.endpoint.has_stalled());
    assert!(sink.packets == expected);
}

#[test]
fn a_destroyed_queue_pair_no_longer_waits_for_room() {
    let mut pair = posted();
    let end = &mut pair.ends[0];
    let mut sink = PlainSink { full: Some(end.qpn), ..PlainSink::default() };
    let view = end.table.read();
    assert!(!end.endpoint.poll_transmit_into(pair.now, &view, &mut sink, AckRelease::Now));
    assert!(end.endpoint.destroy_queue_pair(end.qpn));
    assert!(!end.endpoint.has_stalled() && end.endpoint.has_nothing_to_send());
}

#[test]
fn a_send_that_is_not_finished_is_not_sent() {
    let mut plain = PlainSink::default();
    begin(&mut plain);
    assert_eq!((plain.sends, plain.packets.len()), (0, 0));
    let (mut buffer, mut sent) = (vec![0; 4_200], None);
    begin(&mut UdpSink::new(&mut buffer, 64, &mut sent));
    assert_eq!(sent, None);
}
