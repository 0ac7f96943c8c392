//! Dependencies between objects: an object in use cannot be destroyed.

use std::sync::Arc;

use crate::error::{BUSY, Result};

/// The users of an object.
#[derive(Default)]
pub(crate) struct Users(Arc<()>);

/// One use of an object by another; ends on drop.
pub(crate) struct Use(#[expect(dead_code, reason = "it counts by being there")] Arc<()>);

impl Users {
    /// Begins a use.
    pub(crate) fn begin(&self) -> Use {
        Use(Arc::clone(&self.0))
    }

    /// Returns `EBUSY` while there are users.
    pub(crate) fn check_none(&self) -> Result<()> {
        if Arc::strong_count(&self.0) > 1 { Err(BUSY) } else { Ok(()) }
    }
}
