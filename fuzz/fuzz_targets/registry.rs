//! Any content of a registry's file, as another process of the same user may write it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_verbs::registry_file(bytes));
