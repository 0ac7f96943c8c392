//! The responder: executes the peer's requests, exactly once and in order.
//!
//! A request packet with the expected PSN passes a chain of checks (opcode sequence, operation, resources, length,
//! key), is executed, completed and acknowledged (IBTA 9.7.4.1). A packet with a later PSN waits in the reorder buffer,
//! one with an earlier PSN is a duplicate: SENDs and WRITEs are acknowledged again (IBTA C9-105), READs are executed
//! again, atomics get the stored result again (`rxe_resp.c`, `check_psn` and `duplicate_request`; rxe drops later
//! packets). Unreliable connections use the same checks, but drop a packet where a reliable connection refuses it.

mod ack_only;
mod check;
mod datagram;
mod duplicate;
mod early;
mod execute;
mod receives;
mod reorder;
mod response_pace;
mod response_packet;
mod response_queue;
mod unreliable;

use std::sync::Arc;

use super::common::{Common, CompletionSink, Pass};
use crate::memory::{Exports, QueuePairGrant};
use crate::types::{
    Accessor, AsyncEvent, Cause, CompletionStatus, Counter, DomainId, PeerFault, Psn, QueuePairState, Rkey, Time,
};
use crate::wire::{NakCode, Opcode, Packet, Syndrome};

pub(super) use datagram::{Identified, check_datagram, identify};
use duplicate::RepeatedRead;
use early::Gap;
pub use receives::ReceiveSource;
pub(super) use receives::Receives;
pub(super) use reorder::Arrived;
pub use reorder::ReorderBudget;
use reorder::ReorderBuffer;
pub(super) use response_packet::ResponsePlan;
pub(super) use response_queue::ResponseQueue;
pub(super) use unreliable::ReceiveError;

/// The message whose packets are arriving.
#[derive(Clone, Copy, Default)]
enum Message {
    #[default]
    None,
    Send,
    Write(WriteInProgress),
}

/// A WRITE whose packets are arriving: the address of the next byte, and the remaining length.
#[derive(Clone, Copy)]
struct WriteInProgress {
    va: u64,
    rkey: Rkey,
    remaining: u32,
    total: u32,
}

impl WriteInProgress {
    /// Returns the state after a packet that is not the last.
    #[inline]
    fn after(self, length: u32) -> Self {
        let va = self.va.wrapping_add(u64::from(length));
        Self { va, remaining: self.remaining - length, ..self }
    }
}

/// The receiving half of a queue pair.
pub(super) struct Responder {
    /// PSN of the next packet to execute.
    expected: Psn,
    /// Messages executed.
    executed: u64,
    message: Message,
    receives: Receives,
    responses: ResponseQueue,
    reorder: ReorderBuffer,
    gap: Gap,
    /// An RNR NAK was sent for the expected packet: early packets are dropped until the peer retries it.
    waits_for_retry: bool,
    /// The refusal that ended the connection; repeated when the peer repeats the refused packet.
    refused: Option<(Psn, NakCode)>,
    /// A repeated READ, watched as long as it is unknown whether the path carries ECT packets.
    repeated_read: Option<Box<RepeatedRead>>,
    /// The grant of the peer's direct accesses.
    grant: Option<Box<QueuePairGrant>>,
}

impl Responder {
    pub(super) fn new(reorder_budget: Arc<ReorderBudget>, receives: Receives) -> Self {
        Self {
            expected: Psn::default(),
            executed: 0,
            message: Message::None,
            receives,
            responses: ResponseQueue::default(),
            reorder: ReorderBuffer::new(reorder_budget),
            gap: Gap::default(),
            waits_for_retry: false,
            refused: None,
            repeated_read: None,
            grant: None,
        }
    }

    /// Starts receiving at `psn`. Keeps `record_factor` times as many READs and atomics as may be outstanding, for
    /// repetitions.
    pub(super) fn start(&mut self, psn: Psn, max_dest_rd_atomic: u8, record_factor: usize) {
        self.expected = psn;
        self.responses.start(psn.minus(1), max_dest_rd_atomic, record_factor);
    }

    /// Raises the number of READs and atomics that the peer may have outstanding.
    pub(super) fn make_room(&mut self, max_dest_rd_atomic: u8, record_factor: usize) {
        self.responses.make_room(max_dest_rd_atomic, record_factor);
    }

    pub(super) fn reset(&mut self) {
        self.stop();
        self.refused = None;
        self.repeated_read = None;
        self.executed = 0;
        self.receives.forget_begun();
        self.responses.clear();
    }

    /// Stops accepting packets. Responses that are already due are still sent.
    pub(super) fn stop(&mut self) {
        self.message = Message::None;
        self.reorder.clear();
        self.close_gap();
        self.waits_for_retry = false;
        self.grant = None;
        self.responses.stop();
    }

    /// Returns the grant of the peer's direct accesses, which is given the first time.
    pub(super) fn grant(&mut self, exports: &Arc<Exports>) -> Option<&QueuePairGrant> {
        if self.grant.is_none() {
            self.grant = exports.grant().map(Box::new);
        }
        self.grant.as_deref()
    }

    /// Ends the peer's direct accesses.
    pub(super) fn end_direct_access(&mut self) {
        self.grant = None;
    }

    /// Drops due responses without inspecting them: their records may be inconsistent.
    pub(super) fn abandon(&mut self) {
        self.responses.clear();
    }

    /// Drops receives that are posted but not begun.
    pub(super) fn forget_posted(&mut self) {
        self.receives.reset();
    }

