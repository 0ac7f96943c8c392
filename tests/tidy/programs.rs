//! The list of the tests in `docs/testing.md` is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{relative, report, root};

/// Folders of `tests` without tests: common code, and inputs.
const WITHOUT_TESTS: [&str; 2] = ["tests/support", "tests/fuzzing/corpus"];

/// Returns the entries of a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).expect("a readable folder");
    read.map(|entry| entry.expect("a readable entry").path()).collect()
}

/// Returns the executable files below a folder.
fn executables(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in entries(folder) {
        let data = entry.metadata().expect("an entry has metadata");
        if data.is_dir() && !WITHOUT_TESTS.contains(&relative(&entry).as_str()) {
            found.extend(executables(&entry));
        } else if data.is_file() && data.permissions().mode() & 0o111 != 0 {
            found.push(entry);
        }
    }
    found
}

/// Returns whether a table names a file or folder by its path, or in backquotes by its name, with or without `.rs`.
fn is_named(text: &str, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let program = name.strip_suffix(".rs").unwrap_or(name);
    text.contains(path) || [name, program].iter().any(|name| text.contains(&format!("`{name}`")))
}

#[test]
fn every_test_is_in_the_list_of_tests() {
    let text = fs::read_to_string(root().join("docs/testing.md")).expect("docs/testing.md");
    let mut tests = executables(&root().join("tests"));
    for folder in ["tests", "tests/alone", "tests/system", "tests/tiers", "tools/tests"] {
        let is_test = |path: &PathBuf| {
            let is_main = path.file_name().is_some_and(|name| name == "main.rs");
            let is_part = path.with_extension("rs") != *path && path.with_extension("rs").exists();
            let is_support = path.ends_with("support");
            !is_main && !is_part && !is_support && (path.is_dir() || path.extension().is_some_and(|end| end == "rs"))
        };
        tests.extend(entries(&root().join(folder)).into_iter().filter(is_test));
    }
    let tests: Vec<String> = tests.iter().map(|path| relative(path)).collect();
    assert!(tests.len() > 80, "only {} tests are found", tests.len());
    let missing = tests.iter().filter(|test| !is_named(&text, test));
    report(missing.map(|test| format!("docs/testing.md does not list {test}")).collect());
}
