//! Memory regions.

use std::sync::Arc;

use super::errors;
use super::protection_domain::Domain;
use crate::memory::Region;
use crate::provider::{MemoryRegion, Result};
use crate::types::{Lkey, Rkey};

/// A memory region of a software device.
pub(super) struct SoftMemoryRegion {
    domain: Arc<Domain>,
    region: Arc<Region>,
}

impl SoftMemoryRegion {
    pub(super) fn new(domain: Arc<Domain>, region: Arc<Region>) -> Self {
        Self { domain, region }
    }
}

impl MemoryRegion for SoftMemoryRegion {
    fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn lkey(&self) -> Lkey {
        self.region.lkey()
    }

    fn rkey(&self) -> Rkey {
        self.region.rkey()
    }

    /// Waits for the engine's passes in progress, because each uses the view of the table that it began with.
    fn dereg(&self) -> Result<()> {
        self.domain.device.check_process("dereg_mr")?;
        let done = self.domain.device.memory.deregister_unbound(&self.region);
        done.map(|_| ()).map_err(|error| errors::from_register("dereg_mr", &error))
    }

    fn revoke(&self) -> Result<()> {
        self.domain.device.check_process("dereg_mr")?;
        self.domain.device.memory.deregister(&self.region);
        Ok(())
    }
}

impl Drop for SoftMemoryRegion {
    fn drop(&mut self) {
        // Nothing to do in a forked process: no engine reaches this copy.
        if self.domain.device.check_process("dereg_mr").is_ok() {
            self.domain.device.memory.discard(&self.region);
        }
    }
}
