//! A panic in the code of a queue pair, a bug, costs that queue pair: it goes to the error state, its requests are
//! flushed, and the others of the shard go on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Endpoint;
use crate::types::Time;

impl Endpoint {
    /// Runs an input or an output of the endpoint. `None`: a queue pair panicked, and has ended.
    ///
    /// Each queue pair is noted in [`Endpoint::running`] before its code runs. The endpoint's own lists change only
    /// between such calls, so they are whole when one of them panics; the queue pair's records may not be, and are
    /// forgotten. A guard within another one catches first. Commands and getters have none: their panic is the shard's.
    #[inline]
    pub(super) fn guard<R>(&mut self, now: Time, code: impl FnOnce(&mut Self) -> R) -> Option<R> {
        self.running = None;
        match catch_unwind(AssertUnwindSafe(|| code(self))) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.end_running(now, panic);
                None
            }
        }
    }

    /// Ends the queue pair whose code panicked. If that panics as well, or was done before, or if it was the code of no
    /// queue pair, the panic is the shard's.
    #[cold]
    fn end_running(&mut self, now: Time, panic: Box<dyn Any + Send>) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let Some(slot) = self.running else { resume_unwind(panic) };
        let Some(queue_pair) = self.at(slot) else { resume_unwind(panic) };
        tracing::error!(qpn = %queue_pair.common.qpn, panic = text, "a panic ends the queue pair; please report it");
        if !queue_pair.end_by_panic() {
            resume_unwind(panic);
        }
        self.settle(now, slot);
    }
}
