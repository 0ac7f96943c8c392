//! Links the library as `librdmacm.so.1`, and makes it need `libibverbs.so.1`.

use std::path::Path;
use std::process::Command;

include!("../capi/link.rs");

fn main() {
    println!("cargo:rerun-if-changed=../capi/link.rs");
    link("librdmacm.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--no-as-needed");
    println!("cargo:rustc-cdylib-link-arg={}", named_like_libibverbs());
}

/// Makes an empty library of that name and returns its path: only the name of a needed library is recorded, and the
/// real one is not built yet.
fn named_like_libibverbs() -> String {
    let folder = std::env::var("OUT_DIR").expect("cargo sets it");
    let (source, library) = (Path::new(&folder).join("empty.c"), Path::new(&folder).join("libibverbs.so.1"));
    std::fs::write(&source, "").expect("a folder to write to");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.args(["-shared", "-nostdlib", "-Wl,-soname,libibverbs.so.1", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().expect("a C compiler").success(), "{compiler:?} failed");
    library.to_str().expect("text").to_owned()
}
