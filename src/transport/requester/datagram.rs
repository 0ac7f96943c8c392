//! Sending of unreliable datagrams: a message is one packet, and it is complete when it has left (IBTA 9.8).

use super::{Common, Pass, RequestFailure, Requester};
use crate::transport::burst::{Burst, BurstWriter, Envelope, Sending};
use crate::transport::datagram::LONGEST_DATAGRAM;
use crate::transport::marks::without_ecn;
use crate::transport::packet_check::Departing;
use crate::transport::window_share::WindowShare;
use crate::types::{
    Cause, CompletionStatus, Destination, Operation, Qpn, QueuePairState, SendFlags, Time, effective_qkey,
};
use crate::wire::icrc::Seed;
use crate::wire::{Bth, Deth, Flow, Headers, Opcode};

/// A datagram that may leave: its request and its destination.
pub(in crate::transport) struct DatagramRequest {
    index: u32,
    destination: Destination,
}

impl DatagramRequest {
    /// Returns the envelope of its only packet.
    pub(in crate::transport) fn envelope(&self, qpn: Qpn) -> Envelope {
        let Destination { source, source_port, address, traffic_class, hop_limit, qpn: destination, .. } =
            self.destination;
        let flow = Flow { source, destination: address, source_port };
        Envelope {
            flow,
            traffic_class: without_ecn(traffic_class),
            hop_limit,
            qpn,
            destination,
            segmentation_offload: false,
            seed: Seed::new(&flow),
            flushes_as_linux: false,
            check: Departing::Icrc,
        }
    }
}

impl Requester {
    /// Returns whether a datagram waits and may leave.
    pub(in crate::transport) fn may_send_datagram(&self, common: &Common) -> bool {
        common.state == QueuePairState::ReadyToSend
            && self.send.retired() != self.send.published()
            && self.pace.is_free()
    }

    /// Returns the datagram that leaves next, if one may.
    pub(in crate::transport) fn next_datagram(&self, common: &Common) -> Option<DatagramRequest> {
        if !self.may_send_datagram(common) {
            return None;
        }
        let index = self.send.retired();
        Some(DatagramRequest { index, destination: self.send.destination(index)? })
    }

    /// Returns the destination of the datagram that leaves next.
    pub(in crate::transport) fn next_destination(&self, common: &Common) -> Option<Destination> {
        self.next_datagram(common).map(|request| request.destination)
    }

    /// Returns whether the datagram that leaves next, and all behind it, waits for the pace of its path or for the
    /// queue pair's own rate.
    #[inline]
    pub(in crate::transport) fn holds_datagram_back(
        &mut self,
        qpn: Qpn,
        path: Option<&WindowShare>,
        now: Time,
    ) -> bool {
        (path.is_some() || self.limiter.is_some()) && self.hold_datagram_back(qpn, path, now)
    }

    #[cold]
    fn hold_datagram_back(&mut self, qpn: Qpn, path: Option<&WindowShare>, now: Time) -> bool {
        // Connections use the path, too.
        let on_path = path.and_then(|path| path.datagram_waits_until(now, qpn.value()));
        let own = self.limiter.as_mut().and_then(|limiter| limiter.datagram_waits_until(now));
        let paid_at = on_path.max(own);
        paid_at.into_iter().for_each(|paid_at| self.pace.hold_back(now, (paid_at, u32::MAX)));
        paid_at.is_some()
    }

    /// Sends the datagram and completes its request. Returns an error if it cannot be sent.
    pub(in crate::transport) fn emit_datagram(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        request: &DatagramRequest,
        writer: &mut impl BurstWriter,
    ) -> Result<(), RequestFailure> {
        let DatagramRequest { index, destination } = request;
        let mut headers = self.datagram_headers(common, *index, destination);
        let payload = self.request_payload(common, pass.memory, *index, 0);
        let mut burst = Burst::single(&mut headers, self.send.header(*index).length, payload, Sending::First);
        let is_too_long = destination.is_too_long || burst.payload_bytes > LONGEST_DATAGRAM;
        if is_too_long || !writer.fits(burst.packet_bytes()) {
            return Err(RequestFailure::new(CompletionStatus::LocalLengthError, Cause::None));
        }
        let bytes = burst.packet_bytes() as u64;
        writer.add(&mut burst)?;
        if let Some(limiter) = &mut self.limiter {
            limiter.pay(pass.now, bytes);
        }
        let next = headers.bth.psn.plus(1);
        self.cursor = next;
        self.limit = next;
        self.unacknowledged = next;
        // The datagram has left the application's memory, and no response will report whether it arrived.
        self.complete(common, *index, CompletionStatus::Success, Cause::None);
        Ok(())
    }

    /// Fails the request of the datagram that leaves next, which cannot be sent.
    pub(in crate::transport) fn fail_datagram(&mut self, common: &mut Common, failure: RequestFailure) {
        self.fail(common, self.send.retired(), failure);
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
        // The queue pair's own if the high bit is set (IBTA 3.5.3; rxe lacks this rule).
        let qkey = effective_qkey(destination.qkey, common.attributes.qkey.unwrap_or_default());
        Headers { bth, deth: Some(Deth { qkey, source: common.qpn }), immediate, ..Headers::default() }
    }
}
