//! Reports on a queue pair, its peer and their path, as plain data: the input of explanations.

use std::net::IpAddr;
use std::time::Duration;

use super::{
    Cause, CompletionStatus, Counters, DropReason, Gid, Operation, PacketPath, PathReport, Qpn, QueuePairStatus, Rkey,
};

/// Kind of a packet received from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PeerPacketKind {
    /// An acknowledgement.
    Acknowledgement,
    /// A READ response.
    ReadResponse,
    /// An atomic response.
    AtomicResponse,
    /// A sequence error NAK: a packet is missing.
    SequenceNak,
    /// An RNR NAK: no receive is posted.
    ReceiverNotReadyNak,
    /// Any other NAK.
    RefusalNak,
    /// A request from the peer.
    Request,
}

impl PeerPacketKind {
    /// Returns a description in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acknowledgement => "an acknowledgement",
            Self::ReadResponse => "data of a READ",
            Self::AtomicResponse => "the result of an atomic",
            Self::SequenceNak => "a NAK for a missing packet",
            Self::ReceiverNotReadyNak => "an RNR NAK",
            Self::RefusalNak => "a NAK that refuses a request",
            Self::Request => "a request of its own",
        }
    }
}

/// The last valid packet of a kind from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LastPeerPacket {
    /// Kind of the packet.
    pub what: PeerPacketKind,
    /// Time since it arrived.
    pub ago: Duration,
}

impl LastPeerPacket {
    /// Describes a packet of this kind that arrived this long ago.
    pub const fn new(what: PeerPacketKind, ago: Duration) -> Self {
        Self { what, ago }
    }
}

/// Reason why a request of the peer is refused, which ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PeerFault {
    /// A middle or last packet without a first one, or a first one inside a message.
    OpcodeSequence,
    /// `qp_access_flags` grants no such access.
    AccessNotGranted,
    /// More READs and atomics outstanding than `max_dest_rd_atomic`.
    TooManyReads,
    /// The length of a packet's payload does not fit its position in the message.
    PacketLength,
    /// The message is longer than allowed, or its length differs from that in its header.
    MessageLength,
    /// An atomic on an address that is not a multiple of eight.
    Misaligned,
    /// No valid region has the key.
    UnknownKey,
    /// The region belongs to another protection domain than the queue pair.
    WrongDomain,
    /// The range reaches outside the region.
    OutOfBounds,
    /// The region was registered without the access flag.
    NoPermission,
    /// The memory behind the region is gone.
    MemoryFault,
    /// The message is longer than the receive that was posted for it.
    ReceiveTooSmall,
    /// The posted receive refers to memory that cannot be written; the cause gives the reason.
    ReceiveMemory(Cause),
    /// The key that the peer asked to invalidate cannot be invalidated.
    Invalidate,
    /// The domain has no shared receive queue with the number in the message.
    UnknownSharedReceiveQueue,
    /// A FLUSH without a placement type, or with reserved values.
    FlushType,
    /// The memory window was bound by another queue pair.
    WrongQueuePair,
}

/// A request of the peer that was refused; the connection ended with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedPeerRequest {
    /// Reason for the refusal.
    pub fault: PeerFault,
    /// Operation of the request: `SEND`, `WRITE`, `READ`, `ATOMIC WRITE`, `FLUSH`, `atomic`, or `request` if unknown.
    pub operation: &'static str,
    /// Remote address and key, if the packet carries them. The address is 0 for a key to invalidate.
    pub remote: Option<(u64, Rkey)>,
    /// Length in bytes: of the whole access if the packet carries it, otherwise of the packet's payload.
    pub length: u32,
    /// `wr_id` of the receive that the request had begun to fill.
    pub wr_id: Option<u64>,
}

impl FailedPeerRequest {
    /// Creates a report with the fault alone.
    pub const fn new(fault: PeerFault) -> Self {
        Self { fault, operation: "request", remote: None, length: 0, wr_id: None }
    }
}

/// A local request that failed, with the retries spent on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedRequest {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Status of its completion.
    pub status: CompletionStatus,
    /// Cause of the failure.
    pub cause: Cause,
    /// Operation of the request.
    pub operation: Operation,
    /// Length of its message in bytes.
    pub length: u32,
    /// Retries since the last progress, out of `retry_cnt`.
    pub tries: u8,
    /// Retries after RNR NAKs since the last progress, out of `rnr_retry`.
    pub rnr_tries: u8,
}

impl FailedRequest {
    /// Describes a failed request without a cause, of which nothing else is known.
    pub const fn new(wr_id: u64, operation: Operation, status: CompletionStatus) -> Self {
        Self { wr_id, status, cause: Cause::None, operation, length: 0, tries: 0, rnr_tries: 0 }
    }
}

/// Event that moved the queue pair to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorOrigin {
    /// A local request failed.
    Request(FailedRequest),
    /// A request of the peer was refused.
    PeerRequest(FailedPeerRequest),
    /// The application requested it.
    Application,
    /// A completion queue overflowed.
    CompletionQueueOverflow,
    /// A panic in this library, which is a bug.
    Panic,
}

/// An error that the kernel or the network reported for packets to the peer's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathError {
    /// The kernel's error number, for example `ECONNREFUSED` after "port unreachable".
    pub errno: i32,
    /// Address of the network node that reported it; `None` for this host.
    pub reporter: Option<IpAddr>,
    /// Size in bytes of the largest IP packet that fits the path, if it was reported.
    pub mtu: Option<u32>,
    /// Length in bytes of the shortest datagram that this host refused to send.
    pub bytes: Option<usize>,
    /// Number of occurrences.
    pub count: u64,
    /// Time since the last occurrence.
    pub ago: Duration,
}