    /// Removes completions not yet polled.
    pub(super) fn purge_completions(&self) {
        self.receives.purge_completions();
    }

    /// Returns the PSN of the next packet to execute.
    #[inline]
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// Returns how far a packet is ahead of the expected one; negative for a duplicate.
    pub(super) fn distance(&self, psn: Psn) -> i32 {
        psn.distance_from(self.expected)
    }

    /// Returns the number of executed messages of the peer.
    pub(super) fn executed(&self) -> u64 {
        self.executed
    }

    /// Returns the number of executed messages as the peer sees it in acknowledgements (MSN).
    #[inline]
    fn message_count(&self) -> u32 {
        message_sequence_number(self.executed)
    }

    /// Counts an executed message. SENDs and WRITEs count at their last packet (`rxe_resp.c`, `execute`).
    fn count_message(&mut self) {
        self.executed += 1;
    }

    /// Returns the number of available receives.
    pub(super) fn available_receives(&self) -> u32 {
        self.receives.available()
    }

    /// Whether receives come from a queue that other queue pairs use too.
    pub(super) fn has_shared_receives(&self) -> bool {
        self.receives.is_shared()
    }

    /// Whether the completion queue of receives has overflowed.
    pub(super) fn has_lost_completions(&self) -> bool {
        self.receives.completions().0.overflowed()
    }

    /// Returns the accessor for the peer's accesses to registered memory.
    pub(super) fn accessor(&self, common: &Common) -> Accessor {
        Accessor { domain: self.remote_domain(common), queue_pair: common.qpn }
    }

    /// Returns the protection domain of the peer's accesses.
    #[inline]
    fn remote_domain(&self, common: &Common) -> DomainId {
        self.receives.remote_domain(common.domain)
    }

    /// Reports the first packet of the connection, if it arrives in RTR.
    pub(super) fn note_established(&mut self, common: &Common) {
        if common.state == QueuePairState::ReadyToReceive && self.responses.first_packet() {
            common.announce(AsyncEvent::CommunicationEstablished(common.qpn));
        }
    }

    /// Refuses a packet, which ends the connection: queues the NAK (IBTA 9.9.3; `rxe_resp.c`, `do_class_ac_error`).
    pub(super) fn refuse(&mut self, common: &mut Common, packet: &Packet<'_>, fault: PeerFault) {
        let psn = packet.headers.bth.psn;
        common.count(Counter::SentNak);
        common.log_refusal(psn, fault);
        let code = fault.nak();
        self.refused = Some((psn, code));
        self.responses.push_nak(psn, Syndrome::Nak(code), self.message_count());
        if fault.is_access() {
            // A WRITE with immediate data takes its receive even if its access is refused.
            self.claim_receive(packet.headers.bth.opcode);
        }
    }

    /// Returns the `wr_id` of the receive that a message is being written into.
    pub(super) fn begun_receive(&self) -> Option<u64> {
        self.receives.begun()
    }

    /// Takes back the receive that a message is being written into, without a completion.
    pub(super) fn take_begun_receive(&mut self) -> Option<u64> {
        self.receives.take_begun()
    }

    /// Completes the receive that a message is being written into, if there is one, with an error.
    pub(super) fn fail_receive(&mut self, common: &mut Common, status: CompletionStatus, cause: Cause) {
        self.receives.fail_begun(common, status, cause);
    }

    /// Sets whether posted receives complete as flushed.
    pub(super) fn set_flushes(&mut self, flushes: bool) {
        self.receives.set_flushes(flushes);
    }

    /// Completes the receive that a message is being written into as flushed.
    pub(super) fn flush_begun(&mut self, common: &mut Common, cause: Cause) {
        self.fail_receive(common, CompletionStatus::WorkRequestFlushedError, cause);
    }

    /// Completes the posted receives as flushed.
    pub(super) fn flush_posted(&mut self, common: &mut Common, cause: Cause) {
        self.receives.flush(common, cause);
    }

    /// Returns when [`Responder::handle_timeout`] must be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        let deadline = Time::earliest([self.gap.report_at(), self.responses.deadline()]);
        // Usually no packet is kept.
        if self.reorder.is_empty() { deadline } else { Time::earliest([deadline, self.reorder.deadline()]) }
    }

    /// Handles expired timers.
    pub(super) fn handle_timeout(&mut self, common: &mut Common, now: Time) {
        if self.gap.report_at().is_some_and(|time| time <= now) {
            self.report_gap(common);
        }
        self.reorder.handle_timeout(now);
        self.responses.handle_timeout(now);
    }
}

/// Whether a packet of this kind needs a posted receive (IBTA 10.7.2.2; `rxe_resp.c`, `check_resource`).
fn needs_receive(opcode: Opcode) -> bool {
    let begins_send = opcode.is_send() && (opcode.is_first() || opcode.is_only());
    begins_send || (opcode.is_write() && opcode.has_immediate())
}

/// Whether the request has an explicit response instead of an acknowledgement (`rxe_resp.c`, `acknowledge`).
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

/// Returns the message sequence number after this many messages: 24 bits (IBTA 9.7.5.2.1).
fn message_sequence_number(executed: u64) -> u32 {
    executed as u32 & 0x00ff_ffff
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn message_sequence_numbers_begin_again_and_the_count_does_not() {
        let after = [0, 1, 0x00ff_ffff, 0x0100_0000, 0x0100_0001, u64::MAX].map(message_sequence_number);
        assert_eq!(after, [0, 1, 0x00ff_ffff, 0, 1, 0x00ff_ffff]);
    }
}
