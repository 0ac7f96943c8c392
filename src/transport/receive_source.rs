//! Where a queue pair's receives come from: its own queue, a shared one, or the one that each message names.

use std::sync::Arc;

use super::endpoint::Endpoint;
use super::queue_pair::QueuePair;
use super::violation::Violation;
use crate::mutation::{Mutation, planted};
use crate::queue::{CompletionQueue, NotTaken, ReceiveConsumer, SharedReceiveQueue, SourceToken, XrcDomain};
use crate::types::{AsyncEvent, DomainId, DropReason, Qpn, QueuePairState, Sge, SharedReceiveQueueNumber};
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

/// The source, and the queue that is in use.
pub(super) struct Receives {
    source: ReceiveSource,
    /// Of an XRC target: the queue that the message in progress, or the last one, names.
    named: Option<Arc<SharedReceiveQueue>>,
}

impl Receives {
    pub(super) fn new(source: ReceiveSource) -> Self {
        Self { source, named: None }
    }

    /// Scatter-gather entries of a receive at most.
    pub(super) fn max_sge(&self, own: u32) -> u32 {
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

    /// Takes the oldest receive: its entries replace the contents of `sges`, its `wr_id` and number are returned.
    #[inline]
    pub(super) fn take(&mut self, sges: &mut Vec<Sge>) -> Option<(u64, u32)> {
        match &mut self.source {
            ReceiveSource::Own(queue) => queue.take(sges),
            ReceiveSource::Shared(queue) => queue.take(sges),
            ReceiveSource::Named(_) => self.named.as_ref().and_then(|queue| queue.take(sges)),
            ReceiveSource::Nothing => None,
        }
    }

    /// Takes the oldest receive, as [`Receives::take`], if a datagram of so many bytes fits into it: one that does not
    /// must not cost the receive.
    pub(super) fn take_with_room(&mut self, needed: u64, sges: &mut Vec<Sge>) -> Result<(u64, u32), DropReason> {
        match &mut self.source {
            ReceiveSource::Own(queue) => match queue.next_room() {
                Some(room) if room >= needed => queue.take(sges).ok_or(DropReason::NoReceive),
                Some(_) => Err(DropReason::ReceiveTooSmall),
                None => Err(DropReason::NoReceive),
            },
            ReceiveSource::Shared(queue) => match queue.take_with_room(needed, sges) {
                Ok(taken) => Ok(taken),
                Err(NotTaken::TooSmall) => Err(DropReason::ReceiveTooSmall),
                Err(NotTaken::Empty) => Err(DropReason::NoReceive),
            },
            ReceiveSource::Named(_) | ReceiveSource::Nothing => Err(DropReason::NoReceive),
        }
    }

    /// Receives that [`Receives::take_own`] may find.
    pub(super) fn available_own(&self) -> u32 {
        match &self.source {
            ReceiveSource::Own(queue) => queue.available(),
            ReceiveSource::Shared(queue) if planted(Mutation::ErrorFlushesShared) => queue.available(),
            _ => 0,
        }
    }

    /// Takes the oldest receive of the own queue, to flush it. What waits in a shared one is for the other queue pairs.
    pub(super) fn take_own(&mut self, sges: &mut Vec<Sge>) -> Option<(u64, u32)> {
        match &mut self.source {
            ReceiveSource::Own(queue) => queue.take(sges),
            ReceiveSource::Shared(queue) if planted(Mutation::ErrorFlushesShared) => queue.take(sges),
            _ => None,
        }
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
        match &mut self.source {
            ReceiveSource::Own(queue) => {
                queue.reset();
            }
            ReceiveSource::Shared(queue) if planted(Mutation::ResetTakesShared) => {
                while queue.take(&mut Vec::new()).is_some() {}
            }
            _ => {}
        }
    }

    /// Whether receives come from a queue that others take from too.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.source, ReceiveSource::Shared(_) | ReceiveSource::Named(_))
    }

    /// Where receives complete, if their queue decides that.
    #[inline]
    pub(super) fn completions(&self) -> Option<&(Arc<CompletionQueue>, SourceToken)> {
        let named = self.named.as_ref().filter(|_| !planted(Mutation::XrcCompletesAtTarget));
        named.and_then(|queue| queue.completions())
    }

