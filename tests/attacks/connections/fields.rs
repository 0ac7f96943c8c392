//! Every byte of a packet to queue pair 1 at its limits: the victim gives the documented response or none, at most one,
//! and a connection carries data meanwhile.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use rdma_verbs::sim::Random;
use rdma_verbs::types::Qpn;
use rdma_verbs::wire::mad::{
    AlternatePathResponse, Attribute, CommunicationId, ConnectReply, DisconnectReply, DisconnectRequest,
    LoadAlternatePath, MAD_HEADER_BYTES, Mad, Message, MessageReceipt, Method, ReadyToUse, Reject, RejectReason,
    ServiceIdReply, ServiceIdStatus,
};

use super::forger::{Forger, Observer, Seen, TRANSPORT_BYTES, UDP_PAYLOAD_BYTES};
use super::victim::{CLOSED, Client, DATAGRAM, REJECT, REJECTED, Victim};
use crate::world::{PATIENCE, new_address};
use crate::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("connections/fields_of_a_request", |_| requests()),
    ("connections/fields_of_a_datagram_request", |_| inquiries()),
    ("connections/fields_of_other_messages", |_| other_messages()),
    ("connections/fields_of_the_headers", |_| headers()),
    ("connections/lengths_and_random_bytes", lengths),
    ("connections/confused_ip_headers", |_| ip_headers()),
];

/// Number of packets between two that the victim certainly responds to.
const BATCH: usize = 16;
/// Time in which a response that is late would come.
const LATE: Duration = Duration::from_millis(500);

/// A response of the victim.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    None,
    /// A REJ of the connection manager.
    Reject(RejectReason),
    /// A REJ of the application, which has taken the request.
    Taken,
    /// Any of both, or none here because it goes elsewhere.
    Elsewhere,
    Disconnected,
    Resolved(ServiceIdStatus),
    Unsupported,
}

impl Answer {
    fn of(seen: &Seen) -> Self {
        if seen.mad.method == Method::GET_RESPONSE {
            return Self::Unsupported;
        }
        match seen.message() {
            Message::Reject(reject) if reject.private_data.as_bytes().starts_with(REJECTED) => Self::Taken,
            Message::Reject(reject) => Self::Reject(reject.reason),
            Message::DisconnectReply(_) => Self::Disconnected,
            Message::ServiceIdReply(reply) => Self::Resolved(reply.status),
            other => panic!("{other:?}"),
        }
    }

    fn allows(&self, seen: &Self) -> bool {
        *self == Self::Elsewhere || self == seen
    }
}

/// A packet and its response.
struct Case {
    name: String,
    bytes: Vec<u8>,
    expected: Answer,
}

/// A victim with an established connection, and a forger that checks its responses.
struct Examiner {
    victim: Victim,
    client: Client,
    forger: Forger,
    observer: Observer,
    /// The transaction ids of packets, and their responses.
    expected: BTreeMap<u64, (String, Answer)>,
    next: u32,
    waiting: Vec<u64>,
    counts: BTreeMap<String, u32>,
}

impl Examiner {
    fn new() -> Self {
        let victim = Victim::start();
        let client = Client::connect(victim.address);
        let forger = Forger::new(victim.address, new_address());
        let observer = Observer::of(victim.address);
        let (expected, waiting, counts) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { victim, client, forger, observer, expected, next: 1, waiting, counts }
    }

    /// Returns a number that no other packet has.
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Sends a packet to queue pair 1, with these bytes before the ICRC, and expects this response.
    fn send(&mut self, case: Case) {
        let transaction = u64::from_be_bytes(case.bytes[TRANSPORT_BYTES + 8..][..8].try_into().expect("8 bytes"));
        self.forger.send_sealed(&case.bytes);
        self.expect(transaction, case.name, case.expected);
    }

    fn expect(&mut self, transaction: u64, name: String, expected: Answer) {
        assert!(self.expected.insert(transaction, (name, expected)).is_none(), "transaction {transaction:#x} is used");
        self.waiting.push(transaction);
        if self.waiting.len() >= BATCH {
            self.settle();
        }
    }

