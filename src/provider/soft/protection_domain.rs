//! Protection domains.

use std::any::Any;
use std::sync::Arc;

use super::address_handle::SoftAddressHandle;
use super::device::Device;
use super::errors;
use super::limit::Share;
use super::memory_region::SoftMemoryRegion;
use super::memory_source;
use super::memory_window::SoftMemoryWindow;
use super::shared_receive::SoftSharedReceiveQueue;
use crate::memory::{Backing, RegionInit};
use crate::provider::{
    AddressHandle, DeviceMemory, DmaBufInit, Error, MemoryRegion, MemoryWindow, ProtectionDomain, RefusedBacking,
    RefusedChange, Reregistration, Result, SharedReceiveQueue, SharedReceiveQueueInit,
};
use crate::types::{
    AccessFlags, AddressVector, AdviceFlags, DomainId, GlobalRouteHeader, MemoryAdvice, MemoryWindowType,
    RawCompletion, Sge,
};

/// Device memory is addressed by offsets.
const ZERO_BASED: AccessFlags = AccessFlags::ZERO_BASED;

/// A protection domain of a software device.
pub(super) struct SoftProtectionDomain {
    shared: Arc<Domain>,
}

/// State of a protection domain that its regions keep alive.
pub(super) struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) id: DomainId,
    _share: Share,
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            self.device.domain_numbers.give_back(self.id.0);
        }
    }
}

impl SoftProtectionDomain {
    pub(super) fn new(device: Arc<Device>) -> Result<Self> {
        let share = device.counts.domains.take("alloc_pd")?;
        let id = DomainId(device.domain_numbers.take());
        Ok(Self { shared: Arc::new(Domain { device, id, _share: share }) })
    }

    pub(super) fn shared(&self) -> &Arc<Domain> {
        &self.shared
    }
}

impl ProtectionDomain for SoftProtectionDomain {
    fn id(&self) -> DomainId {
        self.shared.id
    }

    fn reg_mr_with(&self, backing: Backing, options: &RegionInit) -> Result<Arc<dyn MemoryRegion>, RefusedBacking> {
        if let Err(error) = self.shared.device.check_process("reg_mr") {
            return Err(RefusedBacking { error, backing });
        }
        let registered = self.shared.device.memory.register_with(self.shared.id, backing, options);
        let region = registered.map_err(|refused| RefusedBacking {
            error: errors::from_register("reg_mr", &refused.error),
            backing: refused.backing,
        })?;
        Ok(Arc::new(SoftMemoryRegion::new(Arc::clone(&self.shared), region)))
    }

    fn create_srq(&self, init: &SharedReceiveQueueInit<'_>) -> Result<Arc<dyn SharedReceiveQueue>> {
        self.shared.device.check_process("create_srq")?;
        Ok(Arc::new(SoftSharedReceiveQueue::new(&self.shared, init)?))
    }

    fn rereg_mr(
        &self,
        region: &Arc<dyn MemoryRegion>,
        change: Reregistration,
    ) -> Result<Arc<dyn MemoryRegion>, RefusedChange> {
        if let Err(error) = self.shared.device.check_process("rereg_mr") {
            return Err(RefusedChange { error, backing: change.backing });
        }
        let old = region.region();
        let (access, invalidatable) = (change.access.unwrap_or(old.access()), old.is_invalidatable());
        let options = RegionInit { access, iova: change.iova, invalidatable };
        let changed =
            self.shared.device.memory.reregister(old, self.shared.id, change.backing, &options, change.keep_keys);
        let region = changed
            .map_err(|(error, backing)| RefusedChange { error: errors::from_register("rereg_mr", &error), backing })?;
        Ok(Arc::new(SoftMemoryRegion::new(Arc::clone(&self.shared), region)))
    }

    fn reg_dm_mr(
        &self,
        memory: &Arc<dyn DeviceMemory>,
        dm_offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>> {
        let device = &self.shared.device;
        device.check_process("reg_dm_mr")?;
        let backing = memory_source::device_part(device, memory, dm_offset, length, access)?;
        let options = RegionInit { access: access | ZERO_BASED, ..RegionInit::default() };
        let registered = device.memory.register_with(self.shared.id, backing, &options);
        let region = registered.map_err(|refused| errors::from_register("reg_dm_mr", &refused.error))?;
        Ok(Arc::new(SoftMemoryRegion::new(Arc::clone(&self.shared), region)))
    }

    fn reg_dmabuf_mr(&self, init: &DmaBufInit<'_>) -> Result<Arc<dyn MemoryRegion>> {
        let device = &self.shared.device;
        device.check_process("reg_dmabuf_mr")?;
        let backing = memory_source::map_descriptor(init)?;
        let options = RegionInit { access: init.access, iova: init.iova, ..RegionInit::default() };
        let registered = device.memory.register_with(self.shared.id, backing, &options);
        let region = registered.map_err(|refused| memory_source::from_register(init, &refused.error))?;
        Ok(Arc::new(SoftMemoryRegion::new(Arc::clone(&self.shared), region)))
    }

    /// Applies the advice before it returns, with and without [`AdviceFlags::FLUSH`].
    fn advise_mr(&self, advice: MemoryAdvice, flags: AdviceFlags, sg_list: &[Sge]) -> Result<()> {
        self.shared.device.check_process("advise_mr")?;
        if !AdviceFlags::all().contains(flags) {
            let message = format!("flags is {flags:?}; allowed are {:?} and none", AdviceFlags::all());
            return Err(Error::unsuitable("advise_mr", "flags", message));
        }
        let followed = self.shared.device.memory.advise(self.shared.id, advice, sg_list);
        followed.map_err(|error| errors::from_advise(&error))
    }

    fn alloc_mw(&self, kind: MemoryWindowType) -> Result<Arc<dyn MemoryWindow>> {
        Ok(Arc::new(SoftMemoryWindow::new(Arc::clone(&self.shared), kind)?))
    }

    fn create_ah(&self, vector: &AddressVector) -> Result<Arc<dyn AddressHandle>> {
        self.shared.device.check_process("create_ah")?;
        Ok(Arc::new(SoftAddressHandle::new(&self.shared, vector)?))
    }

    fn create_ah_from_completion(
        &self,
        completion: &RawCompletion,
        header: &[u8; GlobalRouteHeader::BYTES],
        port_num: u8,
    ) -> Result<Arc<dyn AddressHandle>> {
        self.shared.device.check_process("create_ah")?;
        Ok(Arc::new(SoftAddressHandle::for_reply(&self.shared, completion, header, port_num)?))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
