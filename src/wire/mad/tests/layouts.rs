//! The position of every field of every message, compared with a second list of them.

use proptest::prelude::*;

use crate::types::Psn;

use super::super::*;
use super::{any_attribute, any_data, message, message_bytes};

/// Consecutive bits: the byte and the bit (7: most significant) of the first one, and their number. Bytes count from
/// the data on.
type Span = (isize, u32, u32);

/// The attribute modifier, which precedes the data.
const MODIFIER: Span = (-4, 7, 32);

/// A field of a message: its bits in the datagram, and the bits of its value.
struct Row {
    name: String,
    spans: Vec<Span>,
    value: Vec<bool>,
}

fn scattered(name: &str, spans: &[Span], value: impl Into<u128>) -> Row {
    let (value, width) = (value.into(), spans.iter().map(|span| span.2).sum::<u32>());
    let value = (0..width).rev().map(|bit| value >> bit & 1 != 0).collect();
    Row { name: name.to_owned(), spans: spans.to_vec(), value }
}

fn number(name: &str, span: Span, value: impl Into<u128>) -> Row {
    scattered(name, &[span], value)
}

fn bytes(name: &str, first: isize, value: &[u8]) -> Row {
    let value: Vec<bool> = value.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 != 0)).collect();
    Row { name: name.to_owned(), spans: vec![(first, 7, value.len() as u32)], value }
}

fn ids(local: CommunicationId, remote: CommunicationId) -> [Row; 2] {
    [number("local id", (0, 7, 32), local.0), number("remote id", (4, 7, 32), remote.0)]
}

fn path_of_request(base: isize, path: &Path) -> Vec<Row> {
    vec![
        number("local LID", (base, 7, 16), path.local_lid),
        number("remote LID", (base + 2, 7, 16), path.remote_lid),
        bytes("local GID", base + 4, &path.local_gid.to_bytes()),
        bytes("remote GID", base + 20, &path.remote_gid.to_bytes()),
        number("flow label", (base + 36, 7, 20), path.flow_label.value()),
        number("packet rate", (base + 39, 5, 6), path.packet_rate.value()),
        number("traffic class", (base + 40, 7, 8), path.traffic_class),
        number("hop limit", (base + 41, 7, 8), path.hop_limit),
        number("service level", (base + 42, 7, 4), path.service_level.value()),
        number("subnet local", (base + 42, 3, 1), path.subnet_local),
        number("local ACK timeout", (base + 43, 7, 5), path.local_ack_timeout.value()),
    ]
}

fn connect_request(message: &ConnectRequest) -> Vec<Row> {
    let mut rows = vec![
        number("local id", (0, 7, 32), message.local_id.0),
        number("vendor", (5, 7, 24), message.vendor_options.vendor.value()),
        number("options", MODIFIER, message.vendor_options.options),
        number("service id", (8, 7, 64), message.service_id.0),
        number("GUID", (16, 7, 64), message.local_guid),
        number("Q_Key", (28, 7, 32), message.local_qkey.0),
        number("QPN", (32, 7, 24), message.local_qpn.value()),
        number("responder resources", (35, 7, 8), message.responder_resources),
        number("local EECN", (36, 7, 24), message.local_eecn.value()),
        number("initiator depth", (39, 7, 8), message.initiator_depth),
        number("remote EECN", (40, 7, 24), message.remote_eecn.value()),
        number("remote CM timeout", (43, 7, 5), message.remote_response_timeout.value()),
        number("transport", (43, 2, 2), message.transport as u8),
        number("flow control", (43, 0, 1), message.end_to_end_flow_control),
        number("starting PSN", (44, 7, 24), message.starting_psn.value()),
        number("local CM timeout", (47, 7, 5), message.local_response_timeout.value()),
        number("retry count", (47, 2, 3), message.retry_count.value()),
        number("P_Key", (48, 7, 16), message.pkey),
        number("path MTU", (50, 7, 4), message.path_mtu.value()),
        number("RDC exists", (50, 3, 1), message.rdc_exists),
        number("RNR retry count", (50, 2, 3), message.rnr_retry_count.value()),
        number("max CM retries", (51, 7, 4), message.max_cm_retries.value()),
        number("SRQ", (51, 3, 1), message.has_srq),
        number("extended transport", (51, 2, 3), message.extended_transport.value()),
        number("SAP supported", (139, 2, 1), message.sap_supported),
        bytes("private data", 140, message.private_data.as_bytes()),
    ];
    rows.extend(path_of_request(52, &message.primary_path));
    rows.extend(path_of_request(96, message.alternate_path.raw()));
    rows
}

