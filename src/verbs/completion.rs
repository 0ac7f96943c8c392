//! Work completions.

use std::fmt;

use super::{Cause, CompletionOpcode, CompletionStatus, Qpn, Rkey};
use crate::types::{CompletionFlags, CompletionSource, RawCompletion};

/// A completed request (`ibv_wc`).
///
/// [`Completion::result`] reports whether the request succeeded, and returns the details of the success or failure.
///
/// ```
/// # use rdma_verbs::verbs;
/// # let context = verbs::open("soft:127.0.1.60")?;
/// # let cq = context.create_cq(16)?;
/// use rdma_verbs::verbs::Completion;
///
/// let mut completions = [Completion::default(); 16];
/// let count = cq.poll(&mut completions)?;
/// for completion in &completions[..count] {
///     match completion.result() {
///         Ok(done) => println!("request {}: {} bytes", completion.wr_id(), done.byte_len),
///         Err(failure) => eprintln!("{failure}"),
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    raw: RawCompletion,
}

impl Completion {
    /// Returns the `wr_id` that the request was posted with.
    pub const fn wr_id(&self) -> u64 {
        self.raw.wr_id
    }

    /// Returns the number of the local queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.raw.qpn
    }

    pub(super) const fn raw(&self) -> &RawCompletion {
        &self.raw
    }

    /// Returns the number below which all requests of its queue are finished.
    pub(crate) const fn retired(&self) -> u32 {
        self.raw.retired
    }

    /// Returns the work queue that added the completion. Unlike `wr_id`, it is not chosen by the poster of the request.
    pub(crate) const fn source(&self) -> CompletionSource {
        self.raw.source
    }

    /// Returns the completion with another `wr_id`; the tiers above number requests themselves.
    pub(crate) const fn renumbered(self, wr_id: u64) -> Self {
        Self { raw: RawCompletion { wr_id, ..self.raw } }
    }

    /// Returns the status, as defined by the standard.
    pub const fn status(&self) -> CompletionStatus {
        self.raw.status
    }

    /// Returns the cause of a failure, in more detail than the status; [`Cause::None`] if it succeeded.
    pub const fn cause(&self) -> Cause {
        self.raw.cause
    }

    /// Returns the time at which the completion was added to its queue, in nanoseconds of the device's clock
    /// ([`Context::query_clock`](super::Context::query_clock)); `None` if the queue was created without
    /// [`timestamps`](super::CompletionQueueOptions::timestamps).
    pub const fn timestamp(&self) -> Option<u64> {
        match self.raw.timestamp {
            0 => None,
            timestamp => Some(timestamp),
        }
    }

    /// Returns whether the request succeeded.
    pub const fn is_success(&self) -> bool {
        self.raw.status.is_success()
    }

    /// Returns the outcome of the request.
    ///
    /// # Errors
    /// The request failed. The queue pair is then in the error state (or SQE), and later requests are flushed.
    pub fn result(&self) -> Result<Success, CompletionError> {
        let raw = &self.raw;
        if !raw.status.is_success() {
            return Err(CompletionError { wr_id: raw.wr_id, qpn: raw.qpn, status: raw.status, cause: raw.cause });
        }
        let carried = |flag| raw.flags.contains(flag).then_some(raw.immediate_or_key);
        Ok(Success {
            qpn: raw.qpn,
            opcode: raw.opcode,
            byte_len: raw.byte_len,
            immediate: carried(CompletionFlags::WITH_IMMEDIATE),
            invalidated: carried(CompletionFlags::WITH_INVALIDATE).map(Rkey),
            source_qpn: raw.source_qpn,
            global_route_header: raw.flags.contains(CompletionFlags::GLOBAL_ROUTE_HEADER),
            source_lid: raw.source_lid,
            sl: raw.sl,
        })
    }
}

