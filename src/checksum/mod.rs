//! CRC-32 (IEEE 802.3), which the ICRC is made of, as fast as the processor can.
//!
//! Packets are short: of 1 KiB, what is left when all is folded to a few words takes a general implementation as long
//! as the bytes themselves. The one here is made for packets, and can copy bytes and sum them in one pass, which takes
//! hardly longer than copying alone. Processors without AVX-512 have `crc32fast`.

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize))))]
#[path = "avx512.rs"]
mod wide;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(any(loom, miri, rdma_verbs_sanitize)))))]
#[path = "none.rs"]
mod wide;

/// The CRC of some bytes and `bytes` behind them, of which `crc` is that of the first (0 if there are none).
#[inline]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    if let Some(crc) = wide::update(crc, bytes) {
        return crc;
    }
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// What bytes that were summed while they were copied contribute to a CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// A polynomial that is congruent to that of the bytes.
    words: [u64; 2],
    length: usize,
}

impl Sum {
    /// Most bytes of a head.
    pub const LONGEST_HEAD: usize = 64;

    /// How many bytes were summed.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The CRC of some bytes, `head`, and the summed bytes, of which `crc` is that of the first.
    ///
    /// # Panics
    /// If `head` is empty, longer than [`Sum::LONGEST_HEAD`], or no multiple of 4 bytes.
    #[inline]
    pub fn after(&self, crc: u32, head: &[u8]) -> u32 {
        let fits = (4..=Self::LONGEST_HEAD).contains(&head.len()) && head.len().is_multiple_of(4);
        assert!(fits, "{} bytes of head", head.len());
        wide::after(self, crc, head)
    }
}

/// A page of what was to be copied is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulted;

/// Copies `target.len()` bytes from `source`, in any order, and sums them; each is read once. `None`: nothing was
/// copied, because this processor cannot, or not so many. Those that it can are the payloads of full packets.
///
/// The bytes that lie `ahead` bytes further on are fetched into the cache; 0 is for none. Memory of which megabytes are
/// read once comes late otherwise: the processor itself looks ahead within a page only.
///
/// # Safety
/// The bytes from `source` on are mapped and readable, and do not overlap `target`. Others may change them meanwhile;
/// then what was copied is what was summed.
#[inline]
pub unsafe fn copy(source: *const u8, target: &mut [u8], ahead: usize) -> Option<Sum> {
    // SAFETY: the caller's promise is the same. Nothing faults.
    unsafe { wide::copy::<false>(source, target, ahead) }.unwrap_or(None)
}

/// [`copy`] of memory whose pages may be missing; after an error, `target` may have been written in part.
///
/// # Safety
/// As [`copy`], except that pages may be missing while the handler of `memory::raw` is there.
pub(crate) unsafe fn try_copy(source: *const u8, target: &mut [u8], ahead: usize) -> Result<Option<Sum>, Faulted> {
    // SAFETY: the caller's promise is the same.
    unsafe { wide::copy::<true>(source, target, ahead) }
}
