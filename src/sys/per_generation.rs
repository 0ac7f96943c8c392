//! State that the threads of one process share, and that a forked child begins with afresh.
//!
//! A child inherits copies of the parent's objects, also of locks that a thread of the parent held at the time and that
//! nothing in the child releases. So each generation has its own state and never touches another one's.

use std::sync::OnceLock;

use super::fork::{Generation, watch_forks};

/// Upper limit of the numbers of generations that can use the engine: forks of forks.
const MAX_GENERATIONS: usize = 64;

/// One value for each generation of the process, made when it is first used.
pub(crate) struct PerGeneration<T>([OnceLock<T>; MAX_GENERATIONS]);

impl<T: Default> PerGeneration<T> {
    /// No generation has a value yet.
    pub(crate) const fn new() -> Self {
        Self([const { OnceLock::new() }; MAX_GENERATIONS])
    }

    /// Returns this generation's value, or `None` after more forks of forks than are counted.
    pub(crate) fn get(&self) -> Option<&T> {
        // Before anything is locked: a child that is forked meanwhile begins with values of its own.
        watch_forks();
        self.0.get(Generation::now().number()).map(|value| value.get_or_init(T::default))
    }
}
