//! Direct accesses on x86-64, each a machine instruction that is opaque to the compiler.
//!
//! The processor keeps stores in program order and loads in program order (SDM volume 3, 9.2.2), so a plain `mov` is an
//! acquire load or a release store; the blocks are not marked `nomem`, so the compiler moves no other access across
//! them. Only within one string instruction may stores become visible in any order (9.2.4); the stores of earlier
//! instructions are all visible first. Hence the body may use `rep movsb`, and the tail must not.
//!
//! Each access exists in two variants. With `MAY_FAULT` false it is for memory whose pages are present. With true, in
//! the functions called `try_…`, a page may be missing, as long as the fault handler is in place to end the
//! instruction: see `recoverable`.

use std::arch::asm;
use std::ptr;

use super::{AccessError, body_length, store_size};

/// From about this size on, `rep movsb` beats a loop of four 16-byte moves: its start costs 9 ns, and 20 for
/// some offsets of source and target within their pages. Measured on a Zen 5.
const STRING_INSTRUCTION_FROM: usize = 1280;

/// The result of a block, from the flag that the handler sets. The flag is not checked where no page can be missing.
#[inline]
fn outcome<const MAY_FAULT: bool>(faulted: u64) -> Result<(), AccessError> {
    if MAY_FAULT && faulted != 0 { Err(AccessError::Fault) } else { Ok(()) }
}

/// A fence with sequentially consistent ordering: a locked instruction, which no load or store passes (SDM volume 3,
/// 9.2.2). The compiler would choose `mfence`, which takes 19 ns on a Zen 5, four times as long, because it also waits
/// for what no access here does.
#[inline]
pub(super) fn full_fence() {
    let mut word = 0_u32;
    // SAFETY: the instruction changes nothing but the flags: it adds no bit to a word of this function.
    unsafe { asm!("lock or dword ptr [{word}], 0", word = in(reg) &raw mut word, options(nostack)) };
}

/// Copies `out.len()` bytes out of registered memory, in any order.
///
/// # Safety
/// The bytes from `source` on are mapped and readable, and do not overlap `out`.
#[inline]
pub(super) unsafe fn copy_out(source: *const u8, out: &mut [u8]) {
    // SAFETY: the caller guarantees that `source` is readable; `out` is writable and does not overlap. Nothing faults.
    let _ = unsafe { move_bytes::<false>(out.as_mut_ptr(), source, out.len()) };
}

/// [`copy_out`]; after a fault, `out` may have been written in part.
///
/// # Safety
/// As [`copy_out`], except that pages may be missing while the handler is in place.
pub(super) unsafe fn try_copy_out(source: *const u8, out: &mut [u8]) -> Result<(), AccessError> {
    // SAFETY: the caller guarantees `source`, except for missing pages; `out` is writable and does not overlap.
    unsafe { move_bytes::<true>(out.as_mut_ptr(), source, out.len()) }
}

/// Copies `data` into registered memory: the body in any order, then the tail in naturally aligned stores.
///
/// # Safety
/// `data.len()` bytes from `target` on are mapped and writable, and do not overlap `data`.
#[inline]
pub(super) unsafe fn copy_in(target: *mut u8, data: &[u8]) {
    // SAFETY: the caller upholds the same contract. Nothing faults.
    let _ = unsafe { copy_body_then_tail::<false>(target, data) };
}

/// [`copy_in`]; after a fault, some of it may have been placed, but nothing past the fault.
///
/// # Safety
/// As [`copy_in`], except that pages may be missing or read-only while the handler is in place.
pub(super) unsafe fn try_copy_in(target: *mut u8, data: &[u8]) -> Result<(), AccessError> {
    // SAFETY: the caller upholds the same contract.
    unsafe { copy_body_then_tail::<true>(target, data) }
}

/// Copies `count` bytes to other such memory: the body in any order, then the tail in naturally aligned stores.
///
/// # Safety
/// `count` bytes are mapped at both addresses, readable at `source` and writable at `target`.
#[inline]
pub(super) unsafe fn copy_across(target: *mut u8, source: *const u8, count: usize) {
    // SAFETY: the caller upholds the same contract. Nothing faults.
    let _ = unsafe { body_then_tail_across::<false>(target, source, count) };
}

