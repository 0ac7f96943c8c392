//! Unreliable datagrams, as they are sent: a message is one packet, and it is complete when it has left.

use super::common::Pass;
use super::datagram::{LONGEST_DATAGRAM, Repeats, Transmit};
use super::queue_pair::QueuePair;
use super::violation::local_cause;
use crate::mutation::{Mutation, planted};
use crate::types::{
    Cause, CompletionStatus, Counter, Destination, Operation, QueuePairState, SendFlags, effective_qkey,
};
use crate::wire::{Bth, Deth, Flow, Headers, Opcode, icrc, packet_bytes};

impl QueuePair {
    /// Whether a datagram waits and may leave.
    pub(super) fn may_send_datagram(&self) -> bool {
        self.common.state == QueuePairState::ReadyToSend && self.send.retired() != self.send.published()
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
        self.common.counters.add(Counter::SentPackets, 1);
        self.common.counters.add(Counter::SentBytes, length as u64);
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
            qpn: self.common.qpn,
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
        let qkey = match effective_qkey(destination.qkey, self.common.attributes.qkey.unwrap_or_default()) {
            _ if planted(Mutation::OwnQkeyNotUsed) => destination.qkey,
            qkey => qkey,
        };
        Headers { bth, deth: Some(Deth { qkey, source: self.common.qpn }), immediate, ..Headers::default() }
    }

    /// A datagram that could not be sent: it fails, those behind it are flushed, receives go on.
    fn fail_datagram(&mut self, index: u32, status: CompletionStatus, cause: Cause) {
        self.note_failure(index, status, cause);
        self.complete_send(index, status, cause);
        self.enter_send_queue_error();
    }
}
