//! The state of a queue pair as posting threads see it.

use std::sync::atomic::{AtomicU8, Ordering};

use super::refusal::destroyed;
use crate::provider::{Error, ErrorKind, Result};
use crate::types::{Qpn, QueuePairState};

/// Marks a destroyed queue pair; not a state of the standard.
const DESTROYED: u8 = u8::MAX;

/// The state that the application last set, which posting threads check. The device's own changes lead only to the
/// error states, which make no difference to posting.
pub(in crate::provider) struct PostingState {
    qpn: Qpn,
    state: AtomicU8,
}

impl PostingState {
    /// Creates the state of a new queue pair: RESET.
    pub(in crate::provider) fn new(qpn: Qpn) -> Self {
        Self { qpn, state: AtomicU8::new(QueuePairState::Reset as u8) }
    }

    /// Records the state after a change; a destroyed queue pair stays destroyed.
    pub(in crate::provider) fn note(&self, state: QueuePairState) {
        let keep_destroyed = |old: u8| (old != DESTROYED).then_some(state as u8);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, keep_destroyed);
    }

    /// Marks the queue pair as destroyed. Returns its state before; `None` if it was destroyed already.
    pub(in crate::provider) fn destroy(&self) -> Option<QueuePairState> {
        QueuePairState::ALL.get(usize::from(self.state.swap(DESTROYED, Ordering::AcqRel))).copied()
    }

    /// Undoes [`PostingState::destroy`] if the device could not destroy the queue pair.
    #[cfg(any(test, feature = "ibverbs"))]
    pub(in crate::provider) fn restore(&self, state: QueuePairState) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(in crate::provider) fn is_destroyed(&self) -> bool {
        self.state.load(Ordering::Acquire) == DESTROYED
    }

    /// Fails once the queue pair is destroyed.
    pub(in crate::provider) fn check_alive(&self, verb: &'static str) -> Result<()> {
        if self.is_destroyed() { Err(destroyed(verb, self.qpn)) } else { Ok(()) }
    }

    /// Fails in states below `first`, in which posting is refused.
    #[inline]
    pub(in crate::provider) fn check(&self, verb: &'static str, first: QueuePairState) -> Result<()> {
        let state = self.state.load(Ordering::Relaxed);
        if state >= first as u8 && state != DESTROYED { Ok(()) } else { Err(self.wrong_state(verb, state, first)) }
    }

    #[cold]
    fn wrong_state(&self, verb: &'static str, state: u8, first: QueuePairState) -> Error {
        let Some(state) = QueuePairState::ALL.get(usize::from(state)) else { return destroyed(verb, self.qpn) };
        let message =
            format!("queue pair {} is in {}; posting is allowed from {} on", self.qpn, state.name(), first.name());
        Error::new(verb, ErrorKind::InvalidState, message)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn destroyed_queue_pairs_stay_destroyed_until_restored() {
        let state = PostingState::new(Qpn::new(7));
        let refused = state.check("post_send", QueuePairState::ReadyToSend).unwrap_err();
        assert_eq!(refused.to_string(), "post_send: queue pair 0x000007 is in RESET; posting is allowed from RTS on");
        state.note(QueuePairState::ReadyToSend);
        assert!(state.check("post_send", QueuePairState::ReadyToSend).is_ok());
        assert_eq!(state.destroy(), Some(QueuePairState::ReadyToSend));
        assert_eq!(state.destroy(), None);
        state.note(QueuePairState::Init);
        let refused = state.check("post_recv", QueuePairState::Init).unwrap_err();
        assert_eq!(refused.to_string(), "post_recv: queue pair 0x000007 is destroyed");
        assert!(state.is_destroyed() && state.check_alive("query_qp").is_err());
        state.restore(QueuePairState::Init);
        assert!(state.check("post_recv", QueuePairState::Init).is_ok());
    }
}
