//! Any contents of a statistics page, and any message of the monitor, as another process of the same user may write it.

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    // A device needs more bytes than this.
    assert!(rdma_verbs::statistics_page(bytes) <= bytes.len() / 100);
}
