//! Protection domains, memory regions, memory windows.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::address_handle::IbverbsAddressHandle;
use super::device::Device;
use super::shared_receive::IbverbsSharedReceiveQueue;
use super::{errors, memory_source, sys};
use crate::memory::{Backing, Region, RegionInit, RegisterError};
use crate::provider::{
    AddressHandle, DeviceMemory, DmaBufInit, Error, ErrorKind, InvalidAttribute, MemoryRegion, MemoryWindow,
    ProtectionDomain, RefusedBacking, RefusedChange, Reregistration, Result, SharedReceiveQueue,
    SharedReceiveQueueInit,
};
use crate::types::{
    AccessFlags, AddressVector, AdviceFlags, DomainId, GlobalRouteHeader, Lkey, MemoryAdvice, MemoryWindowType,
    RawCompletion, Rkey, Sge,
};

/// A protection domain of an adapter.
pub(super) struct IbverbsProtectionDomain {
    shared: Arc<Domain>,
}

/// The part of a domain that its objects keep alive.
pub(super) struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) sys: Arc<sys::ProtectionDomain>,
    pub(super) id: DomainId,
    /// For unbinding windows; see [`Domain::spare_region`].
    spare: OnceLock<Arc<sys::MemoryRegion>>,
}

impl IbverbsProtectionDomain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self> {
        let allocated = sys::ProtectionDomain::alloc(&device.sys);
        let sys = allocated.map_err(|error| {
            errors::from_errno("alloc_pd", format!("a domain (max_pd {})", device.limits().max_pd), &error)
        })?;
        let (device, id) = (Arc::clone(device), DomainId(device.next_number("alloc_pd")?));
        Ok(Self { shared: Arc::new(Domain { device, sys, id, spare: OnceLock::new() }) })
    }

    pub(super) fn shared(&self) -> &Arc<Domain> {
        &self.shared
    }
}

impl Domain {
    /// Returns a region of one page that requests to unbind a window name, because rxe reads the region even then.
    pub(super) fn spare_region(&self) -> Result<Arc<sys::MemoryRegion>> {
        if let Some(region) = self.spare.get() {
            return Ok(Arc::clone(region));
        }
        let fail = |error: String| Error::new("post_send", ErrorKind::ResourceLimit, error);
        let backing = Backing::anonymous(1).map_err(|error| fail(format!("no page for unbinding: {error}")))?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
        let options = RegionInit { access, ..RegionInit::default() };
        let region = Region::unlisted(self.id, backing, &options).map_err(|error| fail(error.to_string()))?;
        let registered = sys::MemoryRegion::register(&self.sys, &region, region.iova(), access.bits());
        let registered = registered.map_err(|error| register_error("post_send", &region, &error))?;
        Ok(Arc::clone(self.spare.get_or_init(|| Arc::new(registered))))
    }
}

/// Returns the access flags for the adapter, without ZERO_BASED, because the iova gives the start of the addresses.
fn adapter_access(access: AccessFlags) -> u32 {
    access.difference(AccessFlags::ZERO_BASED).bits()
}

/// Returns the error for memory that the adapter did not register.
fn register_error(verb: &'static str, region: &Region, error: &std::io::Error) -> Error {
    let (length, access) = (region.len(), region.access());
    let asked = format!("{length} bytes with {access:?}");
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM) => {
            let limit = match memlock_limit() {
                Some(limit) => format!("RLIMIT_MEMLOCK is {limit} bytes for all that this process has registered"),
                None => "RLIMIT_MEMLOCK is not limited, so the device or the machine is out of memory".to_owned(),
            };
            let message = format!(
                "{asked} cannot be pinned ({error}): {limit}; raise it with \"ulimit -l\", \"memlock\" in \
                 /etc/security/limits.conf, or LimitMEMLOCK= of the service"
            );
            Error::new(verb, ErrorKind::ResourceLimit, message)
        }
        Some(libc::EINVAL) if !same_offset(region.iova(), region.as_mut_ptr().addr() as u64) => {
            let message = format!(
                "iova is {:#x}, the memory is at {:#x}; the adapter needs the same offset within a page for both, so \
                 give page-aligned memory or another iova",
                region.iova(),
                region.as_mut_ptr().addr()
            );
            Error::unsuitable(verb, "iova", message)
        }
        _ => errors::from_errno(verb, asked, error),
    }
}

fn same_offset(iova: u64, address: u64) -> bool {
    (iova ^ address) & 0xfff == 0
}

