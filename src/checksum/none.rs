//! The fallback for processors without an implementation here, and for builds under loom, Miri or the sanitizer, which
//! must see the accesses.

use super::{Faulted, Sum};

pub(super) fn update(_: u32, _: &[u8]) -> Option<u32> {
    None
}

pub(super) fn after(_: &Sum, _: u32, _: &[u8]) -> u32 {
    unreachable!("nothing is summed here")
}

/// # Safety
/// There are no requirements: nothing is accessed.
pub(super) unsafe fn copy<const MAY_FAULT: bool>(_: *const u8, _: &mut [u8], _: usize) -> Result<Option<Sum>, Faulted> {
    Ok(None)
}
