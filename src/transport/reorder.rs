//! Request packets that came before their turn, kept until the gap before them is filled.

use crate::types::Psn;

/// A bounded store of packets by sequence number. Its buffers are reused while a gap lasts. Empty, it holds no memory:
/// a queue pair may be idle for long, and there may be many of them.
#[derive(Default)]
pub(super) struct ReorderStore {
    entries: Vec<(Psn, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    limit: usize,
}

impl ReorderStore {
    /// A store for at most `limit` packets.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Keeps a packet. False if it is full; true as well if the packet was there already.
    pub(super) fn insert(&mut self, psn: Psn, packet: &[u8]) -> bool {
        if self.contains(psn) {
            return true;
        }
        if self.entries.len() >= self.limit {
            return false;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(packet);
        self.entries.push((psn, buffer));
        true
    }

    /// Whether the packet is there.
    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.entries.iter().any(|entry| entry.0 == psn)
    }

    /// Takes the packet out. Give the buffer back with [`ReorderStore::recycle`].
    pub(super) fn take(&mut self, psn: Psn) -> Option<Vec<u8>> {
        let place = self.entries.iter().position(|entry| entry.0 == psn)?;
        Some(self.entries.swap_remove(place).1)
    }

    /// Gives a buffer back for reuse.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.entries.is_empty() {
            return self.clear();
        }
        self.spare.push(buffer);
    }

    /// Packets kept.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets packets before `expected`: they were executed in another form.
    pub(super) fn forget_before(&mut self, expected: Psn) {
        let mut place = 0;
        while place < self.entries.len() {
            if self.entries[place].0.is_before(expected) {
                let (_, buffer) = self.entries.swap_remove(place);
                self.spare.push(buffer);
            } else {
                place += 1;
            }
        }
        if self.entries.is_empty() {
            self.clear();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    #[cfg(test)]
    fn holds_memory(&self) -> bool {
        self.entries.capacity() + self.spare.capacity() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_bounded_number_of_packets() {
        let mut store = ReorderStore::new(2);
        assert!(store.insert(Psn::new(5), b"five"));
        assert!(store.insert(Psn::new(5), b"again"));
        assert!(store.insert(Psn::new(7), b"seven"));
        assert!(!store.insert(Psn::new(8), b"eight"));
        assert_eq!(store.take(Psn::new(5)).as_deref(), Some(&b"five"[..]));
        assert_eq!(store.take(Psn::new(5)), None);
        store.forget_before(Psn::new(8));
        assert_eq!(store.len(), 0);
        assert!(!store.holds_memory());
    }

    #[test]
    fn holds_no_memory_when_the_gap_is_filled() {
        let mut store = ReorderStore::new(4);
        assert!(!store.holds_memory());
        assert!(store.insert(Psn::new(2), b"two") && store.insert(Psn::new(3), b"three"));
        for psn in [2, 3] {
            assert!(store.holds_memory());
            let packet = store.take(Psn::new(psn)).unwrap();
            store.recycle(packet);
        }
        assert!(!store.holds_memory());
    }
}
