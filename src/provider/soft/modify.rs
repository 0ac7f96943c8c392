//! State changes of a queue pair: the part that opens sockets, which the endpoint cannot do.

use std::net::IpAddr;
use std::sync::PoisonError;

use super::errors;
use super::limit::check_range;
use super::queue_pair::SoftQueuePair;
use crate::engine::{RegisteredPeer, Shard, registered_peer};
use crate::provider::{Error, Result};
use crate::sys::LocalAddress;
use crate::transport::SourceAddress;
use crate::types::modify::ModifyLimits;
use crate::types::{
    AddressVector, PeerCapabilities, QueuePairAttributes, QueuePairState, QueuePairStatus, QueuePairType, RateLimit,
    SharedMemory,
};

/// The kind of sockets that the queue pair's packets leave from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum PathKind {
    /// No path yet.
    #[default]
    None,
    /// Sockets that send packets one by one.
    Plain,
    /// Sockets that send segmented bursts.
    Segmenting,
}

/// How a peer is discovered.
#[derive(Clone, Copy)]
struct PeerDiscovery {
    /// Port of the socket for bursts to a native peer.
    segmenting_port: Option<u16>,
}

impl SoftQueuePair {
    pub(super) fn modify_state(&self, attributes: &QueuePairAttributes) -> Result<()> {
        let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.check_alive("modify_qp")?;
        let limits = self.modify_limits();
        let mut given = *attributes;
        let can_segment = self.device.advertised_capabilities().segmentation_offload;
        if let Some(peer) = &mut given.peer {
            // Capabilities learned later do not change the sockets.
            peer.segmentation_offload &= can_segment && *path != PathKind::Plain;
        }
        let (mut kind, mut discovery) = (*path, None);
        let source = match &given.ah_attr {
            None => None,
            Some(vector) => {
                self.check_before_opening(attributes, &limits)?;
                let status = self.with_endpoint("modify_qp", |endpoint| endpoint.query_queue_pair(self.qpn))?;
                if given.peer.is_none() && status.attributes.peer.is_none() {
                    let found = self.registered_peer(vector, &given, can_segment);
                    given.peer = found.map(|found| found.capabilities);
                    if given.peer_key.is_none() && given.qp_state == Some(QueuePairState::ReadyToReceive) {
                        given.peer_key = found.and_then(|found| found.key);
                    }
                }
                let peer = given.peer.or(status.attributes.peer).unwrap_or(PeerCapabilities::STANDARD);
                kind = if peer.segmentation_offload { PathKind::Segmenting } else { PathKind::Plain };
                let source = self.open_source(vector, kind, &given, &status)?;
                discovery = self.discovery(vector, &given, &status, source);
                Some(source)
            }
        };
        let is_datagram = self.qp_type == QueuePairType::UnreliableDatagram;
        if is_datagram && given.qp_state == Some(QueuePairState::ReadyToReceive) {
            let opened = self.shard.receive_datagrams(&self.device.local_addresses());
            opened.map_err(|error| errors::from_open("modify_qp", error))?;
        }
        if given.qp_state == Some(QueuePairState::Reset) {
            self.shard.send_acknowledgements(self.qpn);
        }
        let peer = given.ah_attr.map(|vector| vector.dgid.to_ip());
        let ends = source.zip(peer).zip(given.dest_qp_num);
        if let Some(((source, peer), destination)) = ends
            && self.device.shared_memory == SharedMemory::Require
            && self.qp_type.is_connected()
            && given.qp_state == Some(QueuePairState::ReadyToReceive)
        {
            let required = self.shard.require_memory(source.address, peer, destination);
            required.map_err(|reason| errors::no_shared_memory(peer, &reason))?;
        }
        self.modify_endpoint(&given, source, &limits, discovery)?;
        if let Some(((source, peer), destination)) = ends {
            self.shard.link_memory(source.address, peer, destination);
            self.shard.access_directly(self.qpn, source.address, peer);
        }
        if self.device.present_from_init && !is_datagram && given.qp_state == Some(QueuePairState::Init) {
            self.shard.receive_connected(&self.device.local_addresses());
        }
        *path = if given.qp_state == Some(QueuePairState::Reset) { PathKind::None } else { kind };
        Ok(())
    }

