//! Numbers of a device's objects.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Allocates numbers from 1 on, each to one live object. After the largest it continues with the free ones from 1.
pub(super) struct Numbers {
    taken: Mutex<Taken>,
    largest: u32,
}

#[derive(Default)]
struct Taken {
    last: u32,
    numbers: HashSet<u32>,
}

impl Numbers {
    /// Allocates numbers up to `largest`, which must exceed the largest number of objects.
    pub(super) fn up_to(largest: u32) -> Self {
        Self { taken: Mutex::default(), largest }
    }

    /// Takes a free number. There are far more numbers than objects, so the search is short.
    pub(super) fn take(&self) -> u32 {
        let mut taken = self.lock();
        loop {
            taken.last = if taken.last >= self.largest { 1 } else { taken.last + 1 };
            let number = taken.last;
            if taken.numbers.insert(number) {
                return number;
            }
        }
    }

    pub(super) fn give_back(&self, number: u32) {
        self.lock().numbers.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_unique_after_wrapping() {
        for largest in [0x00ff_ffff, u32::MAX] {
            let numbers = Numbers::up_to(largest);
            assert_eq!([numbers.take(), numbers.take()], [1, 2]);
            numbers.lock().last = largest - 1;
            numbers.give_back(2);
            assert_eq!([numbers.take(), numbers.take(), numbers.take()], [largest, 2, 3]);
        }
    }
}