impl From<RawCompletion> for Completion {
    fn from(raw: RawCompletion) -> Self {
        Self { raw }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Completion");
        debug.field("wr_id", &self.raw.wr_id).field("qpn", &self.raw.qpn).field("result", &self.result()).finish()
    }
}

/// The result of a successful request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Success {
    /// Number of the local queue pair.
    pub qpn: Qpn,
    /// The completed operation.
    pub opcode: CompletionOpcode,
    /// Number of bytes received or read; for a received WRITE with immediate, bytes written. Undefined for SEND and
    /// WRITE on the sending side.
    pub byte_len: u32,
    /// Immediate data that came with the message.
    pub immediate: Option<u32>,
    /// The key that the sender's message invalidated.
    pub invalidated: Option<Rkey>,
    /// Number of the queue pair that sent the message. Adapters report it only for datagrams.
    pub source_qpn: Qpn,
    /// Whether the first 40 bytes of the received message are its global route header, which [`Success::byte_len`]
    /// includes. True for datagrams.
    pub global_route_header: bool,
    /// The sender's LID (datagrams in an InfiniBand subnet only).
    pub source_lid: u16,
    /// Service level of the message. A RoCEv2 datagram has none; the field then holds the type of its network header
    /// (IBTA A17.4.5.1), as numbered by adapters: 10 for IPv4, 9 for IPv6.
    pub sl: u8,
}

/// A failed completion, as an error.
///
/// ```
/// use rdma_verbs::types::{Cause, CompletionStatus, Qpn, RawCompletion};
/// use rdma_verbs::verbs::Completion;
///
/// let mut raw = RawCompletion::default();
/// raw.wr_id = 7;
/// raw.qpn = Qpn::new(0x11);
/// raw.status = CompletionStatus::RetryExceededError;
/// raw.cause = Cause::NoResponse;
/// let error = Completion::from(raw).result().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "request 7 on queue pair 0x000011: no answer after all tries that timeout and retry_cnt allow (NoResponse)",
/// );
/// ```
#[doc(alias("ibv_wc_status", "ibv_wc_status_str"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CompletionError {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qpn: Qpn,
    /// Status, as defined by the standard.
    pub status: CompletionStatus,
    /// The cause, in more detail than the status.
    pub cause: Cause,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wr_id, qpn, status, cause } = self;
        write!(f, "request {wr_id} on queue pair {qpn}: {}", describe(*status))?;
        match cause {
            Cause::None => Ok(()),
            cause => write!(f, " ({cause:?})"),
        }
    }
}

impl std::error::Error for CompletionError {}

/// Describes a status in words.
const fn describe(status: CompletionStatus) -> &'static str {
    match status {
        CompletionStatus::Success => "done",
        CompletionStatus::LocalLengthError => "the message does not fit the posted receive, or is longer than allowed",
        CompletionStatus::LocalQueuePairOperationError => "the queue pair could not execute the request",
        CompletionStatus::LocalProtectionError => "the request's local memory could not be accessed",
        CompletionStatus::WorkRequestFlushedError => "flushed, because the queue pair is in the error state",
        CompletionStatus::MemoryWindowBindError => "binding the memory window failed",
        CompletionStatus::BadResponseError => "the peer's answer broke the protocol",
        CompletionStatus::LocalAccessError => "the memory for an arriving message could not be accessed",
        CompletionStatus::RemoteInvalidRequestError => "the peer refused the request as invalid",
        CompletionStatus::RemoteAccessError => "the peer refused the key, the bounds or the access",
        CompletionStatus::RemoteOperationError => "the peer could not execute the request",
        CompletionStatus::RetryExceededError => "no answer after all tries that timeout and retry_cnt allow",
        CompletionStatus::ReceiverNotReadyRetryExceededError => {
            "the peer had no receive posted after all tries that rnr_retry allows"
        }
        CompletionStatus::RemoteAbortedError => "the peer closed the connection",
        CompletionStatus::FatalError => "the device failed",
        CompletionStatus::GeneralError => "failed",
    }
}
