//! Leasing blocks of queue pair numbers.
//!
//! A block is 4,096 numbers with the same top 12 bits. Each is owned by one shard of this process; numbers inside are
//! random. Blocks are random too, so that two processes, or two lives of one, rarely meet.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Blocks that nobody may lease: the first has the reserved numbers 0 and 1, the last the multicast number.
const RESERVED: [u32; 2] = [0, 0xfff];
const BLOCKS: usize = 4_096;

/// Blocks in use by this process.
static LEASED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Blocks of queue pair numbers, given back when dropped.
#[derive(Debug)]
pub(crate) struct QpnBlocks {
    blocks: Vec<u32>,
}

impl QpnBlocks {
    /// Leases `count` random blocks.
    ///
    /// # Errors
    ///
    /// If so many are not left, or there is no randomness.
    pub(crate) fn lease(count: usize) -> io::Result<Self> {
        let mut leased = LEASED.lock().unwrap_or_else(PoisonError::into_inner);
        if leased.len() + count > BLOCKS - RESERVED.len() {
            let message = format!("all {BLOCKS} blocks of queue pair numbers are in use by this process");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
        }
        let start = (getrandom::u32().map_err(io::Error::other)? % BLOCKS as u32) as usize;
        let step = getrandom::u32().map_err(io::Error::other)? as usize | 1;
        // An odd step visits all 4,096 before it repeats, so enough free ones are found.
        let candidates = (0..BLOCKS).map(|turn| (start.wrapping_add(turn.wrapping_mul(step)) % BLOCKS) as u32);
        let free = candidates.filter(|block| !RESERVED.contains(block) && !leased.contains(block));
        let blocks: Vec<u32> = free.take(count).collect();
        leased.extend(&blocks);
        Ok(Self { blocks })
    }

    /// The blocks.
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

impl Drop for QpnBlocks {
    fn drop(&mut self) {
        let mut leased = LEASED.lock().unwrap_or_else(PoisonError::into_inner);
        for block in &self.blocks {
            leased.remove(block);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_distinct_and_come_back() {
        let (first, second) = (QpnBlocks::lease(5).unwrap(), QpnBlocks::lease(600).unwrap());
        let mut all: Vec<u32> = first.blocks().iter().chain(second.blocks()).copied().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 605);
        assert!(all.iter().all(|block| (1..0xfff).contains(block)));
        assert!(QpnBlocks::lease(BLOCKS - 605).is_err());
        drop(second);
        drop(first);
        assert!(QpnBlocks::lease(605).is_ok());
    }
}
