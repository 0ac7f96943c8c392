//! Comments on management datagrams, which are packets to queue pair 1: most of them are messages of the connection
//! manager.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::PacketRecord;
use super::headers::Addressing;
use super::pcapng::Direction;
use crate::types::Qpn;
use crate::wire::mad::{Attribute, Mad, MadError, Message};
use crate::wire::{ICRC_BYTES, Opcode, Packet, packet_bytes};

/// The queue pair of all management datagrams except those of subnet management.
const MANAGEMENT_QPN: Qpn = Qpn::new(1);
/// Number of messages that a capture remembers: a repetition is rarely further away, and a search is short.
const MOST_REMEMBERED: usize = 64;
/// Bytes of a message that hold its communication ids; a REQ and a SIDR_REQ have only one.
const IDS_BYTES: usize = 8;

/// Returns the datagram in a packet, or `None` for all other packets.
pub(super) fn datagram(packet: &[u8]) -> Option<Result<Mad, MadError>> {
    if packet.first() != Some(&Opcode::UD_SEND_ONLY.0) {
        return None;
    }
    let packet = Packet::parse(packet).ok()?;
    (packet.headers.bth.destination == MANAGEMENT_QPN).then(|| Mad::read(packet.payload))
}

/// Returns the packet of a datagram without the secret in it, and with a check field that is as right or as wrong as
/// before; `None` if it has no secret.
pub(super) fn without_secret(packet: &[u8], datagram: &Mad, addressing: &Addressing) -> Option<Vec<u8>> {
    let secret = datagram.secret()?;
    let start = packet_bytes(Opcode::UD_SEND_ONLY, 0) - ICRC_BYTES;
    let mut shown = packet.to_vec();
    shown.get_mut(start + secret.start..start + secret.end)?.fill(0);
    let (covered, field) = packet.split_last_chunk::<ICRC_BYTES>()?;
    let field = u32::from_le_bytes(*field) ^ addressing.icrc(covered) ^ addressing.icrc(&shown[..covered.len()]);
    shown[covered.len()..].copy_from_slice(&field.to_le_bytes());
    Some(shown)
}

/// The parts of a message that its repetitions have as well, and no other message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MessageKey {
    direction: Direction,
    source: IpAddr,
    destination: IpAddr,
    attribute: Attribute,
    transaction_id: u64,
    ids: [u8; IDS_BYTES],
}

impl MessageKey {
    /// Returns the key of a datagram in this packet, or `None` if it is not a message.
    pub(super) fn of(record: &PacketRecord<'_>, mad: &Mad) -> Option<Self> {
        Message::read(mad).ok()?;
        Some(Self {
            direction: record.direction,
            source: record.addressing.source,
            destination: record.addressing.destination,
            attribute: mad.attribute,
            transaction_id: mad.transaction_id,
            ids: *mad.data.first_chunk()?,
        })
    }
}

/// The last messages of a capture.
#[derive(Default)]
pub(super) struct RecentMessages(VecDeque<MessageKey>);

