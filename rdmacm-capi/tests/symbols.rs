//! Checks the built library against its list: every symbol with its version, nothing else, under the right name.

#[path = "../../capi/tests/exports/mod.rs"]
mod exports;
mod library;

use std::path::PathBuf;

use exports::{match_list, readelf};

fn built() -> PathBuf {
    library::folder().join("librdmacm.so.1")
}

#[test]
fn symbols_match_the_list() {
    match_list(
        &built(),
        include_str!("symbols.txt"),
        69,
        "those of librdmacm, and the one that tells this library from it",
    );
}

#[test]
fn dynamic_section_has_the_soname_and_needs_libibverbs() {
    let dynamic = readelf("--dynamic", &built());
    assert!(dynamic.contains("Library soname: [librdmacm.so.1]"), "{dynamic}");
    assert!(dynamic.contains("Shared library: [libibverbs.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "the other library's threads outlive a dlclose: {dynamic}");
}

/// A second engine in this library would not know the objects of the first.
#[test]
fn no_engine_is_in_the_library() {
    let symbols = readelf("--syms", &built());
    assert!(!symbols.contains("rdma_verbs8provider") && !symbols.contains("rdma_verbs6engine"));
}