    /// Waits until the victim has handled all packets, and checks the responses.
    fn settle(&mut self) {
        let number = self.number();
        let marker = DisconnectRequest { local_id: CommunicationId(number), ..Default::default() };
        let transaction = 1 << 63 | u64::from(number);
        self.forger.send_message(self.forger.source, marker, transaction);
        let mut is_marked = false;
        let taken = |examiner: &Self| {
            // A request for a port without a listener waits for one.
            const LATE: Answer = Answer::Reject(RejectReason::INVALID_SERVICE_ID);
            let is_late = |answer: &Answer| matches!(answer, Answer::Taken | Answer::Resolved(_)) || *answer == LATE;
            let is_taken = |id: &&u64| examiner.expected.get(id).is_some_and(|(_, expected)| is_late(expected));
            examiner.waiting.iter().filter(is_taken).count()
        };
        while !is_marked || taken(self) > 0 {
            let Some(seen) = self.observer.next(PATIENCE) else {
                let missing: Vec<_> = self.waiting.iter().map(|id| &self.expected[id]).collect();
                panic!("no response: {missing:?}, the victim responds afterwards: {is_marked}");
            };
            match seen.mad.transaction_id == transaction {
                true => is_marked = true,
                false => self.check(&seen),
            }
        }
        for id in std::mem::take(&mut self.waiting) {
            let (name, expected) = &self.expected[&id];
            assert!(matches!(expected, Answer::None | Answer::Elsewhere), "{name}: no response, expected {expected:?}");
            *self.counts.entry("none".to_owned()).or_default() += 1;
        }
    }

    fn check(&mut self, seen: &Seen) {
        if seen.destination != self.forger.source {
            return;
        }
        let (id, answer) = (seen.mad.transaction_id, Answer::of(seen));
        let Some((name, expected)) = self.expected.get(&id) else { panic!("a response to nothing: {seen:?}") };
        assert!(expected.allows(&answer), "{name}: {answer:?}, expected {expected:?}");
        let Some(position) = self.waiting.iter().position(|waiting| *waiting == id) else {
            panic!("{name}: a second response, {answer:?}")
        };
        self.waiting.swap_remove(position);
        *self.counts.entry(format!("{answer:?}")).or_default() += 1;
    }

    /// Checks that no response is late, and that the victim still works.
    fn finish(mut self) {
        self.settle();
        for seen in self.observer.all(LATE) {
            self.check(&seen);
        }
        println!("{} packets, responses: {:?}", self.expected.len(), self.counts);
        self.client.exchange();
        self.client.disconnect();
        Client::connect(self.victim.address).disconnect();
    }

    /// Sends a datagram with each byte of the range changed to its limits.
    fn sweep(
        &mut self,
        what: &str,
        range: std::ops::Range<usize>,
        message: impl Fn(&Forger, u32) -> Message,
        expected: impl Fn(usize, u8) -> Answer,
    ) {
        for at in range {
            for change in
                [|_| 0, |_| 0xff, |byte: u8| byte ^ 0x80, |byte: u8| byte ^ 1, |byte: u8| byte.wrapping_add(3)]
            {
                let number = self.number();
                let mut bytes = message(&self.forger, number).to_mad(number.into()).write().to_vec();
                let changed = change(bytes[at]);
                if changed == bytes[at] {
                    continue;
                }
                bytes[at] = changed;
                let expected = expected(at, changed);
                let name = format!("{what}, byte {at} is {changed:#04x}");
                let bytes = self.sealed(&bytes);
                self.send(Case { name, bytes, expected });
            }
            if at % 16 == 0 {
                self.client.exchange();
            }
        }
    }

    /// Returns the bytes of a packet with this datagram before the ICRC.
    fn sealed(&self, datagram: &[u8]) -> Vec<u8> {
        let mut bytes = self.forger.packet(self.forger.source, datagram).udp_payload();
        bytes.truncate(bytes.len() - 4);
        bytes
    }
}

/// Returns the response to a REQ of which one byte of the data is changed: that of Linux 6.12, but for wrong
/// path MTUs, to which its application responds.
fn answer_to_request(at: usize, value: u8) -> Answer {
    let consumer = Answer::Reject(RejectReason::CONSUMER);
    match at - MAD_HEADER_BYTES {
        8..16 => Answer::Reject(RejectReason::INVALID_SERVICE_ID),
        // Transport: RC is 0.
        43 if value & 6 != 0 => consumer,
        // P_Key: its highest bit is ignored.
        48 if value | 0x80 != 0xff => Answer::Reject(RejectReason::INVALID_GID),
        49 => Answer::Reject(RejectReason::INVALID_GID),
        50 if !(1..=5).contains(&(value >> 4)) => Answer::Reject(RejectReason::INVALID_MTU),
        // The own GID: not of IPv4, or where the response goes.
        56..68 => Answer::Reject(RejectReason::INVALID_GID),
        68 if (0xe0..0xf0).contains(&value) => Answer::Reject(RejectReason::INVALID_GID),
        68..72 => Answer::Elsewhere,
        72..88 => Answer::Reject(RejectReason::INVALID_GID),
        96 | 97 => Answer::Reject(RejectReason::INVALID_ALTERNATE_GID),
        140 => consumer,
        141 if value >> 4 != 4 => consumer,
        156 if (0xe0..0xf0).contains(&value) => consumer,
        172..176 => consumer,
        _ => Answer::Taken,
    }
}