    /// Returns the peer's registry entry, if the peer is a process of this user on this machine.
    fn registered_peer(
        &self,
        vector: &AddressVector,
        given: &QueuePairAttributes,
        can_segment: bool,
    ) -> Option<RegisteredPeer> {
        let mut peer = registered_peer(vector.dgid.to_ip(), given.dest_qp_num?.value())?;
        peer.capabilities.segmentation_offload &= can_segment;
        Some(peer)
    }

    /// Returns how the peer is discovered, if nothing is known about it: it is on another host, and the application
    /// states nothing.
    fn discovery(
        &self,
        vector: &AddressVector,
        given: &QueuePairAttributes,
        status: &QueuePairStatus,
        source: SourceAddress,
    ) -> Option<PeerDiscovery> {
        let is_known = given.peer.or(status.attributes.peer).is_some() || given.peer_key.is_some();
        let connects = self.qp_type.is_connected() && given.qp_state == Some(QueuePairState::ReadyToReceive);
        if !self.device.discovers || is_known || !connects || !Shard::leaves_host(source.address, vector.dgid.to_ip()) {
            return None;
        }
        let can_segment = self.device.advertised_capabilities().segmentation_offload;
        // Opened here, because the peer is discovered while the shard is held. Without it no bursts are sent.
        let segmenting = can_segment.then(|| self.open_source(vector, PathKind::Segmenting, given, status).ok());
        Some(PeerDiscovery { segmenting_port: segmenting.flatten().map(|source| source.source_port) })
    }

    /// Reports errors of the change itself before any of the path, and before a socket is opened for it.
    fn check_before_opening(&self, given: &QueuePairAttributes, limits: &ModifyLimits) -> Result<()> {
        self.with_endpoint("modify_qp", |endpoint| Some(endpoint.check_modify(self.qpn, given, limits)))?
            .map_err(|error| errors::from_modify(&error))
    }

    fn modify_limits(&self) -> ModifyLimits {
        ModifyLimits {
            max_rd_atomic: self.device.attributes.max_qp_init_rd_atom,
            max_dest_rd_atomic: self.device.attributes.max_qp_rd_atom,
            active_mtu: self.device.port().active_mtu,
            pkey_tbl_len: 1,
            ports: 1,
        }
    }

    fn modify_endpoint(
        &self,
        given: &QueuePairAttributes,
        source: Option<SourceAddress>,
        limits: &ModifyLimits,
        discovery: Option<PeerDiscovery>,
    ) -> Result<()> {
        let mut outcome = Err(errors::engine_failed("modify_qp"));
        self.shard.command(|core, now| {
            // The number may belong to another queue pair by now.
            if let Err(error) = self.state.check_alive("modify_qp") {
                outcome = Err(error);
                return;
            }
            let modified = core.endpoint.modify_queue_pair(now, self.qpn, given, source, limits);
            if let (Ok(()), Some(PeerDiscovery { segmenting_port })) = (&modified, discovery) {
                core.endpoint.discover_peer(now, self.qpn, segmenting_port);
            }
            if let Some(state) = core.endpoint.queue_pair_state(self.qpn) {
                self.state.note(state);
            }
            outcome = modified.map_err(|error| errors::from_modify(&error));
        });
        outcome
    }

    pub(super) fn change_rate(&self, limit: &RateLimit) -> Result<()> {
        let verb = "modify_qp_rate_limit";
        let mut outcome = Err(errors::engine_failed(verb));
        self.shard.command(|core, now| {
            // The number may belong to another queue pair once this one is destroyed.
            outcome = self.state.check_alive(verb);
            if outcome.is_ok() {
                let limited = core.endpoint.limit_rate(now, self.qpn, limit);
                outcome = limited.map_err(|error| errors::from_modify(&error));
            }
        });
        outcome
    }

