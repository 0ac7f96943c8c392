//! Region keys: unpredictable, unique among live regions, and not reused soon.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::RegisterError;

/// Number of the most recently freed indices that are not reused, so that a request still in flight with the key of a
/// freed region does not reach another region.
pub(super) const QUARANTINE: usize = 65_536;
/// Most regions that a table holds: half the indices. Windows use up to a quarter, so a free index is found in about
/// four tries at most.
pub(super) const MAX_REGIONS: usize = 1 << 23;
/// Most attempts to find a free index. With at most about three quarters of them taken, 256 failures in a row do not
/// happen in practice.
const MAX_TRIES: usize = 256;
/// Randomness is fetched in blocks: a system call for each key would cost more than the rest of a registration.
const BLOCK_BYTES: usize = 1024;

/// The index in the upper 24 bits of a key. The lower 8 are a tag that must match too.
pub(super) const fn index_of(key: u32) -> u32 {
    key >> 8
}

/// Generates keys, and quarantines the indices of revoked ones.
pub(super) struct KeyGenerator {
    block: [u8; BLOCK_BYTES],
    used: usize,
    retired: VecDeque<u32>,
    retired_set: HashSet<u32, BuildIndexHasher>,
}

impl KeyGenerator {
    pub(super) fn new() -> Self {
        Self { block: [0; BLOCK_BYTES], used: BLOCK_BYTES, retired: VecDeque::new(), retired_set: HashSet::default() }
    }

    /// Returns a random key whose index is neither 0, nor live, nor in quarantine.
    pub(super) fn next(&mut self, is_live: impl Fn(u32) -> bool) -> Result<u32, RegisterError> {
        for _ in 0..MAX_TRIES {
            let key = self.random_u32()?;
            let index = index_of(key);
            if index != 0 && !is_live(index) && !self.retired_set.contains(&index) {
                return Ok(key);
            }
        }
        Err(RegisterError::NoRandomness)
    }

    /// Quarantines the index of a revoked key.
    pub(super) fn retire(&mut self, key: u32) {
        if self.retired.len() == QUARANTINE
            && let Some(oldest) = self.retired.pop_front()
        {
            self.retired_set.remove(&oldest);
        }
        self.retired.push_back(index_of(key));
        self.retired_set.insert(index_of(key));
    }

    fn random_u32(&mut self) -> Result<u32, RegisterError> {
        if self.used == BLOCK_BYTES {
            getrandom::fill(&mut self.block).map_err(|_| RegisterError::NoRandomness)?;
            self.used = 0;
        }
        let taken = &mut self.block[self.used..self.used + 4];
        let value = u32::from_ne_bytes(taken.try_into().expect("four bytes"));
        // Keys are secret from other peers; leave no copy behind.
        taken.fill(0);
        self.used += 4;
        Ok(value)
    }
}

/// Hasher for region indices. They are already random and never chosen by a peer; one multiplication carries them into
/// the upper bits, from which the hash map takes its tags.
#[derive(Default)]
pub(super) struct IndexHasher(u64);

pub(super) type BuildIndexHasher = BuildHasherDefault<IndexHasher>;

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32((self.0 as u32).rotate_left(8) ^ u32::from(byte));
        }
    }

    fn write_u32(&mut self, index: u32) {
        self.0 = u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_freed_index_stays_away_for_the_whole_quarantine() {
        let mut keys = KeyGenerator::new();
        let first = keys.next(|_| false).unwrap();
        keys.retire(first);
        for round in 0..QUARANTINE {
            assert!(keys.retired_set.contains(&index_of(first)), "round {round}");
            let next = keys.next(|_| false).unwrap();
            assert_ne!(index_of(next), index_of(first));
            keys.retire(next);
        }
        assert!(!keys.retired_set.contains(&index_of(first)));
        assert_eq!(keys.retired.len(), QUARANTINE);
        assert_eq!(keys.retired_set.len(), QUARANTINE);
    }

    #[test]
    fn live_indices_are_avoided_and_the_search_ends() {
        let mut keys = KeyGenerator::new();
        for _ in 0..1000 {
            let key = keys.next(|index| index % 2 == 0).unwrap();
            assert_eq!(index_of(key) % 2, 1);
        }
        assert_eq!(keys.next(|_| true), Err(RegisterError::NoRandomness));
    }

    #[test]
    fn keys_spread_over_indices_and_tags() {
        let mut keys = KeyGenerator::new();
        let keys: Vec<u32> = (0..4096).map(|_| keys.next(|_| false).unwrap()).collect();
        let tags: HashSet<u8> = keys.iter().map(|&key| key as u8).collect();
        let tops: HashSet<u32> = keys.iter().map(|&key| key >> 24).collect();
        // With 4,096 draws, one of the 256 values is missing with a probability of 3e-5 in each set; ten missing values
        // do not happen in practice.
        assert!(tags.len() > 246, "{} tags", tags.len());
        assert!(tops.len() > 246, "{} index bytes", tops.len());
    }
}
