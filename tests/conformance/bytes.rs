//! Byte patterns that identify their origin.

use rdma_verbs::verbs::MemoryRegion;

/// Returns bytes that differ with the position and the seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// Writes the pattern of a seed, starting at an offset.
#[track_caller]
pub(crate) fn fill(region: &MemoryRegion, offset: usize, len: usize, seed: u64) {
    region.write_at(offset, &pattern(len, seed)).expect("write_at");
}

/// Checks that the bytes from an offset are the pattern of a seed.
#[track_caller]
pub(crate) fn check(region: &MemoryRegion, offset: usize, len: usize, seed: u64) {
    check_equal(&region.to_vec(offset..offset + len).expect("to_vec"), &pattern(len, seed), offset);
}

/// Checks that all bytes from an offset have this value.
#[track_caller]
pub(crate) fn check_all(region: &MemoryRegion, offset: usize, len: usize, value: u8) {
    check_equal(&region.to_vec(offset..offset + len).expect("to_vec"), &vec![value; len], offset);
}

#[track_caller]
fn check_equal(found: &[u8], expected: &[u8], offset: usize) {
    let first = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(first) = first {
        let last = found.iter().zip(expected).rposition(|(found, expected)| found != expected).unwrap_or(first);
        panic!(
            "bytes {}..={} differ: {:#04x} is there instead of {:#04x}",
            offset + first,
            offset + last,
            found[first],
            expected[first]
        );
    }
}
