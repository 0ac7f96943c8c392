//! The checks of a request packet, in order (IBTA 9.7.4.1). The functions named are those of `rxe_resp.c`.

use super::{Common, Message, Pass, Responder, WriteInProgress, ack_only, has_explicit_response, needs_receive};
use crate::types::{AccessFlags, MAX_MESSAGE_BYTES, PeerFault, Rkey};
use crate::wire::{Opcode, Packet};

impl Responder {
    /// Checks that the opcode continues the message in progress, or begins one if there is none (`check_op_seq`).
    pub(super) fn check_sequence(&self, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let opcode = packet.headers.bth.opcode;
        let continues = opcode.is_middle() || opcode.is_last();
        let fits = match self.message {
            Message::None => !continues,
            Message::Send => continues && opcode.is_send(),
            Message::Write(_) => continues && opcode.is_write(),
        };
        if fits { Ok(()) } else { Err(PeerFault::OpcodeSequence) }
    }

    /// Checks that the queue pair allows such requests at all (`check_op_valid`).
    pub(super) fn check_operation(&self, common: &Common, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let opcode = packet.headers.bth.opcode;
        let granted = common.attributes.qp_access_flags.unwrap_or_default();
        let needed = match opcode {
            Opcode::RC_READ_REQUEST => AccessFlags::REMOTE_READ,
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => AccessFlags::REMOTE_ATOMIC,
            Opcode::RC_ATOMIC_WRITE => AccessFlags::REMOTE_WRITE,
            Opcode::RC_FLUSH => ack_only::flush_access(packet)?,
            _ if opcode.is_write() => AccessFlags::REMOTE_WRITE,
            _ => AccessFlags::empty(),
        };
        if !granted.contains(needed) {
            return Err(PeerFault::AccessNotGranted);
        }
        self.check_room(opcode)
    }

    /// Checks that there is room for an explicit response, if the packet needs one (`check_resource`). rxe refuses only
    /// if the peer may have none outstanding. A FLUSH uses no resource, because Linux does not count it.
    fn check_room(&self, opcode: Opcode) -> Result<(), PeerFault> {
        let responses = &self.responses;
        let has_room = match opcode {
            Opcode::RC_ATOMIC_WRITE => responses.has_resources() && responses.takes_empty(),
            Opcode::RC_FLUSH => responses.takes_empty(),
            _ => !has_explicit_response(opcode) || responses.has_room(),
        };
        if has_room { Ok(()) } else { Err(PeerFault::TooManyReads) }
    }

    /// Whether a receive is posted, if the packet needs one (`check_resource`).
    pub(super) fn has_receive(&self, packet: &Packet<'_>) -> bool {
        !needs_receive(packet.headers.bth.opcode) || self.receives.available() > 0 || self.receives.begun().is_some()
    }

    /// Checks the payload's length against its position in the message (IBTA 9.7.4.1.6; `rxe_resp_check_length`), and
    /// that of a WRITE against its remaining length (`check_rkey`).
    pub(super) fn check_length(&self, common: &Common, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let opcode = packet.headers.bth.opcode;
        let mtu = common.mtu_bytes() as usize;
        let length = packet.payload.len();
        let fits = match opcode {
            _ if opcode.is_first() || opcode.is_middle() => length == mtu,
            _ if opcode.is_last() => (1..=mtu).contains(&length),
            _ => length <= mtu,
        };
        if !fits {
            return Err(PeerFault::PacketLength);
        }
        if let Some(reth) = packet.headers.reth {
            let whole = opcode.is_only() && reth.length as usize != length;
            let too_short = opcode.is_first() && reth.length as usize <= mtu;
            let is_data = opcode.is_write() || opcode == Opcode::RC_ATOMIC_WRITE;
            let is_wrong_word = opcode == Opcode::RC_ATOMIC_WRITE && length != 8;
            let is_whole_flush = packet.headers.flush.is_some_and(|flush| flush.selectivity != 0);
            let is_too_long = reth.length > MAX_MESSAGE_BYTES && !is_whole_flush;
            if is_too_long || is_wrong_word || (is_data && (whole || too_short)) {
                return Err(PeerFault::MessageLength);
            }
        }
        if let Message::Write(WriteInProgress { remaining, .. }) = self.message {
            let ends = opcode.is_last();
            if (ends && length as u32 != remaining) || (!ends && length as u32 >= remaining) {
                return Err(PeerFault::MessageLength);
            }
        }
        Ok(())
    }

    /// Checks key, bounds and access flags (IBTA 9.7.4.1.5; `check_rkey`), for a WRITE of several packets all at once.
    /// An atomic needs an address that is a multiple of 8 (IBTA 9.4.5 and A19.4.2; `atomic_reply`,
    /// `atomic_write_reply`).
    pub(super) fn check_key(&self, common: &Common, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), PeerFault> {
        if let Some(atomic) = packet.headers.atomic {
            if !atomic.va.is_multiple_of(8) {
                return Err(PeerFault::Misaligned);
            }
            return self.check_range(common, pass, atomic.rkey, atomic.va, 8, AccessFlags::REMOTE_ATOMIC);
        }
        let Some(reth) = packet.headers.reth else { return Ok(()) };
        if packet.headers.flush.is_some() {
            return Ok(()); // the flush itself checks the key, whatever the length (IBTA oA19-13)
        }
        if packet.headers.bth.opcode == Opcode::RC_ATOMIC_WRITE && !reth.va.is_multiple_of(8) {
            return Err(PeerFault::Misaligned);
        }
        if packet.headers.bth.opcode == Opcode::RC_WRITE_ONLY && !packet.payload.is_empty() {
            return Ok(()); // the write itself makes the same check, and nothing is done before
        }
        let is_read = packet.headers.bth.opcode == Opcode::RC_READ_REQUEST;
        let need = if is_read { AccessFlags::REMOTE_READ } else { AccessFlags::REMOTE_WRITE };
        self.check_range(common, pass, reth.rkey, reth.va, u64::from(reth.length), need)
    }

    /// Checks an access by its key, unless its length is 0 (IBTA C9-88).
    fn check_range(
        &self,
        common: &Common,
        pass: &Pass<'_>,
        rkey: Rkey,
        va: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(), PeerFault> {
        if length == 0 {
            return Ok(()); // an access of length 0 needs no key (`rxe_resp.c`, `check_rkey`)
        }
        pass.memory.check(rkey.0, self.accessor(common), va, length, need).map_err(PeerFault::from)
    }
}
