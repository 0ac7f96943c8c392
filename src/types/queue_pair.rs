//! Attributes of a queue pair, with the standard's field names.

use super::setters::{optional_setters, setters};
use super::{AccessFlags, Gid, Mtu, PeerCapabilities, PeerKey, Psn, Qkey, Qpn};

/// Transport service of a queue pair. The numbers are those of `ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum QueuePairType {
    /// Reliable connection.
    ReliableConnection = 2,
    /// Unreliable connection.
    UnreliableConnection = 3,
    /// Unreliable datagram.
    UnreliableDatagram = 4,
    /// The sending end of an extended reliable connection (XRC initiator): it has no receive queue.
    XrcSend = 9,
    /// The receiving end of an extended reliable connection (XRC target): it has no queues, and its messages go to
    /// shared receive queues.
    XrcReceive = 10,
}

impl QueuePairType {
    /// All types.
    pub const ALL: &[QueuePairType] = &[
        Self::ReliableConnection,
        Self::UnreliableConnection,
        Self::UnreliableDatagram,
        Self::XrcSend,
        Self::XrcReceive,
    ];

    /// Returns the standard's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReliableConnection => "RC",
            Self::UnreliableConnection => "UC",
            Self::UnreliableDatagram => "UD",
            Self::XrcSend => "XRC initiator",
            Self::XrcReceive => "XRC target",
        }
    }

    /// Returns whether the queue pair has one peer. Datagram queue pairs have none: each datagram specifies its
    /// destination.
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::UnreliableDatagram)
    }

    /// Returns whether the peer acknowledges packets, and lost ones are retransmitted.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::ReliableConnection | Self::XrcSend | Self::XrcReceive)
    }
}

/// State of a queue pair (IBTA 10.3.1). The numbers are those of `ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum QueuePairState {
    /// As created: nothing posted, nothing sent, nothing accepted.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive: requests of the peer are executed.
    ReadyToReceive = 2,
    /// Ready to send: local requests are sent too.
    ReadyToSend = 3,
    /// Send queue drained: requests that have started are finished, no new ones start.
    SendQueueDrained = 4,
    /// Send queue error: a send failed, receives continue (unreliable services only).
    SendQueueError = 5,
    /// Everything outstanding is flushed, and new requests are flushed immediately.
    Error = 6,
}

impl QueuePairState {
    /// All states.
    pub const ALL: &[QueuePairState] = &[
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Returns the standard's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrained => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        }
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairCapabilities {
    /// Number of requests that the send queue holds.
    pub max_send_wr: u32,
    /// Number of requests that the receive queue holds.
    pub max_recv_wr: u32,
    /// Maximum number of scatter-gather entries of a send request.
    pub max_send_sge: u32,
    /// Maximum number of scatter-gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Maximum number of inline bytes of a send request.
    pub max_inline_data: u32,
}

impl Default for QueuePairCapabilities {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 }
    }
}

/// The path to a peer. [`AddressVector::new`] has defaults for everything but the two ends; setters are named after the
/// fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of the local GID in the port's table.
    pub sgid_index: u8,
    /// IPv6 flow label (20 bits) and entropy for the UDP source port; 0: derived from the queue pair numbers.
    pub flow_label: u32,
    /// Time to live of the packets; 0 means the default of 64.
    pub hop_limit: u8,
    /// Type of service byte of the packets. The upper six bits are their DSCP. A soft device interprets the lower two:
    /// 2 (ECT(0)) means that a standard peer reports ECN marks by queues on the path.
    pub traffic_class: u8,
    /// Service level (0 to 15); meaningless on Ethernet without priorities.
    pub sl: u8,
    /// The peer's LID, in an InfiniBand subnet; meaningless on Ethernet.
    pub dlid: u16,
    /// Port of the device, from 1.
    pub port_num: u8,
}

impl AddressVector {
    /// Creates the path from the local GID at `sgid_index` to `dgid`, on port 1, with default settings.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self { dgid, sgid_index, flow_label: 0, hop_limit: 64, traffic_class: 0, sl: 0, dlid: 0, port_num: 1 }
    }

    setters! {
        dgid: Gid,
        sgid_index: u8,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        dlid: u16,
        port_num: u8,
    }
}

