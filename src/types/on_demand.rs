//! On-demand paging: what a device can do with pages that are looked up when they are accessed, and advice about them.

bitflags::bitflags! {
    /// What on-demand paging a device has at all. The bits are those of `ibv_odp_general_caps`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct OnDemandSupport: u64 {
        /// Ranges of memory can be registered on demand.
        const EXPLICIT = 1;
        /// The whole address space can be registered, as one region.
        const IMPLICIT = 1 << 1;
    }
}

bitflags::bitflags! {
    /// Operations that can use on-demand regions. The bits are those of `ibv_odp_transport_cap_bits`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct OnDemandOperations: u32 {
        /// SEND.
        const SEND = 1;
        /// Receives.
        const RECEIVE = 1 << 1;
        /// WRITE.
        const WRITE = 1 << 2;
        /// READ.
        const READ = 1 << 3;
        /// Atomics.
        const ATOMIC = 1 << 4;
        /// Receives of shared receive queues.
        const SHARED_RECEIVE = 1 << 5;
        /// FLUSH.
        const FLUSH = 1 << 6;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 7;
    }
}

impl OnDemandOperations {
    /// What unreliable datagrams can do.
    pub const OF_DATAGRAMS: Self = Self::SEND.union(Self::RECEIVE).union(Self::SHARED_RECEIVE);
    /// What unreliable connections can do.
    pub const OF_UNRELIABLE: Self = Self::OF_DATAGRAMS.union(Self::WRITE);
}

/// On-demand paging of a device (`ibv_odp_caps`): what it has at all, and what each transport service can do with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OnDemandCapabilities {
    /// What it has at all; nothing: on-demand regions are refused.
    pub general: OnDemandSupport,
    /// Of reliable connections.
    pub rc: OnDemandOperations,
    /// Of unreliable connections.
    pub uc: OnDemandOperations,
    /// Of unreliable datagrams.
    pub ud: OnDemandOperations,
    /// Of extended reliable connections.
    pub xrc: OnDemandOperations,
}

/// What will happen to ranges of on-demand regions. The numbers are those of `ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum MemoryAdvice {
    /// They will be read: their pages shall be made present.
    Prefetch = 0,
    /// They will be written: their pages shall be made present and writable.
    PrefetchWrite = 1,
    /// They will be accessed: what is present shall be made known to the device, and nothing else.
    PrefetchNoFault = 2,
}

bitflags::bitflags! {
    /// How advice is taken. The bits are those of `ib_uverbs_advise_mr_flag`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AdviceFlags: u32 {
        /// The verb returns when the advice was followed.
        const FLUSH = 1;
    }
}
