//! Carry-less multiplication of 64 bytes at a time.
//!
//! The bytes are a polynomial over GF(2), whose first bit has the highest power. 64 bytes are four lanes of 128 bits. A
//! lane is *folded* over a distance by multiplying its two words with x to the power of that distance, modulo the CRC's
//! polynomial: the product, 128 bits wide, has the same remainder at that distance further on. Four registers are
//! folded over 256 bytes as long as there are bytes, then onto each other, and then their lanes onto the last lane, all
//! at once. The last lane is reduced to 32 bits (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ Instruction"). Zeros before the first byte change nothing, so a length that is not a multiple of 64 begins
//! with a partial register, filled from the right.

use std::arch::asm;
use std::arch::x86_64::*;

use once_cell::race::OnceBool;

use super::{Faulted, Sum};

/// Bytes of a register.
const REGISTER: usize = 64;
/// Payloads of full packets: the path MTUs.
const LENGTHS: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// The CRC's polynomial, x^32 left out, highest power first.
const POLYNOMIAL: u32 = 0x04c1_1db7;
/// The polynomial with x^32, and the quotient of x^64 and the polynomial, both reflected: for the reduction.
const REFLECTED: i64 = 0x1_db71_0641;
const QUOTIENT: i64 = 0x1_f701_1641;

/// Returns x^power modulo the polynomial, reflected, and shifted by one as the multiplication of reflected words
/// requires.
const fn power_of_x(power: usize) -> i64 {
    let mut value: u32 = 1;
    let mut done = 0;
    while done < power {
        let carry = value >> 31 != 0;
        value <<= 1;
        if carry {
            value ^= POLYNOMIAL;
        }
        done += 1;
    }
    (value.reverse_bits() as i64) << 1
}

/// Returns the factors of the two words of a lane that fold it over this many bytes.
const fn distance(bytes: usize) -> [i64; 2] {
    [power_of_x(8 * bytes + 32), power_of_x(8 * bytes - 32)]
}

/// Returns the factors that fold the four lanes of a register onto a lane that begins `bytes` after the register's end.
const fn lanes_onto(bytes: usize) -> [[i64; 2]; 4] {
    [distance(bytes + 64), distance(bytes + 48), distance(bytes + 32), distance(bytes + 16)]
}

const ONE_REGISTER: [i64; 2] = distance(REGISTER);
const TWO_REGISTERS: [i64; 2] = distance(2 * REGISTER);
const THREE_REGISTERS: [i64; 2] = distance(3 * REGISTER);
const FOUR_REGISTERS: [i64; 2] = distance(4 * REGISTER);
/// Folds onto the last lane, which stays as it is.
const ONTO_LAST: [[i64; 2]; 4] = [distance(48), distance(32), distance(16), [0, 0]];
/// Folds a head's lanes onto the last lane of the payload after it.
const OVER_PAYLOAD: [[[i64; 2]; 4]; LENGTHS.len()] = [
    lanes_onto(LENGTHS[0] - 16),
    lanes_onto(LENGTHS[1] - 16),
    lanes_onto(LENGTHS[2] - 16),
    lanes_onto(LENGTHS[3] - 16),
    lanes_onto(LENGTHS[4] - 16),
];
const OVER_8_BYTES: i64 = distance(16)[1];
const OVER_4_BYTES: i64 = power_of_x(64);

fn is_supported() -> bool {
    // One check for each packet instead of four.
    static SUPPORTED: OnceBool = OnceBool::new();
    SUPPORTED.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("sse4.1")
    })
}

/// [`super::update`], if the processor has the features and `bytes` are whole words.
#[inline]
pub(super) fn update(crc: u32, bytes: &[u8]) -> Option<u32> {
    if !bytes.len().is_multiple_of(4) || !is_supported() {
        return None;
    }
    // SAFETY: the processor has the features that the function was compiled for.
    Some(unsafe { sum_of(crc, bytes) })
}

/// [`super::Sum::after`]; a sum exists only on a processor with the features.
#[inline]
pub(super) fn after(sum: &Sum, crc: u32, head: &[u8]) -> u32 {
    debug_assert!(is_supported());
    // SAFETY: only `copy` makes sums, after checking that the processor has the features that this was compiled for.
    unsafe { sum_after(sum, crc, head) }
}

