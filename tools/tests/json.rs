//! Compares the JSON documents of all commands with their schemas in `docs/schemas/`, which `docs/json.md` lists.

mod support;

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Deserializer, Map, Value, json};
use support::{Shell, ensure, in_namespace};

/// A command in namespaces, and the name of its schema.
const DOCUMENTS: [(&str, &str, &str); 20] = [
    ("devices", "devices", "devices --json"),
    ("one_device", "devices", "devices -d soft:127.0.0.1 --json"),
    ("doctor", "doctor", "doctor --json"),
    ("doctor_of_a_host", "doctor", "doctor 192.0.2.1 --json"),
    ("ping", "ping", "ping -c 2 -i 0.02 127.0.0.2 --json"),
    ("ping_of_datagrams", "ping", "ping -c 2 -i 0.02 -t ud 127.0.0.2 --json"),
    ("ping_without_server", "ping", "ping -c 1 127.0.0.9 --json"),
    ("latency", "perf", "perf self send lat -n 50 --references --report --json $DEVICES"),
    ("bandwidth", "perf", "perf self write bw -n 50 --report --json --shared-memory off $DEVICES"),
    ("duration", "perf", "perf self read lat -D 0.1 -m 1024 --json $DEVICES"),
    ("report", "perf-report", "perf report --seconds 1 -o /tmp/page.html --save -"),
    ("statistics", "stat", "stat --json"),
    ("statistics_of_a_process", "stat", "stat --json --pid $PID"),
    ("no_statistics", "stat", "stat --json --device none"),
    ("capture", "capture", "capture $PID --duration 0.3 -w /tmp/new.pcapng --json"),
    ("capture_of_a_device", "capture", "capture 127.0.0.3 --bytes 8192 --json"),
    ("messages", "show", "show --json --packets /tmp/echoes*.pcapng"),
    ("no_messages", "show", "show --json --qp 1 /tmp/echoes*.pcapng"),
    ("summary", "show-summary", "show --summary --json /tmp/echoes*.pcapng"),
    ("table", "perf-table", "perf table --brief --repetitions 1 --only '1 MiB beside' --json"),
];
const DEVICES: &str = "-d soft:127.0.0.1 --partner-dev soft:127.0.0.2";

fn main() -> ExitCode {
    let documents = DOCUMENTS.into_iter().map(|(name, schema, command)| {
        Trial::test(name, move || in_namespace(name, |shell| document(shell, schema, command)))
    });
    let own = [
        Trial::test("samples", samples),
        Trial::test("checks_of_doctor", || in_namespace("checks_of_doctor", checks_of_doctor)),
        Trial::test("the_checker_finds_each_difference", the_checker_finds_each_difference),
        Trial::test("each_schema_is_listed", each_schema_is_listed),
    ];
    libtest_mimic::run(&Arguments::from_args(), documents.chain(own).collect()).exit_code()
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"))
}

fn schema(name: &str) -> Result<Value, Failed> {
    let text = std::fs::read_to_string(folder().join(format!("schemas/{name}.json")))?;
    Ok(serde_json::from_str(&text)?)
}

fn document(shell: &mut Shell, name: &str, command: &str) -> Result<(), Failed> {
    prepare(shell, name)?;
    let command = command.replace("$DEVICES", DEVICES).replace("$PID", "$(cat /tmp/pid)");
    let (_, output) = shell.run(&format!("timeout 200 \"$PROGRAM\" {command} 2> /tmp/errors"))?;
    let checked = check_all(name, &output);
    checked.map_err(|failed| format!("{command}: {}", failed.message().unwrap_or_default()))?;
    if name == "stat" && !command.ends_with("none") {
        let document: Value = serde_json::from_str(&output)?;
        let queue_pairs = document["processes"][0]["devices"][0]["queue_pairs"].as_array();
        ensure(queue_pairs.is_some_and(|queue_pairs| !queue_pairs.is_empty()), || format!("no values: {output}"))?;
    }
    let is_missing = match (name, command.contains("--qp")) {
        ("show", false) => !output.contains("\"type\":\"request\"") || !output.contains("\"packet_list\""),
        ("show-summary", _) => !output.contains("\"bits_per_second\""),
        _ => false,
    };
    ensure(!is_missing, || format!("{command}: no requests: {output}"))
}

