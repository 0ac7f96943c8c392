//! Checks the built library against its list: every symbol with its version, nothing else, under the right name.

mod exports;
mod library;

use exports::{match_list, readelf};

#[test]
fn symbols_match_the_list() {
    match_list(
        library::path(),
        include_str!("symbols.txt"),
        147,
        "75 public ones, 71 private ones, and the one for our librdmacm",
    );
}

#[test]
fn dynamic_section_has_the_soname_and_nodelete() {
    let dynamic = readelf("--dynamic", library::path());
    assert!(dynamic.contains("Library soname: [libibverbs.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "its threads outlive a dlclose: {dynamic}");
    assert_eq!(dynamic.matches("libibverbs").count(), 1, "it needs no other one: {dynamic}");
}
