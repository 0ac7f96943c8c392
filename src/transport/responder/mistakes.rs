//! Planted mistakes of the receiving half that need more than a condition. Without the feature `mutations` there are
//! none.

use super::{Common, Pass, Responder};
use crate::mutation::{Mutation, planted};
use crate::wire::{Opcode, Packet};

impl Responder {
    /// What must not happen once more.
    pub(super) fn handle_duplicate_wrongly(&mut self, common: &mut Common, pass: &Pass<'_>, packet: &Packet<'_>) {
        let opcode = packet.headers.bth.opcode;
        let expected = self.expected;
        let is_again = (opcode.is_send() && opcode.is_only() && planted(Mutation::DuplicateSendExecuted))
            || (opcode.is_write() && opcode.is_only() && planted(Mutation::DuplicateWriteExecuted));
        if is_again && self.receives.available() > 0 && self.claim_receive(opcode) {
            let _ = self.execute(common, pass, packet);
        }
        if let Some(atomic) = packet.headers.atomic
            && planted(Mutation::AtomicExecutedTwice)
        {
            let _ = pass.memory.fetch_and_add(atomic.rkey.0, common.domain, atomic.va, atomic.swap_or_add);
        }
        if let (Opcode::RC_ATOMIC_WRITE, Some(reth), Ok(word)) =
            (opcode, packet.headers.reth, packet.payload.try_into())
            && planted(Mutation::AtomicWriteExecutedTwice)
        {
            let _ = pass.memory.atomic_write(reth.rkey.0, self.accessor(common), reth.va, word);
        }
        self.expected = expected;
    }

    /// What must not happen before its turn.
    pub(super) fn handle_early_wrongly(&mut self, common: &mut Common, pass: &Pass<'_>, packet: &Packet<'_>) {
        if planted(Mutation::FlushAnsweredEarly) && packet.headers.bth.opcode == Opcode::RC_FLUSH {
            self.responses.push_empty(packet.headers.bth.psn, self.message_count);
        }
        if planted(Mutation::InvalidatedOutOfTurn)
            && let Some(rkey) = packet.headers.invalidate
        {
            let _ = pass.memory.invalidate(rkey.0, self.accessor(common));
        }
    }
}
