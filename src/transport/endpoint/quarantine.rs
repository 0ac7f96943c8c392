//! Numbers of recently destroyed queue pairs. They are not reused for a while: packets of the old queue pair's peer may
//! still be in flight, and a sender may have learned the number.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use super::QpnHasher;
use crate::types::Qpn;

/// Maximum number of numbers kept.
const MOST: usize = 8_192;

/// The most recently destroyed numbers, oldest first.
#[derive(Default)]
pub(in crate::transport) struct Quarantine {
    order: VecDeque<Qpn>,
    numbers: HashSet<Qpn, BuildHasherDefault<QpnHasher>>,
}

impl Quarantine {
    pub(in crate::transport) fn contains(&self, qpn: Qpn) -> bool {
        self.numbers.contains(&qpn)
    }

    /// Adds a number. At most half of the `spare` numbers, those beyond the limit of queue pairs, stay in quarantine,
    /// so that a random draw soon finds a free number.
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
    fn numbers_are_reusable_after_as_many_others() {
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
