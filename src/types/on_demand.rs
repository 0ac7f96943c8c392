//! On-demand paging (ODP), where pages are looked up at access: capabilities of devices, and advice about pages.

bitflags::bitflags! {
    /// Kinds of on-demand regions that a device supports. The bits are those of `ibv_odp_general_caps`.
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
    /// The operations that unreliable datagrams support.
    pub const OF_DATAGRAMS: Self = Self::SEND.union(Self::RECEIVE).union(Self::SHARED_RECEIVE);
    /// The operations that unreliable connections support.
    pub const OF_UNRELIABLE: Self = Self::OF_DATAGRAMS.union(Self::WRITE);
}

/// On-demand paging capabilities of a device (`ibv_odp_caps`): in general, and for each transport service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct OnDemandCapabilities {
    /// Supported kinds of regions; if empty, on-demand regions are refused.
    pub general: OnDemandSupport,
    /// Operations of reliable connections.
    pub rc: OnDemandOperations,
    /// Operations of unreliable connections.
    pub uc: OnDemandOperations,
    /// Operations of unreliable datagrams.
    pub ud: OnDemandOperations,
    /// Operations of extended reliable connections.
    pub xrc: OnDemandOperations,
}

/// Advice about the expected use of on-demand regions. The numbers are those of `ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum MemoryAdvice {
    /// The ranges will be read: makes their pages present.
    Prefetch = 0,
    /// The ranges will be written: makes their pages present and writable.
    PrefetchWrite = 1,
    /// The ranges will be accessed: maps pages that are present into the device, without faulting in others.
    PrefetchNoFault = 2,
}

bitflags::bitflags! {
    /// Flags of an advice. The bits are those of `ib_uverbs_advise_mr_flag`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AdviceFlags: u32 {
        /// The verb returns only after the advice has taken effect.
        const FLUSH = 1;
    }
}