fn reject(message: &Reject) -> Vec<Row> {
    let mut rows = vec![
        number("message", (8, 7, 2), message.rejected as u8),
        number("information length", (9, 7, 7), message.information.stated_length()),
        number("reason", (10, 7, 16), message.reason.0),
        bytes("information", 12, message.information.whole()),
        bytes("private data", 84, message.private_data.as_bytes()),
    ];
    rows.extend(ids(message.local_id, message.remote_id));
    rows
}

fn connect_reply(message: &ConnectReply) -> Vec<Row> {
    let mut rows = vec![
        number("Q_Key", (8, 7, 32), message.local_qkey.0),
        number("QPN", (12, 7, 24), message.local_qpn.value()),
        scattered("vendor", &[(15, 7, 8), (19, 7, 8), (23, 7, 8)], message.vendor_options.vendor.value()),
        number("options", MODIFIER, message.vendor_options.options),
        number("EECN", (16, 7, 24), message.local_eecn.value()),
        number("starting PSN", (20, 7, 24), message.starting_psn.value()),
        number("responder resources", (24, 7, 8), message.responder_resources),
        number("initiator depth", (25, 7, 8), message.initiator_depth),
        number("target ACK delay", (26, 7, 5), message.target_ack_delay.value()),
        number("failover", (26, 2, 2), message.failover_accepted.value()),
        number("flow control", (26, 0, 1), message.end_to_end_flow_control),
        number("RNR retry count", (27, 7, 3), message.rnr_retry_count.value()),
        number("SRQ", (27, 4, 1), message.has_srq),
        number("GUID", (28, 7, 64), message.local_guid),
        bytes("private data", 36, message.private_data.as_bytes()),
    ];
    rows.extend(ids(message.local_id, message.remote_id));
    rows
}

fn service_id_reply(message: &ServiceIdReply) -> Vec<Row> {
    vec![
        number("request id", (0, 7, 32), message.request_id.0),
        number("status", (4, 7, 8), message.status.0),
        number("information length", (5, 7, 8), message.information.stated_length()),
        scattered("vendor", &[(6, 7, 16), (11, 7, 8)], message.vendor_options.vendor.value()),
        number("options", MODIFIER, message.vendor_options.options),
        number("QPN", (8, 7, 24), message.qpn.value()),
        number("service id", (12, 7, 64), message.service_id.0),
        number("Q_Key", (20, 7, 32), message.qkey.0),
        bytes("information", 24, message.information.whole()),
        bytes("private data", 96, message.private_data.as_bytes()),
    ]
}

fn load_alternate_path(message: &LoadAlternatePath) -> Vec<Row> {
    let path = &message.path;
    let mut rows = vec![
        number("QPN", (12, 7, 24), message.remote_qpn.value()),
        number("timeout", (15, 7, 5), message.remote_response_timeout.value()),
        number("local LID", (20, 7, 16), path.local_lid),
        number("remote LID", (22, 7, 16), path.remote_lid),
        bytes("local GID", 24, &path.local_gid.to_bytes()),
        bytes("remote GID", 40, &path.remote_gid.to_bytes()),
        number("flow label", (56, 7, 20), path.flow_label.value()),
        number("traffic class", (59, 7, 8), path.traffic_class),
        number("hop limit", (60, 7, 8), path.hop_limit),
        number("packet rate", (61, 5, 6), path.packet_rate.value()),
        number("service level", (62, 7, 4), path.service_level.value()),
        number("subnet local", (62, 3, 1), path.subnet_local),
        number("local ACK timeout", (63, 7, 5), path.local_ack_timeout.value()),
        bytes("private data", 64, message.private_data.as_bytes()),
    ];
    rows.extend(ids(message.local_id, message.remote_id));
    rows
}