/// Starts what the command needs: a server of echoes, and a client with echoes that are captured.
fn prepare(shell: &mut Shell, name: &str) -> Result<(), Failed> {
    shell.succeed("ip link set dev lo up")?;
    if ["ping", "stat", "capture", "show", "show-summary"].contains(&name) {
        shell.succeed("\"$PROGRAM\" ping --serve --bind 127.0.0.2 2> /tmp/log &")?;
        shell.succeed("for i in $(seq 500); do grep answering /tmp/log && break; sleep 0.02; done")?;
    }
    if ["stat", "capture", "show", "show-summary"].contains(&name) {
        shell.succeed(
            "RDMA_VERBS_SHARED_MEMORY=off RDMA_VERBS_CAPTURE=/tmp/echoes.pcapng \
             \"$PROGRAM\" ping -i 0.02 -d soft:127.0.0.3 127.0.0.2 > /tmp/echoes & echo $! > /tmp/pid",
        )?;
        shell.succeed("for i in $(seq 500); do grep -q seq=5 /tmp/echoes && break; sleep 0.02; done")?;
    }
    if name.starts_with("show") {
        shell.succeed("kill -INT $(cat /tmp/pid); wait $(cat /tmp/pid)")?;
    }
    Ok(())
}

/// Compares documents, one after the other, with a schema.
fn check_all(name: &str, output: &str) -> Result<(), Failed> {
    let schema = schema(name)?;
    let mut documents = Deserializer::from_str(output).into_iter::<Value>();
    let mut begin = 0;
    while let Some(document) = documents.next() {
        let document = document.map_err(|error| format!("{error}: {output}"))?;
        let mut problems = Vec::new();
        check(&schema, &schema, &document, "", &mut problems);
        ensure(problems.is_empty(), || format!("{problems:#?}\n{document:#}"))?;
        let text = &output[begin..documents.byte_offset()];
        let first: Vec<&str> = text.split('"').skip(1).step_by(2).take(2).collect();
        ensure(first == ["schema", "command"], || text.to_owned())?;
        begin = documents.byte_offset();
    }
    ensure(begin > 0, || "no document".to_owned())
}

/// The samples of `show` have all that captures contain.
fn samples() -> Result<(), Failed> {
    let samples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/show/samples"));
    for (file, name) in [("json.txt", "show"), ("summary-json.txt", "show-summary")] {
        check_all(name, &std::fs::read_to_string(samples.join(file))?)?;
    }
    Ok(())
}

/// The schema lists the checks that `doctor` has.
fn checks_of_doctor(shell: &mut Shell) -> Result<(), Failed> {
    let listed = shell.succeed("\"$PROGRAM\" doctor --list")?;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let schema = schema("doctor")?;
    let known = &schema["properties"]["checks"]["items"]["properties"]["name"]["enum"];
    ensure(*known == json!(names), || format!("{names:?} {known}"))
}

/// Keywords that the checker knows; `description`, `title` and `$schema` say nothing that can be checked.
const KEYWORDS: [&str; 13] = [
    "$defs",
    "$ref",
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "minimum",
    "properties",
    "required",
    "title",
];

