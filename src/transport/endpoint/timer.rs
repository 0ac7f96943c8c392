//! Deadlines of many queue pairs: a binary heap with the position of each one's entry.
//!
//! A queue pair has at most one entry, so the heap never outgrows the queue pairs, and changing a deadline costs no
//! allocation once the tables have grown.

use crate::types::Time;

const ABSENT: u32 = u32::MAX;

/// The deadline of each owner (a small dense number), and the earliest of all.
#[derive(Default)]
pub(in crate::transport) struct Timers {
    heap: Vec<(Time, u32)>,
    /// Position of each owner's entry in the heap.
    positions: Vec<u32>,
}

impl Timers {
    /// Sets or clears an owner's deadline.
    pub(in crate::transport) fn set(&mut self, owner: u32, deadline: Option<Time>) {
        if self.positions.len() <= owner as usize {
            self.positions.resize(owner as usize + 1, ABSENT);
        }
        let position = self.positions[owner as usize];
        match (position, deadline) {
            (ABSENT, None) => {}
            (ABSENT, Some(time)) => {
                self.heap.push((time, owner));
                self.sift_up(self.heap.len() - 1);
            }
            (position, None) => self.remove(position as usize),
            (position, Some(time)) => {
                let position = position as usize;
                if self.heap[position].0 != time {
                    self.heap[position].0 = time;
                    if self.heap.len() > 1 {
                        self.sift(position);
                    }
                }
            }
        }
    }

    /// Returns the earliest deadline.
    pub(in crate::transport) fn next(&self) -> Option<Time> {
        self.heap.first().map(|entry| entry.0)
    }

    /// Takes an owner whose deadline is not after `now`.
    pub(in crate::transport) fn pop_expired(&mut self, now: Time) -> Option<u32> {
        let (time, owner) = *self.heap.first()?;
        if time > now {
            return None;
        }
        self.remove(0);
        Some(owner)
    }

    fn remove(&mut self, position: usize) {
        self.positions[self.heap[position].1 as usize] = ABSENT;
        self.heap.swap_remove(position);
        if position < self.heap.len() {
            self.sift(position);
        }
    }

    fn sift(&mut self, position: usize) {
        let position = self.sift_up(position);
        self.sift_down(position);
    }

    fn sift_up(&mut self, mut position: usize) -> usize {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.put(position, self.heap[parent]);
            position = parent;
        }
        self.put(position, entry);
        position
    }

    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let mut child = 2 * position + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.heap[child + 1].0 < self.heap[child].0 {
                child += 1;
            }
            if entry.0 <= self.heap[child].0 {
                break;
            }
            self.put(position, self.heap[child]);
            position = child;
        }
        self.put(position, entry);
    }

    fn put(&mut self, position: usize, entry: (Time, u32)) {
        self.heap[position] = entry;
        self.positions[entry.1 as usize] = position as u32;
    }
}

/// The deadline heap, for benches.
#[cfg(feature = "sim")]
#[derive(Default)]
pub struct Deadlines(Timers);

#[cfg(feature = "sim")]
impl Deadlines {
    /// Sets or clears an owner's deadline.
    #[inline]
    pub fn set(&mut self, owner: u32, deadline: Option<Time>) {
        self.0.set(owner, deadline);
    }

    /// Takes an owner whose deadline is not after `now`.
    #[inline]
    pub fn pop_expired(&mut self, now: Time) -> Option<u32> {
        self.0.pop_expired(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    fn steps() -> impl Strategy<Value = Vec<(u32, Option<u64>)>> {
        proptest::collection::vec((0_u32..20, proptest::option::of(0_u64..50)), 1..300)
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(steps in steps()) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (owner, deadline) in steps {
                timers.set(owner, deadline.map(Time::from_nanos));
                match deadline {
                    Some(time) => model.insert(owner, time),
                    None => model.remove(&owner),
                };
                let earliest = model.values().min().copied();
                prop_assert_eq!(timers.next().map(Time::as_nanos), earliest);
            }
            while let Some(owner) = timers.pop_expired(Time::NEVER) {
                let time = model.remove(&owner).expect("an owner that the model knows");
                prop_assert!(model.values().all(|later| *later >= time));
            }
            prop_assert!(model.is_empty());
        }
    }
}
