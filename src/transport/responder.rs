//! The receiving half: executes the peer's requests, exactly once and in order.
//!
//! A request packet whose turn it is passes a visible chain of checks (opcode sequence, operation, resources, length,
//! key), is executed, completed and acknowledged. A packet before its turn is kept, a packet after its turn is a
//! duplicate: SENDs and WRITEs are acknowledged again, READs are read again, atomics answered from the stored result.

use std::sync::Arc;
use std::time::Duration;

use super::acceptance::Evidence;
use super::endpoint::Pass;
use super::flush;
use super::loop_bound::LoopBound;
use super::queue_pair::QueuePair;
use super::reorder::{Kept, ReorderBudget, ReorderBuffer};
use super::request_packet::for_each_piece;
use super::response_queue::{ReadRequest, ResponseQueue, SHORT_RESPONSE_BYTES};
use super::violation::Violation;
use super::xrc::as_reliable;
use crate::mutation::{Mutation, planted};
use crate::types::{
    AccessFlags, AsyncEvent, CompletionFlags, CompletionOpcode, Counter, DropReason, MAX_MESSAGE_BYTES, Psn,
    QueuePairState, RawCompletion, Rkey, Sge, Time,
};
use crate::wire::{NakCode, Opcode, Packet, Reth, Syndrome};

/// Later packets than this show that an earlier one is lost and not just late.
const GAP_EVIDENCE: u32 = 3;
/// How long a gap may stay before the peer is told, when few packets follow.
const REORDER_WAIT: Duration = Duration::from_micros(100);

/// A receive that a message is being written into.
#[derive(Clone, Copy)]
pub(super) struct ReceiveInProgress {
    pub(super) wr_id: u64,
    pub(super) index: u32,
    filled: u32,
}

/// The message whose packets are arriving.
#[derive(Clone, Copy, Default)]
pub(super) enum Message {
    #[default]
    None,
    Send,
    Write(WriteInProgress),
}

/// A WRITE whose packets are arriving: where the next byte goes, and what is left.
#[derive(Clone, Copy)]
pub(super) struct WriteInProgress {
    pub(super) va: u64,
    pub(super) rkey: Rkey,
    pub(super) remaining: u32,
    total: u32,
}

impl WriteInProgress {
    /// The same after a packet that is not the last.
    #[inline]
    pub(super) fn after(self, length: u32) -> Self {
        let va = self.va.wrapping_add(u64::from(length));
        Self { va, remaining: self.remaining - length, ..self }
    }
}

/// State of the receiving half.
pub(super) struct Responder {
    pub(super) expected: Psn,
    /// Messages completed, modulo 2^24; peers see it in acknowledgements.
    pub(super) message_count: u32,
    pub(super) message: Message,
    receive: Option<ReceiveInProgress>,
    /// Scatter list of the receive in progress.
    pub(super) receive_entries: Vec<Sge>,
    pub(super) responses: ResponseQueue,
    reorder: ReorderBuffer,
    /// Packets that came while the expected one was missing.
    gap_evidence: u32,
    /// Early packets that came, less the gaps that were reported: what lies in the reorder buffer shows a gap before
    /// each packet that is executed, but is no more evidence than it was when it came.
    reports_left: u32,
    gap_reported: bool,
    report_gap_at: Option<Time>,
    /// An RNR NAK was sent for the expected packet: nothing is kept until it comes again.
    waits_for_retry: bool,
    /// The refusal that ended the connection; repeated when the refused packet comes again.
    refused: Option<(Psn, NakCode)>,
}

impl Responder {
    pub(super) fn new(reorder_budget: Arc<ReorderBudget>, max_recv_sge: u32) -> Self {
        Self {
            expected: Psn::default(),
            message_count: 0,
            message: Message::None,
            receive: None,
            receive_entries: Vec::with_capacity(max_recv_sge as usize),
            responses: ResponseQueue::default(),
            reorder: ReorderBuffer::new(reorder_budget),
            gap_evidence: 0,
            reports_left: 0,
            gap_reported: false,
            report_gap_at: None,
            waits_for_retry: false,
            refused: None,
        }
    }