    /// Returns the local end of the path. Opens the sockets of the address at its first use.
    fn open_source(
        &self,
        vector: &AddressVector,
        kind: PathKind,
        given: &QueuePairAttributes,
        status: &QueuePairStatus,
    ) -> Result<SourceAddress> {
        let local = self.local_address(vector)?;
        let peer = vector.dgid.to_ip();
        let segmenting = kind == PathKind::Segmenting;
        let entropy = if vector.flow_label != 0 {
            fold(u64::from(vector.flow_label))
        } else if segmenting {
            // Queue pairs to one peer share a socket, so that their packets can leave together.
            fold_address(peer)
        } else {
            let destination = given.dest_qp_num.or(status.attributes.dest_qp_num).unwrap_or_default();
            fold(u64::from(self.qpn.value()) * u64::from(destination.value()))
        };
        let opened = self.shard.open_path(local, segmenting, entropy);
        let source_port = opened.map_err(|error| errors::from_open("modify_qp", error))?;
        self.shard.receive_marks(local.ip, peer);
        Ok(SourceAddress { address: local.ip, source_port })
    }

    fn local_address(&self, vector: &AddressVector) -> Result<LocalAddress> {
        check_range("modify_qp", "ah_attr.port_num", vector.port_num.into(), 1..=1)?;
        let local = self.device.local_address("modify_qp", "ah_attr.sgid_index", vector.sgid_index)?;
        let peer = vector.dgid.to_ip();
        let problem = if peer.is_unspecified() || peer.is_multicast() {
            "which is not the address of a single peer"
        } else if peer.is_ipv4() != local.ip.is_ipv4() {
            "which is of the other address family"
        } else {
            return Ok(local);
        };
        let message = format!("ah_attr.dgid is {peer}, {problem}; the local GID {} is {}", vector.sgid_index, local.ip);
        Err(Error::unsuitable("modify_qp", "ah_attr.dgid", message))
    }
}

/// Folds a number into a flow label of 20 bits, as the standard does.
pub(super) fn fold(mut value: u64) -> u32 {
    value ^= value >> 20;
    value ^= value >> 40;
    (value & 0xf_ffff) as u32
}

pub(super) fn fold_address(address: IpAddr) -> u32 {
    let number = match address {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(address) => {
            let number = u128::from(address);
            (number >> 64) as u64 ^ number as u64
        }
    };
    fold(number)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::IpAddr;

    use crate::engine::registered_peer;
    use crate::provider::QueuePairInit;
    use crate::provider::soft::SoftOptions;
    use crate::types::{AccessFlags, QueuePairAttributes, QueuePairCapabilities, QueuePairState, QueuePairType};

    /// Returns whether other processes find this one's capabilities while a queue pair at this address is in INIT.
    fn is_present_in_init(options: SoftOptions, address: &str) -> bool {
        let context = options.open(&format!("soft:{address}")).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, 0, None).unwrap());
        let init = QueuePairInit {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            xrc_domain: None,
            qp_type: QueuePairType::ReliableConnection,
            cap: QueuePairCapabilities::default(),
            sq_sig_all: false,
        };
        let qp = context.create_qp(&init).unwrap();
        let found = || registered_peer(address.parse::<IpAddr>().unwrap(), qp.qpn().value());
        assert_eq!(found(), None, "in RESET");
        let attributes = QueuePairAttributes {
            qp_state: Some(QueuePairState::Init),
            pkey_index: Some(0),
            port_num: Some(1),
            qp_access_flags: Some(AccessFlags::REMOTE),
            ..Default::default()
        };
        qp.modify(&attributes).unwrap();
        assert!(
            found().is_none_or(|found| found.capabilities == context.advertised_capabilities() && found.key.is_some())
        );
        found().is_some()
    }

    #[test]
    fn a_process_is_registered_from_init_on_if_requested() {
        assert!(is_present_in_init(SoftOptions::new().present_from_init(true), "127.61.0.1"));
        assert!(!is_present_in_init(SoftOptions::new(), "127.61.0.2"));
    }
}
