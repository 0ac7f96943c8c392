//! What the overflow of a completion queue does: the application is told of the queue once and of each of its queue
//! pairs, and these go to the error state, because what they complete cannot be told any more.

use super::endpoint::Endpoint;
use super::loop_bound::LoopBound;
use super::queue_pair::QueuePair;
use crate::mutation::{Mutation, planted};
use crate::types::{AsyncEvent, Cause, Ending, QueuePairState, Time};

impl QueuePair {
    /// Goes to the error state if a completion was lost since the last time; whether that was so.
    #[inline]
    pub(super) fn end_by_overflow(&mut self) -> bool {
        let overflowed = self.common.take_overflow();
        if overflowed {
            self.fail_by_overflow();
        }
        overflowed
    }

    #[cold]
    fn fail_by_overflow(&mut self) {
        if matches!(self.common.state, QueuePairState::Reset | QueuePairState::Error) {
            return;
        }
        // Before what follows from it.
        self.common.announce(AsyncEvent::QueuePairFatal(self.common.qpn));
        self.common.history.note_ending(Ending::CompletionQueueOverflow);
        self.enter_error(Cause::CompletionQueueOverflow);
    }

    fn lost_its_completion_queue(&self) -> bool {
        let is_ended = matches!(self.common.state, QueuePairState::Reset | QueuePairState::Error);
        let is_alive = !is_ended && !planted(Mutation::OverflowEndsOne);
        is_alive && (self.requester.has_lost_completions() || self.responder.has_lost_completions())
    }
}

impl Endpoint {
    /// Takes every queue pair to the error state that completes into a queue which has overflowed, also those that had
    /// nothing to complete.
    pub fn fail_queue_pairs_of_overflowed(&mut self, now: Time) {
        // Flushing one may make another queue overflow. Each round leaves fewer queue pairs that work.
        let mut bound = LoopBound::new("overflowed completion queues", self.queue_pair_count() + 1);
        loop {
            bound.step();
            let places = self.places_where(QueuePair::lost_its_completion_queue);
            if places.is_empty() {
                return;
            }
            for place in places {
                if let Some(queue_pair) = self.at(place) {
                    queue_pair.fail_by_overflow();
                }
                self.settle_one(now, place);
                self.list_sender(now, place);
                self.serve_fair_queue(now, place);
            }
        }
    }
}
