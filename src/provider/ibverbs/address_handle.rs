//! Address handles: paths to receivers of datagrams.

use std::any::Any;
use std::sync::Arc;

use super::device::Device;
use super::errors::{self, check_range};
use super::memory::Domain;
use super::{convert, sys};
use crate::provider::{AddressHandle, DatagramTarget, Error, Result};
use crate::types::{AddressVector, CompletionFlags, GidEntry, GlobalRouteHeader, PortAttributes, RawCompletion};

/// An address handle of an adapter.
pub(super) struct IbverbsAddressHandle {
    sys: Arc<sys::AddressHandle>,
    vector: AddressVector,
    /// Longest message that the port carried when the handle was created.
    mtu_bytes: u32,
    domain: Arc<Domain>,
}

impl IbverbsAddressHandle {
    pub(super) fn new(domain: &Arc<Domain>, vector: &AddressVector) -> Result<Self> {
        let port = check_vector("create_ah", "", &domain.device, vector)?;
        let created = sys::AddressHandle::create(&domain.sys, &convert::address(vector));
        let sys = created.map_err(|error| {
            let asked = format!("a path to {} from sgid_index {}", vector.dgid, vector.sgid_index);
            errors::from_errno("create_ah", asked, &error)
        })?;
        let mtu_bytes = port.active_mtu.bytes();
        Ok(Self { sys: Arc::new(sys), vector: *vector, mtu_bytes, domain: Arc::clone(domain) })
    }

