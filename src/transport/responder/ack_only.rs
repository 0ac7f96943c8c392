//! ATOMIC WRITE and FLUSH: executed in order, with an empty READ response (IBTA A19.4.1 and A19.4.2; `rxe_resp.c`,
//! `send_read_response_ack`).
//!
//! Their responses only confirm execution, so nothing is stored for repetitions: the PSN of a repetition shows that the
//! request was executed before, and it gets the same response (for FLUSH: IBTA oA19-14 and oA19-15).

use super::{Common, Pass, Responder};
use crate::types::{AccessFlags, PeerFault};
use crate::wire::{FlushEth, Opcode, Packet, Reth};

/// Placement types and selectivity levels (IBTA A19.4.1.1 and A19.4.1.2; `rxe_hdr.h`, `FETH_PLT_MASK` and
/// `FETH_SEL_MASK`).
const TO_VISIBILITY: u8 = 1;
const TO_PERSISTENCE: u8 = 2;
const WHOLE_REGION: u8 = 1;

/// Returns the access flags that a FLUSH needs, if its selectivity and placement are valid.
pub(super) fn flush_access(packet: &Packet<'_>) -> Result<AccessFlags, PeerFault> {
    let FlushEth { selectivity, placement } = packet.headers.flush.ok_or(PeerFault::FlushType)?;
    if selectivity > WHOLE_REGION || placement == 0 || placement & !(TO_VISIBILITY | TO_PERSISTENCE) != 0 {
        return Err(PeerFault::FlushType);
    }
    let mut needed = AccessFlags::empty();
    needed.set(AccessFlags::FLUSH_GLOBAL, placement & TO_VISIBILITY != 0);
    needed.set(AccessFlags::FLUSH_PERSISTENT, placement & TO_PERSISTENCE != 0);
    Ok(needed)
}

impl Responder {
    /// Executes an ATOMIC WRITE or a FLUSH.
    pub(super) fn execute_ack_only(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), PeerFault> {
        let psn = packet.headers.bth.psn;
        let reth = packet.headers.reth.ok_or(PeerFault::OpcodeSequence)?;
        match packet.headers.bth.opcode {
            Opcode::RC_ATOMIC_WRITE => {
                let word: [u8; 8] = packet.payload.try_into().map_err(|_| PeerFault::MessageLength)?;
                let written = pass.memory.atomic_write(reth.rkey.0, self.accessor(common), reth.va, word);
                written.map_err(PeerFault::from)?;
            }
            _ => self.flush_memory(common, pass, packet, reth)?,
        }
        self.expected = psn.plus(1);
        self.count_response();
        self.responses.push_empty(psn, self.message_count());
        Ok(())
    }

    /// Flushes memory. A flush to persistence waits for the file's storage, which blocks everything that this thread
    /// drives.
    fn flush_memory(&self, common: &Common, pass: &Pass<'_>, packet: &Packet<'_>, reth: Reth) -> Result<(), PeerFault> {
        let need = flush_access(packet)?;
        let is_whole = packet.headers.flush.is_some_and(|flush| flush.selectivity == WHOLE_REGION);
        let range = (!is_whole).then_some((reth.va, u64::from(reth.length)));
        pass.memory.flush(reth.rkey.0, self.accessor(common), range, need).map_err(PeerFault::from)
    }
}
