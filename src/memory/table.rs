//! Finds regions by key, and ends their use.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::mutation::{Mutation, planted};
use crate::types::{AccessFlags, DomainId};

use super::key::{BuildIndexHasher, KeyGenerator, MAX_REGIONS, index_of};
use super::region::{self, Region, RegisterOptions};
use super::sync::{RwLock, RwLockReadGuard};
use super::{AccessError, Backing, Refused, RegisterError};

/// The regions of a device, by key.
///
/// A lock for readers and writers guards it: every pass of the engine reads, registration and deregistration write.
/// [`RegionTable::deregister`] gets its turn only when the passes before it are over, and that is what makes memory
/// safe to free afterwards. A thread that holds a [`MemoryView`] must neither take another nor register or deregister:
/// it would wait for itself.
pub struct RegionTable {
    entries: RwLock<Entries>,
    limit: usize,
}

struct Entries {
    /// By the index part of the key, so that a wrong tag is seen.
    regions: HashMap<u32, Arc<Region>, BuildIndexHasher>,
    keys: KeyGenerator,
}

impl RegionTable {
    /// A table for up to `limit` regions, and no more than 2^23.
    pub fn new(limit: usize) -> Self {
        let entries = Entries { regions: HashMap::default(), keys: KeyGenerator::new() };
        Self { entries: RwLock::new(entries), limit: limit.min(MAX_REGIONS) }
    }

    /// Registers `backing` in `domain`. Requests name its first byte by `iova`, or by its address in this process if
    /// that is `None`, or by 0 with [`AccessFlags::ZERO_BASED`].
    ///
    /// # Errors
    /// [`RegisterError`] says what each means; the backing is dropped. [`RegionTable::register_with`] gives it back.
    pub fn register(
        &self,
        domain: DomainId,
        backing: Backing,
        iova: impl Into<Option<u64>>,
        access: AccessFlags,
    ) -> Result<Arc<Region>, RegisterError> {
        let options = RegisterOptions { access, iova: iova.into(), ..Default::default() };
        self.register_with(domain, backing, &options).map_err(RegisterError::from)
    }

    /// Registers `backing` in `domain`, with all options.
    ///
    /// # Errors
    /// As [`RegionTable::register`], with the backing.
    pub fn register_with(
        &self,
        domain: DomainId,
        backing: Backing,
        options: &RegisterOptions,
    ) -> Result<Arc<Region>, Refused> {
        // Looking at the memory may take long; it happens before the lock.
        let checked = match region::check(&backing, options) {
            Ok(checked) => checked,
            Err(error) => return Err(Refused { error, backing }),
        };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let key = match entries.new_key(self.limit) {
            Ok(key) => key,
            Err(error) => return Err(Refused { error, backing }),
        };
        let region = Arc::new(Region::new(domain, backing, checked, key));
        entries.regions.insert(index_of(key), Arc::clone(&region));
        Ok(region)
    }

    /// Revokes the keys of `region` and waits for every [`MemoryView`] that was taken before. When it returns, no view
    /// finds the region any more, and no access through a view is under way.
    ///
    /// False if the region is not, or no longer, registered here.
    pub fn deregister(&self, region: &Arc<Region>) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let index = index_of(region.key());
        if !entries.regions.get(&index).is_some_and(|entry| Arc::ptr_eq(entry, region)) {
            return false;
        }
        entries.keys.retire(region.key());
        if planted(Mutation::DeregisteredRegionUsed) {
            return true;
        }
        let entry = entries.regions.remove(&index);
        drop(entries);
        drop(entry);
        true
    }

    /// The regions as they are now, and as they stay until the view is dropped. Keep it for a bounded pass only:
    /// whoever registers or deregisters waits for it.
    pub fn read(&self) -> MemoryView<'_> {
        MemoryView { entries: self.entries.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.read().entries.regions.len()
    }

    /// Whether no region is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Entries {
    fn new_key(&mut self, limit: usize) -> Result<u32, RegisterError> {
        if self.regions.len() >= limit {
            return Err(RegisterError::TooManyRegions { limit });
        }
        self.keys.next(|index| self.regions.contains_key(&index))
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Access to registered memory by key, for one pass of the engine. While it lives, no region that it finds can go.
///
/// Every access checks, in this order: the key, tag and validity included; the protection domain; the rights; the
/// bounds; the alignment of an atomic. Addresses are those of requests: they count from the region's `iova`.
pub struct MemoryView<'a> {
    entries: RwLockReadGuard<'a, Entries>,
}

