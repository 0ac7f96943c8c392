//! Unreliable datagrams: a message is one packet, from anybody to anybody who knows the Q_Key. Nothing is acknowledged,
//! nothing is repeated, nothing is answered.

use super::datagram::{Datagram, Repeats, Transmit};
use super::endpoint::Pass;
use super::queue_pair::QueuePair;
use super::request_packet::for_each_piece;
use super::violation::local_cause;
use crate::mutation::{Mutation, planted};
use crate::types::{
    AccessFlags, AsyncEvent, Cause, CompletionFlags, CompletionStatus, Counter, Destination, DropReason,
    GlobalRouteHeader, Mtu, Operation, QueuePairState, QueuePairType, RawCompletion, SendFlags, effective_qkey,
};
use crate::wire::{Bth, Deth, Flow, Headers, Opcode, Packet, icrc, packet_bytes};

/// Hop limit that a receiver is told if the socket does not report it.
const USUAL_HOP_LIMIT: u8 = 64;
/// Longest datagram that any port carries.
const LONGEST_DATAGRAM: u32 = Mtu::Mtu4096.bytes();
/// What a completion says of the network header: bit 3 means that a UDP header follows.
const IPV4_HEADER: u8 = 0b1010;
const IPV6_HEADER: u8 = 0b1001;

/// What the ICRC showed of the IPv4 header.
#[derive(Clone, Copy)]
pub(super) struct Identified {
    identification: u16,
    dont_fragment: bool,
}

/// Checks the ICRC. Strangers' identifications are solved for, packet by packet, with either value of "don't fragment":
/// nothing is known of the sender.
pub(super) fn identify(datagram: &Datagram<'_>) -> Result<Identified, DropReason> {
    let flow = Flow { source: datagram.source, destination: datagram.destination, source_port: datagram.source_port };
    let first_identification = datagram.segment_index;
    let options = icrc::Verify { first_identification, solve: true, expected_df: true };
    match icrc::verify(&flow, &options, datagram.payload) {
        icrc::Match::Exact { identification } => Ok(Identified { identification, dont_fragment: true }),
        icrc::Match::Solved { identification, dont_fragment } => Ok(Identified { identification, dont_fragment }),
        icrc::Match::Wrong if planted(Mutation::DatagramIcrcUnchecked) => {
            Ok(Identified { identification: 0, dont_fragment: true })
        }
        icrc::Match::Wrong => Err(DropReason::BadIcrc),
    }
}

impl QueuePair {
    pub(super) fn is_datagram(&self) -> bool {
        self.service == QueuePairType::UnreliableDatagram
    }

    /// A datagram that was sent to this queue pair alone.
    pub(super) fn handle_unreliable_datagram(
        &mut self,
        pass: &Pass<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        if datagram.destination.is_multicast() {
            return Err(DropReason::WrongAddress);
        }
        self.check_datagram(packet)?;
        let identified = identify(datagram)?;
        self.take_datagram(pass, datagram, packet, identified)
    }

