//! A ring in memory that another process changes between any two accesses.

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    rdma_verbs::memory::shared_ring(bytes);
}
