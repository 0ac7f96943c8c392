//! Management datagrams: all go to queue pair 1, so their contents determine the shard that they belong to.
//!
//! A communication id begins with the block of the shard that has drawn it. A message with the receiver's id therefore
//! finds its shard as a packet finds its queue pair. A request names a service; the table of ports has the block of its
//! listener. A datagram of the discovery names a queue pair. Everything else is for any shard of the address.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use super::ports::{self, Listening};
use crate::transport::MANAGEMENT_QPN;
use crate::wire::mad::{Attribute, Discovery, ManagementClass, Method, RejectReason, ServiceId};

/// Offsets in a packet, which begins with the base transport header (12 bytes) and the datagram header (8 bytes).
pub(super) const DESTINATION_OFFSET: usize = 4;
const MAD_OFFSET: usize = 20;
const CLASS_OFFSET: usize = 21;
pub(super) const ATTRIBUTE_OFFSET: usize = 36;
/// The id in a SIDR_REP.
pub(super) const FIRST_ID_OFFSET: usize = 44;
/// The receiver's id in all messages that have one but SIDR_REP.
pub(super) const SECOND_ID_OFFSET: usize = 48;
/// The service id of a REQ or SIDR_REQ.
pub(super) const SERVICE_OFFSET: usize = 52;
/// The GUID of the sender of a REQ.
const REQUEST_GUID_OFFSET: usize = 60;
/// The reason of a REJ, and the additional information behind it: the sender's GUID if it gives up its REQ.
const REASON_OFFSET: usize = 54;
const INFORMATION_OFFSET: usize = 56;
/// The receiver's queue pair in a datagram of the discovery, and the sender's.
pub(super) const RECEIVER_OFFSET: usize = MAD_OFFSET + Discovery::RECEIVER_OFFSET;
const SENDER_OFFSET: usize = MAD_OFFSET + Discovery::SENDER_OFFSET;
/// Method and status of a datagram.
const METHOD_OFFSET: usize = MAD_OFFSET + 3;
const STATUS_OFFSET: usize = MAD_OFFSET + 4;
/// Bits of a communication id below the block.
pub(super) const ID_BITS: u32 = 20;

/// Maximum number of requests whose shard is remembered.
const MOST_ROUTES: usize = 1_024;

/// The shard that a management datagram belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Addressee {
    /// The shard with this block, if one has it. Packets are steered to it.
    Block(u16),
    /// The shard with this block, because it has the listener. Packets are not steered to it.
    Listener(u16),
    /// The shard with this block, whose question is refused: the refusal is the question with another method. Packets
    /// are not steered to it.
    Asker(u16),
    /// The shard with this block, because it has the listener. It is not one of those known.
    Elsewhere(u16),
    /// Any shard of the address.
    Any,
}

/// Returns the shard that a packet to queue pair 1 belongs to; `None` for a packet to another queue pair. A listener's
/// shard must be one of those known: a listener on all addresses has a shard at each.
pub(super) fn addressee(packet: &[u8], destination: IpAddr, is_known: impl Fn(u16) -> bool) -> Option<Addressee> {
    if word(packet, DESTINATION_OFFSET)? & 0xff_ffff != MANAGEMENT_QPN.value() {
        return None;
    }
    let class = packet.get(CLASS_OFFSET).map(|class| ManagementClass(*class));
    let addressee = match class {
        Some(ManagementClass::COMMUNICATION_MANAGEMENT) => addressee_of_message(packet, destination, is_known),
        Some(ManagementClass::DISCOVERY) => addressee_of_discovery(packet),
        _ => None,
    };
    Some(addressee.unwrap_or(Addressee::Any))
}

fn addressee_of_message(packet: &[u8], destination: IpAddr, is_known: impl Fn(u16) -> bool) -> Option<Addressee> {
    let id = match Attribute((word(packet, ATTRIBUTE_OFFSET)? >> 16) as u16) {
        Attribute::CONNECT_REQUEST | Attribute::SERVICE_ID_REQUEST => {
            let (high, low) = (word(packet, SERVICE_OFFSET)?, word(packet, SERVICE_OFFSET + 4)?);
            let (space, port) = ServiceId(u64::from(high) << 32 | u64::from(low)).port()?;
            return match ports::listener(space, port, destination, is_known) {
                Listening::At(block) => Some(Addressee::Listener(block)),
                Listening::Elsewhere(block) => Some(Addressee::Elsewhere(block)),
                Listening::Nowhere => None,
            };
        }
        Attribute::SERVICE_ID_REPLY => word(packet, FIRST_ID_OFFSET)?,
        _ => word(packet, SECOND_ID_OFFSET)?,
    };
    Some(Addressee::Block((id >> ID_BITS) as u16))
}

