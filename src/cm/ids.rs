//! Communication ids of a process: the upper bits say whose they are, the lower ones are random.

use std::collections::{BTreeSet, VecDeque};

use crate::wire::mad::CommunicationId;

/// Number of random bits of an id. The bits above them are the block of the process, by which datagrams find it.
const RANDOM_BITS: u32 = 20;
/// Number of bits of a block.
const BLOCK_BITS: u32 = 32 - RANDOM_BITS;
/// Number of released ids that are not drawn again: datagrams with them may still be in flight, and a peer that missed
/// the end of the old connection takes a new one with its id for a repetition.
const QUARANTINE: usize = 1 << 17;
/// Maximum number of draws of a free id. About a seventh of the ids are in use or in quarantine, so that all draws miss
/// practically never.
const MOST_DRAWS: u32 = 100;

/// The ids in use, and those that were in use recently.
pub(super) struct Ids {
    block: u32,
    used: BTreeSet<CommunicationId>,
    /// Released ids, oldest first. They are in `used` as well.
    released: VecDeque<CommunicationId>,
}

impl Ids {
    /// Creates the ids of a block, of which the low 12 bits count.
    pub(super) fn new(block: u32) -> Self {
        Self { block: block & ((1 << BLOCK_BITS) - 1), used: BTreeSet::new(), released: VecDeque::new() }
    }

    /// Draws an id that is not in use, was not recently, and is not 0. Returns `None` if none is found.
    pub(super) fn draw(&mut self, random: &mut dyn FnMut() -> u32) -> Option<CommunicationId> {
        for _ in 0..MOST_DRAWS {
            let id = CommunicationId(self.block << RANDOM_BITS | random() >> BLOCK_BITS);
            if id != CommunicationId::NONE && self.used.insert(id) {
                return Some(id);
            }
        }
        None
    }

    /// Releases an id. Ids of other blocks are ignored.
    pub(super) fn release(&mut self, id: CommunicationId) {
        if !self.used.contains(&id) {
            return;
        }
        self.released.push_back(id);
        if self.released.len() > QUARANTINE
            && let Some(oldest) = self.released.pop_front()
        {
            self.used.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_block_and_are_not_reused_soon() {
        let mut ids = Ids::new(0xfab);
        let mut state = 0_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        let mut seen = BTreeSet::new();
        for _ in 0..QUARANTINE {
            let id = ids.draw(&mut random).unwrap();
            assert_eq!(id.0 >> RANDOM_BITS, 0xfab);
            assert!(seen.insert(id), "{id} was in use recently");
            ids.release(id);
        }
        (0..1_000).for_each(|_| {
            let id = ids.draw(&mut random).unwrap();
            ids.release(id);
        });
        assert_eq!((ids.used.len(), ids.released.len()), (QUARANTINE, QUARANTINE));
    }

    #[test]
    fn the_id_zero_is_not_drawn() {
        let mut ids = Ids::new(0);
        assert_eq!(ids.draw(&mut || 0), None);
        let mut numbers = [0, 1 << BLOCK_BITS].into_iter();
        assert_eq!(ids.draw(&mut || numbers.next().unwrap()), Some(CommunicationId(1)));
        assert_eq!(ids.draw(&mut || 1 << BLOCK_BITS), None, "it is in use");
        ids.release(CommunicationId(7));
        assert!(ids.released.is_empty(), "it was not drawn");
    }
}
