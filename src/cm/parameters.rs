//! Parameters of calls.

use std::net::IpAddr;

use super::error::CallError;
use crate::types::{Mtu, PeerCapabilities, Psn, Qkey, Qpn, Time};
use crate::wire::mad::{
    AdditionalInformation, ConnectionTransport, FlowLabel, IpHeader, PacketRate, Path, PrivateData, RejectReason,
    RetryCount, ServiceId, ServiceIdStatus, TimeoutCode, VendorOptions,
};

/// LIDs of a path that leaves the subnet, as Linux sends them on Ethernet with a hop limit above 1.
const PERMISSIVE_LID: u16 = 0xffff;

/// The path of a connection's packets, and of its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathParameters {
    /// Address of this end.
    pub local: IpAddr,
    /// Address of the peer.
    pub remote: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// Transport timeout of the peer's queue pair.
    pub ack_timeout: TimeoutCode,
}

impl PathParameters {
    /// Returns the private data of a request along this path, whose ends have addresses of one IP version.
    pub(super) fn private_data<const N: usize>(
        self,
        header: &IpHeader,
        data: &[u8],
    ) -> Result<PrivateData<N>, CallError> {
        let Self { local, remote, .. } = self;
        let private_data = header.with_data(data).filter(|_| local.is_ipv4() == remote.is_ipv4());
        private_data.ok_or(CallError::IpVersions { local, remote })
    }

    /// Returns the path in a REQ.
    pub(super) fn to_path(self) -> Path {
        let lid = if self.hop_limit > 1 { PERMISSIVE_LID } else { 0 };
        Path {
            local_lid: lid,
            remote_lid: lid,
            local_gid: self.local.into(),
            remote_gid: self.remote.into(),
            flow_label: self.flow_label,
            packet_rate: PacketRate::default(),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            local_ack_timeout: self.ack_timeout,
            ..Path::default()
        }
    }
}

/// Parameters of a connection that this end requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectParameters {
    /// The service.
    pub service_id: ServiceId,
    /// The addresses of both ends as the peer's application sees them.
    pub header: IpHeader,
    /// The path.
    pub path: PathParameters,
    /// The transport service. An XRC initiator serves nothing: its request has no responder resources, no retries of
    /// the peer's queue pair and no shared receive queue, whatever these parameters are.
    pub transport: ConnectionTransport,
    /// The own queue pair.
    pub local_qpn: Qpn,
    /// The PSN of the peer's first packet.
    pub starting_psn: Psn,
    /// Number of READs and atomics that this end serves at once.
    pub responder_resources: u8,
    /// Number of READs and atomics that this end has outstanding.
    pub initiator_depth: u8,
    /// The own receive queue reports credits.
    pub end_to_end_flow_control: bool,
    /// Number of retries after timeouts, for both queue pairs.
    pub retry_count: RetryCount,
    /// Number of retries of the peer's queue pair while this end is not ready.
    pub rnr_retry_count: RetryCount,
    /// Path MTU, for both queue pairs.
    pub path_mtu: Mtu,
    /// The own queue pair has a shared receive queue.
    pub has_srq: bool,
    /// Options of a vendor.
    pub vendor_options: VendorOptions,
    /// Capabilities of this end, if it offers the peer a key of the connection. XRC connections have no
    /// keys: the confirmation needs the field of the target's number.
    pub native: Option<PeerCapabilities>,
    /// Data of the application.
    pub private_data: PrivateData<56>,
    /// When this end gives up, if that is before its repetitions end.
    pub deadline: Option<Time>,
}

/// Parameters of a reply that accepts a connection.
///
/// An XRC target requests nothing and always has shared receive queues: its reply has no initiator depth and no flow
/// control, whatever these parameters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AcceptParameters {
    /// The own queue pair.
    pub local_qpn: Qpn,
    /// The PSN of the peer's first packet.
    pub starting_psn: Psn,
    /// Number of READs and atomics that this end serves at once.
    pub responder_resources: u8,
    /// Number of READs and atomics that this end has outstanding.
    pub initiator_depth: u8,
    /// The longest time from a packet's arrival at this end to its acknowledgement.
    pub target_ack_delay: TimeoutCode,
    /// The own receive queue reports credits.
    pub end_to_end_flow_control: bool,
    /// Number of retries of the peer's queue pair while this end is not ready.
    pub rnr_retry_count: RetryCount,
    /// The own queue pair has a shared receive queue.
    pub has_srq: bool,
    /// Options of a vendor. The request must have the same vendor.
    pub vendor_options: VendorOptions,
    /// Capabilities of this end, if its queue pair uses the key that the peer may have offered.
    pub native: Option<PeerCapabilities>,
    /// Data of the application.
    pub private_data: PrivateData<196>,
    /// When this end gives up, if that is before its repetitions end.
    pub deadline: Option<Time>,
}

/// A rejection by the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The reason.
    pub reason: RejectReason,
    /// Details.
    pub information: AdditionalInformation<7>,
    /// Data of the application.
    pub private_data: PrivateData<148>,
}

/// A rejection with the reason "consumer", without data.
impl Default for Rejection {
    fn default() -> Self {
        Self {
            reason: RejectReason::CONSUMER,
            information: AdditionalInformation::default(),
            private_data: PrivateData::default(),
        }
    }
}

/// Parameters of a request for a peer's datagram queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResolveParameters {
    /// The service.
    pub service_id: ServiceId,
    /// The addresses of both ends as the peer's application sees them.
    pub header: IpHeader,
    /// The path.
    pub path: PathParameters,
    /// Data of the application.
    pub private_data: PrivateData<180>,
    /// When this end gives up, if that is before its repetitions end.
    pub deadline: Option<Time>,
}

/// A datagram queue pair, in response to a peer's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramQueuePair {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// Options of a vendor.
    pub vendor_options: VendorOptions,
    /// Data of the application.
    pub private_data: PrivateData<136>,
}

impl DatagramQueuePair {
    /// The status of a response with a queue pair.
    pub(super) const STATUS: ServiceIdStatus = ServiceIdStatus::VALID;
}
