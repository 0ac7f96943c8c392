//! The page of `rdma-verbs perf report`: its numbers are those of the results, it is well-formed, needs no other file,
//! escapes all text, finds changes, and results that are not what they should be give an error.

#[path = "support/ensure.rs"]
mod ensure;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use ensure::ensure;
use libtest_mimic::{Arguments, Failed, Trial};
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma-verbs");
/// Text that would leave its place in a page, a terminal or a script.
const HOSTILE: &str = "</script></style>\"'><img src=x onerror=alert(1)>&lt;\u{1b}[31m\u{202e}\u{0}";
const MUTATIONS: usize = 150;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Measurements use the same two devices.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::test("numbers_are_those_of_the_results", numbers_are_those_of_the_results),
        Trial::test("streams_and_their_references", streams_and_their_references),
        Trial::test("repetitions_give_medians_and_noise", repetitions_give_medians_and_noise),
        Trial::test("changes_beyond_noise", changes_beyond_noise),
        Trial::test("old_results", old_results),
        Trial::test("all_text_is_escaped", all_text_is_escaped),
        Trial::test("wrong_results", wrong_results),
        Trial::test("mutated_results", mutated_results),
        Trial::test("wrong_usage", wrong_usage),
        Trial::test("full_disk", full_disk),
        Trial::test("interrupted", interrupted),
        Trial::test("measured_by_itself", measured_by_itself),
        Trial::test("table", table),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A folder of a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, Failed> {
        let path = std::env::temp_dir().join(format!("rdma-verbs-report-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn file(&self, name: &str, contents: &[u8]) -> Result<String, Failed> {
        let path = self.0.join(name);
        std::fs::write(&path, contents)?;
        Ok(path.display().to_string())
    }

    fn json(&self, name: &str, value: &Value) -> Result<String, Failed> {
        self.file(name, value.to_string().as_bytes())
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A page that cannot be written leaves the one that is there.
fn full_disk() -> Result<(), Failed> {
    let folder = Folder::new("full")?;
    let results = folder.json("results.json", &latency(&[5.0]))?;
    let file = folder.file("page.html", b"the page before")?;
    let script = "trap '' XFSZ; ulimit -f 2; exec \"$0\" perf report \"$1\" -o \"$2\"";
    let ended = Command::new("sh").args(["-c", script, PROGRAM, &results, &file]).output()?;
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure(ended.status.code() == Some(1) && error.contains("cannot write"), || format!("{}: {error}", ended.status))?;
    ensure(std::fs::read(&file)? == b"the page before", || "the page before is damaged".to_owned())?;
    ensure(std::fs::read_dir(&folder.0)?.count() == 2, || "a part of the page is left".to_owned())?;
    output(&["report", &results, "-o", &file])?;
    ensure(std::fs::read_to_string(&file)?.starts_with("<!DOCTYPE html>"), || "no page".to_owned())
}

/// Ctrl-C while it measures leaves no empty files.
fn interrupted() -> Result<(), Failed> {
    let folder = Folder::new("interrupted")?;
    let files = ["page.html", "results.json"].map(|name| folder.path(name));
    let mut command = Command::new(PROGRAM);
    command.args(["perf", "report", "--seconds", "60", "-o", &files[0], "--save", &files[1]]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stderr.take().ok_or("no pipe")?).read_line(&mut line)?;
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let status = child.wait()?;
    // The signal itself ends it before the program waits for it.
    let is_interrupted = status.code() == Some(130) || status.signal() == Some(2);
    ensure(line.contains("measuring") && killed.success() && is_interrupted, || format!("{status}: {line}"))?;
    ensure(std::fs::read_dir(&folder.0)?.count() == 0, || "files without contents are left".to_owned())
}

fn perf(arguments: &[&str]) -> Result<Output, Failed> {
    Ok(Command::new(PROGRAM).arg("perf").args(arguments).stdin(Stdio::null()).output()?)
}

/// Runs the program, which must succeed, and returns its standard output.
fn output(arguments: &[&str]) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = perf(arguments)?;
    ensure(status.success(), || format!("{arguments:?}: {status}: {}", String::from_utf8_lossy(&stderr)))?;
    Ok(String::from_utf8(stdout)?)
}

/// Measures between two devices of this test's own.
fn measured(arguments: &str) -> Result<Value, Failed> {
    let [.., high, low] = std::process::id().to_be_bytes();
    let [own, partner] = [95, 96].map(|network| format!("soft:127.{network}.{high}.{low}"));
    let mut all = vec!["self"];
    all.extend(arguments.split_whitespace());
    all.extend(["--json", "-d", &own, "--partner-dev", &partner]);
    Ok(serde_json::from_str(&output(&all)?)?)
}

/// Returns the text of the page about these files.
fn page(files: &[&str]) -> Result<String, Failed> {
    output(&[&["report"], files, &["-o", "-"]].concat())
}

/// Checks that a page is well-formed and refers to nothing outside.
fn parsed(text: &str) -> Result<Document<'_>, Failed> {
    ensure(text.starts_with("<!DOCTYPE html>"), || "no HTML".to_owned())?;
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)?;
    for node in document.descendants().filter(Node::is_element) {
        let known = ["style", "script"];
        let name = node.tag_name().name();
        ensure(!["img", "link", "iframe", "object", "base", "form"].contains(&name), || format!("<{name}>"))?;
        if known.contains(&name) {
            let contents = node.text().unwrap_or_default();
            let is_data = node.attribute("type") == Some("application/json");
            let is_outside = ["url(", "@import", "http:", "https:", "fetch(", "import("].iter();
            ensure(is_data || !is_outside.into_iter().any(|word| contents.contains(word)), || contents.to_owned())?;
        }
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            let is_inside = !["src", "srcset", "href", "style"].contains(&name) || value.starts_with('#');
            ensure(is_inside && !name.starts_with("on"), || format!("{name}=\"{value}\""))?;
            let is_number =
                !["NaN", "inf"].iter().any(|word| ["d", "x", "y", "cx", "cy"].contains(&name) && value.contains(word));
            ensure(is_number, || format!("{name}=\"{value}\""))?;
        }
    }
    Ok(document)
}

