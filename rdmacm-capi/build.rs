//! Links the library as `librdmacm.so.1`, with the versions of `nodes.map`, and makes it need `libibverbs.so.1`.

use std::path::Path;
use std::process::Command;

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=nodes.map");
    println!("cargo:rerun-if-changed=build.rs");
    // The compiler passes an anonymous version script of its own, which only lld combines with named versions. On
    // x86-64 lld is the default.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/nodes.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librdmacm.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
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
