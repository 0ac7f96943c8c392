//! Registering a region anew.

use std::fmt;

use super::{AccessFlags, Error, Memory, MemoryRegion, ProtectionDomain, RefusedMemory};
use crate::provider;

/// What [`MemoryRegion::rereg`] changes; whatever is not named stays (the flags of `ibv_rereg_mr`).
#[derive(Debug, Default)]
pub struct Reregistration<'a> {
    domain: Option<&'a ProtectionDomain>,
    memory: Option<Memory>,
    iova: Option<u64>,
    access: Option<AccessFlags>,
}

impl<'a> Reregistration<'a> {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Other memory (`IBV_REREG_MR_CHANGE_TRANSLATION`); the old one comes back.
    pub fn memory(mut self, memory: impl Into<Memory>) -> Self {
        self.memory = Some(memory.into());
        self
    }

    /// Another first address. Without it, the same memory keeps its address, and other memory has its host address.
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = Some(access);
        self
    }

    /// Another protection domain of the same device (`IBV_REREG_MR_CHANGE_PD`).
    pub fn protection_domain(mut self, domain: &'a ProtectionDomain) -> Self {
        self.domain = Some(domain);
        self
    }
}

/// A refused change. The region is as it was.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedChange {
    /// Why it was refused.
    pub error: Error,
    /// The region, as it was.
    pub region: MemoryRegion,
    /// The memory that it should have got.
    pub memory: Option<Memory>,
}

impl fmt::Display for RefusedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RefusedChange {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl MemoryRegion {
    /// Registers it anew with other memory, rights or protection domain (`ibv_rereg_mr`), in one step. Returns the
    /// region that it has become, and the old memory if that was changed.
    ///
    /// The keys are new ones. When it returns, nothing accesses memory under the old ones: requests that still name
    /// them fail, here in a local protection error, of peers in a remote access error.
    ///
    /// # Errors
    /// As [`ProtectionDomain::reg_mr`]; [`ErrorKind::Busy`](super::ErrorKind::Busy) while memory windows are bound to
    /// it, [`ErrorKind::InvalidState`](super::ErrorKind::InvalidState) after [`MemoryRegion::revoke`] or for a domain
    /// of another device. The region comes back as it was.
    ///
    /// ```
    /// use rdma_verbs::verbs::{self, AccessFlags, Reregistration};
    ///
    /// let pd = verbs::open("soft:127.0.1.56")?.alloc_pd()?;
    /// let mr = pd.reg_mr(vec![1u8; 64], AccessFlags::LOCAL_WRITE)?;
    /// let change = Reregistration::new().memory(vec![2u8; 128]).access(AccessFlags::REMOTE_READ);
    /// let (mr, old) = mr.rereg(change).map_err(|refused| refused.error)?;
    /// assert_eq!((mr.len(), mr.access()), (128, AccessFlags::REMOTE_READ));
    /// assert_eq!(old.and_then(|memory| memory.into_vec().ok()), Some(vec![1; 64]));
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[allow(clippy::result_large_err)] // nothing of what was given may be lost, and this is no way of every packet
    pub fn rereg(self, change: Reregistration<'_>) -> Result<(MemoryRegion, Option<Memory>), RefusedChange> {
        let Reregistration { domain, memory, iova, access } = change;
        let (domain, is_moved) = (domain.unwrap_or(self.protection_domain()).clone(), memory.is_some());
        let backing = match memory.map(|memory| memory.into_registrable("rereg_mr")).transpose() {
            Ok(backing) => backing,
            Err(RefusedMemory { error, memory }) => {
                return Err(RefusedChange { error, region: self, memory: Some(memory) });
            }
        };
        match domain
            .inner()
            .rereg_mr(self.inner(), provider::Reregistration { backing, iova, access, keep_keys: false })
        {
            Ok(inner) => {
                let region = MemoryRegion::new(domain, inner);
                let old = self.into_memory().filter(|_| is_moved);
                Ok((region, old))
            }
            Err(provider::RefusedChange { error, backing }) => {
                Err(RefusedChange { error, region: self, memory: backing.map(Memory::from_backing) })
            }
        }
    }
}
