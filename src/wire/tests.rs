//! Tests round trips, and packets that must be dropped.

use super::*;
use crate::types::{DropReason, Psn, Qkey, Qpn, Rkey, SharedReceiveQueueNumber};

use proptest::prelude::*;

/// A packet of any known opcode with all the headers that it can have.
fn arbitrary_packet() -> impl Strategy<Value = (Headers, Vec<u8>)> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u8>());
    let payload = proptest::collection::vec(any::<u8>(), 0..300);
    (proptest::sample::select(Opcode::ALL), numbers, payload).prop_map(|(opcode, numbers, payload)| {
        let (a, b, c, d, e, syndrome) = numbers;
        let traits = opcode.traits();
        let has = |flag| traits.contains(flag);
        use opcode::Traits;
        let payload = if has(Traits::PAYLOAD) { payload } else { Vec::new() };
        let bth = Bth {
            opcode,
            solicited: d & 1 != 0,
            migrated: d & 2 != 0,
            pad_count: (payload.len().next_multiple_of(4) - payload.len()) as u8,
            pkey: e as u16,
            fecn: d & 4 != 0,
            becn: d & 8 != 0,
            destination: Qpn::new(d),
            ack_request: e & 1 != 0,
            psn: Psn::new(e),
        };
        let headers = Headers {
            bth,
            xrc_srq: has(Traits::XRC).then_some(SharedReceiveQueueNumber::new(d)),
            deth: has(Traits::DETH).then_some(Deth { qkey: Qkey(d), source: Qpn::new(e) }),
            flush: has(Traits::FLUSH).then_some(FlushEth { selectivity: d as u8 & 3, placement: e as u8 & 0xf }),
            reth: has(Traits::RETH).then_some(Reth { va: a, rkey: Rkey(d), length: e }),
            atomic: has(Traits::ATOMIC).then_some(AtomicEth { va: a, rkey: Rkey(d), swap_or_add: b, compare: c }),
            aeth: has(Traits::AETH).then(|| Aeth { syndrome: Syndrome::parse(syndrome), msn: d & 0xff_ffff }),
            atomic_ack: has(Traits::ATOMIC_ACK).then_some(b),
            immediate: has(Traits::IMMEDIATE).then_some(d),
            invalidate: has(Traits::INVALIDATE).then_some(Rkey(e)),
        };
        (headers, payload)
    })
}

fn bytes_of(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; packet_bytes(headers.bth.opcode, payload.len() as u32)];
    let length = headers.emit(&mut bytes);
    assert_eq!(length, headers.length());
    bytes[length..length + payload.len()].copy_from_slice(payload);
    bytes
}

proptest! {
    #[test]
    fn emitted_packets_parse((headers, payload) in arbitrary_packet()) {
        let bytes = bytes_of(&headers, &payload);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(packet.headers, headers);
        prop_assert_eq!(packet.payload, &payload[..]);
        prop_assert!(!packet.to_string().is_empty());
    }

    #[test]
    fn garbage_is_parsed_or_dropped(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(packet.headers.length() + packet.payload.len() + ICRC_BYTES <= bytes.len());
        }
    }

    #[test]
    fn truncated_packets_do_not_parse((headers, _) in arbitrary_packet(), length: prop::sample::Index) {
        let headers = Headers { bth: Bth { pad_count: 0, ..headers.bth }, ..headers };
        let bytes = bytes_of(&headers, &[]);
        prop_assert!(Packet::parse(&bytes[..length.index(bytes.len())]).is_err());
    }
}

#[test]
fn each_defect_has_its_reason() {
    let headers = Headers { bth: Bth { opcode: Opcode::RC_SEND_ONLY, ..Bth::default() }, ..Headers::default() };
    let good = bytes_of(&headers, b"data");
    assert!(Packet::parse(&good).is_ok());
    assert_eq!(Packet::parse(&good[..12]), Err(DropReason::Truncated));
    assert_eq!(Packet::parse(&[good.clone(), vec![0]].concat()), Err(DropReason::BadLength));
    let changed = |offset: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[offset] = value;
        bytes
    };
    assert_eq!(Packet::parse(&changed(0, 0x15)), Err(DropReason::UnknownOpcode));
    assert_eq!(Packet::parse(&changed(0, 0xff)), Err(DropReason::UnknownOpcode));
    assert_eq!(Packet::parse(&changed(1, 0x01)), Err(DropReason::BadVersion));
    assert_eq!(Packet::parse(&changed(0, Opcode::RC_ACKNOWLEDGE.0)).unwrap().payload, b"");
    let padded_away = bytes_of(&Headers { bth: Bth { pad_count: 3, ..headers.bth }, ..headers }, b"");
    assert_eq!(Packet::parse(&padded_away), Err(DropReason::BadLength));
    let bth = Bth { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, ..Bth::default() };
    let aeth = Some(Aeth { syndrome: Syndrome::Ack { credit: 31 }, msn: 1 });
    let mut long = bytes_of(&Headers { bth, aeth, atomic_ack: Some(1), ..Headers::default() }, &[]);
    long.extend([0; 4]);
    assert_eq!(Packet::parse(&long), Err(DropReason::BadLength));
}
