//! Checks the source tree against its own rules: the direction of imports, where `unsafe` may occur, the sizes of files
//! and functions, and words that finished lines must not contain.

#[path = "tidy/aliases.rs"]
mod aliases;
#[path = "tidy/events.rs"]
mod events;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/parts.rs"]
mod parts;
#[path = "tidy/programs.rs"]
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use imports::{cycles, imports, module_of};
use parts::PARTS;

const FILE_LINES_LIMIT: usize = 600;
/// Files that are longer than [`FILE_LINES_LIMIT`], and their limit.
const LONG_FILES: &[&str] = &[
    "src/provider/abi/mod.rs",
    "src/queue/completion.rs",
    "src/transport/responder/response_queue.rs",
    "src/transport/tests.rs",
];
const LONG_FILE_LINES_LIMIT: usize = 800;
const FUNCTION_LINES_LIMIT: usize = 70;
const LINE_WIDTH_LIMIT: usize = 120;

/// Layers from the bottom up, and the layers that each may import. A folder or file with an entry of its own is not
/// part of the folder around it.
const LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("checksum", &[]),
    ("wire", &["types", "checksum"]),
    ("memory", &["types", "checksum"]),
    ("queue", &["types"]),
    ("sys", &["types"]),
    ("transport", &["types", "checksum", "wire", "memory", "queue"]),
    ("cm", &["types", "wire"]),
    ("engine", &["types", "wire", "memory", "queue", "transport", "cm", "sys"]),
    ("provider", &["types", "wire", "memory"]),
    ("provider/abi", &["types"]),
    ("provider/common", &["types", "queue", "provider"]),
    (
        "provider/soft",
        &["types", "wire", "memory", "queue", "transport", "cm", "sys", "engine", "provider", "provider/common"],
    ),
    ("provider/ibverbs", &["types", "memory", "queue", "sys", "provider", "provider/common", "provider/abi"]),
    ("provider/list", &["provider", "provider/soft", "provider/ibverbs"]),
    ("monitor", &["types", "engine"]),
    ("verbs", &["types", "memory", "provider", "sys"]),
    ("owned", &["types", "verbs"]),
    ("asynchronous", &["types", "verbs", "owned"]),
    ("sim", &["types", "wire", "memory", "queue", "transport"]),
];

/// Layers that the library for C programs may use: the provider tier and its parameter types. It is a sibling of
/// `verbs`.
const USED_BY_CAPI: &[&str] = &["types", "memory", "provider"];

/// The only places below `src` in which `unsafe` blocks may occur. They may occur in all of `capi`, which handles
/// pointers of C programs.
const UNSAFE_ISLANDS: &[&str] = &[
    "src/checksum/",
    "src/memory/raw",
    "src/queue/ring",
    "src/sys/",
    "src/owned/exclusive.rs",
    "src/owned/in_flight.rs",
    "src/provider/abi/",
    "src/provider/ibverbs/sys/",
];

/// Files that declare `unsafe fn`, because these functions accept raw memory.
const UNSAFE_DECLARATIONS: &[&str] =
    &["src/memory/backing.rs", "src/verbs/implicit_region.rs", "src/verbs/protection_domain.rs"];

/// Files with a static lock that a forked child may inherit taken: those of the tier for adapters, which does not
/// support that, and those with locks that are held for some instructions or, for a process's first device, for some
/// system calls. Everything else that a process has once is in a `PerGeneration` or a `once_cell::race` cell.
const STATIC_LOCKS: &[&str] = &[
    "capi/src/context.rs",
    "capi/src/device.rs",
    "src/memory/raw/handler.rs",
    "src/provider/ibverbs/sys/cm/library.rs",
    "src/provider/ibverbs/sys/context.rs",
    "src/provider/ibverbs/sys/library.rs",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.map(|entry| entry.expect("a readable entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                found.push((relative(&entry), fs::read_to_string(&entry).expect("a readable file")));
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("a path below the root").to_string_lossy().into_owned()
}

fn all_files() -> Vec<(String, String)> {
    ["src", "tests", "examples", "benches", "capi", "rdmacm-capi", "tools", "fuzz"]
        .into_iter()
        .flat_map(rust_files)
        .collect()
}

/// Returns the line without its comment and without the text of string literals.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut in_string = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => {
                characters.next();
            }
            '"' => in_string = !in_string,
            '\'' if !in_string && characters.clone().nth(1) == Some('\'') => {
                characters.next();
                characters.next();
            }
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            _ if !in_string => code.push(character),
            _ => {}
        }
    }
    code
}

fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn imports_never_point_upward() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for (file, text) in rust_files("src") {
        let module = module_of(file.trim_start_matches("src/"));
        let Some((layer, allowed)) = layer_of(&module) else { continue };
        let (production, tests) = (production_lines(&text).count(), [&module[..], &["tests".to_owned()]].concat());
        let lines = || (1..).zip(text.lines());
        let found = imports(&module, lines().take(production)).into_iter();
        for (number, path) in found.chain(imports(&tests, lines().skip(production))) {
            if layer_of(&path).is_some_and(|(other, _)| other != layer && !allowed.contains(&other)) {
                problems.push(format!("{file}:{number}: {layer} imports {}", path.join("::")));
            }
            seen += 1;
        }
    }
    assert!(seen > 2000, "{seen} imports");
    report(problems);
}

/// Returns the layer of a path from the crate's root, with the layers that it may import.
fn layer_of(path: &[String]) -> Option<(&'static str, &'static [&'static str])> {
    let names = (1..=path.len()).rev().map(|length| path[..length].join("/"));
    names.flat_map(|name| LAYERS.iter().find(|(layer, _)| *layer == name)).next().copied()
}

/// Returns the names that a path begins with: several if it is a group in braces.
fn first_words(path: &str) -> Vec<String> {
    match path.strip_prefix('{') {
        Some(group) => group.split(',').map(|entry| first_word(entry.trim())).collect(),
        None => vec![first_word(path)],
    }
}

/// Returns the name that a path begins with.
fn first_word(path: &str) -> String {
    path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn parts_import_downward_only() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for (folder, order) in PARTS {
        for (file, text) in rust_files(&format!("src/{folder}")) {
            let below: Vec<&str> = file.trim_start_matches(&format!("src/{folder}/")).split('/').collect();
            let Some(own) = order.iter().position(|part| *part == below[0].trim_end_matches(".rs")) else {
                assert!(
                    matches!(below[0], "mod.rs" | "sizes.rs" | "tests.rs" | "tests"),
                    "{file} is in no list of parts"
                );
                continue;
            };
            seen += 1;
            let depth = below.len() - usize::from(below.last() == Some(&"mod.rs"));
            let parent = "super::".repeat(depth);
            let absolute = format!("crate::{}::", folder.replace('/', "::"));
            for (number, line) in production_lines(&text) {
                let code = code_of(line);
                let imports = code.split(&absolute).skip(1).chain(code.split(&parent).skip(1)).flat_map(first_words);
                for module in imports {
                    if order.iter().position(|part| *part == module).is_some_and(|other| other > own) {
                        problems.push(format!("{file}:{number}: {} imports {module}", order[own]));
                    }
                }
                // An import through the root's exports, which are for the layers above.
                if code.split(&absolute).skip(1).any(|imported| imported.starts_with(char::is_uppercase)) {
                    problems.push(format!("{file}:{number}: imports from the root of {folder}"));
                }
            }
        }
    }
    assert!(seen > 120, "{seen} files");
    report(problems);
}

/// Returns the lines before a file's unit tests, which are at its end, with their numbers.
fn production_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_production = |line: &&str| !line.contains("#[cfg(test)]") && !line.contains("#[cfg(all(test");
    (1..).zip(text.lines().take_while(is_production))
}

#[test]
fn the_library_for_c_imports_only_the_provider_tier() {
    let mut problems = Vec::new();
    let files = rust_files("capi");
    assert!(files.len() > 20, "{} files", files.len());
    for (file, text) in files {
        for (number, line) in text.lines().enumerate() {
            for imported in code_of(line).split("rdma_verbs::").skip(1) {
                let module = first_word(imported);
                if !USED_BY_CAPI.contains(&module.as_str()) {
                    problems.push(format!("{file}:{}: imports {module}", number + 1));
                }
            }
        }
    }
    report(problems);
}

