//! State changes at the application's request: checked as a whole first, then carried out, so that a refused one
//! changes nothing (ibv_modify_qp(3)).

use std::sync::Arc;

use super::state_machine::{self, Mask, TransitionError};
use super::{QueuePair, address_of};
use crate::transport::congestion::CongestionFactory;
use crate::transport::datagram::{ModifyLimits, SourceAddress};
use crate::transport::marks::{Marking, TrafficClass};
use crate::transport::path::{HiddenFields, Path, PathKey};
use crate::transport::window_share::WindowShare;
use crate::types::{Cause, ErrorCause, PeerCapabilities, QueuePairAttributes, QueuePairState, QueuePairType};
use crate::wire::Flow;
use crate::wire::icrc::Seed;

/// Why a state change was refused; nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such queue pair.
    #[error("the queue pair does not exist any more")]
    UnknownQueuePair,
    /// The table has no such transition.
    #[error("there is no transition from {from} to {to}", from = from.name(), to = to.name())]
    NoTransition {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
    },
    /// Attributes that the transition needs are missing.
    #[error("{from} to {to} needs {names} as well", from = from.name(), to = to.name())]
    Missing {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
        /// Names of the attributes.
        names: String,
    },
    /// Attributes were given that the transition does not take.
    #[error("{from} to {to} does not take {names}", from = from.name(), to = to.name())]
    NotAllowed {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
        /// Names of the attributes.
        names: String,
    },
    /// Some attributes are missing, and others are not allowed.
    #[error("{from} to {to} needs {missing} as well and does not take {extra}", from = from.name(), to = to.name())]
    MissingAndNotAllowed {
        /// Current state.
        from: QueuePairState,
        /// Requested state.
        to: QueuePairState,
        /// Names of the missing attributes.
        missing: String,
        /// Names of the attributes that are not allowed.
        extra: String,
    },
    /// In SQD, attributes may change only after the send queue has drained (IBTA 10.3.1).
    #[error("the send queue is still draining; change {names} after SQ_DRAINED or when query_qp shows it drained")]
    StillDraining {
        /// The attributes given.
        names: String,
    },
    /// `cur_qp_state` is not the current state.
    #[error("cur_qp_state says {said}, but the queue pair is in {actual}", said = said.name(), actual = actual.name())]
    WrongCurrentState {
        /// The state that the caller gave.
        said: QueuePairState,
        /// The current state.
        actual: QueuePairState,
    },
    /// A value is outside its range.
    #[error("{name} is {given}; allowed are {allowed}")]
    OutOfRange {
        /// Name of the attribute.
        name: &'static str,
        /// The value given.
        given: u64,
        /// The values allowed.
        allowed: String,
    },
}

impl QueuePair {
    /// Checks a state change without changing anything. Returns the new state.
    pub(in crate::transport) fn check_modify(
        &self,
        given: &QueuePairAttributes,
        limits: &ModifyLimits,
    ) -> Result<QueuePairState, ModifyError> {
        let from = self.common.state;
        let to = check_transition(from, self.common.service, given)?;
        let stays_drained = from == QueuePairState::SendQueueDrained && to == from;
        if stays_drained && !Mask::of(given).is_empty() && !self.requester.is_idle() {
            return Err(ModifyError::StillDraining { names: Mask::of(given).names() });
        }
        check_ranges(given, limits)?;
        Ok(to)
    }

