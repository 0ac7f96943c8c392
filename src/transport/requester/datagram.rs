//! Unreliable datagrams, as they are sent: a message is one packet, and it is complete when it has left.

use super::{Common, Pass, RequestFailure, Requester};
use crate::mutation::{Mutation, planted};
use crate::transport::datagram::{LONGEST_DATAGRAM, Repeats, Transmit};
use crate::types::{
    Cause, CompletionStatus, Counter, Destination, Operation, QueuePairState, SendFlags, effective_qkey,
};
use crate::wire::{Bth, Deth, Flow, Headers, Opcode, icrc, packet_bytes};

impl Requester {
    /// Whether a datagram waits and may leave.
    pub(in crate::transport) fn may_send_datagram(&self, common: &Common) -> bool {
        common.state == QueuePairState::ReadyToSend && self.send.retired() != self.send.published()
    }

    /// Writes the next datagram, and completes its request. An error: it cannot be sent.
    pub(in crate::transport) fn emit_datagram(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        buffer: &mut [u8],
    ) -> Result<Option<Transmit>, RequestFailure> {
        if !self.may_send_datagram(common) {
            return Ok(None);
        }
        let index = self.send.retired();
        let Some(destination) = self.send.destination(index) else { return Ok(None) };
        let length = self.write_datagram(common, pass, index, &destination, buffer)?;
        common.counters.add(Counter::SentPackets, 1);
        common.counters.add(Counter::SentBytes, length as u64);
        // It is out of the application's memory, and no response will ever say what became of it.
        self.complete(common, index, CompletionStatus::Success, Cause::None);
        Ok(Some(Transmit {
            is_keyed: false,
            source: destination.source,
            source_port: destination.source_port,
            destination: destination.address,
            length,
            segment_size: None,
            traffic_class: destination.traffic_class,
            hop_limit: destination.hop_limit,
            qpn: common.qpn,
            repeats: Repeats::default(),
        }))
    }

    /// The datagram that leaves next cannot be sent: its request fails.
    pub(in crate::transport) fn fail_datagram(&mut self, common: &mut Common, failure: RequestFailure) {
        self.fail(common, self.send.retired(), failure);
    }

    /// Writes the packet; its length, or why the request fails.
    fn write_datagram(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        index: u32,
        destination: &Destination,
        buffer: &mut [u8],
    ) -> Result<usize, RequestFailure> {
        let headers = self.datagram_headers(common, index, destination);
        let payload = self.send.header(index).length;
        let size = packet_bytes(headers.bth.opcode, payload);
        if destination.is_too_long || payload > LONGEST_DATAGRAM || size > buffer.len() {
            return Err(RequestFailure::new(CompletionStatus::LocalLengthError, Cause::None));
        }
        let packet = &mut buffer[..size];
        let header_bytes = headers.emit(packet);
        let (payload, room) = (payload as usize, &mut packet[header_bytes..]);
        self.gather(common, pass.memory, index, 0, &mut room[..payload])?;
        room[payload..payload.next_multiple_of(4)].fill(0);
        let flow =
            Flow { source: destination.source, destination: destination.address, source_port: destination.source_port };
        icrc::append(&flow, 0, packet);
        let next = headers.bth.psn.plus(1);
        self.cursor = next;
        self.limit = next;
        self.unacknowledged = next;
        Ok(size)
    }

    fn datagram_headers(&self, common: &Common, index: u32, destination: &Destination) -> Headers {
        let header = self.send.header(index);
        let (opcode, immediate) = match header.operation {
            Operation::SendWithImmediate(immediate) => (Opcode::UD_SEND_ONLY_IMMEDIATE, Some(immediate)),
            _ => (Opcode::UD_SEND_ONLY, None),
        };
        let bth = Bth {
            solicited: header.flags.contains(SendFlags::SOLICITED),
            destination: destination.qpn,
            psn: self.cursor,
            ..Bth::with_payload(opcode, header.length)
        };
        let qkey = match effective_qkey(destination.qkey, common.attributes.qkey.unwrap_or_default()) {
            _ if planted(Mutation::OwnQkeyNotUsed) => destination.qkey,
            qkey => qkey,
        };
        Headers { bth, deth: Some(Deth { qkey, source: common.qpn }), immediate, ..Headers::default() }
    }
}
