//! The table of regions and windows, by key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::checksum::Sum;
use crate::types::{AccessFlags, Accessor, DomainId, MemoryWindowType};

use super::exports::{Exports, make_private};
use super::key::{BuildIndexHasher, KeyGenerator, MAX_REGIONS, index_of};
use super::owners::Owners;
use super::raw::Memory;
use super::region::{self, Region, RegionInit};
use super::sync::{RwLock, RwLockReadGuard};
use super::users::Using;
use super::window::Window;
use super::{AccessError, Backing, RefusedBacking, RegisterError, SharedPart};

/// The regions and memory windows of a device, by key.
///
/// A reader-writer lock guards it: every pass of the engine reads; registration and deregistration write.
/// [`RegionTable::deregister`] gets the lock only when the earlier passes have ended, which makes the memory safe to
/// free afterwards. A thread that holds a [`MemoryView`] must neither take another nor register or deregister: it would
/// deadlock.
pub struct RegionTable {
    entries: RwLock<Entries>,
    limit: usize,
    /// The memory that other processes of the user may access directly, if there can be any.
    pub(super) exports: Option<Arc<Exports>>,
}

struct Entries {
    /// By the index part of the key, so that a wrong tag is detected.
    regions: HashMap<u32, Arc<Region>, BuildIndexHasher>,
    windows: HashMap<u32, Arc<Window>, BuildIndexHasher>,
    owners: Owners,
    keys: KeyGenerator,
    registrations: u64,
}

impl RegionTable {
    /// Creates a table for up to `limit` regions, at most 2^23.
    pub fn new(limit: usize) -> Self {
        let entries = Entries {
            regions: HashMap::default(),
            windows: HashMap::default(),
            owners: Owners::new(),
            keys: KeyGenerator::new(),
            registrations: 0,
        };
        Self { entries: RwLock::new(entries), limit: limit.min(MAX_REGIONS), exports: None }
    }

    /// Registers `backing` in `domain`. In requests its first byte has the address `iova`, or its address in this
    /// process if that is `None`, or 0 with [`AccessFlags::ZERO_BASED`].
    ///
    /// # Errors
    /// See [`RegisterError`]; the backing is dropped. [`RegionTable::register_with`] returns it.
    #[cfg(feature = "sim")]
    pub fn register(
        &self,
        domain: DomainId,
        backing: Backing,
        iova: impl Into<Option<u64>>,
        access: AccessFlags,
    ) -> Result<Arc<Region>, RegisterError> {
        let options = RegionInit { access, iova: iova.into(), ..Default::default() };
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
        options: &RegionInit,
    ) -> Result<Arc<Region>, RefusedBacking> {
        let backing = match &self.exports {
            Some(exports) if !options.invalidatable => exports.adopt(backing, options.access),
            _ => backing,
        };
        // Probing the memory may take long, so it happens before locking.
        let checked = match region::check(&backing, options) {
            Ok(checked) => checked,
            Err(error) => return Err(RefusedBacking { error, backing }),
        };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let key = match entries.new_key(self.limit) {
            Ok(key) => key,
            Err(error) => return Err(RefusedBacking { error, backing }),
        };
        let region = Arc::new(Region::new(domain, backing, checked, key));
        entries.regions.insert(index_of(key.0), Arc::clone(&region));
        if let Some(exports) = &self.exports {
            exports.add(&region);
        }
        Ok(region)
    }

    /// Allocates an unbound window of `domain`; there are at most `limit` windows, and at most 2^22.
    ///
    /// # Errors
    /// [`RegisterError::TooManyWindows`], [`RegisterError::NoRandomness`].
    pub fn alloc_window(
        &self,
        domain: DomainId,
        kind: MemoryWindowType,
        limit: usize,
    ) -> Result<Arc<Window>, RegisterError> {
        let limit = limit.min(MAX_REGIONS / 2);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.windows.len() >= limit {
            return Err(RegisterError::TooManyWindows { limit });
        }
        let key = entries.random_key()?;
        let window = Arc::new(Window::new(domain, kind, key));
        entries.windows.insert(index_of(key), Arc::clone(&window));
        Ok(window)
    }

