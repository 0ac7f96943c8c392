//! The overflow of a completion queue: one event reports the queue, and one more reports each of its queue pairs. The
//! queue pairs go to the error state, because their completions would be lost (IBTA, completion queue errors).

use super::Endpoint;
use crate::transport::loop_bound::LoopBound;
use crate::transport::queue_pair::QueuePair;
use crate::types::Time;

impl Endpoint {
    /// Moves every queue pair that completes into an overflowed queue to the error state, even if it has nothing to
    /// complete.
    pub fn fail_queue_pairs_of_overflowed(&mut self, now: Time) {
        // A nested call returns at once: the next round of the outer call handles its queue pairs.
        if std::mem::replace(&mut self.fails_overflowed, true) {
            return;
        }
        self.fail_until_none_is_left(now);
        self.fails_overflowed = false;
    }

    fn fail_until_none_is_left(&mut self, now: Time) {
        // Flushing a queue pair may make another completion queue overflow. Each round leaves fewer working queue
        // pairs.
        let mut bound = LoopBound::new("overflowed completion queues", self.queue_pair_count() + 1);
        loop {
            bound.step();
            let slots = self.slots_where(QueuePair::lost_its_completion_queue);
            if slots.is_empty() {
                return;
            }
            for slot in slots {
                self.guard(now, |endpoint| endpoint.fail_by_overflow(now, slot));
            }
        }
    }

    fn fail_by_overflow(&mut self, now: Time, slot: u32) {
        if let Some(queue_pair) = self.enter(slot) {
            queue_pair.fail_by_overflow();
        }
        self.update_deadline(now, slot);
        self.list_sender(now, slot);
        self.serve_fair_queue(now, slot);
    }
}
