//! Requests of the connection manager, as Linux sends them.

use std::net::{IpAddr, SocketAddr};

use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::wire::mad::{
    CommunicationId, ConnectRequest, IpHeader, MessageRetries, MtuCode, Path, PortSpace, RetryCount, ServiceId,
    TimeoutCode,
};

/// Returns the header of IP connections with these addresses.
///
/// # Panics
/// If the addresses have different IP versions.
pub fn ip_header(source: IpAddr, destination: IpAddr) -> IpHeader {
    IpHeader::new(SocketAddr::new(source, 40_000), destination).expect("addresses of one IP version")
}

/// Returns a REQ to a port of the destination. All its identities depend on the number. `data`: at most 56 bytes.
///
/// # Panics
/// If the addresses have different IP versions, or there is too much data.
pub fn connect_request(number: u32, port: u16, [source, destination]: [IpAddr; 2], data: &[u8]) -> ConnectRequest {
    ConnectRequest {
        local_id: CommunicationId(0x0100_0000 + number),
        service_id: ServiceId::of_port(PortSpace::Tcp, port),
        local_guid: 0x0200_5eff_fe00_0000 + u64::from(number),
        local_qpn: Qpn::new(0x10_0000 + number),
        responder_resources: 4,
        initiator_depth: 4,
        remote_response_timeout: TimeoutCode::saturating(20),
        starting_psn: Psn::new(0x77_388d),
        local_response_timeout: TimeoutCode::saturating(20),
        retry_count: RetryCount::MAX,
        pkey: 0xffff,
        path_mtu: MtuCode::new(3).expect("a code"),
        max_cm_retries: MessageRetries::MAX,
        primary_path: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: source.into(),
            remote_gid: destination.into(),
            hop_limit: 64,
            local_ack_timeout: TimeoutCode::saturating(17),
            ..Path::default()
        },
        private_data: ip_header(source, destination).with_data(data).expect("at most 56 bytes"),
        ..ConnectRequest::default()
    }
}
