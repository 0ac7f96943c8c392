//! What safe code must not be able to do does not compile.
//!
//! Each file in `tests/compile_fail` tries one such thing; the `.stderr` beside it is what the compiler says.
//! `tests/compile_pass` shows that the same programs compile without the offence.

use std::process::Command;

/// The compiler whose words the `.stderr` files hold; another one says the same differently.
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
    cases.compile_fail("tests/compile_fail/*.rs");
    cases.pass("tests/compile_pass/*.rs");
}
