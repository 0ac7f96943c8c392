//! The state of an open device, shared by all its objects.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use once_cell::race::OnceBox;

use super::capture;
use super::errors;
use super::interface::Interface;
use super::later_addresses::{LaterAddresses, WildcardListener, WildcardListeners};
use super::limit::{Limit, check_range};
use super::link_speed::width_and_speed;
use super::monitor::{DeviceMonitor, ObjectCounts};
use super::multicast::{Attachments, MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use super::numbers::Numbers;
use super::options::SoftOptions;
use super::port::{Events, Port};
use crate::engine::{
    Capabilities, Engine, LinkListener, Monitored, QpnBlocks, Shard, ShardConfig, SocketSizes, probe,
    register_monitored,
};
use crate::memory::{DeviceMemoryPool, Exports, RegionTable};
use crate::provider::{AttributeFault, Error, ErrorKind, InvalidAttribute, Result};
use crate::sys::{Generation, LocalAddress, timestamp};
use crate::types::{
    AccessFlags, AtomicCapability, DeviceAttributes, DeviceCapabilities, Mtu, OnDemandCapabilities, OnDemandOperations,
    OnDemandSupport, PeerCapabilities, PortAttributes, PortState, SharedMemory, Time,
};

/// Largest number of queue pairs of a shard.
const MAX_QP_PER_SHARD: u32 = 16_384;
/// Minimum number of QPN blocks of a shard, whose queue pairs need five blocks of 4,000 numbers.
const LEAST_BLOCKS: usize = 5;
/// Number of QPN blocks that a shard takes while many are free, so that one number reveals little about the others.
const MOST_BLOCKS: usize = 15;
const MAX_QP_WR: u32 = 32_768;
const MAX_SGE: u32 = 32;
const MAX_INLINE: u32 = 1_024;
const MAX_CQ: u32 = 65_536;
const MAX_CQE: u32 = 1 << 20;
const MAX_MR: u32 = 1 << 20;
pub(super) const MAX_MW: u32 = 1 << 20;
/// Bytes of device memory, over all allocations.
const MAX_DM_SIZE: u64 = 64 << 20;
const MAX_PD: u32 = 65_536;
const MAX_SRQ: u32 = 65_536;
const MAX_XRC_DOMAINS: u32 = 65_536;
const MAX_RD_ATOMIC: u8 = 128;
const MAX_AH: u32 = 65_536;
/// Largest number of captures started by `start_capture`.
const MAX_CAPTURES: u32 = 16;

/// Time that an acknowledgement waits for the application's reply while a thread polls.
const ACK_HOLD: Duration = Duration::from_micros(50);
/// Delay reported to peers: 4.096 µs × 2^8, or 1.05 ms. When a poller turns to other work, the engine's thread takes
/// over its acknowledgements within 0.4 ms, plus the time until it is scheduled.
const LOCAL_CA_ACK_DELAY: u8 = 8;

/// Largest overhead of a packet in bytes: IP, UDP, transport headers, ICRC. The longest headers are those of an XRC
/// WRITE with immediate.
const OVERHEAD_V4_BYTES: u32 = 20 + 8 + HEADERS_BYTES;
const OVERHEAD_V6_BYTES: u32 = 40 + 8 + HEADERS_BYTES;
const HEADERS_BYTES: u32 = 12 + 4 + 16 + 4 + 4;

/// An open device.
pub(super) struct Device {
    /// Thread that watches for interface changes, started with the edge-exact descriptor or the first listener on all
    /// addresses. It ends before the engine, for which it opens sockets.
    listener: OnceLock<LinkListener>,
    wildcards: Arc<WildcardListeners>,
    pub(super) interface: Interface,
    pub(super) engine: Engine,
    /// Fork generation in which the device was opened.
    generation: Generation,
    pub(super) memory: Arc<RegionTable>,
    pub(super) device_memory: DeviceMemoryPool,
    pub(super) events: Arc<Events>,
    port: Arc<Port>,
    pub(super) attributes: DeviceAttributes,
    pub(super) counts: ObjectCounts,
    /// Shows the device to programs that watch this process, as long as it is open.
    _monitor: Arc<dyn Monitored>,
    pub(super) shared_receive_numbers: Numbers,
    pub(super) attachments: Attachments,
    capabilities: Capabilities,
    /// Whether peers find this process before its queue pairs are connected.
    pub(super) present_from_init: bool,
    /// Whether queue pairs discover native peers on other hosts.
    pub(super) discovers: bool,
    pub(super) shared_memory: SharedMemory,
    max_mtu: Mtu,
    /// Unique, because a region of one domain must never be taken for one of another.
    pub(super) domain_numbers: Numbers,
    pub(super) completion_queue_numbers: Numbers,
    next_shard: AtomicUsize,
}

impl Device {
    /// Opens the device of an interface. Binds no port and starts no thread yet.
    pub(super) fn open(interface: Interface, options: &SoftOptions) -> Result<Arc<Self>> {
        let fail = |message: &str, error| Error::from_io("open_device", message.to_owned(), error);
        let sizes = SocketSizes {
            receive_bytes: options.receive_buffer_bytes as usize,
            send_bytes: options.send_buffer_bytes as usize,
        };
        let first = *interface.addresses.first().ok_or_else(|| {
            let message = format!("{} has no address", interface.device_name);
            Error::new("open_device", ErrorKind::NotFound, message)
        })?;
        let capabilities = probe(first, &sizes)
            .map_err(|error| fail(&format!("{} cannot be used: is it an address of this machine?", first.ip), error))?;
        let memory = Arc::new(region_table(options));
        let events = Arc::new(Events::new().map_err(|error| fail("the system has no descriptors left", error))?);
        let (mut shards, reorder_budget) = (Vec::new(), Arc::default());
        let (congestion, max_bytes_per_second) = (options.congestion_algorithm(), options.path_rate());
        let (discovers, shared_memory) = (options.discovers_peers(), options.shares_memory());
        for _ in 0..options.shards {
            let blocks = QpnBlocks::lease(LEAST_BLOCKS, MOST_BLOCKS)
                .map_err(|error| fail("no queue pair numbers are available for the device", error))?;
            let shard = ShardConfig {
                device: &interface.device_name,
                guid: guid(&interface.device_name),
                blocks,
                capabilities: advertised_capabilities(&capabilities),
                discovers,
                shared_memory,
                sizes,
                max_queue_pairs: MAX_QP_PER_SHARD,
                max_segments: capabilities.max_segments.unwrap_or(1),
                ack_hold: ACK_HOLD,
                congestion,
                max_bytes_per_second,
                reorder_budget: Arc::clone(&reorder_budget),
                events: Arc::clone(&events.queue),
            };
            let shard = Shard::new(shard, Arc::clone(&memory));
            shards.push(shard.map_err(|error| fail("the system has no descriptors left for the device", error))?);
        }
        let engine = Engine::new(interface.name.as_deref().unwrap_or("soft"), shards);
        capture::start_with_device(&engine, &interface.device_name, options)?;
        let (port, counts) = (Arc::new(Port::new(&interface, &events)), object_counts());
        let monitor =
            DeviceMonitor::create(&interface.device_name, &engine, &port, &memory, shared_memory, counts.clone());
        register_monitored(&monitor);
        Ok(Arc::new(Self {
            generation: Generation::now(),
            engine,
            attributes: attributes(&interface, options),
            port,
            counts,
            _monitor: monitor,
            listener: OnceLock::new(),
            wildcards: Arc::default(),
            interface,
            memory,
            device_memory: DeviceMemoryPool::new(MAX_DM_SIZE),
            events,
            shared_receive_numbers: Numbers::up_to(0x00ff_ffff),
            attachments: Attachments::default(),
            capabilities,
            present_from_init: options.present_from_init,
            discovers,
            shared_memory,
            max_mtu: options.max_mtu,
            domain_numbers: Numbers::up_to(u32::MAX),
            completion_queue_numbers: Numbers::up_to(u32::MAX),
            next_shard: AtomicUsize::new(0),
        }))
    }

    /// Returns whether this process merely inherited the device through a fork. If so, only plain data may be touched:
    /// locks may be held by threads that exist only in the parent.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        !self.generation.is_current()
    }

    /// Fails in a process that inherited the device. Every verb calls this first.
    #[inline]
    pub(super) fn check_process(&self, verb: &'static str) -> Result<()> {
        if self.is_inherited() { Err(errors::inherited(verb)) } else { Ok(()) }
    }

    /// Returns the capabilities to report to peers.
    pub(super) fn advertised_capabilities(&self) -> PeerCapabilities {
        advertised_capabilities(&self.capabilities)
    }

    /// Returns the current attributes of the port.
    pub(super) fn port(&self) -> PortAttributes {
        self.refresh_port();
        let state = self.port.state();
        let overhead = if self.port.has_v6() { OVERHEAD_V6_BYTES } else { OVERHEAD_V4_BYTES };
        let (active_width, active_speed) = width_and_speed(self.port.megabits());
        PortAttributes {
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::largest_within(state.mtu_bytes, overhead).min(self.max_mtu),
            gid_tbl_len: self.port.gid_tbl_len(),
            max_msg_sz: crate::types::MAX_MESSAGE_BYTES,
            pkey_tbl_len: self.attributes.max_pkeys,
            active_width,
            active_speed,
            ..PortAttributes::ethernet(if state.running { PortState::Active } else { PortState::Down })
        }
    }

    /// Reads the interface again if the system reports a change.
    pub(super) fn refresh_port(&self) {
        // The thread does not see the changes that are read here. It finds an error of the socket itself.
        if self.port.refresh().unwrap_or(false)
            && let Some(listener) = self.listener.get()
        {
            listener.wake();
        }
    }

    /// Handles interface changes when they occur, not only when a verb reads them.
    pub(super) fn listen_to_system(&self) -> Result<()> {
        let Some(watch) = self.events.watch() else { return Ok(()) };
        if self.listener.get().is_none() {
            let (port, name) = (Arc::clone(&self.port), self.interface.name.as_deref().unwrap_or("soft"));
            let mut later = LaterAddresses::new(&self.wildcards);
            let on_change = move || {
                port.refresh()?;
                let now: Vec<_> = port.gids().into_iter().map(|(_, address)| address).collect();
                later.serve(&now);
                Ok(())
            };
            let started = LinkListener::start(name, Arc::clone(watch), on_change)
                .map_err(|error| Error::from_io("open_device", "the system cannot start another thread", error))?;
            // If two threads race, the second one's listener is dropped, which ends its thread.
            let _ = self.listener.set(started);
        }
        Ok(())
    }

    /// Has a listener on all addresses take requests to those that the device gets later, until it is forgotten.
    pub(super) fn serve_later_addresses(&self, wildcard: &Arc<WildcardListener>) {
        if !self.interface.is_whole() {
            return;
        }
        let started = self.listen_to_system();
        if let (Ok(()), Some(listener)) = (&started, self.listener.get()) {
            self.wildcards.add(Arc::clone(wildcard));
            // Addresses may have come since the listener read them.
            return listener.wake();
        }
        let error = started.err().map(|error| error.to_string());
        let reason = error.as_deref().unwrap_or("the system does not report changes of interfaces");
        tracing::warn!(
            target: "rdma_verbs::device",
            reason, "a listener on all addresses does not take requests to those that come later"
        );
    }

    /// Does not wait for the thread that opens sockets. In a process that inherited the device, nothing happens.
    pub(super) fn forget_wildcard(&self, wildcard: &Arc<WildcardListener>) {
        if !self.is_inherited() {
            self.wildcards.remove(wildcard);
        }
    }

    /// Returns the address of a GID table entry. Errors name `verb` and `attribute`.
    pub(super) fn local_address(&self, verb: &'static str, attribute: &'static str, index: u8) -> Result<LocalAddress> {
        self.refresh_port();
        if let Some(address) = self.port.gid(index) {
            return Ok(address);
        }
        check_range(verb, attribute, index.into(), 0..=self.port.gid_tbl_len().saturating_sub(1))?;
        let message =
            format!("{attribute} is {index}; that entry of the GID table is empty; gid_table lists the others");
        let refused = InvalidAttribute::new(attribute, AttributeFault::Unsuitable);
        Err(Error::new(verb, ErrorKind::NotFound, message).with_attributes([refused]))
    }

    /// Returns the current local addresses with their GID table indices.
    pub(super) fn addresses(&self) -> Vec<(u8, LocalAddress)> {
        self.refresh_port();
        self.port.gids()
    }

    /// Returns the current local addresses.
    pub(super) fn local_addresses(&self) -> Vec<LocalAddress> {
        self.addresses().into_iter().map(|(_, address)| address).collect()
    }

    /// Returns the shard for the next queue pair, with its index.
    pub(super) fn next_shard(&self) -> (usize, Arc<Shard>) {
        let shards = self.engine.shards();
        let index = self.next_shard.fetch_add(1, Ordering::Relaxed) % shards.len();
        (index, Arc::clone(&shards[index]))
    }
}

