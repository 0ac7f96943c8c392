//! Deadlines of many objects, at most one for each.

use std::collections::{BTreeMap, BTreeSet};

use super::handle::Owner;
use crate::types::Time;

/// Deadlines, ordered by time. All operations take logarithmic time.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Time, Owner)>,
    by_owner: BTreeMap<Owner, Time>,
}

impl Deadlines {
    /// Sets or clears an object's deadline.
    pub(super) fn set(&mut self, owner: Owner, deadline: Option<Time>) {
        let before = match deadline {
            Some(time) => self.by_owner.insert(owner, time),
            None => self.by_owner.remove(&owner),
        };
        if let Some(time) = before {
            self.by_time.remove(&(time, owner));
        }
        if let Some(time) = deadline {
            self.by_time.insert((time, owner));
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(time, _)| *time)
    }

    /// Takes an object whose deadline is not after `now`.
    pub(super) fn pop_expired(&mut self, now: Time) -> Option<Owner> {
        let (_, owner) = self.by_time.first().copied().filter(|(time, _)| *time <= now)?;
        self.set(owner, None);
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConnectionHandle;
    use super::*;

    use proptest::prelude::*;

    fn steps() -> impl Strategy<Value = Vec<(u64, Option<u64>)>> {
        proptest::collection::vec((0_u64..9, proptest::option::of(0_u64..50)), 1..200)
    }

    proptest! {
        #[test]
        fn the_earliest_deadline_is_first(steps in steps()) {
            let (mut deadlines, mut model) = (Deadlines::default(), BTreeMap::new());
            for (number, time) in steps {
                let owner = Owner::Connection(ConnectionHandle(number));
                deadlines.set(owner, time.map(Time::from_nanos));
                match time {
                    Some(time) => model.insert(number, time),
                    None => model.remove(&number),
                };
                prop_assert_eq!(deadlines.next().map(Time::as_nanos), model.values().min().copied());
            }
            let mut last = 0;
            while let Some(Owner::Connection(ConnectionHandle(number))) = deadlines.pop_expired(Time::NEVER) {
                let time = model.remove(&number).expect("a deadline that the model has");
                prop_assert!(time >= last);
                last = time;
            }
            prop_assert!(model.is_empty() && deadlines.by_time.is_empty() && deadlines.by_owner.is_empty());
        }
    }
}