fn requests() {
    let mut examiner = Examiner::new();
    let request = |forger: &Forger, number| forger.request(number, REJECT).into();
    examiner.sweep("REQ", MAD_HEADER_BYTES..256, request, answer_to_request);
    let limits: [(&str, usize, &[u8], Answer); 18] = [
        ("id 0", 0, &[0; 4], Answer::Taken),
        ("GUID 0", 16, &[0; 8], Answer::Taken),
        ("Q_Key", 28, &[0xff; 4], Answer::Taken),
        ("queue pair 0", 32, &[0; 3], Answer::Taken),
        ("queue pair 1", 32, &[0, 0, 1], Answer::Taken),
        ("queue pair 0xffffff", 32, &[0xff; 3], Answer::Taken),
        ("no READs", 35, &[0, 0, 0, 0, 0], Answer::Taken),
        ("all READs", 35, &[0xff; 5], Answer::Taken),
        ("P_Key 0x7fff", 48, &[0x7f, 0xff], Answer::Taken),
        ("P_Key 0", 48, &[0, 0], Answer::Reject(RejectReason::INVALID_GID)),
        ("GID 0", 56, &[0; 16], Answer::Reject(RejectReason::INVALID_GID)),
        ("broadcast GID", 68, &[0xff; 4], Answer::Reject(RejectReason::INVALID_GID)),
        ("IPv6", 56, &[0xfe; 16], Answer::Reject(RejectReason::INVALID_GID)),
        ("source 0.0.0.0", 156, &[0; 4], Answer::Reject(RejectReason::CONSUMER)),
        ("broadcast source", 156, &[0xff; 4], Answer::Reject(RejectReason::CONSUMER)),
        ("destination 0.0.0.0", 172, &[0; 4], Answer::Reject(RejectReason::CONSUMER)),
        ("no header", 140, &[0; 36], Answer::Reject(RejectReason::CONSUMER)),
        ("all ones", 8, &[0xff; 224], Answer::Reject(RejectReason::INVALID_SERVICE_ID)),
    ];
    for (name, at, value, expected) in limits {
        let number = examiner.number();
        let mut bytes = Message::from(examiner.forger.request(number, REJECT)).to_mad(number.into()).write();
        bytes[MAD_HEADER_BYTES + at..][..value.len()].copy_from_slice(value);
        let bytes = examiner.sealed(&bytes);
        examiner.send(Case { name: name.to_owned(), bytes, expected });
    }
    for port in [DATAGRAM, CLOSED, 0, 0xffff] {
        let number = examiner.number();
        let bytes = Message::from(examiner.forger.request(number, port)).to_mad(number.into()).write();
        let (name, bytes) = (format!("port {port}"), examiner.sealed(&bytes));
        let expected = Answer::Reject(RejectReason::INVALID_SERVICE_ID);
        examiner.send(Case { name, bytes, expected });
    }
    examiner.finish();
}

fn inquiries() {
    let mut examiner = Examiner::new();
    let inquiry = |forger: &Forger, number| forger.inquiry_from(forger.source, number, DATAGRAM).into();
    examiner.sweep("SIDR_REQ", MAD_HEADER_BYTES..256, inquiry, |at, value| match at - MAD_HEADER_BYTES {
        8..16 => Answer::Resolved(ServiceIdStatus::UNSUPPORTED),
        16 => Answer::Resolved(ServiceIdStatus::REJECTED),
        17 if value >> 4 != 4 => Answer::Resolved(ServiceIdStatus::REJECTED),
        32 if (0xe0..0xf0).contains(&value) => Answer::Resolved(ServiceIdStatus::REJECTED),
        48..52 => Answer::Resolved(ServiceIdStatus::REJECTED),
        _ => Answer::Resolved(ServiceIdStatus::VALID),
    });
    examiner.finish();
}

