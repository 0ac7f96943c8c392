//! Registered memory is never a slice: peers may change it at any time.

use rdma_verbs::verbs::MemoryRegion;

fn first_bytes(region: &MemoryRegion) -> &[u8] {
    &region[0..8]
}

fn all_bytes(region: &MemoryRegion) -> &[u8] {
    region
}

fn as_slice(region: &MemoryRegion) -> &[u8] {
    region.as_ref()
}

fn main() {}