/// [`super::copy`], or with `MAY_FAULT` [`super::try_copy`].
///
/// # Safety
/// As [`super::copy`], or with `MAY_FAULT` as [`super::try_copy`].
#[inline]
pub(super) unsafe fn copy<const MAY_FAULT: bool>(
    source: *const u8,
    target: &mut [u8],
    ahead: usize,
) -> Result<Option<Sum>, Faulted> {
    let fits = target.len().is_power_of_two() && (LENGTHS[0]..=LENGTHS[LENGTHS.len() - 1]).contains(&target.len());
    if !fits || !is_supported() {
        return Ok(None);
    }
    // SAFETY: the caller upholds the requirements on `source`; the length is a multiple of 256 and not 0, and the
    // processor has the features that the function was compiled for.
    unsafe { copy_and_sum::<MAY_FAULT>(source, target, ahead) }.map(Some)
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn same_in_all_lanes([low, high]: [i64; 2]) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(high, low))
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn of_lanes([a, b, c, d]: [[i64; 2]; 4]) -> __m512i {
    _mm512_set_epi64(d[1], d[0], c[1], c[0], b[1], b[0], a[1], a[0])
}

/// Folds each lane, and adds the lane that it is folded onto.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn fold(lanes: __m512i, over: __m512i, onto: __m512i) -> __m512i {
    const ADD_ALL: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128(lanes, over, 0x00);
    let high = _mm512_clmulepi64_epi128(lanes, over, 0x11);
    _mm512_ternarylogic_epi64(low, high, onto, ADD_ALL)
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn add_lanes(lanes: __m512i) -> __m128i {
    let halves = _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
    _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1))
}

/// Folds four consecutive registers into one lane.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn join([a, b, c, d]: [__m512i; 4]) -> __m128i {
    let late = fold(c, same_in_all_lanes(ONE_REGISTER), d);
    let early = fold(b, same_in_all_lanes(TWO_REGISTERS), late);
    join_lanes(fold(a, same_in_all_lanes(THREE_REGISTERS), early))
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn join_lanes(lanes: __m512i) -> __m128i {
    const LAST: __mmask8 = 0b1100_0000;
    add_lanes(fold(lanes, of_lanes(ONTO_LAST), _mm512_maskz_mov_epi64(LAST, lanes)))
}

/// Reduces a lane to its CRC: 128 bits to 96, to 64, and to 32 by Barrett reduction.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn reduce(lane: __m128i) -> u32 {
    let low_word = _mm_set_epi32(0, 0, 0, !0);
    let folded = _mm_clmulepi64_si128(lane, _mm_set_epi64x(0, OVER_8_BYTES), 0x00);
    let lane = _mm_xor_si128(folded, _mm_srli_si128(lane, 8));
    let folded = _mm_clmulepi64_si128(_mm_and_si128(lane, low_word), _mm_set_epi64x(0, OVER_4_BYTES), 0x00);
    let lane = _mm_xor_si128(folded, _mm_srli_si128(lane, 4));
    let factors = _mm_set_epi64x(QUOTIENT, REFLECTED);
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(lane, low_word), factors, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_word), factors, 0x00);
    !(_mm_extract_epi32(_mm_xor_si128(lane, product), 1) as u32)
}

