//! The paths that a Rust file names, resolved within its crate.

use std::collections::{BTreeMap, BTreeSet};

use super::code_of;

/// Returns the path of the module in a file, from the folder of its crate's root file: `a/mod.rs` and `a.rs` are `[a]`.
pub(super) fn module_of(file: &str) -> Vec<String> {
    let mut path: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    path
}

/// Returns the paths in the lines that begin with `crate`, `super` or `self`, as paths from the crate's root, with the
/// numbers of their lines. A path that ends in a group in braces is several.
pub(super) fn imports<'a>(
    module: &[String],
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> Vec<(usize, Vec<String>)> {
    let (mut code, mut starts) = (String::new(), Vec::new());
    for (number, line) in lines {
        starts.push((code.len(), number));
        code.push_str(&code_of(line));
        code.push('\n');
    }
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':') {
                continue;
            }
            let mut rest = &code[at + root.len()..];
            let mut base = match root {
                "crate::" => &[],
                "self::" => module,
                _ => parent(module),
            };
            while let Some(above) = rest.strip_prefix("super::") {
                (base, rest) = (parent(base), above);
            }
            let number = starts.iter().rfind(|(start, _)| *start <= at).map_or(0, |(_, number)| *number);
            let mut paths = Vec::new();
            branches(rest, base, &mut paths);
            found.extend(paths.into_iter().map(|path| (number, path)));
        }
    }
    found
}

fn parent(module: &[String]) -> &[String] {
    &module[..module.len().saturating_sub(1)]
}

/// Adds the paths that `text` begins with to `found`, each after `base`. Returns the text behind them.
fn branches<'a>(text: &'a str, base: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if rest.is_empty() || rest.starts_with('}') {
                return rest.get(1..).unwrap_or("");
            }
            let behind = branches(rest, base, found);
            // The new name of a renamed import.
            rest = behind.find([',', '}']).map_or("", |end| &behind[end..]);
        }
    }
    let length = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(length);
    let mut path = base.to_vec();
    if !name.is_empty() && name != "self" {
        path.push(name.to_owned());
    }
    match rest.strip_prefix("::") {
        Some(rest) if length > 0 => branches(rest, &path, found),
        _ => {
            found.push(path);
            rest
        }
    }
}

/// Returns the cycles of a graph: the largest sets of nodes that all reach each other, of two or more.
pub(super) fn cycles(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|node| (&**node, reach(graph, node))).collect();
    let cycle = |node: &str| -> BTreeSet<String> {
        let is_mutual = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(node));
        reached[node].iter().filter(is_mutual).map(|other| (*other).to_owned()).collect()
    };
    graph.keys().map(|node| cycle(node)).filter(|cycle| cycle.len() > 1).collect()
}

/// Returns the nodes that an edge, or several, lead to from a node.
fn reach<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, node: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![node]);
    while let Some(node) = waiting.pop() {
        for next in graph.get(node).into_iter().flatten() {
            if reached.insert(&**next) {
                waiting.push(next);
            }
        }
    }
    reached
}

#[test]
fn paths_are_resolved() {
    let text = "use crate::a::{self, b::C, d::{E as F, g}};\nuse super::super::h;\n// crate::i\nself::k(\"crate::l\");";
    let found = imports(&module_of("m/n.rs"), (1..).zip(text.lines()));
    let found: Vec<String> = found.into_iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
    assert_eq!(found, ["1 a", "1 a::b::C", "1 a::d::E", "1 a::d::g", "2 h", "4 m::n::k"]);
}

#[test]
fn cycles_are_found() {
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a"), ("d", "d")];
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        graph.entry(from.to_owned()).or_default().insert(to.to_owned());
    }
    let cycle = BTreeSet::from(["a", "b", "c"].map(str::to_owned));
    assert_eq!(cycles(&graph), BTreeSet::from([cycle]));
}
