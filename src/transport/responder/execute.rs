//! Execution of the expected request packet.

use super::response_queue::ReadRequest;
use super::{Common, Message, Pass, Responder, WriteInProgress, has_explicit_response, needs_receive};
use crate::transport::segments::Bytes;
use crate::types::{AccessFlags, CompletionFlags, CompletionOpcode, Counter, PeerFault, Psn, RawCompletion};
use crate::wire::{AtomicEth, Opcode, Packet, Reth, Syndrome};

impl Responder {
    /// Checks and executes the expected packet, in the order of rxe (`rxe_resp.c`): each step passes the packet or
    /// refuses it with a fault, which ends the connection. A packet without a receive gets an RNR NAK.
    pub(in crate::transport) fn execute_expected(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), PeerFault> {
        let bth = &packet.headers.bth;
        self.waits_for_retry = false;
        self.check_sequence(packet)?;
        self.receives.select(packet)?;
        self.check_operation(common, packet)?;
        if !self.has_receive(packet) {
            self.send_receiver_not_ready(common, bth.psn);
            return Ok(());
        }
        self.check_length(common, packet)?;
        self.check_key(common, pass, packet)?;
        if !self.claim_receive(bth.opcode) {
            self.send_receiver_not_ready(common, bth.psn);
            return Ok(());
        }
        self.execute(common, pass, packet)?;
        if !has_explicit_response(bth.opcode) {
            self.note_executed(common, pass, bth.psn, bth.ack_request);
        }
        Ok(())
    }

    /// Executes a packet between the first and the last of a message that fits the template of the fast path: its
    /// header is that of the previous packet. Also several at once, with their payloads in one piece. Returns `None`,
    /// so that the general path decides, if the packet does not fit the message (then nothing has changed), or if its
    /// memory cannot be accessed.
    #[inline]
    pub(in crate::transport) fn execute_middle(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        opcode: Opcode,
        payload: impl Bytes,
    ) -> Option<()> {
        let length = payload.count() as u32;
        match self.message {
            Message::Write(write) if opcode.is_write() && length < write.remaining => {
                let WriteInProgress { va, rkey, .. } = write;
                payload.place(pass.memory, rkey.0, self.accessor(common), va, AccessFlags::REMOTE_WRITE).ok()?;
                self.message = Message::Write(write.after(length));
                Some(())
            }
            Message::Send if opcode.is_send() => self.receives.fill(common, pass, payload).ok(),
            _ => None,
        }
    }

    /// Whether the fast path may execute this packet: it is the expected one, and no early packet waits for it.
    #[inline]
    pub(in crate::transport) fn may_execute_middle(&self, psn: Psn) -> bool {
        psn == self.expected && self.reorder.is_empty()
    }

    /// Notes a packet that the fast path executed.
    #[inline]
    pub(in crate::transport) fn note_middle(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        psn: Psn,
        ack_requested: bool,
    ) {
        self.waits_for_retry = false;
        self.close_gap();
        self.expected = psn.plus(1);
        self.note_executed(common, pass, psn, ack_requested);
    }

    /// Notes an executed request without an explicit response.
    #[inline]
    fn note_executed(&mut self, common: &Common, pass: &Pass<'_>, psn: Psn, ack_requested: bool) {
        self.responses.note_executed(psn);
        if ack_requested && common.takes_requests() {
            self.responses.acknowledge(self.message_count(), pass.now, pass.ack_hold);
        }
    }

    /// Queues an RNR NAK for this packet, which is expected again after `min_rnr_timer` (IBTA 9.7.5.2.8; `rxe_resp.c`,
    /// `RESPST_ERR_RNR`).
    fn send_receiver_not_ready(&mut self, common: &mut Common, psn: Psn) {
        common.count(Counter::SentRnr);
        self.waits_for_retry = true;
        self.reorder.clear();
        self.close_gap();
        let timer = common.attributes.min_rnr_timer.unwrap_or(0);
        self.responses.push_nak(psn, Syndrome::ReceiverNotReady { timer }, self.message_count());
    }

    /// Takes the next posted receive, if the packet needs one. The check found one, but another queue pair may have
    /// taken it meanwhile if the queue is shared. One left by a dropped message is used first.
    pub(super) fn claim_receive(&mut self, opcode: Opcode) -> bool {
        !needs_receive(opcode) || self.receives.begin()
    }

