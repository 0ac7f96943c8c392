//! The target is in the included file, which `cargo test` runs, too, with the inputs in `tests/fuzzing/corpus`.
#![no_main]

#[path = "../../tests/fuzzing/statistics.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| target::run(bytes));
