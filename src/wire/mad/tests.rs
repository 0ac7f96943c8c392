//! Tests of datagrams and messages as a whole: round trips, headers, lengths. `samples` has captured messages,
//! `layouts` the position of every field, `summaries` the messages in words.

mod layouts;
mod samples;
mod summaries;

use proptest::prelude::*;

use super::*;

/// The bytes of a datagram with a message's header and this data.
fn message_bytes(attribute: Attribute, modifier: u32, data: &[u8; MAD_DATA_BYTES]) -> [u8; MAD_BYTES] {
    let [high, low] = attribute.0.to_be_bytes();
    let mut bytes = [0; MAD_BYTES];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[8..16].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
    bytes[16..18].copy_from_slice(&[high, low]);
    bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
    bytes[24..].copy_from_slice(data);
    bytes
}

/// The message in these bytes.
fn message(bytes: &[u8]) -> Message {
    Message::read(&Mad::read(bytes).unwrap()).unwrap()
}

fn any_data() -> impl Strategy<Value = [u8; MAD_DATA_BYTES]> {
    proptest::collection::vec(any::<u8>(), MAD_DATA_BYTES).prop_map(|bytes| bytes.try_into().unwrap())
}

fn any_attribute() -> impl Strategy<Value = Attribute> {
    proptest::sample::select(Message::ATTRIBUTES)
}

/// Any message. All values of all fields occur, because each field can have any value that its bits can have.
fn any_message() -> impl Strategy<Value = Message> {
    (any_attribute(), any::<u32>(), any_data())
        .prop_map(|(attribute, modifier, data)| message(&message_bytes(attribute, modifier, &data)))
}

proptest! {
    #[test]
    fn messages_round_trip(written in any_message(), transaction_id: u64) {
        let mad = written.to_mad(transaction_id);
        prop_assert_eq!(mad.transaction_id, transaction_id);
        let read = Mad::read(&mad.write()).unwrap();
        prop_assert_eq!(read, mad);
        prop_assert_eq!(Message::read(&read), Ok(written));
    }

    #[test]
    fn reading_what_was_read_and_written_changes_nothing(
        mut bytes in proptest::collection::vec(any::<u8>(), MAD_BYTES),
        header in proptest::option::of(any_attribute()),
    ) {
        if let Some(attribute) = header {
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&attribute.0.to_be_bytes());
        }
        let mad = Mad::read(&bytes).unwrap();
        prop_assert_eq!(Mad::read(&mad.write()), Ok(mad));
        let read = Message::read(&mad);
        prop_assert_eq!(read.is_ok(), header.is_some());
        if let Ok(read) = read {
            prop_assert_eq!(Message::read(&read.to_mad(mad.transaction_id)), Ok(read));
        }
    }

    #[test]
    fn headers_round_trip(numbers: (u8, u8, u8, u8, u16), id: u64, attribute: u16, modifier: u32, data in any_data()) {
        let (base_version, class, class_version, method, status) = numbers;
        let mad = Mad {
            base_version,
            class: ManagementClass(class),
            class_version,
            method: Method(method),
            status,
            transaction_id: id,
            attribute: Attribute(attribute),
            modifier,
            data,
        };
        let bytes = mad.write();
        prop_assert_eq!(&bytes[..4], [base_version, class, class_version, method]);
        prop_assert_eq!(&bytes[4..8], [&status.to_be_bytes()[..], &[0; 2]].concat());
        prop_assert_eq!(&bytes[8..16], id.to_be_bytes());
        prop_assert_eq!(&bytes[16..20], [&attribute.to_be_bytes()[..], &[0; 2]].concat());
        prop_assert_eq!(&bytes[20..24], modifier.to_be_bytes());
        prop_assert_eq!(&bytes[24..], data);
        prop_assert_eq!(Mad::read(&bytes), Ok(mad));
    }
}

#[test]
fn only_datagrams_of_256_bytes_are_read() {
    let bytes = [0xa5; 1024];
    for length in (0..=300).chain([512, 1024]) {
        let read = Mad::read(&bytes[..length]);
        match length {
            MAD_BYTES => assert!(read.is_ok()),
            _ => assert_eq!(read, Err(MadError::Length(length))),
        }
    }
}