    /// Creates the handle for replies to a received datagram.
    pub(super) fn for_reply(
        domain: &Arc<Domain>,
        completion: &RawCompletion,
        header: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<Self> {
        let refuse = |name: &'static str, message: &str| Err(Error::unsuitable("create_ah", name, message.to_owned()));
        let port = domain.device.port("create_ah", port_num)?;
        let has_lids = domain.device.has_lids(&port);
        let has_header = completion.flags.contains(CompletionFlags::GLOBAL_ROUTE_HEADER);
        if !completion.status.is_success() || !(has_header || has_lids) {
            return refuse(
                "completion",
                "the completion is not that of a received datagram: it has no GLOBAL_ROUTE_HEADER",
            );
        }
        let mut vector = AddressVector::new(crate::types::Gid::ZERO, 0);
        if has_header {
            let Some(header) = parse_header(&domain.device, port_num, header) else {
                return refuse(
                    "grh",
                    "grh holds neither an IPv6 header nor an IPv4 header with a valid checksum; give the first 40 \
                     bytes of the received message",
                );
            };
            let Some(entry) = own_entry(&domain.device, port_num, &header) else {
                let message =
                    format!("grh says that the message was sent to {}, which is no GID here", header.destination);
                return refuse("grh", &message);
            };
            vector = AddressVector::new(header.source.into(), entry.gid_index);
            (vector.traffic_class, vector.flow_label) = (header.traffic_class, header.flow_label);
        }
        vector.port_num = port_num;
        if has_lids {
            // On other ports the adapter leaves these fields of a completion undefined.
            (vector.dlid, vector.sl) = (completion.source_lid, completion.sl);
        }
        Self::new(domain, &vector)
    }

    /// Returns the handle of a request, if a queue pair of this domain may use it for a message of this length.
    pub(super) fn of_request(
        target: &DatagramTarget<'_>,
        domain: &Arc<Domain>,
        length: u64,
    ) -> Result<Arc<sys::AddressHandle>> {
        let Some(handle) = target.handle.as_any().downcast_ref::<Self>() else {
            return Err(errors::foreign("post_send", "the address handle"));
        };
        let is_own = Arc::ptr_eq(&handle.domain, domain);
        errors::check_datagram(is_own, handle.domain.id, domain.id, length, handle.mtu_bytes)?;
        Ok(Arc::clone(&handle.sys))
    }
}

/// Parses the header in front of a datagram. Datagrams that rxe loops back within the machine have an IPv4 header
/// without a checksum; it is accepted if its destination is a local address or a multicast group.
fn parse_header(device: &Device, port_num: u8, bytes: &[u8; GlobalRouteHeader::BYTES]) -> Option<GlobalRouteHeader> {
    const UDP: u8 = 17;
    let v4 = &bytes[20..];
    if v4[0] == 0x45 && v4[9] == UDP && v4[10..12] == [0, 0] {
        let destination = std::net::Ipv4Addr::new(v4[16], v4[17], v4[18], v4[19]);
        let is_own = |entry: &GidEntry| entry.gid.to_ip() == std::net::IpAddr::V4(destination);
        if destination.is_multicast() || device.gid_table(port_num).ok()?.iter().any(is_own) {
            let source = std::net::Ipv4Addr::new(v4[12], v4[13], v4[14], v4[15]);
            return Some(GlobalRouteHeader {
                source: source.into(),
                destination: destination.into(),
                traffic_class: v4[1],
                flow_label: 0,
                hop_limit: v4[8],
                identification: u16::from_be_bytes([v4[4], v4[5]]),
                dont_fragment: v4[6] & 0x40 != 0,
                udp_bytes: u16::from_be_bytes([v4[2], v4[3]]).saturating_sub(20),
            });
        }
    }
    GlobalRouteHeader::from_bytes(bytes)
}

/// Returns the entry that a message was sent to; for a multicast, one of the sender's address family. The default GID
/// is preferred where several match.
fn own_entry(device: &Device, port_num: u8, header: &GlobalRouteHeader) -> Option<GidEntry> {
    let table = device.gid_table(port_num).ok()?;
    let default = super::gid::choose(device.port("create_ah", port_num).ok()?.link_layer, &table);
    let is_group = header.destination.is_multicast();
    let is_it = |entry: &&GidEntry| match is_group {
        true => entry.gid.to_ip().is_ipv4() == header.source.is_ipv4(),
        false => entry.gid.to_ip() == header.destination,
    };
    let mut found = table.iter().filter(is_it);
    let preferred = table.iter().find(|entry| Some(entry.gid_index) == default).filter(|entry| is_it(entry));
    preferred.or_else(|| found.next()).copied()
}

/// Checks an address vector and returns its port. `prefix` precedes the names of its fields in errors.
pub(super) fn check_vector(
    verb: &'static str,
    prefix: &str,
    device: &Device,
    vector: &AddressVector,
) -> Result<PortAttributes> {
    let ports = device.limits().phys_port_cnt.into();
    check_range(verb, format!("{prefix}port_num"), vector.port_num.into(), 1..=ports)?;
    check_range(verb, format!("{prefix}flow_label"), vector.flow_label, 0..=0xf_ffff)?;
    check_range(verb, format!("{prefix}sl"), vector.sl.into(), 0..=15)?;
    let port = device.port(verb, vector.port_num)?;
    let refuse = |name: &str, message: String| Err(Error::unsuitable(verb, format!("{prefix}{name}"), message));
    if device.has_lids(&port) && !port.grh_required && vector.dlid == 0 {
        let number = vector.port_num;
        return refuse(
            "dlid",
            format!("{prefix}dlid is 0; port {number} is an InfiniBand port, which needs the peer's LID"),
        );
    }
    if vector.dgid.is_zero() {
        if device.has_lids(&port) && !port.grh_required {
            return Ok(port);
        }
        return refuse(
            "dgid",
            format!("{prefix}dgid is {}, which is unset; the port needs a global address, the peer's GID", vector.dgid),
        );
    }
    let Some(own) = device.gid(vector.port_num, vector.sgid_index)? else {
        let last = port.gid_tbl_len.saturating_sub(1);
        let index = vector.sgid_index;
        let message = if u32::from(index) > last {
            format!("{prefix}sgid_index is {index}; allowed are 0 to {last}")
        } else {
            format!("{prefix}sgid_index is {index}; that entry of the GID table is empty")
        };
        return refuse("sgid_index", message);
    };
    let (peer, own) = (vector.dgid.to_ip(), own.gid.to_ip());
    let problem = if device.has_lids(&port) {
        return Ok(port);
    } else if peer.is_unspecified() {
        "which is the unspecified address"
    } else if peer.is_multicast() && verb != "create_ah" {
        "which is not the address of a single peer"
    } else if peer.is_ipv4() != own.is_ipv4() {
        "which is of the other address family"
    } else {
        return Ok(port);
    };
    let message = format!("{prefix}dgid is {}, {problem}; the local GID {} is {own}", vector.dgid, vector.sgid_index);
    refuse("dgid", message)
}

impl AddressHandle for IbverbsAddressHandle {
    fn address_vector(&self) -> AddressVector {
        self.vector
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