    /// Ready to receive from `psn` on.
    pub(super) fn start(&mut self, psn: Psn, max_dest_rd_atomic: u8) {
        self.expected = psn;
        self.responses.start(psn.minus(1), max_dest_rd_atomic);
    }

    pub(super) fn reset(&mut self) {
        self.stop();
        self.refused = None;
        self.message_count = 0;
        self.receive = None;
        self.responses.clear();
    }

    /// Nothing more is accepted. Answers that are already due still leave.
    pub(super) fn stop(&mut self) {
        if !planted(Mutation::ResetKeepsMessage) {
            self.message = Message::None;
        }
        if !planted(Mutation::ResetKeepsStore) {
            self.reorder.clear();
        }
        self.close_gap();
        self.waits_for_retry = false;
        self.responses.stop();
    }

    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    pub(super) fn expect(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// Forgets the message in progress. The receive that it had begun to fill serves the next one.
    pub(super) fn drop_message(&mut self) {
        self.message = Message::None;
        if planted(Mutation::UnreliableReceiveLost) {
            self.receive = None;
        }
        if let Some(receive) = &mut self.receive
            && !planted(Mutation::UnreliableFillKept)
        {
            receive.filled = 0;
        }
    }

    pub(super) fn take_receive(&mut self) -> Option<ReceiveInProgress> {
        self.receive.take()
    }

    /// The connection ended with this refusal.
    pub(super) fn note_refused(&mut self, psn: Psn, code: NakCode) {
        self.refused = Some((psn, code));
    }

    /// Whether no packet waits for an earlier one.
    #[inline]
    pub(super) fn keeps_nothing(&self) -> bool {
        self.reorder.is_empty()
    }

    /// The expected packet has come, and none waits for it.
    #[inline]
    pub(super) fn note_in_turn(&mut self) {
        self.waits_for_retry = false;
        self.close_gap();
    }

    fn close_gap(&mut self) {
        self.gap_evidence = 0;
        self.gap_reported = false;
        self.report_gap_at = None;
        if self.reorder.is_empty() {
            self.reports_left = 0;
        }
    }

    /// Forgets the packets that came before their turn. The gap before them stays, and is not reported again.
    pub(super) fn forget_early(&mut self) {
        self.reorder.clear();
    }

    /// When the receiving half must be looked at again.
    pub(super) fn deadline(&self) -> Option<Time> {
        let deadline = Time::earliest([self.report_gap_at, self.responses.deadline()]);
        // Most of the time nothing is kept.
        if self.reorder.is_empty() { deadline } else { Time::earliest([deadline, self.reorder.deadline()]) }
    }
}

impl QueuePair {
    /// A packet of the peer's sending half. `bytes` is the whole packet, kept if it came before its turn.
    pub(super) fn handle_request(
        &mut self,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        bytes: &[u8],
        evidence: Evidence,
    ) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        if !self.takes_requests() {
            return self.repeat_refusal(packet, bytes.len());
        }
        let distance = match () {
            () if planted(Mutation::PsnComparedLinearly) => psn.value() as i32 - self.responder.expected.value() as i32,
            () => psn.distance_from(self.responder.expected),
        };
        match distance {
            1 | 2 if planted(Mutation::ReorderedExecutedEarly) => {
                self.execute_in_turn(pass, packet);
                Ok(())
            }
            0 => {
                self.note_established();
                self.responder.waits_for_retry = false;
                self.execute_in_turn(pass, packet);
                if self.responder.expected != psn {
                    self.learn(evidence);
                }
                self.execute_stored(pass);
                Ok(())
            }
            1.. => {
                self.handle_early_wrongly(pass, packet);
                self.keep_for_later(pass, packet, bytes, evidence.source_port)
            }
            _ => self.handle_duplicate(pass, packet, bytes.len()),
        }
    }

