//! The receives of a queue pair: their source (its own queue, a shared one, or the one that each message names), the
//! one that a message is being written into, and their completions.

use std::sync::Arc;

use super::{Common, CompletionSink, Pass};
use crate::memory::AccessError;
use crate::queue::{NotTaken, ReceiveConsumer, SharedReceiveQueue, XrcDomain};
use crate::transport::segments::{Bytes, scatter};
use crate::types::{
    Cause, CompletionOpcode, CompletionStatus, Counter, DomainId, DropReason, MAX_MESSAGE_BYTES, PeerFault,
    RawCompletion, Sge, SharedReceiveQueueNumber,
};
use crate::wire::Packet;

/// Maximum number of SGEs of a receive in a queue that is not known yet.
const MOST_ENTRIES: usize = crate::queue::MAX_SGES as usize;

/// Source of receives.
pub enum ReceiveSource {
    /// The queue pair's own queue.
    Own(ReceiveConsumer),
    /// A queue shared with other queue pairs, also on other shards.
    Shared(Arc<SharedReceiveQueue>),
    /// An XRC target: each message names a queue of the domain.
    Named(Arc<XrcDomain>),
    /// An XRC initiator: nothing is received.
    Nothing,
}

/// A receive that a message is being written into.
#[derive(Clone, Copy)]
struct Begun {
    wr_id: u64,
    /// Its index in its queue.
    index: u32,
    /// Bytes written so far.
    filled: u32,
}

impl Begun {
    fn completion(&self) -> RawCompletion {
        let retired = self.index.wrapping_add(1);
        RawCompletion { wr_id: self.wr_id, retired, ..RawCompletion::default() }
    }

    fn failure(&self, status: CompletionStatus, cause: Cause) -> RawCompletion {
        RawCompletion { status, cause, ..self.completion() }
    }
}

/// The source of receives, and the receive in progress.
pub(in crate::transport) struct Receives {
    source: ReceiveSource,
    /// The queue that the current or last message of an XRC target names.
    named: Option<Arc<SharedReceiveQueue>>,
    begun: Option<Begun>,
    /// Scatter list of the last receive taken.
    entries: Vec<Sge>,
    completions: CompletionSink,
}

impl Receives {
    pub(in crate::transport) fn new(source: ReceiveSource, max_recv_sge: u32, completions: CompletionSink) -> Self {
        let mut receives = Self { source, named: None, begun: None, entries: Vec::new(), completions };
        receives.entries.reserve(receives.max_sge(max_recv_sge) as usize);
        receives
    }

    /// Returns the maximum number of SGEs of a receive.
    fn max_sge(&self, own: u32) -> u32 {
        match &self.source {
            ReceiveSource::Own(_) => own,
            ReceiveSource::Shared(queue) => queue.max_sge(),
            ReceiveSource::Named(_) => MOST_ENTRIES as u32,
            ReceiveSource::Nothing => 0,
        }
    }

