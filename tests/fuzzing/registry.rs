//! Any contents of a registry's file, as another process of the same user may write it.

/// Runs the target.
pub(crate) fn run(bytes: &[u8]) {
    rdma_verbs::registry_file(bytes);
}
