//! Address handles: validated paths to datagram receivers. Creating one opens its sockets.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use super::device::Device;
use super::errors;
use super::limit::{Share, check_range};
use super::modify::{fold, fold_address};
use super::protection_domain::Domain;
use crate::provider::{AddressHandle, DatagramTarget, Error, Result};
use crate::sys::LocalAddress;
use crate::types::{AddressVector, CompletionFlags, Destination, GlobalRouteHeader, RawCompletion};

/// An address handle of a software device.
pub(super) struct SoftAddressHandle {
    domain: Arc<Domain>,
    vector: AddressVector,
    source: IpAddr,
    /// Source port of each shard's socket.
    source_ports: Box<[u16]>,
    /// Longest message that the port carried at creation.
    mtu_bytes: u32,
    _share: Share,
}

impl SoftAddressHandle {
    pub(super) fn new(domain: &Arc<Domain>, vector: &AddressVector) -> Result<Self> {
        let device = &domain.device;
        let local = check_vector(device, vector)?;
        let share = device.counts.address_handles.take("create_ah")?;
        let peer = vector.dgid.to_ip();
        let entropy = if vector.flow_label == 0 { fold_address(peer) } else { fold(u64::from(vector.flow_label)) };
        let mut source_ports = Vec::new();
        for shard in device.engine.shards() {
            let opened = shard.open_path(local, false, entropy);
            let port = opened.map_err(|error| errors::from_open("create_ah", error))?;
            if peer.is_multicast() {
                let allowed = shard.allow_multicast(local.ip, port, device.interface.index);
                allowed.map_err(|error| {
                    let message = format!("interface {} cannot send multicast packets", device.interface.index);
                    Error::from_io("create_ah", message, error)
                })?;
            }
            source_ports.push(port);
        }
        Ok(Self {
            domain: Arc::clone(domain),
            vector: *vector,
            source: local.ip,
            source_ports: source_ports.into(),
            mtu_bytes: device.port().active_mtu.bytes(),
            _share: share,
        })
    }

    /// Creates a handle for the sender of a received datagram.
    pub(super) fn for_reply(
        domain: &Arc<Domain>,
        completion: &RawCompletion,
        header: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<Self> {
        let refuse = |name: &'static str, message: &str| Err(Error::unsuitable("create_ah", name, message.to_owned()));
        if !completion.status.is_success() || !completion.flags.contains(CompletionFlags::GLOBAL_ROUTE_HEADER) {
            return refuse(
                "completion",
                "the completion is not that of a received datagram: it has no GLOBAL_ROUTE_HEADER",
            );
        }
        let Some(header) = GlobalRouteHeader::from_bytes(header) else {
            return refuse(
                "grh",
                "grh holds neither an IPv6 header nor an IPv4 header with a valid checksum; give the first 40 bytes \
                 of the received message",
            );
        };
        let addresses = domain.device.addresses();
        // A reply to a multicast leaves from the first address of the same family.
        let exact = addresses.iter().find(|(_, own)| own.ip == header.destination);
        let same_kind = || addresses.iter().find(|(_, own)| own.ip.is_ipv4() == header.source.is_ipv4());
        let found = if header.destination.is_multicast() { same_kind() } else { exact };
        let Some((index, _)) = found else {
            let message = format!("grh says that the message was sent to {}, which is no GID here", header.destination);
            return refuse("grh", &message);
        };
        let mut vector = AddressVector::new(header.source.into(), *index);
        vector.traffic_class = header.traffic_class;
        vector.flow_label = header.flow_label;
        vector.port_num = port_num;
        Self::new(domain, &vector)
    }

    /// Returns the destination of a datagram from a queue pair of this domain and shard.
    pub(super) fn destination(
        target: &DatagramTarget<'_>,
        domain: &Arc<Domain>,
        shard: usize,
        length: u64,
    ) -> Result<Destination> {
        let Some(handle) = target.handle.as_any().downcast_ref::<Self>() else {
            return Err(errors::foreign("post_send", "the address handle"));
        };
        let is_own = Arc::ptr_eq(&handle.domain, domain);
        let is_too_long = length > u64::from(handle.mtu_bytes);
        let checked_length = if target.long_fails_later { 0 } else { length };
        errors::check_datagram(is_own, handle.domain.id, domain.id, checked_length, handle.mtu_bytes)?;
        Ok(Destination {
            source: handle.source,
            source_port: handle.source_ports[shard],
            address: handle.vector.dgid.to_ip(),
            traffic_class: handle.vector.traffic_class,
            hop_limit: handle.vector.hop_limit,
            qpn: target.remote_qpn,
            qkey: target.remote_qkey,
            is_too_long,
        })
    }
}

impl AddressHandle for SoftAddressHandle {
    fn address_vector(&self) -> AddressVector {
        self.vector
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Checks the attributes and returns the local address.
fn check_vector(device: &Device, vector: &AddressVector) -> Result<LocalAddress> {
    check_range("create_ah", "port_num", vector.port_num.into(), 1..=1)?;
    check_range("create_ah", "flow_label", vector.flow_label, 0..=0xf_ffff)?;
    check_range("create_ah", "sl", vector.sl.into(), 0..=15)?;
    let local = device.local_address("create_ah", "sgid_index", vector.sgid_index)?;
    let peer = vector.dgid.to_ip();
    let problem = if vector.dgid.is_zero() {
        "which is unset; on Ethernet an address handle needs a global address, the receiver's GID"
    } else if peer.is_unspecified() {
        "which is the unspecified address"
    } else if peer.is_ipv4() != local.ip.is_ipv4() {
        "which is of the other address family"
    } else {
        return Ok(local);
    };
    let message = format!("dgid is {}, {problem}; the local GID {} is {}", vector.dgid, vector.sgid_index, local.ip);
    Err(Error::unsuitable("create_ah", "dgid", message))
}
