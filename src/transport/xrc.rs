//! Extended reliable connections: a reliable connection whose requests name the shared receive queue that they are for.
//!
//! On the wire they have operation codes of their own, and requests carry one more header. Inside, packets have the
//! reliable connection's codes: what was received is translated once, what is sent too.

use super::queue_pair::QueuePair;
use crate::types::QueuePairType;
use crate::wire::{Opcode, Packet};

/// What tells an extended reliable connection's operation codes from a reliable connection's.
pub(super) const XRC_BITS: u8 = 0xa0;

/// The bits that the queue pair's operation codes have beside the reliable connection's.
pub(super) fn opcode_bits(service: QueuePairType) -> u8 {
    match service {
        QueuePairType::XrcSend | QueuePairType::XrcReceive => XRC_BITS,
        _ => 0,
    }
}

/// The packet with the operation code of a reliable connection.
pub(super) fn as_reliable<'a>(packet: &Packet<'a>) -> Packet<'a> {
    let mut packet = *packet;
    packet.headers.bth.opcode = Opcode(packet.headers.bth.opcode.0 & !XRC_BITS);
    packet
}

impl QueuePair {
    /// Whether packets of this kind are for queue pairs of this service.
    #[inline]
    pub(super) fn speaks(&self, opcode: Opcode) -> bool {
        match self.service {
            QueuePairType::XrcSend => opcode.is_extended_reliable_connection() && opcode.is_response(),
            QueuePairType::XrcReceive => opcode.is_extended_reliable_connection() && opcode.is_request(),
            _ => opcode.is_reliable_connection(),
        }
    }

    /// The code that a reliable connection's operation has in this queue pair's packets.
    #[inline]
    pub(super) fn on_wire(&self, opcode: Opcode) -> Opcode {
        Opcode(opcode.0 | self.opcode_bits)
    }
}