    /// In the error state only the packet that was refused gets a response: the same one. A READ whose response broke
    /// off may be asked for again from an earlier packet, which the peer lacks: then it is that one that is refused.
    fn repeat_refusal(&mut self, packet: &Packet<'_>, bytes: usize) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let read = packet.headers.reth.filter(|_| packet.headers.bth.opcode == Opcode::RC_READ_REQUEST);
        let asked_for = read.map_or(0, |reth| reth.length.div_ceil(self.mtu_bytes()));
        match self.responder.refused {
            Some((refused, code)) if !refused.is_before(psn) && self.state == QueuePairState::Error => {
                let count = self.responder.message_count;
                let refused = if refused.is_within(psn, asked_for) { psn } else { refused };
                // Whoever asks faster than it is answered is not answered each time.
                let responses = &mut self.responder.responses;
                responses.earn(bytes);
                if responses.takes_empty() && responses.spend(SHORT_RESPONSE_BYTES) {
                    self.responder.responses.push_nak(refused, Syndrome::Nak(code), count);
                }
                Ok(())
            }
            _ => Err(DropReason::WrongState),
        }
    }

    pub(super) fn note_established(&mut self) {
        let is_told = !planted(Mutation::EstablishedNotAnnounced);
        if self.state == QueuePairState::ReadyToReceive && self.responder.responses.first_packet() && is_told {
            self.events.push(AsyncEvent::CommunicationEstablished(self.qpn));
        }
    }

