//! Messages of Linux, byte by byte and field by field.

use std::net::IpAddr;

use crate::types::{DEFAULT_PKEY, Gid, Mtu, Psn, Qkey, Qpn};

use super::super::*;
use super::message;

const SAMPLES: &str = include_str!("../samples.txt");
const SAMPLE_COUNT: usize = 55;

/// The captured datagrams, each with the name of its kind.
pub(super) fn samples() -> Vec<(&'static str, [u8; MAD_BYTES])> {
    let lines = SAMPLES.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, digits) = line.split_once(' ').unwrap();
            let mut bytes = [0; MAD_BYTES];
            assert!(digits.len().is_multiple_of(2));
            for (index, byte) in bytes.iter_mut().enumerate().take(digits.len() / 2) {
                *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).unwrap();
            }
            (name, bytes)
        })
        .collect()
}

/// The sample of this kind with this transaction id.
fn sample(name: &str, transaction_id: u64) -> Message {
    let of_kind = samples().into_iter().filter(|sample| sample.0 == name);
    let mut mads = of_kind.map(|(_, bytes)| Mad::read(&bytes).unwrap());
    let mad = mads.find(|mad| mad.transaction_id == transaction_id);
    Message::read(&mad.expect("a sample with this transaction id")).unwrap()
}

fn gid(address: &str) -> Gid {
    address.parse::<IpAddr>().unwrap().into()
}

fn id(number: u32) -> CommunicationId {
    CommunicationId(number)
}

#[test]
fn captured_messages_round_trip_byte_by_byte() {
    let samples = samples();
    assert_eq!(samples.len(), SAMPLE_COUNT);
    for (name, bytes) in samples {
        let mad = Mad::read(&bytes).unwrap();
        assert_eq!(mad.write(), bytes);
        let message = message(&bytes);
        assert_eq!(message.attribute().name(), name);
        assert_eq!(message.to_mad(mad.transaction_id).write(), bytes, "{message:?}");
    }
}

/// The REQ of a client of Linux 6.12, as its description lists the fields.
fn request() -> ConnectRequest {
    ConnectRequest {
        local_id: id(0x4c99_6d6b),
        service_id: ServiceId::of_port(PortSpace::Tcp, 5001),
        local_guid: 0x5054_00ff_fe00_000b,
        local_qpn: Qpn::new(0x12),
        responder_resources: 5,
        initiator_depth: 6,
        remote_response_timeout: TimeoutCode::saturating(20),
        end_to_end_flow_control: true,
        starting_psn: Psn::new(0x77_388d),
        local_response_timeout: TimeoutCode::saturating(20),
        retry_count: RetryCount::saturating(7),
        pkey: DEFAULT_PKEY,
        path_mtu: Mtu::Mtu1024.into(),
        rnr_retry_count: RetryCount::saturating(4),
        max_cm_retries: MessageRetries::saturating(15),
        primary_path: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: gid("10.99.0.3"),
            remote_gid: gid("10.99.0.2"),
            flow_label: FlowLabel::new((51_044 * 31 + 5001) & 0xf_ffff),
            hop_limit: 64,
            local_ack_timeout: TimeoutCode::saturating(17),
            ..Path::default()
        },
        private_data: IpHeader::new("10.99.0.3:51044".parse().unwrap(), "10.99.0.2".parse().unwrap())
            .and_then(|header| header.with_data(b"hello-req"))
            .unwrap(),
        ..ConnectRequest::default()
    }
}

#[test]
fn a_request_has_the_fields_of_its_sender() {
    assert_eq!(sample("REQ", 0x0000_0002_6b6d_994c), request().into());
    assert_eq!(request().primary_path.flow_label.value(), 0x8_38a5);
}

#[test]
fn a_request_over_ipv6_has_ipv6_addresses() {
    let Message::ConnectRequest(request) = sample("REQ", 0x0000_0002_21dc_334a) else { panic!("a REQ") };
    let path = request.primary_path;
    assert_eq!((path.local_gid, path.remote_gid), (gid("fd99::3"), gid("fd99::2")));
    assert_eq!((path.flow_label.value(), path.local_ack_timeout.value()), (0x2_fb6f, 19));
    assert_eq!(request.service_id.port(), Some((PortSpace::Tcp, 5007)));
    let (header, data) = IpHeader::read(request.private_data.as_bytes()).unwrap();
    assert_eq!(header, IpHeader::new("[fd99::3]:39968".parse().unwrap(), "fd99::2".parse().unwrap()).unwrap());
    assert_eq!((&data[..10], data.len()), (&b"hello-req\0"[..], 56));
}

