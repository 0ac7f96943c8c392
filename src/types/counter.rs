//! Counters of devices and queue pairs, with the names that rxe and mlx5 use, where these exist.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name { $($(#[$item_doc])* $variant,)* }

        impl $name {
            /// All variants, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Returns the name under which it is reported.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $label,)* }
            }
        }
    };
}

counters! {
    /// A counter of a device or queue pair.
    Counter {
        /// Packets sent.
        SentPackets = "sent_pkts",
        /// Bytes sent, from the base transport header to the ICRC.
        SentBytes = "sent_bytes",
        /// Packets received and accepted for a queue pair.
        ReceivedPackets = "rcvd_pkts",
        /// Bytes of those packets, from the base transport header to the ICRC.
        ReceivedBytes = "rcvd_bytes",
        /// Request packets that had already been executed.
        DuplicateRequest = "duplicate_request",
        /// Request packets that arrived out of order.
        OutOfSequenceRequest = "out_of_seq_request",
        /// Request packets kept in the reorder buffer.
        ReorderedRequest = "reordered_request",
        /// RNR NAKs received.
        ReceivedRnr = "rcvd_rnr_err",
        /// RNR NAKs sent.
        SentRnr = "send_rnr_err",
        /// Sequence NAKs received.
        ReceivedSequenceNak = "rcvd_seq_err",
        /// Sequence NAKs sent.
        SentSequenceNak = "send_seq_err",
        /// Other NAKs received.
        ReceivedNak = "rcvd_nak",
        /// Other NAKs sent.
        SentNak = "send_nak",
        /// Acknowledgements sent.
        SentAcknowledge = "sent_acks",
        /// Expiries of the transport timer.
        LocalAckTimeout = "local_ack_timeout_err",
        /// Probes for a lost tail.
        TailProbe = "tail_probe",
        /// Packets retransmitted.
        RetransmittedPackets = "retransmitted_pkts",
        /// READs requested again from the first missing byte.
        ReadRepair = "read_repair",
        /// Responses to packets that are not outstanding.
        DuplicateResponse = "duplicate_response",
        /// Packets that a queue on the path had marked (ECN).
        EcnMarkedPackets = "np_ecn_marked_roce_packets",
        /// Congestion notifications sent.
        CnpSent = "np_cnp_sent",
        /// Congestion notifications handled.
        CnpHandled = "rp_cnp_handled",
        /// Requests that failed because no response arrived.
        RetryExceeded = "retry_exceeded_err",
        /// Requests that failed because the peer had no receive posted.
        RnrRetryExceeded = "retry_rnr_exceeded_err",
        /// Completions lost because a completion queue was full.
        CompletionQueueOverflow = "cq_overflow",
        /// Flushed requests.
        Flushed = "flushed_wr",
        /// System calls that sent packets.
        SendCalls = "send_calls",
        /// Packets for another process of this user that arrived here and were forwarded.
        ForwardedPackets = "forwarded_pkts",
        /// System calls that received packets.
        ReceiveCalls = "receive_calls",
        /// Sends that the kernel refused.
        SendErrors = "send_err",
        /// Sends from which the queue of the local network interface dropped packets.
        SendQueueDrops = "send_queue_drop",
        /// Datagrams that the kernel dropped because the socket's buffer was full.
        SocketOverflow = "socket_overflow",
        /// Packets retransmitted because they were missing. When a requester goes back, only the first one is known
        /// to be missing.
        LostPackets = "lost_pkts",
        /// Packets retransmitted that were only late. A standard peer does not report them.
        SpuriousRetransmits = "spurious_retransmits",
        /// Window reductions because of network congestion. Counted per device, because its queue pairs share windows.
        CongestionEvents = "congestion_events",
        /// Lost packets attributed to chance, so that no window was reduced. Counted per device.
        ChanceLosses = "chance_losses",
        /// Microseconds in which a path had packets to send and waited for its pacer. Counted per device.
        PaceWait = "pace_wait_us",
        /// Microseconds in which a path had packets to send and its window was full. Counted per device.
        WindowWait = "window_wait_us",
        /// Questions sent to find out whether a peer is native.
        DiscoveryQuestions = "discovery_questions",
        /// Peers that were found to be native, and know that this end is.
        DiscoveredPeers = "discovered_peers",
        /// Sends that left through memory shared with a process of this user.
        SharedMemorySends = "shared_memory_sends",
        /// Sends of such processes that arrived through shared memory.
        SharedMemoryReceives = "shared_memory_receives",
        /// Requests executed in the memory of a process of this user, without packets.
        DirectRequests = "direct_requests",
    }
}

