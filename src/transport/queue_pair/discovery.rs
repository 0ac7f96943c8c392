//! The effects of the discovery of its peer on a queue pair ([`crate::transport::discovery`]).

use std::net::IpAddr;

use super::QueuePair;
use super::transmit_path::Filled;
use crate::checksum::Sum;
use crate::memory::AccessError;
use crate::transport::burst::{Burst, BurstSink, BurstWriter, Envelope, PayloadSource, Sending};
use crate::transport::congestion::CongestionFactory;
use crate::transport::discovery::{Discovery, Finding};
use crate::transport::management::{MANAGEMENT_QKEY, MANAGEMENT_QPN};
use crate::transport::marks::without_ecn;
use crate::transport::packet_check::Departing;
use crate::transport::path::Acquaintance;
use crate::types::modify::merge;
use crate::types::{Counter, DropReason, PeerCapabilities, PeerKey, Psn, QueuePairAttributes, QueuePairState, Time};
use crate::wire::icrc::Seed;
use crate::wire::mad::{Discovery as Message, DiscoveryContent, MAD_BYTES};
use crate::wire::{Bth, Deth, Headers, Opcode};

impl QueuePair {
    /// Begins to ask the peer. Returns false if there is no connection, or the peer is known already.
    pub(in crate::transport) fn discover(&mut self, discovery: Discovery) -> bool {
        let is_known = self.common.is_peer_native() || self.packet_check.has_key();
        let is_possible = self.common.takes_requests() && self.common.path.is_some() && !is_known;
        if is_possible {
            self.discovery = Some(Box::new(discovery));
        }
        is_possible
    }

    /// Handles a message about its connection. `may_answer` decides whether the endpoint may send one more answer.
    /// Returns whether the peer is known better now.
    pub(in crate::transport) fn take_discovery(
        &mut self,
        now: Time,
        (source, destination): (IpAddr, IpAddr),
        message: &Message,
        congestion: Option<&dyn CongestionFactory>,
        may_answer: impl FnOnce() -> bool,
    ) -> Result<bool, DropReason> {
        // A refusal names the queue pairs as the question did.
        let peer = if let DiscoveryContent::Refusal(_) = message.content { message.receiver } else { message.sender };
        if !self.common.takes_requests() {
            return Err(DropReason::WrongState);
        }
        if !self.common.is_from_peer(source, destination) || peer != self.common.destination() {
            return Err(DropReason::WrongAddress);
        }
        let Some(discovery) = &mut self.discovery else { return Err(DropReason::Unexpected) };
        let finding = match &message.content {
            DiscoveryContent::Question if discovery.take_question(now, message.nonce, may_answer) => return Ok(false),
            DiscoveryContent::Question => return Err(DropReason::Unexpected),
            DiscoveryContent::Refusal(_) if discovery.take_refusal(message.nonce) => return Ok(false),
            DiscoveryContent::Refusal(_) => return Err(DropReason::Unexpected),
            DiscoveryContent::Answer(answer) => {
                discovery.take_answer(now, message.nonce, answer, self.common.qpn, peer)
            }
        };
        let Finding { capabilities, is_first, key } = finding.ok_or(DropReason::Unexpected)?;
        if is_first {
            self.learn_peer(capabilities, congestion);
        }
        if let Some(key) = key {
            self.confirm_peer(capabilities, &key);
        }
        Ok(is_first || key.is_some())
    }

    /// Takes packets of a native peer from now on. Bursts to it wait until it is confirmed.
    fn learn_peer(&mut self, capabilities: PeerCapabilities, congestion: Option<&dyn CongestionFactory>) {
        let peer = PeerCapabilities { segmentation_offload: false, ..capabilities };
        let given = QueuePairAttributes { peer: Some(peer), ..QueuePairAttributes::default() };
        merge(&mut self.common.attributes, &given);
        if let Some(path) = &mut self.common.path {
            path.acquaintance = Acquaintance::Discovered;
        }
        self.common.log_discovery();
        self.note_path(&given, congestion);
        let max_dest_rd_atomic = self.common.attributes.max_dest_rd_atomic.unwrap_or(0);
        self.responder.make_room(max_dest_rd_atomic, self.common.read_record_factor());
    }

    /// Sends bursts, and offers the key: the peer expects both.
    fn confirm_peer(&mut self, capabilities: PeerCapabilities, key: &PeerKey) {
        self.common.count(Counter::DiscoveredPeers);
        let port = self.discovery.as_ref().and_then(|discovery| discovery.segmenting_port());
        let (own, attributes) = (self.common.qpn, &mut self.common.attributes);
        let Some(path) = &mut self.common.path else { return };
        if let Some(port) = port.filter(|_| capabilities.segmentation_offload) {
            path.peer.segmentation_offload = true;
            path.source.source_port = port;
            path.seed = Seed::new(&path.flow());
            attributes.peer = Some(path.peer);
        }
        let peer = path.destination;
        self.packet_check.start_receiving(key, own, peer, attributes.rq_psn.unwrap_or_default());
        match attributes.sq_psn {
            Some(first) if self.common.state != QueuePairState::ReadyToReceive => {
                self.packet_check.start_sending(key, own, peer, first);
            }
            _ => attributes.peer_key = Some(*key),
        }
    }

    /// Whether a question or an answer waits to be sent.
    #[inline]
    pub(super) fn owes_discovery(&self) -> bool {
        self.discovery.as_ref().is_some_and(|discovery| discovery.has_output())
    }

    /// Writes the next question or answer to the sink.
    #[cold]
    pub(super) fn fill_discovery<S: BurstSink>(&mut self, now: Time, sink: &mut S, mut envelope: Envelope) -> Filled {
        let (own, peer) = (self.common.qpn, self.common.destination());
        let polled = self.discovery.as_mut().and_then(|discovery| discovery.poll(now, own, peer));
        let Some((message, number)) = polled else { return Filled::new(false, false) };
        envelope.traffic_class = without_ecn(envelope.traffic_class);
        (envelope.segmentation_offload, envelope.check) = (false, Departing::Icrc);
        envelope.destination = MANAGEMENT_QPN;
        let bth = Bth {
            destination: MANAGEMENT_QPN,
            psn: Psn::new(number & 0xff_ffff),
            ..Bth::with_payload(Opcode::UD_SEND_ONLY, MAD_BYTES as u32)
        };
        let deth = Deth { qkey: MANAGEMENT_QKEY, source: MANAGEMENT_QPN };
        let mut headers = Headers { bth, deth: Some(deth), ..Headers::default() };
        let payload = MessageBytes(message.to_mad().write());
        let Some(mut writer) = sink.open(&envelope) else { return Filled::STALLED };
        let mut burst = Burst::single(&mut headers, MAD_BYTES as u32, payload, Sending::First);
        if writer.add(&mut burst).is_ok() {
            let is_question = message.content == DiscoveryContent::Question;
            self.common.counters.add(Counter::DiscoveryQuestions, is_question.into());
        }
        Filled::new(self.finish(writer), false)
    }
}

/// The bytes of a datagram, as the payload of its packet.
struct MessageBytes([u8; MAD_BYTES]);

impl PayloadSource for MessageBytes {
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        out.copy_from_slice(&self.0);
        Ok(None)
    }
}
