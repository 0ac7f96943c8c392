//! Only a region makes ranges of itself, with checked bounds.

use rdma_verbs::verbs::{MemoryRegion, RegionRange};

fn beyond_the_end(region: &MemoryRegion) -> RegionRange<'_> {
    RegionRange { region, offset: 0, len: usize::MAX }
}

fn main() {}
