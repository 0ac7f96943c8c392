//! Requests of an unreliable connection: a message counts only as a whole (IBTA 9.8.2.2.7). A gap, or a packet that
//! does not continue the previous one, drops the message in progress, and the next first (or only) packet starts clean
//! (IBTA 9.8.2.2.1 and C9-167; `rxe_resp.c`, `check_psn`, `check_op_seq`, `do_class_d1e_error`). Data that a dropped
//! WRITE has written stays; a receive that a dropped SEND had begun to fill is used for the next message. rxe differs
//! in two points: it completes such a receive of a shared queue with an error, and accepts each first packet, however
//! far back its PSN lies.

use super::{Common, Message, Pass, Responder};
use crate::types::{Counter, DropReason, PeerFault};
use crate::wire::Packet;

/// How far behind the expected PSN a packet counts as late or repeated: as many packets as the network of a fast sender
/// may hold. A packet further behind means that the peer has started over, or that the expected PSN came from an
/// unmatched packet.
const STALE_PACKETS: i32 = 1 << 10;

/// Why a packet of an unreliable service was not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) enum ReceiveError {
    /// The packet is dropped.
    Dropped(DropReason),
    /// Its receive is invalid, which ends the queue pair.
    Failed(PeerFault),
}

impl From<DropReason> for ReceiveError {
    fn from(reason: DropReason) -> Self {
        Self::Dropped(reason)
    }
}

impl Responder {
    /// Executes a packet of an unreliable connection, or drops its message.
    pub(in crate::transport) fn execute_unreliable(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ReceiveError> {
        let (psn, opcode) = (packet.headers.bth.psn, packet.headers.bth.opcode);
        let distance = psn.distance_from(self.expected);
        if (-STALE_PACKETS..0).contains(&distance) {
            common.count(Counter::DuplicateRequest);
            return Err(DropReason::StaleDuplicate.into());
        }
        if distance != 0 {
            common.count(Counter::OutOfSequenceRequest);
        }
        if distance != 0 || opcode.is_first() || opcode.is_only() {
            self.drop_message();
        }
        self.expected = psn;
        let executed = self.check_and_execute(common, pass, packet);
        match executed {
            Ok(()) => return Ok(()),
            // Its receive completes with the error.
            Err(ReceiveError::Failed(_)) => self.message = Message::None,
            Err(ReceiveError::Dropped(_)) => self.drop_message(),
        }
        self.expected = psn.plus(1);
        executed
    }

    /// Checks and executes a packet. A fault of the peer drops its message; an invalid receive ends the queue pair
    /// (IBTA 10.3.1: a local error of a receive is fatal).
    fn check_and_execute(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ReceiveError> {
        self.check_sequence(packet).map_err(|_| DropReason::OutOfOrder)?;
        self.check_operation(common, packet).map_err(|_| DropReason::Refused)?;
        if !self.has_receive(packet) {
            return Err(DropReason::NoReceive.into());
        }
        let checked = self.check_length(common, packet).and_then(|()| self.check_key(common, pass, packet));
        if checked.is_ok() && !self.claim_receive(packet.headers.bth.opcode) {
            return Err(DropReason::NoReceive.into());
        }
        checked.and_then(|()| self.execute(common, pass, packet)).map_err(|fault| {
            if is_local(fault) {
                return ReceiveError::Failed(fault);
            }
            common.log_drop(pass.now, packet.headers.bth.psn, fault);
            ReceiveError::Dropped(DropReason::Refused)
        })
    }

    /// Drops the message in progress. The receive that it had begun to fill is used for the next one.
    fn drop_message(&mut self) {
        self.message = Message::None;
        self.receives.restart();
    }
}

/// Whether the fault lies in the local receive.
fn is_local(fault: PeerFault) -> bool {
    matches!(fault, PeerFault::ReceiveTooSmall | PeerFault::ReceiveMemory(_))
}