/// Returns the shard whose queue pair a datagram of the discovery is for.
fn addressee_of_discovery(packet: &[u8]) -> Option<Addressee> {
    if half(packet, ATTRIBUTE_OFFSET)? != Attribute::DISCOVERY.0 {
        return None;
    }
    let block = |offset: usize| word(packet, offset).map(|number| ((number & 0xff_ffff) >> 12) as u16);
    let is_response = packet.get(METHOD_OFFSET) == Some(&Method::GET_RESPONSE.0);
    if is_response && half(packet, STATUS_OFFSET)? != 0 {
        return block(SENDER_OFFSET).map(Addressee::Asker);
    }
    block(RECEIVER_OFFSET).map(Addressee::Block)
}

/// The numbers of a REQ that identify it: its sender's GUID and communication id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RequestKey(u64, u32);

/// Returns the key of a REQ, or of the REQ that a REJ gives up, if its sender has had no response: the REJ then has no
/// communication id of the receiver.
pub(super) fn request_key(packet: &[u8]) -> Option<RequestKey> {
    let offset = match Attribute(half(packet, ATTRIBUTE_OFFSET)?) {
        Attribute::CONNECT_REQUEST => REQUEST_GUID_OFFSET,
        Attribute::REJECT
            if word(packet, SECOND_ID_OFFSET)? == 0 && half(packet, REASON_OFFSET)? == RejectReason::TIMEOUT.0 =>
        {
            INFORMATION_OFFSET
        }
        _ => return None,
    };
    let guid = u64::from(word(packet, offset)?) << 32 | u64::from(word(packet, offset + 4)?);
    Some(RequestKey(guid, word(packet, FIRST_ID_OFFSET)?))
}

/// Returns whether a message whose shard is not known is for all shards of its address: a REJ that gives up a REQ has
/// no id of the receiver, and a DREP may be for the process that ends the connection of a dead one. A process that does
/// not know the connection drops the message.
pub(super) fn is_for_all(packet: &[u8]) -> bool {
    let attribute = word(packet, ATTRIBUTE_OFFSET).map(|word| Attribute((word >> 16) as u16));
    match attribute {
        Some(Attribute::REJECT) => request_key(packet).is_some(),
        attribute => attribute == Some(Attribute::DISCONNECT_REPLY),
    }
}

/// The shards that forwarded requests went to: repetitions follow them, even if the listener is gone, and so does the
/// message that gives a request up. The oldest are forgotten first.
#[derive(Default)]
pub(super) struct RequestRoutes {
    blocks: BTreeMap<RequestKey, u16>,
    order: VecDeque<RequestKey>,
}

impl RequestRoutes {
    pub(super) fn get(&self, key: RequestKey) -> Option<u16> {
        self.blocks.get(&key).copied()
    }

    pub(super) fn note(&mut self, key: RequestKey, block: u16) {
        if self.blocks.insert(key, block).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > MOST_ROUTES
            && let Some(oldest) = self.order.pop_front()
        {
            self.blocks.remove(&oldest);
        }
    }
}

