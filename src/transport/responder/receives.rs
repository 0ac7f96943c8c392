//! The receives of a queue pair: where they come from (its own queue, a shared one, or the one that each message
//! names), the one that a message is being written into, and where they complete.

use std::sync::Arc;

use super::{Common, CompletionSink, Pass};
use crate::memory::AccessError;
use crate::queue::{NotTaken, ReceiveConsumer, SharedReceiveQueue, XrcDomain};
use crate::transport::segments::scatter;
use crate::types::{
    Cause, CompletionOpcode, CompletionStatus, Counter, DomainId, DropReason, MAX_MESSAGE_BYTES, PeerFault,
    RawCompletion, Sge, SharedReceiveQueueNumber,
};
use crate::wire::Packet;

/// Most scatter-gather entries of a receive in a queue that is not known yet.
const MOST_ENTRIES: usize = crate::queue::MAX_SGES as usize;

/// Where receives come from.
pub enum ReceiveSource {
    /// The queue pair's own queue.
    Own(ReceiveConsumer),
    /// A queue from which other queue pairs, also on other shards, take too.
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
    /// Its number in its queue.
    index: u32,
    /// Bytes written.
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

/// See the module.
pub(in crate::transport) struct Receives {
    source: ReceiveSource,
    /// Of an XRC target: the queue that the message in progress, or the last one, names.
    named: Option<Arc<SharedReceiveQueue>>,
    begun: Option<Begun>,
    /// Scatter list of the receive that was taken last.
    entries: Vec<Sge>,
    completions: CompletionSink,
}

impl Receives {
    pub(in crate::transport) fn new(source: ReceiveSource, max_recv_sge: u32, completions: CompletionSink) -> Self {
        let mut receives = Self { source, named: None, begun: None, entries: Vec::new(), completions };
        receives.entries.reserve(receives.max_sge(max_recv_sge) as usize);
        receives
    }

    /// Scatter-gather entries of a receive at most.
    fn max_sge(&self, own: u32) -> u32 {
        match &self.source {
            ReceiveSource::Own(_) => own,
            ReceiveSource::Shared(queue) => queue.max_sge(),
            ReceiveSource::Named(_) => MOST_ENTRIES as u32,
            ReceiveSource::Nothing => 0,
        }
    }