impl RecentMessages {
    /// Remembers the message. Returns whether it is a repetition.
    pub(super) fn remember(&mut self, key: MessageKey) -> bool {
        if self.0.contains(&key) {
            return true;
        }
        if self.0.len() == MOST_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(key);
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::super::tests::{finish, start};
    use super::super::{Arrival, CaptureSink, Departure};
    use super::*;
    use crate::transport::{Datagram, DatagramOutcome, Medium, Repeats, Transmit};
    use crate::types::{DropReason, PeerCapabilities, Qkey};
    use crate::wire::mad::{AlternatePath, CommunicationId, ConnectRequest, LONGEST_SUMMARY, NativeOffer, ReadyToUse};
    use crate::wire::{Bth, Deth, Flow, Headers, icrc};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Returns a packet to this queue pair.
    fn packet(opcode: Opcode, destination: Qpn, payload: &[u8]) -> Vec<u8> {
        let length = payload.len() as u32;
        let bth = Bth { destination, ..Bth::with_payload(opcode, length) };
        let deth = Some(Deth { qkey: Qkey(0x8001_0000), source: MANAGEMENT_QPN });
        let mut packet = vec![0; packet_bytes(opcode, length)];
        let headers = Headers { bth, deth, ..Headers::default() }.emit(&mut packet);
        packet[headers..headers + payload.len()].copy_from_slice(payload);
        packet
    }

    /// Returns a packet with an RTU of a connection with these ids.
    fn ready_to_use(local_id: u32, remote_id: u32) -> Vec<u8> {
        let (local_id, remote_id) = (CommunicationId(local_id), CommunicationId(remote_id));
        let message = Message::from(ReadyToUse { local_id, remote_id, ..ReadyToUse::default() });
        packet(Opcode::UD_SEND_ONLY, MANAGEMENT_QPN, &message.to_mad(9).write())
    }

    fn receive(sink: &CaptureSink, source: IpAddr, payload: &[u8], dropped: Option<DropReason>) {
        let (source_port, segment_index, hop_limit, traffic_class) = (55_410, 0, None, None);
        let datagram = Datagram {
            source,
            destination: HERE,
            source_port,
            segment_index,
            hop_limit,
            traffic_class,
            payload,
            medium: Medium::Network,
        };
        sink.received(
            &datagram,
            &Arrival::now(None, None, false),
            DatagramOutcome { dropped, ..DatagramOutcome::default() },
        );
    }

    fn send(sink: &CaptureSink, bytes: &[u8]) {
        let transmit = Transmit {
            source: HERE,
            source_port: 55_410,
            destination: HERE,
            length: bytes.len(),
            segment_size: None,
            traffic_class: 0,
            hop_limit: 64,
            qpn: MANAGEMENT_QPN,
            repeats: Repeats::default(),
            is_keyed: false,
        };
        sink.sent(0, &transmit, bytes, false, Departure::Whole);
    }

    #[test]
    fn management_datagrams_have_their_contents_as_comments() {
        let (capture, sink) = start("management");
        let ready = ready_to_use(1, 2);
        send(&sink, &ready);
        receive(&sink, HERE, &ready, Some(DropReason::UnknownQueuePair));
        receive(&sink, HERE, &packet(Opcode::UD_SEND_ONLY, MANAGEMENT_QPN, &[0; 199]), None);
        receive(&sink, HERE, &packet(Opcode::UD_SEND_ONLY, MANAGEMENT_QPN, &[0; 256]), None);
        // Other queue pairs, other opcodes and parts of packets are no such datagrams.
        let mad = [1; 256];
        receive(&sink, HERE, &packet(Opcode::UD_SEND_ONLY, Qpn::new(2), &mad), None);
        receive(&sink, HERE, &packet(Opcode::RC_SEND_ONLY, MANAGEMENT_QPN, &mad), None);
        receive(&sink, HERE, &ready[..20], None);
        let (found, _) = finish(&capture);
        let text = "RTU 0x00000001 to 0x00000002: connected";
        let expected = [
            Some(text.to_owned()),
            Some(format!("dropped: unknown QPN; {text}")),
            Some("MAD of 199 bytes (256 are allowed)".to_owned()),
            Some("MAD of class 0x00, method 0x00, attribute 0x0000, base version 0 (1 is allowed)".to_owned()),
            None,
            None,
            None,
        ];
        let comments: Vec<_> = found.packets.into_iter().map(|packet| packet.comment).collect();
        assert_eq!(comments, expected);
    }

    /// A reader of the capture cannot forge packets of the connection.
    #[test]
    fn a_capture_has_no_key_share() {
        let share = *b"sixteen secrets.";
        let capabilities = PeerCapabilities::STANDARD.version(1);
        let offered = AlternatePath::of_offer(&NativeOffer::new(share, capabilities));
        let ports = [55_410, 50_000];
        let (capture, sink) = start("offer");
        let packets = [offered, AlternatePath::default()].map(|alternate_path| {
            let message = Message::from(ConnectRequest { alternate_path, ..ConnectRequest::default() });
            packet(Opcode::UD_SEND_ONLY, MANAGEMENT_QPN, &message.to_mad(9).write())
        });
        for (mut packet, damage) in packets.into_iter().cycle().zip([0, 0, 1]) {
            let flow = Flow { source: HERE, destination: HERE, source_port: ports[0] };
            icrc::append(&flow, 0, &mut packet);
            *packet.last_mut().unwrap() ^= damage;
            send(&sink, &packet);
            receive(&sink, HERE, &packet, None);
        }
        let (found, _) = finish(&capture);
        let flow = Flow { source: HERE, destination: HERE, source_port: ports[0] };
        let shown = found.packets.iter().map(|packet| {
            let payload = &packet.bytes[28..];
            let (covered, field) = payload.split_last_chunk::<ICRC_BYTES>().unwrap();
            let has_share = payload.windows(share.len()).any(|bytes| bytes == share);
            let is_marked = packet.comment.as_ref().unwrap().contains("key share withheld");
            (has_share, is_marked, icrc::compute(&flow, 0, true, covered) == u32::from_le_bytes(*field))
        });
        let [with, without, damaged] = [(false, true, true), (false, false, true), (false, true, false)];
        assert_eq!(shown.collect::<Vec<_>>(), [with, with, without, without, damaged, damaged]);
    }

    #[test]
    fn repeated_messages_are_marked() {
        let (capture, sink) = start("repeated");
        let peers: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let (one, other) = (ready_to_use(1, 2), ready_to_use(1, 3));
        send(&sink, &one);
        // The same datagram arrives at its own sender, and from other hosts; only the last one repeats another.
        for (peer, packet) in [(HERE, &one), (peers[0], &one), (peers[1], &one), (peers[1], &other), (peers[0], &one)] {
            receive(&sink, peer, packet, None);
        }
        let no_message = packet(Opcode::UD_SEND_ONLY, MANAGEMENT_QPN, &[0; 256]);
        receive(&sink, HERE, &no_message, None);
        receive(&sink, HERE, &no_message, None);
        let (found, _) = finish(&capture);
        let marked = found.packets.iter().map(|packet| packet.comment.as_ref().unwrap().ends_with("; again"));
        assert_eq!(marked.collect::<Vec<_>>(), [false, false, false, false, false, true, false, false]);
    }

    #[test]
    fn a_bounded_number_of_messages_is_remembered() {
        let mut recent = RecentMessages::default();
        let key = |transaction_id| MessageKey {
            direction: Direction::Inbound,
            source: HERE,
            destination: HERE,
            attribute: Attribute::CONNECT_REQUEST,
            transaction_id,
            ids: [0; IDS_BYTES],
        };
        for number in 0..MOST_REMEMBERED as u64 + 1 {
            assert!(!recent.remember(key(number)));
        }
        assert_eq!(recent.0.len(), MOST_REMEMBERED);
        assert!(recent.remember(key(1)) && !recent.remember(key(0)));
    }

    proptest! {
        /// Any payload of a packet to queue pair 1, and any part of such a packet.
        #[test]
        fn any_datagram_has_a_bounded_printable_comment(
            payload in prop_oneof![
                proptest::collection::vec(any::<u8>(), 256),
                proptest::collection::vec(any::<u8>(), 0..300),
            ],
            cut in 0_usize..40,
        ) {
            let mut packet = packet(Opcode::UD_SEND_ONLY, MANAGEMENT_QPN, &payload);
            let read = datagram(&packet).expect("a datagram");
            let comment = read.map_or_else(|error| error.to_string(), |mad| mad.to_string());
            prop_assert!(comment.len() <= LONGEST_SUMMARY && !comment.chars().any(char::is_control));
            packet.truncate(packet.len() - ICRC_BYTES - cut.min(payload.len()));
            datagram(&packet);
        }
    }
}