fn class_is(node: &Node<'_, '_>, class: &str) -> bool {
    node.attribute("class").is_some_and(|classes| classes.split(' ').any(|name| name == class))
}

fn text_of(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|text| text.text()).collect::<String>().replace('\u{a0}', " ")
}

fn headline(document: &Document<'_>) -> Result<String, Failed> {
    let found = document.descendants().find(|node| class_is(node, "headline")).ok_or("no headline")?;
    Ok(text_of(found))
}

/// Returns the exact numbers of the row for a size in the card with this title.
fn row(document: &Document<'_>, title: &str, bytes: u64) -> Result<Vec<f64>, Failed> {
    let is_title = |node: &Node<'_, '_>| local(node) == "h2" && node.text() == Some(title);
    let mut cards = document.descendants().filter(|node| class_is(node, "card"));
    let card = cards.find(|card| card.children().any(|node| is_title(&node)));
    let card = card.ok_or_else(|| format!("no card {title}"))?;
    let size = bytes.to_string();
    let head = card.descendants().find(|node| local(node) == "th" && node.attribute("data-value") == Some(&size));
    let row = head.and_then(|head| head.parent()).ok_or_else(|| format!("no row for {bytes} B in {title}"))?;
    let values = row.descendants().filter_map(|node| node.attribute("data-value"));
    Ok(values.map(str::parse).collect::<Result<_, _>>()?)
}

fn local<'a>(node: &Node<'a, '_>) -> &'a str {
    node.tag_name().name()
}