/// Returns the words of `bytes`, 4 to 64 bytes, at the end of a register, with the CRC of the bytes before in the
/// first.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn at_the_end(crc: u32, bytes: &[u8]) -> __m512i {
    debug_assert!((4..=REGISTER).contains(&bytes.len()) && bytes.len().is_multiple_of(4));
    let words = bytes.len() / 4;
    let first = (1u32 << words).wrapping_sub(1) as __mmask16;
    // SAFETY: reads the words of the mask, which are all of `bytes` and no others.
    let loaded = unsafe { _mm512_maskz_loadu_epi32(first, bytes.as_ptr().cast()) };
    let loaded = _mm512_xor_si512(loaded, _mm512_zextsi128_si512(_mm_cvtsi32_si128(!crc as i32)));
    _mm512_maskz_expand_epi32(!0 << (16 - words), loaded)
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
fn load(bytes: &[u8; REGISTER]) -> __m512i {
    // SAFETY: the array is as long as the register, and the load need not be aligned.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn sum_of(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.is_empty() {
        return crc;
    }
    // The first register, whole or not, and then whole ones.
    let first = (bytes.len() - 1) % REGISTER + 1;
    let (first, rest) = bytes.split_at(first);
    let first = at_the_end(crc, first);
    let registers = rest.as_chunks::<REGISTER>().0;
    if registers.is_empty() {
        return reduce(join_lanes(first));
    }
    let (ahead, fours) = registers.split_at(registers.len() % 4);
    let none = _mm512_setzero_si512();
    let mut four = match ahead {
        [] => [none, none, none, first],
        [b] => [none, none, first, load(b)],
        [b, c] => [none, first, load(b), load(c)],
        [b, c, d, ..] => [first, load(b), load(c), load(d)],
    };
    let over = same_in_all_lanes(FOUR_REGISTERS);
    for [a, b, c, d] in fours.as_chunks::<4>().0 {
        four = [
            fold(four[0], over, load(a)),
            fold(four[1], over, load(b)),
            fold(four[2], over, load(c)),
            fold(four[3], over, load(d)),
        ];
    }
    reduce(join(four))
}

#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn sum_after(sum: &Sum, crc: u32, head: &[u8]) -> u32 {
    let kind = sum.length.trailing_zeros() as usize - LENGTHS[0].trailing_zeros() as usize;
    let head = fold(at_the_end(crc, head), of_lanes(OVER_PAYLOAD[kind]), _mm512_setzero_si512());
    let payload = _mm_set_epi64x(sum.words[1] as i64, sum.words[0] as i64);
    reduce(_mm_xor_si128(add_lanes(head), payload))
}

/// [`fold`] of a register in the block below, onto the loaded one.
macro_rules! folded {
    ($register:literal, $loaded:literal) => {
        concat!(
            "vpclmulqdq {low}, {",
            $register,
            "}, {over}, 0x00\n",
            "vpclmulqdq {",
            $register,
            "}, {",
            $register,
            "}, {over}, 0x11\n",
            "vpternlogq {",
            $register,
            "}, {low}, {",
            $loaded,
            "}, 0x96",
        )
    };
}

/// Prefetches the lines of four registers that are read later.
macro_rules! fetched {
    ($offset:literal) => {
        concat!(
            "prefetcht0 [{fetched}",
            $offset,
            "]\nprefetcht0 [{fetched}",
            $offset,
            " + 64]\nprefetcht0 [{fetched}",
            $offset,
            " + 128]\nprefetcht0 [{fetched}",
            $offset,
            " + 192]",
        )
    };
}