fn short(local: CommunicationId, remote: CommunicationId, others: Vec<Row>) -> Vec<Row> {
    ids(local, remote).into_iter().chain(others).collect()
}

/// All fields of a message.
fn rows(message: &Message) -> Vec<Row> {
    match message {
        Message::ConnectRequest(message) => connect_request(message),
        Message::Reject(message) => reject(message),
        Message::ConnectReply(message) => connect_reply(message),
        Message::ServiceIdReply(message) => service_id_reply(message),
        Message::LoadAlternatePath(message) => load_alternate_path(message),
        Message::MessageReceipt(MessageReceipt { local_id, remote_id, received, service_timeout, private_data }) => {
            let received = number("message", (8, 7, 2), *received as u8);
            let timeout = number("service timeout", (9, 7, 5), service_timeout.value());
            let private_data = bytes("private data", 10, private_data.as_bytes());
            short(*local_id, *remote_id, vec![received, timeout, private_data])
        }
        Message::ReadyToUse(ReadyToUse { local_id, remote_id, private_data })
        | Message::DisconnectReply(DisconnectReply { local_id, remote_id, private_data }) => {
            short(*local_id, *remote_id, vec![bytes("private data", 8, private_data.as_bytes())])
        }
        Message::DisconnectRequest(DisconnectRequest { local_id, remote_id, remote_qpn, private_data }) => {
            let number = number("QPN", (8, 7, 24), remote_qpn.value());
            short(*local_id, *remote_id, vec![number, bytes("private data", 12, private_data.as_bytes())])
        }
        Message::ServiceIdRequest(message) => vec![
            number("request id", (0, 7, 32), message.request_id.0),
            number("P_Key", (4, 7, 16), message.pkey),
            number("service id", (8, 7, 64), message.service_id.0),
            bytes("private data", 16, message.private_data.as_bytes()),
        ],
        Message::AlternatePathResponse(message) => {
            let length = number("information length", (8, 7, 8), message.information.stated_length());
            let status = number("status", (9, 7, 8), message.status);
            let information = bytes("information", 12, message.information.whole());
            let private_data = bytes("private data", 84, message.private_data.as_bytes());
            short(message.local_id, message.remote_id, vec![length, status, information, private_data])
        }
    }
}

/// The number of reserved bits in the data of each kind.
const RESERVED_BITS: [(Attribute, usize); 11] = [
    (Attribute::CONNECT_REQUEST, 63),
    (Attribute::MESSAGE_RECEIPT, 9),
    (Attribute::REJECT, 7),
    (Attribute::CONNECT_REPLY, 4),
    (Attribute::READY_TO_USE, 0),
    (Attribute::DISCONNECT_REQUEST, 8),
    (Attribute::DISCONNECT_REPLY, 0),
    (Attribute::SERVICE_ID_REQUEST, 16),
    (Attribute::SERVICE_ID_REPLY, 0),
    (Attribute::LOAD_ALTERNATE_PATH, 79),
    (Attribute::ALTERNATE_PATH_RESPONSE, 16),
];

/// The positions of a field's bits in the datagram, counted from its first bit.
fn positions(row: &Row) -> impl Iterator<Item = usize> {
    row.spans.iter().flat_map(|(byte, bit, width)| {
        let first = (MAD_HEADER_BYTES as isize + byte) as usize * 8 + (7 - *bit as usize);
        first..first + *width as usize
    })
}

fn bit(bytes: &[u8; MAD_BYTES], position: usize) -> bool {
    bytes[position / 8] >> (7 - position % 8) & 1 != 0
}