    /// Revokes the window's key and waits for the views that were taken before. Returns false if the window was already
    /// deallocated.
    pub fn dealloc_window(&self, window: &Arc<Window>) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let key = window.rkey().0;
        if !entries.windows.get(&index_of(key)).is_some_and(|entry| Arc::ptr_eq(entry, window)) {
            return false;
        }
        let ended = window.unbind();
        if let Some(owner) = ended.owner() {
            entries.owners.remove(owner, index_of(key));
        }
        let region = ended.region_key().and_then(|key| entries.regions.get(&index_of(key)));
        ended.notify_region(region.map(|region| &**region));
        entries.windows.remove(&index_of(key));
        entries.keys.retire(key);
        true
    }

    /// Re-registers `old` in one step: revokes its keys and creates new ones for `backing`, or for the same memory if
    /// that is `None`. The same memory keeps its iova if `options` has none. With `keep_keys` the new keys are the old
    /// ones, so the keys that peers hold stay valid.
    ///
    /// # Errors
    /// As [`RegionTable::register`]; [`RegisterError::Bound`]; [`RegisterError::Deregistered`]. The region is
    /// unchanged, and the backing is returned.
    pub fn reregister(
        &self,
        old: &Arc<Region>,
        domain: DomainId,
        backing: Option<Backing>,
        options: &RegionInit,
        keep_keys: bool,
    ) -> Result<Arc<Region>, (RegisterError, Option<Backing>)> {
        let options = match backing {
            None => RegionInit { iova: options.iova.or(Some(old.iova())), ..*options },
            Some(_) => *options,
        };
        let checked = match region::check(backing.as_ref().unwrap_or(old.memory().backing()), &options) {
            Ok(checked) => checked,
            Err(error) => return Err((error, backing)),
        };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let windows = old.windows();
        let key = match entries.holds(old) {
            false => Err(RegisterError::Deregistered),
            true if windows > 0 => Err(RegisterError::Bound { windows }),
            // A key that a peer revoked stays invalid.
            true if keep_keys && old.is_valid() => Ok(entries.same_key(old)),
            // The new region replaces the old one, so the limit does not count it twice.
            true => entries.new_key(self.limit + 1),
        };
        let key = match key {
            Ok(key) => key,
            Err(error) => return Err((error, backing)),
        };
        let memory = backing.map_or_else(|| old.memory().share(), Memory::new);
        // Before another region may have its key.
        let mapped = self.end_direct_access(old);
        let region = Arc::new(Region::of(domain, memory, checked, key));
        entries.regions.insert(index_of(key.0), Arc::clone(&region));
        // With the same key, the insertion has already replaced it.
        entries.remove(old);
        drop(entries);
        mapped.iter().for_each(make_private);
        Ok(region)
    }

    /// As [`RegionTable::deregister`], unless windows are bound to the region (IBTA 10.6.7.2.6).
    ///
    /// # Errors
    /// [`RegisterError::Bound`]; the region is unchanged.
    pub fn deregister_unbound(&self, region: &Arc<Region>) -> Result<bool, RegisterError> {
        // No window can be bound while the table is locked, nor after the region is removed.
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let windows = region.windows();
        if windows > 0 && entries.holds(region) {
            return Err(RegisterError::Bound { windows });
        }
        let (was_registered, mapped) = self.remove(&mut entries, region);
        drop(entries);
        mapped.iter().for_each(make_private);
        Ok(was_registered)
    }

    /// Revokes the keys of `region` and waits for every [`MemoryView`] that was taken before. When it returns, no view
    /// finds the region any more, and no access through a view is in progress.
    ///
    /// Returns false if the region is not, or no longer, registered here.
    pub fn deregister(&self, region: &Arc<Region>) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let (was_registered, mapped) = self.remove(&mut entries, region);
        drop(entries);
        mapped.iter().for_each(make_private);
        was_registered
    }

    /// As [`RegionTable::deregister`], for a caller that has no use for the contents. Others may have.
    pub(crate) fn discard(&self, region: &Arc<Region>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let (_, mapped) = self.remove(&mut entries, region);
        drop(entries);
        if Arc::strong_count(region) > 1 {
            mapped.iter().for_each(make_private);
        }
    }

    /// Removes a region. Returns whether it was registered, and its memory if other processes may have mapped it.
    fn remove(&self, entries: &mut Entries, region: &Arc<Region>) -> (bool, Option<Memory>) {
        if !entries.remove(region) {
            return (false, None);
        }
        (true, self.end_direct_access(region))
    }

    /// Returns a view of the regions, which do not change until it is dropped. Keep it for a bounded pass only:
    /// registration and deregistration wait for it.
    pub fn read(&self) -> MemoryView<'_> {
        MemoryView { entries: self.entries.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.read().entries.regions.len()
    }

    /// Number of allocated windows.
    pub fn windows(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).windows.len()
    }

    /// Whether no region is registered.
    #[cfg(feature = "sim")]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Entries {
    /// Returns a key and a serial number for a new region.
    fn new_key(&mut self, limit: usize) -> Result<(u32, u64), RegisterError> {
        if self.regions.len() >= limit {
            return Err(RegisterError::TooManyRegions { limit });
        }
        let key = self.random_key()?;
        self.registrations += 1;
        Ok((key, self.registrations))
    }

    /// Returns the key of `old`, for the region that replaces it, with a new serial number.
    fn same_key(&mut self, old: &Arc<Region>) -> (u32, u64) {
        self.registrations += 1;
        (old.key(), self.registrations)
    }

    fn random_key(&mut self) -> Result<u32, RegisterError> {
        self.keys.next(|index| self.regions.contains_key(&index) || self.windows.contains_key(&index))
    }

    fn holds(&self, region: &Arc<Region>) -> bool {
        self.regions.get(&index_of(region.key())).is_some_and(|entry| Arc::ptr_eq(entry, region))
    }

    /// Removes a region. The caller holds a reference, so the region is not dropped here.
    fn remove(&mut self, region: &Arc<Region>) -> bool {
        if !self.holds(region) {
            return false;
        }
        self.keys.retire(region.key());
        self.regions.remove(&index_of(region.key()));
        true
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The target of an access. While it lives, no revocation of its key completes.
pub(super) struct Found<'a> {
    pub(super) region: &'a Region,
    pub(super) offset: usize,
    pub(super) _using: Option<Using<'a>>,
}

