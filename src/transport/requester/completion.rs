//! The end of requests: completed, failed or flushed, in order.

use super::{Common, Requester};
use crate::memory::AccessError;
use crate::queue::SendConsumer;
use crate::transport::loop_bound::LoopBound;
use crate::transport::peer_fault::local_cause;
use crate::types::{
    Cause, CompletionOpcode, CompletionStatus, Counter, ErrorOrigin, FailedRequest, Operation, RawCompletion, SendFlags,
};

/// The failure of the oldest request. The queue pair decides what happens to the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) struct RequestFailure {
    pub(super) status: CompletionStatus,
    pub(super) cause: Cause,
}

impl RequestFailure {
    pub(super) fn new(status: CompletionStatus, cause: Cause) -> Self {
        Self { status, cause }
    }
}

impl From<AccessError> for RequestFailure {
    fn from(error: AccessError) -> Self {
        Self::new(CompletionStatus::LocalProtectionError, local_cause(error))
    }
}

impl Requester {
    /// Completes all posted sends as flushed.
    pub(in crate::transport) fn flush(&mut self, common: &mut Common, cause: Cause) {
        // Only those that are posted by now: requests that other threads post meanwhile have their own doorbell.
        let end = self.send.published();
        let left = |send: &SendConsumer| end.wrapping_sub(send.retired()) as i32;
        let mut bound = LoopBound::new("flush", left(&self.send).max(0) as usize);
        while left(&self.send) > 0 {
            bound.step();
            common.count(Counter::Flushed);
            self.complete(common, self.send.retired(), CompletionStatus::WorkRequestFlushedError, cause);
        }
        self.restart_at(self.send.retired());
    }

    /// Retires the send request `index` and, if it is signaled or failed, completes it (IBTA 10.7.3.1; `rxe_comp.c`,
    /// `do_complete`).
    #[inline]
    pub(super) fn complete(&mut self, common: &mut Common, index: u32, status: CompletionStatus, cause: Cause) {
        let header = self.send.header(index);
        let signaled = self.signal_all || header.flags.contains(SendFlags::SIGNALED);
        let retired = index.wrapping_add(1);
        let (opcode, byte_len) = match header.operation {
            Operation::Write { .. } | Operation::WriteWithImmediate { .. } => (CompletionOpcode::Write, 0),
            Operation::Read { .. } => (CompletionOpcode::Read, header.length),
            Operation::CompareAndSwap { .. } => (CompletionOpcode::CompareAndSwap, 8),
            Operation::FetchAndAdd { .. } => (CompletionOpcode::FetchAndAdd, 8),
            Operation::AtomicWrite { .. } => (CompletionOpcode::AtomicWrite, 0),
            Operation::Flush { .. } => (CompletionOpcode::Flush, 0),
            Operation::LocalInvalidate(_) => (CompletionOpcode::LocalInvalidate, 0),
            Operation::BindMemoryWindow { .. } => (CompletionOpcode::BindMemoryWindow, 0),
            _ => (CompletionOpcode::Send, 0),
        };
        let wr_id = header.wr_id;
        if status.is_success() {
            common.history.note_done(&header.operation, header.length);
        }
        self.send.retire(retired);
        if status.is_success() && !signaled {
            return;
        }
        let completion = RawCompletion {
            wr_id,
            status,
            opcode,
            cause,
            byte_len,
            qpn: common.qpn,
            source_qpn: common.attributes.dest_qp_num.unwrap_or_default(),
            retired,
            ..RawCompletion::default()
        };
        common.complete(&self.completions, completion, false);
    }

    /// Completes the oldest request with an error.
    pub(in crate::transport) fn fail_oldest(&mut self, common: &mut Common, failure: RequestFailure) {
        if self.oldest != self.send.published() {
            self.fail(common, self.oldest, failure);
        }
    }

    /// Completes a request with an error, which ends the queue pair.
    pub(super) fn fail(&mut self, common: &mut Common, index: u32, RequestFailure { status, cause }: RequestFailure) {
        let header = self.send.header(index);
        let (tries, rnr_tries) = self.recovery.spent();
        common.history.note_error_origin(ErrorOrigin::Request(FailedRequest {
            wr_id: header.wr_id,
            status,
            cause,
            operation: header.operation,
            length: header.length,
            tries,
            rnr_tries,
        }));
        self.complete(common, index, status, cause);
    }

    /// Fails a request whose own memory failed, once all requests before it have ended. Returns the error if there are
    /// none.
    pub(super) fn fail_when_oldest(&mut self, index: u32, error: AccessError) -> Result<(), RequestFailure> {
        // If it was the probe, it cannot be sent, and must not be tried forever.
        self.recovery.end_probe();
        let failure = RequestFailure::from(error);
        let distance = |index: u32| index.wrapping_sub(self.oldest);
        if self.failed.is_none_or(|(other, _)| distance(index) < distance(other)) {
            self.failed = Some((index, failure));
        }
        if index == self.oldest { Err(failure) } else { Ok(()) }
    }
}