proptest! {
    #[test]
    fn each_field_is_read_from_its_bits(attribute in any_attribute(), modifier: u32, data in any_data()) {
        let bytes = message_bytes(attribute, modifier, &data);
        for row in rows(&message(&bytes)) {
            let expected: Vec<bool> = positions(&row).map(|position| bit(&bytes, position)).collect();
            prop_assert_eq!(row.value, expected, "{} {}", attribute, row.name);
        }
    }

    #[test]
    fn each_field_is_written_to_its_bits(attribute in any_attribute(), modifier: u32, data in any_data()) {
        let bytes = message_bytes(attribute, modifier, &data);
        let message = message(&bytes);
        let mut expected = message_bytes(attribute, 0, &[0; MAD_DATA_BYTES]);
        for position in rows(&message).iter().flat_map(positions) {
            expected[position / 8] |= bytes[position / 8] & 0x80 >> (position % 8);
        }
        let transaction_id = Mad::read(&bytes).unwrap().transaction_id;
        prop_assert_eq!(message.to_mad(transaction_id).write(), expected, "{}", attribute);
    }
}

#[test]
fn fields_do_not_overlap_and_leave_the_reserved_bits() {
    for (attribute, reserved) in RESERVED_BITS {
        let message = message(&message_bytes(attribute, 0, &[0; MAD_DATA_BYTES]));
        let mut users = [0; MAD_BYTES * 8];
        rows(&message).iter().flat_map(positions).for_each(|position| users[position] += 1);
        assert!(users.iter().all(|count| *count < 2), "{attribute}");
        let unused = users[MAD_HEADER_BYTES * 8..].iter().filter(|count| **count == 0).count();
        assert_eq!(unused, reserved, "{attribute}");
    }
}

#[test]
fn a_flipped_bit_changes_one_field() {
    let data = std::array::from_fn(|index| (index * 37 + 11) as u8);
    for attribute in Message::ATTRIBUTES.iter().copied() {
        let bytes = message_bytes(attribute, 0x5a3c_96e1, &data);
        let (before, first) = (rows(&message(&bytes)), MAD_HEADER_BYTES * 8);
        for position in (first - 32..first).chain(first..MAD_BYTES * 8) {
            let mut flipped = bytes;
            flipped[position / 8] ^= 0x80 >> (position % 8);
            let after = rows(&message(&flipped));
            for (before, after) in before.iter().zip(&after) {
                let changed = before.value.iter().zip(&after.value).filter(|(old, new)| old != new).count();
                let expected = positions(before).filter(|own| *own == position).count();
                assert_eq!(changed, expected, "{attribute} {} bit {position}", before.name);
            }
            let is_reserved = !before.iter().flat_map(positions).any(|own| own == position);
            assert_eq!(message(&bytes) == message(&flipped), is_reserved, "{attribute} bit {position}");
        }
    }
}

/// Checks that the data of a message is 0 except for this byte.
fn assert_only(message: impl Into<Message>, byte: usize, value: u8) {
    let message = message.into();
    let mut expected = [0; MAD_DATA_BYTES];
    expected[byte] = value;
    assert_eq!(message.to_mad(0).data, expected, "{message:?}");
}

