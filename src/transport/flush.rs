//! ATOMIC WRITE and FLUSH at the responder: executed in their turn, and answered by an empty READ response.
//!
//! Their responses say nothing but that they were executed. So a repetition needs no memory of them: its number alone
//! shows that it was executed before, and it gets the same response.
//!
//! Linux gives FLUSH an ICRC of its own (`icrc::append_as_linux`), and drops one with the standard's. Peers of our own
//! never get it. A stranger gets the standard's first and, while it does not answer, both in turns; what it answered to
//! is what the next FLUSH begins with.

use super::endpoint::Pass;
use super::queue_pair::{Path, QueuePair};
use super::violation::Violation;
use crate::mutation::{Mutation, planted};
use crate::types::{AccessFlags, Operation};
use crate::wire::{FlushEth, Opcode, Packet, Reth};

const TO_VISIBILITY: u8 = 1;
const TO_PERSISTENCE: u8 = 2;
const WHOLE_REGION: u8 = 1;

/// The rights that a FLUSH needs, if it asks for what exists.
pub(super) fn rights(packet: &Packet<'_>) -> Result<AccessFlags, Violation> {
    let FlushEth { selectivity, placement } = packet.headers.flush.ok_or(Violation::FlushType)?;
    if selectivity > WHOLE_REGION || placement == 0 || placement & !(TO_VISIBILITY | TO_PERSISTENCE) != 0 {
        return Err(Violation::FlushType);
    }
    let mut rights = AccessFlags::empty();
    rights.set(AccessFlags::FLUSH_GLOBAL, placement & TO_VISIBILITY != 0);
    rights.set(AccessFlags::FLUSH_PERSISTENT, placement & TO_PERSISTENCE != 0);
    Ok(rights)
}

impl Path {
    /// Whether a packet whose ICRC is wrong may be right by Linux's rule.
    pub(super) fn may_be_flush_of_linux(&self, udp_payload: &[u8]) -> bool {
        !self.peer.is_ours() && udp_payload.first() == Some(&Opcode::RC_FLUSH.0)
    }
}

impl QueuePair {
    /// Whether a FLUSH that leaves now has Linux's ICRC.
    pub(super) fn flushes_as_linux(&self) -> bool {
        let in_turn = self.requester.recovery.rounds() % 2 == 1;
        self.path.as_ref().is_some_and(|path| !path.peer.is_ours() && path.flush_as_linux != in_turn)
    }

    /// The request's empty response came. If it was for an earlier round, the next FLUSH needs one round more.
    pub(super) fn note_ack_only_response(&mut self, index: u32) {
        let took = self.flushes_as_linux();
        if let (Operation::Flush { .. }, Some(path)) = (self.send.header(index).operation, &mut self.path) {
            path.flush_as_linux = took;
        }
    }

    /// Executes an ATOMIC WRITE or a FLUSH.
    pub(super) fn execute_ack_only(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), Violation> {
        let psn = packet.headers.bth.psn;
        let reth = packet.headers.reth.ok_or(Violation::OpcodeSequence)?;
        match packet.headers.bth.opcode {
            Opcode::RC_ATOMIC_WRITE => {
                let mut word: [u8; 8] = packet.payload.try_into().map_err(|_| Violation::MessageLength)?;
                if planted(Mutation::AtomicWriteHalf) {
                    word[4..].fill(0);
                }
                let written = pass.memory.atomic_write(reth.rkey.0, self.accessor(), reth.va, word);
                written.map_err(Violation::of_atomic)?;
            }
            _ => self.flush_memory(pass, packet, reth)?,
        }
        self.responder.expected = psn.plus(1);
        self.bump_message_count();
        let count = self.responder.message_count;
        if planted(Mutation::AtomicWriteAcknowledged) && packet.headers.flush.is_none() {
            self.responder.responses.note_executed(psn);
            self.responder.responses.acknowledge(count, pass.now, pass.ack_hold);
            return Ok(());
        }
        self.responder.responses.push_empty(psn, count);
        Ok(())
    }

    /// A flush to persistence waits for the file's storage, and everything that this thread drives with it.
    fn flush_memory(&self, pass: &Pass<'_>, packet: &Packet<'_>, reth: Reth) -> Result<(), Violation> {
        let need = rights(packet)?;
        if planted(Mutation::FlushKeyUnchecked) {
            return Ok(());
        }
        let is_whole = packet.headers.flush.is_some_and(|flush| flush.selectivity == WHOLE_REGION);
        let range = (!is_whole).then_some((reth.va, u64::from(reth.length)));
        pass.memory.flush(reth.rkey.0, self.accessor(), range, need).map_err(Violation::RemoteKey)
    }
}
