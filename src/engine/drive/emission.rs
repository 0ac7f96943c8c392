//! Events for subscribers of `tracing` that arise while the shard is held: its thread emits them.

use std::sync::Arc;

use super::shard::{MOST_EVENTS, Shard};
use crate::queue::note_later;

/// Most events that are emitted between two passes of the thread.
const EVENTS_AT_ONCE: usize = 32;

impl Shard {
    /// Makes events wake the shard's thread.
    pub(super) fn wake_for_events(self: &Arc<Self>) {
        let shard = Arc::downgrade(self);
        self.journal.wake_with(move || {
            if let Some(shard) = shard.upgrade() {
                shard.wake.call();
            }
        });
    }

    /// Emits some of the events that wait. The caller holds nothing: a subscriber may use the shard.
    #[inline]
    pub(super) fn emit_events(&self) {
        if self.journal.has_entries() && self.journal.emit(EVENTS_AT_ONCE) {
            // The rest follows after the next pass.
            self.wake.call();
        }
    }

    /// Emits all events that wait, because the device ends. The caller holds nothing.
    pub(crate) fn emit_last_events(&self) {
        self.journal.emit(MOST_EVENTS);
    }

    /// Returns the name of the device, for events.
    pub(crate) fn device(&self) -> &str {
        self.journal.device()
    }

    /// Notes that the shard has failed.
    #[cold]
    pub(super) fn note_failure(&self) {
        note_later!(
            self.journal, target: "rdma_verbs::device", ERROR,
            "the shard panicked, and its queue pairs can no longer be used; please report this"
        );
    }
}
