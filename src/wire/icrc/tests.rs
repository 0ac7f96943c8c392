//! Tests the published vectors, and the properties of solving for the identification.

use super::*;

use proptest::prelude::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.chars().filter(char::is_ascii_hexdigit).collect();
    (0..digits.len() / 2).map(|index| u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).unwrap()).collect()
}

struct Vector {
    flow: Flow,
    identification: u16,
    packet: Vec<u8>,
}

fn parse_v4(hex: &str) -> Vector {
    let raw = bytes(hex);
    let address = |at: usize| IpAddr::from([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    Vector {
        flow: Flow {
            source: address(12),
            destination: address(16),
            source_port: u16::from_be_bytes([raw[20], raw[21]]),
        },
        identification: u16::from_be_bytes([raw[4], raw[5]]),
        packet: raw[28..].to_vec(),
    }
}

fn parse_v6(hex: &str) -> Vector {
    let raw = bytes(hex);
    let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&raw[at..at + 16]).unwrap());
    Vector {
        flow: Flow {
            source: address(8),
            destination: address(24),
            source_port: u16::from_be_bytes([raw[40], raw[41]]),
        },
        identification: 0,
        packet: raw[48..].to_vec(),
    }
}

fn check(vector: &Vector, wire: &str) {
    let value = compute(&vector.flow, vector.identification, true, &vector.packet);
    assert_eq!(value.to_le_bytes().to_vec(), bytes(wire));
}

const V1: &str = "45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2 2460ffff 000000d3 00cf1710 \
    4630818be28935d90e9a95505401be885e500000";
const V2: &str = "45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000 8100ffff 40000118 00000000 \
    00000000 00000000 00000000 00000000";

/// Only a direct caller can pass such a slice: lengths of datagrams are 16 bits.
#[test]
fn slices_longer_than_any_datagram_do_not_panic() {
    let options = Verify { first_identification: 0, solve: true, expected_df: true };
    let Vector { flow: v4, .. } = parse_v4(V1);
    let v6 = Flow { source: "::1".parse().unwrap(), destination: "::2".parse().unwrap(), source_port: 49_152 };
    for bytes in [65_508, 65_528, 65_536, 70_000] {
        let payload = vec![0x5a; bytes];
        for flow in [v4, v6] {
            assert_eq!(verify(&flow, &options, &payload), Match::Wrong, "{bytes}");
            assert_eq!(verify_as_linux(&flow, &options, &payload), Match::Wrong, "{bytes}");
        }
    }
}

#[test]
fn published_and_computed_vectors_fit() {
    check(&parse_v4(V1), "78f353f3");
    check(&Vector { identification: 0, ..parse_v4(V1) }, "ed874275");
    check(&parse_v4(V2), "82fd002a");
    let v3 = "6e21face 002c11ff 20220000 00000000 00000000 00001023 20230000 00000000 00000000 00001024 c00012b7 \
        002ce7c5 2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000";
    check(&parse_v6(v3), "3e5b743b");
    let v4 = "45000030 00004000 4011b6b9 c0000201 c0000202 c00012b7 001c0000 1140ffff 00000012 0000002a 1f000001";
    check(&parse_v4(v4), "4adfe8d8");
    let v5 = "45000034 00004000 4011b6b5 c0000201 c0000202 c00012b7 00200000 04b0ffff 00000011 8000002a \
        68656c6c6f000000";
    check(&parse_v4(v5), "e9947a5b");
    let v6 = "60000000 001c1140 20010db8 00000000 00000000 00000001 20010db8 00000000 00000000 00000002 c00012b7 \
        001c0000 1140ffff 00000012 0000002a 1f000001";
    check(&parse_v6(v6), "bed0df35");
}

#[test]
fn worked_examples_of_solving_fit() {
    for (text, wire, identification) in [(V1, "78f353f3", 0x0478), (V2, "82fd002a", 0x718c)] {
        let vector = parse_v4(text);
        let mut payload = vector.packet.clone();
        payload.extend(bytes(wire));
        let options = Verify { first_identification: 0, solve: true, expected_df: true };
        let expected = Match::Solved { identification, dont_fragment: true };
        assert_eq!(verify(&vector.flow, &options, &payload), expected);
        assert_eq!(verify(&vector.flow, &Verify { solve: false, ..options }, &payload), Match::Wrong);
        payload[17] ^= 0x10;
        assert_eq!(verify(&vector.flow, &options, &payload), Match::Wrong);
    }
}

