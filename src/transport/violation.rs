//! Ways in which a peer's request can be wrong, and what each leads to: the one place that maps them to the NAK on
//! the wire, the completion of a receive in progress, and the event.

use crate::memory::AccessError;
use crate::mutation::{Mutation, planted};
use crate::types::{AsyncEvent, Cause, CompletionStatus, PeerFault, Qpn};
use crate::wire::NakCode;

/// Why a request was refused. Each ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Violation {
    /// A middle or last packet without a first one, or a first one inside a message.
    OpcodeSequence,
    /// The queue pair grants no such access.
    AccessNotGranted,
    /// More READs and atomics outstanding than `max_dest_rd_atomic` allows.
    TooManyReads,
    /// A packet's payload does not have the length that its place in the message demands.
    PacketLength,
    /// The message is longer than 2^31 bytes or than it said.
    MessageLength,
    /// An atomic on an address that is no multiple of eight.
    Misaligned,
    /// The remote key, its bounds or its rights.
    RemoteKey(AccessError),
    /// The message is longer than the receive that was posted for it.
    ReceiveTooSmall,
    /// The posted receive's own memory.
    ReceiveMemory(AccessError),
    /// The key that the peer wanted to invalidate cannot be.
    Invalidate,
    /// The domain has no shared receive queue of the number that the message names.
    UnknownSharedReceiveQueue,
    /// A FLUSH to nowhere, or of reserved kinds.
    FlushType,
}

impl Violation {
    /// The violation of an atomic whose access failed.
    pub(super) fn of_atomic(error: AccessError) -> Self {
        match error {
            AccessError::Misaligned => Self::Misaligned,
            other => Self::RemoteKey(other),
        }
    }

    /// The NAK to the peer.
    pub(super) fn nak(self) -> NakCode {
        match self {
            Self::RemoteKey(_) if planted(Mutation::AccessRefusedAsInvalid) => NakCode::InvalidRequest,
            Self::ReceiveMemory(_) if planted(Mutation::OperationalRefusedAsAccess) => NakCode::RemoteAccess,
            Self::OpcodeSequence
            | Self::AccessNotGranted
            | Self::TooManyReads
            | Self::PacketLength
            | Self::MessageLength
            | Self::Misaligned
            | Self::FlushType
            | Self::ReceiveTooSmall
            | Self::UnknownSharedReceiveQueue => NakCode::InvalidRequest,
            Self::RemoteKey(_) | Self::Invalidate => NakCode::RemoteAccess,
            Self::ReceiveMemory(_) => NakCode::RemoteOperational,
        }
    }

    /// How a receive ends that the request had begun to fill.
    pub(super) fn receive_status(self) -> (CompletionStatus, Cause) {
        match self {
            Self::ReceiveTooSmall => (CompletionStatus::LocalLengthError, Cause::ReceiveTooSmall),
            Self::ReceiveMemory(error) => (CompletionStatus::LocalProtectionError, local_cause(error)),
            // Only a WRITE with immediate data has both: what the standard calls local access error (11.6.2).
            Self::RemoteKey(_) => (CompletionStatus::LocalAccessError, Cause::PeerAccessRefused),
            Self::Invalidate => (CompletionStatus::RemoteAccessError, Cause::InvalidateRefused),
            _ => (CompletionStatus::RemoteInvalidRequestError, Cause::PeerViolation),
        }
    }

    /// The event for the application.
    pub(super) fn event(self, qpn: Qpn) -> AsyncEvent {
        match self {
            _ if planted(Mutation::RefusalAnnouncedAsFatal) => AsyncEvent::QueuePairFatal(qpn),
            Self::RemoteKey(_) | Self::Invalidate => AsyncEvent::QueuePairAccessError(qpn),
            Self::ReceiveMemory(_) => AsyncEvent::QueuePairFatal(qpn),
            _ => AsyncEvent::QueuePairRequestError(qpn),
        }
    }

    /// The same for explanations.
    pub(super) fn fault(self) -> PeerFault {
        match self {
            Self::OpcodeSequence => PeerFault::OpcodeSequence,
            Self::AccessNotGranted => PeerFault::AccessNotGranted,
            Self::TooManyReads => PeerFault::TooManyReads,
            Self::PacketLength => PeerFault::PacketLength,
            Self::MessageLength => PeerFault::MessageLength,
            Self::Misaligned | Self::RemoteKey(AccessError::Misaligned) => PeerFault::Misaligned,
            Self::RemoteKey(AccessError::WrongDomain) => PeerFault::WrongDomain,
            Self::RemoteKey(AccessError::OutOfBounds) => PeerFault::OutOfBounds,
            Self::RemoteKey(AccessError::NoPermission) => PeerFault::NoPermission,
            Self::RemoteKey(AccessError::Fault) => PeerFault::MemoryFault,
            Self::RemoteKey(AccessError::WrongQueuePair) => PeerFault::WrongQueuePair,
            Self::RemoteKey(_) => PeerFault::UnknownKey,
            Self::ReceiveTooSmall => PeerFault::ReceiveTooSmall,
            Self::ReceiveMemory(_) => PeerFault::ReceiveMemory,
            Self::Invalidate => PeerFault::Invalidate,
            Self::UnknownSharedReceiveQueue => PeerFault::UnknownSharedReceiveQueue,
            Self::FlushType => PeerFault::FlushType,
        }
    }
}

/// The cause that a failed access to local memory has.
pub(super) fn local_cause(error: AccessError) -> Cause {
    match error {
        AccessError::WrongDomain => Cause::LocalKeyWrongDomain,
        AccessError::OutOfBounds | AccessError::Misaligned => Cause::LocalOutOfBounds,
        AccessError::NoPermission => Cause::LocalNotWritable,
        AccessError::Fault => Cause::LocalMemoryFault,
        _ => Cause::LocalKeyUnknown,
    }
}
