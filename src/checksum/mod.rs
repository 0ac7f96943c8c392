//! CRC-32 (IEEE 802.3), the basis of the ICRC, as fast as the processor allows.
//!
//! Packets are short: for 1 KiB, a general implementation takes as long to reduce the last few words as to fold the
//! bytes themselves. This implementation is made for packets, and can copy bytes and sum them in one pass, which takes
//! hardly longer than copying alone. Processors without AVX-512 use `crc32fast`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
#[path = "avx512.rs"]
mod wide;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize)))))]
#[path = "none.rs"]
mod wide;

/// Returns the CRC of some bytes followed by `bytes`, where `crc` is the CRC of the former (0 if there are none).
#[inline]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    if let Some(crc) = wide::update(crc, bytes) {
        return crc;
    }
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// The contribution to a CRC of bytes that were summed while they were copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// A polynomial that is congruent to that of the bytes.
    words: [u64; 2],
    length: usize,
}

impl Sum {
    /// Most bytes in a head.
    pub const LONGEST_HEAD: usize = 64;

    /// Number of summed bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the CRC of some bytes, `head`, and the summed bytes, where `crc` is the CRC of the first.
    ///
    /// # Panics
    /// If `head` is empty, longer than [`Sum::LONGEST_HEAD`], or not a multiple of 4 bytes.
    #[inline]
    pub fn after(&self, crc: u32, head: &[u8]) -> u32 {
        let fits = (4..=Self::LONGEST_HEAD).contains(&head.len()) && head.len().is_multiple_of(4);
        assert!(fits, "{} bytes of head", head.len());
        wide::after(self, crc, head)
    }
}

/// A page of the source is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulted;

/// Copies `target.len()` bytes from `source`, in any order, and sums them; each is read once. `None`: nothing was
/// copied, because the processor lacks the features, or the length is not supported. The supported lengths are the
/// payloads of full packets.
///
/// Prefetches the bytes `ahead` bytes further on into the cache; 0 disables this. Without it, reads of megabytes of
/// memory that are read once are slow, because the processor itself prefetches only within a page.
///
/// # Safety
/// The bytes from `source` on are mapped and readable, and do not overlap `target`. Other threads may change them
/// meanwhile; the bytes copied are still the bytes summed.
#[inline]
pub unsafe fn copy(source: *const u8, target: &mut [u8], ahead: usize) -> Option<Sum> {
    // SAFETY: the caller upholds the same requirements. Nothing faults.
    unsafe { wide::copy::<false>(source, target, ahead) }.unwrap_or(None)
}

/// [`copy`] of memory whose pages may be missing; after an error, `target` may have been written in part.
///
/// # Safety
/// As [`copy`], except that pages may be missing while the handler of `memory::raw` is installed.
pub(crate) unsafe fn try_copy(source: *const u8, target: &mut [u8], ahead: usize) -> Result<Option<Sum>, Faulted> {
    // SAFETY: the caller upholds the same requirements.
    unsafe { wide::copy::<true>(source, target, ahead) }
}