    /// A packet that came before its turn. What the peer cannot have sent is neither kept nor taken for the sign of a
    /// gap: what lies further ahead than it has packets in flight, and what is longer than the MTU.
    fn keep_for_later(
        &mut self,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        bytes: &[u8],
        source_port: u16,
    ) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let window = self.path.as_ref().map_or(0, |path| path.reorder_window());
        if !psn.is_within(self.responder.expected, window) {
            return Err(DropReason::FarAhead);
        }
        if packet.payload.len() > self.mtu_bytes() as usize {
            return Err(DropReason::BadLength);
        }
        self.count(Counter::OutOfSequenceRequest);
        if self.responder.waits_for_retry {
            return Err(DropReason::OutOfOrder);
        }
        let lost = if planted(Mutation::KeptPacketTruncated) { 4 } else { 0 };
        let expected = self.responder.expected;
        let kept = self.responder.reorder.insert(expected, psn, &bytes[..bytes.len() - lost], source_port, pass.now);
        if planted(Mutation::AcknowledgesKeptPacket) {
            self.responder.responses.note_executed(psn);
        }
        if kept == Kept::New {
            self.count(Counter::ReorderedRequest);
        }
        self.responder.responses.earn(bytes.len());
        self.responder.reports_left = self.responder.reports_left.saturating_add(1);
        self.responder.gap_evidence += u32::from(kept != Kept::Again);
        self.judge_gap(pass);
        if kept == Kept::NoRoom { Err(DropReason::OutOfOrder) } else { Ok(()) }
    }

    /// Tells the peer of a gap, once, when the missing packet is more likely lost than late.
    fn judge_gap(&mut self, pass: &Pass<'_>) {
        let Responder { gap_reported, gap_evidence, reports_left, .. } = self.responder;
        if gap_reported || gap_evidence == 0 || reports_left == 0 {
            return;
        }
        if self.responder.gap_evidence >= GAP_EVIDENCE {
            self.report_gap();
        } else if self.responder.report_gap_at.is_none() {
            self.responder.report_gap_at = Some(pass.now + REORDER_WAIT);
        }
    }

    fn report_gap(&mut self) {
        self.responder.report_gap_at = None;
        // Only an early packet without payload is shorter than a NAK; then the next one tells of the gap.
        if !self.responder.responses.spend(SHORT_RESPONSE_BYTES) {
            return;
        }
        self.responder.gap_reported = !planted(Mutation::GapReportedAgain);
        if planted(Mutation::GapNotReported) {
            return;
        }
        self.responder.reports_left = self.responder.reports_left.saturating_sub(1);
        self.count(Counter::SentSequenceNak);
        let (expected, count) = (self.responder.expected, self.responder.message_count);
        self.responder.responses.push_nak(expected, Syndrome::Nak(NakCode::SequenceError), count);
        if planted(Mutation::LostPacketSkipped) {
            self.responder.expected = expected.plus(1);
        }
    }

    /// The clocks of the receiving half, as far as they have run out.
    pub(super) fn responder_timeout(&mut self, now: Time) {
        if self.responder.report_gap_at.is_some_and(|time| time <= now) {
            self.report_gap();
        }
        self.responder.reorder.handle_timeout(now);
        self.responder.responses.handle_timeout(now);
    }

    /// The gap is filled: executes what was kept, up to the next gap.
    fn execute_stored(&mut self, pass: &Pass<'_>) {
        let kept = self.responder.reorder.len();
        if kept == 0 {
            self.responder.close_gap();
            return;
        }
        let mut bound = LoopBound::new("reorder buffer", kept + 1);
        while self.takes_requests() && !self.responder.waits_for_retry {
            bound.step();
            let expected = self.responder.expected;
            let Some(early) = self.responder.reorder.take(expected) else { break };
            if self.check_source_port(early.source_port).is_ok()
                && let Ok(packet) = Packet::parse(&early.bytes)
            {
                let is_extended = self.is_extended() && !planted(Mutation::KeptPacketNotTranslated);
                let packet = if is_extended { as_reliable(&packet) } else { packet };
                self.execute_in_turn(pass, &packet);
            }
        }
        let expected = self.responder.expected;
        self.responder.reorder.advance(expected);
        if self.responder.waits_for_retry {
            self.responder.reorder.clear();
        }
        self.responder.close_gap();
        self.responder.gap_evidence = self.responder.reorder.len() as u32;
        self.judge_gap(pass);
    }

    /// The chain: each step refuses by a violation, which ends the connection, or lets the packet pass.
    fn execute_in_turn(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) {
        let psn = packet.headers.bth.psn;
        let selected = self.check_sequence(packet).and_then(|()| self.select_receive_queue(packet));
        if let Err(violation) = selected.and_then(|()| self.check_operation(packet)) {
            return self.refuse_packet(packet, violation);
        }
        if !self.check_resources(packet) {
            return self.send_receiver_not_ready(psn);
        }
        if let Err(violation) = self.check_length(packet).and_then(|()| self.check_key(pass, packet)) {
            return self.refuse_packet(packet, violation);
        }
        if !self.claim_receive(packet) {
            return self.send_receiver_not_ready(psn);
        }
        if let Err(violation) = self.execute(pass, packet) {
            return self.refuse_packet(packet, violation);
        }
        if has_explicit_response(packet.headers.bth.opcode) {
            return;
        }
        self.note_executed(pass, psn, packet.headers.bth.ack_request);
    }

    /// A request without an explicit response was executed.
    #[inline]
    pub(super) fn note_executed(&mut self, pass: &Pass<'_>, psn: Psn, asks: bool) {
        self.responder.responses.note_executed(psn);
        if asks && self.takes_requests() {
            let count = self.responder.message_count;
            self.responder.responses.acknowledge(count, pass.now, pass.ack_hold);
        }
    }

    fn refuse_packet(&mut self, packet: &Packet<'_>, violation: Violation) {
        let psn = packet.headers.bth.psn;
        self.count(Counter::SentNak);
        tracing::debug!(qpn = %self.qpn, %psn, ?violation, "request refused");
        let code = violation.nak();
        let count = self.responder.message_count;
        self.responder.note_refused(psn, code);
        self.responder.responses.push_nak(psn, Syndrome::Nak(code), count);
        if matches!(violation, Violation::RemoteKey(_)) {
            // A WRITE with immediate data takes its receive even if it may not write.
            self.claim_receive(packet);
        }
        self.refuse(violation, Some((&packet.headers, packet.payload.len() as u32)));
    }

    fn send_receiver_not_ready(&mut self, psn: Psn) {
        self.count(Counter::SentRnr);
        self.responder.waits_for_retry = true;
        self.responder.reorder.clear();
        self.responder.close_gap();
        let timer = self.attributes.min_rnr_timer.unwrap_or(0);
        let count = self.responder.message_count;
        self.responder.responses.push_nak(psn, Syndrome::ReceiverNotReady { timer }, count);
    }

    /// Does the opcode continue the message in progress, or begin one when there is none?
    pub(super) fn check_sequence(&self, packet: &Packet<'_>) -> Result<(), Violation> {
        let opcode = packet.headers.bth.opcode;
        let continues = opcode.is_middle() || opcode.is_last();
        let fits = match self.responder.message {
            Message::None => !continues,
            Message::Send => continues && opcode.is_send(),
            Message::Write(_) => continues && opcode.is_write(),
        };
        if fits { Ok(()) } else { Err(Violation::OpcodeSequence) }
    }

    /// Does the queue pair grant such requests at all?
    pub(super) fn check_operation(&self, packet: &Packet<'_>) -> Result<(), Violation> {
        let opcode = packet.headers.bth.opcode;
        let granted = self.attributes.qp_access_flags.unwrap_or_default();
        let needed = match opcode {
            Opcode::RC_READ_REQUEST => AccessFlags::REMOTE_READ,
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => AccessFlags::REMOTE_ATOMIC,
            Opcode::RC_ATOMIC_WRITE => AccessFlags::REMOTE_WRITE,
            Opcode::RC_FLUSH if planted(Mutation::FlushRightIgnored) => AccessFlags::empty(),
            Opcode::RC_FLUSH => flush::rights(packet)?,
            _ if opcode.is_write() => AccessFlags::REMOTE_WRITE,
            _ => AccessFlags::empty(),
        };
        if !granted.contains(needed) && !planted(Mutation::QueuePairAccessIgnored) {
            return Err(Violation::AccessNotGranted);
        }
        self.check_room(opcode)
    }

    /// Can another response be owed, if the packet needs one? A FLUSH takes no resource: Linux counts none for it.
    fn check_room(&self, opcode: Opcode) -> Result<(), Violation> {
        let responses = &self.responder.responses;
        let has_room = match opcode {
            Opcode::RC_ATOMIC_WRITE => responses.has_resources() && responses.takes_empty(),
            Opcode::RC_FLUSH => responses.takes_empty(),
            _ => !has_explicit_response(opcode) || responses.has_room(),
        };
        if has_room { Ok(()) } else { Err(Violation::TooManyReads) }
    }

    /// Is a receive posted, if the packet needs one?
    pub(super) fn check_resources(&self, packet: &Packet<'_>) -> bool {
        let needs = needs_receive(packet.headers.bth.opcode);
        !needs
            || self.receive.available() > 0
            || self.responder.receive.is_some()
            || planted(Mutation::MissingReceiveIgnored)
    }

    /// Does the payload have the length that its place in the message demands?
    pub(super) fn check_length(&self, packet: &Packet<'_>) -> Result<(), Violation> {
        let opcode = packet.headers.bth.opcode;
        let mtu = self.mtu_bytes() as usize;
        let length = packet.payload.len();
        let fits = match opcode {
            _ if opcode.is_first() || opcode.is_middle() => length == mtu,
            _ if opcode.is_last() => (1..=mtu).contains(&length),
            _ => length <= mtu,
        };
        if !fits {
            return Err(Violation::PacketLength);
        }
        if let Some(reth) = packet.headers.reth {
            let whole = opcode.is_only() && reth.length as usize != length;
            let too_short = opcode.is_first() && reth.length as usize <= mtu;
            let is_data = opcode.is_write() || opcode == Opcode::RC_ATOMIC_WRITE;
            let is_wrong_word = opcode == Opcode::RC_ATOMIC_WRITE && length != 8;
            let is_whole_flush = packet.headers.flush.is_some_and(|flush| flush.selectivity != 0);
            let is_too_long = reth.length > MAX_MESSAGE_BYTES && !is_whole_flush;
            if is_too_long || is_wrong_word || (is_data && (whole || too_short)) {
                return Err(Violation::MessageLength);
            }
        }
        if let Message::Write(WriteInProgress { remaining, .. }) = self.responder.message {
            let ends = opcode.is_last();
            if (ends && length as u32 != remaining) || (!ends && length as u32 >= remaining) {
                return Err(Violation::MessageLength);
            }
        }
        Ok(())
    }

    /// Do key, bounds and rights allow the access? For a WRITE of several packets, all of it at once.
    pub(super) fn check_key(&self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), Violation> {
        if let Some(atomic) = packet.headers.atomic {
            if !atomic.va.is_multiple_of(8) {
                return Err(Violation::Misaligned);
            }
            return self.check_range(pass, atomic.rkey, atomic.va, 8, AccessFlags::REMOTE_ATOMIC);
        }
        let Some(reth) = packet.headers.reth else { return Ok(()) };
        if packet.headers.flush.is_some() {
            return Ok(()); // flushing itself checks, whatever the length
        }
        if packet.headers.bth.opcode == Opcode::RC_ATOMIC_WRITE && !reth.va.is_multiple_of(8) {
            return Err(Violation::Misaligned);
        }
        if packet.headers.bth.opcode == Opcode::RC_WRITE_ONLY && !packet.payload.is_empty() {
            return Ok(()); // writing itself checks the same, and nothing is done before
        }
        let is_read = packet.headers.bth.opcode == Opcode::RC_READ_REQUEST;
        let need = if is_read { AccessFlags::REMOTE_READ } else { AccessFlags::REMOTE_WRITE };
        self.check_range(pass, reth.rkey, reth.va, u64::from(reth.length), need)
    }

    fn check_range(
        &self,
        pass: &Pass<'_>,
        rkey: Rkey,
        va: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(), Violation> {
        if length == 0 && !planted(Mutation::EmptyRequestKeyChecked) {
            return Ok(()); // an access to nothing needs no key
        }
        pass.memory.check(rkey.0, self.accessor(), va, length, need).map_err(Violation::RemoteKey)
    }

    pub(super) fn execute(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), Violation> {
        let opcode = packet.headers.bth.opcode;
        if opcode == Opcode::RC_READ_REQUEST {
            return self.execute_read(packet);
        }
        if let Some(atomic) = packet.headers.atomic {
            return self.execute_atomic(pass, packet.headers.bth.psn, opcode, atomic);
        }
        if matches!(opcode, Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH) {
            return self.execute_ack_only(pass, packet);
        }
        if opcode.is_write() {
            self.execute_write(pass, packet)?;
        } else {
            self.execute_send(pass, packet)?;
        }
        self.responder.expected = self.responder.expected.plus(1);
        Ok(())
    }

    fn execute_read(&mut self, packet: &Packet<'_>) -> Result<(), Violation> {
        let reth = packet.headers.reth.ok_or(Violation::OpcodeSequence)?;
        let psn = packet.headers.bth.psn;
        let packets = reth.length.div_ceil(self.mtu_bytes()).max(1);
        self.responder.expected = psn.plus(packets);
        self.bump_message_count();
        let read = ReadRequest { reth, domain: self.remote_domain(), named: self.receive.named_number() };
        self.responder.responses.push_read(psn, packets, read, self.responder.message_count);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        pass: &Pass<'_>,
        psn: Psn,
        opcode: Opcode,
        atomic: crate::wire::AtomicEth,
    ) -> Result<(), Violation> {
        let (key, accessor) = (atomic.rkey.0, self.accessor());
        let result = if opcode == Opcode::RC_COMPARE_SWAP {
            pass.memory.compare_and_swap(key, accessor, atomic.va, atomic.compare, atomic.swap_or_add)
        } else {
            pass.memory.fetch_and_add(key, accessor, atomic.va, atomic.swap_or_add)
        };
        let original = result.map_err(Violation::of_atomic)?;
        self.responder.expected = psn.plus(1);
        self.bump_message_count();
        let named = self.receive.named_number();
        self.responder.responses.push_atomic(psn, original, named, self.responder.message_count);
        Ok(())
    }

    pub(super) fn bump_message_count(&mut self) {
        if planted(Mutation::MessagesNotCounted) {
            return;
        }
        self.responder.message_count = (self.responder.message_count + 1) & 0x00ff_ffff;
    }

    fn execute_write(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), Violation> {
        let opcode = packet.headers.bth.opcode;
        let write = match (packet.headers.reth, self.responder.message) {
            (Some(Reth { va, rkey, length }), _) => WriteInProgress { va, rkey, remaining: length, total: length },
            (None, Message::Write(write)) => write,
            _ => return Err(Violation::OpcodeSequence),
        };
        let length = packet.payload.len() as u32;
        if length > 0 {
            pass.memory
                .write(write.rkey.0, self.accessor(), write.va, AccessFlags::REMOTE_WRITE, packet.payload)
                .map_err(Violation::RemoteKey)?;
        }
        if opcode.is_first() || opcode.is_middle() {
            self.responder.message = Message::Write(write.after(length));
            return Ok(());
        }
        self.responder.message = Message::None;
        self.bump_message_count();
        if let Some(immediate) = packet.headers.immediate {
            self.finish_receive(
                RawCompletion {
                    opcode: CompletionOpcode::ReceiveRdmaWithImmediate,
                    flags: CompletionFlags::WITH_IMMEDIATE,
                    immediate_or_key: immediate,
                    byte_len: write.total,
                    ..RawCompletion::default()
                },
                packet.headers.bth.solicited,
            );
        }
        Ok(())
    }

    fn execute_send(&mut self, pass: &Pass<'_>, packet: &Packet<'_>) -> Result<(), Violation> {
        let opcode = packet.headers.bth.opcode;
        self.fill_receive(pass, packet.payload)?;
        if opcode.is_first() || opcode.is_middle() {
            self.responder.message = Message::Send;
            return Ok(());
        }
        if let Some(rkey) = packet.headers.invalidate.filter(|_| !planted(Mutation::InvalidationForgotten)) {
            pass.memory.invalidate(rkey.0, self.accessor()).map_err(|_| Violation::Invalidate)?;
        }
        self.responder.message = Message::None;
        self.bump_message_count();
        let filled = self.responder.receive.map_or(0, |receive| receive.filled);
        let mut completion = RawCompletion { byte_len: filled, ..RawCompletion::default() };
        if let Some(immediate) = packet.headers.immediate {
            completion.flags = CompletionFlags::WITH_IMMEDIATE;
            let is_swapped = planted(Mutation::ImmediateSwapped);
            completion.immediate_or_key = if is_swapped { immediate.swap_bytes() } else { immediate };
        } else if let Some(rkey) = packet.headers.invalidate {
            completion.flags = CompletionFlags::WITH_INVALIDATE;
            completion.immediate_or_key = rkey.0;
        }
        let is_forgotten = (filled == 0 && planted(Mutation::EmptyMessageNotCompleted))
            || (opcode.is_last() && planted(Mutation::SendLastNotCompleted));
        if !is_forgotten {
            self.finish_receive(completion, packet.headers.bth.solicited);
        }
        Ok(())
    }

    /// Takes the next posted receive, if the packet needs one. There was one, but another queue pair may have taken it
    /// meanwhile if the queue is shared. One that a dropped message left comes first.
    pub(super) fn claim_receive(&mut self, packet: &Packet<'_>) -> bool {
        let opcode = packet.headers.bth.opcode;
        let takes_none = opcode.is_write() && planted(Mutation::WriteConsumesNoReceive);
        if !needs_receive(opcode) || takes_none || self.responder.receive.is_some() {
            return true;
        }
        let taken = self.receive.take(&mut self.responder.receive_entries);
        self.responder.receive = taken.map(|(wr_id, index)| ReceiveInProgress { wr_id, index, filled: 0 });
        taken.is_some() || planted(Mutation::MissingReceiveIgnored)
    }

    pub(super) fn fill_receive(&mut self, pass: &Pass<'_>, payload: &[u8]) -> Result<(), Violation> {
        if payload.is_empty() {
            return Ok(());
        }
        let Some(receive) = self.responder.receive else { return Err(Violation::OpcodeSequence) };
        let entries = &self.responder.receive_entries;
        let room: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        let filled = u64::from(receive.filled) + payload.len() as u64;
        if filled > room && planted(Mutation::LongMessageTaken) {
            return Ok(());
        }
        if filled > room {
            return Err(Violation::ReceiveTooSmall);
        }
        if filled > u64::from(MAX_MESSAGE_BYTES) {
            return Err(Violation::MessageLength);
        }
        let domain = self.receive.domain(self.domain);
        for_each_piece(entries, u64::from(receive.filled), payload.len(), |sge, addr, range| {
            pass.memory.write(sge.lkey.0, domain, addr, AccessFlags::LOCAL_WRITE, &payload[range])
        })
        .map_err(Violation::ReceiveMemory)?;
        self.responder.receive = Some(ReceiveInProgress { filled: filled as u32, ..receive });
        Ok(())
    }

    #[inline]
    fn finish_receive(&mut self, mut completion: RawCompletion, solicited: bool) {
        let Some(receive) = self.responder.receive.take() else { return };
        completion.wr_id = receive.wr_id;
        completion.retired = receive.index.wrapping_add(1);
        self.complete_receive_as(completion, solicited);
    }

    /// A packet that was executed before.
    fn handle_duplicate(&mut self, pass: &Pass<'_>, packet: &Packet<'_>, bytes: usize) -> Result<(), DropReason> {
        self.count(Counter::DuplicateRequest);
        let psn = packet.headers.bth.psn;
        let (opcode, named) = (packet.headers.bth.opcode, packet.headers.xrc_srq);
        if opcode != Opcode::RC_READ_REQUEST {
            self.responder.responses.earn(bytes);
        }
        self.handle_duplicate_wrongly(pass, packet);
        let found = match (opcode, packet.headers.reth) {
            (Opcode::RC_READ_REQUEST, Some(reth)) => {
                let mtu = self.mtu_bytes();
                self.responder.responses.repeat_read(pass.now, psn, reth, named, mtu)
            }
            (Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD, _) => self.responder.responses.repeat_atomic(psn, named),
            (Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH, _) if planted(Mutation::EmptyAnswerNotRepeated) => false,
            (Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH, _) => {
                let count = self.responder.message_count;
                self.responder.responses.repeat_empty(psn, count);
                true
            }
            _ if planted(Mutation::DuplicateNotAcknowledged) => false,
            _ => {
                let count = self.responder.message_count;
                self.responder.responses.acknowledge_again(count, pass.now);
                true
            }
        };
        if found { Ok(()) } else { Err(DropReason::StaleDuplicate) }
    }
}

/// Whether a packet of this kind needs a posted receive.
fn needs_receive(opcode: Opcode) -> bool {
    let begins_send = opcode.is_send() && (opcode.is_first() || opcode.is_only());
    begins_send || (opcode.is_write() && opcode.has_immediate())
}

/// Whether the request has a response of its own instead of an acknowledgement.
fn has_explicit_response(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RC_READ_REQUEST
            | Opcode::RC_COMPARE_SWAP
            | Opcode::RC_FETCH_ADD
            | Opcode::RC_ATOMIC_WRITE
            | Opcode::RC_FLUSH
    )
}
