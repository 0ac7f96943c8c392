//! Extended reliable connections: a reliable connection whose requests name the shared receive queue that they are for.
//!
//! On the wire they have operation codes of their own, and requests carry one more header. Inside, arrived packets have
//! the reliable connection's codes.

use super::queue_pair::QueuePair;
use crate::types::QueuePairType;
use crate::wire::{Opcode, Packet, Service};

/// The packet with the operation code of a reliable connection.
pub(super) fn as_reliable<'a>(packet: &Packet<'a>) -> Packet<'a> {
    let mut packet = *packet;
    packet.headers.bth.opcode = packet.headers.bth.opcode.of(Service::ReliableConnection);
    packet
}

impl QueuePair {
    /// Whether it is an end of an extended reliable connection.
    #[inline]
    pub(super) fn is_extended(&self) -> bool {
        matches!(self.service, QueuePairType::XrcSend | QueuePairType::XrcReceive)
    }

    /// Whether packets of this kind are for queue pairs of this service: an initiator takes answers only, a target only
    /// requests.
    #[inline]
    pub(super) fn speaks(&self, opcode: Opcode) -> bool {
        let is_wrong_way = match self.service {
            QueuePairType::XrcSend => opcode.is_request(),
            QueuePairType::XrcReceive => opcode.is_response(),
            _ => false,
        };
        opcode.service() == Some(self.wire_service()) && !is_wrong_way
    }
}