/// [`copy_across`]; after a fault, some of it may have been placed, but nothing past the fault.
///
/// # Safety
/// As [`copy_across`], except that pages may be missing or read-only while the handler is in place.
pub(super) unsafe fn try_copy_across(target: *mut u8, source: *const u8, count: usize) -> Result<(), AccessError> {
    // SAFETY: the caller upholds the same contract.
    unsafe { body_then_tail_across::<true>(target, source, count) }
}

/// # Safety
/// As [`copy_across`] or [`try_copy_across`].
#[inline]
unsafe fn body_then_tail_across<const MAY_FAULT: bool>(
    target: *mut u8,
    source: *const u8,
    count: usize,
) -> Result<(), AccessError> {
    if count == 0 {
        return Ok(());
    }
    let (body, mut tail) = (body_length(target.addr(), count), [0; 8]);
    let tail = &mut tail[..count - body];
    // SAFETY: body and tail, at most 8 bytes, are the ranges cut in two, and the buffer of the tail has its length.
    // Ranges that overlap get a mixture of old and new bytes, which is all that such memory ever promises.
    unsafe {
        move_bytes::<MAY_FAULT>(tail.as_mut_ptr(), source.wrapping_add(body), tail.len())?;
        move_bytes::<MAY_FAULT>(target, source, body)?;
        store_tail::<MAY_FAULT>(target.wrapping_add(body), tail)
    }
}

/// # Safety
/// As [`copy_in`] or [`try_copy_in`].
#[inline]
unsafe fn copy_body_then_tail<const MAY_FAULT: bool>(target: *mut u8, data: &[u8]) -> Result<(), AccessError> {
    if data.is_empty() {
        return Ok(());
    }
    let body = body_length(target.addr(), data.len());
    // SAFETY: `body` is less than `data.len()`: the last byte always lies in the last word. So the first copy stays
    // within both ranges and leaves the tail, at most 8 bytes that touch the ends of both.
    unsafe {
        move_bytes::<MAY_FAULT>(target, data.as_ptr(), body)?;
        store_tail::<MAY_FAULT>(target.wrapping_add(body), &data[body..])
    }
}

/// # Safety
/// `tail.len()` bytes from `target` on are mapped and writable.
#[inline]
unsafe fn store_tail<const MAY_FAULT: bool>(mut target: *mut u8, mut tail: &[u8]) -> Result<(), AccessError> {
    while !tail.is_empty() {
        let size = store_size(target.addr(), tail.len());
        let source = tail.as_ptr();
        // SAFETY: `size` is 1, 2, 4 or 8 and at most `tail.len()`, so load and store stay in bounds, and `store_size`
        // made the store aligned. The pointer moves to the end of the store, at most to the end of the range.
        unsafe {
            match size {
                8 => put_u64::<MAY_FAULT>(target.cast(), ptr::read_unaligned(source.cast()))?,
                4 => put_u32::<MAY_FAULT>(target.cast(), ptr::read_unaligned(source.cast()))?,
                2 => put_u16::<MAY_FAULT>(target.cast(), ptr::read_unaligned(source.cast()))?,
                _ => put_u8::<MAY_FAULT>(target, *source)?,
            }
        }
        target = target.wrapping_add(size);
        tail = &tail[size..];
    }
    Ok(())
}

/// Copies `count` bytes in any order; bytes in the middle may be stored twice with the same value.
///
/// # Safety
/// `count` bytes are mapped at both addresses, readable at `source` and writable at `target`, and do not overlap.
#[inline]
unsafe fn move_bytes<const MAY_FAULT: bool>(
    target: *mut u8,
    source: *const u8,
    count: usize,
) -> Result<(), AccessError> {
    // SAFETY: each branch passes a count in the range that its callee requires; the caller guarantees the rest.
    let faulted = unsafe {
        match count {
            0 => 0,
            1..4 => move_up_to_3::<MAY_FAULT>(target, source, count),
            4..8 => move_ends_of_4::<MAY_FAULT>(target, source, count),
            8..16 => move_ends_of_8::<MAY_FAULT>(target, source, count),
            16..64 => move_by_16::<MAY_FAULT>(target, source, count),
            64..STRING_INSTRUCTION_FROM => move_by_64::<MAY_FAULT>(target, source, count),
            _ => move_by_string_instruction::<MAY_FAULT>(target, source, count),
        }
    };
    outcome::<MAY_FAULT>(faulted)
}

