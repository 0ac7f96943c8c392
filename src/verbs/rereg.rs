//! Re-registration of a region.

use std::fmt;

use super::{AccessFlags, Error, Memory, MemoryRegion, ProtectionDomain, RefusedMemory};
use crate::provider;

/// The changes of [`MemoryRegion::rereg`] (the flags of `ibv_rereg_mr`). Everything else stays the same.
#[derive(Debug, Default)]
pub struct Reregistration<'a> {
    domain: Option<&'a ProtectionDomain>,
    memory: Option<Memory>,
    iova: Option<u64>,
    access: Option<AccessFlags>,
}

impl<'a> Reregistration<'a> {
    /// Returns a re-registration without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the memory (`IBV_REREG_MR_CHANGE_TRANSLATION`); [`MemoryRegion::rereg`] returns the old memory.
    pub fn memory(mut self, memory: impl Into<Memory>) -> Self {
        self.memory = Some(memory.into());
        self
    }

    /// Changes the address that requests use for the first byte. By default, unchanged memory keeps its address, and
    /// new memory uses its host address.
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Changes the access flags (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = Some(access);
        self
    }

    /// Moves the region to another protection domain of the same device (`IBV_REREG_MR_CHANGE_PD`).
    pub fn protection_domain(mut self, domain: &'a ProtectionDomain) -> Self {
        self.domain = Some(domain);
        self
    }
}

/// A refused change. The region is unchanged.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedChange {
    /// Reason for the refusal.
    pub error: Error,
    /// The region, unchanged.
    pub region: MemoryRegion,
    /// The new memory, if one was given.
    pub memory: Option<Memory>,
}

impl fmt::Display for RefusedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RefusedChange {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl MemoryRegion {
    /// Re-registers the region with other memory, access flags or protection domain (`ibv_rereg_mr`), in one step.
    /// Returns the new region, and the old memory if it was replaced.
    ///
    /// The region gets new keys. Once this returns, nothing accesses memory under the old keys: requests that still use
    /// them fail, local ones with a local protection error, those of peers with a remote access error.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::reg_mr`]; [`ErrorKind::Busy`](super::ErrorKind::Busy) while memory windows are bound
    /// to it, [`ErrorKind::InvalidState`](super::ErrorKind::InvalidState) after [`MemoryRegion::revoke`] or for a
    /// domain of another device. The error returns the region unchanged.
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
    #[doc(alias = "ibv_rereg_mr")]
    #[allow(clippy::result_large_err)] // the error returns everything given, and this is no hot path
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
