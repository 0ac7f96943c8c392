//! Accesses to memory whose pages can vanish: direct where the fault handler would end those that hit a missing page,
//! and by the kernel otherwise.

use super::{AccessError, direct, kernel, recovery};
use crate::checksum::Sum;

/// Bytes that the kernel copies at once between two ranges.
const COPIED_AT_ONCE: usize = 4_096;

/// Copies out; after an error, `out` may have been written in part.
///
/// # Safety
/// If the bytes from `source` on are mapped, reading them is allowed; they do not overlap `out`.
pub(super) unsafe fn read(source: *const u8, out: &mut [u8]) -> Result<(), AccessError> {
    match recovery::ready() {
        // SAFETY: the caller upholds the same contract.
        Some(recovery) => unsafe { recovery.read(source, out) },
        None => kernel::read(source, out),
    }
}

/// Copies out, and sums the bytes if that is nearly free; otherwise copies nothing and returns `None`.
///
/// # Safety
/// As [`read`].
pub(super) unsafe fn read_summed(source: *const u8, out: &mut [u8], ahead: usize) -> Result<Option<Sum>, AccessError> {
    match recovery::ready() {
        // SAFETY: the caller upholds the same contract.
        Some(recovery) => unsafe { recovery.read_summed(source, out, ahead) },
        None => Ok(None),
    }
}

/// Copies in: the body, then the tail in naturally aligned stores. After an error, some of it may have been placed.
///
/// # Safety
/// If the range from `target` on is mapped and writable, then writing `data.len()` bytes there is allowed.
pub(super) unsafe fn write(target: *mut u8, data: &[u8]) -> Result<(), AccessError> {
    match recovery::ready() {
        // SAFETY: the caller upholds the same contract; no reference to registered bytes exists, so `data` does not
        // overlap.
        Some(recovery) => unsafe { recovery.write(target, data) },
        // SAFETY: as above.
        None => unsafe { kernel::write(target, data) },
    }
}

/// Copies to other such memory: the body, then the tail in naturally aligned stores. After an error, some of it may
/// have been placed.
///
/// # Safety
/// As [`read`] and [`write`], except that the ranges may overlap.
pub(super) unsafe fn copy_across(target: *mut u8, source: *const u8, count: usize) -> Result<(), AccessError> {
    if let Some(recovery) = recovery::ready() {
        // SAFETY: the caller upholds the same contract.
        return unsafe { recovery.copy_across(target, source, count) };
    }
    let mut buffer = [0; COPIED_AT_ONCE];
    for done in (0..count).step_by(COPIED_AT_ONCE) {
        let part = &mut buffer[..COPIED_AT_ONCE.min(count - done)];
        kernel::read(source.wrapping_add(done), part)?;
        // SAFETY: as above; this is a part of the range.
        unsafe { kernel::write(target.wrapping_add(done), part) }?;
    }
    Ok(())
}

/// Replaces the word with `new` if it equals `current`; returns the previous value.
///
/// # Safety
/// The word is aligned, and if it is mapped and writable, then changing it is allowed.
pub(super) unsafe fn compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> Result<u64, AccessError> {
    if let Some(recovery) = recovery::ready() {
        // SAFETY: the caller upholds the same contract.
        return unsafe { recovery.compare_exchange_u64(word, current, new) };
    }
    kernel::make_writable(word)?;
    // SAFETY: as above, and the word can be written now.
    Ok(unsafe { direct::compare_exchange_u64(word, current, new) })
}

/// Adds to the word; returns the previous value.
///
/// # Safety
/// As [`compare_exchange_u64`].
pub(super) unsafe fn fetch_add_u64(word: *mut u64, add: u64) -> Result<u64, AccessError> {
    if let Some(recovery) = recovery::ready() {
        // SAFETY: the caller upholds the same contract.
        return unsafe { recovery.fetch_add_u64(word, add) };
    }
    kernel::make_writable(word)?;
    // SAFETY: as above, and the word can be written now.
    Ok(unsafe { direct::fetch_add_u64(word, add) })
}

/// Stores the word in place with a single store, never by the kernel's copy, which may be torn.
///
/// # Safety
/// As [`compare_exchange_u64`].
pub(super) unsafe fn store_in_place_u64(word: *mut u64, value: u64) -> Result<(), AccessError> {
    if let Some(recovery) = recovery::ready() {
        // SAFETY: the caller upholds the same contract.
        return unsafe { recovery.store_release_u64(word, value) };
    }
    kernel::make_writable(word)?;
    // SAFETY: as above, and the word can be written now.
    unsafe { direct::store_release_u64(word, value) };
    Ok(())
}

macro_rules! words {
    ($($word:ty, $load:ident, $store:ident;)*) => {
        $(
            /// # Safety
            /// The word is aligned, and if it is mapped, reading it is allowed.
            pub(super) unsafe fn $load(word: *const $word) -> Result<$word, AccessError> {
                if let Some(recovery) = recovery::ready() {
                    // SAFETY: the caller upholds the same contract.
                    return unsafe { recovery.$load(word) };
                }
                let mut bytes = [0; size_of::<$word>()];
                kernel::read(word.cast(), &mut bytes)?;
                Ok(<$word>::from_ne_bytes(bytes))
            }

            /// # Safety
            /// The word is aligned, and if it is mapped and writable, writing it is allowed.
            pub(super) unsafe fn $store(word: *mut $word, value: $word) -> Result<(), AccessError> {
                match recovery::ready() {
                    // SAFETY: the caller upholds the same contract.
                    Some(recovery) => unsafe { recovery.$store(word, value) },
                    // SAFETY: as above.
                    None => unsafe { kernel::write(word.cast(), &value.to_ne_bytes()) },
                }
            }
        )*
    };
}

words! {
    u8, load_acquire_u8, store_release_u8;
    u16, load_acquire_u16, store_release_u16;
    u32, load_acquire_u32, store_release_u32;
    u64, load_acquire_u64, store_release_u64;
}