#[test]
fn the_largest_value_of_a_field_does_not_reach_its_neighbors() {
    let (timeout, retries) = (TimeoutCode::saturating(255), RetryCount::saturating(255));
    let request = ConnectRequest::default();
    assert_only(ConnectRequest { remote_response_timeout: timeout, ..request }, 43, 0xf8);
    assert_only(ConnectRequest { transport: TransportType::Extended, ..request }, 43, 0x06);
    assert_only(ConnectRequest { end_to_end_flow_control: true, ..request }, 43, 0x01);
    assert_only(ConnectRequest { local_response_timeout: timeout, ..request }, 47, 0xf8);
    assert_only(ConnectRequest { retry_count: retries, ..request }, 47, 0x07);
    assert_only(ConnectRequest { path_mtu: MtuCode::MAX, ..request }, 50, 0xf0);
    assert_only(ConnectRequest { rdc_exists: true, ..request }, 50, 0x08);
    assert_only(ConnectRequest { rnr_retry_count: retries, ..request }, 50, 0x07);
    assert_only(ConnectRequest { max_cm_retries: MessageRetries::saturating(255), ..request }, 51, 0xf0);
    assert_only(ConnectRequest { has_srq: true, ..request }, 51, 0x08);
    assert_only(ConnectRequest { extended_transport: ExtendedTransport::XRC, ..request }, 51, 0x01);
    assert_only(ConnectRequest { sap_supported: true, ..request }, 139, 0x04);
    let path = Path { packet_rate: PacketRate::MAX, ..Path::default() };
    assert_only(ConnectRequest { primary_path: path, ..request }, 91, 0x3f);
    assert_only(LoadAlternatePath { path, ..LoadAlternatePath::default() }, 61, 0x3f);
    let path = Path { service_level: ServiceLevel::MAX, ..Path::default() };
    assert_only(ConnectRequest { alternate_path: AlternatePath::new(path), ..request }, 138, 0xf0);
    assert_only(LoadAlternatePath { path, ..LoadAlternatePath::default() }, 62, 0xf0);
    let path = Path { local_ack_timeout: timeout, subnet_local: false, ..Path::default() };
    assert_only(ConnectRequest { primary_path: path, ..request }, 95, 0xf8);
    assert_only(LoadAlternatePath { path, ..LoadAlternatePath::default() }, 63, 0xf8);
    let reply = ConnectReply::default();
    assert_only(ConnectReply { target_ack_delay: timeout, ..reply }, 26, 0xf8);
    assert_only(ConnectReply { failover_accepted: FailoverStatus::MAX, ..reply }, 26, 0x06);
    assert_only(ConnectReply { rnr_retry_count: retries, ..reply }, 27, 0xe0);
    assert_only(ConnectReply { has_srq: true, ..reply }, 27, 0x10);
    assert_only(MessageReceipt { service_timeout: timeout, ..MessageReceipt::default() }, 9, 0xf8);
    assert_only(MessageReceipt { received: ReceivedMessage::Reserved, ..MessageReceipt::default() }, 8, 0xc0);
    assert_only(Reject { rejected: RejectedMessage::Other, ..Reject::default() }, 8, 0x80);
    let zeros = AdditionalInformation::new(&[0; ADDITIONAL_INFORMATION_BYTES]).unwrap();
    assert_only(Reject { information: zeros, ..Reject::default() }, 9, 72 << 1);
}

#[test]
fn the_options_of_a_vendor_are_scattered() {
    let vendor_options = VendorOptions { vendor: VendorId::new(0xab_cdef), options: 0x1234_5678 };
    let written = |message: Message| message.to_mad(0);
    let request = written(ConnectRequest { vendor_options, ..ConnectRequest::default() }.into());
    assert_eq!((request.modifier, &request.data[4..8]), (0x1234_5678, &[0, 0xab, 0xcd, 0xef][..]));
    let starting_psn = Psn::new(0x77_388d);
    let reply = written(ConnectReply { vendor_options, starting_psn, ..ConnectReply::default() }.into());
    assert_eq!(reply.modifier, 0x1234_5678);
    assert_eq!(reply.data[15..24], [0xab, 0, 0, 0, 0xcd, 0x77, 0x38, 0x8d, 0xef]);
    let reply = written(ServiceIdReply { vendor_options, ..ServiceIdReply::default() }.into());
    assert_eq!((reply.modifier, &reply.data[6..12]), (0x1234_5678, &[0xab, 0xcd, 0, 0, 0, 0xef][..]));
}

#[test]
fn a_stated_length_may_exceed_the_information() {
    let mut data = [0xff; MAD_DATA_BYTES];
    data[8..12].copy_from_slice(&[0, 0xfe, 0, 12]);
    let Message::Reject(reject) = message(&message_bytes(Attribute::REJECT, 0, &data)) else { panic!("a REJ") };
    assert_eq!((reject.information.stated_length(), reject.information.as_bytes()), (127, &[0xff; 72][..]));
    assert_eq!(Message::from(reject).to_mad(0).data[..12], data[..12]);
}
