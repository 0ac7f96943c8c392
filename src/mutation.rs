//! Planted bugs, which show what the simulator's oracle and the conformance suite can see. For tests only, behind the
//! feature `mutations`, which is no part of the API.
//!
//! Each [`Mutation`] is a realistic mistake of one or two lines at the place where it would be made. One at a time can
//! be switched on, for the calling thread or for the whole process. Without the feature `planted` is `false` at compile
//! time, and nothing of them remains in the library.
#![cfg_attr(not(feature = "mutations"), allow(unreachable_pub))]

macro_rules! mutations {
    (
        protocol { $($(#[$doc:meta])* $name:ident,)* }
        verbs { $($(#[$verbs_doc:meta])* $verbs_name:ident,)* }
    ) => {
        /// A mistake that can be switched on.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Mutation { $($(#[$doc])* $name,)* $($(#[$verbs_doc])* $verbs_name,)* }

        #[cfg(feature = "mutations")]
        impl Mutation {
            /// Those of the protocol, which the simulator must find.
            pub const ALL: &'static [Mutation] = &[$(Mutation::$name,)*];
            /// Those of the verbs, which the conformance suite must find.
            pub const OF_VERBS: &'static [Mutation] = &[$(Mutation::$verbs_name,)*];
        }
    };
}

mutations! {
    protocol {
        // ---- sequence numbers ----
        /// The end of a request that wraps is one number too far.
        PsnWrapOffByOne,
        /// The responder compares numbers without regard to their wrapping.
        PsnComparedLinearly,
        /// The answer to the last packet in flight is taken for one that was never sent.
        ResponseWindowTooShort,
        /// Going back skips the oldest unacknowledged packet.
        GoBackTooShort,
        /// RESET leaves the packets that were kept for later.
        ResetKeepsStore,
        /// RESET leaves the message in progress.
        ResetKeepsMessage,

        /// What follows a packet of its kind is taken for the next one, whatever its number.
        FollowingNumberUnchecked,
        /// What follows a packet of its kind is taken without a look at its ICRC.
        FollowingIcrcUnchecked,
        /// Packets that are made in one go leave without regard to the window.
        MiddlesIgnoreWindow,

        // ---- duplicates ----
        /// A SEND that comes again is executed again.
        DuplicateSendExecuted,
        /// A WRITE that comes again is executed again.
        DuplicateWriteExecuted,
        /// A SEND or WRITE that comes again is not acknowledged.
        DuplicateNotAcknowledged,
        /// An atomic that comes again is executed again.
        AtomicExecutedTwice,
        /// The result of an atomic is not kept for its repetition.
        AtomicResultNotStored,
        /// A READ that comes again is answered from its first byte, whatever it asks for.
        ReadRepeatedFromWrongOffset,

        // ---- completions ----
        /// Requests complete when they were sent.
        CompletionBeforeAcknowledgement,
        /// A completion bears the number of the request posted last.
        CompletionOfWrongRequest,
        /// A completion frees the slots of all requests posted.
        CompletionRetiresTooMuch,
        /// A completion does not free the slot of its own request.
        CompletionRetiresTooLittle,
        /// Unsignaled requests complete as well.
        UnsignaledCompletes,
        /// The completion of a READ tells no length.
        ReadLengthNotTold,
        /// A completion is lost when others wait.
        CompletionLost,
        /// The solicited mark does not reach the wire.
        SolicitedLost,
        /// An armed completion queue takes any completion for a solicited one.
        NotifiedUnsolicited,
        /// A queue that is armed for all completions can be armed for less.
        ArmingNarrowed,
        /// A queue that is armed for solicited completions cannot be armed for all.
        ArmingNotWidened,

        // ---- flushing and draining ----
        /// The newest request is flushed first.
        FlushOutOfOrder,
        /// Receives are not flushed.
        FlushSkipsReceives,
        /// Requests posted in the error state are not flushed.
        PostedInErrorNotFlushed,
        /// RESET leaves completions of before.
        ResetKeepsCompletions,
        /// RESET leaves posted receives.
        ResetKeepsReceives,
        /// New requests begin while the send queue drains.
        DrainDoesNotStop,
        /// Nobody is told that the send queue has drained.
        DrainedNotAnnounced,

        // ---- timers and tries ----
        /// The wait that the peer asked for never ends.
        RnrTimerLost,
        /// The wait that the peer asked for is not made.
        RnrTimerIgnored,
        /// Tries without a receive are not counted.
        RnrRetryNotCounted,
        /// Progress does not give tries without a receive back.
        RnrRetryNotGivenBack,
        /// Tries without an answer are not counted.
        RetryNotCounted,
        /// Progress does not give tries without an answer back.
        RetryNotGivenBack,
        /// A probe spends a try.
        ProbeSpendsRetry,
        /// A probe repeats nothing.
        ProbeRepeatsNothing,
        /// The transport timer does not start anew after going back.
        TimeoutNotRestarted,
        /// The transport timer never runs.
        TimeoutNotArmed,
        /// A held acknowledgement is forgotten unless somebody asks for it.
        HeldAcknowledgementForgotten,

        // ---- acknowledgements ----
        /// An acknowledgement reaches one packet too far.
        AcknowledgesTooFar,
        /// A packet that waits for an earlier one is acknowledged.
        AcknowledgesKeptPacket,
        /// Of two acknowledgements that wait, the older one leaves.
        CoalescingKeepsOlder,
        /// An acknowledgement passes the READ answers before it.
        AcknowledgementPassesRead,
        /// Signaled requests do not ask for acknowledgement.
        AcknowledgementNotRequested,
        /// Messages are not counted.
        MessagesNotCounted,
        /// No NAK for a gap.
        GapNotReported,
        /// A NAK for each packet after a gap.
        GapReportedAgain,
        /// A NAK acknowledges the packet that it asks for.
        NakAcknowledgesMissing,
        /// A receiver-not-ready NAK acknowledges the packet that it refuses.
        RnrNakAcknowledgesRefused,
        /// A refusal fails the oldest request, whichever was refused.
        RefusalFailsOldest,

        // ---- requests ----
        /// A lost packet is passed over once the peer was told of it.
        LostPacketSkipped,
        /// A fenced request does not wait for READs.
        FenceIgnored,
        /// Bytes of a later scatter-gather entry are taken from its offset in the message.
        PieceOffsetKept,
        /// Packets of an inline request all carry its beginning.
        InlineOffsetIgnored,
        /// More READs and atomics are outstanding than the peer allows.
        ReadCreditIgnored,
        /// A READ's credit does not come back.
        ReadCreditLost,
        /// More is in flight than the peer's socket holds.
        WindowIgnored,
        /// What was in flight at RESET stays counted.
        InFlightLeaked,
        /// Nobody is let in when an answer makes room.
        LineNotAdmitted,
        /// A destroyed queue pair leaves its packets counted.
        DestroyedStaysCounted,
        /// The packet that asks for a late answer waits in line.
        ProbeWaitsInLine,

        // ---- execution ----
        /// A packet after a gap is executed at once.
        ReorderedExecutedEarly,
        /// The last bytes of a packet kept for later are lost.
        KeptPacketTruncated,
        /// Immediate data arrives in the other byte order.
        ImmediateSwapped,
        /// The last packet of a SEND does not complete the receive.
        SendLastNotCompleted,
        /// A WRITE with immediate data consumes no receive.
        WriteConsumesNoReceive,
        /// A message without bytes does not complete its receive.
        EmptyMessageNotCompleted,
        /// A message without a receive is taken.
        MissingReceiveIgnored,
        /// A message longer than its receive is taken, and the rest is dropped.
        LongMessageTaken,
        /// Padding is delivered as payload.
        PaddingDelivered,
        /// A compare and swap does not compare.
        CompareIgnored,
        /// A responder resource is not free after its answer.
        ResourceLeaked,

        // ---- answers ----
        /// A READ is repaired from its first byte.
        ReadRepairedFromWrongByte,
        /// A repaired READ asks for more than was asked for.
        ReadRepairedTooFar,
        /// A READ answer is taken before its turn.
        ReadAnswerOutOfOrder,
        /// A READ answer of any length is taken.
        ReadAnswerLengthUnchecked,

        // ---- ATOMIC WRITE and FLUSH ----
        /// An ATOMIC WRITE that comes again is executed again.
        AtomicWriteExecutedTwice,
        /// An ATOMIC WRITE writes the first half of its word.
        AtomicWriteHalf,
        /// An ATOMIC WRITE is acknowledged instead of answered.
        AtomicWriteAcknowledged,
        /// A FLUSH that overtook others is answered before its turn.
        FlushAnsweredEarly,
        /// A FLUSH does not look at its key.
        FlushKeyUnchecked,
        /// A FLUSH needs no right.
        FlushRightIgnored,
        /// An empty answer is not repeated.
        EmptyAnswerNotRepeated,
        /// More ATOMIC WRITEs and FLUSHes are outstanding than the peer allows.
        EmptyAnswerCreditIgnored,

        // ---- unreliable connections ----
        /// After a gap a message goes on.
        UnreliableGapIgnored,
        /// Packets that were passed are taken.
        UnreliableLateTaken,
        /// The receive of a dropped message is lost.
        UnreliableReceiveLost,
        /// The message after a dropped one begins where that one ended.
        UnreliableFillKept,

        // ---- datagrams ----
        /// The Q_Key is not checked.
        QkeyUnchecked,
        /// A Q_Key with the highest bit is sent as it is.
        OwnQkeyNotUsed,
        /// The route header says the way back.
        RouteHeaderTurned,
        /// The route header is not counted as received.
        RouteHeaderNotCounted,
        /// The route header takes no room.
        RouteHeaderTakesNoRoom,
        /// A datagram's completion does not say who sent it.
        DatagramSourceNotTold,
        /// The invariant CRC of datagrams is not checked.
        DatagramIcrcUnchecked,

        // ---- shared receive queues ----
        /// A shared receive that was taken can be taken again.
        SharedReceiveTakenTwice,

        // ---- extended reliable connections ----
        /// A packet kept for later keeps its own operation code.
        KeptPacketNotTranslated,

        // ---- windows and revoked keys ----
        /// A window whose key was revoked stays bound.
        WindowStaysBound,
        /// Any queue pair may use the window.
        WindowOfAnybody,
        /// Every key that the window ever had works.
        WindowOldKeyWorks,
        /// A window is as large as its region.
        WindowEndIgnored,
        /// The rights of a window are not checked.
        WindowRightsIgnored,
        /// A SEND with invalidate revokes when it comes, not when it is its turn.
        InvalidatedOutOfTurn,
        /// A SEND with invalidate revokes nothing.
        InvalidationForgotten,
        /// A request that no packet leaves for waits for the next packet.
        LocalRequestForgotten,
        /// A late copy of a READ whose key was revoked meanwhile ends the connection.
        LateReadEndsConnection,

        // ---- checks ----
        /// The invariant CRC is not checked.
        IcrcUnchecked,
        /// Anybody's packets are taken for the peer's.
        SourceAddressUnchecked,
        /// Packets of the peer's other sockets are taken.
        SourcePortUnchecked,
        /// Packets to unknown queue pairs are taken.
        UnknownQueuePairTaken,
        /// The partition key is not checked.
        PkeyUnchecked,
        /// The tag in a key is not compared.
        KeyTagIgnored,
        /// The access flags of the queue pair are not checked.
        QueuePairAccessIgnored,
        /// The rights of a region are not checked.
        RegionAccessIgnored,
        /// The protection domain of a region is not checked.
        DomainIgnored,
        /// An invalidated key still works.
        InvalidatedKeyUsed,
        /// A deregistered region can still be reached.
        DeregisteredRegionUsed,
    }
    verbs {
        /// A completion of an atomic tells no length.
        AtomicLengthNotTold,
        /// A completion of a receive tells no length.
        ReceiveLengthNotTold,
        /// A WRITE completes with the opcode of a SEND.
        WriteCompletesAsSend,
        /// A compare and swap completes with the opcode of a fetch and add.
        SwapCompletesAsAdd,
        /// A WRITE with immediate data completes with the opcode of a SEND's receive.
        NoticeCompletesAsReceive,
        /// A completion does not say that there is immediate data.
        ImmediateMarkLost,
        /// Every receive says that there is immediate data.
        ImmediateMarkAlways,
        /// Completions do not say whose they are.
        CompletionOfNoQueuePair,
        /// Completions do not tell their cause.
        CauseNotTold,
        /// Flushed requests have the status of failed ones.
        FlushedAsFailed,
        /// A message that is too long ends its receive with another status.
        TooLongAsProtectionError,
        /// Silence of the peer is reported as a missing receive.
        SilenceAsReceiverNotReady,
        /// Completions of a destroyed queue pair stay.
        DestroyKeepsCompletions,
        /// RESET takes the completions of other queue pairs, too.
        PurgeTakesAll,
        /// The limit of gather entries is one too low.
        PieceLimitTooLow,
        /// An atomic of any length can be posted.
        AtomicLengthUnchecked,
        /// The limit of inline bytes is one too low.
        InlineLimitTooLow,
        /// A fetch and add returns the value after it.
        AddReturnsSum,
        /// The last byte of a region cannot be reached.
        RegionEndsTooEarly,
        /// Unsignaled requests of a queue pair that signals all do not complete.
        SignalAllIgnored,
        /// Unsignaled requests that fail do not complete.
        UnsignaledFailureSilent,
        /// No event when a request of the peer is refused.
        RefusalNotAnnounced,
        /// Another event when a request of the peer is refused.
        RefusalAnnouncedAsFatal,
        /// No event for the first packet in RTR.
        EstablishedNotAnnounced,
        /// Requests without bytes need a valid key.
        EmptyRequestKeyChecked,
        /// A wrong key is refused as an invalid request.
        AccessRefusedAsInvalid,
        /// Receive memory that is gone is refused as a wrong key.
        OperationalRefusedAsAccess,
        /// `cur_qp_state` is not compared.
        CurrentStateUnchecked,
        /// Attributes may have any value.
        AttributeRangesUnchecked,
        /// `min_rnr_timer` is not kept.
        RnrTimerForgotten,
        /// Too large capabilities are cut instead of refused.
        CapabilitiesClamped,
        /// Requests can be posted in every state.
        PostedTooEarly,
        /// Any port number is taken.
        PortUnchecked,
        /// Any GID index is taken.
        GidIndexUnchecked,
        /// More than the peer's memory holds can be posted.
        RemoteRoomUnchecked,
        /// Misaligned atomics can be posted.
        AtomicAddressUnchecked,
        /// Regions of other domains can be posted.
        ForeignRegionPosted,
        /// Regions without the right to write can be posted for arriving bytes.
        ReadOnlyRegionPosted,
        /// Revoked regions can be posted.
        RevokedRegionPosted,
        /// A connection after RESET begins from the number of the one before.
        ResetKeepsFirstNumber,
        /// Transitions need no attributes.
        MissingAttributesTaken,
        /// Transitions take any attributes.
        ExtraAttributesTaken,
        /// Attributes may change while the send queue still drains.
        ChangedWhileDraining,
        /// The event of a drained send queue comes whenever it was asked for once.
        DrainedAnnouncedUnasked,
        /// Every queue pair says that it is a reliable connection.
        TypeNotTold,
        /// A local error of an unreliable connection ends all of it.
        SendQueueErrorEndsAll,
        /// A local error of an unreliable connection flushes the receives as well.
        SendQueueErrorFlushesReceives,
        /// A wrong request of the peer ends an unreliable connection.
        UnreliableFaultEndsAll,
        /// A message longer than its receive is dropped by an unreliable connection.
        UnreliableLongMessageDropped,
        /// An unreliable connection takes operations that it does not have.
        OtherOperationsPosted,
        /// No event when a completion queue overflows.
        OverflowNotAnnounced,
        /// The overflow of a completion queue ends only the queue pair whose completion was lost.
        OverflowEndsOne,
        /// Poll says that a queue overflowed before it hands out what it kept.
        OverflowDropsWhatWaits,
        /// A larger completion queue forgets what waits in it.
        ResizeForgets,
        /// A completion queue that is armed stays so.
        ArmingStays,
        /// Failures do not wake who sleeps for solicited completions.
        FailureNotSolicited,
        /// Events outlive what they are about.
        EventsOutliveObjects,
        /// Events that were handed out are not counted.
        EventsNotCounted,
        /// Windows stay bound when their queue pair goes.
        WindowOutlivesQueuePair,
        /// Device memory that was freed counts as used.
        DeviceMemoryNotGivenBack,
        /// A part of device memory is registered from the memory's start.
        DeviceMemoryFromItsStart,
        /// Requests name device memory by its host address.
        DeviceMemoryNotZeroBased,
        /// Memory behind a descriptor is registered from the descriptor's start.
        DescriptorOffsetIgnored,
        /// The length of what is behind a descriptor is not looked at.
        DescriptorEndUnchecked,
        /// Memory behind a descriptor is named by the address at which it is mapped.
        DescriptorAddressIgnored,
        /// A page that is missing when it is accessed is passed over.
        FaultIgnored,
        /// Pages of on-demand regions must be there at registration.
        OnDemandPagesProbed,
        /// Advice is taken, and nothing follows.
        AdviceNotFollowed,
        /// Advice about regions that are not on demand is taken.
        AdviceOnAnyRegion,
        /// Pages of regions without the right to write are made writable.
        AdviceRightsUnchecked,

        // ---- shared receive queues ----
        /// A shared receive queue holds one receive less than it says.
        SharedQueueOneShort,
        /// The limit event comes when as many receives wait as the limit says.
        SharedLimitReachedTooEarly,
        /// The limit stays armed after its event.
        SharedLimitStaysArmed,
        /// No event when the limit is reached.
        SharedLimitNotAnnounced,
        /// A limit that is armed below what waits is found out with the next receive only.
        SharedLimitArmedForLater,
        /// A shared receive queue that is resized forgets what waits.
        SharedResizeForgets,
        /// Receives are in the wrong order after a shared receive queue was resized.
        SharedResizeMixesUp,
        /// A datagram takes a receive that it does not fit into.
        SharedRoomUnchecked,
        /// Receives of a shared queue are written in the protection domain of the queue pair.
        SharedMemoryOfQueuePair,
        /// The peer accesses memory in the protection domain of the shared receive queue.
        SharedDomainForPeers,
        /// The error state flushes what waits in the shared queue.
        ErrorFlushesShared,
        /// RESET takes what waits in the shared queue.
        ResetTakesShared,
        /// A receive that a message had begun to fill is not flushed.
        HalfFilledNotFlushed,
        /// No event for the last receive of a shared queue.
        LastReceiveNotAnnounced,
        /// That event comes for queue pairs with a receive queue of their own, too.
        LastReceiveAnnouncedAlways,

        // ---- extended reliable connections ----
        /// Only the first packet of a message names its queue.
        XrcNamedOnce,
        /// A message goes to the queue that the one before it named.
        XrcQueueKept,
        /// A message for a queue of another domain waits for one of this domain.
        XrcUnknownQueueWaits,
        /// Receives complete where the target was told to.
        XrcCompletesAtTarget,
        /// The peer accesses memory in the protection domain of the target.
        XrcDomainOfTarget,
        /// A READ is answered from the protection domain of the queue that was named last.
        XrcDomainOfLastQueue,
        /// An initiator takes requests that name no queue.
        XrcPostedWithoutQueue,
        /// Any two queue pairs can be connected, initiators with initiators as well.
        XrcKindsUnchecked,
    }
}

/// Whether the mistake is switched on.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(crate) const fn planted(_: Mutation) -> bool {
    false
}

#[cfg(feature = "mutations")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// The mistake that is switched on for all threads, or none.
#[cfg(feature = "mutations")]
static PLANTED_EVERYWHERE: std::sync::OnceLock<Mutation> = std::sync::OnceLock::new();

/// Whether the mistake is switched on.
#[cfg(feature = "mutations")]
#[inline]
pub(crate) fn planted(mutation: Mutation) -> bool {
    PLANTED.get() == Some(mutation) || PLANTED_EVERYWHERE.get() == Some(&mutation)
}

/// Switches a mistake on for all threads, until the process ends; the first one counts.
#[cfg(feature = "mutations")]
pub fn plant_everywhere(mutation: Mutation) {
    PLANTED_EVERYWHERE.get_or_init(|| mutation);
}

/// Switches a mistake on, for this thread; and the one before off.
#[cfg(feature = "mutations")]
pub fn plant(mutation: Option<Mutation>) {
    PLANTED.set(mutation);
}