/// Messages with ids that no connection has. Only a DREQ has a response.
fn other_messages() {
    let mut examiner = Examiner::new();
    let ids = |number| (CommunicationId(0x0300_0000 + number), CommunicationId(0x0400_0000 + number));
    macro_rules! sweep {
        ($($message:ident: $expected:expr;)*) => { $(
            let message = |_: &Forger, number| {
                let (local_id, remote_id) = ids(number);
                $message { local_id, remote_id, ..Default::default() }.into()
            };
            examiner.sweep(stringify!($message), MAD_HEADER_BYTES..256, message, |_, _| $expected);
        )* };
    }
    sweep! {
        ConnectReply: Answer::None;
        ReadyToUse: Answer::None;
        Reject: Answer::None;
        MessageReceipt: Answer::None;
        DisconnectRequest: Answer::Disconnected;
        DisconnectReply: Answer::None;
        LoadAlternatePath: Answer::None;
        AlternatePathResponse: Answer::None;
    }
    let reply = |_: &Forger, number| ServiceIdReply { request_id: ids(number).0, ..Default::default() }.into();
    examiner.sweep("SIDR_REP", MAD_HEADER_BYTES..256, reply, |_, _| Answer::None);
    examiner.finish();
}

/// Returns the response to a REQ of which one byte of the header is changed.
fn answer_to_header(at: usize, _: u8) -> Answer {
    match at {
        // Status, reserved fields, transaction id, modifier.
        4..16 | 18..24 => Answer::Taken,
        _ => Answer::None,
    }
}

fn headers() {
    let mut examiner = Examiner::new();
    let request = |forger: &Forger, number| Message::from(forger.request(number, REJECT));
    examiner.sweep("MAD header", 0..8, request, answer_to_header);
    examiner.sweep("MAD header", 18..24, request, answer_to_header);
    kinds(&mut examiner);
    let reasons = ["drop_bad_pkey", "drop_bad_qkey", "drop_bad_icrc", "drop_bad_version"];
    let before = reasons.map(|name| examiner.victim.counter(name));
    transport_headers(&mut examiner);
    examiner.settle();
    let after = reasons.map(|name| examiner.victim.counter(name));
    let counts: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    assert_eq!(counts, [15, 32, 32, 4], "{reasons:?}");
    examiner.finish();
}

/// Sends every method, class and attribute: queries of other protocols have a response, subnet management and responses
/// have none.
fn kinds(examiner: &mut Examiner) {
    let (class, method, attribute) = (1, 3, 17);
    for value in 0..=255_u8 {
        for (at, of) in [
            (method, Method::SEND),
            (class, Method::SEND),
            (attribute, Method::SEND),
            (class, Method::GET),
            (attribute, Method::GET),
            (class, Method::GET_RESPONSE),
            (attribute, Method::GET_RESPONSE),
        ] {
            let number = examiner.number();
            let request = Message::from(examiner.forger.request(number, REJECT));
            let mut bytes = Mad { method: of, ..request.to_mad(number.into()) }.write();
            bytes[at] = value;
            let (name, expected) = (format!("byte {at} is {value:#04x}, {of}"), answer_to_kind(&bytes));
            let bytes = examiner.sealed(&bytes);
            examiner.send(Case { name, bytes, expected });
        }
    }
}

/// Returns the response to a REQ with another class, method or attribute.
fn answer_to_kind(bytes: &[u8; 256]) -> Answer {
    let (class, method, attribute) = (bytes[1], bytes[3], bytes[17]);
    match (class, method, attribute) {
        (7, 3, 0x10) => Answer::Taken,
        (7, 3, 0x15) => Answer::Disconnected,
        // The port of the service is that of a listener for connections.
        (7, 3, 0x17) => Answer::Resolved(ServiceIdStatus::REJECTED),
        (1 | 0x81, ..) => Answer::None,
        (7, 1 | 2, 0x10..=0x1a) => Answer::None,
        (_, 1 | 2, _) => Answer::Unsupported,
        _ => Answer::None,
    }
}

