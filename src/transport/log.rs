//! The events of a queue pair for subscribers of `tracing`. `docs/tracing.md` lists them with their fields.
//!
//! All of them arise on rare paths. Without a subscriber, each costs a comparison.

use std::net::IpAddr;
use std::time::Duration;

use tracing::field::{DisplayValue, display};

use super::common::Common;
use crate::queue::note_later;
use crate::types::{Cause, ErrorOrigin, PeerFault, Psn, Qpn, QueuePairState, Time};

/// The address of the peer and the number of its queue pair.
type PeerFields = (Option<DisplayValue<IpAddr>>, Option<DisplayValue<Qpn>>);

impl Common {
    fn peer_fields(&self) -> PeerFields {
        let peer = self.path.as_ref().filter(|_| !self.is_datagram());
        (peer.map(|path| display(path.peer_address)), peer.map(|path| display(path.destination)))
    }

    /// Returns whether an event about a loss is wanted and may be noted; if so, how many of its kind were suppressed.
    fn admit_loss(&self, now: Time, kind: &'static str) -> Option<u64> {
        if !tracing::enabled!(target: "rdma_verbs::loss", tracing::Level::DEBUG) {
            return None;
        }
        self.journal().admit(now, self.qpn, kind)
    }

    /// Notes a state change that the application requested.
    #[cold]
    pub(super) fn log_change(&self, from: QueuePairState) {
        let (qpn, (peer, peer_qpn)) = (self.qpn, self.peer_fields());
        let (from, to) = (from.name(), self.state.name());
        note_later!(
            self.journal(), target: "rdma_verbs::queue_pair", DEBUG,
            %qpn, peer, peer_qpn, from, to, cause = "modify", "state changed"
        );
    }

    /// Notes that an error has changed the state, or that the application has requested the error state.
    #[cold]
    pub(super) fn log_failure(&self, from_state: QueuePairState, cause: Cause) {
        let (qpn, (peer, peer_qpn)) = (self.qpn, self.peer_fields());
        let (from, to) = (from_state.name(), self.state.name());
        match self.history.error_origin() {
            Some(ErrorOrigin::Application) => self.log_change(from_state),
            Some(ErrorOrigin::Request(failed)) => {
                let (wr_id, status, cause, retries) = (failed.wr_id, failed.status, failed.cause, failed.tries);
                let (operation, error) = (failed.operation.name().trim_start_matches("RDMA "), phrase(cause));
                note_later!(
                    self.journal(), target: "rdma_verbs::queue_pair", INFO,
                    %qpn, peer, peer_qpn, from, to, ?cause, ?status, wr_id, operation, retries, error, "request failed"
                );
            }
            Some(ErrorOrigin::PeerRequest(refused)) => {
                let (cause, operation, length) = (refused.fault, refused.operation, refused.length);
                note_later!(
                    self.journal(), target: "rdma_verbs::queue_pair", INFO,
                    %qpn, peer, peer_qpn, from, to, ?cause, operation, length, "request of the peer refused"
                );
            }
            Some(ErrorOrigin::CompletionQueueOverflow) => self.log_end(from, Cause::CompletionQueueOverflow),
            Some(ErrorOrigin::Panic) => self.log_end(from, Cause::Panic),
            None => self.log_end(from, cause),
        }
    }

    fn log_end(&self, from: &'static str, cause: Cause) {
        let (qpn, (peer, peer_qpn), to, error) = (self.qpn, self.peer_fields(), self.state.name(), phrase(cause));
        note_later!(
            self.journal(), target: "rdma_verbs::queue_pair", INFO,
            %qpn, peer, peer_qpn, from, to, ?cause, error, "queue pair failed"
        );
    }

    /// Notes that a request of the peer is refused with a NAK.
    #[cold]
    pub(super) fn log_refusal(&self, psn: Psn, fault: PeerFault) {
        let (qpn, (peer, peer_qpn), cause) = (self.qpn, self.peer_fields(), fault);
        note_later!(
            self.journal(), target: "rdma_verbs::queue_pair", DEBUG,
            %qpn, peer, peer_qpn, %psn, ?cause, "NAK sent"
        );
    }

