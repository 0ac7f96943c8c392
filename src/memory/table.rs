//! Finds regions by key, and ends their use.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::checksum::Sum;
use crate::types::{AccessFlags, Accessor, DomainId, MemoryWindowType};

use super::key::{BuildIndexHasher, KeyGenerator, MAX_REGIONS, index_of};
use super::owners::Owners;
use super::raw::Memory;
use super::region::{self, Region, RegisterOptions};
use super::sync::{RwLock, RwLockReadGuard};
use super::users::Using;
use super::window::Window;
use super::{AccessError, Backing, RefusedBacking, RegisterError};

/// The regions and memory windows of a device, by key.
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
    windows: HashMap<u32, Arc<Window>, BuildIndexHasher>,
    owners: Owners,
    keys: KeyGenerator,
    registrations: u64,
}

impl RegionTable {
    /// A table for up to `limit` regions, and no more than 2^23.
    pub fn new(limit: usize) -> Self {
        let entries = Entries {
            regions: HashMap::default(),
            windows: HashMap::default(),
            owners: Owners::new(),
            keys: KeyGenerator::new(),
            registrations: 0,
        };
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
    ) -> Result<Arc<Region>, RefusedBacking> {
        // Looking at the memory may take long; it happens before the lock.
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
        Ok(region)
    }

    /// A window of `domain`, not bound yet; at most `limit` of them.
    ///
    /// # Errors
    /// [`RegisterError::TooManyWindows`], [`RegisterError::NoRandomness`].
    pub fn alloc_window(
        &self,
        domain: DomainId,
        kind: MemoryWindowType,
        limit: usize,
    ) -> Result<Arc<Window>, RegisterError> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.windows.len() >= limit.min(MAX_REGIONS / 2) {
            return Err(RegisterError::TooManyWindows { limit });
        }
        let key = entries.random_key()?;
        let window = Arc::new(Window::new(domain, kind, key));
        entries.windows.insert(index_of(key), Arc::clone(&window));
        Ok(window)
    }

    /// Revokes the window's key and waits for the views that were taken before. False if that was done already.
    pub fn dealloc_window(&self, window: &Arc<Window>) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let key = window.rkey().0;
        if !entries.windows.get(&index_of(key)).is_some_and(|entry| Arc::ptr_eq(entry, window)) {
            return false;
        }
        let ended = window.unbind();
        if let Some(owner) = ended.owner() {
            entries.owners.forget(owner, index_of(key));
        }
        let region = ended.region_key().and_then(|key| entries.regions.get(&index_of(key)));
        ended.settle(region.map(|region| &**region));
        entries.windows.remove(&index_of(key));
        entries.keys.retire(key);
        true
    }

    /// Registers `old` anew, in one step: its keys are revoked, and the new ones lead to `backing`, or to the same
    /// memory if that is `None`. Without an iova in `options` the same memory keeps its own. With `keep_keys` the new
    /// keys are the old ones: what was told to peers goes on to hold.
    ///
    /// # Errors
    /// As [`RegionTable::register`]; [`RegisterError::Bound`]; [`RegisterError::Deregistered`]. The region is as it
    /// was, and the backing comes back.
    pub fn reregister(
        &self,
        old: &Arc<Region>,
        domain: DomainId,
        backing: Option<Backing>,
        options: &RegisterOptions,
        keep_keys: bool,
    ) -> Result<Arc<Region>, (RegisterError, Option<Backing>)> {
        let options = match backing {
            None => RegisterOptions { iova: options.iova.or(Some(old.iova())), ..*options },
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
            // A key that a peer has revoked stays dead.
            true if keep_keys && old.is_valid() => Ok(entries.same_key(old)),
            // The old one leaves its place to the new one.
            true => entries.new_key(self.limit + 1),
        };
        let key = match key {
            Ok(key) => key,
            Err(error) => return Err((error, backing)),
        };
        let memory = backing.map_or_else(|| old.memory().share(), Memory::new);
        let region = Arc::new(Region::of(domain, memory, checked, key));
        entries.regions.insert(index_of(key.0), Arc::clone(&region));
        // If it has the same key, it was replaced already.
        entries.remove(old);
        Ok(region)
    }

    /// As [`RegionTable::deregister`], unless windows are bound to the region.
    ///
    /// # Errors
    /// [`RegisterError::Bound`]; the region is as it was.
    pub fn deregister_unbound(&self, region: &Arc<Region>) -> Result<bool, RegisterError> {
        // No window can be bound while the table is locked, nor after the region is out of it.
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let windows = region.windows();
        if windows > 0 && entries.holds(region) {
            return Err(RegisterError::Bound { windows });
        }
        Ok(entries.remove(region))
    }

    /// Revokes the keys of `region` and waits for every [`MemoryView`] that was taken before. When it returns, no view
    /// finds the region any more, and no access through a view is under way.
    ///
    /// False if the region is not, or no longer, registered here.
    pub fn deregister(&self, region: &Arc<Region>) -> bool {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.remove(region)
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

    /// Windows allocated.
    pub fn windows(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).windows.len()
    }

    /// Whether no region is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Entries {
    /// Key and serial number for a new region.
    fn new_key(&mut self, limit: usize) -> Result<(u32, u64), RegisterError> {
        if self.regions.len() >= limit {
            return Err(RegisterError::TooManyRegions { limit });
        }
        let key = self.random_key()?;
        self.registrations += 1;
        Ok((key, self.registrations))
    }

    /// The key of a region for the one that takes its place, and a serial number of its own.
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

    /// Takes a region out; the caller holds it, so it does not end here.
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

