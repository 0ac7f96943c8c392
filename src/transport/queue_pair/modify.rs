//! State changes at the application's request: checked as a whole first, then carried out, so that a refused one
//! changes nothing (ibv_modify_qp(3)).

use std::sync::Arc;

use super::{QueuePair, address_of};
use crate::transport::congestion::CongestionFactory;
use crate::transport::datagram::SourceAddress;
use crate::transport::marks::{Marking, TrafficClass};
use crate::transport::path::{Acquaintance, HiddenFields, Path, PathKey};
use crate::transport::window_share::WindowShare;
use crate::types::modify::{Mask, ModifyError, ModifyLimits, check_ranges, check_transition, merge};
use crate::types::{Cause, ErrorOrigin, PeerCapabilities, QueuePairAttributes, QueuePairState, QueuePairType};
use crate::wire::Flow;
use crate::wire::icrc::Seed;

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
                self.common.history.note_error_origin(ErrorOrigin::Application);
                return self.enter_error(Cause::QueuePairInError);
            }
            _ => {}
        }
        let from = self.common.state;
        // The application knows the peer better.
        self.discovery.take_if(|_| given.peer.is_some());
        merge(&mut self.common.attributes, given);
        if given.qp_access_flags.is_some() || given.max_dest_rd_atomic.is_some() {
            self.responder.end_direct_access();
        }
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
                    self.common.read_record_factor(),
                );
            }
            (ReadyToReceive, ReadyToSend) => {
                let first = self.common.attributes.sq_psn.unwrap_or_default();
                // The key is not needed any more: from here on the masks suffice.
                if let (Some(key), Some(path)) = (self.common.attributes.peer_key.take(), &self.common.path) {
                    self.packet_check.start_sending(&key, self.common.qpn, path.destination, first);
                }
                self.requester.start(first);
            }
            (SendQueueError, ReadyToSend) => self.common.history.forget_error_origin(),
            (SendQueueDrained, SendQueueDrained) => self.apply_drained(given, source, window_share),
            (_, SendQueueDrained) => {
                // Each transition to SQD requests the event separately.
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
    pub(super) fn note_path(&mut self, given: &QueuePairAttributes, congestion: Option<&dyn CongestionFactory>) {
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
            self.discovery.iter_mut().for_each(|discovery| discovery.forget_segmenting_port());
            self.set_path(source, window_share);
        }
        if let Some(max_dest_rd_atomic) = given.max_dest_rd_atomic {
            self.responder.make_room(max_dest_rd_atomic, self.common.read_record_factor());
        }
    }

    fn set_path(&mut self, source: Option<SourceAddress>, window_share: impl FnOnce(PathKey) -> Arc<WindowShare>) {
        let (Some(source), Some(vector)) = (source, self.common.attributes.ah_attr) else { return };
        let peer_address = address_of(vector.dgid);
        let traffic_class = TrafficClass::unmarked(vector.traffic_class);
        let key = PathKey::new(source.address, peer_address, traffic_class);
        let flow = Flow { source: source.address, destination: peer_address, source_port: source.source_port };
        self.requester.reset_share();
        self.requester.end_direct_access();
        self.responder.end_direct_access();
        let first = || match &self.common.attributes.peer_key {
            Some(key) if !key.is_agreed => Acquaintance::OneSided,
            _ => Acquaintance::Mutual,
        };
        let acquaintance = self.common.path.as_ref().map_or_else(first, |path| path.acquaintance);
        let mut path = Path {
            source,
            peer_address,
            destination: self.common.attributes.dest_qp_num.unwrap_or_default(),
            mtu: self.common.attributes.path_mtu.unwrap_or_default(),
            peer: self.common.attributes.peer.unwrap_or(PeerCapabilities::STANDARD),
            acquaintance,
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