    /// Notes that a message of the peer of an unreliable connection is dropped, because it is invalid.
    #[cold]
    pub(super) fn log_drop(&self, now: Time, psn: Psn, fault: PeerFault) {
        let Some(suppressed) = self.admit_loss(now, "message dropped") else { return };
        let (qpn, (peer, peer_qpn), cause) = (self.qpn, self.peer_fields(), fault);
        note_later!(
            self.journal(), target: "rdma_verbs::loss", DEBUG,
            %qpn, peer, peer_qpn, %psn, ?cause, suppressed, "message dropped"
        );
    }

    /// Notes the path of a connected queue pair.
    #[cold]
    pub(super) fn log_path(&self) {
        let Some(path) = self.path.as_ref().filter(|_| !self.is_datagram()) else { return };
        let (qpn, local, peer, peer_qpn) = (self.qpn, path.source.address, path.peer_address, path.destination);
        let (mtu, native) = (path.mtu.bytes(), path.peer.is_native());
        note_later!(
            self.journal(), target: "rdma_verbs::path", DEBUG,
            %qpn, %local, %peer, %peer_qpn, mtu, native, "path set"
        );
    }

    /// Notes that the peer was found to be native.
    #[cold]
    pub(super) fn log_discovery(&self) {
        let (qpn, (peer, peer_qpn)) = (self.qpn, self.peer_fields());
        note_later!(
            self.journal(), target: "rdma_verbs::path", DEBUG,
            %qpn, peer, peer_qpn, native = true, "native peer discovered"
        );
    }

    /// Notes that packets from this number on are sent again, or requested again.
    #[cold]
    pub(super) fn log_retransmission(&self, now: Time, psn: Psn, cause: &'static str, retries: u8) {
        let Some(suppressed) = self.admit_loss(now, "retransmission") else { return };
        let (qpn, (peer, peer_qpn)) = (self.qpn, self.peer_fields());
        note_later!(
            self.journal(), target: "rdma_verbs::loss", DEBUG,
            %qpn, peer, peer_qpn, %psn, cause, retries, suppressed, "retransmission"
        );
    }

    /// Notes that the peer has no receive posted for the packet with this number.
    #[cold]
    pub(super) fn log_not_ready(&self, now: Time, psn: Psn, wait: Duration) {
        let Some(suppressed) = self.admit_loss(now, "receiver not ready") else { return };
        let (qpn, (peer, peer_qpn), wait_us) = (self.qpn, self.peer_fields(), wait.as_micros() as u64);
        note_later!(
            self.journal(), target: "rdma_verbs::loss", DEBUG,
            %qpn, peer, peer_qpn, %psn, wait_us, suppressed, "receiver not ready"
        );
    }
}

/// Returns a cause in words. `explain` has the whole explanation.
fn phrase(cause: Cause) -> &'static str {
    match cause {
        Cause::NoResponse => "no response of the peer in time",
        Cause::SequenceErrorsExceeded => "the peer kept reporting that packets are missing",
        Cause::ReceiverNotReady => "the peer kept reporting that it has no receive posted",
        Cause::RefusedInvalid => "the peer refused the request as invalid",
        Cause::RefusedAccess => "the peer refused the access: key, range or access flags do not fit",
        Cause::RefusedOperational => "the peer could not execute the request",
        Cause::LocalKeyUnknown => "no local region has the lkey",
        Cause::LocalKeyWrongDomain => "the lkey belongs to another protection domain",
        Cause::LocalOutOfBounds => "a scatter-gather entry reaches beyond its region",
        Cause::LocalNotWritable => "the local region is not writable",
        Cause::LocalMemoryFault => "the memory behind the local region is gone",
        Cause::ReceiveTooSmall => "the message is longer than the posted receive",
        Cause::PeerViolation => "the peer violated the protocol",
        Cause::BadResponse => "the peer's response does not fit the request",
        Cause::InvalidateRefused => "the key to invalidate cannot be invalidated",
        Cause::PeerAccessRefused => "an access of the peer was refused",
        Cause::CompletionQueueOverflow => "a completion queue overflowed",
        Cause::Destroyed => "the queue pair is being destroyed",
        Cause::WindowUnknown | Cause::WindowBound | Cause::WindowArguments | Cause::RegionNotBindable => {
            "the memory window cannot be bound"
        }
        Cause::Panic => "a panic in this library, which is a bug",
        Cause::None | Cause::QueuePairInError | Cause::EarlierFailure => "an earlier failure",
    }
}
