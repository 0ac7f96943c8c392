#!/bin/sh
# Tests on any machine that has Rust: prints what limits transfers there, and runs the tests over both paths.
set -eu

echo "open files: $(ulimit -n), locked memory: $(ulimit -l) KiB, shared memory:"
df -k /dev/shm || echo "none: packets go through UDP"
if command -v rdma-verbs; then
  rdma-verbs doctor
fi

cargo test
RDMA_VERBS_SHARED_MEMORY=off cargo test
