//! Which objects depend on which: what is used cannot be destroyed.

use std::sync::Arc;

use crate::error::{BUSY, Result};

/// Users of an object.
#[derive(Default)]
pub(crate) struct Users(Arc<()>);

/// Being used by another object; ends when it is dropped.
pub(crate) struct Use(#[expect(dead_code, reason = "it counts by being there")] Arc<()>);

impl Users {
    /// One more.
    pub(crate) fn begin(&self) -> Use {
        Use(Arc::clone(&self.0))
    }

    /// `EBUSY` while there are any.
    pub(crate) fn check_none(&self) -> Result<()> {
        if Arc::strong_count(&self.0) > 1 { Err(BUSY) } else { Ok(()) }
    }
}