#[test]
fn a_request_has_the_type_of_service() {
    let Message::ConnectRequest(request) = sample("REQ", 0x0000_0002_6b6d_9948) else { panic!("a REQ") };
    let path = request.primary_path;
    assert_eq!((path.traffic_class, path.local_ack_timeout.value(), path.flow_label.value()), (0x68, 16, 0xc_d4fe));
}

#[test]
fn a_reply_has_the_fields_of_its_sender() {
    let reply = ConnectReply {
        local_id: id(0x74e5_e344),
        remote_id: id(0x4c99_6d6b),
        local_qpn: Qpn::new(0x12),
        starting_psn: Psn::new(0x7f_6f58),
        responder_resources: 3,
        initiator_depth: 3,
        target_ack_delay: TimeoutCode::saturating(15),
        end_to_end_flow_control: true,
        rnr_retry_count: RetryCount::saturating(5),
        local_guid: 0x5054_00ff_fe00_000a,
        private_data: PrivateData::new(b"hello-rep").unwrap(),
        ..ConnectReply::default()
    };
    assert_eq!(sample("REP", 0x0000_0002_6b6d_994c), reply.into());
}

#[test]
fn messages_of_a_connection_have_both_ids() {
    let transaction_id = 0x0000_0002_6b6d_994c;
    let (client, server) = (id(0x4c99_6d6b), id(0x74e5_e344));
    let ready = ReadyToUse { local_id: client, remote_id: server, private_data: PrivateData::default() };
    assert_eq!(sample("RTU", transaction_id), ready.into());
    let request = DisconnectRequest {
        local_id: client,
        remote_id: server,
        remote_qpn: Qpn::new(0x12),
        private_data: PrivateData::default(),
    };
    assert_eq!(sample("DREQ", transaction_id), request.into());
    let reply = DisconnectReply { local_id: server, remote_id: client, private_data: PrivateData::default() };
    assert_eq!(sample("DREP", transaction_id), reply.into());
}

#[test]
fn a_rejection_has_a_reason_and_details() {
    let no_listener =
        Reject { remote_id: id(0x4433_dc21), reason: RejectReason::INVALID_SERVICE_ID, ..Reject::default() };
    assert_eq!(sample("REJ", 0x0000_0002_21dc_3344), no_listener.into());

    let given_up = Reject {
        local_id: id(0x4699_6d6b),
        rejected: RejectedMessage::Other,
        reason: RejectReason::TIMEOUT,
        information: AdditionalInformation::new(&0x5054_00ff_fe00_000b_u64.to_be_bytes()).unwrap(),
        ..Reject::default()
    };
    assert_eq!(sample("REJ", 0x0000_0002_6b6d_9946), given_up.into());

    let Message::Reject(of_reply) = sample("REJ", 0x0000_0002_21dc_334f) else { panic!("a REJ") };
    assert_eq!((of_reply.rejected, of_reply.reason), (RejectedMessage::ConnectReply, RejectReason::CONSUMER));
    assert_eq!((of_reply.local_id, of_reply.remote_id), (id(0x4f33_dc21), id(0xf58f_3521)));

    let Message::Reject(with_data) = sample("REJ", 0x0000_0002_21dc_3345) else { panic!("a REJ") };
    assert_eq!((with_data.local_id, with_data.rejected), (id(0xff8f_3521), RejectedMessage::ConnectRequest));
    assert_eq!(with_data.private_data.as_bytes()[..8], *b"go-away\0");
    assert!(with_data.information.as_bytes().is_empty());
}

