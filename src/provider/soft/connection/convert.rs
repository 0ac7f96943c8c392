//! Conversion between the values of the provider tier and those of the connection manager.

use std::net::SocketAddr;

use crate::cm::{AcceptParameters, CallError, ConnectParameters, NativePeer, PathParameters};
use crate::provider::{ConnectInit, ConnectionEnd, ConnectionPath, Error, ErrorKind, Result};
use crate::types::{PeerCapabilities, PeerKey, Time};
use crate::wire::mad::{
    ConnectReply, ConnectRequest, FlowLabel, IpHeader, PortSpace, PrivateData, RetryCount, ServiceId, TimeoutCode,
};

/// Returns the error of a call that the connection manager refuses.
pub(super) fn from_call(verb: &'static str, error: &CallError) -> Error {
    let kind = match error {
        CallError::State { .. } | CallError::Destroyed { .. } | CallError::Answered { .. } => ErrorKind::InvalidState,
        CallError::TooMany { .. } | CallError::NoFreeId => ErrorKind::ResourceLimit,
        CallError::InUse { .. } => ErrorKind::AddressInUse,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(verb, kind, error.to_string())
}

/// Returns private data of a message, or the error that states its maximum length.
pub(super) fn private_data<const N: usize>(verb: &'static str, bytes: &[u8]) -> Result<PrivateData<N>> {
    PrivateData::new(bytes).ok_or_else(|| {
        let message = format!("private_data has {} bytes; allowed are at most {N}", bytes.len());
        Error::out_of_range(verb, "private_data", bytes.len() as u64, 0..=N as u64, message)
    })
}

/// Returns the header of a request's private data.
pub(super) fn header(verb: &'static str, local: SocketAddr, remote: SocketAddr) -> Result<IpHeader> {
    IpHeader::new(local, remote.ip())
        .ok_or_else(|| Error::unsuitable(verb, "local", format!("{local} cannot connect to {remote}")))
}

pub(super) fn path_parameters(path: &ConnectionPath) -> PathParameters {
    PathParameters {
        local: path.local.ip(),
        remote: path.remote.ip(),
        traffic_class: path.traffic_class,
        flow_label: FlowLabel::new(path.flow_label),
        hop_limit: path.hop_limit,
        ack_timeout: TimeoutCode::saturating(path.ack_timeout),
    }
}

pub(super) fn connect_parameters(
    init: &ConnectInit<'_>,
    space: PortSpace,
    local: SocketAddr,
    now: Time,
) -> Result<ConnectParameters> {
    let ConnectInit { path, end, transport, timeout, .. } = *init;
    Ok(ConnectParameters {
        service_id: ServiceId::of_port(space, path.remote.port()),
        header: header("connect", local, path.remote)?,
        path: path_parameters(path),
        transport,
        local_qpn: end.qpn,
        starting_psn: end.starting_psn,
        responder_resources: end.responder_resources,
        initiator_depth: end.initiator_depth,
        end_to_end_flow_control: end.flow_control,
        retry_count: RetryCount::saturating(path.retry_count),
        rnr_retry_count: RetryCount::saturating(end.rnr_retry_count),
        path_mtu: path.path_mtu,
        has_srq: end.has_srq,
        vendor_options: end.vendor_options,
        native: native(end),
        private_data: private_data("connect", &end.private_data)?,
        deadline: timeout.map(|timeout| now + timeout),
    })
}

/// Returns the parameters of a reply, without a deadline.
pub(super) fn accept_parameters(end: &ConnectionEnd) -> Result<AcceptParameters> {
    Ok(AcceptParameters {
        local_qpn: end.qpn,
        starting_psn: end.starting_psn,
        responder_resources: end.responder_resources,
        initiator_depth: end.initiator_depth,
        target_ack_delay: TimeoutCode::saturating(end.ack_delay),
        end_to_end_flow_control: end.flow_control,
        rnr_retry_count: RetryCount::saturating(end.rnr_retry_count),
        has_srq: end.has_srq,
        vendor_options: end.vendor_options,
        native: native(end),
        private_data: private_data("accept", &end.private_data)?,
        deadline: None,
    })
}

/// Returns the capabilities of this end, if its queue pair uses a key.
fn native(end: &ConnectionEnd) -> Option<PeerCapabilities> {
    end.capabilities.is_native().then_some(end.capabilities)
}

/// Returns the capabilities of a peer and the key of its connection, for the two fields of an end.
fn of_native(native: Option<NativePeer>) -> (PeerCapabilities, Option<PeerKey>) {
    native.map_or_else(Default::default, |native| (native.capabilities, Some(native.key)))
}

/// Returns the path of a peer's request, and the peer.
pub(super) fn of_request(
    request: &ConnectRequest,
    header: &IpHeader,
    data: &PrivateData<56>,
    native: Option<NativePeer>,
) -> (ConnectionPath, ConnectionEnd) {
    let primary = &request.primary_path;
    let port = request.service_id.port().map_or(0, |(_, port)| port);
    let path = ConnectionPath {
        local: SocketAddr::new(header.destination(), port),
        remote: header.source(),
        remote_gid: primary.local_gid,
        local_gid: primary.remote_gid,
        traffic_class: primary.traffic_class,
        flow_label: primary.flow_label.value(),
        hop_limit: primary.hop_limit,
        // The manager refuses requests with other codes.
        path_mtu: request.path_mtu.mtu().unwrap_or(crate::types::Mtu::Mtu256),
        retry_count: request.retry_count.value(),
        ack_timeout: primary.local_ack_timeout.value(),
    };
    let (capabilities, key) = of_native(native);
    let end = ConnectionEnd {
        qpn: request.local_qpn,
        starting_psn: request.starting_psn,
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        flow_control: request.end_to_end_flow_control,
        rnr_retry_count: request.rnr_retry_count.value(),
        has_srq: request.has_srq,
        ack_delay: 0,
        vendor_options: request.vendor_options,
        capabilities,
        key,
        private_data: data.as_bytes().to_vec(),
    };
    (path, end)
}

/// Returns the peer, as its reply describes it.
pub(super) fn of_reply(reply: &ConnectReply, native: Option<NativePeer>) -> ConnectionEnd {
    let (capabilities, key) = of_native(native);
    ConnectionEnd {
        qpn: reply.local_qpn,
        starting_psn: reply.starting_psn,
        responder_resources: reply.responder_resources,
        initiator_depth: reply.initiator_depth,
        flow_control: reply.end_to_end_flow_control,
        rnr_retry_count: reply.rnr_retry_count.value(),
        has_srq: reply.has_srq,
        ack_delay: reply.target_ack_delay.value(),
        vendor_options: reply.vendor_options,
        capabilities,
        key,
        private_data: reply.private_data.as_bytes().to_vec(),
    }
}
