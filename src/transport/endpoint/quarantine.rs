//! Numbers of queue pairs that were destroyed lately. They are not given again for a while: packets of the old queue
//! pair's peer may still be under way, and a sender may have learned the number.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use super::QpnHasher;
use crate::types::Qpn;

/// Numbers that are kept at most.
const MOST: usize = 8_192;

/// The latest numbers, oldest first.
#[derive(Default)]
pub(in crate::transport) struct Quarantine {
    order: VecDeque<Qpn>,
    numbers: HashSet<Qpn, BuildHasherDefault<QpnHasher>>,
}

impl Quarantine {
    pub(in crate::transport) fn contains(&self, qpn: Qpn) -> bool {
        self.numbers.contains(&qpn)
    }

    /// Adds a number. At most half of the `spare` ones that can never be in use at a time stay: among the others chance
    /// finds a free one.
    pub(in crate::transport) fn add(&mut self, qpn: Qpn, spare: usize) {
        self.numbers.insert(qpn);
        self.order.push_back(qpn);
        while self.order.len() > MOST.min(spare / 2) {
            let Some(oldest) = self.order.pop_front() else { return };
            self.numbers.remove(&oldest);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_after_as_many_others() {
        let mut quarantine = Quarantine::default();
        (1..=20).for_each(|number| quarantine.add(Qpn::new(number), 20));
        assert!((1..=10).all(|number| !quarantine.contains(Qpn::new(number))));
        assert!((11..=20).all(|number| quarantine.contains(Qpn::new(number))));
        quarantine.add(Qpn::new(21), 0);
        assert!((1..=21).all(|number| !quarantine.contains(Qpn::new(number))));
        (1..=20_000).for_each(|number| quarantine.add(Qpn::new(number), 1_000_000));
        assert_eq!((quarantine.order.len(), quarantine.numbers.len()), (MOST, MOST));
    }
}
