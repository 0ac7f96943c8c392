//! A range of a region names memory; it is not the memory.

use rdma_verbs::verbs::RegionRange;

fn bytes<'a>(range: RegionRange<'a>) -> &'a [u8] {
    &*range
}

fn change(range: &mut RegionRange<'_>) {
    range[0] = 1;
}

fn main() {}
