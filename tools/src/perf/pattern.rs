//! Data patterns by which a receiver checks the contents and the position of the data.

use super::outcome::Outcome;

/// Returns the byte at this offset of the pattern.
fn byte(seed: u64, index: usize) -> u8 {
    ((index as u64 + 1).wrapping_add(seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| byte(seed, index)).collect()
}

/// Compares data with the pattern.
pub(crate) fn check(what: &str, found: &[u8], seed: u64) -> Outcome {
    match found.iter().enumerate().find(|(index, found)| **found != byte(seed, *index)) {
        None => Ok(()),
        Some((index, found)) => {
            let right = byte(seed, index);
            Err(format!("{what} is wrong from byte {index} on: {found:#04x} instead of {right:#04x}").into())
        }
    }
}