/// # Safety
/// As [`move_bytes`], with `count` from 1 to 3.
#[inline]
unsafe fn move_up_to_3<const MAY_FAULT: bool>(target: *mut u8, source: *const u8, count: usize) -> u64 {
    let faulted;
    // SAFETY: touches the bytes 0, `count / 2` and `count - 1`, which are all of 1, 2 or 3 bytes and no others. The
    // block uses no stack and leaves the flags alone.
    unsafe {
        asm!(
            access_begins!(),
            "movzx {a:e}, byte ptr [{source}]",
            "movzx {b:e}, byte ptr [{source} + {middle}]",
            "movzx {c:e}, byte ptr [{source} + {last}]",
            "mov byte ptr [{target}], {a:l}",
            "mov byte ptr [{target} + {middle}], {b:l}",
            "mov byte ptr [{target} + {last}], {c:l}",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            source = in(reg) source,
            target = in(reg) target,
            middle = in(reg) count / 2,
            last = in(reg) count - 1,
            a = out(reg) _,
            b = out(reg) _,
            c = out(reg) _,
            out("r11") faulted,
            options(nostack, preserves_flags),
        );
    }
    faulted
}

macro_rules! move_ends {
    ($name:ident, $size:literal, $register:literal, $range:literal) => {
        #[doc = concat!("# Safety\nAs [`move_bytes`], with `count` from ", $range, ".")]
        #[inline]
        unsafe fn $name<const MAY_FAULT: bool>(target: *mut u8, source: *const u8, count: usize) -> u64 {
            let faulted;
            // SAFETY: touches the first and the last bytes of the range, which meet or overlap and lie within it,
            // because `count` is at least the size of one move and at most that of two.
            unsafe {
                asm!(
                    access_begins!(),
                    concat!("mov {first", $register, "}, [{source}]"),
                    concat!("mov {final", $register, "}, [{source} + {last}]"),
                    concat!("mov [{target}], {first", $register, "}"),
                    concat!("mov [{target} + {last}], {final", $register, "}"),
                    access_ends!(),
                    recoverable = const MAY_FAULT as u8,
                    source = in(reg) source,
                    target = in(reg) target,
                    last = in(reg) count - $size,
                    first = out(reg) _,
                    final = out(reg) _,
                    out("r11") faulted,
                    options(nostack, preserves_flags),
                );
            }
            faulted
        }
    };
}

move_ends!(move_ends_of_4, 4, ":e", "4 to 8");
move_ends!(move_ends_of_8, 8, ":r", "8 to 16");

/// # Safety
/// As [`move_bytes`], with `count` at least 16.
#[inline]
unsafe fn move_by_16<const MAY_FAULT: bool>(target: *mut u8, source: *const u8, count: usize) -> u64 {
    let faulted;
    // SAFETY: the loop moves 16 bytes at 0, which are in the range, and at 16, 32, ... as long as the offset is below
    // `count - 16`, so it ends within the range; the last move covers the final 16 bytes. Together they touch every
    // byte and none outside. The final bytes are loaded first, which does not matter, as the ranges do not overlap.
    unsafe {
        asm!(
            access_begins!(),
            "movups {end}, [{source} + {last}]",
            "xor {offset:e}, {offset:e}",
            "2:",
            "movups {chunk}, [{source} + {offset}]",
            "movups [{target} + {offset}], {chunk}",
            "add {offset}, 16",
            "cmp {offset}, {last}",
            "jb 2b",
            "movups [{target} + {last}], {end}",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            source = in(reg) source,
            target = in(reg) target,
            last = in(reg) count - 16,
            offset = out(reg) _,
            chunk = out(xmm_reg) _,
            end = out(xmm_reg) _,
            out("r11") faulted,
            options(nostack),
        );
    }
    faulted
}

