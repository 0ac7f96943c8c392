//! Connections of processes that have died: this process ends those that began at its addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::registry::take_orphans;
use super::{Recipient, Shared, lock};

/// Searches after a process has died, and the pause between two of them. The kernel closes the descriptors of a process
/// one after the other: the one that tells its end may come before the one with the lock of its connections. Another
/// process may be taking the connections of other addresses.
const SEARCHES: u32 = 12;
const PAUSE: Duration = Duration::from_millis(50);

/// Searches after a process has begun to use an address: the second one finds the address if the first one came before
/// its shard was ready.
const SEARCHES_AT_BEGIN: u32 = 2;

/// The searches that are left.
#[derive(Default)]
pub(super) struct OrphanSearch {
    left: u32,
    last: Option<Instant>,
}

impl OrphanSearch {
    /// Notes that a process has died.
    pub(super) fn note_death(&mut self) {
        self.left = SEARCHES;
    }

    /// Notes that a process has begun to use an address. If it is this one, the last one there may have died before.
    pub(super) fn note_change(&mut self) {
        self.left = self.left.max(SEARCHES_AT_BEGIN);
    }
}

impl Shared {
    /// Searches for connections of dead processes, if a search is due. Returns the time until the next one.
    pub(super) fn search(&self, search: &mut OrphanSearch) -> Option<Duration> {
        let left = search.left.checked_sub(1)?;
        if let Some(early) = search.last.and_then(|last| PAUSE.checked_sub(last.elapsed())) {
            return Some(early);
        }
        (search.left, search.last) = (left, Some(Instant::now()));
        let by_address = self.recipients_by_address();
        for orphan in take_orphans(&self.folder, |address| by_address.contains_key(&address)) {
            if let Some(recipient) = by_address.get(&orphan.local) {
                recipient.end_orphan(&orphan);
            }
        }
        (left > 0).then_some(PAUSE)
    }

    /// Returns a recipient for each address of this process.
    fn recipients_by_address(&self) -> HashMap<IpAddr, Arc<dyn Recipient>> {
        let recipients = lock(&self.recipients);
        recipients.iter().filter_map(|((address, _), recipient)| Some((*address, recipient.upgrade()?))).collect()
    }
}
