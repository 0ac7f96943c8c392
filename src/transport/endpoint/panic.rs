//! A panic in the code of a queue pair is a bug, and ends only that queue pair: it goes to the error state, its
//! requests are flushed, and the others of the shard continue.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Endpoint;
use crate::queue::note_later;
use crate::types::Time;

impl Endpoint {
    /// Runs an input or an output of the endpoint. Returns `None` if a queue pair panicked; it is in the error state.
    ///
    /// Each queue pair is noted in [`Endpoint::running`] before its code runs. The endpoint's own lists change only
    /// between such calls, so they are consistent when one of them panics; the queue pair's records may not be, and are
    /// discarded. Guards may be nested; the inner one catches the panic. Commands and getters have no guard: their
    /// panic ends the shard.
    #[inline]
    pub(super) fn guard<R>(&mut self, now: Time, code: impl FnOnce(&mut Self) -> R) -> Option<R> {
        self.guard_at(|| now, code)
    }

    /// As [`Endpoint::guard`], for code that needs no time: it is read after a panic.
    #[inline]
    pub(super) fn guard_at<R>(&mut self, now: impl FnOnce() -> Time, code: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let result = match catch_unwind(AssertUnwindSafe(|| code(self))) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.end_running(now(), panic);
                None
            }
        };
        self.running = None;
        result
    }

    /// Ends the queue pair whose code panicked. Resumes the panic, which ends the shard, if no queue pair's code ran,
    /// or if that queue pair has panicked before.
    #[cold]
    fn end_running(&mut self, now: Time, panic: Box<dyn Any + Send>) {
        let text = panic.downcast_ref::<&str>().copied();
        let error = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let error = error.to_owned();
        let Some(slot) = self.running else { resume_unwind(panic) };
        let Some(queue_pair) = self.at(slot) else { resume_unwind(panic) };
        let qpn = queue_pair.common.qpn;
        if !queue_pair.end_by_panic() {
            note_later!(
                self.config.journal, target: "rdma_verbs::queue_pair", ERROR,
                %qpn, error, "a second panic of a queue pair; please report it"
            );
            resume_unwind(panic);
        }
        note_later!(
            self.config.journal, target: "rdma_verbs::queue_pair", ERROR,
            %qpn, error, "a panic ends the queue pair; please report it"
        );
        self.panics += 1;
        self.guard(now, |endpoint| endpoint.follow_up(now, slot));
    }

    /// Returns the number of queue pairs that a panic has ended.
    #[cfg(feature = "sim")]
    pub fn panics(&self) -> u64 {
        self.panics
    }
}
