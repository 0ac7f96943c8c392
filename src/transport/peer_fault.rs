//! Faults of the peer's requests, and their mapping to the NAK on the wire, the completion of a receive in progress,
//! and the event (IBTA 9.9.3).

use crate::memory::AccessError;
use crate::types::{AsyncEvent, Cause, CompletionStatus, PeerFault, Qpn};
use crate::wire::NakCode;

impl From<AccessError> for PeerFault {
    /// Returns the fault of a request whose access to registered memory failed.
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Misaligned => Self::Misaligned,
            AccessError::WrongDomain => Self::WrongDomain,
            AccessError::OutOfBounds => Self::OutOfBounds,
            AccessError::NoPermission => Self::NoPermission,
            AccessError::Fault => Self::MemoryFault,
            AccessError::WrongQueuePair => Self::WrongQueuePair,
            AccessError::UnknownKey | AccessError::NotInvalidatable | AccessError::Elsewhere => Self::UnknownKey,
        }
    }
}

impl PeerFault {
    /// Returns the fault of a request whose receive buffer cannot be written.
    pub(super) fn of_receive(error: AccessError) -> Self {
        Self::ReceiveMemory(local_cause(error))
    }

    /// Whether the remote key, its bounds or its access flags are wrong (IBTA 9.7.5.2.4).
    pub(super) fn is_access(self) -> bool {
        use PeerFault::{MemoryFault, NoPermission, OutOfBounds, UnknownKey, WrongDomain, WrongQueuePair};
        matches!(self, UnknownKey | WrongDomain | OutOfBounds | NoPermission | MemoryFault | WrongQueuePair)
    }

    /// Returns the NAK to the peer (IBTA 9.7.5.2.2): that of rxe (`rxe_resp.c`, `do_class_ac_error`) unless noted.
    pub(super) fn nak(self) -> NakCode {
        match self {
            Self::OpcodeSequence
            | Self::AccessNotGranted
            | Self::TooManyReads
            | Self::PacketLength
            | Self::MessageLength
            | Self::Misaligned
            | Self::FlushType
            // rxe: remote operational error.
            | Self::ReceiveTooSmall
            | Self::UnknownSharedReceiveQueue => NakCode::InvalidRequest,
            Self::ReceiveMemory(_) => NakCode::RemoteOperational,
            // rxe acknowledges a SEND whose key to invalidate is wrong, and moves its own queue pair to the error
            // state.
            Self::Invalidate
            | Self::UnknownKey
            | Self::WrongDomain
            | Self::OutOfBounds
            | Self::NoPermission
            | Self::MemoryFault
            | Self::WrongQueuePair => NakCode::RemoteAccess,
        }
    }

    /// Returns the status of a receive that the request had begun to fill.
    pub(super) fn receive_status(self) -> (CompletionStatus, Cause) {
        match self {
            Self::ReceiveTooSmall => (CompletionStatus::LocalLengthError, Cause::ReceiveTooSmall),
            Self::ReceiveMemory(cause) => (CompletionStatus::LocalProtectionError, cause),
            // Only a WRITE with immediate data needs a receive and can have an access fault: a local access error (IBTA
            // 11.6.2). rxe: remote access error.
            _ if self.is_access() => (CompletionStatus::LocalAccessError, Cause::PeerAccessRefused),
            Self::Invalidate => (CompletionStatus::RemoteAccessError, Cause::InvalidateRefused),
            _ => (CompletionStatus::RemoteInvalidRequestError, Cause::PeerViolation),
        }
    }

    /// Returns the event for the application (ibv_get_async_event(3)).
    pub(super) fn event(self, qpn: Qpn) -> AsyncEvent {
        match self {
            Self::ReceiveMemory(_) => AsyncEvent::QueuePairFatal(qpn),
            _ if self.is_access() || self == Self::Invalidate => AsyncEvent::QueuePairAccessError(qpn),
            _ => AsyncEvent::QueuePairRequestError(qpn),
        }
    }
}

/// Returns the cause of a failed access to local memory.
pub(super) fn local_cause(error: AccessError) -> Cause {
    match error {
        AccessError::WrongDomain => Cause::LocalKeyWrongDomain,
        AccessError::OutOfBounds | AccessError::Misaligned => Cause::LocalOutOfBounds,
        AccessError::NoPermission => Cause::LocalNotWritable,
        AccessError::Fault => Cause::LocalMemoryFault,
        _ => Cause::LocalKeyUnknown,
    }
}
