//! Attributes and capabilities of a device.

use super::{AccessFlags, OnDemandCapabilities};

/// Identity that a device reports; settable on software devices, because some programs choose code paths by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VendorIdentity {
    /// IEEE organization number.
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// The vendor's hardware revision.
    pub hw_ver: u32,
}

impl Default for VendorIdentity {
    fn default() -> Self {
        Self { vendor_id: 0x00ff_ffff, vendor_part_id: 1, hw_ver: 1 }
    }
}

/// Atomicity of peers' atomics with respect to other accesses. The numbers are those of `ibv_atomic_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AtomicCapability {
    /// No atomics.
    None = 0,
    /// Atomic with respect to the atomics of this device.
    Device = 1,
    /// Atomic with respect to every access, including the processor's.
    Global = 2,
}

bitflags::bitflags! {
    /// Optional features of a device. The bits are those of `ibv_device_cap_flags`, the upper ones those of
    /// `device_cap_flags_ex`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct DeviceCapabilities: u64 {
        /// Shared receive queues can change their size.
        const SRQ_RESIZE = 1 << 13;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Extended reliable connections (XRC).
        const XRC = 1 << 20;
        /// Invalidation by work requests and by peers.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2 that belong to the queue pair that bound them.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 38;
        /// FLUSH to persistence, for memory that can persist.
        const FLUSH_PERSISTENT = 1 << 39;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 40;
    }
}

/// Limits and capabilities of a device; names are those of `ibv_device_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Transport protocol.
    pub transport: Transport,
    /// Version of the device's software.
    pub fw_ver: String,
    /// Globally unique identifier of the device.
    pub node_guid: u64,
    /// Identifier of the system that the device is part of.
    pub sys_image_guid: u64,
    /// Vendor and hardware revision.
    pub vendor: VendorIdentity,
    /// Largest memory region, in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, one bit each.
    pub page_size_cap: u64,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter-gather entries of a request.
    pub max_sge: u32,
    /// Maximum number of scatter-gather entries of a READ.
    pub max_sge_rd: u32,
    /// Maximum number of inline bytes of a request.
    pub max_inline_data: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of memory windows; 0: none.
    pub max_mw: u32,
    /// Optional features.
    pub device_cap_flags: DeviceCapabilities,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of shared receive queues; 0: none.
    pub max_srq: u32,
    /// Maximum number of receives in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter-gather entries of a receive in a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of multicast groups with attached queue pairs; 0: none.
    pub max_mcast_grp: u32,
    /// Maximum number of queue pairs attached to one group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of attachments of all queue pairs to all groups.
    pub max_total_mcast_qp_attach: u32,
    /// Maximum number of READs and atomics that peers may have outstanding at a queue pair.
    pub max_qp_rd_atom: u8,
    /// Maximum number of READs and atomics that a queue pair may have outstanding.
    pub max_qp_init_rd_atom: u8,
    /// Atomicity of atomics.
    pub atomic_cap: AtomicCapability,
    /// Number of entries of the P_Key table.
    pub max_pkeys: u16,
    /// Longest time for which the device holds an acknowledgement: 4.096 µs × 2^code.
    pub local_ca_ack_delay: u8,
    /// Number of ports, which are numbered from 1.
    pub phys_port_cnt: u8,
    /// Access flags that regions may have.
    pub supported_access: AccessFlags,
    /// On-demand paging.
    pub odp_caps: OnDemandCapabilities,
    /// Total device memory in bytes, for all allocations; 0: none.
    pub max_dm_size: u64,
    /// Whether `reg_dmabuf_mr` accepts any descriptor that can be mapped; otherwise only dma-bufs.
    pub maps_descriptors: bool,
    /// Number of completion vectors.
    pub num_comp_vectors: u32,
    /// Valid bits of completion timestamps; 0: no timestamps.
    pub completion_timestamp_mask: u64,
    /// Frequency in kHz of the clock behind completion timestamps: their resolution. The timestamps themselves are in
    /// nanoseconds.
    pub hca_core_clock_khz: u64,
    /// Maximum number of completions for which an event can be delayed; 0: events are not delayed.
    pub max_cq_count: u16,
    /// Maximum delay of an event in microseconds.
    pub max_cq_period: u16,
    /// Whether regions can be registered so that their keys may be invalidated.
    pub invalidatable_regions: bool,
    /// Whether packets are counted per queue pair, and dropped packets by reason.
    pub packet_counters: bool,
    /// Whether failures carry a cause besides their status, and the events that led to them can be explained.
    pub failure_causes: bool,
    /// Whether a region's iova may have a different page offset than the memory.
    pub any_iova: bool,
}

impl DeviceAttributes {
    /// Creates attributes with all limits at zero, to be filled in by a provider.
    pub fn empty() -> Self {
        Self {
            transport: Transport::InfiniBand,
            fw_ver: String::new(),
            node_guid: 0,
            sys_image_guid: 0,
            vendor: VendorIdentity::default(),
            max_mr_size: 0,
            page_size_cap: 0,
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 0,
            max_sge_rd: 0,
            max_inline_data: 0,
            max_cq: 0,
            max_cqe: 0,
            max_mr: 0,
            max_mw: 0,
            device_cap_flags: DeviceCapabilities::empty(),
            max_pd: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_ah: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            max_qp_rd_atom: 0,
            max_qp_init_rd_atom: 0,
            atomic_cap: AtomicCapability::None,
            max_pkeys: 0,
            local_ca_ack_delay: 0,
            phys_port_cnt: 0,
            supported_access: AccessFlags::empty(),
            odp_caps: OnDemandCapabilities::default(),
            max_dm_size: 0,
            maps_descriptors: false,
            num_comp_vectors: 0,
            completion_timestamp_mask: 0,
            hca_core_clock_khz: 0,
            max_cq_count: 0,
            max_cq_period: 0,
            invalidatable_regions: false,
            packet_counters: false,
            failure_causes: false,
            any_iova: false,
        }
    }
}

/// Transport protocol of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Transport {
    /// The InfiniBand transport over any link, RoCE included.
    #[default]
    InfiniBand,
    /// iWARP: the same verbs over TCP. Such devices connect through a connection manager only, and have no datagrams.
    Iwarp,
    /// Anything else.
    Other,
}

impl Transport {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Iwarp => "iWARP",
            Self::Other => "unspecified",
        }
    }
}