    /// Receives that wait. Those of a queue that is not the own one may be gone when they are to be taken.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        match &self.source {
            ReceiveSource::Own(queue) => queue.available(),
            ReceiveSource::Shared(queue) => queue.available(),
            ReceiveSource::Named(_) => self.named.as_ref().map_or(0, |queue| queue.available()),
            ReceiveSource::Nothing => 0,
        }
    }

    /// Takes the oldest receive, whose entries replace the scatter list.
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

    /// Begins the oldest receive, if none is begun. False: none is posted.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        if self.begun.is_none() {
            self.begun = self.take();
        }
        self.begun.is_some()
    }

    /// Begins the oldest receive if a datagram of so many bytes fits into it: one that does not must not cost the
    /// receive.
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

    /// `wr_id` of the receive that is begun.
    #[inline]
    pub(super) fn begun(&self) -> Option<u64> {
        self.begun.map(|begun| begun.wr_id)
    }

    /// Takes the begun receive back, without a completion.
    pub(super) fn take_begun(&mut self) -> Option<u64> {
        self.begun.take().map(|begun| begun.wr_id)
    }

    pub(super) fn forget_begun(&mut self) {
        self.begun = None;
    }

    /// The message was dropped: the begun receive serves the next one, from its first byte on.
    pub(super) fn restart(&mut self) {
        if let Some(begun) = &mut self.begun {
            begun.filled = 0;
        }
    }

    /// Bytes in the begun receive.
    pub(super) fn filled(&self) -> u32 {
        self.begun.map_or(0, |begun| begun.filled)
    }

    /// Writes the payload behind the bytes that the begun receive has.
    #[inline]
    pub(super) fn fill(&mut self, common: &Common, pass: &Pass<'_>, payload: &[u8]) -> Result<(), PeerFault> {
        if payload.is_empty() {
            return Ok(());
        }
        let Some(begun) = self.begun else { return Err(PeerFault::OpcodeSequence) };
        let room: u64 = self.entries.iter().map(|entry| u64::from(entry.length)).sum();
        let filled = u64::from(begun.filled) + payload.len() as u64;
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

    /// Writes bytes to this offset of the begun receive.
    pub(super) fn scatter(
        &self,
        common: &Common,
        pass: &Pass<'_>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), AccessError> {
        scatter(pass.memory, &self.entries, self.domain(common.domain), offset, bytes)
    }

    /// Completes the begun receive: `completion` has all but what it shares with every other one of the queue pair.
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

    /// Completes the receives of the own queue as flushed. Those of a shared one are for the other queue pairs (IBTA,
    /// queue pair states).
    pub(super) fn flush(&mut self, common: &mut Common, cause: Cause) {
        let ReceiveSource::Own(queue) = &self.source else { return };
        // Those that are there now: what other threads post meanwhile has a doorbell of its own.
        for _ in 0..queue.available() {
            let Some(taken) = self.take() else { break };
            common.count(Counter::Flushed);
            self.complete(common, taken.failure(CompletionStatus::WorkRequestFlushedError, cause), false);
        }
    }

    #[inline]
    fn complete(&self, common: &mut Common, mut completion: RawCompletion, solicited: bool) {
        // In place: a copy would wait for the stores of its fields.
        if completion.opcode != CompletionOpcode::ReceiveRdmaWithImmediate {
            completion.opcode = CompletionOpcode::Receive;
        }
        completion.source_qpn = common.attributes.dest_qp_num.unwrap_or(completion.source_qpn);
        completion.qpn = common.qpn;
        common.complete(self.completions(), completion, solicited);
    }

    /// Removes the completions of the queue pair that were not polled yet.
    pub(super) fn purge_completions(&self) {
        let (queue, token) = &self.completions;
        queue.purge(*token);
    }

    /// Says whether receives are completed as flushed from now on; see [`ReceiveConsumer::set_flushes`].
    pub(super) fn set_flushes(&mut self, flushes: bool) {
        if let ReceiveSource::Own(queue) = &mut self.source {
            queue.set_flushes(flushes);
        }
    }

    /// Forgets what waits in the own queue, and which queue was in use.
    pub(super) fn reset(&mut self) {
        self.named = None;
        if let ReceiveSource::Own(queue) = &mut self.source {
            queue.reset();
        }
    }

    /// Whether receives come from a queue that others take from too.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.source, ReceiveSource::Shared(_) | ReceiveSource::Named(_))
    }

    /// Where receives complete: the named queue may have a completion queue of its own.
    #[inline]
    pub(super) fn completions(&self) -> &CompletionSink {
        self.named.as_ref().and_then(|queue| queue.completions()).unwrap_or(&self.completions)
    }

    /// The protection domain of the receives' memory.
    #[inline]
    fn domain(&self, own: DomainId) -> DomainId {
        match &self.source {
            ReceiveSource::Shared(queue) => queue.domain(),
            ReceiveSource::Named(_) => self.named.as_ref().map_or(own, |queue| queue.domain()),
            _ => own,
        }
    }

    /// The protection domain for what the peer accesses: an XRC target has none of its own, but those of the queues.
    #[inline]
    pub(super) fn remote_domain(&self, own: DomainId) -> DomainId {
        self.named.as_ref().map_or(own, |queue| queue.domain())
    }

    /// The queue that the message in progress, or the last one, names.
    pub(super) fn named_number(&self) -> Option<SharedReceiveQueueNumber> {
        self.named.as_ref().map(|queue| queue.number())
    }

    /// Finds the queue that the packet names, if it names one.
    #[inline]
    pub(super) fn select(&mut self, packet: &Packet<'_>) -> Result<(), PeerFault> {
        let Some(number) = packet.headers.xrc_srq else { return Ok(()) };
        let opcode = packet.headers.bth.opcode;
        self.select_number(number, opcode.is_first() || opcode.is_only())
    }

    /// A message names its queue in each of its packets (IBTA, annex Extended Reliable Connected).
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
