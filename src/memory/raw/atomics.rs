//! Direct accesses as atomics: for processors other than x86-64, and where a checker must see them.
//!
//! Copies use relaxed atomics of bytes up to the first aligned word and after the last, and of words between. Accesses
//! of different sizes may overlap; Rust's memory model leaves that open, and every compiler for the machines that Rust
//! supports translates each into one load or store.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::{body_length, store_size};

const WORD: usize = size_of::<u64>();

/// A fence with sequentially consistent ordering.
#[inline]
pub(super) fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Copies `out.len()` bytes out of registered memory, in any order.
///
/// # Safety
/// The bytes from `source` on are mapped and readable, and do not overlap `out`.
pub(super) unsafe fn copy_out(source: *const u8, out: &mut [u8]) {
    let head = source.align_offset(WORD).min(out.len());
    let (head, rest) = out.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let mut source = source.cast_mut();
    // SAFETY: the three parts are `out` cut in order, and `source` advances by the size of each load, so every access
    // is within the range that the caller guarantees. After the head it is aligned to words, if any follow.
    unsafe {
        for byte in head {
            *byte = AtomicU8::from_ptr(source).load(Ordering::Relaxed);
            source = source.add(1);
        }
        for word in words {
            *word = AtomicU64::from_ptr(source.cast()).load(Ordering::Relaxed).to_ne_bytes();
            source = source.add(WORD);
        }
        for byte in tail {
            *byte = AtomicU8::from_ptr(source).load(Ordering::Relaxed);
            source = source.add(1);
        }
    }
}

/// Copies `count` bytes to other such memory: the body in any order, then the tail in naturally aligned stores.
///
/// # Safety
/// `count` bytes are mapped at both addresses, readable at `source` and writable at `target`.
pub(super) unsafe fn copy_across(target: *mut u8, source: *const u8, count: usize) {
    let mut buffer = [0; 64 * WORD];
    let mut done = 0;
    while done < count {
        // All parts but the last end at an aligned word of the target: none cuts the tail.
        let part = (count - done).min(buffer.len() - (target.addr() + done) % WORD);
        let bytes = &mut buffer[..part];
        // SAFETY: `done + part` is at most `count`, so both parts lie within the ranges that the caller guarantees, and
        // `bytes` is a buffer of its own.
        unsafe {
            copy_out(source.wrapping_add(done), bytes);
            copy_in(target.wrapping_add(done), bytes);
        }
        done += part;
    }
}

/// Copies `data` into registered memory: the body in any order, then the tail in naturally aligned stores.
///
/// # Safety
/// `data.len()` bytes from `target` on are mapped and writable, and do not overlap `data`.
pub(super) unsafe fn copy_in(target: *mut u8, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let (body, mut tail) = data.split_at(body_length(target.addr(), data.len()));
    let (head, words) = body.split_at(target.align_offset(WORD).min(body.len()));
    let mut target = target;
    // SAFETY: head, words and tail are `data` cut in order, and `target` advances by the size of each store, so every
    // access is within the range that the caller guarantees. After the head it is aligned to words; no bytes remain
    // after the words, because the body ends at an aligned word unless it is empty. `store_size` aligns the stores of
    // the tail.
    unsafe {
        for byte in head {
            AtomicU8::from_ptr(target).store(*byte, Ordering::Relaxed);
            target = target.add(1);
        }
        for word in words.as_chunks::<WORD>().0 {
            AtomicU64::from_ptr(target.cast()).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            target = target.add(WORD);
        }
        fence(Ordering::Release);
        while !tail.is_empty() {
            let size = store_size(target.addr(), tail.len());
            store_word(target, tail.as_ptr(), size);
            target = target.add(size);
            tail = &tail[size..];
        }
    }
}

/// # Safety
/// `size`, a power of two up to 8, bytes are readable at `source` and writable at `target`, which is aligned to `size`.
unsafe fn store_word(target: *mut u8, source: *const u8, size: usize) {
    // SAFETY: the caller guarantees both ranges and the alignment of `target`; `source` may be unaligned.
    unsafe {
        match size {
            1 => store_release_u8(target, *source),
            2 => store_release_u16(target.cast(), ptr::read_unaligned(source.cast())),
            4 => store_release_u32(target.cast(), ptr::read_unaligned(source.cast())),
            _ => store_release_u64(target.cast(), ptr::read_unaligned(source.cast())),
        }
    }
}

macro_rules! word_access {
    ($($word:ty, $atomic:ident, $load:ident, $store:ident;)*) => {
        $(
            /// # Safety
            /// The word is mapped, readable and aligned.
            pub(super) unsafe fn $load(word: *const $word) -> $word {
                // SAFETY: the caller guarantees a mapped, readable and aligned word; it is accessed by atomics only.
                unsafe { $atomic::from_ptr(word.cast_mut()) }.load(Ordering::Acquire)
            }

            /// # Safety
            /// The word is mapped, writable and aligned.
            pub(super) unsafe fn $store(word: *mut $word, value: $word) {
                // SAFETY: as for the load.
                unsafe { $atomic::from_ptr(word) }.store(value, Ordering::Release);
            }
        )*
    };
}

word_access! {
    u8, AtomicU8, load_acquire_u8, store_release_u8;
    u16, AtomicU16, load_acquire_u16, store_release_u16;
    u32, AtomicU32, load_acquire_u32, store_release_u32;
    u64, AtomicU64, load_acquire_u64, store_release_u64;
}

/// # Safety
/// The word is mapped, writable and aligned.
pub(super) unsafe fn compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> u64 {
    // SAFETY: the caller guarantees a mapped, writable and aligned word; it is accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(word) };
    match word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(found) | Err(found) => found,
    }
}

/// # Safety
/// The word is mapped, writable and aligned.
pub(super) unsafe fn fetch_add_u64(word: *mut u64, add: u64) -> u64 {
    // SAFETY: as in `compare_exchange_u64`.
    unsafe { AtomicU64::from_ptr(word) }.fetch_add(add, Ordering::SeqCst)
}
