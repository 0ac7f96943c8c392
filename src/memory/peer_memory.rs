//! Memory of another process that this one accesses directly.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::exports::Offer;
use super::grants::{AccessGate, Grant, PeerGrants, TABLE_BYTES};
use super::raw::{Memory, exported};
use super::record_ring::Pages;
use super::region::offset_within;
use super::sync::{Mutex, lock};
use super::{AccessError, Backing, MemoryView};
use crate::types::{AccessFlags, Accessor, DomainId, Sge};

/// Most regions of a process that are mapped at the same time.
const MOST_MAPPINGS: usize = 1_024;

/// The memory of a process that has a link from this one. One thread at a time uses it.
pub(crate) struct PeerMemory {
    grants: PeerGrants,
    gate: AccessGate,
    /// The link has ended.
    is_over: AtomicBool,
    mappings: Mutex<Vec<(Grant, Weak<Memory>)>>,
}

impl PeerMemory {
    /// Opens the table of the peer's grants.
    ///
    /// # Errors
    /// As [`Backing::open_shared`].
    pub(crate) fn open(table: impl AsFd, gate: AccessGate) -> io::Result<Arc<Self>> {
        let words = Backing::open_shared(table.as_fd(), TABLE_BYTES)?;
        Ok(Arc::new(Self {
            grants: PeerGrants::new(Pages::new(Memory::new(words))),
            gate,
            is_over: AtomicBool::new(false),
            mappings: Mutex::new(Vec::new()),
        }))
    }

    /// Ends all accesses, because the link has ended.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Accepts what the peer offers.
    ///
    /// # Errors
    /// `InvalidData` if the offer is senseless; otherwise those of mapping the memory.
    pub(crate) fn accept(self: &Arc<Self>, offer: &Offer) -> io::Result<Admission> {
        let length = usize::try_from(offer.length).map_err(|_| io::ErrorKind::InvalidData)?;
        let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let writes = offer.access.intersects(changes);
        let mut mappings = lock(&self.mappings);
        mappings.retain(|(_, mapping)| mapping.strong_count() > 0);
        let known =
            mappings.iter().find(|(grant, _)| *grant == offer.region).and_then(|(_, mapping)| mapping.upgrade());
        let memory = match known {
            Some(memory) if memory.len() == length && (memory.backing().is_writable() || !writes) => memory,
            _ if mappings.len() >= MOST_MAPPINGS => return Err(io::ErrorKind::OutOfMemory.into()),
            _ => {
                let memory = Arc::new(Memory::new(exported::open(offer.file.as_fd(), length, writes)?));
                mappings.push((offer.region, Arc::downgrade(&memory)));
                memory
            }
        };
        drop(mappings);
        Ok(Admission {
            peer: Arc::clone(self),
            region: offer.region,
            queue_pair: offer.queue_pair,
            iova: offer.iova,
            access: offer.access,
            memory,
        })
    }
}

/// The permission to access a region of the peer through a queue pair.
pub(crate) struct Admission {
    peer: Arc<PeerMemory>,
    region: Grant,
    queue_pair: Grant,
    iova: u64,
    access: AccessFlags,
    memory: Arc<Memory>,
}

impl Admission {
    /// Returns the offset of a range, if all of it lies in the region and may be accessed.
    #[inline]
    pub(crate) fn offset_of(&self, addr: u64, length: u64, need: AccessFlags) -> Option<usize> {
        let offset = offset_within(self.iova, self.memory.len() as u64, addr, length)?;
        self.access.contains(need).then_some(offset)
    }

    /// Begins an access. `None`: the region or the queue pair has ended, or the link.
    #[inline]
    pub(crate) fn enter(&self) -> Option<DirectAccess<'_>> {
        let peer = &*self.peer;
        if peer.is_over.load(Ordering::Relaxed) {
            return None;
        }
        peer.gate.enter();
        let access = DirectAccess { admission: self };
        if peer.grants.holds(self.queue_pair) && peer.grants.holds(self.region) {
            return Some(access);
        }
        access.leave();
        None
    }
}

/// An access in progress. The region does not end before [`DirectAccess::leave`].
#[must_use]
pub(crate) struct DirectAccess<'a> {
    admission: &'a Admission,
}

impl DirectAccess<'_> {
    /// Ends the access. Returns false if the peer has given it up: nothing is known about its effect.
    #[inline]
    pub(crate) fn leave(self) -> bool {
        self.admission.peer.gate.leave()
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`], [`AccessError::NoPermission`].
    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.admission.memory.write(offset, bytes)
    }

    /// Copies registered memory of this process into the region.
    ///
    /// # Errors
    /// Those of the local memory; as [`DirectAccess::write`] for the region.
    #[inline]
    pub(crate) fn put(
        &self,
        view: &MemoryView<'_>,
        domain: DomainId,
        (sge, addr): (&Sge, u64),
        offset: usize,
        length: usize,
    ) -> Result<(), AccessError> {
        view.copy_out(sge.lkey.0, domain, addr, (&self.admission.memory, offset), length)
    }

    /// Copies from the region into registered memory of this process.
    ///
    /// # Errors
    /// As [`DirectAccess::put`].
    #[inline]
    pub(crate) fn get(
        &self,
        view: &MemoryView<'_>,
        domain: DomainId,
        (sge, addr): (&Sge, u64),
        offset: usize,
        length: usize,
    ) -> Result<(), AccessError> {
        view.copy_in(sge.lkey.0, domain, addr, (&self.admission.memory, offset), length)
    }

    /// Atomically replaces the word with `new` if it equals `current`; returns the previous value.
    ///
    /// # Errors
    /// [`AccessError::Misaligned`], and as [`DirectAccess::write`].
    pub(crate) fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64, AccessError> {
        self.admission.memory.compare_exchange_u64(offset, current, new)
    }

    /// Atomically adds to the word, modulo 2^64; returns the previous value.
    ///
    /// # Errors
    /// As [`DirectAccess::compare_exchange_u64`].
    pub(crate) fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, AccessError> {
        self.admission.memory.fetch_add_u64(offset, add)
    }
}

impl MemoryView<'_> {
    /// Copies bytes from `addr` on to another memory, as [`Memory::copy_to`].
    ///
    /// # Errors
    /// As [`MemoryView::read`]; those of the target.
    #[inline]
    fn copy_out(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        (target, offset): (&Memory, usize),
        length: usize,
    ) -> Result<(), AccessError> {
        let found = self.resolve(key, accessor.into(), addr, length as u64, AccessFlags::empty())?;
        found.region.memory().copy_to(found.offset, target, offset, length)
    }

    /// Copies bytes of another memory to `addr`, as [`Memory::copy_to`].
    ///
    /// # Errors
    /// As [`MemoryView::write`]; those of the source.
    #[inline]
    fn copy_in(
        &self,
        key: u32,
        accessor: impl Into<Accessor>,
        addr: u64,
        (source, offset): (&Memory, usize),
        length: usize,
    ) -> Result<(), AccessError> {
        let found = self.resolve(key, accessor.into(), addr, length as u64, AccessFlags::LOCAL_WRITE)?;
        source.copy_to(offset, found.region.memory(), found.offset, length)
    }
}