/// Returns RLIMIT_MEMLOCK in bytes; `None` if there is no limit, or it cannot be read.
fn memlock_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn refused(verb: &'static str, error: &RegisterError) -> Error {
    let kind = match error {
        RegisterError::UnsupportedAccess { .. } => ErrorKind::Unsupported,
        RegisterError::NoFaultSafeCopy { .. } => ErrorKind::PermissionDenied,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(verb, kind, error.to_string()).with_attributes(InvalidAttribute::of_registration(error))
}

impl ProtectionDomain for IbverbsProtectionDomain {
    fn id(&self) -> DomainId {
        self.shared.id
    }

    fn reg_mr_with(&self, backing: Backing, options: &RegionInit) -> Result<Arc<dyn MemoryRegion>, RefusedBacking> {
        if let Err(error) = self.shared.device.check_process("reg_mr") {
            return Err(RefusedBacking { error, backing });
        }
        if options.invalidatable {
            let message = "invalidatable is set; regions of programs cannot be invalidated through an adapter, bind a \
                           memory window of type 2 instead";
            return Err(RefusedBacking { error: Error::new("reg_mr", ErrorKind::Unsupported, message), backing });
        }
        let region = Region::unlisted(self.shared.id, backing, options);
        let region = region
            .map_err(|given| RefusedBacking { error: refused("reg_mr", &given.error), backing: given.backing })?;
        match IbverbsMemoryRegion::register("reg_mr", &self.shared, &region) {
            Ok(registered) => Ok(Arc::new(registered)),
            Err(error) => match Region::into_backing(region) {
                Ok(backing) => Err(RefusedBacking { error, backing }),
                Err(_) => unreachable!("a region that was not registered has one holder"),
            },
        }
    }

    /// Registers the new region before it deregisters the old one, so that a refusal leaves everything as it was.
    fn rereg_mr(
        &self,
        region: &Arc<dyn MemoryRegion>,
        change: Reregistration,
    ) -> Result<Arc<dyn MemoryRegion>, RefusedChange> {
        let old = region.region();
        let refuse = |error, backing| Err(RefusedChange { error, backing });
        if let Err(error) = self.shared.device.check_process("rereg_mr") {
            return refuse(error, change.backing);
        }
        if self.shared.device.region(region.lkey().0).is_none_or(|found| !Arc::ptr_eq(found.region(), old)) {
            let message = "the memory region was deregistered, or belongs to another device";
            return refuse(Error::new("rereg_mr", ErrorKind::InvalidState, message), change.backing);
        }
        let options = RegionInit {
            access: change.access.unwrap_or(old.access()),
            iova: change.iova.or((change.backing.is_none()).then_some(old.iova())),
            invalidatable: old.is_invalidatable(),
        };
        let made = match change.backing {
            Some(backing) => Region::unlisted(self.shared.id, backing, &options).map_err(|given| RefusedChange {
                error: refused("rereg_mr", &given.error),
                backing: Some(given.backing),
            }),
            None => old
                .unlisted_copy(self.shared.id, &options)
                .map_err(|error| RefusedChange { error: refused("rereg_mr", &error), backing: None }),
        };
        let new = made?;
        let registered = IbverbsMemoryRegion::register("rereg_mr", &self.shared, &new)
            .and_then(|registered| region.dereg().map(|()| registered));
        match registered {
            Ok(registered) => Ok(Arc::new(registered)),
            Err(error) => {
                // Memory that the old region still holds stays with it, and is not returned.
                refuse(error, Region::into_backing(new).ok())
            }
        }
    }

    fn reg_dm_mr(
        &self,
        memory: &Arc<dyn DeviceMemory>,
        dm_offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>> {
        self.shared.device.check_process("reg_dm_mr")?;
        let sys = memory_source::register_device(&self.shared, memory, dm_offset, length, access)?;
        Ok(Arc::new(IbverbsMemoryRegion::new(&self.shared, sys)))
    }

    fn reg_dmabuf_mr(&self, init: &DmaBufInit<'_>) -> Result<Arc<dyn MemoryRegion>> {
        self.shared.device.check_process("reg_dmabuf_mr")?;
        let sys = memory_source::register_descriptor(&self.shared, init)?;
        Ok(Arc::new(IbverbsMemoryRegion::new(&self.shared, sys)))
    }

    fn advise_mr(&self, advice: MemoryAdvice, flags: AdviceFlags, sg_list: &[Sge]) -> Result<()> {
        self.shared.device.check_process("advise_mr")?;
        memory_source::advise(&self.shared, advice, flags, sg_list)
    }

    fn alloc_mw(&self, kind: MemoryWindowType) -> Result<Arc<dyn MemoryWindow>> {
        self.shared.device.check_process("alloc_mw")?;
        Ok(Arc::new(IbverbsMemoryWindow::new(&self.shared, kind)?))
    }

    fn create_ah(&self, vector: &AddressVector) -> Result<Arc<dyn AddressHandle>> {
        self.shared.device.check_process("create_ah")?;
        Ok(Arc::new(IbverbsAddressHandle::new(&self.shared, vector)?))
    }

    fn create_ah_from_completion(
        &self,
        completion: &RawCompletion,
        header: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>> {
        self.shared.device.check_process("create_ah")?;
        Ok(Arc::new(IbverbsAddressHandle::for_reply(&self.shared, completion, header, port_num)?))
    }

    fn create_srq(&self, init: &SharedReceiveQueueInit<'_>) -> Result<Arc<dyn SharedReceiveQueue>> {
        self.shared.device.check_process("create_srq")?;
        Ok(Arc::new(IbverbsSharedReceiveQueue::new(&self.shared, init)?))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A memory region of an adapter.
pub(super) struct IbverbsMemoryRegion {
    sys: Arc<sys::MemoryRegion>,
    domain: Arc<Domain>,
}

impl IbverbsMemoryRegion {
    fn register(verb: &'static str, domain: &Arc<Domain>, region: &Arc<Region>) -> Result<Self> {
        let access = adapter_access(region.access());
        let registered = sys::MemoryRegion::register(&domain.sys, region, region.iova(), access);
        Ok(Self::new(domain, registered.map_err(|error| register_error(verb, region, &error))?))
    }

    fn new(domain: &Arc<Domain>, registered: sys::MemoryRegion) -> Self {
        let sys = Arc::new(registered);
        domain.device.add_region(&sys);
        Self { sys, domain: Arc::clone(domain) }
    }

    fn deregister(&self) -> std::io::Result<()> {
        if !self.sys.is_registered() {
            return Ok(());
        }
        self.domain.device.remove_region(&self.sys);
        self.sys.dereg().inspect_err(|_| self.domain.device.add_region(&self.sys))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        let windows = self.domain.device.windows_of(self.sys.lkey()).len();
        if windows > 0 && matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINVAL)) {
            let message = format!(
                "the memory region has {windows} bound memory windows; unbind or invalidate them first ({error})"
            );
            return Error::new("dereg_mr", ErrorKind::Busy, message);
        }
        errors::from_errno("dereg_mr", format!("region {:#010x}", self.sys.lkey()), error)
    }
}

impl MemoryRegion for IbverbsMemoryRegion {
    fn region(&self) -> &Arc<Region> {
        self.sys.region()
    }

    fn lkey(&self) -> Lkey {
        Lkey(self.sys.lkey())
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.sys.rkey())
    }

    fn dereg(&self) -> Result<()> {
        self.domain.device.check_process("dereg_mr")?;
        self.deregister().map_err(|error| self.failed(&error))
    }

    /// Deallocates the windows bound to the region if the adapter refuses to deregister it otherwise.
    fn revoke(&self) -> Result<()> {
        self.domain.device.check_process("dereg_mr")?;
        let Err(first) = self.deregister() else { return Ok(()) };
        for window in self.domain.device.windows_of(self.sys.lkey()) {
            let _ = window.sys.dealloc();
        }
        self.deregister().map_err(|_| self.failed(&first))
    }
}

impl Drop for IbverbsMemoryRegion {
    fn drop(&mut self) {
        if !self.domain.device.is_inherited()
            && let Err(error) = self.revoke()
        {
            tracing::warn!(target: "rdma_verbs::memory", %error, "a dropped memory region could not be deregistered");
        }
    }
}

/// A memory window of an adapter, shared with requests that bind it until they complete.
pub(super) struct Window {
    pub(super) sys: Arc<sys::MemoryWindow>,
    pub(super) kind: MemoryWindowType,
    /// The upper 24 bits of its keys.
    index: u32,
    /// Key of the region that it was last bound to, or 0 for none.
    lkey: AtomicU32,
}

impl Window {
    /// Notes that a bind to this region is being posted.
    pub(super) fn note_bound(&self, lkey: u32) {
        self.lkey.store(lkey, Ordering::Relaxed);
    }

    pub(super) fn bound_to(&self) -> u32 {
        self.lkey.load(Ordering::Relaxed)
    }

    /// Restores key and region after a bind failed or was not posted.
    pub(super) fn restore(&self, rkey: u32, lkey: u32) {
        self.sys.restore_rkey(rkey);
        self.note_bound(lkey);
    }
}

struct IbverbsMemoryWindow {
    window: Arc<Window>,
    domain: Arc<Domain>,
}

impl IbverbsMemoryWindow {
    fn new(domain: &Arc<Domain>, kind: MemoryWindowType) -> Result<Self> {
        let allocated = sys::MemoryWindow::alloc(&domain.sys, kind as u32);
        let sys = allocated.map_err(|error| {
            let asked = format!("a window of {kind:?} (max_mw {})", domain.device.limits().max_mw);
            errors::from_errno("alloc_mw", asked, &error)
        })?;
        let index = sys.rkey() >> 8;
        let window = Arc::new(Window { sys: Arc::new(sys), kind, index, lkey: AtomicU32::new(0) });
        domain.device.windows().insert(index, Arc::downgrade(&window));
        Ok(Self { window, domain: Arc::clone(domain) })
    }
}

impl MemoryWindow for IbverbsMemoryWindow {
    fn kind(&self) -> MemoryWindowType {
        self.window.kind
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.window.sys.rkey())
    }

    fn dealloc(&self) -> Result<()> {
        self.domain.device.check_process("dealloc_mw")?;
        self.domain.device.remove_window(&self.window);
        let done = self.window.sys.dealloc();
        done.map_err(|error| {
            errors::from_errno("dealloc_mw", format!("window {:#010x}", self.window.sys.rkey()), &error)
        })
    }
}

impl Window {
    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for IbverbsMemoryWindow {
    fn drop(&mut self) {
        if !self.domain.device.is_inherited()
            && let Err(error) = self.dealloc()
        {
            tracing::warn!(target: "rdma_verbs::memory", %error, "a dropped memory window could not be deallocated");
        }
    }
}
