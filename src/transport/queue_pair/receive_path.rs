//! The receive path of a queue pair: checks every packet, then passes it to the requester or the responder. A packet
//! that fails a check is dropped without a response (IBTA 9.6; `rxe_recv.c`, `hdr_check`).

use super::QueuePair;
use crate::transport::common::Pass;
use crate::transport::datagram::{Datagram, DatagramOutcome};
use crate::transport::loop_bound::LoopBound;
use crate::transport::path::Evidence;
use crate::transport::requester::ResponseError;
use crate::transport::responder::{Arrived, Identified, ReceiveError, check_datagram, identify};
use crate::types::{AsyncEvent, Cause, Counter, DropReason, PeerFault};
use crate::wire::{Opcode, Packet, Service};

impl QueuePair {
    /// Takes a packet, or records why it was dropped.
    #[inline]
    pub(in crate::transport) fn take(
        &mut self,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        take: impl FnOnce(&mut Self) -> Result<(), DropReason>,
    ) -> DatagramOutcome {
        let dropped = if self.has_panicked { Some(DropReason::WrongState) } else { take(self).err() };
        if let Some(reason) = dropped {
            self.common.counters.add_drop(reason);
            self.common.history.note_drop(reason, self.common.state, datagram.source, &packet.headers.bth);
        }
        let is_from_own_peer = dropped != Some(DropReason::WrongAddress) && self.common.is_peer_native();
        let ends_write = dropped.is_none() && packet.headers.bth.opcode.ends_silent_write();
        DatagramOutcome { dropped, is_from_own_peer, ends_write, check_field: self.check_field(dropped) }
    }

    /// Checks a packet before it may change anything, then passes it to the requester or the responder.
    pub(in crate::transport) fn handle_packet(
        &mut self,
        pass: &Pass<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let bth = &packet.headers.bth;
        if bth.opcode == Opcode::CNP {
            return self.handle_notification(pass.now, datagram, packet);
        }
        if self.common.is_datagram() {
            return self.handle_unreliable_datagram(pass, datagram, packet);
        }
        if !self.common.accepts_opcode(bth.opcode) {
            return Err(DropReason::WrongService);
        }
        if self.common.path.is_none() {
            return Err(DropReason::WrongState);
        }
        self.check_addressing(datagram, bth)?;
        self.check_source_port(datagram.source_port)?;
        let evidence = self.check_icrc(datagram)?;
        self.common.counters.add(Counter::ReceivedPackets, 1);
        self.common.counters.add(Counter::ReceivedBytes, datagram.payload.len() as u64);
        let translated;
        let packet = if self.common.is_extended() {
            translated = as_reliable(packet);
            &translated
        } else {
            packet
        };
        let bth = &packet.headers.bth;
        let is_request = bth.opcode.is_request();
        let is_due = self.is_due(is_request, bth.psn);
        if is_due || self.is_recent(is_request, bth.psn) {
            self.common.history.note_heard(pass.now, &packet.headers);
        }
        let taken = if !self.common.service.is_reliable() {
            self.handle_unreliable(pass, packet)
        } else if is_request {
            // `handle_request` learns from an in-order packet before it executes the kept packets.
            return self.handle_request(pass, packet, datagram.payload, evidence);
        } else {
            self.handle_response(pass, packet)
        };
        if is_due && taken.is_ok() {
            self.learn(evidence);
        }
        taken
    }

    /// Handles a packet of the peer's requester. `bytes` is the whole packet, kept if it is early.
    fn handle_request(
        &mut self,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        bytes: &[u8],
        evidence: Evidence,
    ) -> Result<(), DropReason> {
        if !self.common.takes_requests() {
            return self.responder.repeat_refusal(&self.common, packet, bytes.len());
        }
        let psn = packet.headers.bth.psn;
        match self.responder.distance(psn) {
            0 => {
                self.responder.note_established(&self.common);
                self.execute(pass, packet);
                if self.responder.expected() != psn {
                    self.learn(evidence);
                }
                self.execute_kept(pass);
            }
            1.. => {
                let is_keyed = self.packet_check.requires_key();
                let arrived = Arrived { bytes, source_port: evidence.source_port, is_keyed };
                return self.responder.keep(&mut self.common, pass, packet, arrived);
            }
            _ => return self.responder.handle_duplicate(&mut self.common, pass, packet, bytes.len()),
        }
        Ok(())
    }