/// Where an access leads. While it lives, the key that led there is not taken back.
pub(super) struct Found<'a> {
    pub(super) region: &'a Region,
    pub(super) offset: usize,
    pub(super) _using: Option<Using<'a>>,
}

/// Memory that is read packet by packet.
pub(crate) struct Payloads<'a> {
    memory: &'a Memory,
    next: usize,
    end: usize,
}

impl Payloads<'_> {
    /// Fills `out` with the next bytes, and sums them if that costs next to nothing.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`] behind the last, [`AccessError::Fault`].
    #[inline]
    pub(crate) fn read_next(&mut self, out: &mut [u8]) -> Result<Option<Sum>, AccessError> {
        if out.len() > self.end - self.next {
            return Err(AccessError::OutOfBounds);
        }
        let sum = self.memory.read_summed(self.next, out, true)?;
        self.next += out.len();
        Ok(sum)
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
        accessor: impl Into<Accessor>,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Result<(), AccessError> {
        self.resolve(key, accessor.into(), addr, length, need).map(|_| ())
    }

    /// Fills `out` from `addr` on.
    ///
    /// # Errors
    /// As [`MemoryView::check`], and [`AccessError::Fault`].
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

    /// Fills `out`, a packet's payload, and sums it if that costs next to nothing. `goes_on`: it is not the last one.
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
        goes_on: bool,
    ) -> Result<Option<Sum>, AccessError> {
        let found = self.resolve(key, accessor.into(), addr, out.len() as u64, need)?;
        found.region.memory().read_summed(found.offset, out, goes_on)
    }

    /// The same for the payloads of several packets, which lie one behind the other from `addr` on. `None`: the access
    /// is not allowed, or the key may be taken back by a peer, who shall wait for the copy of one packet and not of
    /// many.
    pub(crate) fn payloads(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        length: u64,
        need: AccessFlags,
    ) -> Option<Payloads<'_>> {
        let found = self.resolve(key, accessor.into(), addr, length, need).ok()?;
        let Found { region, offset, _using: None } = found else { return None };
        Some(Payloads { memory: region.memory(), next: offset, end: offset + length as usize })
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
        accessor: impl Into<Accessor>,
        addr: u64,
        need: AccessFlags,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let need = need | AccessFlags::LOCAL_WRITE;
        let found = self.resolve(key, accessor.into(), addr, data.len() as u64, need)?;
        found.region.memory().write(found.offset, data)
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
        accessor: impl Into<Accessor>,
        addr: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let found = self.resolve(key, accessor.into(), addr, 8, AccessFlags::REMOTE_ATOMIC)?;
        found.region.memory().compare_exchange_u64(found.offset, compare, swap)
    }

    /// A peer's fetch and add on the 8 bytes at `addr`, modulo 2^64. Gives the value found.
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

    /// A SEND with invalidate of a peer, or a local invalidation: revokes `key`, for every access that starts
    /// afterwards. A region stays registered, and its memory stays, until it is deregistered; a type 2 window can be
    /// bound again.
    ///
    /// # Errors
    /// [`AccessError::UnknownKey`], also when it was revoked before; [`AccessError::WrongDomain`];
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

    /// A peer's ATOMIC WRITE of the 8 bytes at `addr`, in one store.
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

    /// A peer's FLUSH. `range` counts from the region's or window's first address; `None` is all of it.
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
        // It changes no byte and may last long, so nobody who takes the key back waits for it.
        let Found { region, offset, .. } = self.resolve(key, accessor.into(), addr, length, need)?;
        let length = usize::try_from(length).map_err(|_| AccessError::OutOfBounds)?;
        region.memory().flush(offset, length, need.contains(AccessFlags::FLUSH_PERSISTENT))
    }

    /// The window with the key's index, whatever its tag.
    pub(super) fn window(&self, key: u32) -> Option<&Arc<Window>> {
        self.entries.windows.get(&index_of(key))
    }

    /// Whose the bound windows are.
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
    fn resolve(
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
