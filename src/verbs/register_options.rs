//! Options for registering memory.

use super::AccessFlags;
use crate::memory;

/// Options for registering memory with [`ProtectionDomain::reg_mr_with`](super::ProtectionDomain::reg_mr_with).
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct RegisterOptions {
    iova: Option<u64>,
    invalidatable: bool,
}

impl RegisterOptions {
    /// Sets the address that requests use for the region's first byte: 0 makes remote addresses offsets. By default, it
    /// is the host address, or for an adapter's dma-buf the offset; with [`AccessFlags::ZERO_BASED`], it is always 0.
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Lets a peer's SEND with invalidate, and local requests, invalidate the key.
    pub fn invalidatable(mut self) -> Self {
        self.invalidatable = true;
        self
    }

    /// Returns the provider's form of these options for a region with these access flags.
    pub(super) fn lower(&self, access: AccessFlags) -> memory::RegionInit {
        memory::RegionInit { access, iova: self.iova, invalidatable: self.invalidatable }
    }
}
