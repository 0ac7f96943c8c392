//! The two ICRCs of a FLUSH.
//!
//! Linux gives FLUSH an ICRC of its own (`icrc::append_as_linux`), and drops one with the standard's. Peers of our own
//! never get it. A stranger gets the standard's first and, while it does not answer, both in turns; what it answered to
//! is what the next FLUSH begins with.

use super::path::Path;
use super::queue_pair::QueuePair;
use crate::types::Operation;
use crate::wire::Opcode;

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
        self.common.path.as_ref().is_some_and(|path| !path.peer.is_ours() && path.flush_as_linux != in_turn)
    }

    /// The request's empty response came. If it was for an earlier round, the next FLUSH needs one round more.
    pub(super) fn note_ack_only_response(&mut self, index: u32) {
        let took = self.flushes_as_linux();
        if let (Operation::Flush { .. }, Some(path)) = (self.send.header(index).operation, &mut self.common.path) {
            path.flush_as_linux = took;
        }
    }
}
