//! What a queue pair knows of itself and of its peer, as plain data: what explanations are made from.

use std::net::IpAddr;
use std::time::Duration;

use super::{Cause, CompletionStatus, Counters, DropReason, Gid, Operation, PathReport, Qpn, QueuePairStatus, Rkey};

/// What kind of packet came from the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Heard {
    /// An acknowledgement.
    Acknowledgement,
    /// Data of a READ.
    ReadAnswer,
    /// The result of an atomic.
    AtomicAnswer,
    /// "A packet is missing."
    SequenceNak,
    /// "No receive is posted."
    ReceiverNotReadyNak,
    /// Any other refusal.
    RefusalNak,
    /// A request of its own.
    Request,
}

impl Heard {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acknowledgement => "an acknowledgement",
            Self::ReadAnswer => "data of a READ",
            Self::AtomicAnswer => "the result of an atomic",
            Self::SequenceNak => "a NAK for a missing packet",
            Self::ReceiverNotReadyNak => "an RNR NAK",
            Self::RefusalNak => "a NAK that refuses a request",
            Self::Request => "a request of its own",
        }
    }
}

/// The last valid packet of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastHeard {
    /// What it was.
    pub what: Heard,
    /// How long ago.
    pub ago: Duration,
}

/// Why a request of the peer is refused, which ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PeerFault {
    /// A middle or last packet without a first one, or a first one inside a message.
    OpcodeSequence,
    /// `qp_access_flags` grants no such access.
    AccessNotGranted,
    /// More READs and atomics outstanding than `max_dest_rd_atomic`.
    TooManyReads,
    /// A packet's payload does not have the length that its position in the message demands.
    PacketLength,
    /// The message is longer than allowed, or than it said.
    MessageLength,
    /// An atomic on an address that is no multiple of eight.
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
    /// The posted receive names memory that cannot be written; the cause says why.
    ReceiveMemory(Cause),
    /// The key that the peer wanted to invalidate cannot be.
    Invalidate,
    /// The domain has no shared receive queue of the number that the message names.
    UnknownSharedReceiveQueue,
    /// A FLUSH to nowhere, or of reserved kinds.
    FlushType,
    /// The memory window was bound by another queue pair.
    WrongQueuePair,
}

/// A request of the peer that was refused; the connection ended with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RefusedRequest {
    /// What was wrong.
    pub fault: PeerFault,
    /// What the peer asked for: `SEND`, `WRITE`, `READ`, `ATOMIC WRITE`, `FLUSH`, `atomic`.
    pub operation: &'static str,
    /// Address and key of the memory that it named, if the packet named any.
    pub remote: Option<(u64, Rkey)>,
    /// Bytes: of the whole access if the packet named them, else of the packet.
    pub length: u32,
    /// The receive that it had begun to fill.
    pub wr_id: Option<u64>,
}

impl RefusedRequest {
    /// A request of which only the fault is known.
    pub const fn new(fault: PeerFault) -> Self {
        Self { fault, operation: "request", remote: None, length: 0, wr_id: None }
    }
}

/// A request of this side that failed, with the state at that moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedRequest {
    /// The number that it was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// Why.
    pub cause: Cause,
    /// What it was.
    pub operation: Operation,
    /// Bytes of its message.
    pub length: u32,
    /// Repetitions spent since the last progress, of `retry_cnt`.
    pub tries: u8,
    /// Repetitions spent after RNR NAKs since the last progress, of `rnr_retry`.
    pub rnr_tries: u8,
}

/// What took the queue pair to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ending {
    /// A request of this side failed.
    Request(FailedRequest),
    /// A request of the peer was refused.
    PeerRequest(RefusedRequest),
    /// The application asked for it.
    Application,
    /// A completion queue had no room.
    CompletionQueueOverflow,
    /// A panic in this library, which is a bug.
    Panic,
}

/// What the system or the network said about packets to the peer's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathError {
    /// The system's number, for example `ECONNREFUSED` after "port unreachable".
    pub errno: i32,
    /// Who in the network said so; `None`: this host.
    pub reporter: Option<IpAddr>,
    /// Largest IP packet that fits the path, if that was told.
    pub mtu: Option<u32>,
    /// Bytes of the shortest datagram that this host refused to send.
    pub bytes: Option<usize>,
    /// How often.
    pub count: u64,
    /// How long ago the last one was seen.
    pub ago: Duration,
}