fn advertised_capabilities(capabilities: &Capabilities) -> PeerCapabilities {
    PeerCapabilities {
        version: PeerCapabilities::VERSION,
        segmentation_offload: capabilities.max_segments.is_some(),
        receive_buffer_bytes: capabilities.receive_buffer_bytes,
        extensions: PeerCapabilities::GAP_RUNS | PeerCapabilities::MARKS,
    }
}

fn object_counts() -> ObjectCounts {
    ObjectCounts {
        domains: Limit::new("max_pd", MAX_PD),
        completion_queues: Limit::new("max_cq", MAX_CQ),
        shared_receive_queues: Limit::new("max_srq", MAX_SRQ),
        xrc_domains: Limit::new("the limit on XRC domains", MAX_XRC_DOMAINS),
        address_handles: Limit::new("max_ah", MAX_AH),
        captures: Limit::new("the limit on captures", MAX_CAPTURES),
    }
}

fn attributes(interface: &Interface, options: &SoftOptions) -> DeviceAttributes {
    let guid = guid(&interface.device_name);
    DeviceAttributes {
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
        node_guid: guid,
        sys_image_guid: guid,
        vendor: options.vendor,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        max_qp: MAX_QP_PER_SHARD * options.shards,
        max_qp_wr: MAX_QP_WR,
        max_sge: MAX_SGE,
        max_sge_rd: MAX_SGE,
        max_inline_data: MAX_INLINE,
        max_cq: MAX_CQ,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_mw: MAX_MW,
        device_cap_flags: DeviceCapabilities::SRQ_RESIZE
            | DeviceCapabilities::XRC
            | DeviceCapabilities::MEM_WINDOW
            | DeviceCapabilities::MEM_MGT_EXTENSIONS
            | DeviceCapabilities::MEM_WINDOW_TYPE_2B
            | DeviceCapabilities::FLUSH_GLOBAL
            | DeviceCapabilities::FLUSH_PERSISTENT
            | DeviceCapabilities::ATOMIC_WRITE,
        max_pd: MAX_PD,
        max_srq: MAX_SRQ,
        max_srq_wr: MAX_QP_WR,
        max_srq_sge: MAX_SGE,
        max_ah: MAX_AH,
        max_mcast_grp: MAX_MCAST_GRP,
        max_mcast_qp_attach: MAX_MCAST_QP_ATTACH,
        max_total_mcast_qp_attach: MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        atomic_cap: AtomicCapability::Global,
        max_pkeys: 1,
        local_ca_ack_delay: LOCAL_CA_ACK_DELAY,
        phys_port_cnt: 1,
        supported_access: AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE
            | AccessFlags::MEMORY_WINDOW_BIND
            | AccessFlags::ZERO_BASED
            | AccessFlags::ON_DEMAND
            | AccessFlags::HUGETLB
            | AccessFlags::FLUSH
            | AccessFlags::RELAXED_ORDERING,
        odp_caps: on_demand_capabilities(),
        max_dm_size: MAX_DM_SIZE,
        maps_descriptors: true,
        num_comp_vectors: options.shards,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock_khz: 1_000_000,
        max_cq_count: u16::MAX,
        max_cq_period: u16::MAX,
        invalidatable_regions: true,
        packet_counters: true,
        failure_causes: true,
        any_iova: true,
        ..DeviceAttributes::empty()
    }
}

