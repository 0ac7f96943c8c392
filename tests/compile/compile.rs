//! Checks that unsound programs without `unsafe` do not compile.
//!
//! Each file in `fail` is such a program; the `.stderr` beside it is the compiler's output. The files in `pass`, which
//! are part of this test, show that the same programs compile without the offence.
//!
//! The test is a package of its own: it builds the crate with the dependencies of its package, and this one has few.

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[path = "../ibverbs/layout.rs"]
mod layout;
#[path = "pass/owned_use.rs"]
mod owned_use;
#[path = "pass/proper_use.rs"]
mod proper_use;
#[path = "pass/windows_ways_and_shared_queues.rs"]
mod windows_ways_and_shared_queues;

use std::process::Command;

/// The compiler that wrote the `.stderr` files; other versions word their messages differently.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn misuse_does_not_compile() {
    let version = Command::new("rustc").arg("--version").output().expect("a compiler built this test");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let is_asked_for = std::env::var_os("TRYBUILD").is_some();
    if !version.starts_with(COMPILER) && !is_asked_for {
        println!("skipped: the expected texts are those of {COMPILER}x, this is {version}");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("fail/*.rs");
}

/// Uses the programs without running them; otherwise they would be dead code, which fails the lints.
#[test]
fn proper_use_compiles() {
    use windows_ways_and_shared_queues::{lent, one_sided, shared, ways, windows};
    let _ = (owned_use::proper_use, proper_use::proper_use, ways, windows, shared, one_sided, lent);
}