/// Packets from the peer's address that belong to no queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stray {
    /// The queue pair that they name, if they could be read that far.
    pub qpn: Option<Qpn>,
    /// Why they were dropped.
    pub reason: DropReason,
    /// How many.
    pub count: u64,
    /// How long ago the last one came.
    pub ago: Duration,
}

/// A remote access that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAccess {
    /// First address.
    pub remote_addr: u64,
    /// Key.
    pub rkey: Rkey,
    /// Bytes.
    pub length: u32,
}

/// The last of each kind of remote access that succeeded on this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Worked {
    /// READ.
    pub read: Option<RemoteAccess>,
    /// WRITE, with or without immediate data.
    pub write: Option<RemoteAccess>,
    /// Either atomic.
    pub atomic: Option<RemoteAccess>,
    /// Bytes of the longest SEND or WRITE that was acknowledged.
    pub longest: u32,
}

/// What a queue pair knows of itself and of its peer. All counts and memories begin with the connection, that is, when
/// the queue pair went to RTR.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueuePairReport {
    /// State and attributes.
    pub status: QueuePairStatus,
    /// Counters of the connection.
    pub counters: Counters,
    /// Counters of the whole device, since it was opened.
    pub device: Counters,
    /// The last answer of the peer to a request of this side.
    pub last_answer: Option<LastHeard>,
    /// The last request of the peer.
    pub last_request: Option<LastHeard>,
    /// The last valid packet of the peer's address for any other queue pair of the device, since this one was
    /// connected.
    pub heard_elsewhere: Option<LastHeard>,
    /// Whether any packet of this side was ever acknowledged.
    pub was_acknowledged: bool,
    /// Whether any request of the peer was executed.
    pub was_requested: bool,
    /// What ended it.
    pub ending: Option<Ending>,
    /// Remote accesses that succeeded.
    pub worked: Worked,
    /// How long ago a packet that asks for an acknowledgement was sent last.
    pub last_try: Option<Duration>,
    /// How long ago the last try of a request without an answer ran out.
    pub gave_up: Option<Duration>,
    /// Answers that came when nothing was waited for any more.
    pub late_answers: u32,
    /// Where packets for this queue pair came from that is not its peer.
    pub wrong_source: Option<IpAddr>,
    /// The partition key of packets that were dropped for it.
    pub wrong_pkey: Option<u16>,
    /// What system and network said about the way to the peer.
    pub path_error: Option<PathError>,
    /// Packets from the peer's address that belong to no queue pair.
    pub strays: Vec<Stray>,
    /// Send requests that are not finished.
    pub unfinished: u32,
    /// The oldest of them that has been begun.
    pub oldest: Option<Operation>,
    /// Packets sent and not acknowledged.
    pub in_flight: u32,
    /// The peer said that it has no receive posted, and the time that it asked for is not over.
    pub waits_for_receiver: bool,
    /// Receives that are posted and not used.
    pub receives: u32,
    /// Multicast groups that it is attached to.
    pub groups: Vec<Gid>,
    /// The path to the peer, with what all queue pairs on it have sent. `None`: it has no path, or its device does not
    /// say.
    pub path: Option<PathReport>,
}

impl QueuePairReport {
    /// A report of a provider that knows no more than this.
    pub fn new(status: QueuePairStatus, counters: Counters) -> Self {
        Self {
            status,
            counters,
            device: Counters::default(),
            last_answer: None,
            last_request: None,
            heard_elsewhere: None,
            was_acknowledged: false,
            was_requested: false,
            ending: None,
            worked: Worked::default(),
            last_try: None,
            gave_up: None,
            late_answers: 0,
            wrong_source: None,
            wrong_pkey: None,
            path_error: None,
            strays: Vec::new(),
            unfinished: 0,
            oldest: None,
            in_flight: 0,
            waits_for_receiver: false,
            receives: 0,
            groups: Vec::new(),
            path: None,
        }
    }

    /// The address of the peer, once there is one.
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.status.attributes.ah_attr.map(|way| way.dgid.to_ip())
    }

    /// The last valid packet of the peer for this queue pair.
    pub fn last_heard(&self) -> Option<LastHeard> {
        self.last_answer.into_iter().chain(self.last_request).min_by_key(|heard| heard.ago)
    }
}