fn half(packet: &[u8], offset: usize) -> Option<u16> {
    packet.get(offset..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn word(packet: &[u8], offset: usize) -> Option<u32> {
    packet.get(offset..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::Qpn;
    use crate::wire::mad::{
        AdditionalInformation, CommunicationId, ConnectRequest, DisconnectReply, DisconnectRequest, DiscoveryContent,
        Mad, Message, PortSpace, Reject, ServiceIdReply,
    };
    use crate::wire::{Bth, Deth, Headers, Opcode};

    fn packet(message: Message) -> Vec<u8> {
        packet_of(&message.to_mad(7))
    }

    fn packet_of(mad: &Mad) -> Vec<u8> {
        let bth = Bth { destination: MANAGEMENT_QPN, ..Bth::with_payload(Opcode::UD_SEND_ONLY, 256) };
        let mut bytes = vec![0; 20];
        Headers { bth, deth: Some(Deth::default()), ..Headers::default() }.emit(&mut bytes);
        bytes.extend(mad.write());
        bytes.extend([0; 4]);
        bytes
    }

    fn of(packet: &[u8]) -> Option<Addressee> {
        addressee(packet, "127.77.9.9".parse().unwrap(), |_| true)
    }

    #[test]
    fn messages_with_the_receivers_id_are_its_shards() {
        let remote_id = CommunicationId(0xabc1_2345);
        let ids = DisconnectRequest { local_id: CommunicationId(7), remote_id, ..Default::default() };
        assert_eq!(of(&packet(ids.into())), Some(Addressee::Block(0xabc)));
        let reply = ServiceIdReply { request_id: remote_id, ..Default::default() };
        assert_eq!(of(&packet(reply.into())), Some(Addressee::Block(0xabc)));
    }

    #[test]
    fn requests_without_a_listener_and_other_classes_are_for_all() {
        let service_id = ServiceId::of_port(PortSpace::Tcp, 9);
        let request = packet(ConnectRequest { service_id, ..Default::default() }.into());
        assert_eq!(of(&request), Some(Addressee::Any));
        let mut other = request.clone();
        other[CLASS_OFFSET] = 3;
        assert_eq!(of(&other), Some(Addressee::Any));
        for length in 0..request.len() {
            let expected = if length < 8 { None } else { Some(Addressee::Any) };
            assert_eq!(of(&request[..length]), expected, "{length} bytes");
        }
    }

    #[test]
    fn the_discovery_goes_to_the_queue_pair_that_it_is_about() {
        let (receiver, sender) = (Qpn::new(0xab_c123), Qpn::new(0x12_3456));
        let question = Discovery { nonce: 7, receiver, sender, content: DiscoveryContent::Question }.to_mad();
        assert_eq!(of(&packet_of(&question)), Some(Addressee::Block(0xabc)));
        let answer = Mad { method: Method::GET_RESPONSE, ..question };
        assert_eq!(of(&packet_of(&answer)), Some(Addressee::Block(0xabc)));
        assert_eq!(of(&packet_of(&question.unsupported_response().unwrap())), Some(Addressee::Asker(0x123)));
        assert_eq!(of(&packet_of(&Mad { attribute: Attribute(7), ..question })), Some(Addressee::Any));
        let whole = packet_of(&question);
        assert!((0..whole.len()).all(|length| of(&whole[..length]).is_none_or(|found| match found {
            Addressee::Any => length < 64,
            found => length >= 64 && found == Addressee::Block(0xabc),
        })));
    }

    #[test]
    fn packets_to_other_queue_pairs_are_none() {
        let bth = Bth { destination: Qpn::new(2), ..Bth::with_payload(Opcode::UD_SEND_ONLY, 256) };
        let mut bytes = vec![0; 300];
        Headers { bth, deth: Some(Deth::default()), ..Headers::default() }.emit(&mut bytes);
        assert_eq!(of(&bytes), None);
    }

    #[test]
    fn a_rejection_by_guid_has_the_key_of_its_request() {
        let (local_id, guid) = (CommunicationId(0x4c99_6d6b), 0x5054_00ff_fe00_000b);
        let request = ConnectRequest { local_id, local_guid: guid, ..Default::default() };
        let key = request_key(&packet(request.into()));
        assert_eq!(key, Some(RequestKey(guid, 0x4c99_6d6b)));
        let information = AdditionalInformation::new(&guid.to_be_bytes()).unwrap();
        let gives_up = Reject { local_id, reason: RejectReason::TIMEOUT, information, ..Default::default() };
        assert_eq!(request_key(&packet(gives_up.into())), key);
        let other = Reject { reason: RejectReason::CONSUMER, ..gives_up };
        assert_eq!(request_key(&packet(other.into())), None);
        let with_id = Reject { remote_id: CommunicationId(7), ..gives_up };
        assert_eq!(request_key(&packet(with_id.into())), None);
        let disconnect = DisconnectReply { local_id, remote_id: CommunicationId(7), ..Default::default() };
        let for_all = [packet(gives_up.into()), packet(disconnect.into())];
        assert!(for_all.iter().all(|packet| is_for_all(packet)));
        let others = [packet(request.into()), packet(other.into()), packet(with_id.into()), vec![0; 38]];
        assert!(!others.iter().any(|packet| is_for_all(packet)));
    }

    #[test]
    fn remembered_requests_are_bounded() {
        let mut routes = RequestRoutes::default();
        for number in 0..MOST_ROUTES as u32 + 1 {
            routes.note(RequestKey(7, number), 5);
        }
        routes.note(RequestKey(7, 1), 6);
        assert_eq!([0, 1, 2].map(|number| routes.get(RequestKey(7, number))), [None, Some(6), Some(5)]);
        assert_eq!((routes.blocks.len(), routes.order.len()), (MOST_ROUTES, MOST_ROUTES));
    }
}
