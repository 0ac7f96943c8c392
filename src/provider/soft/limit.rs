//! Counting objects against the device's limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) use crate::provider::common::refusal::check_range;
use crate::provider::{Error, ErrorKind, Result};

/// The number of objects of a kind, and its limit. A clone counts the same objects.
#[derive(Clone)]
pub(super) struct Limit {
    used: Arc<AtomicU32>,
    max: u32,
    attribute: &'static str,
}

/// One object's share of a [`Limit`], returned on drop.
pub(super) struct Share {
    used: Arc<AtomicU32>,
}

impl Limit {
    /// Creates a limit; `attribute` is the device attribute that reports it.
    pub(super) fn new(attribute: &'static str, max: u32) -> Self {
        Self { used: Arc::default(), max, attribute }
    }

    /// Takes a share for one more object, which `verb` creates.
    pub(super) fn take(&self, verb: &'static str) -> Result<Share> {
        let more = |used: u32| (used < self.max).then_some(used + 1);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Share { used: Arc::clone(&self.used) }),
            Err(used) => {
                let message = format!("{} is {}, and {used} are in use", self.attribute, self.max);
                Err(Error::new(verb, ErrorKind::ResourceLimit, message))
            }
        }
    }

    /// Returns the number of objects in use.
    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shares_are_limited_and_returned() {
        let limit = Limit::new("max_cq", 2);
        let (first, _second) = (limit.take("create_cq").unwrap(), limit.take("create_cq").unwrap());
        let error = limit.take("create_cq").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceLimit);
        assert_eq!(error.to_string(), "create_cq: max_cq is 2, and 2 are in use");
        drop(first);
        assert!(limit.take("create_cq").is_ok());
    }
}
