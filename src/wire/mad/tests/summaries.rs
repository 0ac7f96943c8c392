//! Datagrams in words.

use proptest::prelude::*;

use crate::types::{Gid, Mtu, Psn, Qpn};

use super::super::*;
use super::samples::samples;
use super::{any_attribute, any_data, message_bytes};

/// The lines of the captured messages, in the order of `samples.txt`.
const SUMMARIES: &str = include_str!("../summaries.txt");

fn summary(bytes: &[u8]) -> String {
    Mad::read(bytes).map_or_else(|error| error.to_string(), |mad| mad.to_string())
}

fn line(message: impl Into<Message>) -> String {
    summary(&message.into().to_mad(7).write())
}

#[test]
fn captured_messages_have_their_lines() {
    let found: Vec<String> = samples().iter().map(|(_, bytes)| summary(bytes)).collect();
    let expected: Vec<&str> = SUMMARIES.lines().filter(|line| !line.starts_with('#')).collect();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// A REQ from 192.0.2.1 to 192.0.2.2.
fn request() -> ConnectRequest {
    let header = IpHeader::new("192.0.2.1:51044".parse().unwrap(), "192.0.2.2".parse().unwrap()).unwrap();
    ConnectRequest {
        local_id: CommunicationId(0xc1a2_b3c4),
        service_id: ServiceId::of_port(PortSpace::Tcp, 7471),
        local_qpn: Qpn::new(0x12),
        starting_psn: Psn::new(0x77_388d),
        path_mtu: Mtu::Mtu1024.into(),
        primary_path: Path { local_gid: header.source().ip().into(), ..Path::default() },
        private_data: header.with_data(b"secret").unwrap(),
        ..ConnectRequest::default()
    }
}

#[test]
fn a_request_names_its_service_and_unusual_fields() {
    let connect = "REQ 0xc1a2b3c4: connect to";
    let ends = "TCP-space port 7471 of 192.0.2.2 from 192.0.2.1:51044";
    let queue_pair = "queue pair 0x000012 expects PSN 0x77388d, path MTU";
    assert_eq!(line(request()), format!("{connect} {ends}, {queue_pair} 1024"));

    let with_mtu = |code| ConnectRequest { path_mtu: MtuCode::new(code).unwrap(), ..request() };
    assert_eq!(line(with_mtu(6)), format!("{connect} {ends}, {queue_pair} code 6"));
    let transports = [
        (TransportType::UnreliableConnection, 0, "unreliable connection"),
        (TransportType::ReliableDatagram, 0, "reliable datagram"),
        (TransportType::Extended, 1, "XRC"),
        (TransportType::Extended, 5, "extended transport 5"),
    ];
    for (transport, code, name) in transports {
        let extended_transport = ExtendedTransport::new(code).unwrap();
        let line = line(ConnectRequest { transport, extended_transport, ..request() });
        assert_eq!(line, format!("{connect} {ends}, {queue_pair} 1024, {name}"));
    }
    let elsewhere = Path { local_gid: Gid::from_bytes([0xfd; 16]), ..Path::default() };
    let alternate_path = AlternatePath::new(Path { local_lid: 1, ..Path::default() });
    assert_eq!(
        line(ConnectRequest { primary_path: elsewhere, alternate_path, ..request() }),
        format!(
            "{connect} {ends}, {queue_pair} 1024, responses to fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd, \
             with an alternate path"
        )
    );
}

#[test]
fn a_request_without_addresses_says_why() {
    let target = |service_id: ServiceId, private_data: &[u8]| {
        let private_data = PrivateData::new(private_data).unwrap();
        let line = line(ConnectRequest { service_id, private_data, ..request() });
        let (line, _) = line.split_once(", queue pair ").unwrap();
        line.strip_prefix("REQ 0xc1a2b3c4: connect to ").unwrap().to_owned()
    };
    let udp = ServiceId::of_port(PortSpace::Udp, 1);
    assert_eq!(target(udp, &[]), "UDP-space port 1 (the header of IP connections has IP version 0 instead of 4 or 6)");
    let ipoib = ServiceId::of_port(PortSpace::Ipoib, 2);
    assert_eq!(target(ipoib, &[1]), "IPoIB-space port 2 (the header of IP connections has version 1 instead of 0)");
    assert_eq!(target(ServiceId::of_port(PortSpace::Ib, 3), &[1]), "IB-space port 3");
    assert_eq!(target(ServiceId(0x1000_0000_0000_0001), &[0, 0x40]), "service 0x1000000000000001");
    let no_id = ConnectRequest { local_id: CommunicationId::NONE, ..request() };
    assert!(line(no_id).starts_with("REQ: connect to TCP-space port 7471"));
}

#[test]
fn each_reason_of_a_rejection_has_a_name_and_usual_ones_a_cause() {
    let reject = |reason, rejected| Reject { reason, rejected, ..Reject::default() };
    for reason in RejectReason::ALL.iter().copied() {
        let reject = reject(reason, RejectedMessage::ConnectRequest);
        let expected = format!("REQ rejected, reason {}, {}", reason.0, reason.name());
        match reject.usual_cause() {
            Some(cause) => assert_eq!(reject.to_string(), format!("{expected}: {cause}")),
            None => assert_eq!(reject.to_string(), expected),
        }
        assert_eq!(reject.usual_cause().is_some(), [3, 4, 8, 10, 12, 18, 26, 28, 35].contains(&reason.0));
    }
    let unknown = |rejected| reject(RejectReason(1000), rejected).to_string();
    assert_eq!(unknown(RejectedMessage::ConnectReply), "REP rejected, reason 1000, unknown");
    assert_eq!(unknown(RejectedMessage::Other), "connection given up, reason 1000, unknown");
    assert_eq!(unknown(RejectedMessage::Reserved), "message of reserved code 3 rejected, reason 1000, unknown");
    let gid = Gid::from("192.0.2.9".parse::<std::net::IpAddr>().unwrap());
    let corrected = Reject {
        remote_id: CommunicationId(5),
        information: AdditionalInformation::new(&gid.to_bytes()).unwrap(),
        ..reject(RejectReason::INVALID_GID, RejectedMessage::ConnectRequest)
    };
    assert_eq!(
        line(corrected),
        "REJ to 0x00000005: REQ rejected, reason 12, primary remote port GID rejected: a GID or the P_Key in the REQ \
         is not one of the listener's port, use 192.0.2.9"
    );
}

#[test]
fn a_receipt_names_a_message_and_a_time() {
    let said = |received, code| {
        let service_timeout = TimeoutCode::saturating(code);
        MessageReceipt { received, service_timeout, ..MessageReceipt::default() }.to_string()
    };
    assert_eq!(said(ReceivedMessage::ConnectRequest, 20), "works on the REQ for up to 4.3 s");
    assert_eq!(said(ReceivedMessage::ConnectReply, 0), "works on the REP for up to 4 µs");
    assert_eq!(said(ReceivedMessage::LoadAlternatePath, 10), "works on the LAP for up to 4.2 ms");
    assert_eq!(said(ReceivedMessage::Reserved, 31), "works on a message of reserved code 3 for up to 8796.1 s");
}

#[test]
fn resolutions_and_alternate_paths_have_outcomes() {
    let service_id = ServiceId::of_port(PortSpace::Udp, 9);
    let refused = |status| ServiceIdReply { service_id, status, ..ServiceIdReply::default() };
    for (status, name) in [(3, "no QP available"), (4, "redirect"), (5, "unsupported version"), (200, "unknown")] {
        let expected = format!("SIDR_REP: UDP-space port 9 refused, status {status}, {name}");
        assert_eq!(line(refused(ServiceIdStatus(status))), expected);
    }
    let (local_id, remote_id) = (CommunicationId(1), CommunicationId(2));
    let path = Path { local_gid: Gid::from_bytes([0x20; 16]), ..Path::default() };
    let load = LoadAlternatePath { local_id, remote_id, path, ..LoadAlternatePath::default() };
    assert_eq!(
        line(load),
        "LAP 0x00000001 to 0x00000002: load an alternate path from 2020:2020:2020:2020:2020:2020:2020:2020 to :: \
         into queue pair 0x000000"
    );
    let response = |status| AlternatePathResponse { local_id, remote_id, status, ..AlternatePathResponse::default() };
    assert_eq!(line(response(0)), "APR 0x00000001 to 0x00000002: alternate path loaded");
    assert_eq!(line(response(7)), "APR 0x00000001 to 0x00000002: alternate path refused, status 7");
}

#[test]
fn other_datagrams_show_their_header() {
    assert_eq!(summary(&[0; 200]), "MAD of 200 bytes (256 are allowed)");
    let mut bytes = message_bytes(Attribute::CLASS_PORT_INFO, 0, &[0; MAD_DATA_BYTES]);
    bytes[3] = 1;
    let query = "MAD of class 0x07 (communication management), method 0x01 (Get), attribute 0x0001 (ClassPortInfo)";
    assert_eq!(summary(&bytes), query);
    let response = Mad::read(&bytes).unwrap().unsupported_response().unwrap();
    let expected = query.replace("0x01 (Get)", "0x81 (GetResp)") + ", status 0x000c (not supported)";
    assert_eq!(response.to_string(), expected);
    assert!(Mad { status: 0x1234, ..response }.to_string().ends_with(", status 0x1234"));

    let with = |changes: &[(usize, u8)]| {
        let mut bytes = message_bytes(Attribute::CONNECT_REQUEST, 0, &[0; MAD_DATA_BYTES]);
        changes.iter().for_each(|(index, value)| bytes[*index] = *value);
        summary(&bytes)
    };
    let request = "MAD of class 0x07 (communication management), method 0x03 (Send), attribute 0x0010 (REQ)";
    assert_eq!(with(&[(2, 3)]), format!("{request}, class version 3 (2 is allowed)"));
    assert_eq!(with(&[(0, 2)]), format!("{request}, base version 2 (1 is allowed)"));
    assert_eq!(
        with(&[(17, 0x1b)]),
        "MAD of class 0x07 (communication management), method 0x03 (Send), attribute 0x001b"
    );
    assert_eq!(with(&[(1, 0x32), (3, 0x55)]), "MAD of class 0x32, method 0x55, attribute 0x0010");
}

/// The line fits and is printable.
fn check(line: &str) -> Result<(), TestCaseError> {
    prop_assert!(line.len() <= LONGEST_SUMMARY, "{} bytes: {}", line.len(), line);
    prop_assert!(!line.is_empty() && line.chars().all(|character| !character.is_control()));
    prop_assert!(line.chars().all(|character| character.is_ascii() || character == 'µ'), "{}", line);
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_have_a_bounded_printable_line(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..400),
            proptest::collection::vec(any::<u8>(), MAD_BYTES),
        ],
    ) {
        check(&summary(&bytes))?;
    }

    /// With the services and the header of IP connections that random bytes rarely have.
    #[test]
    fn any_message_has_a_bounded_printable_line(
        attribute in any_attribute(),
        mut data in any_data(),
        space in proptest::sample::select(PortSpace::ALL),
        port: u16,
        ip_version in proptest::sample::select(&[4_u8, 6, 0xf][..]),
        with_service: bool,
    ) {
        if with_service {
            data[8..16].copy_from_slice(&ServiceId::of_port(space, port).0.to_be_bytes());
            // The positions of the header in a REQ and in a SIDR_REQ.
            for start in [140, 16] {
                data[start..start + 2].copy_from_slice(&[0, ip_version << 4]);
            }
        }
        check(&summary(&message_bytes(attribute, 0, &data)))?;
    }
}

#[test]
fn the_longest_lines_fit() {
    let all_ones = PrivateData::new(&[&[0, 0x60][..], &[0xff; 90]].concat()).unwrap();
    let path = Path { local_gid: Gid::from_bytes([0xfe; 16]), local_lid: 1, ..Path::default() };
    let request = ConnectRequest {
        service_id: ServiceId::of_port(PortSpace::Ipoib, 0xffff),
        private_data: all_ones,
        transport: TransportType::UnreliableConnection,
        path_mtu: MtuCode::new(15).unwrap(),
        primary_path: path,
        alternate_path: AlternatePath::new(path),
        ..request()
    };
    let longest = line(request).len();
    assert!((LONGEST_SUMMARY - 20..=LONGEST_SUMMARY).contains(&longest), "{longest}");
    for attribute in Message::ATTRIBUTES.iter().copied() {
        let line = summary(&message_bytes(attribute, u32::MAX, &[0xff; MAD_DATA_BYTES]));
        assert!(line.len() <= LONGEST_SUMMARY, "{line}");
    }
}
