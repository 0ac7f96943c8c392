//! Direct accesses on x86-64, each a machine instruction that the compiler cannot look into.
//!
//! The processor keeps stores in program order and loads in program order (SDM volume 3, 9.2.2), so a plain `mov` is an
//! acquire load or a release store; the blocks are not marked `nomem`, so the compiler moves no other access across
//! them. Only within one string instruction may stores become visible in any order (9.2.4); those of the instruction
//! before are all visible first. Hence the body may use `rep movsb`, and the tail must not.

use std::arch::asm;
use std::ptr;

use super::{body_length, piece_size};

/// From about this size on, `rep movsb` beats a loop of four 16-byte moves: its start costs 9 ns, and 20 if source and
/// target lie unluckily in their pages. Measured on a Zen 5.
const STRING_INSTRUCTION_FROM: usize = 1280;

/// Copies `out.len()` bytes out of registered memory, in any order.
///
/// # Safety
/// The bytes from `source` on are mapped and readable, and do not overlap `out`.
#[inline]
pub(super) unsafe fn copy_out(source: *const u8, out: &mut [u8]) {
    // SAFETY: the caller answers for `source`; `out` is writable and does not overlap.
    unsafe { move_bytes(out.as_mut_ptr(), source, out.len()) }
}

/// Copies `data` into registered memory: the body in any order, then the tail in naturally aligned pieces.
///
/// # Safety
/// `data.len()` bytes from `target` on are mapped and writable, and do not overlap `data`.
#[inline]
pub(super) unsafe fn copy_in(target: *mut u8, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let body = body_length(target.addr(), data.len());
    // SAFETY: `body` is less than `data.len()`: the last byte always lies in the last word. So the first copy stays
    // within both ranges and leaves the tail, at most 8 bytes that touch the ends of both.
    unsafe {
        move_bytes(target, data.as_ptr(), body);
        store_tail(target.add(body), &data[body..]);
    }
}

/// # Safety
/// `tail.len()` bytes from `target` on are mapped and writable.
#[inline]
unsafe fn store_tail(mut target: *mut u8, mut tail: &[u8]) {
    while !tail.is_empty() {
        let size = piece_size(target.addr(), tail.len());
        let piece = tail.as_ptr();
        // SAFETY: `size` is 1, 2, 4 or 8 and at most `tail.len()`, so load and store stay in bounds, and `piece_size`
        // made the store aligned. The pointer moves to the end of the piece, at most to the end of the range.
        unsafe {
            match size {
                8 => store_release_u64(target.cast(), ptr::read_unaligned(piece.cast())),
                4 => store_release_u32(target.cast(), ptr::read_unaligned(piece.cast())),
                2 => store_release_u16(target.cast(), ptr::read_unaligned(piece.cast())),
                _ => store_release_u8(target, *piece),
            }
            target = target.add(size);
        }
        tail = &tail[size..];
    }
}

/// Copies `count` bytes in any order; bytes in the middle may be stored twice with the same value.
///
/// # Safety
/// `count` bytes are mapped at both addresses, readable at `source` and writable at `target`, and do not overlap.
#[inline]
unsafe fn move_bytes(target: *mut u8, source: *const u8, count: usize) {
    // SAFETY: each branch passes a count in the range that its callee asks for; the caller answers for the rest.
    unsafe {
        match count {
            0 => {}
            1..4 => move_up_to_3(target, source, count),
            4..8 => move_ends_of_4(target, source, count),
            8..16 => move_ends_of_8(target, source, count),
            16..64 => move_by_16(target, source, count),
            64..STRING_INSTRUCTION_FROM => move_by_64(target, source, count),
            _ => move_by_string_instruction(target, source, count),
        }
    }
}