impl MemoryView<'_> {
    /// Whether an access of `length` bytes at `addr` would be allowed. `need` holds the rights that it takes; reading
    /// with a local key takes none.
    ///
    /// # Errors
    /// Every [`AccessError`] but `Misaligned`, `Fault` and `NotInvalidatable`.
    pub fn check(
        &self,
        key: u32,
        domain: DomainId,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(), AccessError> {
        self.resolve(key, domain, addr, length, need).map(|_| ())
    }

    /// Fills `out` from `addr` on.
    ///
    /// # Errors
    /// As [`MemoryView::check`], and [`AccessError::Fault`].
    #[inline]
    pub fn read(
        &self,
        key: u32,
        domain: DomainId,
        addr: u64,
        need: AccessFlags,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        let (region, offset) = self.resolve(key, domain, addr, out.len() as u64, need)?;
        region.memory().read(offset, out)
    }

    /// Places `data` from `addr` on: the body first, in no promised order, then the tail in naturally aligned pieces,
    /// the last byte with the last of them. Takes [`AccessFlags::LOCAL_WRITE`] beside what `need` names.
    ///
    /// # Errors
    /// As [`MemoryView::check`], and [`AccessError::Fault`], after which part of the data may have been placed.
    #[inline]
    pub fn write(
        &self,
        key: u32,
        domain: DomainId,
        addr: u64,
        need: AccessFlags,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let need = need | AccessFlags::LOCAL_WRITE;
        let (region, offset) = self.resolve(key, domain, addr, data.len() as u64, need)?;
        region.memory().write(offset, data)
    }

    /// A peer's compare and swap on the 8 bytes at `addr`, in this host's byte order: replaces them by `swap` if they
    /// equal `compare`. Gives the value found. Atomic towards every other atomic access, the processor's included.
    ///
    /// # Errors
    /// As [`MemoryView::write`]; the right it takes is [`AccessFlags::REMOTE_ATOMIC`]. [`AccessError::Misaligned`] if
    /// the word's address in this process is not a multiple of 8.
    pub fn compare_and_swap(
        &self,
        key: u32,
        domain: DomainId,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let (region, offset) = self.resolve(key, domain, addr, 8, AccessFlags::REMOTE_ATOMIC)?;
        let found = region.memory().compare_exchange_u64(offset, compare, swap)?;
        if planted(Mutation::CompareIgnored) {
            return region.memory().compare_exchange_u64(offset, found, swap);
        }
        Ok(found)
    }

    /// A peer's fetch and add on the 8 bytes at `addr`, modulo 2^64. Gives the value found.
    ///
    /// # Errors
    /// As [`MemoryView::compare_and_swap`].
    pub fn fetch_and_add(&self, key: u32, domain: DomainId, addr: u64, add: u64) -> Result<u64, AccessError> {
        let (region, offset) = self.resolve(key, domain, addr, 8, AccessFlags::REMOTE_ATOMIC)?;
        let found = region.memory().fetch_add_u64(offset, add)?;
        Ok(if planted(Mutation::AddReturnsSum) { found.wrapping_add(add) } else { found })
    }

    /// A peer's SEND with invalidate: revokes `key`, for every access that starts afterwards. The region stays
    /// registered, and its memory stays, until it is deregistered.
    ///
    /// # Errors
    /// [`AccessError::UnknownKey`], also when it was revoked before; [`AccessError::WrongDomain`];
    /// [`AccessError::NotInvalidatable`].
    pub fn invalidate(&self, key: u32, domain: DomainId) -> Result<(), AccessError> {
        let region = self.find(key).ok_or(AccessError::UnknownKey)?;
        if region.domain() != domain {
            return Err(AccessError::WrongDomain);
        }
        if !region.is_invalidatable() {
            return Err(AccessError::NotInvalidatable);
        }
        if region.invalidate() { Ok(()) } else { Err(AccessError::UnknownKey) }
    }

    /// The region with this key, unless the key was invalidated.
    #[inline]
    pub fn find(&self, key: u32) -> Option<&Arc<Region>> {
        self.entries.regions.get(&index_of(key)).filter(|region| {
            let is_same = region.key() == key || planted(Mutation::KeyTagIgnored);
            is_same && (region.is_valid() || planted(Mutation::InvalidatedKeyUsed))
        })
    }

    #[inline]
    fn resolve(
        &self,
        key: u32,
        domain: DomainId,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(&Region, usize), AccessError> {
        let region = self.find(key).ok_or(AccessError::UnknownKey)?;
        if region.domain() != domain && !planted(Mutation::DomainIgnored) {
            return Err(AccessError::WrongDomain);
        }
        if !region.access().contains(need) && !planted(Mutation::RegionAccessIgnored) {
            return Err(AccessError::NoPermission);
        }
        let beyond = u64::from(planted(Mutation::RegionEndsTooEarly));
        let offset = region.offset_of(addr, length + beyond)?;
        Ok((region, offset))
    }
}

impl fmt::Debug for MemoryView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryView").field("regions", &self.entries.regions.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
