//! The symbols that a built library exports.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Returns what `readelf` prints about a library.
pub(crate) fn readelf(option: &str, library: &Path) -> String {
    let output = Command::new("readelf").args([option, "-W"]).arg(library).output().expect("readelf of binutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the defined symbols with their kinds: `name@@VERSION FUNC`.
fn exported(library: &Path) -> BTreeSet<String> {
    let lines = readelf("--dyn-syms", library);
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

/// Checks that a library exports the symbols of a list with this number of lines, and nothing else.
pub(crate) fn match_list(library: &Path, list: &str, count: usize, what: &str) {
    let wanted: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    assert_eq!(wanted.len(), count, "{what}");
    let found = exported(library);
    let missing: Vec<&String> = wanted.difference(&found).collect();
    let unwanted: Vec<&String> = found.difference(&wanted).collect();
    assert!(missing.is_empty() && unwanted.is_empty(), "missing: {missing:?}; not in the list: {unwanted:?}");
}
