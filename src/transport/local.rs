//! Requests that no packet leaves for: binding a memory window, invalidating a key of this host.
//!
//! Such a request begins when all requests before it are complete, and is complete before the next one begins. So what
//! is sent again of an earlier request still finds its key, and a failure needs no place among those in progress.

use super::common::Pass;
use super::queue_pair::QueuePair;
use super::violation::local_cause;
use crate::memory::{BindError, WindowBind};
use crate::types::{Cause, CompletionStatus, Operation, QueuePairState};

impl QueuePair {
    /// Whether the next request is one, and its turn has come.
    pub(super) fn local_request_is_due(&self) -> bool {
        let index = self.requester.next();
        self.requester.is_idle()
            && self.common.state == QueuePairState::ReadyToSend
            && index != self.send.published()
            && self.send.header(index).operation.is_local()
    }

    /// Executes the next request if it is one and its turn has come. False if not.
    pub(super) fn run_local_request(&mut self, pass: &Pass<'_>) -> bool {
        if !self.local_request_is_due() {
            return false;
        }
        let index = self.requester.next();
        match self.execute_local(pass, self.send.header(index).operation) {
            Ok(()) => {
                self.requester.skip();
                self.complete_send(index, CompletionStatus::Success, Cause::None);
            }
            Err((status, cause)) => self.fail_oldest(status, cause),
        }
        true
    }

    fn execute_local(&self, pass: &Pass<'_>, operation: Operation) -> Result<(), (CompletionStatus, Cause)> {
        match operation {
            Operation::LocalInvalidate(rkey) => pass
                .memory
                .invalidate(rkey.0, self.accessor())
                .map_err(|_| (CompletionStatus::LocalQueuePairOperationError, Cause::InvalidateRefused)),
            Operation::BindMemoryWindow { rkey, lkey, addr, length, access } => pass
                .memory
                .bind_window(self.accessor(), &WindowBind { rkey, lkey, addr, length, access })
                .map_err(|error| (CompletionStatus::MemoryWindowBindError, bind_cause(error))),
            _ => Err((CompletionStatus::LocalQueuePairOperationError, Cause::None)),
        }
    }
}

fn bind_cause(error: BindError) -> Cause {
    match error {
        BindError::UnknownWindow => Cause::WindowUnknown,
        BindError::AlreadyBound => Cause::WindowBound,
        BindError::Arguments => Cause::WindowArguments,
        BindError::NotBindable => Cause::RegionNotBindable,
        BindError::Region(error) => local_cause(error),
    }
}