/// Attributes for a state change (IBTA 11.2.5.2); those that are `None` are not given. Names and units are those of
/// `ibv_qp_attr`. The default sets none; setters are named after the fields.
///
/// ```
/// use rdma_verbs::verbs::{QueuePairAttributes, QueuePairState};
///
/// let to_init = QueuePairAttributes::default().qp_state(QueuePairState::Init).port_num(1).pkey_index(0);
/// assert_eq!((to_init.port_num, to_init.qkey), (Some(1), None));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// The new state.
    pub qp_state: Option<QueuePairState>,
    /// The current state as the caller assumes it; the change is refused if this is wrong.
    pub cur_qp_state: Option<QueuePairState>,
    /// Index into the P_Key table; only 0 exists.
    pub pkey_index: Option<u16>,
    /// Port, from 1.
    pub port_num: Option<u8>,
    /// Access that this queue pair grants to the peer.
    pub qp_access_flags: Option<AccessFlags>,
    /// Q_Key (datagrams).
    pub qkey: Option<Qkey>,
    /// The path to the peer.
    pub ah_attr: Option<AddressVector>,
    /// Payload of a full packet; both ends must use the same value.
    pub path_mtu: Option<Mtu>,
    /// Number of the peer's queue pair.
    pub dest_qp_num: Option<Qpn>,
    /// Sequence number of the first packet to be received.
    pub rq_psn: Option<Psn>,
    /// Sequence number of the first packet to be sent.
    pub sq_psn: Option<Psn>,
    /// Maximum number of READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: Option<u8>,
    /// Maximum number of READs and atomics that this side may have outstanding at the peer.
    pub max_rd_atomic: Option<u8>,
    /// Code (0 to 31) of the time that a peer waits when no receive is posted here (IBTA 9.7.5.2.8).
    pub min_rnr_timer: Option<u8>,
    /// Code (0 to 31) of the time to wait for a response: 4.096 µs × 2^timeout (IBTA 9.7.6.1.3), up to four times as
    /// long on a path whose round trip takes more than a sixth of it; 0: forever.
    pub timeout: Option<u8>,
    /// Number of retries without a response, 0 to 7; 7 is not unlimited.
    pub retry_cnt: Option<u8>,
    /// Number of retries when the peer has no receive posted, 0 to 6; 7: unlimited.
    pub rnr_retry: Option<u8>,
    /// Whether an event is raised when the send queue has drained.
    pub en_sqd_async_notify: Option<bool>,
    /// Capabilities of the peer beyond the standard. None by default: a standard peer, unless the device finds out more
    /// ([`SoftOptions::discovery`](crate::provider::soft::SoftOptions::discovery)).
    pub peer: Option<PeerCapabilities>,
    /// The key that this end and a native peer share, for INIT to RTR. No query returns it.
    pub peer_key: Option<PeerKey>,
}

impl QueuePairAttributes {
    optional_setters! {
        qp_state: QueuePairState,
        cur_qp_state: QueuePairState,
        pkey_index: u16,
        port_num: u8,
        qp_access_flags: AccessFlags,
        qkey: Qkey,
        ah_attr: AddressVector,
        path_mtu: Mtu,
        dest_qp_num: Qpn,
        rq_psn: Psn,
        sq_psn: Psn,
        max_dest_rd_atomic: u8,
        max_rd_atomic: u8,
        min_rnr_timer: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        en_sqd_async_notify: bool,
        peer: PeerCapabilities,
        peer_key: PeerKey,
    }
}

/// The state and all attributes of a queue pair, as set or defaulted (IBTA 11.2.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuePairStatus {
    /// Transport service, as created.
    pub qp_type: QueuePairType,
    /// Whether every send request generates a completion, as created.
    pub sq_sig_all: bool,
    /// Current state, asynchronous changes included.
    pub qp_state: QueuePairState,
    /// Whether requests that started before SQD are still unfinished.
    pub sq_draining: bool,
    /// All attributes, each `Some` once set.
    pub attributes: QueuePairAttributes,
    /// Actual sizes of the queues.
    pub cap: QueuePairCapabilities,
}

impl QueuePairStatus {
    /// Creates the status of a queue pair in RESET, to be completed by a provider.
    pub fn new(qp_type: QueuePairType, cap: QueuePairCapabilities) -> Self {
        Self {
            qp_type,
            sq_sig_all: false,
            qp_state: QueuePairState::Reset,
            sq_draining: false,
            attributes: QueuePairAttributes::default(),
            cap,
        }
    }
}

/// The standard's delay after an RNR NAK, by its 5-bit code, in microseconds (IBTA 9.7.5.2.8).
pub const RNR_TIMER_MICROSECONDS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680,
    10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];