    /// The protection domain of the receives' memory.
    #[inline]
    pub(super) fn domain(&self, own: DomainId) -> DomainId {
        match &self.source {
            ReceiveSource::Shared(_) if planted(Mutation::SharedMemoryOfQueuePair) => own,
            ReceiveSource::Shared(queue) => queue.domain(),
            ReceiveSource::Named(_) => self.named.as_ref().map_or(own, |queue| queue.domain()),
            _ => own,
        }
    }

    /// The protection domain for what the peer accesses: an XRC target has none of its own, but those of the queues.
    #[inline]
    pub(super) fn remote_domain(&self, own: DomainId) -> DomainId {
        match &self.source {
            ReceiveSource::Shared(queue) if planted(Mutation::SharedDomainForPeers) => return queue.domain(),
            ReceiveSource::Named(_) if planted(Mutation::XrcDomainOfTarget) => return own,
            _ => {}
        }
        self.named.as_ref().map_or(own, |queue| queue.domain())
    }

    /// The queue that the message in progress, or the last one, names.
    pub(super) fn named_number(&self) -> Option<SharedReceiveQueueNumber> {
        self.named.as_ref().map(|queue| queue.number())
    }

    /// A message names its queue in each of its packets.
    fn select(&mut self, number: SharedReceiveQueueNumber, begins: bool) -> Result<(), Violation> {
        let ReceiveSource::Named(domain) = &self.source else { return Ok(()) };
        let keeps = self.named.is_some() && planted(Mutation::XrcQueueKept);
        if begins && !keeps {
            let found = domain.find(number);
            let waits = found.is_none() && planted(Mutation::XrcUnknownQueueWaits);
            self.named = if waits { self.named.take() } else { found };
        }
        match &self.named {
            Some(_) if keeps || planted(Mutation::XrcUnknownQueueWaits) => Ok(()),
            Some(queue) if queue.number() == number && !queue.is_closed() => Ok(()),
            Some(queue) if queue.number() != number => Err(Violation::OpcodeSequence),
            _ => Err(Violation::UnknownSharedReceiveQueue),
        }
    }
}

impl Endpoint {
    /// A queue pair that takes its receives from a shared queue and is about to go, or to be reset, takes no more of
    /// them; returns the `wr_id` of the one that a message had begun to fill, which never completes. What has completed
    /// can be polled before it is purged.
    pub fn stop_receiving(&mut self, qpn: Qpn) -> Option<u64> {
        let place = self.place_of(qpn)?;
        self.at(place)?.stop_receiving()
    }
}

impl QueuePair {
    fn stop_receiving(&mut self) -> Option<u64> {
        if !self.receive.is_shared() || !self.takes_requests() {
            return None;
        }
        // As in INIT nothing of the peer is taken, and nothing posted is sent, nor flushed: sends that are outstanding
        // come back without completions, for which their queue may have no room.
        self.state = QueuePairState::Init;
        self.requester.stop();
        self.responder.stop();
        self.note_in_flight();
        self.responder.take_receive().map(|receive| receive.wr_id)
    }

    /// Finds the receive queue that the packet names, if it names one.
    #[inline]
    pub(super) fn select_receive_queue(&mut self, packet: &Packet<'_>) -> Result<(), Violation> {
        let Some(number) = packet.headers.xrc_srq else { return Ok(()) };
        let opcode = packet.headers.bth.opcode;
        self.receive.select(number, opcode.is_first() || opcode.is_only())
    }

    /// The protection domain for what the peer accesses.
    #[inline]
    pub(super) fn remote_domain(&self) -> DomainId {
        self.receive.remote_domain(self.domain)
    }

    /// The last receive of a queue pair that is in error now has completed.
    pub(super) fn announce_last_receive(&self) {
        let is_told = self.receive.is_shared() && !planted(Mutation::LastReceiveNotAnnounced);
        if is_told || planted(Mutation::LastReceiveAnnouncedAlways) {
            self.events.push(AsyncEvent::LastWorkQueueElementReached(self.qpn));
        }
    }
}