    /// Handles a packet of the peer's responder.
    #[inline]
    fn handle_response(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        let is_keyed = self.packet_check.requires_key();
        match self.requester.handle_response(&mut self.common, pass, packet, is_keyed) {
            Ok(()) => Ok(()),
            Err(ResponseError::Dropped(reason)) => Err(reason),
            Err(ResponseError::Failed(failure)) => {
                self.fail(failure);
                Ok(())
            }
            Err(ResponseError::Invalid(failure)) => {
                self.fail(failure);
                Err(DropReason::Unexpected)
            }
        }
    }

    /// Executes the expected packet, or refuses it, which ends the connection.
    #[inline]
    fn execute(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) {
        if let Err(fault) = self.responder.execute_expected(&mut self.common, pass, packet) {
            self.responder.refuse(&mut self.common, packet, fault);
            self.refuse(fault, Some(packet));
        }
    }

    /// Executes the kept packets up to the next gap, now that one is filled.
    fn execute_kept(&mut self, pass: &Pass<'_>) {
        let kept = self.responder.kept();
        if kept == 0 {
            return self.responder.close_gap();
        }
        let mut bound = LoopBound::new("reorder buffer", kept + 1);
        while self.common.takes_requests() {
            bound.step();
            let Some(early) = self.responder.take_kept() else { break };
            if self.check_source_port(early.source_port).is_ok()
                && let Ok(packet) = Packet::parse(&early.bytes)
            {
                let packet = if self.common.is_extended() { as_reliable(&packet) } else { packet };
                self.execute(pass, &packet);
            }
        }
        self.responder.end_kept(&self.common, pass.now);
    }

    /// Handles a packet of an unreliable connection.
    fn handle_unreliable(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !self.common.takes_requests() {
            return Err(DropReason::WrongState);
        }
        if self.is_due(true, packet.headers.bth.psn) {
            self.responder.note_established(&self.common);
        }
        match self.responder.execute_unreliable(&mut self.common, pass, packet) {
            Ok(()) => Ok(()),
            Err(ReceiveError::Dropped(reason)) => Err(reason),
            Err(ReceiveError::Failed(fault)) => {
                self.refuse(fault, Some(packet));
                Err(DropReason::Refused)
            }
        }
    }

    /// Handles a datagram that was sent to this queue pair alone.
    fn handle_unreliable_datagram(
        &mut self,
        pass: &Pass<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        if datagram.destination.is_multicast() {
            return Err(DropReason::WrongAddress);
        }
        check_datagram(&self.common, packet)?;
        let identified = identify(datagram)?;
        self.take_datagram(pass, datagram, packet, identified)
    }

    /// Takes a datagram with a valid ICRC, sent to this queue pair or to its group.
    pub(in crate::transport) fn take_datagram(
        &mut self,
        pass: &Pass<'_>,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        identified: Identified,
    ) -> Result<(), DropReason> {
        match self.responder.receive_datagram(&mut self.common, pass, datagram, packet, identified) {
            Ok(()) => Ok(()),
            Err(ReceiveError::Dropped(reason)) => Err(reason),
            Err(ReceiveError::Failed(fault)) => {
                let (status, cause) = fault.receive_status();
                self.responder.fail_receive(&mut self.common, status, cause);
                self.common.announce(AsyncEvent::QueuePairFatal(self.common.qpn));
                self.enter_error(Cause::EarlierFailure);
                Ok(())
            }
        }
    }

    /// Ends the connection because a request of the peer was invalid; the NAK is already due. `packet` is `None` if an
    /// earlier READ is refused: a begun receive then belongs to another message.
    pub(in crate::transport) fn refuse(&mut self, fault: PeerFault, packet: Option<&Packet<'_>>) {
        let (status, cause) = fault.receive_status();
        let wr_id = packet.and_then(|_| self.responder.begun_receive());
        self.common.history.note_refusal(fault, packet, wr_id);
        if packet.is_some() {
            self.responder.fail_receive(&mut self.common, status, cause);
        }
        self.common.announce(fault.event(self.common.qpn));
        self.enter_error(Cause::EarlierFailure);
    }
}

/// Returns the packet with the opcode of a reliable connection: extended reliable connections have their own opcodes
/// only on the wire.
fn as_reliable<'a>(packet: &Packet<'a>) -> Packet<'a> {
    let mut packet = *packet;
    packet.headers.bth.opcode = packet.headers.bth.opcode.of(Service::ReliableConnection);
    packet
}