/// Every bit of the base transport header and of the datagram header, every opcode, and every bit of the ICRC.
fn transport_headers(examiner: &mut Examiner) {
    let packet = |examiner: &mut Examiner| {
        let number = examiner.number();
        let mad = Message::from(examiner.forger.request(number, REJECT)).to_mad(number.into());
        examiner.sealed(&mad.write())
    };
    for opcode in 0..=255_u8 {
        let mut bytes = packet(examiner);
        bytes[0] = opcode;
        let expected = if opcode == 0x64 { Answer::Taken } else { Answer::None };
        examiner.send(Case { name: format!("opcode {opcode:#04x}"), bytes, expected });
    }
    for bit in 8..TRANSPORT_BYTES * 8 {
        let mut bytes = packet(examiner);
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let expected = match bit / 8 {
            // Solicited event and migration state; then padding and version.
            1 if bit % 8 < 2 => Answer::Taken,
            // The highest bit of the P_Key.
            2 if bit % 8 == 0 => Answer::Taken,
            // Reserved, acknowledge request, PSN, reserved, queue pair of the sender.
            4 | 8..12 | 16..20 => Answer::Taken,
            _ => Answer::None,
        };
        examiner.send(Case { name: format!("bit {bit} of the headers"), bytes, expected });
    }
    for bit in 0..32 {
        let sealed = packet(examiner);
        let transaction = u64::from_be_bytes(sealed[TRANSPORT_BYTES + 8..][..8].try_into().expect("8 bytes"));
        let mut bytes = examiner.forger.packet(examiner.forger.source, &sealed[TRANSPORT_BYTES..]).udp_payload();
        bytes[UDP_PAYLOAD_BYTES - 4 + bit / 8] ^= 1 << (bit % 8);
        examiner.forger.send_unsealed(&bytes);
        examiner.expect(transaction, format!("bit {bit} of the ICRC"), Answer::None);
    }
}

/// Datagrams of all lengths up to 4,096 bytes, and UDP payloads of random bytes.
fn lengths(form: Form) {
    let mut examiner = Examiner::new();
    let mut random = Random::new(0x1e46);
    for length in 0..=4_096 {
        let number = examiner.number();
        let mut datagram =
            Message::from(examiner.forger.request(number, REJECT)).to_mad(number.into()).write().to_vec();
        datagram.resize(length, 0);
        let bytes = examiner.sealed(&datagram);
        examiner.forger.send_sealed(&bytes);
        let expected = if length == 256 { Answer::Taken } else { Answer::None };
        examiner.expect(number.into(), format!("{length} bytes"), expected);
    }
    examiner.settle();
    assert_eq!(examiner.victim.counter("drop_bad_length"), 4_096);
    for _ in 0..form.tries(5_000, 500_000) {
        let number = examiner.number();
        let length = if random.chance(500) { UDP_PAYLOAD_BYTES as u64 } else { random.below(600) };
        let mut bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        let valid = examiner.sealed(&[0; 256]);
        // Half of them are for queue pair 1, with the right key and ICRC.
        match random.chance(500) && bytes.len() >= TRANSPORT_BYTES + 4 {
            true => {
                bytes[..TRANSPORT_BYTES].copy_from_slice(&valid[..TRANSPORT_BYTES]);
                bytes.truncate(bytes.len() - 4);
                examiner.forger.send_sealed(&bytes);
            }
            false => examiner.forger.send_unsealed(&bytes),
        }
        examiner.expect(1 << 62 | u64::from(number), "random bytes".to_owned(), Answer::None);
    }
    examiner.finish();
}

/// IP and UDP headers with wrong lengths, options, fragments and sources; among them the victim's own address.
fn ip_headers() {
    let mut examiner = Examiner::new();
    let number = examiner.number();
    let request = Message::from(examiner.forger.request(number, CLOSED)).to_mad(number.into()).write();
    let disconnect = DisconnectRequest { remote_qpn: Qpn::new(7), ..Default::default() };
    let disconnect = Message::from(disconnect).to_mad(number.into()).write();
    let mut random = Random::new(0x1b);
    let mut taken = 0;
    let query = Mad { method: Method::GET, attribute: Attribute(1), ..Mad::read(&disconnect).expect("256 bytes") };
    for datagram in [request, disconnect, query.write()] {
        let packet = examiner.forger.packet(examiner.forger.source, &datagram);
        let whole = packet.ip_packet(&packet.udp_payload());
        for at in 0..28 {
            for value in [0, 1, 0x7f, 0x80, 0xff, random.number() as u8] {
                // The destination stays; other sources are those of 127.0.0.0/8, and those that the kernel refuses.
                if !(16..20).contains(&at) && !(22..24).contains(&at) {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    taken += u32::from(examiner.forger.send_ip(&bytes));
                }
            }
        }
        let own = examiner.victim.address;
        for source in
            [own, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::LOCALHOST]
        {
            let packet = examiner.forger.packet(source, &datagram);
            taken += u32::from(examiner.forger.send_ip(&packet.ip_packet(&packet.udp_payload())));
        }
    }
    // A response to the victim's own address would have a response again, for ever.
    let seen = examiner.observer.all(LATE);
    println!("{taken} packets with confused headers, {} responses", seen.len());
    assert!(taken > 100 && seen.len() <= taken as usize, "{} responses to {taken} packets", seen.len());
    examiner.client.exchange();
    examiner.finish();
}