    /// Returns the number of available receives. Other queue pairs may take those of a shared or named queue first.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        match &self.source {
            ReceiveSource::Own(queue) => queue.available(),
            ReceiveSource::Shared(queue) => queue.available(),
            ReceiveSource::Named(_) => self.named.as_ref().map_or(0, |queue| queue.available()),
            ReceiveSource::Nothing => 0,
        }
    }

    /// Takes the oldest receive, whose SGEs replace the scatter list.
    #[inline]
    fn take(&mut self) -> Option<Begun> {
        let entries = &mut self.entries;
        let taken = match &mut self.source {
            ReceiveSource::Own(queue) => queue.take(entries),
            ReceiveSource::Shared(queue) => queue.take(entries),
            ReceiveSource::Named(_) => self.named.as_ref().and_then(|queue| queue.take(entries)),
            ReceiveSource::Nothing => None,
        };
        taken.map(|(wr_id, index)| Begun { wr_id, index, filled: 0 })
    }

    /// Begins the oldest receive, if none is begun. Returns false if none is posted.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        if self.begun.is_none() {
            self.begun = self.take();
        }
        self.begun.is_some()
    }

    /// Begins the oldest receive if `needed` bytes fit into it: a datagram that does not fit must not consume it (IBTA
    /// 9.8.3.2.2).
    pub(super) fn begin_with_room(&mut self, needed: u64) -> Result<(), DropReason> {
        let entries = &mut self.entries;
        let taken = match &mut self.source {
            ReceiveSource::Own(queue) => match queue.next_room() {
                Some(room) if room >= needed => queue.take(entries).ok_or(DropReason::NoReceive),
                Some(_) => Err(DropReason::ReceiveTooSmall),
                None => Err(DropReason::NoReceive),
            },
            ReceiveSource::Shared(queue) => match queue.take_with_room(needed, entries) {
                Ok(taken) => Ok(taken),
                Err(NotTaken::TooSmall) => Err(DropReason::ReceiveTooSmall),
                Err(NotTaken::Empty) => Err(DropReason::NoReceive),
            },
            ReceiveSource::Named(_) | ReceiveSource::Nothing => Err(DropReason::NoReceive),
        };
        let (wr_id, index) = taken?;
        self.begun = Some(Begun { wr_id, index, filled: 0 });
        Ok(())
    }

    /// Returns the `wr_id` of the begun receive.
    #[inline]
    pub(super) fn begun(&self) -> Option<u64> {
        self.begun.map(|begun| begun.wr_id)
    }

    /// Takes back the begun receive, without a completion.
    pub(super) fn take_begun(&mut self) -> Option<u64> {
        self.begun.take().map(|begun| begun.wr_id)
    }

    pub(super) fn forget_begun(&mut self) {
        self.begun = None;
    }

    /// Rewinds the begun receive of a dropped message for the next message.
    pub(super) fn restart(&mut self) {
        if let Some(begun) = &mut self.begun {
            begun.filled = 0;
        }
    }

    /// Returns the bytes in the begun receive.
    pub(super) fn filled(&self) -> u32 {
        self.begun.map_or(0, |begun| begun.filled)
    }

    /// Appends the payload to the begun receive.
    #[inline]
    pub(super) fn fill(&mut self, common: &Common, pass: &Pass<'_>, payload: impl Bytes) -> Result<(), PeerFault> {
        if payload.count() == 0 {
            return Ok(());
        }
        let Some(begun) = self.begun else { return Err(PeerFault::OpcodeSequence) };
        let room: u64 = self.entries.iter().map(|entry| u64::from(entry.length)).sum();
        let filled = u64::from(begun.filled) + payload.count() as u64;
        if filled > room {
            return Err(PeerFault::ReceiveTooSmall);
        }
        if filled > u64::from(MAX_MESSAGE_BYTES) {
            return Err(PeerFault::MessageLength);
        }
        self.scatter(common, pass, begun.filled.into(), payload).map_err(PeerFault::of_receive)?;
        self.begun = Some(Begun { filled: filled as u32, ..begun });
        Ok(())
    }

    /// Writes bytes at this offset of the begun receive.
    pub(super) fn scatter(
        &self,
        common: &Common,
        pass: &Pass<'_>,
        offset: u64,
        bytes: impl Bytes,
    ) -> Result<(), AccessError> {
        scatter(pass.memory, &self.entries, self.domain(common.domain), offset, bytes)
    }

    /// Completes the begun receive. `completion` lacks only the fields common to all receives of the queue pair.
    #[inline]
    pub(super) fn finish(&mut self, common: &mut Common, mut completion: RawCompletion, solicited: bool) {
        let Some(begun) = self.begun.take() else { return };
        completion.wr_id = begun.wr_id;
        completion.retired = begun.index.wrapping_add(1);
        self.complete(common, completion, solicited);
    }

    /// Completes the begun receive, if there is one, with an error.
    pub(super) fn fail_begun(&mut self, common: &mut Common, status: CompletionStatus, cause: Cause) {
        if let Some(begun) = self.begun.take() {
            self.complete(common, begun.failure(status, cause), false);
        }
    }

    /// Completes the receives of its own queue as flushed. Those of a shared one remain for the other queue pairs
    /// (IBTA 10.3.1).
    pub(super) fn flush(&mut self, common: &mut Common, cause: Cause) {
        let ReceiveSource::Own(queue) = &self.source else { return };
        // Only the receives posted so far: those that other threads post meanwhile have a doorbell of their own.
        for _ in 0..queue.available() {
            let Some(taken) = self.take() else { break };
            common.count(Counter::Flushed);
            self.complete(common, taken.failure(CompletionStatus::WorkRequestFlushedError, cause), false);
        }
    }

    #[inline]
    fn complete(&self, common: &mut Common, mut completion: RawCompletion, solicited: bool) {
        // Modified in place: a copy would wait for the stores of its fields.
        if completion.opcode != CompletionOpcode::ReceiveWriteWithImmediate {
            completion.opcode = CompletionOpcode::Receive;
        }
        completion.source_qpn = common.attributes.dest_qp_num.unwrap_or(completion.source_qpn);
        completion.qpn = common.qpn;
        common.complete(self.completions(), completion, solicited);
    }

    /// Removes the queue pair's completions not yet polled.
    pub(super) fn purge_completions(&self) {
        let (queue, token) = &self.completions;
        queue.purge(*token);
    }

    /// Sets whether receives complete as flushed from now on; see [`ReceiveConsumer::set_flushes`].
    pub(super) fn set_flushes(&mut self, flushes: bool) {
        if let ReceiveSource::Own(queue) = &mut self.source {
            queue.set_flushes(flushes);
        }
    }

    /// Drops the receives in its own queue, and forgets the named queue.
    pub(super) fn reset(&mut self) {
        self.named = None;
        if let ReceiveSource::Own(queue) = &mut self.source {
            queue.reset();
        }
    }

    /// Whether receives come from a queue that other queue pairs use too.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.source, ReceiveSource::Shared(_) | ReceiveSource::Named(_))
    }

    /// Returns the completion queue of receives: the named queue may have its own.
    #[inline]
    pub(super) fn completions(&self) -> &CompletionSink {
        self.named.as_ref().and_then(|queue| queue.completions()).unwrap_or(&self.completions)
    }

    /// Returns the protection domain of the receives' memory.
    #[inline]
    fn domain(&self, own: DomainId) -> DomainId {
        match &self.source {
            ReceiveSource::Shared(queue) => queue.domain(),
            ReceiveSource::Named(_) => self.named.as_ref().map_or(own, |queue| queue.domain()),
            _ => own,
        }
    }

    /// Returns the protection domain of the peer's accesses: an XRC target uses that of the named queue.
    #[inline]
    pub(super) fn remote_domain(&self, own: DomainId) -> DomainId {
        self.named.as_ref().map_or(own, |queue| queue.domain())
    }

    /// Returns the number of the queue that the current or last message names.
    pub(super) fn named_number(&self) -> Option<SharedReceiveQueueNumber> {
        self.named.as_ref().map(|queue| queue.number())
    }

    /// Selects the queue that the packet names, if it names one.
    #[inline]
    pub(super) fn select(&mut self, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let Some(number) = packet.headers.xrc_srq else { return Ok(()) };
        let opcode = packet.headers.bth.opcode;
        self.select_number(number, opcode.is_first() || opcode.is_only())
    }

    /// Selects a message's queue, which each of its packets names (IBTA A14).
    fn select_number(&mut self, number: SharedReceiveQueueNumber, begins: bool) -> Result<(), PeerFault> {
        let ReceiveSource::Named(domain) = &self.source else { return Ok(()) };
        if begins {
            self.named = domain.find(number);
        }
        match &self.named {
            Some(queue) if queue.number() == number && !queue.is_closed() => Ok(()),
            Some(queue) if queue.number() != number => Err(PeerFault::OpcodeSequence),
            _ => Err(PeerFault::UnknownSharedReceiveQueue),
        }
    }
}