    pub(super) fn execute(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), PeerFault> {
        let opcode = packet.headers.bth.opcode;
        if opcode == Opcode::RC_READ_REQUEST {
            return self.execute_read(common, packet);
        }
        if let Some(atomic) = packet.headers.atomic {
            return self.execute_atomic(common, pass, packet, atomic);
        }
        if matches!(opcode, Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH) {
            return self.execute_ack_only(common, pass, packet);
        }
        if opcode.is_write() {
            self.execute_write(common, pass, packet)?;
        } else {
            self.execute_send(common, pass, packet)?;
        }
        self.expected = self.expected.plus(1);
        Ok(())
    }

    /// Accepts a READ. It takes a PSN for each packet of its response, at least one (`rxe_resp.c`, `rxe_prepare_res`),
    /// and counts as a message when it is accepted (IBTA C9-148; `execute`).
    fn execute_read(&mut self, common: &Common, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let reth = packet.headers.reth.ok_or(PeerFault::OpcodeSequence)?;
        let psn = packet.headers.bth.psn;
        let packets = reth.length.div_ceil(common.mtu_bytes()).max(1);
        self.expected = psn.plus(packets);
        self.count_response();
        let read = ReadRequest { reth, domain: self.remote_domain(common), named: self.receives.named_number() };
        self.responses.push_read(psn, packets, read, self.message_count());
        Ok(())
    }

    /// Executes an atomic and keeps its result for repetitions (IBTA 9.4.5; `rxe_resp.c`, `atomic_reply`).
    fn execute_atomic(
        &mut self,
        common: &Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        atomic: AtomicEth,
    ) -> Result<(), PeerFault> {
        let (key, accessor) = (atomic.rkey.0, self.accessor(common));
        let result = if packet.headers.bth.opcode == Opcode::RC_COMPARE_SWAP {
            pass.memory.compare_and_swap(key, accessor, atomic.va, atomic.compare, atomic.swap_or_add)
        } else {
            pass.memory.fetch_and_add(key, accessor, atomic.va, atomic.swap_or_add)
        };
        let original = result.map_err(PeerFault::from)?;
        let psn = packet.headers.bth.psn;
        self.expected = psn.plus(1);
        self.count_response();
        self.responses.push_atomic(psn, original, self.receives.named_number(), self.message_count());
        Ok(())
    }

    /// Counts a message with an explicit response.
    pub(super) fn count_response(&mut self) {
        self.responses.complete_acknowledgement(self.message_count());
        self.count_message();
    }

    fn execute_write(&mut self, common: &mut Common, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let opcode = packet.headers.bth.opcode;
        let write = match (packet.headers.reth, self.message) {
            (Some(Reth { va, rkey, length }), _) => WriteInProgress { va, rkey, remaining: length, total: length },
            (None, Message::Write(write)) => write,
            _ => return Err(PeerFault::OpcodeSequence),
        };
        let length = packet.payload.len() as u32;
        if length > 0 {
            pass.memory
                .write(write.rkey.0, self.accessor(common), write.va, AccessFlags::REMOTE_WRITE, packet.payload)
                .map_err(PeerFault::from)?;
        }
        if opcode.is_first() || opcode.is_middle() {
            self.message = Message::Write(write.after(length));
            return Ok(());
        }
        self.message = Message::None;
        self.count_message();
        if let Some(immediate) = packet.headers.immediate {
            let completion = RawCompletion {
                opcode: CompletionOpcode::ReceiveWriteWithImmediate,
                flags: CompletionFlags::WITH_IMMEDIATE,
                immediate_or_key: immediate,
                byte_len: write.total,
                ..RawCompletion::default()
            };
            self.receives.finish(common, completion, packet.headers.bth.solicited);
        }
        Ok(())
    }

    fn execute_send(&mut self, common: &mut Common, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let opcode = packet.headers.bth.opcode;
        self.receives.fill(common, pass, packet.payload)?;
        if opcode.is_first() || opcode.is_middle() {
            self.message = Message::Send;
            return Ok(());
        }
        if let Some(rkey) = packet.headers.invalidate {
            pass.memory.invalidate(rkey.0, self.accessor(common)).map_err(|_| PeerFault::Invalidate)?;
        }
        self.message = Message::None;
        self.count_message();
        let mut completion = RawCompletion { byte_len: self.receives.filled(), ..RawCompletion::default() };
        if let Some(immediate) = packet.headers.immediate {
            completion.flags = CompletionFlags::WITH_IMMEDIATE;
            completion.immediate_or_key = immediate;
        } else if let Some(rkey) = packet.headers.invalidate {
            completion.flags = CompletionFlags::WITH_INVALIDATE;
            completion.immediate_or_key = rkey.0;
        }
        self.receives.finish(common, completion, packet.headers.bth.solicited);
        Ok(())
    }
}