#[test]
fn the_files_of_the_library_for_c_import_in_no_cycle() {
    let module = |file: &str| module_of(file.trim_start_matches("capi/src/"));
    let files = rust_files("capi/src");
    let names: BTreeSet<String> = files.iter().flat_map(|(file, _)| module(file).into_iter().next()).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in files {
        let module = module(&file);
        let Some(own) = module.first() else { continue };
        let found =
            imports(&module, production_lines(&text)).into_iter().filter_map(|(_, path)| path.into_iter().next());
        let other: BTreeSet<String> = found.filter(|name| names.contains(name) && name != own).collect();
        graph.entry(own.clone()).or_default().extend(other);
    }
    assert!(graph.len() > 30 && graph["context"].contains("shared"), "{graph:?}");
    report(cycles(&graph).iter().map(|cycle| format!("capi/src: {cycle:?} import each other")).collect());
}

#[test]
fn unsafe_occurs_only_in_its_islands() {
    let mut problems = Vec::new();
    for (file, text) in rust_files("src") {
        if UNSAFE_ISLANDS.iter().any(|island| file.starts_with(island)) || is_test_file(&file) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = code_of(line);
            let words = code.replace("unsafe_", "").replace("_unsafe", "");
            if !words.contains("unsafe") {
                continue;
            }
            let declares = words.contains("unsafe fn") && UNSAFE_DECLARATIONS.contains(&file.as_str());
            let calls = words.contains("unsafe {") && UNSAFE_DECLARATIONS.contains(&file.as_str());
            if !declares && !calls {
                problems.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report(problems);
}

#[test]
fn files_and_lines_are_short() {
    let mut problems = Vec::new();
    for (file, text) in all_files() {
        let (lines, is_listed) = (text.lines().count(), LONG_FILES.contains(&file.as_str()));
        let limit = if is_listed { LONG_FILE_LINES_LIMIT } else { FILE_LINES_LIMIT };
        if lines > limit {
            problems.push(format!("{file}: {lines} lines; at most {limit}"));
        }
        if is_listed && lines <= FILE_LINES_LIMIT {
            problems.push(format!("{file}: {lines} lines; remove it from LONG_FILES"));
        }
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_WIDTH_LIMIT {
                problems.push(format!("{file}:{}: wider than {LINE_WIDTH_LIMIT}", number + 1));
            }
        }
    }
    report(problems);
}

/// Returns the name of the function that a line begins, if it begins one.
fn function_begun(code: &str) -> Option<String> {
    let start = code.find("fn ")?;
    let before = code[..start].trim();
    let qualifiers = ["", "pub", "const", "async", "unsafe", "extern", "pub(super)", "pub(crate)"];
    if !before.split_whitespace().all(|word| qualifiers.contains(&word)) {
        return None;
    }
    let name: String = code[start + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

#[test]
fn functions_are_short() {
    let mut problems = Vec::new();
    for (file, text) in all_files() {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let Some(name) = function_begun(&code_of(line)) else { continue };
            let opened = lines[start..].iter().find(|line| line.ends_with('{') || line.ends_with(';'));
            if opened.is_none_or(|line| line.ends_with(';')) {
                continue; // declared only, or on one line
            }
            let indent = line.len() - line.trim_start().len();
            let closing = format!("{}}}", " ".repeat(indent));
            let length = lines[start..].iter().position(|line| **line == closing).map_or(1, |end| end + 1);
            if length > FUNCTION_LINES_LIMIT {
                problems
                    .push(format!("{file}:{}: {name} has {length} lines; at most {FUNCTION_LINES_LIMIT}", start + 1));
            }
        }
    }
    report(problems);
}

/// Words and phrases that a native engineer would not write in a comment or document, in lower case. The style guide is
/// in CONTRIBUTING.md.
const BANNED_PHRASES: &[&str] = &[
    "nobody",
    "somebody",
    "whoever",
    "anew",
    "shall",
    "in vain",
    "for nothing",
    "comes to light",
    "tells of",
    "tell of",
    "told of",
    "is told",
    "are told",
    "asks for",
    "is asked",
    "are asked",
    "way back",
    "pieces",
    "leads nowhere",
    "peer of our own",
    "stranger",
    "strangers",
    "takes away",
];
/// Sentences must not begin with these: the thing is the subject.
const BANNED_BEGINNINGS: &[&str] = &["What ", "Who ", "Whose "];

#[test]
fn prose_is_plain() {
    let mut problems = Vec::new();
    let files = all_files().into_iter().filter(|(file, _)| file != "tests/tidy.rs");
    let comments = files.flat_map(|(file, text)| paragraphs(&file, text.lines().map(comment_of)));
    let documents = documents().into_iter().flat_map(|(file, text)| {
        let mut is_code = false;
        let prose = text.lines().map(move |line| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            if is_code || is_fence { "" } else { line }
        });
        paragraphs(&file, prose)
    });
    for (file, number, paragraph) in comments.chain(documents) {
        let prose = without_code(&paragraph);
        let lower = prose.to_lowercase();
        let phrases = BANNED_PHRASES.iter().filter(|phrase| has_phrase(&lower, phrase));
        let begins = |start: &&&str| {
            prose.starts_with(**start) || [". ", ": "].iter().any(|end| prose.contains(&format!("{end}{start}")))
        };
        let beginnings = BANNED_BEGINNINGS.iter().filter(|start| !prose.contains('?') && begins(start));
        problems.extend(phrases.chain(beginnings).map(|found| format!("{file}:{number}: \"{found}\" in: {prose}")));
    }
    report(problems);
}

/// Returns whether the text contains the phrase as whole words.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let is_apart = |character: Option<char>| !character.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase)
        .any(|(at, _)| is_apart(text[..at].chars().next_back()) && is_apart(text[at + phrase.len()..].chars().next()))
}