/// Every operation can use on-demand regions: for all services, each copy between packets and memory that this crate
/// does not own goes through the kernel.
fn on_demand_capabilities() -> OnDemandCapabilities {
    OnDemandCapabilities {
        general: OnDemandSupport::EXPLICIT | OnDemandSupport::IMPLICIT,
        rc: OnDemandOperations::all(),
        uc: OnDemandOperations::OF_UNRELIABLE,
        ud: OnDemandOperations::OF_DATAGRAMS,
        xrc: OnDemandOperations::all(),
    }
}

/// Returns a locally administered GUID. It differs between processes, even on one machine, because peers distinguish
/// devices by it, and stays the same for a device while the process lives.
fn guid(device_name: &str) -> u64 {
    static PROCESS: OnceBox<RandomState> = OnceBox::new();
    let group_bit = 1 << 56;
    let local_bit = 1 << 57;
    let process = PROCESS.get_or_init(|| Box::new(RandomState::new()));
    (process.hash_one((device_name, std::process::id())) & !group_bit) | local_bit
}

/// Creates the table of registered memory.
fn region_table(options: &SoftOptions) -> RegionTable {
    let table = RegionTable::new(MAX_MR as usize);
    if options.shares_memory() == SharedMemory::Off || is_memory_committed_early() {
        return table;
    }
    match Exports::new(|| Time::from_nanos(timestamp())) {
        Ok(exports) => table.exporting(exports),
        Err(error) => {
            tracing::debug!(target: "rdma_verbs::device", %error, "no other process can access regions directly");
            table
        }
    }
}

/// Whether the system refuses memory when it is mapped, and not only when it is used. It does not account for a file's
/// pages when they are mapped, so that an access would raise a signal.
fn is_memory_committed_early() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}
