//! The messages that set up a connection: REQ, MRA, REJ, REP, RTU.

use crate::types::{Psn, Qkey, Qpn};

use super::alternate_path::{InConnectRequest, Path};
use super::contents::{AdditionalInformation, PrivateData, VendorOptions};
use super::field::{WholeData, at, layout};
use super::native::{ALTERNATE_PATH, AlternatePath};
use super::{
    CommunicationId, EndToEndContext, ExtendedTransport, FailoverStatus, MessageRetries, MtuCode, ReceivedMessage,
    RejectReason, RejectedMessage, RetryCount, ServiceId, TimeoutCode, TransportType,
};

/// REQ: requests a connection (`cm_req_msg`). Local is the sender, remote the receiver.
///
/// The default has zeros in all fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectRequest {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// Options that the sender offers.
    pub vendor_options: VendorOptions,
    /// The service that the sender wants to connect to.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter. With the id or the queue pair number it identifies the connection.
    pub local_guid: u64,
    /// Q_Key, for reliable datagrams.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Number of READs and atomics that the sender serves at once: a bound of the receiver's initiator depth.
    pub responder_resources: u8,
    /// The sender's end-to-end context, for reliable datagrams.
    pub local_eecn: EndToEndContext,
    /// Number of READs and atomics that the sender has outstanding: a bound of the receiver's responder resources.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, for reliable datagrams.
    pub remote_eecn: EndToEndContext,
    /// The time in which the receiver is to respond.
    pub remote_response_timeout: TimeoutCode,
    /// Transport service.
    pub transport: TransportType,
    /// The sender's receive queue reports credits.
    pub end_to_end_flow_control: bool,
    /// The PSN of the receiver's first packet.
    pub starting_psn: Psn,
    /// The time in which the sender responds to a REP.
    pub local_response_timeout: TimeoutCode,
    /// Number of retries after timeouts, for both queue pairs.
    pub retry_count: RetryCount,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, for both queue pairs.
    pub path_mtu: MtuCode,
    /// The reliable datagram channel exists already.
    pub rdc_exists: bool,
    /// Number of retries of the receiver's queue pair while the sender is not ready.
    pub rnr_retry_count: RetryCount,
    /// Number of times that either end repeats a message of the connection manager.
    pub max_cm_retries: MessageRetries,
    /// The sender's queue pair has a shared receive queue.
    pub has_srq: bool,
    /// The transport if [`transport`](Self::transport) is [`TransportType::Extended`].
    pub extended_transport: ExtendedTransport,
    /// The path of the packets.
    pub primary_path: Path,
    /// The path to migrate to, or an offer of a native sender in its place.
    pub alternate_path: AlternatePath,
    /// The sender understands suggestions of alternate paths (SAP).
    pub sap_supported: bool,
    /// Data of the application. In the IP service it begins with an [`IpHeader`](super::IpHeader).
    pub private_data: PrivateData<92>,
}

layout! { ConnectRequest in WholeData {
    local_id: at(0),
    vendor_options: [5, 6, 7],
    service_id: at(8),
    local_guid: at(16),
    local_qkey: at(28),
    local_qpn: at(32),
    responder_resources: at(35),
    local_eecn: at(36),
    initiator_depth: at(39),
    remote_eecn: at(40),
    remote_response_timeout: at(43),
    transport: at(43).bit(2),
    end_to_end_flow_control: at(43).bit(0),
    starting_psn: at(44),
    local_response_timeout: at(47),
    retry_count: at(47).bit(2),
    pkey: at(48),
    path_mtu: at(50),
    rdc_exists: at(50).bit(3),
    rnr_retry_count: at(50).bit(2),
    max_cm_retries: at(51),
    has_srq: at(51).bit(3),
    extended_transport: at(51).bit(2),
    primary_path: InConnectRequest(52),
    alternate_path: ALTERNATE_PATH,
    sap_supported: at(139).bit(2),
    private_data: at(140),
} }

/// Transport service of the connections that this crate sets up.
///
/// ```
/// use rdma_verbs::provider::{ConnectionTransport, Context, ListenInit, PortSpace, Provider, soft::SoftProvider};
///
/// let context = SoftProvider::new().open("soft:127.46.1.25")?;
/// let init = ListenInit {
///     address: "127.46.1.25:7471".parse()?,
///     space: PortSpace::Ib,
///     transport: ConnectionTransport::ExtendedReliable,
///     backlog: 8,
///     reuse_address: false,
///     only_v6: None,
///     shares_port_of: None,
///     port: None,
/// };
/// // Requests for other connections are rejected.
/// let listener = context.connection_manager().expect("software devices have one").listen(&init)?;
/// assert_eq!(listener.local_addr(), init.address);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ConnectionTransport {
    /// Reliable connection (RC).
    #[default]
    Reliable,
    /// Extended reliable connection (XRC): the active end's queue pair is an initiator, the passive end's a target.
    ExtendedReliable,
}

