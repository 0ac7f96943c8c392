//! Any offer of memory, as another process of the same user may send it.

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    rdma_verbs::link_offer(bytes);
}