    /// Carries out a change that [`QueuePair::check_modify`] allowed.
    pub(in crate::transport) fn apply_modify(
        &mut self,
        to: QueuePairState,
        given: &QueuePairAttributes,
        source: Option<SourceAddress>,
        window_share: impl FnOnce(PathKey) -> Arc<WindowShare>,
        congestion: Option<&dyn CongestionFactory>,
    ) {
        match to {
            QueuePairState::Reset => return self.reset(),
            QueuePairState::Error => {
                self.common.history.note_error_cause(ErrorCause::Application);
                return self.enter_error(Cause::QueuePairInError);
            }
            _ => {}
        }
        let from = self.common.state;
        merge(&mut self.common.attributes, given);
        use QueuePairState::{Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
        match (from, to) {
            // Requests posted during the reset belong to the previous connection.
            (Reset, Init) => self.forget_posted(),
            (Init, ReadyToReceive) => {
                self.set_path(source, window_share);
                let expected = self.common.attributes.rq_psn.unwrap_or_default();
                if let (Some(key), Some(path)) = (&self.common.attributes.peer_key, &self.common.path) {
                    self.packet_check.start_receiving(key, self.common.qpn, path.destination, expected);
                }
                self.responder.start(
                    expected,
                    self.common.attributes.max_dest_rd_atomic.unwrap_or(0),
                    self.common.read_laps(),
                );
            }
            (ReadyToReceive, ReadyToSend) => {
                let first = self.common.attributes.sq_psn.unwrap_or_default();
                // From here on the masks suffice.
                if let (Some(key), Some(path)) = (self.common.attributes.peer_key.take(), &self.common.path) {
                    self.packet_check.start_sending(&key, self.common.qpn, path.destination, first);
                }
                self.requester.start(first);
            }
            (SendQueueError, ReadyToSend) => self.common.history.forget_ending(),
            (SendQueueDrained, SendQueueDrained) => self.apply_drained(given, source, window_share),
            (_, SendQueueDrained) => {
                // Each transition requests it again.
                self.common.attributes.en_sqd_async_notify = Some(given.en_sqd_async_notify.unwrap_or(false));
                self.requester.note_draining();
            }
            _ => {}
        }
        if given.ah_attr.is_some() || given.peer.is_some() {
            self.note_path(given, congestion);
        }
        self.common.state = to;
    }

    /// Handles a change of the path or the peer's capabilities.
    fn note_path(&mut self, given: &QueuePairAttributes, congestion: Option<&dyn CongestionFactory>) {
        let Some(path) = &mut self.common.path else { return };
        if let Some(peer) = given.peer {
            path.peer = peer;
            path.note_peer();
        }
        self.requester.take_path(path, congestion);
        let has_marks = self.common.service.is_reliable() && path.window_share.is_controlled();
        let wished = self.common.attributes.ah_attr.map_or(0, |vector| vector.traffic_class);
        let marking = if has_marks { Marking::begin(&path.peer, wished) } else { Marking::Off };
        path.traffic_class.set(path.traffic_class.get().with(marking));
        self.common.note_control();
    }

    /// Applies changes in SQD. Nothing is in flight, so the path may change as well.
    fn apply_drained(
        &mut self,
        given: &QueuePairAttributes,
        source: Option<SourceAddress>,
        window_share: impl FnOnce(PathKey) -> Arc<WindowShare>,
    ) {
        if given.ah_attr.is_some() {
            self.set_path(source, window_share);
        }
        if let Some(max_dest_rd_atomic) = given.max_dest_rd_atomic {
            self.responder.make_room(max_dest_rd_atomic, self.common.read_laps());
        }
    }

    fn set_path(&mut self, source: Option<SourceAddress>, window_share: impl FnOnce(PathKey) -> Arc<WindowShare>) {
        let (Some(source), Some(vector)) = (source, self.common.attributes.ah_attr) else { return };
        let peer_address = address_of(vector.dgid);
        let traffic_class = TrafficClass::unmarked(vector.traffic_class);
        let key = PathKey::new(source.address, peer_address, traffic_class);
        let flow = Flow { source: source.address, destination: peer_address, source_port: source.source_port };
        self.requester.reset_share();
        let begins_known = || self.common.attributes.peer_key.as_ref().is_none_or(|key| key.is_agreed);
        let is_known_to_peer = self.common.path.as_ref().map_or_else(begins_known, |path| path.is_known_to_peer);
        let mut path = Path {
            source,
            peer_address,
            destination: self.common.attributes.dest_qp_num.unwrap_or_default(),
            mtu: self.common.attributes.path_mtu.unwrap_or_default(),
            peer: self.common.attributes.peer.unwrap_or(PeerCapabilities::STANDARD),
            is_known_to_peer,
            traffic_class: traffic_class.into(),
            hop_limit: if vector.hop_limit == 0 { 64 } else { vector.hop_limit },
            peer_port: None,
            seed: Seed::new(&flow),
            peer_seed: None,
            hidden_fields: HiddenFields::default(),
            flush_as_linux: false,
            socket_packets: 0,
            window_share: window_share(key),
        };
        path.note_peer();
        self.common.path = Some(path);
    }

    pub(in crate::transport) fn is_supported(service: QueuePairType) -> bool {
        use QueuePairType::{ReliableConnection, UnreliableConnection, UnreliableDatagram, XrcReceive, XrcSend};
        matches!(service, ReliableConnection | UnreliableConnection | UnreliableDatagram | XrcSend | XrcReceive)
    }
}

/// Checks a change from this state against the standard's table (IBTA 11.2.5.2; `ib_modify_qp_is_ok`). Returns the new
/// state.
pub(crate) fn check_transition(
    from: QueuePairState,
    service: QueuePairType,
    given: &QueuePairAttributes,
) -> Result<QueuePairState, ModifyError> {
    if let Some(said) = given.cur_qp_state
        && said != from
    {
        return Err(ModifyError::WrongCurrentState { said, actual: from });
    }
    let to = given.qp_state.unwrap_or(from);
    state_machine::check(from, to, service, Mask::of(given)).map_err(|refused| match refused {
        TransitionError::NoTransition => ModifyError::NoTransition { from, to },
        TransitionError::Missing(mask) => ModifyError::Missing { from, to, names: mask.names() },
        TransitionError::NotAllowed(mask) => ModifyError::NotAllowed { from, to, names: mask.names() },
        TransitionError::MissingAndNotAllowed { missing, extra } => {
            ModifyError::MissingAndNotAllowed { from, to, missing: missing.names(), extra: extra.names() }
        }
    })?;
    Ok(to)
}

/// Checks that all values are in range.
pub(crate) fn check_ranges(given: &QueuePairAttributes, limits: &ModifyLimits) -> Result<(), ModifyError> {
    let at_most = |name, value: Option<u64>, limit: u64| match value {
        Some(value) if value > limit => {
            Err(ModifyError::OutOfRange { name, given: value, allowed: format!("0 to {limit}") })
        }
        _ => Ok(()),
    };
    at_most("pkey_index", given.pkey_index.map(u64::from), u64::from(limits.pkey_tbl_len.saturating_sub(1)))?;
    at_most("min_rnr_timer", given.min_rnr_timer.map(u64::from), 31)?;
    at_most("timeout", given.timeout.map(u64::from), 31)?;
    at_most("retry_cnt", given.retry_cnt.map(u64::from), 7)?;
    at_most("rnr_retry", given.rnr_retry.map(u64::from), 7)?;
    at_most("max_rd_atomic", given.max_rd_atomic.map(u64::from), u64::from(limits.max_rd_atomic))?;
    at_most("max_dest_rd_atomic", given.max_dest_rd_atomic.map(u64::from), u64::from(limits.max_dest_rd_atomic))?;
    if let Some(port) = given.port_num.filter(|port| !(1..=limits.ports).contains(port)) {
        let allowed = if limits.ports == 1 { "1".into() } else { format!("1 to {}", limits.ports) };
        return Err(ModifyError::OutOfRange { name: "port_num", given: port.into(), allowed });
    }
    if let Some(mtu) = given.path_mtu.filter(|mtu| *mtu > limits.active_mtu) {
        let allowed = format!("256 to {} (the link's active MTU)", limits.active_mtu);
        return Err(ModifyError::OutOfRange { name: "path_mtu", given: mtu.bytes().into(), allowed });
    }
    Ok(())
}

/// Copies the given attributes.
fn merge(attributes: &mut QueuePairAttributes, given: &QueuePairAttributes) {
    macro_rules! take {
        ($($field:ident)*) => { $(if given.$field.is_some() { attributes.$field = given.$field; })* };
    }
    take!(pkey_index port_num qp_access_flags qkey ah_attr path_mtu dest_qp_num rq_psn sq_psn max_dest_rd_atomic
        max_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry en_sqd_async_notify peer peer_key);
}
