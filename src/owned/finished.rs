//! Finished requests, with their memory.

use super::buffer::Buffer;
use super::in_flight::Side;
use super::request::RequestBuffer;
use crate::verbs::{Completion, CompletionError, Qpn, Success};

/// A finished request, with its memory.
///
/// An unsignaled request that succeeded has no completion of its own: it comes back with the next completion of its
/// queue.
#[derive(Debug)]
pub struct Finished {
    side: Side,
    wr_id: u64,
    qpn: Qpn,
    pub(super) buffer: RequestBuffer,
    completion: Option<Completion>,
    /// Whether it is a receive of a datagram queue pair, whose messages begin with a route header.
    pub(super) is_datagram: bool,
}

impl Finished {
    pub(super) fn new(side: Side, wr_id: u64, qpn: Qpn, buffer: RequestBuffer, completion: Option<Completion>) -> Self {
        Self { side, wr_id, qpn, buffer, completion, is_datagram: false }
    }

    /// Marks a receive of a datagram queue pair.
    pub(super) fn datagram(self, is_datagram: bool) -> Self {
        Self { is_datagram: is_datagram && self.side == Side::Receive, ..self }
    }

    /// Returns the `wr_id` that the request was posted with.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Returns the number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns whether it was a receive.
    pub fn is_receive(&self) -> bool {
        self.side == Side::Receive
    }

    /// Returns the request's own completion; `None` for an unsignaled request that succeeded. After RESET or
    /// destruction, this is a flush with the cause [`Cause::Destroyed`](crate::verbs::Cause::Destroyed).
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }

    /// Returns the result; `None` for an unsignaled request that succeeded.
    ///
    /// # Errors
    /// The request failed.
    pub fn result(&self) -> Result<Option<Success>, CompletionError> {
        self.completion.as_ref().map(Completion::result).transpose()
    }

    /// Returns the memory.
    pub fn request_buffer(&self) -> &RequestBuffer {
        &self.buffer
    }

    /// Consumes the finished request and returns its memory.
    pub fn into_request_buffer(self) -> RequestBuffer {
        self.buffer
    }

    /// Returns the buffer, if the request succeeded.
    ///
    /// # Errors
    /// The request failed, its memory is a [`FileBuffer`](super::FileBuffer), or it has none. The memory is dropped;
    /// [`Finished::into_request_buffer`] returns it instead.
    pub fn into_buffer(self) -> Result<Buffer, NoBuffer> {
        self.result().map_err(NoBuffer::Failed)?;
        match self.buffer {
            RequestBuffer::Buffer(buffer) => Ok(buffer),
            RequestBuffer::File(_) => Err(NoBuffer::File),
            RequestBuffer::None => Err(NoBuffer::None),
        }
    }
}

/// Reason why a finished request has no filled buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoBuffer {
    /// The request failed.
    #[error(transparent)]
    Failed(CompletionError),
    /// Its memory is part of a file.
    #[error("the request's memory is part of a file; take it with into_request_buffer")]
    File,
    /// It has no memory, as for a FLUSH.
    #[error("the request has no memory")]
    None,
}
