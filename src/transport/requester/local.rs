//! Requests without packets: binding a memory window, invalidating a key of this host.
//!
//! Such a request begins when all requests before it are complete, and is complete before the next one begins (IBTA
//! 10.6.5.1). So a retransmission of an earlier request still finds its key, and a failure needs no position among
//! those in progress.

use super::{Common, Pass, RequestFailure, Requester};
use crate::memory::{BindError, WindowBind};
use crate::transport::peer_fault::local_cause;
use crate::types::{Accessor, Cause, CompletionStatus, Operation, QueuePairState};

impl Requester {
    /// Returns whether the next request is a local one that may run now.
    pub(in crate::transport) fn local_request_is_due(&self, common: &Common) -> bool {
        let index = self.next;
        self.is_idle()
            && common.state == QueuePairState::ReadyToSend
            && index != self.send.published()
            && self.send.header(index).operation.is_local()
    }

    /// Executes the next request if it is a local one that may run now. Returns whether it did.
    pub(in crate::transport) fn run_local_request(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        accessor: Accessor,
    ) -> Result<bool, RequestFailure> {
        if !self.local_request_is_due(common) {
            return Ok(false);
        }
        let index = self.next;
        execute_local(pass, accessor, self.send.header(index).operation)?;
        self.skip();
        self.complete(common, index, CompletionStatus::Success, Cause::None);
        Ok(true)
    }
}

fn execute_local(pass: &Pass<'_>, accessor: Accessor, operation: Operation) -> Result<(), RequestFailure> {
    use CompletionStatus::{LocalQueuePairOperationError, MemoryWindowBindError};
    match operation {
        Operation::LocalInvalidate(rkey) => pass
            .memory
            .invalidate(rkey.0, accessor)
            .map_err(|_| RequestFailure::new(LocalQueuePairOperationError, Cause::InvalidateRefused)),
        Operation::BindMemoryWindow { rkey, lkey, addr, length, access } => pass
            .memory
            .bind_window(accessor, &WindowBind { rkey, lkey, addr, length, access })
            .map_err(|error| RequestFailure::new(MemoryWindowBindError, bind_cause(error))),
        _ => Err(RequestFailure::new(LocalQueuePairOperationError, Cause::None)),
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