/// Access to registered memory by key, for one pass of the engine. While it lives, no region that it finds is
/// deregistered.
///
/// Every access checks, in this order: the key, including its tag and validity; the protection domain; the access
/// flags; the bounds; the alignment of an atomic (IBTA 9.3.3.2 and 9.4.5). Addresses are those of requests: they count
/// from the region's `iova`.
pub struct MemoryView<'a> {
    entries: RwLockReadGuard<'a, Entries>,
}

impl MemoryView<'_> {
    /// Checks whether an access of `length` bytes at `addr` would be allowed. `need` holds the access flags that it
    /// requires; reading with a local key requires none.
    ///
    /// # Errors
    /// Every [`AccessError`] except `Misaligned`, `Fault` and `NotInvalidatable`.
    pub fn check(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(), AccessError> {
        self.resolve(key, accessor.into(), addr, length, need).map(|_| ())
    }

    /// Fills `out` with the bytes from `addr` on.
    ///
    /// # Errors
    /// As [`MemoryView::check`], and [`AccessError::Fault`].
    #[cfg(feature = "sim")]
    #[inline]
    pub fn read(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        need: AccessFlags,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        let found = self.resolve(key, accessor.into(), addr, out.len() as u64, need)?;
        found.region.memory().read(found.offset, out)
    }

    /// Fills `out`, a packet's payload, and sums it if that is nearly free. `more_follow`: more payloads follow.
    ///
    /// # Errors
    /// As [`MemoryView::read`].
    #[inline]
    pub(crate) fn read_payload(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        need: AccessFlags,
        out: &mut [u8],
        more_follow: bool,
    ) -> Result<Option<Sum>, AccessError> {
        let found = self.resolve(key, accessor.into(), addr, out.len() as u64, need)?;
        found.region.memory().read_summed(found.offset, out, more_follow)
    }

    /// Places bytes from `addr` on in shared memory.
    ///
    /// # Errors
    /// As [`MemoryView::read_payload`].
    #[inline]
    pub(crate) fn place_payload(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        need: AccessFlags,
        out: SharedPart<'_>,
    ) -> Result<(), AccessError> {
        let found = self.resolve(key, accessor.into(), addr, out.len() as u64, need)?;
        out.fill(found.region.memory(), found.offset)
    }

    /// Places `data` from `addr` on: the body first, in unspecified order, then the tail in naturally aligned stores,
    /// the last byte with the last of them (see the module for the kernel's copies). Requires
    /// [`AccessFlags::LOCAL_WRITE`] in addition to `need`.
    ///
    /// # Errors
    /// As [`MemoryView::check`], and [`AccessError::Fault`], after which part of the data may have been placed.
    #[inline]
    pub fn write(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        need: AccessFlags,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let need = need | AccessFlags::LOCAL_WRITE;
        let found = self.resolve(key, accessor.into(), addr, data.len() as u64, need)?;
        found.region.memory().write(found.offset, data)
    }

    /// As [`MemoryView::write`], with bytes of shared memory.
    ///
    /// # Errors
    /// As [`MemoryView::write`].
    #[inline]
    pub(crate) fn write_shared(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        need: AccessFlags,
        data: SharedPart<'_>,
    ) -> Result<(), AccessError> {
        let need = need | AccessFlags::LOCAL_WRITE;
        let found = self.resolve(key, accessor.into(), addr, data.len() as u64, need)?;
        data.copy_to(found.region.memory(), found.offset)
    }

    /// Executes a peer's compare and swap (IBTA 9.4.5) on the 8 bytes at `addr`, in this host's byte order: replaces
    /// them with `swap` if they equal `compare`. Returns the previous value. Atomic with respect to every other atomic
    /// access, including the processor's.
    ///
    /// # Errors
    /// As [`MemoryView::write`]; the required flag is [`AccessFlags::REMOTE_ATOMIC`]. [`AccessError::Misaligned`] if
    /// the word's address in this process is not a multiple of 8.
    pub fn compare_and_swap(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let found = self.resolve(key, accessor.into(), addr, 8, AccessFlags::REMOTE_ATOMIC)?;
        found.region.memory().compare_exchange_u64(found.offset, compare, swap)
    }

    /// Executes a peer's fetch and add (IBTA 9.4.5) on the 8 bytes at `addr`, modulo 2^64. Returns the previous value.
    ///
    /// # Errors
    /// As [`MemoryView::compare_and_swap`].
    pub fn fetch_and_add(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        add: u64,
    ) -> Result<u64, AccessError> {
        let found = self.resolve(key, accessor.into(), addr, 8, AccessFlags::REMOTE_ATOMIC)?;
        found.region.memory().fetch_add_u64(found.offset, add)
    }

    /// Revokes `key` for every access that starts afterwards, for a peer's SEND with invalidate or a local
    /// invalidation. A region stays registered, and its memory stays, until it is deregistered; a type 2 window can be
    /// bound again.
    ///
    /// # Errors
    /// [`AccessError::UnknownKey`], also if the key is already revoked; [`AccessError::WrongDomain`];
    /// [`AccessError::NotInvalidatable`]; [`AccessError::WrongQueuePair`].
    pub fn invalidate(&self, key: u32, accessor: impl Into<Accessor>) -> Result<(), AccessError> {
        let accessor = accessor.into();
        let Some(region) = self.find(key) else { return self.invalidate_window(key, accessor) };
        if region.domain() != accessor.domain {
            return Err(AccessError::WrongDomain);
        }
        if !region.is_invalidatable() {
            return Err(AccessError::NotInvalidatable);
        }
        region.invalidate()
    }

    /// Executes a peer's ATOMIC WRITE to the 8 bytes at `addr`, in one store (IBTA A19.4.2).
    ///
    /// # Errors
    /// As [`MemoryView::compare_and_swap`].
    pub fn atomic_write(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        data: [u8; 8],
    ) -> Result<(), AccessError> {
        let need = AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        let found = self.resolve(key, accessor.into(), addr, 8, need)?;
        found.region.memory().store_in_place_u64(found.offset, u64::from_ne_bytes(data))
    }

    /// Executes a peer's FLUSH (IBTA A19.4.1). `range` is a first address, in the region's or window's addresses, and a
    /// length; `None` is all of it.
    ///
    /// With [`AccessFlags::FLUSH_PERSISTENT`] it waits for the storage. As with every access, registration and
    /// deregistration wait for the view.
    ///
    /// # Errors
    /// As [`MemoryView::check`]; [`AccessError::Fault`] if the file's storage fails.
    pub fn flush(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        range: Option<(u64, u64)>,
        need: AccessFlags,
    ) -> Result<(), AccessError> {
        let (addr, length) = range.or_else(|| self.extent(key)).ok_or(AccessError::UnknownKey)?;
        // A flush changes no byte and may take long, so the invalidation of the key does not wait for it.
        let Found { region, offset, .. } = self.resolve(key, accessor.into(), addr, length, need)?;
        let length = usize::try_from(length).map_err(|_| AccessError::OutOfBounds)?;
        region.memory().flush(offset, length, need.contains(AccessFlags::FLUSH_PERSISTENT))
    }

    /// The window with the key's index, regardless of the tag.
    pub(super) fn window(&self, key: u32) -> Option<&Arc<Window>> {
        self.entries.windows.get(&index_of(key))
    }

    /// The owners of the bound windows.
    pub(super) fn owners(&self) -> &Owners {
        &self.entries.owners
    }

    /// The region with this index, valid or not.
    pub(super) fn registered(&self, index: u32) -> Option<&Arc<Region>> {
        self.entries.regions.get(&index)
    }

    /// The region with this key, unless the key was invalidated.
    #[inline]
    pub fn find(&self, key: u32) -> Option<&Arc<Region>> {
        self.entries.regions.get(&index_of(key)).filter(|region| region.key() == key && region.is_valid())
    }

    #[inline]
    pub(super) fn resolve(
        &self,
        key: u32,
        accessor: Accessor,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<Found<'_>, AccessError> {
        let Some(region) = self.find(key) else { return self.resolve_window(key, accessor, addr, length, need) };
        if region.domain() != accessor.domain {
            return Err(AccessError::WrongDomain);
        }
        if !region.access().contains(need) {
            return Err(AccessError::NoPermission);
        }
        let offset = region.offset_of(addr, length)?;
        Ok(Found { region, offset, _using: region.enter()? })
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