/// # Safety
/// As [`move_bytes`], with `count` from 1 to 3.
#[inline]
unsafe fn move_up_to_3(target: *mut u8, source: *const u8, count: usize) {
    // SAFETY: touches the bytes 0, `count / 2` and `count - 1`, which are all of 1, 2 or 3 bytes and no others. The
    // block uses no stack; flags it leaves alone.
    unsafe {
        asm!(
            "movzx {a:e}, byte ptr [{source}]",
            "movzx {b:e}, byte ptr [{source} + {middle}]",
            "movzx {c:e}, byte ptr [{source} + {last}]",
            "mov byte ptr [{target}], {a:l}",
            "mov byte ptr [{target} + {middle}], {b:l}",
            "mov byte ptr [{target} + {last}], {c:l}",
            source = in(reg) source,
            target = in(reg) target,
            middle = in(reg) count / 2,
            last = in(reg) count - 1,
            a = out(reg) _,
            b = out(reg) _,
            c = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

macro_rules! move_ends {
    ($name:ident, $size:literal, $register:literal, $range:literal) => {
        #[doc = concat!("# Safety\nAs [`move_bytes`], with `count` from ", $range, ".")]
        #[inline]
        unsafe fn $name(target: *mut u8, source: *const u8, count: usize) {
            // SAFETY: touches the first and the last bytes of the range, which meet or overlap and lie within it,
            // because `count` is at least the size of one move and at most that of two.
            unsafe {
                asm!(
                    concat!("mov {first", $register, "}, [{source}]"),
                    concat!("mov {final", $register, "}, [{source} + {last}]"),
                    concat!("mov [{target}], {first", $register, "}"),
                    concat!("mov [{target} + {last}], {final", $register, "}"),
                    source = in(reg) source,
                    target = in(reg) target,
                    last = in(reg) count - $size,
                    first = out(reg) _,
                    final = out(reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

move_ends!(move_ends_of_4, 4, ":e", "4 to 8");
move_ends!(move_ends_of_8, 8, ":r", "8 to 16");

/// # Safety
/// As [`move_bytes`], with `count` at least 16.
#[inline]
unsafe fn move_by_16(target: *mut u8, source: *const u8, count: usize) {
    // SAFETY: the loop moves 16 bytes at 0, 16, ... as long as the offset is below `count - 16`, so it ends within the
    // range; the last move covers the final 16 bytes. Together they touch every byte and none outside. The final bytes
    // are loaded first, which matters to nobody, as the ranges do not overlap.
    unsafe {
        asm!(
            "movups {end}, [{source} + {last}]",
            "xor {offset:e}, {offset:e}",
            "2:",
            "movups {piece}, [{source} + {offset}]",
            "movups [{target} + {offset}], {piece}",
            "add {offset}, 16",
            "cmp {offset}, {last}",
            "jb 2b",
            "movups [{target} + {last}], {end}",
            source = in(reg) source,
            target = in(reg) target,
            last = in(reg) count - 16,
            offset = out(reg) _,
            piece = out(xmm_reg) _,
            end = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`move_bytes`], with `count` at least 64.
#[inline]
unsafe fn move_by_64(target: *mut u8, source: *const u8, count: usize) {
    // SAFETY: the loop moves 64 bytes at 0, 64, ... as long as the offset is below `count - 64`, so it ends within the
    // range; the moves after it cover the final 64 bytes. Together they touch every byte and none outside.
    unsafe {
        asm!(
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
            source = in(reg) source,
            target = in(reg) target,
            last = in(reg) count - 64,
            offset = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`move_bytes`].
#[inline]
unsafe fn move_by_string_instruction(target: *mut u8, source: *const u8, count: usize) {
    // SAFETY: moves exactly `count` bytes upwards: the direction flag is clear on entry to every `asm!` block.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
}

macro_rules! word_access {
    ($($word:ty, $load:ident, $store:ident, $class:ident, $size:literal, $register:literal;)*) => {
        $(
            /// # Safety
            /// The word is mapped, readable and aligned.
            #[inline]
            pub(super) unsafe fn $load(word: *const $word) -> $word {
                let value;
                // SAFETY: reads the word that the caller answers for, and nothing else.
                unsafe {
                    asm!(
                        concat!("mov {value", $register, "}, ", $size, " ptr [{word}]"),
                        word = in(reg) word,
                        value = lateout($class) value,
                        options(nostack, preserves_flags),
                    );
                }
                value
            }

            /// # Safety
            /// The word is mapped, writable and aligned.
            #[inline]
            pub(super) unsafe fn $store(word: *mut $word, value: $word) {
                // SAFETY: writes the word that the caller answers for, and nothing else.
                unsafe {
                    asm!(
                        concat!("mov ", $size, " ptr [{word}], {value", $register, "}"),
                        word = in(reg) word,
                        value = in($class) value,
                        options(nostack, preserves_flags),
                    );
                }
            }
        )*
    };
}

word_access! {
    u8, load_acquire_u8, store_release_u8, reg_byte, "byte", "";
    u16, load_acquire_u16, store_release_u16, reg, "word", ":x";
    u32, load_acquire_u32, store_release_u32, reg, "dword", ":e";
    u64, load_acquire_u64, store_release_u64, reg, "qword", ":r";
}

/// # Safety
/// The word is mapped, writable and aligned.
pub(super) unsafe fn compare_exchange_u64(word: *mut u64, current: u64, new: u64) -> u64 {
    let found;
    // SAFETY: reads and writes the word that the caller answers for, and nothing else.
    unsafe {
        asm!(
            "lock cmpxchg qword ptr [{word}], {new}",
            word = in(reg) word,
            new = in(reg) new,
            inout("rax") current => found,
            options(nostack),
        );
    }
    found
}

/// # Safety
/// The word is mapped, writable and aligned.
pub(super) unsafe fn fetch_add_u64(word: *mut u64, add: u64) -> u64 {
    let found;
    // SAFETY: reads and writes the word that the caller answers for, and nothing else.
    unsafe {
        asm!(
            "lock xadd qword ptr [{word}], {value}",
            word = in(reg) word,
            value = inout(reg) add => found,
            options(nostack),
        );
    }
    found
}
