//! Grants: permissions that a process gives to others through memory that they map, and takes back.
//!
//! A grant is a place in a table and a number. It holds while the word at the place is the number, which no other grant
//! of the table has. Only the owner writes the table.
//!
//! A process with a grant accesses the memory that it permits under its *gate*, a word that it shares with the owner:
//! the word is odd during an access. The accessing process enters the gate and then checks the word of the grant; the
//! owner revokes the word and then looks at the gates. Between the store and the load of each is a fence, so at least
//! one of them sees the other's store: an access that the owner does not see does not begin.
//!
//! The owner waits for the accesses that it sees, but not for long: the other process may be stopped. It then
//! *abandons* the gate by replacing the odd value, and moves the memory elsewhere. The other process finds the value
//! replaced when its access ends, and knows that nothing is known about its effect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::record_ring::{Pages, SharedBytes};
use super::sync::{Mutex, lock, pause};
use crate::types::Time;

/// Grants that a table can hold at the same time.
const PLACES: usize = 8_192;
/// Bytes of a table.
pub(crate) const TABLE_BYTES: usize = PLACES * WORD;
const WORD: usize = 8;
/// The value of a gate that the owner has abandoned, until the next access. It is even.
const ABANDONED: u64 = u64::MAX - 1;
/// How long a revocation waits for an access. It copies at most 256 KiB, in about 20 us, unless its thread is
/// interrupted; a thread that others keep from running has its turn after some milliseconds.
const PATIENCE: Duration = Duration::from_millis(30);

/// Reads a clock that only moves forward.
pub(crate) type ReadClock = fn() -> Time;

/// A grant of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) place: u32,
    pub(crate) number: u64,
}

impl Grant {
    /// The offset of its word; `None` if no table has such a place.
    fn offset(self) -> Option<usize> {
        let place = usize::try_from(self.place).ok()?;
        (place < PLACES).then_some(place * WORD)
    }
}

/// The owner's end: the table, and the gates of the processes that map it.
pub(super) struct Grants<B = Pages> {
    words: B,
    clock: ReadClock,
    places: Mutex<Places>,
    gates: Mutex<Vec<(u64, WatchedGate<B>)>>,
}

#[derive(Default)]
struct Places {
    free: Vec<u32>,
    /// Places from this one on were never used.
    unused: u32,
    last_number: u64,
    last_gate: u64,
}

/// Whether all accesses by a grant have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Ended {
    /// Nothing accesses the memory by the grant any more.
    Yes,
    /// An access may continue: the memory must not be used where it is.
    Unknown,
}

impl<B: SharedBytes> Grants<B> {
    pub(super) fn new(words: B, clock: ReadClock) -> Self {
        Self { words, clock, places: Mutex::new(Places::default()), gates: Mutex::new(Vec::new()) }
    }

    /// Gives a grant; `None` if the table is full.
    pub(super) fn grant(&self) -> Option<Grant> {
        let mut places = lock(&self.places);
        let place = match places.free.pop() {
            Some(place) => place,
            None if (places.unused as usize) < PLACES => {
                places.unused += 1;
                places.unused - 1
            }
            None => return None,
        };
        places.last_number += 1;
        let grant = Grant { place, number: places.last_number };
        self.words.store(place as usize * WORD, grant.number);
        Some(grant)
    }

    /// Takes a grant back, and waits for the accesses by it.
    pub(super) fn revoke(&self, grant: Grant) -> Ended {
        self.words.store(grant.place as usize * WORD, 0);
        let ended = self.wait();
        lock(&self.places).free.push(grant.place);
        ended
    }

    /// Waits for all accesses that began before.
    fn wait(&self) -> Ended {
        self.words.fence();
        let mut ended = Ended::Yes;
        for (_, gate) in &*lock(&self.gates) {
            if !gate.wait(self.clock) {
                ended = Ended::Unknown;
            }
        }
        ended
    }

    /// Watches the gate of a process that may get grants. Returns its number.
    pub(super) fn add_gate(&self, gate: WatchedGate<B>) -> u64 {
        let mut places = lock(&self.places);
        places.last_gate += 1;
        let number = places.last_gate;
        drop(places);
        lock(&self.gates).push((number, gate));
        number
    }

    /// Ends watching a gate, of a process that cannot access this one's memory any more.
    pub(super) fn remove_gate(&self, number: u64) {
        lock(&self.gates).retain(|(other, _)| *other != number);
    }
}

/// A gate as the owner of the memory sees it.
pub(crate) struct WatchedGate<B = Pages> {
    bytes: B,
    offset: usize,
}

impl<B: SharedBytes> WatchedGate<B> {
    pub(super) fn new(bytes: B, offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// Waits for the access in progress, if there is one. Returns false if it had to be abandoned.
    fn wait(&self, clock: ReadClock) -> bool {
        let seen = self.bytes.load(self.offset);
        if seen.is_multiple_of(2) {
            return true;
        }
        let end = clock() + PATIENCE;
        while clock() < end {
            pause();
            if self.bytes.load(self.offset) != seen {
                return true;
            }
        }
        // If it has changed after all, the access has ended.
        !self.bytes.exchange(self.offset, seen, ABANDONED)
    }
}

/// A gate as the accessing process uses it, one thread at a time.
pub(crate) struct AccessGate<B = Pages> {
    bytes: B,
    offset: usize,
    /// The even value at which it was left.
    value: AtomicU64,
}

impl<B: SharedBytes> AccessGate<B> {
    pub(super) fn new(bytes: B, offset: usize) -> Self {
        Self { bytes, offset, value: AtomicU64::new(0) }
    }

    /// Enters the gate. Grants that hold afterwards are not revoked before [`AccessGate::leave`].
    #[inline]
    pub(super) fn enter(&self) {
        self.bytes.store(self.offset, self.value.load(Ordering::Relaxed) + 1);
        self.bytes.fence();
    }

    /// Leaves the gate. Returns false if the owner has abandoned it: nothing is known about the effect of the access.
    /// Later ones are not concerned, because the owner has revoked what this one had.
    #[inline]
    pub(super) fn leave(&self) -> bool {
        let value = self.value.load(Ordering::Relaxed);
        self.value.store(value + 2, Ordering::Relaxed);
        self.bytes.exchange(self.offset, value + 1, value + 2)
    }
}

/// The table of another process.
pub(super) struct PeerGrants<B = Pages>(B);

impl<B: SharedBytes> PeerGrants<B> {
    pub(super) fn new(words: B) -> Self {
        Self(words)
    }

    /// Whether a grant holds.
    #[inline]
    pub(super) fn holds(&self, grant: Grant) -> bool {
        grant.offset().is_some_and(|offset| grant.number != 0 && self.0.load(offset) == grant.number)
    }
}

#[cfg(loom)]
mod loom_tests;
#[cfg(all(test, not(loom)))]
pub(super) mod tests;
