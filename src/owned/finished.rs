//! Requests that came back.

use super::buffer::Buffer;
use super::in_flight::Side;
use super::request::Loan;
use crate::verbs::{Completion, CompletionError, Qpn, Success};

/// A request that is finished, with its memory.
///
/// An unsignaled request that succeeded has no completion of its own: it comes back with the next one of its queue.
#[derive(Debug)]
pub struct Finished {
    side: Side,
    wr_id: u64,
    qpn: Qpn,
    loan: Loan,
    completion: Option<Completion>,
}

impl Finished {
    pub(super) fn new(side: Side, wr_id: u64, qpn: Qpn, loan: Loan, completion: Option<Completion>) -> Self {
        Self { side, wr_id, qpn, loan, completion }
    }

    /// The number that the request was posted with.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Whether it was a receive.
    pub fn is_receive(&self) -> bool {
        self.side == Side::Receive
    }

    /// Its own completion; `None` for an unsignaled request, which succeeded. After RESET and destruction, flushed with
    /// the cause [`Cause::Destroyed`](crate::verbs::Cause::Destroyed).
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }

    /// What came of it; `None` for an unsignaled request that succeeded.
    ///
    /// # Errors
    /// The request failed.
    pub fn result(&self) -> Result<Option<Success>, CompletionError> {
        self.completion.as_ref().map(Completion::result).transpose()
    }

    /// The memory.
    pub fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Takes the memory out.
    pub fn into_loan(self) -> Loan {
        self.loan
    }

    /// The buffer, if the request succeeded.
    ///
    /// # Errors
    /// The request failed; its buffer is dropped. So is a [`FileBuffer`](super::FileBuffer), which
    /// [`Finished::into_loan`] gives back.
    pub fn into_buffer(self) -> Result<Buffer, NoBuffer> {
        self.result().map_err(NoBuffer::Failed)?;
        self.loan.into_buffer().ok_or(NoBuffer::File)
    }
}

/// Why a finished request has no filled buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoBuffer {
    /// The request failed.
    #[error(transparent)]
    Failed(CompletionError),
    /// Its memory is part of a file.
    #[error("the request's memory is part of a file; take it with into_loan")]
    File,
}