#[test]
fn each_defect_of_a_header_has_its_reason() {
    let good = message_bytes(Attribute::READY_TO_USE, 0, &[0; MAD_DATA_BYTES]);
    let with = |index: usize, value: u8| {
        let mut bytes = good;
        bytes[index] = value;
        Message::read(&Mad::read(&bytes).unwrap())
    };
    assert_eq!(with(0, 1), Ok(ReadyToUse::default().into()));
    for value in [0, 2, 255] {
        assert_eq!(with(0, value), Err(MadError::BaseVersion(value)));
    }
    for value in [1, 3, 8, 0x81] {
        assert_eq!(with(1, value), Err(MadError::Class(ManagementClass(value))));
    }
    for value in [1, 3] {
        assert_eq!(with(2, value), Err(MadError::ClassVersion(value)));
    }
    for value in [1, 2, 0x81, 0x83] {
        assert_eq!(with(3, value), Err(MadError::Method(Method(value))));
    }
    for value in [0, 1, 0x0f, 0x1b, 0xff] {
        assert_eq!(with(17, value), Err(MadError::Attribute(Attribute(value.into()))));
    }
    assert_eq!(with(16, 1), Err(MadError::Attribute(Attribute(0x0114))));
    assert_eq!(MadError::Length(300).to_string(), "MAD of 300 bytes (256 are allowed)");
    let error = with(17, 0x1b).unwrap_err();
    assert_eq!(error.to_string(), "no message of the connection manager has the attribute unknown (27)");
}

#[test]
fn status_and_reserved_bytes_of_a_header_are_ignored() {
    let mut bytes = message_bytes(Attribute::DISCONNECT_REPLY, 0x1234_5678, &[0; MAD_DATA_BYTES]);
    bytes[4..8].fill(0xff);
    bytes[18..20].fill(0xff);
    let message = message(&bytes);
    assert_eq!(message, DisconnectReply::default().into());
    let written = message.to_mad(1);
    assert_eq!((written.status, written.modifier), (0, 0));
    assert_eq!(Mad::read(&bytes).unwrap().write()[18..20], [0; 2]);
}

/// Linux 6.1 and 6.12 respond to the same datagrams, and to no others.
#[test]
fn queries_that_are_not_supported_have_a_response() {
    let query = Mad {
        base_version: 1,
        class: ManagementClass::COMMUNICATION_MANAGEMENT,
        class_version: 2,
        method: Method::GET,
        status: 0,
        transaction_id: 0x0102_0304_0506_0708,
        attribute: Attribute::CLASS_PORT_INFO,
        modifier: 9,
        data: [0x5a; MAD_DATA_BYTES],
    };
    let response = query.unsupported_response().unwrap();
    assert_eq!(response, Mad { method: Method::GET_RESPONSE, status: 0x000c, ..query });
    assert_eq!(response.write()[..8], [1, 7, 2, 0x81, 0, 0x0c, 0, 0]);
    assert_eq!(response.unsupported_response(), None);

    let has_response = |mad: Mad| mad.unsupported_response().is_some();
    assert!(has_response(Mad { class_version: 1, ..query }));
    assert!(has_response(Mad { class: ManagementClass(4), attribute: Attribute(0x12), ..query }));
    assert!(has_response(Mad { class: ManagementClass(4), method: Method::SET, ..query }));
    assert!(!has_response(Mad { base_version: 2, ..query }));
    for method in [Method(0), Method::SEND, Method(5), Method::GET_RESPONSE] {
        assert!(!has_response(Mad { method, ..query }));
    }
    for class in [ManagementClass::SUBNET_MANAGEMENT, ManagementClass::DIRECTED_SUBNET_MANAGEMENT] {
        assert!(!has_response(Mad { class, ..query }));
    }
    for attribute in Message::ATTRIBUTES.iter().copied() {
        assert!(!has_response(Mad { attribute, ..query }));
        assert!(!has_response(Mad { attribute, method: Method::SET, ..query }));
    }
}

#[test]
fn each_kind_has_its_attribute() {
    let numbers: Vec<u16> = Message::ATTRIBUTES.iter().map(|attribute| attribute.0).collect();
    assert_eq!(numbers, (0x10..=0x1a).collect::<Vec<u16>>());
    for attribute in Message::ATTRIBUTES.iter().copied() {
        let message = message(&message_bytes(attribute, 0, &[0; MAD_DATA_BYTES]));
        assert_eq!(message.attribute(), attribute);
        assert_eq!(message.to_mad(0).attribute, attribute);
    }
    assert!(matches!(Message::from(ConnectRequest::default()), Message::ConnectRequest(_)));
}