/// # Safety
/// As [`move_bytes`], with `count` at least 64.
#[inline]
unsafe fn move_by_64<const MAY_FAULT: bool>(target: *mut u8, source: *const u8, count: usize) -> u64 {
    let faulted;
    // SAFETY: the loop moves 64 bytes at 0, which are in the range, and at 64, 128, ... as long as the offset is below
    // `count - 64`, so it ends within the range; the moves after it cover the final 64 bytes. Together they touch every
    // byte and none outside.
    unsafe {
        asm!(
            access_begins!(),
            "xor {offset:e}, {offset:e}",
            "2:",
            "movups {a}, [{source} + {offset}]",
            "movups {b}, [{source} + {offset} + 16]",
            "movups {c}, [{source} + {offset} + 32]",
            "movups {d}, [{source} + {offset} + 48]",
            "movups [{target} + {offset}], {a}",
            "movups [{target} + {offset} + 16], {b}",
            "movups [{target} + {offset} + 32], {c}",
            "movups [{target} + {offset} + 48], {d}",
            "add {offset}, 64",
            "cmp {offset}, {last}",
            "jb 2b",
            "movups {a}, [{source} + {last}]",
            "movups {b}, [{source} + {last} + 16]",
            "movups {c}, [{source} + {last} + 32]",
            "movups {d}, [{source} + {last} + 48]",
            "movups [{target} + {last}], {a}",
            "movups [{target} + {last} + 16], {b}",
            "movups [{target} + {last} + 32], {c}",
            "movups [{target} + {last} + 48], {d}",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            source = in(reg) source,
            target = in(reg) target,
            last = in(reg) count - 64,
            offset = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            out("r11") faulted,
            options(nostack),
        );
    }
    faulted
}

/// # Safety
/// As [`move_bytes`].
#[inline]
unsafe fn move_by_string_instruction<const MAY_FAULT: bool>(target: *mut u8, source: *const u8, count: usize) -> u64 {
    let faulted;
    // SAFETY: moves exactly `count` bytes upwards: the direction flag is clear on entry to every `asm!` block.
    unsafe {
        asm!(
            access_begins!(),
            "rep movsb",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            inout("rcx") count => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            out("r11") faulted,
            options(nostack, preserves_flags),
        );
    }
    faulted
}

macro_rules! word_access {
    ($($word:ty, $class:ident, $size:literal, $register:literal: $get:ident, $load:ident, $try_load:ident,
       $put:ident, $store:ident, $try_store:ident;)*) => {
        $(
            /// # Safety
            /// The word is mapped, readable and aligned; or its page may be missing while the handler is in place.
            #[inline]
            unsafe fn $get<const MAY_FAULT: bool>(word: *const $word) -> Result<$word, AccessError> {
                let (value, faulted);
                // SAFETY: reads the word that the caller guarantees, and nothing else.
                unsafe {
                    asm!(
                        access_begins!(),
                        concat!("mov {value", $register, "}, ", $size, " ptr [{word}]"),
                        access_ends!(),
                        recoverable = const MAY_FAULT as u8,
                        word = in(reg) word,
                        value = lateout($class) value,
                        out("r11") faulted,
                        options(nostack, preserves_flags),
                    );
                }
                outcome::<MAY_FAULT>(faulted).map(|()| value)
            }

            /// # Safety
            /// The word is mapped, readable and aligned.
            #[inline]
            pub(super) unsafe fn $load(word: *const $word) -> $word {
                // SAFETY: the caller upholds the same contract. Nothing faults.
                unsafe { $get::<false>(word) }.unwrap_or_default()
            }

            /// # Safety
            /// The word is aligned, and readable if its page is present, which it need not be while the handler is
            /// in place.
            pub(super) unsafe fn $try_load(word: *const $word) -> Result<$word, AccessError> {
                // SAFETY: the caller upholds the same contract.
                unsafe { $get::<true>(word) }
            }

            /// # Safety
            /// The word is mapped, writable and aligned; or its page may be missing while the handler is in place.
            #[inline]
            unsafe fn $put<const MAY_FAULT: bool>(word: *mut $word, value: $word) -> Result<(), AccessError> {
                let faulted;
                // SAFETY: writes the word that the caller guarantees, and nothing else.
                unsafe {
                    asm!(
                        access_begins!(),
                        concat!("mov ", $size, " ptr [{word}], {value", $register, "}"),
                        access_ends!(),
                        recoverable = const MAY_FAULT as u8,
                        word = in(reg) word,
                        value = in($class) value,
                        out("r11") faulted,
                        options(nostack, preserves_flags),
                    );
                }
                outcome::<MAY_FAULT>(faulted)
            }

            /// # Safety
            /// The word is mapped, writable and aligned.
            #[inline]
            pub(super) unsafe fn $store(word: *mut $word, value: $word) {
                // SAFETY: the caller upholds the same contract. Nothing faults.
                let _ = unsafe { $put::<false>(word, value) };
            }

            /// # Safety
            /// The word is aligned, and may be written if its page is writable, which it need not be while the handler
            /// is in place.
            pub(super) unsafe fn $try_store(word: *mut $word, value: $word) -> Result<(), AccessError> {
                // SAFETY: the caller upholds the same contract.
                unsafe { $put::<true>(word, value) }
            }
        )*
    };
}

