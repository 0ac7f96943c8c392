//! Finds the texts of the table in the source, and inserts the faults.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use crate::functions::{Function, functions};
use crate::table::{Always, Change, Table};

/// New texts of files, by their paths relative to the root.
pub(crate) type Files = BTreeMap<String, String>;

/// Returns the files that the table changes, with all faults in them; or all mistakes of the table.
pub(crate) fn edit_files(root: &Path, table: &Table) -> Result<Files, Vec<String>> {
    let mut changes: BTreeMap<&str, Vec<(&str, &Change)>> = BTreeMap::new();
    for fault in &table.faults {
        for change in &fault.changes {
            changes.entry(&change.file).or_default().push((&fault.name, change));
        }
    }
    let (mut files, mut problems) = (Files::new(), Vec::new());
    for (file, changes) in changes {
        let edited = fs::read_to_string(root.join(file)).map_err(|error| vec![error.to_string()]);
        match edited.and_then(|source| edit(&source, &changes)) {
            Ok(edited) => drop(files.insert(file.to_owned(), edited)),
            Err(said) => problems.extend(said.into_iter().map(|said| format!("{file}: {said}"))),
        }
    }
    for always in &table.always {
        let before = files.remove(&always.file).map_or_else(|| fs::read_to_string(root.join(&always.file)), Ok);
        match before.map_err(|error| error.to_string()).and_then(|before| replace_once(&before, always)) {
            Ok(text) => drop(files.insert(always.file.clone(), text)),
            Err(said) => problems.push(format!("{}: {said}", always.file)),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

fn replace_once(before: &str, always: &Always) -> Result<String, String> {
    match before.matches(&always.text).count() {
        1 => Ok(before.replacen(&always.text, &always.with, 1)),
        0 => Err(format!("a text that is always replaced is gone:\n{}", indented(&always.text))),
        times => Err(format!("a text that is always replaced occurs {times} times:\n{}", indented(&always.text))),
    }
}

/// Returns the source with these changes of these faults, all of them off.
fn edit(source: &str, changes: &[(&str, &Change)]) -> Result<String, Vec<String>> {
    let functions = functions(source).map_err(|error| vec![format!("is not Rust: {error}")])?;
    let mut problems = Vec::new();
    let mut by_function: BTreeMap<usize, Vec<Edit<'_>>> = BTreeMap::new();
    for (fault, change) in changes {
        match locate(source, &functions, change) {
            Ok((index, range)) => {
                by_function.entry(index).or_default().push(Edit { fault, range, with: &change.with });
            }
            Err(said) => problems.push(format!("{}: {fault}: {said}", change.function)),
        }
    }
    let mut bodies: Vec<(&Function, String)> = Vec::new();
    for (index, edits) in by_function {
        match changed_body(source, &functions[index].body, &edits) {
            Ok(body) => bodies.push((&functions[index], body)),
            Err(said) => problems.push(format!("{}: {said}", functions[index].name)),
        }
    }
    bodies.sort_by_key(|(function, _)| function.body.start);
    for pair in bodies.windows(2) {
        let (outer, inner) = (pair[0].0, pair[1].0);
        if inner.body.start < outer.body.end {
            problems.push(format!("{} is within {}: only one of them can have faults", inner.name, outer.name));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut edited = source.to_owned();
    bodies.iter().rev().for_each(|(function, body)| edited.replace_range(function.body.clone(), body));
    Ok(edited)
}

/// A change and its position.
struct Edit<'table> {
    fault: &'table str,
    range: Range<usize>,
    with: &'table str,
}

/// Finds the function of a change, and its text there. Functions of the same name, in several `impl`s, count as one.
fn locate(source: &str, functions: &[Function], change: &Change) -> Result<(usize, Range<usize>), String> {
    let named = || functions.iter().enumerate().filter(|(_, function)| function.name == change.function);
    if named().next().is_none() {
        return Err("there is no such function".to_owned());
    }
    let mut found = Vec::new();
    for (index, function) in named() {
        let body = &source[function.body.clone()];
        let starts = body.match_indices(&change.text).map(|(start, _)| start + function.body.start);
        found.extend(starts.map(|start| (index, start..start + change.text.len())));
    }
    match found.len() {
        1 => {}
        0 => return Err(format!("its text is gone:\n{}", indented(&change.text))),
        times => return Err(format!("its text occurs {times} times:\n{}", indented(&change.text))),
    }
    let (index, range) = found.remove(0);
    match functions[index].hindrance {
        Some(hindrance) => Err(format!("the function {hindrance}, so it can have no faults")),
        None => Ok((index, range)),
    }
}

/// Returns a body that chooses between copies of itself: one for each fault, and the original.
fn changed_body(source: &str, body: &Range<usize>, edits: &[Edit<'_>]) -> Result<String, String> {
    let mut by_fault: BTreeMap<&str, Vec<&Edit<'_>>> = BTreeMap::new();
    edits.iter().for_each(|edit| by_fault.entry(edit.fault).or_default().push(edit));
    let mut text = String::from("\n    match crate::fault::on() {\n        None => {}\n");
    for (fault, mut edits) in by_fault {
        edits.sort_by_key(|edit| edit.range.start);
        if edits.windows(2).any(|pair| pair[1].range.start < pair[0].range.end) {
            return Err(format!("{fault}: two of its texts overlap"));
        }
        let mut copy = source[body.clone()].to_owned();
        for edit in edits.iter().rev() {
            copy.replace_range(edit.range.start - body.start..edit.range.end - body.start, edit.with);
        }
        write!(text, "        Some(crate::fault::Fault::{fault}) => return {{{copy}\n}},\n").expect("strings can grow");
    }
    text.push_str("        Some(_) => {}\n    }\n");
    text.push_str(&source[body.clone()]);
    Ok(text)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    | {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn sum(a: u8, b: u8) -> u8 {
    // Braces { in a comment, and in a text:
    let _ = \"}\";
    let c = a + b;
    c + 1
}
impl Add for Number {
    fn add(self, other: Self) -> Self { Number(self.0 + other.0) }
}
impl Number {
    fn add_twice(self) { self.add(self); self.add(self) }
    const fn one() -> u8 { 1 }
}
";

    fn change(function: &str, text: &str, with: &str) -> Change {
        Change { file: "a.rs".into(), function: function.into(), text: text.into(), with: with.into() }
    }

    fn edited(changes: &[(&str, Change)]) -> Result<String, Vec<String>> {
        edit(SOURCE, &changes.iter().map(|(fault, change)| (*fault, change)).collect::<Vec<_>>())
    }

    /// Returns the copy of a body that a fault chooses.
    fn copy_of<'text>(text: &'text str, fault: &str) -> &'text str {
        let start = format!("Some(crate::fault::Fault::{fault}) => return {{");
        text.split_once(&start).expect("the fault").1.split_once("\n},\n").expect("its end").0
    }

    #[test]
    fn faults_may_change_the_same_text() {
        let changes = [("A", change("sum", "let c = a + b;", "let c = a;")), ("B", change("sum", "a + b", "a - b"))];
        let text = edited(&changes).expect("both fit");
        functions(&text).expect("still Rust");
        assert!(copy_of(&text, "A").contains("let c = a;\n    c + 1"), "{text}");
        assert!(copy_of(&text, "B").contains("let c = a - b;\n    c + 1"), "{text}");
        assert_eq!(text.matches("let c = a + b;").count(), 1, "{text}");
        assert_eq!(text.matches("\"}\"").count(), 3, "{text}");
        assert_eq!(text.matches("crate::fault::on()").count(), 1, "{text}");
    }

    #[test]
    fn changes_of_one_fault_go_into_one_copy() {
        let changes = [("A", change("sum", "c + 1", "c + 2")), ("A", change("sum", "a + b", "b"))];
        let text = edited(&changes).expect("both fit");
        assert!(copy_of(&text, "A").contains("let c = b;\n    c + 2"), "{text}");
        let changes = [("A", change("sum", "a + b", "b")), ("A", change("sum", "let c = a", "let c = b"))];
        assert_eq!(edited(&changes).expect_err("an overlap"), ["sum: A: two of its texts overlap"]);
    }

    #[test]
    fn methods_of_trait_impls_can_have_faults() {
        let changes = [("A", change("Number::add", "self.0 + other.0", "self.0"))];
        assert!(copy_of(&edited(&changes).expect("it fits"), "A").contains("Number(self.0)"));
    }

    #[test]
    fn all_mismatches_are_reported_together() {
        let changes = [
            ("Gone", change("sum", "a * b", "a")),
            ("Ambiguous", change("Number::add_twice", "self.add(self)", "")),
            ("Elsewhere", change("Number::sum", "a + b", "a")),
            ("Constant", change("Number::one", "1", "2")),
        ];
        let said = edited(&changes).expect_err("nothing fits");
        let expected = [
            "sum: Gone: its text is gone:\n    | a * b",
            "Number::add_twice: Ambiguous: its text occurs 2 times:\n    | self.add(self)",
            "Number::sum: Elsewhere: there is no such function",
            "Number::one: Constant: the function is const, so it can have no faults",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn texts_outside_of_the_function_do_not_count() {
        let changes = [("A", change("sum", "self.0", "0"))];
        assert!(edited(&changes).expect_err("it is in another function")[0].contains("is gone"));
    }

    #[test]
    fn a_function_within_another_one_is_refused_beside_it() {
        let source = "fn outer() { fn inner() { 1; } inner(); }";
        let (outer, inner) = (change("outer", "inner();", ""), change("inner", "1;", ""));
        let said = edit(source, &[("A", &outer), ("B", &inner)]).expect_err("they overlap");
        assert_eq!(said, ["inner is within outer: only one of them can have faults"]);
        edit(source, &[("B", &inner)]).expect("alone it fits");
    }

    #[test]
    fn always_replaced_text_must_occur_once() {
        let always = |text: &str| Always { file: "a.rs".into(), text: text.into(), with: "2".into() };
        assert_eq!(replace_once("const A: u8 = 1;", &always("1")).as_deref(), Ok("const A: u8 = 2;"));
        assert!(replace_once("11", &always("1")).expect_err("twice").contains("occurs 2 times"));
        assert!(replace_once("", &always("1")).expect_err("never").contains("is gone"));
    }
}