/// Joins consecutive lines that are not empty into one text each, with the number of their first line.
fn paragraphs<'a>(file: &str, lines: impl Iterator<Item = &'a str>) -> Vec<(String, usize, String)> {
    let mut found: Vec<(String, usize, String)> = Vec::new();
    let mut is_within = false;
    for (number, line) in (1..).zip(lines.map(str::trim)) {
        match found.last_mut().filter(|_| is_within) {
            Some((_, _, text)) if !line.is_empty() => *text = format!("{text} {line}"),
            _ if !line.is_empty() => found.push((file.to_owned(), number, line.to_owned())),
            _ => {}
        }
        is_within = !line.is_empty();
    }
    found
}

/// Returns the text of the comment in the line; empty if there is none.
fn comment_of(line: &str) -> &str {
    let begins = |at: &usize| *at == 0 || line[..*at].ends_with(char::is_whitespace);
    let start = line.match_indices("//").map(|(at, _)| at).find(begins);
    start.map_or("", |at| line[at..].trim_start_matches(['/', '!']).trim_start())
}

/// Returns the documents, except the changelog, which keeps its old entries.
fn documents() -> Vec<(String, String)> {
    let mut folders = vec![root().join("docs")];
    let mut files: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of documents").map(|entry| entry.expect("an entry").path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false if entry.extension().is_some_and(|extension| extension == "md") => files.push(entry),
                false => {}
            }
        }
    }
    assert!(files.len() > 20, "{} documents", files.len());
    files.iter().map(|file| (relative(file), fs::read_to_string(file).expect("a document"))).collect()
}

