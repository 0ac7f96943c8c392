//! Connections of processes that have died: this process ends those that began at its addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::registry::take_orphans;
use super::{Recipient, Shared, lock};
use crate::cm::Orphan;

/// Searches after a process has died, with pauses that double. The kernel closes the descriptors of a process one after
/// the other: the one that tells its end may come before the one with the lock of its connections. Another process may
/// be taking the connections of other addresses.
const SEARCHES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Most connections that one search ends: the thread has other work, and the peers of many respond at once.
const MOST_AT_ONCE: u32 = 1_024;

/// The searches that are left.
#[derive(Default)]
pub(super) struct OrphanSearch {
    left: u32,
    pause: Duration,
    last: Option<Instant>,
}

impl OrphanSearch {
    /// Notes that a process has died.
    pub(super) fn note_death(&mut self) {
        (self.left, self.pause, self.last) = (SEARCHES, FIRST_PAUSE, None);
    }

    /// Notes that this process has begun to use an address: the last one there may have died before.
    pub(super) fn note_address(&mut self) {
        if self.left == 0 {
            (self.left, self.pause, self.last) = (1, FIRST_PAUSE, None);
        }
    }

    /// Returns the time until the next search; `None` if there is none.
    fn wait(&self) -> Option<Duration> {
        let elapsed = self.last.map_or(Duration::MAX, |last| last.elapsed());
        (self.left > 0).then(|| self.pause.saturating_sub(elapsed))
    }

    fn note_search(&mut self, is_complete: bool) {
        self.last = Some(Instant::now());
        if is_complete {
            self.left -= 1;
            self.pause *= 2;
        }
    }
}

impl Shared {
    /// Searches for connections of dead processes, if a search is due. Returns the time until the next one.
    pub(super) fn search(&self, search: &mut OrphanSearch) -> Option<Duration> {
        if self.has_new_address.swap(false, Ordering::AcqRel) {
            search.note_address();
        }
        if search.wait()?.is_zero() {
            let is_complete = self.end_orphans();
            search.note_search(is_complete);
        }
        search.wait()
    }

    /// Ends the connections of dead processes; returns whether there are no further ones.
    fn end_orphans(&self) -> bool {
        let senders = self.senders();
        let mut room = MOST_AT_ONCE;
        let end = |orphan: &Orphan| {
            let Some(left) = room.checked_sub(1) else { return false };
            room = left;
            let sender = senders.get(&orphan.local).and_then(Weak::upgrade);
            sender.is_some_and(|sender| sender.end_orphan(orphan))
        };
        take_orphans(&self.folder, |address| senders.contains_key(&address), end)
    }

    /// Returns a recipient for each address that this process can send from.
    fn senders(&self) -> HashMap<IpAddr, Weak<dyn Recipient>> {
        let recipients: Vec<_> = {
            let recipients = lock(&self.recipients);
            recipients.iter().map(|((address, _), recipient)| (*address, Weak::clone(recipient))).collect()
        };
        let mut senders = HashMap::new();
        // Without the lock: the last reference to a shard may be dropped here.
        for (address, recipient) in recipients {
            if !senders.contains_key(&address) && recipient.upgrade().is_some_and(|shard| shard.sends_from(address)) {
                senders.insert(address, recipient);
            }
        }
        senders
    }
}