word_access! {
    u8, reg_byte, "byte", "": get_u8, load_acquire_u8, try_load_acquire_u8,
        put_u8, store_release_u8, try_store_release_u8;
    u16, reg, "word", ":x": get_u16, load_acquire_u16, try_load_acquire_u16,
        put_u16, store_release_u16, try_store_release_u16;
    u32, reg, "dword", ":e": get_u32, load_acquire_u32, try_load_acquire_u32,
        put_u32, store_release_u32, try_store_release_u32;
    u64, reg, "qword", ":r": get_u64, load_acquire_u64, try_load_acquire_u64,
        put_u64, store_release_u64, try_store_release_u64;
}

/// # Safety
/// The word is mapped, writable and aligned; or its page may be missing or read-only while the handler is in place.
#[inline]
unsafe fn exchange<const MAY_FAULT: bool>(word: *mut u64, current: u64, new: u64) -> Result<u64, AccessError> {
    let (found, faulted);
    // SAFETY: reads and writes the word that the caller guarantees, and nothing else.
    unsafe {
        asm!(
            access_begins!(),
            "lock cmpxchg qword ptr [{word}], {new}",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            word = in(reg) word,
            new = in(reg) new,
            inout("rax") current => found,
            out("r11") faulted,
            options(nostack),
        );
    }
    outcome::<MAY_FAULT>(faulted).map(|()| found)
}

/// # Safety
/// As [`exchange`].
#[inline]
unsafe fn add<const MAY_FAULT: bool>(word: *mut u64, add: u64) -> Result<u64, AccessError> {
    let (found, faulted);
    // SAFETY: reads and writes the word that the caller guarantees, and nothing else.
    unsafe {
        asm!(
            access_begins!(),
            "lock xadd qword ptr [{word}], {value}",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            word = in(reg) word,
            value = inout(reg) add => found,
            out("r11") faulted,
            options(nostack),
        );
    }
    outcome::<MAY_FAULT>(faulted).map(|()| found)
}

/// # Safety
/// The word is mapped, writable and aligned.
pub(super) unsafe fn compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> u64 {
    // SAFETY: the caller upholds the same contract. Nothing faults.
    unsafe { exchange::<false>(word, current, new) }.unwrap_or_default()
}

/// # Safety
/// The word is aligned, and may be changed if its page is writable, which it need not be while the handler is in place.
pub(super) unsafe fn try_compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> Result<u64, AccessError> {
    // SAFETY: the caller upholds the same contract.
    unsafe { exchange::<true>(word, current, new) }
}

/// # Safety
/// The word is mapped, writable and aligned.
pub(super) unsafe fn fetch_add_u64(word: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller upholds the same contract. Nothing faults.
    unsafe { add::<false>(word, value) }.unwrap_or_default()
}

/// # Safety
/// As [`try_compare_exchange_u64`].
pub(super) unsafe fn try_fetch_add_u64(word: *mut u64, value: u64) -> Result<u64, AccessError> {
    // SAFETY: the caller upholds the same contract.
    unsafe { add::<true>(word, value) }
}
