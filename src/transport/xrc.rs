//! Extended reliable connections: a reliable connection whose requests name the shared receive queue that they are for.
//!
//! On the wire they have operation codes of their own, and requests carry one more header. Inside, arrived packets have
//! the reliable connection's codes.

use crate::wire::{Packet, Service};

/// The packet with the operation code of a reliable connection.
pub(super) fn as_reliable<'a>(packet: &Packet<'a>) -> Packet<'a> {
    let mut packet = *packet;
    packet.headers.bth.opcode = packet.headers.bth.opcode.of(Service::ReliableConnection);
    packet
}