/// Packets from the device rxe0 of Linux 6.12.107.
#[test]
fn flushes_of_linux_fit_its_rule_only() {
    let v6 = "60000000 002c1140 fd990000 00000000 00000000 00000002 fd990000 00000000 00000000 00000001 ebf812b7 \
        002c0000 1c00ffff 007e5a72 80a1b9f1 00000002 00007f04 277a5018 1718bfde 00000000";
    let v4 = "45000040 00004000 401125e5 0a630002 0a630001 c2c512b7 002c0000 1c00ffff 00d84291 8097eb33 00000002 \
        00007fdc 47978018 a91b019d 00000000";
    let options = Verify { first_identification: 0, solve: true, expected_df: true };
    for (vector, wire, is_v4) in [(parse_v6(v6), "61ace233", false), (parse_v4(v4), "e8d55e15", true)] {
        let mut payload = vector.packet.clone();
        payload.extend(bytes(wire));
        assert_eq!(verify(&vector.flow, &options, &payload), Match::Wrong);
        let found = verify_as_linux(&vector.flow, &options, &payload);
        match found {
            Match::Exact { identification: 0 } => assert!(!is_v4),
            Match::Solved { dont_fragment: true, .. } => assert!(is_v4),
            _ => panic!("{found:?}"),
        }
        let unsolved = verify_as_linux(&vector.flow, &Verify { solve: false, ..options }, &payload);
        assert_eq!(unsolved == Match::Wrong, is_v4);
        let mut ours = payload.clone();
        append_as_linux(&vector.flow, 0, &mut ours);
        assert_eq!(verify_as_linux(&vector.flow, &options, &ours), Match::Exact { identification: 0 });
        assert_eq!(ours == payload, !is_v4);
        for byte in (0..payload.len()).filter(|byte| *byte != 4) {
            payload[byte] ^= 0x10;
            assert_eq!(verify_as_linux(&vector.flow, &options, &payload), Match::Wrong, "byte {byte}");
            payload[byte] ^= 0x10;
        }
        assert_eq!(verify_as_linux(&vector.flow, &options, &payload[..15]), Match::Wrong);
        assert_eq!(verify_as_linux(&vector.flow, &options, &[]), Match::Wrong);
    }
}

#[test]
fn constants_are_those_of_the_definition() {
    assert_eq!(multiply(0x8000_0000, 0x1234_5678), 0x1234_5678);
    assert_eq!(backward(4), 0x5b35_8fd3);
    assert_eq!(backward(60), 0x6fef_6bf6);
    assert_eq!(backward(1_064), 0xc1b2_92e2);
    assert_eq!(backward(4_136), 0xf707_9e59);
    assert_eq!(backward(LARGEST_COVERED + 400), multiply(backward(LARGEST_COVERED), backward(400)));
}

proptest! {
    #[test]
    fn any_identification_is_found(identification: u16, df: bool, words in 3_usize..1_040, seed: u8) {
        let flow = Flow { source: [192, 0, 2, 1].into(), destination: [192, 0, 2, 2].into(), source_port: 50_000 };
        let packet: Vec<u8> = (0..words * 4).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        let mut payload = packet.clone();
        payload.extend(compute(&flow, identification, df, &packet).to_le_bytes());
        let options = Verify { first_identification: 0, solve: true, expected_df: true };
        let found = verify(&flow, &options, &payload);
        let exact = identification == 0 && df;
        // With a wrong expectation of "don't fragment", 1 of 65,536 packets fits as well.
        let fits = match found {
            Match::Exact { identification } => exact && identification == 0,
            Match::Solved { identification: id, dont_fragment } => (id, dont_fragment) == (identification, df) || !df,
            Match::Wrong => false,
        };
        prop_assert!(fits, "{found:?}");
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed(bit in 0_usize..64 * 8, v6: bool) {
        let (source, destination): (IpAddr, IpAddr) = if v6 {
            ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
        } else {
            ([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
        };
        let flow = Flow { source, destination, source_port: 50_000 };
        let mut payload: Vec<u8> = (0..68).collect();
        append(&flow, 0, &mut payload);
        let options = Verify { first_identification: 0, solve: true, expected_df: true };
        prop_assert_eq!(verify(&flow, &options, &payload), Match::Exact { identification: 0 });
        // Byte 4 of the base transport header is masked: routers may mark congestion there.
        prop_assume!(bit / 8 != 4);
        payload[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(verify(&flow, &options, &payload), Match::Wrong);
    }
}