counters! {
    /// Reason why a packet was dropped without a response.
    DropReason {
        /// Shorter than its headers.
        Truncated = "drop_truncated",
        /// Length not a multiple of four, or more padding than payload.
        BadLength = "drop_bad_length",
        /// Unknown opcode.
        UnknownOpcode = "drop_unknown_opcode",
        /// Transport header version other than 0.
        BadVersion = "drop_bad_version",
        /// The invariant CRC does not match.
        BadIcrc = "drop_bad_icrc",
        /// The check value is that of a packet without the connection's key: from a peer that does not have the key, or
        /// forged.
        Unkeyed = "drop_unkeyed",
        /// A partition key other than the default.
        BadPkey = "drop_bad_pkey",
        /// No queue pair has this number.
        UnknownQueuePair = "drop_unknown_qpn",
        /// The queue pair is of another transport service.
        WrongService = "drop_wrong_service",
        /// The queue pair is not in a state in which it accepts the packet.
        WrongState = "drop_wrong_state",
        /// The addresses are not those of the connection.
        WrongAddress = "drop_wrong_address",
        /// The UDP source port of a native peer is not the connection's.
        WrongSourcePort = "drop_wrong_source_port",
        /// No receive was posted for an unreliable message.
        NoReceive = "drop_no_receive",
        /// An unreliable message was longer than the receive that was posted for it, which stays posted.
        ReceiveTooSmall = "drop_receive_too_small",
        /// An unreliable request refused for its length, key or access flags, or because it does not fit the posted
        /// receive.
        Refused = "drop_refused",
        /// The Q_Key does not match.
        BadQkey = "drop_bad_qkey",
        /// The sequence number is outside every window.
        BadPsn = "drop_bad_psn",
        /// A duplicate READ or atomic whose responder resources are gone.
        StaleDuplicate = "drop_stale_duplicate",
        /// Arrived out of order, and the reorder buffers of the device are full or the queue pair waits for a receive.
        /// On an unreliable connection: an earlier packet of its message was lost.
        OutOfOrder = "drop_out_of_order",
        /// Lies further ahead of the expected packet than the reorder window: 64 packets for a standard peer, 1 MiB for
        /// a native peer, or 64 MiB if that has [`PeerCapabilities::GAP_RUNS`](super::PeerCapabilities::GAP_RUNS).
        FarAhead = "drop_far_ahead",
        /// A READ or atomic response that arrived out of order.
        OutOfOrderResponse = "drop_out_of_order_response",
        /// A congestion notification that is malformed, or from a peer without a reason to send one: it is native, or
        /// no packet that may be marked is in flight to it.
        CongestionNotification = "drop_cnp",
        /// A packet that this type of queue pair never expects.
        Unexpected = "drop_unexpected",
    }
}

/// A set of counters: a number for each [`Counter`] and each [`DropReason`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    counts: [u64; Counter::ALL.len()],
    /// Allocated at the first drop: most queue pairs have none.
    drops: Option<Box<Drops>>,
}

type Drops = [u64; DropReason::ALL.len()];

impl Default for Counters {
    fn default() -> Self {
        Self { counts: [0; Counter::ALL.len()], drops: None }
    }
}

impl Counters {
    /// Adds to a counter.
    pub fn add(&mut self, counter: Counter, amount: u64) {
        self.counts[counter as usize] = self.counts[counter as usize].wrapping_add(amount);
    }

    /// Counts a dropped packet.
    pub fn add_drop(&mut self, reason: DropReason) {
        let drops = self.drops_mut();
        drops[reason as usize] = drops[reason as usize].wrapping_add(1);
    }

    fn drops_mut(&mut self) -> &mut Drops {
        self.drops.get_or_insert_with(|| Box::new([0; DropReason::ALL.len()]))
    }

    /// Adds all counts of another set.
    pub fn merge(&mut self, other: &Counters) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.wrapping_add(*theirs);
        }
        if let Some(drops) = &other.drops {
            for (mine, theirs) in self.drops_mut().iter_mut().zip(drops.iter()) {
                *mine = mine.wrapping_add(*theirs);
            }
        }
    }

    /// Raises each count that is smaller than that of another set.
    pub(crate) fn raise_to(&mut self, other: &Counters) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = (*mine).max(*theirs);
        }
        if let Some(drops) = &other.drops {
            for (mine, theirs) in self.drops_mut().iter_mut().zip(drops.iter()) {
                *mine = (*mine).max(*theirs);
            }
        }
    }

    /// Adds to the count of dropped packets.
    pub(crate) fn add_drops(&mut self, reason: DropReason, amount: u64) {
        let drops = self.drops_mut();
        drops[reason as usize] = drops[reason as usize].wrapping_add(amount);
    }

    /// Returns the counts since `earlier`, an older copy of the same set.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        let mut since = self.clone();
        for (now, before) in since.counts.iter_mut().zip(&earlier.counts) {
            *now = now.wrapping_sub(*before);
        }
        if let (Some(drops), Some(earlier)) = (&mut since.drops, &earlier.drops) {
            for (now, before) in drops.iter_mut().zip(earlier.iter()) {
                *now = now.wrapping_sub(*before);
            }
        }
        since
    }

    /// Returns a counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }

    /// Returns the number of packets dropped for this reason.
    pub fn get_drop(&self, reason: DropReason) -> u64 {
        self.drops.as_ref().map_or(0, |drops| drops[reason as usize])
    }

    /// Returns the number of packets dropped for any reason.
    pub fn total_drops(&self) -> u64 {
        self.drops.iter().flat_map(|drops| drops.iter()).sum()
    }

    /// Returns all names and values, drops and zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = Counter::ALL.iter().map(|counter| (counter.name(), self.get(*counter)));
        counts.chain(DropReason::ALL.iter().map(|reason| (reason.name(), self.get_drop(*reason))))
    }
}
