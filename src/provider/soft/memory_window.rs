//! Memory windows.

use std::sync::Arc;

use super::device::MAX_MW;
use super::errors;
use super::protection_domain::Domain;
use crate::memory::Window;
use crate::provider::{MemoryWindow, Result};
use crate::types::{MemoryWindowType, Rkey};

/// A memory window of a software device.
pub(super) struct SoftMemoryWindow {
    domain: Arc<Domain>,
    window: Arc<Window>,
}

impl SoftMemoryWindow {
    pub(super) fn new(domain: Arc<Domain>, kind: MemoryWindowType) -> Result<Self> {
        domain.device.check_process("alloc_mw")?;
        let allocated = domain.device.memory.alloc_window(domain.id, kind, MAX_MW as usize);
        let window = allocated.map_err(|error| errors::from_register("alloc_mw", &error))?;
        Ok(Self { domain, window })
    }
}

impl MemoryWindow for SoftMemoryWindow {
    fn kind(&self) -> MemoryWindowType {
        self.window.kind()
    }

    fn rkey(&self) -> Rkey {
        self.window.rkey()
    }

    /// Waits for the engine's passes in progress, because each uses the view of the table that it began with.
    fn dealloc(&self) -> Result<()> {
        self.domain.device.check_process("dealloc_mw")?;
        self.domain.device.memory.dealloc_window(&self.window);
        Ok(())
    }
}

impl Drop for SoftMemoryWindow {
    fn drop(&mut self) {
        // Nothing to do in a forked process: no engine reaches this copy.
        let _ = self.dealloc();
    }
}
