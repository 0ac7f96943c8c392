//! Bounds of the loops that run under the shard's lock. Each loop states why its bound holds; debug builds check it,
//! because an endless loop hangs the whole device.

const IS_CHECKED: bool = cfg!(debug_assertions);

/// Counts the rounds of a loop. Costs nothing in builds without the check.
pub(super) struct LoopBound {
    name: &'static str,
    rounds_left: usize,
}

impl LoopBound {
    /// Creates the bound of a loop that takes at most `rounds` rounds.
    #[inline]
    pub(super) fn new(name: &'static str, rounds: usize) -> Self {
        Self { name, rounds_left: if IS_CHECKED { rounds } else { 0 } }
    }

    /// Counts a round.
    ///
    /// # Panics
    /// If the bound is exceeded, in builds with the check.
    #[inline]
    pub(super) fn step(&mut self) {
        if IS_CHECKED {
            let left = self.rounds_left.checked_sub(1);
            self.rounds_left = left.unwrap_or_else(|| panic!("the loop \"{}\" exceeds its bound", self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the loop \"test\" exceeds its bound")]
    fn an_exceeded_bound_is_detected() {
        let mut bound = LoopBound::new("test", 3);
        (0..4).for_each(|_| bound.step());
    }
}