/// Compares a value with a schema, more strictly than JSON Schema: a field that is not listed is a difference, too.
fn check(root: &Value, schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    if let Some(alternatives) = schema.get("anyOf").and_then(Value::as_array) {
        let found = alternatives.iter().map(|alternative| {
            let mut found = Vec::new();
            check(root, alternative, value, path, &mut found);
            found
        });
        // The alternative that fits best says what is wrong.
        problems.extend(found.min_by_key(Vec::len).unwrap_or_default());
    }
    let mut problem = |text: String| problems.push(format!("{path}: {text}"));
    let Some(rules) = schema.as_object() else { return problem("the schema is no object".to_owned()) };
    for keyword in rules.keys().filter(|keyword| *keyword != "type" && !KEYWORDS.contains(&keyword.as_str())) {
        problem(format!("the checker does not know {keyword}"));
    }
    if let Some(target) = rules.get("$ref").and_then(Value::as_str) {
        return match root.pointer(target.trim_start_matches('#')) {
            Some(target) => check(root, target, value, path, problems),
            None => problem(format!("{target} does not exist")),
        };
    }
    let types: Vec<&str> = match rules.get("type") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        Some(name) => name.as_str().into_iter().collect(),
        None => Vec::new(),
    };
    if rules.contains_key("type") && !types.iter().any(|name| is_of_type(value, name)) {
        return problem(format!("{value} is not of {types:?}"));
    }
    if rules.get("const").is_some_and(|only| only != value) {
        problem(format!("{value} is not {}", rules["const"]));
    }
    if rules.get("enum").and_then(Value::as_array).is_some_and(|allowed| !allowed.contains(value)) {
        problem(format!("{value} is not one of {}", rules["enum"]));
    }
    if let (Some(least), Some(number)) = (rules.get("minimum").and_then(Value::as_f64), value.as_f64())
        && number < least
    {
        problem(format!("{number} is below {least}"));
    }
    for (index, entry) in value.as_array().into_iter().flatten().enumerate() {
        check(root, &rules["items"], entry, &format!("{path}/{index}"), problems);
    }
    if let Some(fields) = value.as_object().filter(|_| !rules.contains_key("anyOf")) {
        check_fields(root, rules, fields, path, problems);
    }
}

fn check_fields(
    root: &Value,
    rules: &Map<String, Value>,
    fields: &Map<String, Value>,
    path: &str,
    problems: &mut Vec<String>,
) {
    for name in rules.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            problems.push(format!("{path}/{name} is missing"));
        }
    }
    for (name, field) in fields {
        let listed = rules.get("properties").and_then(|properties| properties.get(name));
        match listed.or_else(|| rules.get("additionalProperties")) {
            Some(schema) => check(root, schema, field, &format!("{path}/{name}"), problems),
            None => problems.push(format!("{path}/{name} is not in the schema")),
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn the_checker_finds_each_difference() -> Result<(), Failed> {
    let schema = json!({
        "type": "object",
        "properties": {
            "schema": {"const": 1},
            "kind": {"type": ["string", "null"], "enum": ["a", null]},
            "counts": {"type": "array", "items": {"$ref": "#/$defs/count"}},
            "map": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"anyOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"type": "string"}]},
        },
        "required": ["schema", "kind"],
        "$defs": {"count": {"type": "integer", "minimum": 0}},
    });
    let count = |schema: &Value, value: Value| {
        let mut problems = Vec::new();
        check(schema, schema, &value, "", &mut problems);
        problems.len()
    };
    let right = json!({"schema": 1, "kind": null, "counts": [0, 7], "map": {"x": 1.5}, "either": {"a": 1}});
    ensure(count(&schema, right.clone()) == 0, || "the right document is refused".to_owned())?;
    let changes = [
        ("schema", json!(2)),
        ("kind", json!("b")),
        ("kind", json!(1)),
        ("counts", json!([1, -1])),
        ("counts", json!([1.5])),
        ("map", json!({"x": "y"})),
        ("either", json!({"a": 2})),
        ("either", json!({"b": 1})),
        ("either", json!(1)),
        ("new", json!(0)),
    ];
    for (field, value) in changes {
        let mut wrong = right.clone();
        wrong[field] = value.clone();
        ensure(count(&schema, wrong) == 1, || format!("{field} {value} is accepted"))?;
    }
    ensure(count(&schema, json!({"schema": 1})) == 1, || "a field may be missing".to_owned())?;
    ensure(count(&json!({"maximum": 1}), json!(0)) == 1, || "an unknown keyword is accepted".to_owned())
}

/// Each schema is in the page, and is that of a document above.
fn each_schema_is_listed() -> Result<(), Failed> {
    let page = std::fs::read_to_string(folder().join("json.md"))?;
    for entry in std::fs::read_dir(folder().join("schemas"))? {
        let file = entry?.file_name().to_string_lossy().into_owned();
        ensure(page.contains(&format!("(schemas/{file})")), || format!("docs/json.md does not list {file}"))?;
        let name = file.trim_end_matches(".json");
        ensure(DOCUMENTS.iter().any(|(_, schema, _)| *schema == name), || format!("no test uses {file}"))?;
    }
    Ok(())
}
