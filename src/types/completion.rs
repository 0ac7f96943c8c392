//! Work completions as plain records.

use super::Qpn;

/// Status of a completed work request (IBTA 11.6.2). The numbers are those of `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// The request succeeded.
    #[default]
    Success = 0,
    /// A receive was too small for the message, or a request longer than allowed.
    LocalLengthError = 1,
    /// The local queue pair could not execute the request.
    LocalQueuePairOperationError = 2,
    /// The key, bounds or access flags of a scatter-gather entry were wrong when the memory was accessed.
    LocalProtectionError = 4,
    /// The queue pair was in or went to the error state before the request was executed.
    WorkRequestFlushedError = 5,
    /// Binding a memory window failed.
    MemoryWindowBindError = 6,
    /// The peer's response violated the protocol.
    BadResponseError = 7,
    /// The memory that an arriving WRITE with immediate data refers to failed the access check (IBTA 11.6.2).
    LocalAccessError = 8,
    /// The peer refused the request as invalid.
    RemoteInvalidRequestError = 9,
    /// The peer refused the key, the bounds or the access.
    RemoteAccessError = 10,
    /// The peer could not execute the request.
    RemoteOperationError = 11,
    /// No response after all retries that `timeout` and `retry_cnt` allow.
    RetryExceededError = 12,
    /// The peer had no receive posted after all retries that `rnr_retry` allows.
    ReceiverNotReadyRetryExceededError = 13,
    /// The peer closed the connection.
    RemoteAbortedError = 16,
    /// The device failed.
    FatalError = 19,
    /// Anything else.
    GeneralError = 21,
}

impl CompletionStatus {
    /// Returns whether the status is [`CompletionStatus::Success`].
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

/// Operation that was completed. The numbers are those of `ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A SEND of any kind.
    #[default]
    Send = 0,
    /// A WRITE, with or without immediate data.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare-and-swap.
    CompareAndSwap = 3,
    /// A fetch-and-add.
    FetchAndAdd = 4,
    /// A bind of a memory window.
    BindMemoryWindow = 5,
    /// An invalidation of a local key.
    LocalInvalidate = 6,
    /// A flush of the peer's memory.
    Flush = 8,
    /// An atomic write of eight bytes.
    AtomicWrite = 9,
    /// A message received.
    Receive = 128,
    /// A WRITE with immediate data received.
    ReceiveWriteWithImmediate = 129,
}

bitflags::bitflags! {
    /// Additional contents of a completion. The bits are those of `ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct CompletionFlags: u32 {
        /// The first 40 bytes of the receive are the global route header.
        const GLOBAL_ROUTE_HEADER = 1;
        /// `immediate_or_key` is immediate data.
        const WITH_IMMEDIATE = 2;
        /// `immediate_or_key` is the key that the sender invalidated.
        const WITH_INVALIDATE = 8;
    }
}

/// Cause of a failed request, in more detail than the standard's status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Cause {
    /// The request did not fail.
    #[default]
    None,
    /// The queue pair was already in the error state.
    QueuePairInError,
    /// An earlier request failed, and this one was flushed.
    EarlierFailure,
    /// No response arrived in time.
    NoResponse,
    /// The peer kept reporting that packets before this one are missing.
    SequenceErrorsExceeded,
    /// The peer kept reporting that it has no receive posted.
    ReceiverNotReady,
    /// The peer sent a NAK: invalid request.
    RefusedInvalid,
    /// The peer sent a NAK: remote access error.
    RefusedAccess,
    /// The peer sent a NAK: remote operational error.
    RefusedOperational,
    /// No region has the local key.
    LocalKeyUnknown,
    /// The local key belongs to another protection domain.
    LocalKeyWrongDomain,
    /// A scatter-gather entry reaches beyond its region.
    LocalOutOfBounds,
    /// The region is not writable.
    LocalNotWritable,
    /// The memory behind the region is gone (unmapped, or the file shrank).
    LocalMemoryFault,
    /// The message was longer than the posted receive.
    ReceiveTooSmall,
    /// The peer's request violated the protocol; see the queue pair's counters.
    PeerViolation,
    /// The peer's response violated the protocol.
    BadResponse,
    /// The key that the peer or the request asked to invalidate cannot be invalidated.
    InvalidateRefused,
    /// The peer requested access that the queue pair or the region does not allow.
    PeerAccessRefused,
    /// The completion queue overflowed.
    CompletionQueueOverflow,
    /// The queue pair was destroyed or reset.
    Destroyed,
    /// No memory window of the queue pair's protection domain has the key.
    WindowUnknown,
    /// The type 2 memory window is already bound; invalidate its key first.
    WindowBound,
    /// The memory window cannot be bound with these arguments: an access flag that windows do not support, or a type 2
    /// window of length 0.
    WindowArguments,
    /// The memory region lacks the access flag to bind windows to it, or one that the window needs.
    RegionNotBindable,
    /// A panic in this library, a bug, ended the queue pair; its message is in the log.
    Panic,
}

/// The work queue that added a completion to its completion queue. The provider assigns it, unlike `wr_id`, which the
/// poster of a request chooses.
///
/// A completion queue never reuses the source of a work queue for another, even after the first is destroyed, unless
/// both take their receives from the same shared queue. Sources of different completion queues are not comparable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CompletionSource(u64);

impl CompletionSource {
    /// No work queue. A provider that does not identify its work queues gives all completions this source.
    pub const NONE: Self = Self(0);

    /// Creates the source with this number; 0 is [`CompletionSource::NONE`].
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the source's number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A completion as the provider tier returns it.
///
/// After a failure, only `wr_id`, `source`, `status`, `cause`, `qpn` and `retired` are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RawCompletion {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Status of the request.
    pub status: CompletionStatus,
    /// Operation that was completed.
    pub opcode: CompletionOpcode,
    /// Which additional contents the completion carries.
    pub flags: CompletionFlags,
    /// Cause of a failure.
    pub cause: Cause,
    /// Number of bytes received or read. For a received WRITE with immediate data, bytes written.
    pub byte_len: u32,
    /// Immediate data, or the invalidated key; see `flags`.
    pub immediate_or_key: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair (datagrams only; otherwise the connected peer's).
    pub source_qpn: Qpn,
    /// All requests of the same queue, send or receive, with an index below this one (modulo 2^32) are finished:
    /// nothing accesses their memory any more. Indices count the posted requests from 0 at the creation of the queue
    /// pair; RESET does not restart them.
    pub retired: u32,
    /// The sender's LID (datagrams in an InfiniBand subnet only).
    pub source_lid: u16,
    /// Service level of the message. A RoCEv2 datagram has none; the field then holds the type of its network header
    /// (IBTA A17.4.5.1), as numbered by adapters: 10 for IPv4, 9 for IPv6.
    pub sl: u8,
    /// Time when the completion was added to the queue, in nanoseconds of the device's clock; 0 if the queue was
    /// created without timestamps.
    pub timestamp: u64,
    /// The work queue that added the completion, as reported by
    /// [`QueuePair::completion_sources`](crate::provider::QueuePair::completion_sources).
    pub source: CompletionSource,
}

const _: () = assert!(size_of::<RawCompletion>() <= 64, "a completion outgrew a cache line");
