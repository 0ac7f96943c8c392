//! The regions of a device that other processes of the user may access directly.
//!
//! Pages that this library has allocated, and that have remote access from their first registration on, are a file that
//! another process can map. Nothing else is exported: neither memory of the program, nor pages that were registered
//! before. A process that has the file accesses it only while it holds two [grants](super::grants): that of the region
//! and that of the queue pair through which it does so. Both are revoked before the region or the queue pair ends.
//! Because a process keeps its mapping, the contents then move to private pages if anything here still uses them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::grants::{Ended, Grant, Grants, ReadClock, TABLE_BYTES, WatchedGate};
use super::raw::Memory;
use super::record_ring::Pages;
use super::sync::{Mutex, lock};
use super::{Backing, Region, RegionTable};
use crate::types::{AccessFlags, Accessor, Rkey};

/// The memory of a device that other processes of the user may access.
pub(crate) struct Exports {
    grants: Grants,
    /// The table of the grants, for other processes.
    table: OwnedFd,
    /// By key.
    regions: Mutex<HashMap<u32, ExportedRegion>>,
    /// Held by a revocation to its end. Another one may find a gate abandoned, although the memory that its process may
    /// still access has not been moved yet.
    revocation: Mutex<()>,
}

struct ExportedRegion {
    memory: Memory,
    /// Once a process has asked for access.
    grant: Option<Grant>,
}

/// The access to a region that another process gets.
pub(crate) struct Offer {
    pub(crate) region: Grant,
    pub(crate) queue_pair: Grant,
    /// First address of the region in requests.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// The remote access that region and queue pair allow.
    pub(crate) access: AccessFlags,
    pub(crate) file: OwnedFd,
}

impl Exports {
    /// Creates exports without regions. The clock bounds how long a revocation waits for another process.
    ///
    /// # Errors
    /// As [`Backing::create_shared`].
    pub(crate) fn new(clock: ReadClock) -> io::Result<Arc<Self>> {
        let (words, table) = Backing::create_shared(c"rdma-verbs-grants", TABLE_BYTES)?;
        let grants = Grants::new(Pages::new(Memory::new(words)), clock);
        Ok(Arc::new(Self { grants, table, regions: Mutex::new(HashMap::new()), revocation: Mutex::new(()) }))
    }

    /// Returns a descriptor of the table of the grants.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub(crate) fn table(&self) -> io::Result<OwnedFd> {
        self.table.as_fd().try_clone_to_owned()
    }

    /// Replaces pages that nothing has accessed by ones that can be exported, if the region's access permits it.
    /// Otherwise, and if the system refuses, returns the same pages.
    pub(super) fn adopt(&self, backing: Backing, access: AccessFlags) -> Backing {
        let is_remote = access.intersects(AccessFlags::REMOTE) && !access.contains(AccessFlags::ON_DEMAND);
        if !is_remote || !backing.is_fresh() {
            return backing;
        }
        let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        match Backing::exported(backing.len(), access.intersects(changes)) {
            Ok(exported) => exported,
            Err(error) => {
                tracing::debug!(
                    target: "rdma_verbs::memory", %error, "a region is not accessible to other processes directly"
                );
                backing
            }
        }
    }

    /// Lets processes ask for a region, if its memory can be exported. Its key must not be revocable by peers.
    pub(super) fn add(&self, region: &Region) {
        if region.memory().backing().as_exported().is_some() && !region.is_invalidatable() {
            let exported = ExportedRegion { memory: region.memory().share(), grant: None };
            lock(&self.regions).insert(region.rkey().0, exported);
        }
    }

    /// Ends all direct accesses to a region. Returns its memory if other processes may keep mappings of it.
    pub(super) fn remove(&self, region: &Region) -> Option<Memory> {
        let exported = lock(&self.regions).remove(&region.rkey().0)?;
        self.revoke(exported.grant?);
        Some(exported.memory)
    }

    /// Takes a grant back. Afterwards no access by it continues where this process uses memory.
    fn revoke(&self, grant: Grant) {
        let _revocation = lock(&self.revocation);
        if self.grants.revoke(grant) == Ended::Unknown {
            // It may be an access to any of the regions.
            self.move_all();
        }
    }

    /// Offers access to a region through a queue pair. `None`: it cannot be accessed directly.
    pub(super) fn offer(&self, region: &Region, queue_pair: &QueuePairGrant, access: AccessFlags) -> Option<Offer> {
        let mut regions = lock(&self.regions);
        let exported = regions.get_mut(&region.rkey().0)?;
        let file = exported.memory.backing().as_exported()?.pass_on().ok()?;
        let grant = match exported.grant {
            Some(grant) => grant,
            None => *exported.grant.insert(self.grants.grant()?),
        };
        Some(Offer {
            region: grant,
            queue_pair: queue_pair.grant,
            iova: region.iova(),
            length: region.len(),
            access: access & region.access() & AccessFlags::REMOTE,
            file,
        })
    }

    /// Grants access through a queue pair; `None` if there are too many grants.
    pub(crate) fn grant(self: &Arc<Self>) -> Option<QueuePairGrant> {
        Some(QueuePairGrant { grant: self.grants.grant()?, exports: Arc::clone(self) })
    }

    /// Watches the gate of a process that may get grants, as long as the result lives: until the process cannot access
    /// memory of this one any more.
    pub(crate) fn watch(self: &Arc<Self>, gate: WatchedGate) -> GateWatch {
        GateWatch { number: self.grants.add_gate(gate), exports: Arc::clone(self) }
    }

    /// Moves everything that was granted to private pages and revokes it, because an access may continue that nothing
    /// permits any more.
    fn retreat(&self) {
        let _revocation = lock(&self.revocation);
        self.move_all();
    }

    fn move_all(&self) {
        tracing::warn!(
            target: "rdma_verbs::memory",
            "a process of this user was interrupted while it accessed memory of this one; the present regions are not \
             accessed directly any more"
        );
        for exported in lock(&self.regions).values_mut() {
            let Some(grant) = exported.grant.take() else { continue };
            let _ = self.grants.revoke(grant);
            make_private(&exported.memory);
        }
    }
}

