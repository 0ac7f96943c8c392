//! Paths, and the messages about alternate ones: LAP, APR. Linux ignores both messages on Ethernet.

use crate::types::{Gid, Qpn};

use super::contents::{AdditionalInformation, PrivateData};
use super::field::{At, WholeData, at, layout};
use super::{CommunicationId, FlowLabel, PacketRate, ServiceLevel, TimeoutCode};

/// A path between the sender of a message (local) and its receiver (remote).
///
/// The default has zeros in all fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// LID of the sender's port. On Ethernet Linux sends 0xffff with a hop limit above 1, otherwise 0, and ignores it.
    pub local_lid: u16,
    /// LID of the receiver's port, as above.
    pub remote_lid: u16,
    /// GID of the sender's port. The receiver's packets go to this address.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, for both directions.
    pub flow_label: FlowLabel,
    /// Packet rate.
    pub packet_rate: PacketRate,
    /// Traffic class or type of service, for both directions.
    pub traffic_class: u8,
    /// Hop limit or time to live, for both directions.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: ServiceLevel,
    /// The path stays within the subnet.
    pub subnet_local: bool,
    /// The transport timeout of the receiver's queue pair.
    pub local_ack_timeout: TimeoutCode,
}

/// Position of a path in a REQ: its first byte.
#[derive(Clone, Copy)]
pub(super) struct InConnectRequest(pub(super) usize);

impl InConnectRequest {
    const fn field(self, position: At) -> At {
        position.after(self.0)
    }
}

layout! { Path in InConnectRequest {
    local_lid: at(0),
    remote_lid: at(2),
    local_gid: at(4),
    remote_gid: at(20),
    flow_label: at(36),
    packet_rate: at(39).bit(5),
    traffic_class: at(40),
    hop_limit: at(41),
    service_level: at(42),
    subnet_local: at(42).bit(3),
    local_ack_timeout: at(43),
} }

/// Position of the path in a LAP, whose fields have another order than in a REQ.
#[derive(Clone, Copy)]
struct InLoadAlternatePath;

impl InLoadAlternatePath {
    const fn field(self, position: At) -> At {
        position
    }
}

layout! { Path in InLoadAlternatePath {
    local_lid: at(20),
    remote_lid: at(22),
    local_gid: at(24),
    remote_gid: at(40),
    flow_label: at(56),
    packet_rate: at(61).bit(5),
    traffic_class: at(59),
    hop_limit: at(60),
    service_level: at(62),
    subnet_local: at(62).bit(3),
    local_ack_timeout: at(63),
} }

/// LAP: requests to load an alternate path (`cm_lap_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadAlternatePath {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The time in which the receiver is to respond.
    pub remote_response_timeout: TimeoutCode,
    /// The path to load.
    pub path: Path,
    /// Data of the application.
    pub private_data: PrivateData<168>,
}

layout! { LoadAlternatePath in WholeData {
    local_id: at(0),
    remote_id: at(4),
    remote_qpn: at(12),
    remote_response_timeout: at(15),
    path: InLoadAlternatePath,
    private_data: at(64),
} }

/// APR: accepts or refuses a LAP (`cm_apr_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AlternatePathResponse {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// Details of a refusal.
    pub information: AdditionalInformation<8>,
    /// 0: the path is loaded; others: the reason of the refusal.
    pub status: u8,
    /// Data of the application.
    pub private_data: PrivateData<148>,
}

layout! { AlternatePathResponse in WholeData {
    local_id: at(0),
    remote_id: at(4),
    information: (8, at(12)),
    status: at(9),
    private_data: at(84),
} }
