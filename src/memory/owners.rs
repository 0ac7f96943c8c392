//! Owners of bound type 2 windows, so that bindings end with their queue pair.
//!
//! A binding names its queue pair by number, and numbers are reused. Destroying a queue pair therefore ends its
//! bindings (IBTA o10-2.2.5 lets it be destroyed with windows bound): no other queue pair could end them, and the next
//! one with the same number must not inherit them.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

use crate::types::Qpn;

use super::key::BuildIndexHasher;
use super::sync::Mutex;
use super::table::RegionTable;

type Indices = HashSet<u32, BuildIndexHasher>;

/// The indices of bound windows, by the queue pair that bound them.
pub(super) struct Owners(Mutex<HashMap<Qpn, Indices>>);

impl Owners {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    pub(super) fn insert(&self, queue_pair: Qpn, index: u32) {
        self.with(|owners| owners.entry(queue_pair).or_default().insert(index));
    }

    pub(super) fn remove(&self, queue_pair: Qpn, index: u32) {
        self.with(|owners| {
            if let Some(indices) = owners.get_mut(&queue_pair) {
                indices.remove(&index);
                if indices.is_empty() {
                    owners.remove(&queue_pair);
                }
            }
        });
    }

    fn take(&self, queue_pair: Qpn) -> Indices {
        self.with(|owners| owners.remove(&queue_pair)).unwrap_or_default()
    }

    fn with<R>(&self, run: impl FnOnce(&mut HashMap<Qpn, Indices>) -> R) -> R {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RegionTable {
    /// Ends the bindings of a queue pair that is being destroyed; others can bind its windows afterwards. Call it
    /// before its number can be reused.
    pub fn end_windows_of(&self, queue_pair: Qpn) {
        let view = self.read();
        for index in view.owners().take(queue_pair) {
            view.end_window_of(queue_pair, index);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::{AccessError, Backing, WindowBind};
    use crate::types::{AccessFlags, Accessor, DomainId, Lkey, MemoryWindowType, Rkey};

    const OWNER: Accessor = Accessor { domain: DomainId(3), queue_pair: Qpn::new(0x11) };

    #[test]
    fn reused_queue_pair_number_inherits_no_windows() {
        let table = RegionTable::new(4);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND;
        let region = table.register(OWNER.domain, Backing::anonymous(64).unwrap(), 0, access).unwrap();
        let window = table.alloc_window(OWNER.domain, MemoryWindowType::Type2, 4).unwrap();
        let bind = WindowBind {
            rkey: Rkey(window.rkey().0 ^ 1),
            lkey: Lkey(region.lkey().0),
            addr: 0,
            length: 64,
            access: AccessFlags::REMOTE_WRITE,
        };
        let write = || table.read().write(bind.rkey.0, OWNER, 0, AccessFlags::REMOTE_WRITE, &[1]);
        assert_eq!(table.read().bind_window(OWNER, &bind), Ok(()));
        assert_eq!((write(), region.windows()), (Ok(()), 1));
        table.end_windows_of(Qpn::new(0x12));
        assert_eq!(write(), Ok(()));
        table.end_windows_of(OWNER.queue_pair);
        assert_eq!((write(), region.windows()), (Err(AccessError::UnknownKey), 0));

        // Once invalidated and bound by another queue pair, the window no longer belongs to the first.
        let other = Accessor { queue_pair: Qpn::new(0x12), ..OWNER };
        assert_eq!(table.read().bind_window(OWNER, &bind), Ok(()));
        assert_eq!(table.read().invalidate(bind.rkey.0, OWNER), Ok(()));
        assert_eq!(table.read().bind_window(other, &bind), Ok(()));
        table.end_windows_of(OWNER.queue_pair);
        assert_eq!(region.windows(), 1);
        assert!(table.dealloc_window(&window));
        assert!(table.read().owners().with(|owners| owners.is_empty()), "nothing is left behind");
    }
}