/// Moves memory to pages that no other process reaches.
pub(super) fn make_private(memory: &Memory) {
    if let Some(exported) = memory.backing().as_exported()
        && let Err(error) = exported.make_private()
    {
        tracing::warn!(
            target: "rdma_verbs::memory",
            %error, "memory of a deregistered region is still mapped by other processes of this user"
        );
    }
}

/// The grant of a queue pair. Dropping it ends all accesses through the queue pair.
pub(crate) struct QueuePairGrant {
    grant: Grant,
    exports: Arc<Exports>,
}

impl Drop for QueuePairGrant {
    fn drop(&mut self) {
        self.exports.revoke(self.grant);
    }
}

/// Watches the gate of another process. Dropping it ends that.
pub(crate) struct GateWatch {
    number: u64,
    exports: Arc<Exports>,
}

impl GateWatch {
    /// Ends watching a process that may still access memory of this one: moves the memory away.
    pub(crate) fn disown(self) {
        self.exports.retreat();
    }
}

impl Drop for GateWatch {
    fn drop(&mut self) {
        self.exports.grants.remove_gate(self.number);
    }
}

impl RegionTable {
    /// Lets other processes of the user access regions directly.
    #[must_use]
    pub(crate) fn exporting(mut self, exports: Arc<Exports>) -> Self {
        self.exports = Some(exports);
        self
    }

    /// The memory that other processes of the user may access directly, if there can be any.
    #[inline]
    pub(crate) fn exports(&self) -> Option<&Arc<Exports>> {
        self.exports.as_ref()
    }

    /// Ends the direct accesses of other processes to a region. Returns its memory if they may have mapped it.
    pub(super) fn end_direct_access(&self, region: &Region) -> Option<Memory> {
        self.exports.as_ref().and_then(|exports| exports.remove(region))
    }

    /// Offers direct access to the region with this key, to the peer of a queue pair that has this access.
    pub(crate) fn offer(
        &self,
        rkey: Rkey,
        accessor: Accessor,
        queue_pair: &QueuePairGrant,
        access: AccessFlags,
    ) -> Option<Offer> {
        let exports = self.exports()?;
        let view = self.read();
        let region = view.find(rkey.0).filter(|region| region.domain() == accessor.domain)?;
        exports.offer(region, queue_pair, access)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