/// # Safety
/// As [`super::copy`], and `target.len()` is a multiple of 256 and not 0.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
#[inline]
unsafe fn copy_and_fold<const MAY_FAULT: bool>(
    source: *const u8,
    target: &mut [u8],
    ahead: usize,
) -> Result<[__m512i; 4], Faulted> {
    let over = same_in_all_lanes(FOUR_REGISTERS);
    let (a, b, c, d): (__m512i, __m512i, __m512i, __m512i);
    let faulted: u64;
    // SAFETY: loads and stores 256 bytes at 0, 256, ... as long as the offset is below `target.len()`, a multiple of
    // 256 and not 0: so all bytes of both ranges and no others. The caller upholds the requirements on `source`,
    // `target` is writable, and they do not overlap. The block is opaque to the compiler, so its loads may race with
    // other threads' accesses to `source`. Each byte is loaded once, so the bytes stored are the bytes folded. It uses
    // no stack. Prefetched memory is never accessed, and may lie anywhere.
    unsafe {
        asm!(
            access_begins!(),
            fetched!(""),
            "vmovdqu64 {a}, [{source}]",
            "vmovdqu64 {b}, [{source} + 64]",
            "vmovdqu64 {c}, [{source} + 128]",
            "vmovdqu64 {d}, [{source} + 192]",
            "vmovdqu64 [{target}], {a}",
            "vmovdqu64 [{target} + 64], {b}",
            "vmovdqu64 [{target} + 128], {c}",
            "vmovdqu64 [{target} + 192], {d}",
            "mov {offset:e}, 256",
            "cmp {offset}, {length}",
            "jae 3f",
            "2:",
            fetched!(" + {offset}"),
            "vmovdqu64 {e}, [{source} + {offset}]",
            "vmovdqu64 {f}, [{source} + {offset} + 64]",
            "vmovdqu64 {g}, [{source} + {offset} + 128]",
            "vmovdqu64 {h}, [{source} + {offset} + 192]",
            "vmovdqu64 [{target} + {offset}], {e}",
            "vmovdqu64 [{target} + {offset} + 64], {f}",
            "vmovdqu64 [{target} + {offset} + 128], {g}",
            "vmovdqu64 [{target} + {offset} + 192], {h}",
            folded!("a", "e"),
            folded!("b", "f"),
            folded!("c", "g"),
            folded!("d", "h"),
            "add {offset}, 256",
            "cmp {offset}, {length}",
            "jb 2b",
            "3:",
            access_ends!(),
            recoverable = const MAY_FAULT as u8,
            source = in(reg) source,
            fetched = in(reg) source.wrapping_add(ahead),
            target = in(reg) target.as_mut_ptr(),
            length = in(reg) target.len(),
            offset = out(reg) _,
            over = in(zmm_reg) over,
            a = out(zmm_reg) a,
            b = out(zmm_reg) b,
            c = out(zmm_reg) c,
            d = out(zmm_reg) d,
            e = out(zmm_reg) _,
            f = out(zmm_reg) _,
            g = out(zmm_reg) _,
            h = out(zmm_reg) _,
            low = out(zmm_reg) _,
            out("r11") faulted,
            options(nostack),
        );
    }
    if MAY_FAULT && faulted != 0 { Err(Faulted) } else { Ok([a, b, c, d]) }
}

/// # Safety
/// As [`copy_and_fold`].
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn copy_and_sum<const MAY_FAULT: bool>(
    source: *const u8,
    target: &mut [u8],
    ahead: usize,
) -> Result<Sum, Faulted> {
    // SAFETY: the caller upholds the same requirements.
    let lane = join(unsafe { copy_and_fold::<MAY_FAULT>(source, target, ahead) }?);
    let words = [_mm_cvtsi128_si64(lane) as u64, _mm_extract_epi64(lane, 1) as u64];
    Ok(Sum { words, length: target.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(crc: u32, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(crc);
        hasher.update(bytes);
        hasher.finalize()
    }

    fn noise(length: usize) -> Vec<u8> {
        (0..length as u32).map(|offset| (offset.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
    }

    #[test]
    fn all_lengths_and_alignments_agree_with_the_other_implementation() {
        let bytes = noise(4_500);
        for length in (0..1_200).step_by(4).chain((1_200..4_400).step_by(92)) {
            for start in [0, 1, 17, 63] {
                let bytes = &bytes[start..start + length];
                for crc in [0, 0x1234_5678, !0] {
                    let sum = update(crc, bytes);
                    assert!(sum.is_none_or(|sum| sum == expected(crc, bytes)), "{length} bytes from {start}");
                }
            }
        }
    }

    #[test]
    fn copied_bytes_are_summed_after_any_head() {
        let bytes = noise(4_200);
        for length in LENGTHS {
            for start in [0, 1, 64, 100] {
                let mut target = vec![0; length];
                // SAFETY: the range is of `bytes`, and `target` is another vector.
                let sum = unsafe { copy::<false>(bytes[start..start + length].as_ptr(), &mut target, 64 * start) };
                let Ok(Some(sum)) = sum else { return assert!(!is_supported()) };
                assert_eq!((&target[..], sum.length()), (&bytes[start..start + length], length));
                for head in (4..=Sum::LONGEST_HEAD).step_by(4) {
                    let whole = [&noise(head), &target[..]].concat();
                    let crc = 0x89ab_cdef;
                    assert_eq!(sum.after(crc, &noise(head)), expected(crc, &whole), "{head} before {length}");
                }
            }
        }
    }
}