impl PathError {
    /// Describes an error that the network reported once, this long ago, and of which nothing else is known.
    pub const fn new(errno: i32, ago: Duration) -> Self {
        Self { errno, reporter: None, mtu: None, bytes: None, count: 1, ago }
    }
}

/// Packets from the peer's address that belong to no queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UnmatchedPackets {
    /// Destination queue pair, if the packet could be parsed that far.
    pub qpn: Option<Qpn>,
    /// Reason for the drop.
    pub reason: DropReason,
    /// Number of packets.
    pub count: u64,
    /// Time since the last one arrived.
    pub ago: Duration,
}

impl UnmatchedPackets {
    /// Describes packets that were dropped for this reason, the last one this long ago.
    pub const fn new(qpn: Option<Qpn>, reason: DropReason, count: u64, ago: Duration) -> Self {
        Self { qpn, reason, count, ago }
    }
}

/// A remote access that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RemoteAccess {
    /// Start address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Length in bytes.
    pub length: u32,
}

/// The last successful remote access of each kind on this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LastSuccesses {
    /// The last READ.
    pub read: Option<RemoteAccess>,
    /// The last WRITE, with or without immediate data.
    pub write: Option<RemoteAccess>,
    /// The last atomic of either kind.
    pub atomic: Option<RemoteAccess>,
    /// Length in bytes of the longest SEND or WRITE that was acknowledged.
    pub longest: u32,
}

/// A report on a queue pair and its peer. All counts and records begin with the connection, at the transition to RTR.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueuePairReport {
    /// State and attributes of the queue pair.
    pub status: QueuePairStatus,
    /// Counters of the connection.
    pub counters: Counters,
    /// Counters of the whole device, since it was opened.
    pub device: Counters,
    /// The peer's last response to a local request.
    pub last_response: Option<LastPeerPacket>,
    /// The peer's last request.
    pub last_request: Option<LastPeerPacket>,
    /// The last valid packet from the peer's address to any other queue pair of the device, since this one was
    /// connected.
    pub packets_elsewhere: Option<LastPeerPacket>,
    /// Whether the peer ever acknowledged a packet.
    pub was_acknowledged: bool,
    /// Whether any request of the peer was executed.
    pub was_requested: bool,
    /// Event that moved the queue pair to the error state, if any.
    pub error_origin: Option<ErrorOrigin>,
    /// The last successful remote accesses.
    pub last_successes: LastSuccesses,
    /// Time since the last packet that requests an acknowledgement was sent.
    pub last_try: Option<Duration>,
    /// Time since a request first exhausted its retries without a response.
    pub gave_up: Option<Duration>,
    /// Number of responses that arrived too late, in the error state.
    pub late_responses: u32,
    /// Source address of the last packet for this queue pair that did not come from its peer.
    pub wrong_source: Option<IpAddr>,
    /// Partition key of the last packet that was dropped because of it.
    pub wrong_pkey: Option<u16>,
    /// Error that the kernel or the network reported for the path to the peer.
    pub path_error: Option<PathError>,
    /// Packets from the peer's address that belong to no queue pair.
    pub unmatched_packets: Vec<UnmatchedPackets>,
    /// Number of unfinished send requests.
    pub unfinished: u32,
    /// The oldest of them that has started.
    pub oldest: Option<Operation>,
    /// Number of packets sent and not yet acknowledged.
    pub packets_in_flight: u32,
    /// Whether the peer reported that it has no receive posted, and the delay that it requested is still running.
    pub waits_for_receiver: bool,
    /// Number of posted, unused receives.
    pub receives: u32,
    /// Multicast groups that it is attached to.
    pub groups: Vec<Gid>,
    /// The path to the peer, with the totals of all queue pairs on it. `None` if the queue pair has no path, or its
    /// device does not report it.
    pub path: Option<PathReport>,
    /// Whether packets to the peer go through shared memory, or why not. `None` if the queue pair is not connected, or
    /// its device does not report it.
    pub packet_path: Option<PacketPath>,
}

impl QueuePairReport {
    /// Creates the report of a provider that has only the status and the counters.
    pub fn new(status: QueuePairStatus, counters: Counters) -> Self {
        Self {
            status,
            counters,
            device: Counters::default(),
            last_response: None,
            last_request: None,
            packets_elsewhere: None,
            was_acknowledged: false,
            was_requested: false,
            error_origin: None,
            last_successes: LastSuccesses::default(),
            last_try: None,
            gave_up: None,
            late_responses: 0,
            wrong_source: None,
            wrong_pkey: None,
            path_error: None,
            unmatched_packets: Vec::new(),
            unfinished: 0,
            oldest: None,
            packets_in_flight: 0,
            waits_for_receiver: false,
            receives: 0,
            groups: Vec::new(),
            path: None,
            packet_path: None,
        }
    }

    /// Returns the peer's address, once it is set.
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.status.attributes.ah_attr.map(|way| way.dgid.to_ip())
    }

    /// Returns the last valid packet from the peer to this queue pair.
    pub fn last_packet(&self) -> Option<LastPeerPacket> {
        self.last_response.into_iter().chain(self.last_request).min_by_key(|heard| heard.ago)
    }
}
