//! Connections of processes that have died: this process ends those that began at its addresses.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::registry::{Name, SLOTS, Taking, processes_with_connections, take_orphans};
use super::{Postbox, Recipient, lock};
use crate::cm::Orphan;

/// Attempts to take the connections of a dead process, with pauses that double. The kernel closes the descriptors of a
/// process one after the other: the one that tells its end may come before the one with the lock of its connections.
/// Another process may be taking the connections of other addresses.
const ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Most processes whose connections are to be taken: more cannot have shared an address.
const MOST_DEAD: usize = SLOTS;
/// Most connections that one attempt ends: the thread has other work, and the peers of many respond at once.
const MOST_AT_ONCE: u32 = 1_024;

/// The dead processes whose connections are to be taken. Without any, the thread sleeps.
#[derive(Default)]
pub(super) struct OrphanSearch {
    dead: BTreeSet<Name>,
    left: u32,
    pause: Duration,
    last: Option<Instant>,
}

impl OrphanSearch {
    /// Notes that processes have died.
    pub(super) fn note_deaths(&mut self, names: impl IntoIterator<Item = Name>) {
        for name in names {
            if self.dead.len() < MOST_DEAD && self.dead.insert(name) {
                (self.left, self.pause, self.last) = (ATTEMPTS, FIRST_PAUSE, None);
            }
        }
    }

    /// Returns the time until the next attempt; `None` if there is nothing to do.
    fn wait(&self) -> Option<Duration> {
        let elapsed = self.last.map_or(Duration::MAX, |last| last.elapsed());
        (!self.dead.is_empty()).then(|| self.pause.saturating_sub(elapsed))
    }

    /// Tries to take the connections of each process.
    fn attempt(&mut self, mut take: impl FnMut(&Name) -> Taking) {
        self.dead.retain(|name| take(name) != Taking::Done);
        (self.left, self.pause, self.last) = (self.left.saturating_sub(1), 2 * self.pause, Some(Instant::now()));
        if self.left == 0 {
            self.dead.clear();
        }
    }
}

impl Postbox {
    /// Ends connections of dead processes, if an attempt is due. Returns the time until the next one.
    pub(super) fn search(&self, search: &mut OrphanSearch) -> Option<Duration> {
        if self.has_new_address.swap(false, Ordering::AcqRel) {
            // The last process on the address may have died before this one came.
            let senders = self.senders();
            let others = processes_with_connections(&self.folder).into_iter().filter(|name| *name != self.name);
            let unfinished: Vec<Name> = others.filter(|name| self.take(&senders, name) == Taking::Again).collect();
            search.note_deaths(unfinished);
        }
        if search.wait()?.is_zero() {
            let senders = self.senders();
            search.attempt(|name| self.take(&senders, name));
        }
        search.wait()
    }

    /// Takes the connections of a process that has died, and ends them.
    fn take(&self, senders: &HashMap<IpAddr, Weak<dyn Recipient>>, name: &Name) -> Taking {
        let mut room = MOST_AT_ONCE;
        let end = |orphan: &Orphan| {
            let Some(left) = room.checked_sub(1) else { return false };
            room = left;
            let sender = senders.get(&orphan.local).and_then(Weak::upgrade);
            sender.is_some_and(|sender| sender.end_orphan(orphan))
        };
        take_orphans(&self.folder, name, |address| senders.contains_key(&address), end)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_when_all_is_taken_and_are_bounded() {
        let mut search = OrphanSearch::default();
        assert_eq!(search.wait(), None);
        search.note_deaths([[1; 16], [2; 16]]);
        assert_eq!(search.wait(), Some(Duration::ZERO));
        search.attempt(|name| if *name == [1; 16] { Taking::Done } else { Taking::Alive });
        assert!(search.wait().is_some_and(|wait| wait > Duration::ZERO));
        search.attempt(|name| if *name == [2; 16] { Taking::Done } else { panic!("it is done") });
        assert_eq!(search.wait(), None);
        search.note_deaths([[3; 16]]);
        (0..ATTEMPTS).for_each(|_| search.attempt(|_| Taking::Alive));
        assert_eq!(search.wait(), None);
        search.note_deaths((0..=u8::MAX).map(|number| [number; 16]));
        assert_eq!(search.dead.len(), MOST_DEAD);
    }
}
