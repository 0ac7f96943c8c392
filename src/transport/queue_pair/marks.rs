//! ECN marks of arriving packets, their echoes, and congestion notifications.

use super::QueuePair;
use super::transmit_path::Filled;
use crate::checksum::Sum;
use crate::memory::AccessError;
use crate::transport::burst::{Burst, BurstSink, BurstWriter, Envelope, PayloadSource, Sending};
use crate::transport::datagram::Datagram;
use crate::transport::marks::{NOTIFICATION_BYTES, NOTIFICATION_CLASS};
use crate::types::{Counter, DropReason, PeerCapabilities, Psn, Time};
use crate::wire::{Bth, Headers, Opcode, Packet};

impl QueuePair {
    /// Handles an accepted packet that was marked, or echoes the mark of one of this end's packets.
    #[cold]
    pub(in crate::transport) fn note_marks(&mut self, now: Time, datagram: &Datagram<'_>, opcode: Opcode, becn: bool) {
        let Some(path) = self.common.path.as_ref().filter(|_| self.common.service.is_reliable()) else { return };
        let peer = path.peer;
        let echoes = peer.has_extension(PeerCapabilities::MARKS);
        if datagram.is_marked() {
            self.common.count(Counter::EcnMarkedPackets);
            if opcode.is_read_response() {
                // READs of this end fill the queue that marked it.
                self.requester.report_mark(&self.common, now);
            } else if opcode.is_request() && echoes {
                self.common.arrived_marks.owe_echo();
            } else if opcode.is_request() && !peer.is_native() {
                self.common.arrived_marks.owe_notification(now);
            }
            // A marked acknowledgement is ignored: packets of the peer fill the queue that marked it.
        }
        // Packets in flight are no condition here: the accepted response may have acknowledged the last one.
        if becn && echoes && opcode.is_response() && self.common.is_markable() {
            self.requester.report_mark(&self.common, now);
        }
    }

    /// Handles a CNP of a standard peer: its adapter has received marked packets of this end (IBTA A17.9.3). Its PSN
    /// has no meaning, and nothing is learned from it.
    #[cold]
    pub(in crate::transport) fn handle_notification(
        &mut self,
        now: Time,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let bth = &packet.headers.bth;
        let is_native = self.common.is_peer_native();
        let has_form = packet.payload.len() == NOTIFICATION_BYTES as usize && bth.becn;
        if is_native || !has_form || !self.common.is_markable() || !self.requester.has_in_flight(&self.common) {
            return Err(DropReason::CongestionNotification);
        }
        self.check_addressing(datagram, bth)?;
        self.check_icrc(datagram)?;
        self.common.count(Counter::CnpHandled);
        self.requester.report_mark(&self.common, now);
        Ok(())
    }

    /// Whether a CNP is due.
    #[inline]
    pub(super) fn owes_notification(&self) -> bool {
        self.common.arrived_marks.is_due() && !self.common.is_peer_native()
    }

    /// Writes a CNP to the sink.
    #[cold]
    pub(super) fn fill_notification<S: BurstSink>(&mut self, sink: &mut S, mut envelope: Envelope) -> Filled {
        envelope.traffic_class = NOTIFICATION_CLASS;
        let Some(mut writer) = sink.open(&envelope) else { return Filled::STALLED };
        self.common.arrived_marks.take();
        let bth = Bth {
            // As adapters send it.
            migrated: false,
            becn: true,
            psn: Psn::default(),
            destination: self.common.destination(),
            ..Bth::with_payload(Opcode::CNP, NOTIFICATION_BYTES)
        };
        let mut headers = Headers { bth, ..Headers::default() };
        let mut burst = Burst::single(&mut headers, NOTIFICATION_BYTES, ReservedBytes, Sending::First);
        if writer.add(&mut burst).is_ok() {
            self.common.count(Counter::CnpSent);
        }
        Filled::new(self.finish(writer), false)
    }
}

/// The payload of a CNP.
struct ReservedBytes;

impl PayloadSource for ReservedBytes {
    fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        out.fill(0);
        Ok(None)
    }
}
