//! The two ICRCs of a FLUSH.
//!
//! Linux gives FLUSH an ICRC of its own (`icrc::append_as_linux`), and drops one with the standard's. Peers of our own
//! never get it. A stranger gets the standard's first and, while it does not answer, both in turns; what it answered to
//! is what the next FLUSH begins with.

use super::common::Common;
use super::path::Path;
use crate::wire::Opcode;

impl Path {
    /// Whether a packet whose ICRC is wrong may be right by Linux's rule.
    pub(super) fn may_be_flush_of_linux(&self, udp_payload: &[u8]) -> bool {
        !self.peer.is_ours() && udp_payload.first() == Some(&Opcode::RC_FLUSH.0)
    }

    /// Whether a FLUSH that leaves in this round of repetitions has Linux's ICRC.
    pub(super) fn flushes_as_linux(&self, round: u32) -> bool {
        let in_turn = round % 2 == 1;
        !self.peer.is_ours() && self.flush_as_linux != in_turn
    }
}

impl Common {
    /// The response of a FLUSH came in this round. If it was for an earlier one, the next FLUSH needs one round more.
    pub(super) fn note_flush_taken(&mut self, round: u32) {
        if let Some(path) = &mut self.path {
            path.flush_as_linux = path.flushes_as_linux(round);
        }
    }
}