    /// A datagram for this queue pair, by itself or by its group, whose ICRC fits.
    pub(super) fn take_datagram(
        &mut self,
        pass: &Pass<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        identified: Identified,
    ) -> Result<(), DropReason> {
        let deth = self.check_datagram(packet)?;
        self.counters.add(Counter::ReceivedPackets, 1);
        self.counters.add(Counter::ReceivedBytes, datagram.payload.len() as u64);
        self.history.note_heard(pass.now, &packet.headers);
        let in_front = if planted(Mutation::RouteHeaderTakesNoRoom) { 0 } else { GlobalRouteHeader::BYTES };
        let needed = (in_front + packet.payload.len()) as u64;
        let (wr_id, index) = self.receive.take_with_room(needed, &mut self.responder.receive_entries)?;
        let mut completion = RawCompletion { wr_id, retired: index.wrapping_add(1), ..RawCompletion::default() };
        if let Err(error) = self.scatter_datagram(pass, &route_header(datagram, identified), packet.payload) {
            completion.status = CompletionStatus::LocalProtectionError;
            completion.cause = local_cause(error);
            self.complete_receive(completion);
            self.events.push(AsyncEvent::QueuePairFatal(self.qpn));
            self.enter_error(Cause::EarlierFailure);
            return Ok(());
        }
        let in_front = if planted(Mutation::RouteHeaderNotCounted) { 0 } else { GlobalRouteHeader::BYTES };
        completion.byte_len = (in_front + packet.payload.len()) as u32;
        completion.source_qpn = if planted(Mutation::DatagramSourceNotTold) { self.qpn } else { deth.source };
        completion.flags = CompletionFlags::GLOBAL_ROUTE_HEADER;
        completion.sl = if datagram.destination.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER };
        if let Some(immediate) = packet.headers.immediate {
            completion.flags |= CompletionFlags::WITH_IMMEDIATE;
            completion.immediate_or_key = immediate;
        }
        self.complete_receive_as(completion, packet.headers.bth.solicited);
        Ok(())
    }

    /// What can be checked without the ICRC.
    fn check_datagram(&self, packet: &Packet<'_>) -> Result<Deth, DropReason> {
        let Some(deth) = packet.headers.deth else { return Err(DropReason::WrongService) };
        if !self.takes_requests() {
            return Err(DropReason::WrongState);
        }
        if packet.headers.bth.pkey & 0x7fff != 0x7fff {
            return Err(DropReason::BadPkey);
        }
        if self.attributes.qkey != Some(deth.qkey) && !planted(Mutation::QkeyUnchecked) {
            return Err(DropReason::BadQkey);
        }
        if packet.payload.len() > LONGEST_DATAGRAM as usize {
            return Err(DropReason::BadLength);
        }
        Ok(deth)
    }

    fn scatter_datagram(
        &self,
        pass: &Pass<'_>,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), crate::memory::AccessError> {
        let entries = &self.responder.receive_entries;
        let domain = self.receive.domain(self.domain);
        let need = AccessFlags::LOCAL_WRITE;
        for_each_piece(entries, 0, header.len(), |sge, addr, range| {
            pass.memory.write(sge.lkey.0, domain, addr, need, &header[range])
        })?;
        if payload.is_empty() {
            return Ok(());
        }
        for_each_piece(entries, header.len() as u64, payload.len(), |sge, addr, range| {
            pass.memory.write(sge.lkey.0, domain, addr, need, &payload[range])
        })
    }

    /// Whether a datagram waits and may leave.
    pub(super) fn may_send_datagram(&self) -> bool {
        self.state == QueuePairState::ReadyToSend && self.send.retired() != self.send.published()
    }

    /// Writes the next datagram. Also says whether there is nothing more to send.
    pub(super) fn fill_datagram(&mut self, pass: &Pass<'_>, buffer: &mut [u8]) -> (Option<Transmit>, bool) {
        if !self.may_send_datagram() {
            return (None, true);
        }
        let index = self.send.retired();
        let Some(destination) = self.send.destination(index) else { return (None, true) };
        let written = self.emit_datagram(pass, index, &destination, buffer);
        let length = match written {
            Ok(length) => length,
            Err((status, cause)) => {
                self.fail_datagram(index, status, cause);
                return (None, true);
            }
        };
        self.counters.add(Counter::SentPackets, 1);
        self.counters.add(Counter::SentBytes, length as u64);
        // It is out of the application's memory, and nobody will ever say what became of it.
        self.complete_send(index, CompletionStatus::Success, Cause::None);
        let transmit = Transmit {
            is_keyed: false,
            source: destination.source,
            source_port: destination.source_port,
            destination: destination.address,
            length,
            segment_size: None,
            traffic_class: destination.traffic_class,
            hop_limit: destination.hop_limit,
            qpn: self.qpn,
            repeats: Repeats::default(),
        };
        (Some(transmit), !self.may_send_datagram())
    }

    /// Writes the packet; its length, or why the request fails.
    fn emit_datagram(
        &mut self,
        pass: &Pass<'_>,
        index: u32,
        destination: &Destination,
        buffer: &mut [u8],
    ) -> Result<usize, (CompletionStatus, Cause)> {
        let headers = self.datagram_headers(index, destination);
        let payload = self.send.header(index).length;
        let size = packet_bytes(headers.bth.opcode, payload);
        if destination.is_too_long || payload > LONGEST_DATAGRAM || size > buffer.len() {
            return Err((CompletionStatus::LocalLengthError, Cause::None));
        }
        let packet = &mut buffer[..size];
        let header_bytes = headers.emit(packet);
        let (payload, room) = (payload as usize, &mut packet[header_bytes..]);
        self.gather(pass.memory, index, 0, &mut room[..payload])
            .map_err(|error| (CompletionStatus::LocalProtectionError, local_cause(error)))?;
        room[payload..payload.next_multiple_of(4)].fill(0);
        let flow =
            Flow { source: destination.source, destination: destination.address, source_port: destination.source_port };
        icrc::append(&flow, 0, packet);
        let next = headers.bth.psn.plus(1);
        self.requester.cursor = next;
        self.requester.limit = next;
        self.requester.unacknowledged = next;
        Ok(size)
    }

    fn datagram_headers(&self, index: u32, destination: &Destination) -> Headers {
        let header = self.send.header(index);
        let (opcode, immediate) = match header.operation {
            Operation::SendWithImmediate(immediate) => (Opcode::UD_SEND_ONLY_IMMEDIATE, Some(immediate)),
            _ => (Opcode::UD_SEND_ONLY, None),
        };
        let bth = Bth {
            solicited: header.flags.contains(SendFlags::SOLICITED),
            destination: destination.qpn,
            psn: self.requester.cursor,
            ..Bth::with_payload(opcode, header.length)
        };
        let qkey = match effective_qkey(destination.qkey, self.attributes.qkey.unwrap_or_default()) {
            _ if planted(Mutation::OwnQkeyNotUsed) => destination.qkey,
            qkey => qkey,
        };
        Headers { bth, deth: Some(Deth { qkey, source: self.qpn }), immediate, ..Headers::default() }
    }

    /// A datagram that could not be sent: it fails, those behind it are flushed, receives go on.
    fn fail_datagram(&mut self, index: u32, status: CompletionStatus, cause: Cause) {
        self.note_failure(index, status, cause);
        self.complete_send(index, status, cause);
        self.enter_send_queue_error();
    }
}

/// The 40 bytes in front of the message. What the socket does not tell is as usual.
fn route_header(datagram: &Datagram<'_>, identified: Identified) -> [u8; GlobalRouteHeader::BYTES] {
    let (source, destination) = match planted(Mutation::RouteHeaderTurned) {
        true => (datagram.destination, datagram.source),
        false => (datagram.source, datagram.destination),
    };
    GlobalRouteHeader {
        source,
        destination,
        traffic_class: datagram.traffic_class.unwrap_or(0),
        flow_label: 0,
        hop_limit: datagram.hop_limit.unwrap_or(USUAL_HOP_LIMIT),
        identification: identified.identification,
        dont_fragment: identified.dont_fragment,
        udp_bytes: (8 + datagram.payload.len()) as u16,
    }
    .to_bytes()
}
