//! Checks the built library against its list: every symbol with its version, nothing else, under the right name.

mod library;

use std::collections::BTreeSet;
use std::process::Command;

const LIST: &str = include_str!("symbols.txt");

fn readelf(option: &str) -> String {
    let library = library::folder().join("librdmacm.so.1");
    let output = Command::new("readelf").args([option, "-W"]).arg(library).output().expect("readelf of binutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the defined symbols with their kinds: `name@@VERSION FUNC`.
fn exported() -> BTreeSet<String> {
    let lines = readelf("--dyn-syms");
    let mut found = BTreeSet::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [number, _, _, kind, binding, _, section, name] = fields[..] else { continue };
        if number.ends_with(':') && number != "Num:" && binding != "LOCAL" && section != "UND" && section != "ABS" {
            found.insert(format!("{name} {kind}"));
        }
    }
    found
}

#[test]
fn symbols_match_the_list() {
    let wanted: BTreeSet<String> = LIST.lines().map(str::to_owned).collect();
    assert_eq!(wanted.len(), 69, "those of librdmacm, and the one that tells this library from it");
    let found = exported();
    let missing: Vec<&String> = wanted.difference(&found).collect();
    let unwanted: Vec<&String> = found.difference(&wanted).collect();
    assert!(missing.is_empty() && unwanted.is_empty(), "missing: {missing:?}; not in the list: {unwanted:?}");
}

#[test]
fn dynamic_section_has_the_soname_and_needs_libibverbs() {
    let dynamic = readelf("--dynamic");
    assert!(dynamic.contains("Library soname: [librdmacm.so.1]"), "{dynamic}");
    assert!(dynamic.contains("Shared library: [libibverbs.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "the other library's threads outlive a dlclose: {dynamic}");
}

/// A second engine in this library would not know the objects of the first.
#[test]
fn no_engine_is_in_the_library() {
    let symbols = readelf("--syms");
    assert!(!symbols.contains("rdma_verbs8provider") && !symbols.contains("rdma_verbs6engine"));
}