impl ConnectRequest {
    /// Returns the transport service, or `None` for one that this crate does not set up. As on Linux, the extended
    /// transport type of another transport service is ignored (`cm_msgs.h`, `cm_req_get_qp_type`).
    pub fn connection_transport(&self) -> Option<ConnectionTransport> {
        match (self.transport, self.extended_transport) {
            (TransportType::ReliableConnection, _) => Some(ConnectionTransport::Reliable),
            (TransportType::Extended, ExtendedTransport::XRC) => Some(ConnectionTransport::ExtendedReliable),
            _ => None,
        }
    }
}

/// MRA: confirms the receipt of a message whose response takes longer (`cm_mra_msg`).
///
/// A Linux peer lengthens the interval of all its later repetitions by the service timeout, so a short one is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageReceipt {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// The message that has arrived.
    pub received: ReceivedMessage,
    /// The time in which the sender responds to the message.
    pub service_timeout: TimeoutCode,
    /// Data of the application.
    pub private_data: PrivateData<222>,
}

layout! { MessageReceipt in WholeData {
    local_id: at(0),
    remote_id: at(4),
    received: at(8),
    service_timeout: at(9),
    private_data: at(10),
} }

/// REJ: rejects a REQ or REP, or gives up a connection that is not set up yet (`cm_rej_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reject {
    /// The sender's number of the connection, or [`CommunicationId::NONE`]. Without a listener Linux copies bytes 4 to
    /// 7 of the REQ, so it may be the vendor of the REQ's options.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection, or [`CommunicationId::NONE`] if the sender does not know it.
    pub remote_id: CommunicationId,
    /// The message that is rejected.
    pub rejected: RejectedMessage,
    /// Details. With [`RejectReason::TIMEOUT`] the GUID of the sender's REQ (8 bytes); with a path's reason the right
    /// value, which is a GID (16 bytes) if the GID is wrong.
    pub information: AdditionalInformation<7>,
    /// The reason.
    pub reason: RejectReason,
    /// Data of the application.
    pub private_data: PrivateData<148>,
}

layout! { Reject in WholeData {
    local_id: at(0),
    remote_id: at(4),
    rejected: at(8),
    information: (9, at(12)),
    reason: at(10),
    private_data: at(84),
} }

/// REP: accepts a REQ (`cm_rep_msg`). Local is the sender, which received the REQ.
///
/// The default has zeros in all fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectReply {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// Q_Key, for reliable datagrams.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Options that the sender accepts.
    pub vendor_options: VendorOptions,
    /// The sender's end-to-end context, or its XRC target queue pair.
    pub local_eecn: EndToEndContext,
    /// The PSN of the receiver's first packet.
    pub starting_psn: Psn,
    /// Number of READs and atomics that the sender serves at once: the receiver's queue pair has no more outstanding.
    pub responder_resources: u8,
    /// Number of READs and atomics that the sender has outstanding: the receiver's queue pair serves as many at once.
    pub initiator_depth: u8,
    /// The longest time from a packet's arrival at the sender to its acknowledgement.
    pub target_ack_delay: TimeoutCode,
    /// Whether the sender accepts the alternate path.
    pub failover_accepted: FailoverStatus,
    /// The sender's receive queue reports credits.
    pub end_to_end_flow_control: bool,
    /// Number of retries of the receiver's queue pair while the sender is not ready.
    pub rnr_retry_count: RetryCount,
    /// The sender's queue pair has a shared receive queue.
    pub has_srq: bool,
    /// GUID of the sender's channel adapter.
    pub local_guid: u64,
    /// Data of the application.
    pub private_data: PrivateData<196>,
}

layout! { ConnectReply in WholeData {
    local_id: at(0),
    remote_id: at(4),
    local_qkey: at(8),
    local_qpn: at(12),
    vendor_options: [15, 19, 23],
    local_eecn: at(16),
    starting_psn: at(20),
    responder_resources: at(24),
    initiator_depth: at(25),
    target_ack_delay: at(26),
    failover_accepted: at(26).bit(2),
    end_to_end_flow_control: at(26).bit(0),
    rnr_retry_count: at(27),
    has_srq: at(27).bit(4),
    local_guid: at(28),
    private_data: at(36),
} }

impl ConnectReply {
    /// Returns the sender's queue pair. An XRC target's number is in the field of the end-to-end context (IBTA A14;
    /// `cm_msgs.h`, `cm_rep_get_qpn`).
    pub fn queue_pair(&self, transport: ConnectionTransport) -> Qpn {
        match transport {
            ConnectionTransport::Reliable => self.local_qpn,
            ConnectionTransport::ExtendedReliable => Qpn::new(self.local_eecn.value()),
        }
    }
}

/// RTU: accepts a REP; the connection is set up (`cm_rtu_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadyToUse {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// Data of the application.
    pub private_data: PrivateData<224>,
}

layout! { ReadyToUse in WholeData {
    local_id: at(0),
    remote_id: at(4),
    private_data: at(8),
} }