#[test]
fn a_receipt_names_the_message_and_a_time() {
    let of_request = MessageReceipt {
        local_id: id(0x6ee5_e344),
        remote_id: id(0x4499_6d6b),
        received: ReceivedMessage::ConnectRequest,
        service_timeout: TimeoutCode::saturating(24),
        ..MessageReceipt::default()
    };
    assert_eq!(sample("MRA", 0x0000_0002_6b6d_9944), of_request.into());
    let of_reply = MessageReceipt {
        local_id: id(0x4799_6d6b),
        remote_id: id(0x69e5_e344),
        received: ReceivedMessage::ConnectReply,
        ..of_request
    };
    assert_eq!(sample("MRA", 0x0000_0002_6b6d_9947), of_reply.into());
}

#[test]
fn datagram_queue_pairs_are_requested_and_returned() {
    let header = IpHeader::new("10.99.0.3:59060".parse().unwrap(), "10.99.0.2".parse().unwrap()).unwrap();
    let request = ServiceIdRequest {
        request_id: id(0x4733_dc21),
        pkey: DEFAULT_PKEY,
        service_id: ServiceId::of_port(PortSpace::Udp, 5005),
        private_data: header.with_data(b"hello-req").unwrap(),
    };
    assert_eq!(sample("SIDR_REQ", 0x0000_0002_21dc_3347), request.into());
    let reply = ServiceIdReply {
        request_id: id(0x4733_dc21),
        status: ServiceIdStatus::VALID,
        qpn: Qpn::new(0x15),
        service_id: ServiceId::of_port(PortSpace::Udp, 5005),
        qkey: Qkey(0x0123_4567),
        private_data: PrivateData::new(b"hello-rep").unwrap(),
        ..ServiceIdReply::default()
    };
    assert_eq!(sample("SIDR_REP", 0x0000_0002_21dc_3347), reply.into());
    let rejected = ServiceIdReply {
        request_id: id(0x4833_dc21),
        status: ServiceIdStatus::REJECTED,
        service_id: ServiceId::of_port(PortSpace::Udp, 5006),
        private_data: PrivateData::new(b"go-away").unwrap(),
        ..ServiceIdReply::default()
    };
    assert_eq!(sample("SIDR_REP", 0x0000_0002_21dc_3348), rejected.into());
    let unsupported = ServiceIdReply {
        request_id: id(0x4933_dc21),
        status: ServiceIdStatus::UNSUPPORTED,
        service_id: ServiceId::of_port(PortSpace::Udp, 5998),
        ..ServiceIdReply::default()
    };
    assert_eq!(sample("SIDR_REP", 0x0000_0002_21dc_3349), unsupported.into());
}

/// Linux sends neither of the two messages on Ethernet, so the bytes are those of the standard's layout.
#[test]
fn messages_about_alternate_paths_have_their_bytes() {
    let load = LoadAlternatePath {
        local_id: id(0x0102_0304),
        remote_id: id(0x0506_0708),
        remote_qpn: Qpn::new(0x0a_0b0c),
        remote_response_timeout: TimeoutCode::saturating(20),
        path: Path {
            local_lid: 0x1112,
            remote_lid: 0x1314,
            local_gid: gid("fd99::3"),
            remote_gid: gid("10.99.0.2"),
            flow_label: FlowLabel::new(0x8_38a5),
            packet_rate: PacketRate::new(2).unwrap(),
            traffic_class: 0x68,
            hop_limit: 64,
            service_level: ServiceLevel::new(5).unwrap(),
            subnet_local: true,
            local_ack_timeout: TimeoutCode::saturating(17),
        },
        private_data: PrivateData::new(b"path").unwrap(),
    };
    let fields = "0102030405060708 00000000 0a0b0c a0 00000000 1112 1314 fd990000000000000000000000000003 \
                  00000000000000000000ffff0a630002 838a50 68 40 02 58 88 70617468";
    assert_eq!(hexadecimal(&Message::from(load).to_mad(0).data[..68]), fields.replace(' ', ""));

    let response = AlternatePathResponse {
        local_id: id(0x0102_0304),
        remote_id: id(0x0506_0708),
        information: AdditionalInformation::new(&[0xaa, 0xbb]).unwrap(),
        status: 7,
        private_data: PrivateData::new(b"no").unwrap(),
    };
    let data = Message::from(response).to_mad(0).data;
    assert_eq!(hexadecimal(&data[..14]), "0102030405060708020700 00aabb".replace(' ', ""));
    assert_eq!((&data[14..84], &data[84..87]), (&[0; 70][..], &b"no\0"[..]));
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