fn numbers_are_those_of_the_results() -> Result<(), Failed> {
    let folder = Folder::new("numbers")?;
    let results = measured("send lat -a -n 60 --references --shared-memory off")?;
    let text = page(&[&folder.json("send.json", &results)?])?;
    let document = parsed(&text)?;
    let charts = document.descendants().filter(|node| local(node) == "svg").count();
    ensure(charts == 4, || format!("{charts} charts"))?;
    for line in results["results"].as_array().ok_or("no results")? {
        let bytes = line["bytes"].as_u64().ok_or("no size")?;
        let found = row(&document, "SEND latency over UDP", bytes)?;
        let names = ["min", "p50", "mean", "p99", "p999", "max"];
        let wanted: Vec<f64> = names.iter().filter_map(|name| line["latency"][*name].as_f64()).collect();
        ensure(found.len() >= 8 && found[1..7] == wanted, || format!("{bytes} B: {found:?} instead of {wanted:?}"))?;
        let of_size = results["references"].as_array().into_iter().flatten().filter(|line| line["bytes"] == bytes);
        let medians: Vec<f64> = of_size.filter_map(|line| line["latency"]["p50"].as_f64()).collect();
        let best = medians.iter().copied().fold(f64::INFINITY, f64::min);
        let ratio = found.last().copied().unwrap_or_default();
        ensure(found[7..found.len() - 1] == medians, || format!("{bytes} B: {found:?}, references {medians:?}"))?;
        ensure((ratio - wanted[1] / best).abs() < 1e-9, || {
            format!("{bytes} B: {ratio} instead of {}", wanted[1] / best)
        })?;
        let count: u64 =
            line["distribution"]["messages"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
        ensure(Some(count) == line["iterations"].as_u64(), || format!("{count} messages in the distribution: {line}"))?;
    }
    for wanted in ["raw UDP", "TCP", "Half round trip", "send lat -a -n 60 --references", env!("CARGO_PKG_VERSION")] {
        ensure(text.contains(wanted), || format!("no \"{wanted}\""))?;
    }
    let headline = headline(&document)?;
    ensure(headline.starts_with("Debug build") == cfg!(debug_assertions), || headline.clone())
}

fn streams_and_their_references() -> Result<(), Failed> {
    let folder = Folder::new("streams")?;
    let results = measured("write bw -a -n 4 --shared-memory off")?;
    let text = page(&[&folder.json("write.json", &results)?])?;
    let document = parsed(&text)?;
    let lines = results["results"].as_array().ok_or("no results")?;
    ensure(lines.len() == 23, || format!("{} lines", lines.len()))?;
    for line in lines {
        let found = row(&document, "WRITE bandwidth over UDP", line["bytes"].as_u64().ok_or("no size")?)?;
        let names = ["bytes", "gigabytes_per_second", "million_messages_per_second", "cpu_seconds_per_gigabyte"];
        let wanted: Vec<f64> = names.iter().filter_map(|name| line[*name].as_f64()).collect();
        ensure(found == wanted, || format!("{found:?} instead of {wanted:?}"))?;
    }
    Ok(())
}

/// Returns results of SEND latency with these medians of 8 B, each of a repetition, and a reference of 4 µs.
fn latency(medians: &[f64]) -> Value {
    let line = |median: f64| {
        json!({
            "bytes": 8, "iterations": 100, "seconds": 0.1, "lost": 0, "gigabytes_per_second": 0.1,
            "million_messages_per_second": 0.1, "cpu_seconds_per_gigabyte": null,
            "latency": {
                "min": median / 2.0, "p50": median, "mean": median, "deviation": 1.0, "p99": median * 2.0,
                "p999": null, "max": median * 3.0
            },
            "distribution": { "microseconds": [median, median * 2.0, median * 3.0], "messages": [50, 48, 2] },
        })
    };
    let results: Vec<Value> = medians.iter().map(|median| line(*median)).collect();
    let mut reference = line(4.0);
    reference["name"] = "raw UDP".into();
    json!({
        "test": { "operation": "send", "measure": "lat", "service": "RC", "sizes": [8] },
        "machine": {
            "processor": "Example", "cores": 2, "kernel": "6.1", "receive_buffer_limit": "4194304", "load": "0.10",
            "version": "0.1.0", "optimised": true
        },
        "results": results,
        "references": [reference],
    })
}

fn repetitions_give_medians_and_noise() -> Result<(), Failed> {
    let folder = Folder::new("repetitions")?;
    let text = page(&[&folder.json("a.json", &latency(&[5.0, 4.8, 5.5]))?])?;
    let document = parsed(&text)?;
    let found = row(&document, "SEND latency", 8)?;
    ensure(found[2] == 5.0 && found.last() == Some(&1.25), || format!("{found:?}"))?;
    ensure(text_of(document.root()).contains("±10 %"), || "the noise is 0.5 of 5".to_owned())?;
    let met = "The comparison with a raw program meets its target";
    ensure(headline(&document)? == met, || headline(&document).unwrap_or_default())?;
    let text = page(&[&folder.json("b.json", &latency(&[5.1, 5.1, 5.1]))?])?;
    let missed = headline(&parsed(&text)?)?;
    ensure(missed == "The comparison with a raw program misses its target", || missed.clone())?;
    let mut both = latency(&[5.0, 10.0]);
    both["machine"]["load"] = "1.90".into();
    let text = page(&[&folder.json("both.json", &both)?])?;
    let said = headline(&parsed(&text)?)?;
    ensure(said.contains("but the machine was busy, and the noise is high: "), || said.clone())?;
    let mut busy = latency(&[5.0, 5.0]);
    busy["machine"]["load"] = "1.90".into();
    let text = page(&[&folder.json("busy.json", &busy)?])?;
    ensure(headline(&parsed(&text)?)?.ends_with("but the machine was busy"), || "a load of 1.9 on 2 cores".to_owned())?;
    let text = page(&[&folder.json("c.json", &latency(&[5.0, 4.0, 9.0]))?])?;
    let document = parsed(&text)?;
    let noisy = document.descendants().find(|node| class_is(node, "headline")).ok_or("no headline")?;
    ensure(class_is(&noisy, "attention") && text_of(noisy).contains("noise is high"), || text_of(noisy))
}

fn changes_beyond_noise() -> Result<(), Failed> {
    let folder = Folder::new("changes")?;
    let before = folder.json("before.json", &latency(&[5.0, 4.9, 5.1]))?;
    // The median and the 99th percentile change alike.
    let cases = [
        ([5.1, 5.0, 5.2], "No change beyond noise"),
        ([6.0, 5.9, 6.1], "2 figures worse, none better"),
        ([4.0, 3.9, 4.1], "2 figures better, none worse"),
        // Noise of 40 % explains 20 %.
        ([6.0, 4.0, 8.4], "No change beyond noise, but the noise is high: ±40 %"),
    ];
    for (medians, wanted) in cases {
        let after = folder.json("after.json", &latency(&medians))?;
        let text = page(&[&before, &after])?;
        let document = parsed(&text)?;
        let found = headline(&document)?;
        ensure(found == wanted, || format!("{medians:?}: {found} instead of {wanted}"))?;
        let [_, old, new, change] = row(&document, "SEND latency", 8)?[..] else {
            return Err("not four numbers".into());
        };
        ensure(old == 5.0 && new == medians[0], || format!("{old}, {new}"))?;
        ensure((change - (medians[0] / 5.0 - 1.0)).abs() < 1e-9, || format!("{change}"))?;
    }
    let other = latency(&[5.0]);
    let mut elsewhere = other.clone();
    elsewhere["machine"]["processor"] = "Another".into();
    elsewhere["test"]["operation"] = "write".into();
    let text = page(&[&folder.json("one.json", &other)?, &folder.json("two.json", &elsewhere)?])?;
    ensure(text.contains("different machines"), || "no warning of different machines".to_owned())?;
    let found = headline(&parsed(&text)?)?;
    ensure(found.contains("no measurement in common"), || found.clone())
}

/// Results of the first version have no distribution, no device and no command line.
fn old_results() -> Result<(), Failed> {
    let folder = Folder::new("old")?;
    let mut old = latency(&[5.0]);
    let lines = ["results", "references"].map(|name| format!("/{name}/0"));
    for pointer in lines {
        old.pointer_mut(&pointer).and_then(Value::as_object_mut).ok_or("no line")?.remove("distribution");
    }
    let text = page(&[&folder.json("old.json", &old)?])?;
    let document = parsed(&text)?;
    row(&document, "SEND latency", 8)?;
    let command = "rdma-verbs perf self send lat --json -s 8 --references";
    ensure(text.contains(command), || "no command to repeat".to_owned())
}

fn all_text_is_escaped() -> Result<(), Failed> {
    let folder = Folder::new("escapes")?;
    let mut hostile = latency(&[5.0]);
    for name in ["processor", "kernel", "receive_buffer_limit", "load", "version"] {
        hostile["machine"][name] = HOSTILE.into();
    }
    hostile["references"][0]["name"] = HOSTILE.into();
    hostile["invocation"] = HOSTILE.into();
    hostile["device"] = json!({ "name": HOSTILE, "provider": HOSTILE, "gid": HOSTILE, "shared_memory": HOSTILE });
    hostile["rows"] = json!([{ "row": HOSTILE, "verdicts": [{
        "figure": HOSTILE, "unit": HOSTILE, "compared_with": HOSTILE, "ratio": 1.0, "target": { HOSTILE: 1.0 }
    }] }]);
    hostile["failed"] = json!([{ "row": HOSTILE, "why": HOSTILE }]);
    let file = folder.json("<b>\"'&.json", &hostile)?;
    let out = folder.path("page.html");
    let printed = output(&["report", &file, &file, "-o", &out, "--title", HOSTILE.trim_end_matches('\0')])?;
    ensure(!printed.contains(['\u{1b}', '\u{0}']), || format!("{printed:?}"))?;
    let text = std::fs::read_to_string(&out)?;
    let document = parsed(&text)?;
    let scripts = document.descendants().filter(|node| local(node) == "script").count();
    ensure(scripts == 2, || format!("{scripts} scripts"))?;
    ensure(!text.contains(['\u{1b}', '\u{0}', '\u{202e}']), || "control characters".to_owned())?;
    let shown = text_of(document.root()).matches("<img src=x onerror=alert(1)>&lt;").count();
    ensure(shown > 20, || format!("the text is shown {shown} times"))?;
    // The results in the page are the same.
    let again = folder.path("again.html");
    output(&["report", &out, "-o", &again])?;
    let again = std::fs::read_to_string(&again)?;
    ensure(data(&again)?[0]["document"] == hostile, || "the results in the page differ".to_owned())
}

/// Returns the results in a page.
fn data(text: &str) -> Result<Value, Failed> {
    let document = parsed(text)?;
    let data = document.descendants().find(|node| node.attribute("type") == Some("application/json"));
    Ok(serde_json::from_str(data.and_then(|node| node.text()).ok_or("no results in the page")?)?)
}

/// Checks that a file is refused with this message.
fn refused(file: &str, hint: &str) -> Result<(), Failed> {
    let Output { status, stderr, .. } = perf(&["report", file, "-o", "-"])?;
    let printed = String::from_utf8_lossy(&stderr).into_owned();
    ensure(status.code() == Some(1), || format!("{hint}: {status}: {printed}"))?;
    ensure(printed.contains(hint) && !printed.contains('\u{1b}'), || format!("no \"{hint}\": {printed}"))
}

fn wrong_results() -> Result<(), Failed> {
    let folder = Folder::new("wrong")?;
    let changed = |pointer: &str, value: Value| -> Result<Value, Failed> {
        let mut results = latency(&[5.0]);
        *results.pointer_mut(pointer).ok_or("no such element")? = value;
        Ok(results)
    };
    let mut newer = latency(&[5.0]);
    newer["schema"] = json!(999);
    let many: Vec<f64> = (0..5000).map(f64::from).collect();
    let documents = [
        (json!({}), "none of"),
        (json!([1, 2]), "none of"),
        (json!({ "runs": 3 }), "invalid type"),
        (newer, "schema is 999"),
        (changed("/results", json!([]))?, "no results"),
        (changed("/results/0/bytes", json!(-1))?, "invalid value"),
        (changed("/results/0/latency/p50", json!(-5.0))?, "allowed are 0 to"),
        (changed("/results/0/latency/p50", json!(1e300))?, "allowed are 0 to"),
        (changed("/results/0/distribution/messages", json!([1]))?, "distribution"),
        (changed("/results/0/distribution/microseconds", json!([3.0, 2.0, 1.0]))?, "ascend"),
        (
            changed("/results/0/distribution", json!({ "microseconds": many, "messages": vec![1; 5000] }))?,
            "at most 4000",
        ),
        (changed("/test/operation", json!("\u{1b}[31mpaint"))?, "unknown variant"),
        (changed("/machine/processor", json!("x".repeat(1000)))?, "at most 400"),
    ];
    for (document, hint) in &documents {
        refused(&folder.json("wrong.json", document)?, hint)?;
    }
    refused(&folder.file("text.json", b"no JSON")?, "no JSON document")?;
    refused(&folder.file("deep.json", "[".repeat(100_000).as_bytes())?, "recursion")?;
    refused(&folder.file("number.json", br#"{"test": 1e999}"#)?, "number out of range")?;
    refused(&folder.file("binary.json", &[0xff, 0xfe, 0])?, "UTF-8")?;
    refused(&folder.file("other.html", b"<html></html>")?, "not one that perf report wrote")?;
    refused(&folder.file("empty.json", b"")?, "EOF")?;
    refused(&folder.path("absent.json"), "absent.json")?;
    refused(&folder.0.display().to_string(), "cannot read")
}

/// A damaged document gives a page or an error, and never a panic.
fn mutated_results() -> Result<(), Failed> {
    let folder = Folder::new("mutations")?;
    let whole = latency(&[5.0, 4.0]).to_string().into_bytes();
    let replacements: [&[u8]; 12] =
        [b"0", b"-1", b"1e308", b"null", b"\"", b"{", b"]", b",", b"18446744073709551615", b"1e-308", b"[[]]", b"\xff"];
    // A fixed sequence, so that a failure repeats.
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut pages = 0;
    for number in 0..MUTATIONS {
        let mut damaged = whole.clone();
        for _ in 0..=random(2) {
            // A number becomes another one, or any part something else.
            let digits: Vec<usize> = (0..damaged.len()).filter(|at| damaged[*at].is_ascii_digit()).collect();
            let at = if number % 2 == 0 { digits[random(digits.len())] } else { random(damaged.len()) };
            let length = (1 + random(4)).min(damaged.len() - at);
            let length = if number % 2 == 0 { 1 } else { length };
            damaged.splice(at..at + length, replacements[random(replacements.len())].iter().copied());
        }
        let file = folder.file("damaged.json", &damaged)?;
        let Output { status, stdout, stderr } = perf(&["report", &file, &file, "-o", "-"])?;
        let printed = String::from_utf8_lossy(&stderr);
        ensure(matches!(status.code(), Some(0 | 1)), || {
            format!("{status}: {printed}: {}", String::from_utf8_lossy(&damaged))
        })?;
        if status.success() {
            parsed(&String::from_utf8(stdout)?)?;
            pages += 1;
        }
    }
    ensure((5..MUTATIONS - 5).contains(&pages), || format!("{pages} of {MUTATIONS} are pages"))
}

fn wrong_usage() -> Result<(), Failed> {
    let folder = Folder::new("usage")?;
    let file = folder.json("a.json", &latency(&[5.0]))?;
    let many = [file.as_str(); 7];
    let usages = [
        (vec!["report", &file, "--seconds", "3"], 2, "cannot be used"),
        (vec!["report", &file, "--save", "b.json"], 2, "cannot be used"),
        (vec!["report", "--seconds", "0"], 2, "--seconds"),
        ([&["report"], &many[..]].concat(), 2, "at most 6"),
        (vec!["report", &file, "-o", "/nonexistent/page.html"], 1, "/nonexistent/page.html"),
        // Before it measures.
        (vec!["report", "-o", "/nonexistent/page.html"], 1, "/nonexistent/page.html"),
    ];
    for (arguments, code, hint) in usages {
        let Output { status, stderr, .. } = perf(&arguments)?;
        let printed = String::from_utf8_lossy(&stderr);
        ensure(status.code() == Some(code) && printed.contains(hint), || {
            format!("{arguments:?}: {status}: {printed}")
        })?;
    }
    // The reader of the page is gone.
    let mut child = Command::new(PROGRAM).args(["perf", "report", &file, "-o", "-"]).stdout(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let status = child.wait()?;
    ensure(status.success(), || format!("{status}"))
}

fn measured_by_itself() -> Result<(), Failed> {
    let folder = Folder::new("measured")?;
    let [out, saved] = ["page.html", "results.json"].map(|name| folder.path(name));
    let printed = output(&["report", "--seconds", "1", "-o", &out, "--save", &saved])?;
    ensure(printed.contains("SEND latency over UDP") && printed.contains(&out), || printed.clone())?;
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&saved)?)?;
    ensure(results["schema"] == 1 && results["command"] == "perf report", || results["schema"].to_string())?;
    let text = std::fs::read_to_string(&out)?;
    let document = parsed(&text)?;
    for title in ["SEND latency over UDP", "READ latency over UDP", "SEND message rate over UDP"] {
        row(&document, title, 8)?;
    }
    row(&document, "WRITE bandwidth over UDP", 1 << 20)?;
    for wanted in ["raw UDP", "TCP", "provider", "soft", "kernel", "path MTU", "Repeat", "perf report --seconds 1"] {
        ensure(text_of(document.root()).contains(wanted), || format!("no \"{wanted}\""))?;
    }
    ensure(data(&text)?[0]["document"] == results, || "the page has other results than the file".to_owned())?;
    // A page is as good as its results.
    let both = page(&[&saved, &out])?;
    let found = headline(&parsed(&both)?)?;
    ensure(found.starts_with("No change beyond noise") || found.contains("ebug build"), || found.clone())?;
    ensure(both.contains("0 of ") || both.contains("differ by no more than noise"), || "no sentence".to_owned())?;
    ensure(Path::new(&out).metadata()?.len() < 2 << 20, || "the page is large".to_owned())
}

fn table() -> Result<(), Failed> {
    let folder = Folder::new("table")?;
    let text = output(&["table", "--brief", "--repetitions", "1", "--json", "--only", "1 MiB beside TCP"])?;
    let results: Value = serde_json::from_str(&text)?;
    let verdict = &results["rows"][0]["verdicts"][0];
    let page = page(&[&folder.file("table.json", text.as_bytes())?])?;
    let document = parsed(&page)?;
    let head = document.descendants().find(|node| local(node) == "th" && node.text() == Some("WRITE 1 MiB beside TCP"));
    let row = head.and_then(|head| head.parent()).ok_or("no row")?;
    let found: Vec<&str> = row.descendants().filter_map(|node| node.attribute("data-value")).collect();
    let wanted = ["ours", "other"].map(|name| verdict[name].as_f64().unwrap_or_default().to_string());
    ensure(found == wanted, || format!("{found:?} instead of {wanted:?}"))
}
