//! Request packets that were executed, or refused, before.

use super::response_queue::SHORT_RESPONSE_BYTES;
use super::{Common, Pass, Responder};
use crate::transport::marks::Marking;
use crate::types::{Counter, DropReason, QueuePairState};
use crate::wire::{Opcode, Packet, Syndrome};

impl Responder {
    /// A packet that was executed before: a SEND or WRITE is acknowledged, a READ is read again, an atomic gets its
    /// first result (`rxe_resp.c`, `duplicate_request`).
    pub(in crate::transport) fn handle_duplicate(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        bytes: usize,
    ) -> Result<(), DropReason> {
        common.count(Counter::DuplicateRequest);
        let psn = packet.headers.bth.psn;
        let (opcode, named) = (packet.headers.bth.opcode, packet.headers.xrc_srq);
        if opcode != Opcode::RC_READ_REQUEST {
            self.responses.earn(bytes);
        }
        let found = match (opcode, packet.headers.reth) {
            (Opcode::RC_READ_REQUEST, Some(reth)) => {
                let in_parts = common.takes_gap_runs();
                if self.responses.is_whole_read(psn, &reth, named) {
                    common.path.iter().for_each(|path| path.note_marking(Marking::note_silence));
                }
                self.responses.repeat_read(pass.now, psn, reth, named, common.mtu_bytes(), in_parts)
            }
            (Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD, _) => self.responses.repeat_atomic(psn, named),
            (Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH, _) => {
                self.responses.repeat_empty(psn, self.message_count);
                true
            }
            // It acknowledges as much.
            _ if self.has_gap() && common.tells_gap_runs() => {
                self.report_gap(common);
                true
            }
            _ => {
                self.responses.acknowledge_again(self.message_count, pass.now);
                true
            }
        };
        if found { Ok(()) } else { Err(DropReason::StaleDuplicate) }
    }

    /// In the error state only the packet that was refused gets a response: the same one. A READ whose response broke
    /// off may be asked for again from an earlier packet, which the peer lacks: then it is that one that is refused.
    pub(in crate::transport) fn repeat_refusal(
        &mut self,
        common: &Common,
        packet: &Packet<'_>,
        bytes: usize,
    ) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let read = packet.headers.reth.filter(|_| packet.headers.bth.opcode == Opcode::RC_READ_REQUEST);
        let asked_for = read.map_or(0, |reth| reth.length.div_ceil(common.mtu_bytes()));
        match self.refused {
            Some((refused, code)) if !refused.is_before(psn) && common.state == QueuePairState::Error => {
                let refused = if refused.is_within(psn, asked_for) { psn } else { refused };
                // A peer that asks faster than responses leave does not get one each time.
                self.responses.earn(bytes);
                if self.responses.takes_empty() && self.responses.spend(SHORT_RESPONSE_BYTES) {
                    self.responses.push_nak(refused, Syndrome::Nak(code), self.message_count);
                }
                Ok(())
            }
            _ => Err(DropReason::WrongState),
        }
    }
}