/// Returns the text without code in backquotes.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[test]
fn nothing_is_left_unfinished() {
    let words = ["todo!", "unimplemented!", "dbg!"];
    let marks = ["FIXME", "XXX", "HACK"];
    let mut problems = Vec::new();
    for (file, text) in all_files().into_iter().filter(|(file, _)| file != "tests/tidy.rs") {
        for (number, line) in text.lines().enumerate() {
            let code = code_of(line);
            let banned = words.iter().any(|word| code.contains(word)) || marks.iter().any(|mark| line.contains(mark));
            let is_library = ["src/", "capi/src/", "rdmacm-capi/src/"].iter().any(|folder| file.starts_with(folder));
            let printed = is_library && (code.contains("println!") || code.contains("print!("));
            if banned || printed {
                problems.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report(problems);
}

/// `clippy.toml` lists the functions and types that these layers must not use, and clippy finds their uses.
#[test]
fn layers_without_input_and_output_deny_it() {
    let pure = ["types", "checksum", "wire", "memory", "queue", "transport", "cm", "owned", "asynchronous", "sim"];
    let lists = fs::read_to_string(root().join("clippy.toml")).expect("clippy's settings");
    let banned = ["Instant::now", "SystemTime::now", "thread::spawn", "thread::sleep", "UdpSocket", "TcpStream"];
    banned.iter().for_each(|name| assert!(lists.contains(name), "clippy.toml does not ban {name}"));
    let denied = "deny(clippy::disallowed_methods, clippy::disallowed_types)";
    let problems = pure.map(|layer| format!("src/{layer}/mod.rs")).into_iter().filter(|file| {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        !text.contains(denied)
    });
    report(problems.map(|file| format!("{file}: does not {denied}")).collect());
}

/// Otherwise a program with more privileges than its caller might obey variables of the caller's environment.
#[test]
fn one_file_reads_the_environment() {
    let reader = "src/sys/environment.rs";
    // `env!` is read by the compiler, `env::consts` is a constant.
    let banned = ["env::var", "env::vars", "env::temp_dir", "env::home_dir", "getenv", "environ"];
    let mut problems = Vec::new();
    for (file, text) in ["src", "capi/src", "rdmacm-capi/src"].into_iter().flat_map(rust_files) {
        for (number, line) in production_lines(&text).filter(|_| file != reader && !is_test_file(&file)) {
            let code = code_of(line).replace("environment", "");
            if banned.iter().any(|word| code.contains(word)) {
                problems.push(format!("{file}:{number}: {}", line.trim()));
            }
        }
    }
    assert!(root().join(reader).is_file());
    report(problems);
}

/// A child that is forked while another thread holds a lock, or initializes a `OnceLock`, waits for it forever.
#[test]
fn static_locks_are_known() {
    const LOCKS: &[&str] = &["Mutex<", "RwLock<", "OnceLock<", "LazyLock<", "Once "];
    let is_lock = |line: &str| {
        let code = code_of(line);
        let kind = code.split_once("static ").and_then(|(_, rest)| rest.split_once(": "));
        kind.is_some_and(|(_, kind)| {
            !kind.starts_with("PerGeneration<") && LOCKS.iter().any(|lock| kind.contains(lock))
        })
    };
    let files = ["src", "capi/src", "rdmacm-capi/src"].into_iter().flat_map(rust_files);
    let with_lock =
        files.filter(|(file, text)| !is_test_file(file) && production_lines(text).any(|(_, line)| is_lock(line)));
    let found: BTreeSet<String> = with_lock.map(|(file, _)| file).collect();
    let known: BTreeSet<String> = STATIC_LOCKS.iter().map(|file| (*file).to_owned()).collect();
    assert_eq!(found, known);
}

fn is_test_file(file: &str) -> bool {
    file.ends_with("tests.rs") || file.ends_with("_test.rs") || file.contains("loom") || file.contains("/tests/")
}

#[test]
fn every_operation_has_its_row_in_the_table_of_verbs() {
    let table = fs::read_to_string(root().join("docs/verbs.md")).expect("the table of verbs");
    let mut problems = Vec::new();
    let requests = fs::read_to_string(root().join("src/types/request.rs")).expect("the operations");
    let operations = requests.split_once("pub enum Operation {").expect("the operations").1;
    for line in operations.lines().take_while(|line| *line != "}").filter(|line| !line.starts_with("     ")) {
        let name: String = line.trim().chars().take_while(|c| c.is_alphanumeric()).collect();
        if name.starts_with(char::is_uppercase) && !table.contains(&format!("(`{name}`)")) {
            problems.push(format!("docs/verbs.md: no row for the operation {name}"));
        }
    }
    report(problems);
}

#[test]
fn events_have_documented_targets_and_fields() {
    let document = fs::read_to_string(root().join("docs/tracing.md")).expect("the table of events");
    report(events::problems(&document, ["src", "capi/src", "rdmacm-capi/src"].into_iter().flat_map(rust_files)));
}

/// `tests/faults/run check` is stricter: it also checks that the text occurs exactly once in the function that the
/// fault names.
#[test]
fn the_texts_of_faults_are_in_their_files() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for entry in fs::read_dir(root().join("tests/faults/table")).expect("the table of faults") {
        let text = fs::read_to_string(entry.expect("a readable entry").path()).expect("a readable file");
        let table: toml::Table = text.parse().expect("TOML");
        for fault in table.get("fault").and_then(toml::Value::as_array).into_iter().flatten() {
            let changes = fault.get("change").and_then(toml::Value::as_array);
            for change in changes.map_or(std::slice::from_ref(fault), Vec::as_slice) {
                let [file, text] = ["file", "text"].map(|key| change[key].as_str().expect("a text"));
                let source = fs::read_to_string(root().join(file)).unwrap_or_default();
                if !source.contains(text.strip_suffix('\n').unwrap_or(text)) {
                    problems.push(format!("{file}: the text of the fault {} is gone", fault["name"]));
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 200, "{seen} changes");
    report(problems);
}
