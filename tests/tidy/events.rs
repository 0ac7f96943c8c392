//! The events for subscribers of `tracing`: their targets and fields are a stable interface, which `docs/tracing.md`
//! lists.

use std::collections::{BTreeMap, BTreeSet};

/// The targets whose events in the software device are listed. The others have events whose texts may change.
const TARGETS_WITH_LISTED_EVENTS: &[&str] = &["connection", "queue_pair", "loss", "path"];

/// Compares the calls in these files with the document.
pub(crate) fn problems(document: &str, files: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let tables = documented(document);
    let (mut problems, mut unseen, mut seen) = (Vec::new(), tables.events.clone(), 0);
    for (file, source) in files {
        for call in calls(&source) {
            seen += 1;
            unseen.remove(&(call.target.clone(), call.text.clone()));
            let found = problems_of(&call, &tables, source.contains("note_later!"));
            problems.extend(found.into_iter().map(|problem| format!("{file}:{}: {problem}", call.line)));
        }
    }
    assert!(seen > 120 && tables.events.len() > 20, "{seen} calls, {} events", tables.events.len());
    problems.extend(unseen.keys().map(|event| format!("docs/tracing.md: {event:?} is not emitted")));
    problems
}

fn problems_of(call: &Call, tables: &Documented, is_of_engine: bool) -> Vec<String> {
    let mut problems = Vec::new();
    if !tables.targets.contains(&call.target) {
        problems.push(format!("{:?} is no target of docs/tracing.md", call.target));
    }
    let unknown = call.fields.difference(&tables.fields);
    problems.extend(unknown.map(|field| format!("{field} is no field of docs/tracing.md")));
    let is_listed = TARGETS_WITH_LISTED_EVENTS.iter().any(|name| call.target.ends_with(name));
    match tables.events.get(&(call.target.clone(), call.text.clone())) {
        Some(known) if *known != (call.level.clone(), call.fields.clone()) => {
            problems.push(format!("docs/tracing.md has {known:?} for {:?}", call.text));
        }
        None if is_listed && is_of_engine => problems.push(format!("{:?} is not in docs/tracing.md", call.text)),
        _ => {}
    }
    problems
}

/// A call that emits an event.
#[derive(Debug)]
struct Call {
    /// Number of its line.
    line: usize,
    /// Its target; empty if it has none.
    target: String,
    /// Its level in capitals.
    level: String,
    /// Names of its fields.
    fields: BTreeSet<String>,
    text: String,
}

/// Returns the calls in a file of the library.
fn calls(source: &str) -> Vec<Call> {
    let mut found = Vec::new();
    for level in ["error", "warn", "info", "debug", "trace"] {
        for at in places(source, &format!("tracing::{level}!(")) {
            let arguments = arguments(&source[at..]);
            found.push(call(line_of(source, at), level.to_uppercase(), &arguments));
        }
    }
    // The level is behind the target, and the journal before it.
    for at in places(source, "note_later!(") {
        let mut arguments = arguments(&source[at..]);
        if arguments.len() < 4 || arguments[1].contains('$') {
            continue;
        }
        let level = arguments.remove(2);
        let mut call = call(line_of(source, at), level, &arguments[1..]);
        call.fields.insert("device".to_owned());
        found.push(call);
    }
    found
}

/// Returns where the source has this text, outside comments.
fn places<'a>(source: &'a str, text: &str) -> impl Iterator<Item = usize> + 'a {
    let is_code = |at: &usize| !source[..*at].lines().next_back().is_some_and(|line| line.contains("//"));
    source.match_indices(text).map(|(at, _)| at).filter(is_code).collect::<Vec<_>>().into_iter()
}

fn line_of(source: &str, at: usize) -> usize {
    source[..at].matches('\n').count() + 1
}

fn call(line: usize, level: String, arguments: &[String]) -> Call {
    let target = arguments.first().and_then(|first| first.strip_prefix("target: ")).unwrap_or_default();
    let (mut fields, mut text) = (BTreeSet::new(), String::new());
    for argument in arguments {
        if argument.starts_with("target: ") {
            continue;
        }
        if argument.starts_with('"') {
            // Its arguments follow.
            argument.trim_matches('"').clone_into(&mut text);
            break;
        }
        let name = argument.split(" = ").next().unwrap_or_default().trim_start_matches(['%', '?']);
        fields.insert(name.rsplit('.').next().unwrap_or_default().to_owned());
    }
    Call { line, target: target.trim_matches('"').to_owned(), level, fields, text }
}

/// Returns the arguments of the macro call that the source begins with. Literals of a character with a bracket or a
/// quotation mark do not occur there.
fn arguments(source: &str) -> Vec<String> {
    let begin = source.find('(').map_or(source.len(), |at| at + 1);
    let (mut found, mut current, mut depth, mut in_string) = (Vec::new(), String::new(), 1, false);
    let mut characters = source[begin..].chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => {
                current.push(character);
                current.extend(characters.next());
                continue;
            }
            '"' => in_string = !in_string,
            '(' | '[' | '{' if !in_string => depth += 1,
            ')' | ']' | '}' if !in_string => depth -= 1,
            _ => {}
        }
        match character {
            ',' if depth == 1 && !in_string => found.push(std::mem::take(&mut current)),
            _ if depth == 0 => break,
            _ => current.push(character),
        }
    }
    found.push(current);
    found.iter().map(|argument| argument.trim().to_owned()).filter(|argument| !argument.is_empty()).collect()
}

/// The document's tables.
#[derive(Default)]
struct Documented {
    targets: BTreeSet<String>,
    fields: BTreeSet<String>,
    /// Level and fields of each event, by target and text.
    events: BTreeMap<(String, String), (String, BTreeSet<String>)>,
}

/// Reads the tables of the sections "Targets", "Fields", and of those whose titles are targets: rows of text, level and
/// fields.
fn documented(document: &str) -> Documented {
    let (mut tables, mut section) = (Documented::default(), String::new());
    for line in document.lines() {
        if let Some(title) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            title.trim_matches('`').clone_into(&mut section);
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if !line.starts_with('|') || cells.len() < 2 || cells[0].starts_with("---") || !line.contains('`') {
            continue;
        }
        match section.as_str() {
            "Targets" => tables.targets.extend(in_quotes(cells[0])),
            "Fields" => tables.fields.extend(in_quotes(cells[0])),
            target if target.starts_with("rdma_verbs::") && cells.len() >= 3 => {
                let text = cells[0].trim_matches('`').to_owned();
                let event = (cells[1].trim_matches('`').to_uppercase(), in_quotes(cells[2]).collect());
                tables.events.insert((target.to_owned(), text), event);
            }
            _ => {}
        }
    }
    tables
}

fn in_quotes(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}
