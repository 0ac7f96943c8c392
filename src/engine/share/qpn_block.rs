//! Leases of QPN blocks.
//!
//! A block is 4,096 numbers with the same top 12 bits. Each is owned by one shard of one process, which the registry
//! ensures among all processes of a user; numbers inside are random. Blocks are random too, so that successive runs of
//! a program rarely share one, and so that a sender that knows one number of a process has to guess the blocks of its
//! others.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::registry::Registry;
use crate::sys::{Generation, PerGeneration};

/// Blocks that cannot be leased: the first has the reserved numbers 0 and 1, the last the multicast number.
const RESERVED: [u32; 2] = [0, 0xfff];
const BLOCKS: usize = 4_096;

/// Blocks in use by this process.
static LEASED: PerGeneration<Mutex<BTreeSet<u32>>> = PerGeneration::new();

fn leased() -> Option<MutexGuard<'static, BTreeSet<u32>>> {
    Some(LEASED.get()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Blocks of queue pair numbers, given back when dropped.
#[derive(Debug)]
pub(crate) struct QpnBlocks {
    blocks: Vec<u32>,
    generation: Generation,
}

impl QpnBlocks {
    /// Leases `most` random blocks. While more than an eighth of the blocks that it tries are in use, it stops at
    /// `least`: then the blocks are enough for several times as many processes, and the steering program of a full
    /// group has room for all of them on older kernels, too.
    ///
    /// # Errors
    ///
    /// If fewer than `least` are left, or no random number is available.
    pub(crate) fn lease(least: usize, most: usize) -> io::Result<Self> {
        let mut leased = leased().ok_or_else(|| io::Error::other("too many generations of forks"))?;
        let registry = Registry::of_process();
        let start = (getrandom::u32().map_err(io::Error::other)? % BLOCKS as u32) as usize;
        let step = getrandom::u32().map_err(io::Error::other)? as usize | 1;
        // An odd step visits all 4,096 before it repeats, so enough free ones are found.
        let candidates = (0..BLOCKS).map(|turn| (start.wrapping_add(turn.wrapping_mul(step)) % BLOCKS) as u32);
        // Without a registry, or if it cannot be queried, only the random choice keeps the blocks of processes apart.
        let is_free_elsewhere =
            |block: u32| registry.is_none_or(|registry| registry.lease_block(block).unwrap_or(true));
        let (mut blocks, mut in_use) = (Vec::new(), 0);
        for block in candidates.filter(|block| !RESERVED.contains(block)) {
            let is_scarce = in_use * 8 > in_use + blocks.len();
            if blocks.len() >= if is_scarce { least } else { most } {
                break;
            }
            if !leased.contains(&block) && is_free_elsewhere(block) {
                blocks.push(block);
            } else {
                in_use += 1;
            }
        }
        if blocks.len() < least {
            release(&blocks, &mut leased);
            let message = format!("all {BLOCKS} blocks of queue pair numbers are in use by this user's processes");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
        }
        leased.extend(&blocks);
        Ok(Self { blocks, generation: Generation::now() })
    }

    /// Returns one of the blocks, always the same: packets for all of them come to the same shard.
    pub(crate) fn first(&self) -> u32 {
        self.blocks.first().copied().unwrap_or_default()
    }

    /// Returns the blocks.
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

impl Drop for QpnBlocks {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        if let Some(mut leased) = leased() {
            release(&self.blocks, &mut leased);
        }
    }
}

/// Releases blocks while this process's set is locked: the registry's locks do not exclude other threads of the
/// process, so a thread that leased a block before its unlock would lose the lock.
fn release(blocks: &[u32], leased: &mut BTreeSet<u32>) {
    for block in blocks {
        leased.remove(block);
        if let Some(registry) = Registry::of_process() {
            registry.release_block(*block);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn leased_blocks_are_distinct_and_can_be_leased_again() {
        let exactly = |count| QpnBlocks::lease(count, count);
        let (first, second) = (exactly(5).unwrap(), exactly(600).unwrap());
        let mut all: Vec<u32> = first.blocks().iter().chain(second.blocks()).copied().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 605);
        assert!(all.iter().all(|block| (1..0xfff).contains(block)));
        assert!(exactly(BLOCKS - 605).is_err());
        drop(second);
        drop(first);
        assert!(exactly(605).is_ok());
    }

    #[test]
    fn failed_lease_releases_no_block_of_another_thread() {
        let tries_more_than_it_gets = || QpnBlocks::lease(BLOCKS, 2_000).is_err();
        std::thread::scope(|threads| {
            let failing = threads.spawn(|| (0..100).all(|_| tries_more_than_it_gets()));
            while !failing.is_finished() {
                let lease = QpnBlocks::lease(1, 1).unwrap();
                // Longer than the end of a failed lease takes.
                std::thread::sleep(Duration::from_millis(1));
                assert!(leased().unwrap().contains(&lease.blocks()[0]), "a block could be leased twice");
            }
            assert!(failing.join().unwrap());
        });
    }

    #[test]
    fn scarce_blocks_are_left_to_others() {
        // A lease that happens to try many free blocks first takes a few more. With an unlucky step of the large lease,
        // all leases of a round do.
        let round = |_| -> usize {
            // Other tests lease some, too.
            let _many = QpnBlocks::lease(2_500, 2_500).unwrap();
            (0..50).map(|_| QpnBlocks::lease(5, 15).unwrap().blocks().len()).sum()
        };
        let taken: Vec<usize> = (0..5).map(round).collect();
        assert!(taken.iter().sum::<usize>() < 5 * 50 * 10, "{taken:?}");
    }
}
