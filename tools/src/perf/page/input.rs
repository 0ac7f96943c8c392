//! Reads results: the JSON documents of `perf`, also those in pages that `perf report` wrote. Their contents are not
//! trusted.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::common::printable_bytes;
use crate::perf::job::{Measure, Operation, Service, Sharing, Waiting};
use crate::perf::outcome::{Failure, Outcome};

/// The newest version of the documents that this program reads.
const SCHEMA: u64 = 1;
const MOST_FILES: usize = 6;
const MOST_BYTES: u64 = 32 << 20;
/// Limits of the elements of a document.
const MOST_RUNS: usize = 200;
const MOST_LINES: usize = 20_000;
const MOST_BINS: usize = 4_000;
const MOST_ROWS: usize = 2_000;
const MOST_TEXT: usize = 400;
/// Marks the documents in a page.
pub(super) const DATA_ID: &str = "rdma-verbs-results";

/// A document with its name, the name of its file.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) value: Value,
}

/// One or several runs, or a table.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    #[serde(default)]
    pub(super) runs: Vec<Run>,
    #[serde(default)]
    pub(super) rows: Vec<Row>,
    pub(super) machine: Option<Machine>,
    pub(super) invocation: Option<String>,
    pub(super) measured_at: Option<u64>,
    #[serde(default)]
    pub(super) not_measured: Vec<Unmeasured>,
    #[serde(default)]
    pub(super) failed: Vec<Unmeasured>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Run {
    pub(super) test: Test,
    #[serde(default)]
    pub(super) machine: Machine,
    pub(super) device: Option<Device>,
    pub(super) invocation: Option<String>,
    pub(super) measured_at: Option<u64>,
    pub(super) results: Vec<Line>,
    #[serde(default)]
    pub(super) references: Vec<ReferenceLine>,
}

/// The attributes of a job that tell it from others, and that its command needs.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Test {
    pub(super) operation: Operation,
    pub(super) measure: Measure,
    pub(super) service: Service,
    #[serde(default = "one")]
    pub(super) queue_pairs: u64,
    #[serde(default)]
    pub(super) mtu: Option<u32>,
    #[serde(default = "polling")]
    pub(super) waiting: Waiting,
    #[serde(default)]
    pub(super) bidirectional: bool,
    #[serde(default)]
    pub(super) program_memory: bool,
    #[serde(default)]
    pub(super) sharing: Option<Sharing>,
}

fn one() -> u64 {
    1
}

fn polling() -> Waiting {
    Waiting::Polling
}

#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub(super) struct Machine {
    #[serde(default)]
    pub(super) processor: String,
    #[serde(default)]
    pub(super) cores: u64,
    #[serde(default)]
    pub(super) kernel: String,
    #[serde(default)]
    pub(super) receive_buffer_limit: String,
    #[serde(default)]
    pub(super) load: String,
    #[serde(default)]
    pub(super) version: String,
    pub(super) optimised: Option<bool>,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Device {
    pub(super) name: String,
    #[serde(default)]
    pub(super) provider: String,
    #[serde(default)]
    pub(super) gid: String,
    pub(super) active_mtu: Option<u32>,
    pub(super) shared_memory: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) iterations: u64,
    #[serde(default)]
    pub(super) lost: u64,
    pub(super) latency: Option<Latency>,
    #[serde(default)]
    pub(super) distribution: Distribution,
    pub(super) gigabytes_per_second: Option<f64>,
    pub(super) million_messages_per_second: Option<f64>,
    pub(super) cpu_seconds_per_gigabyte: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReferenceLine {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) line: Line,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Latency {
    pub(super) min: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) mean: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) max: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Distribution {
    pub(super) microseconds: Vec<f64>,
    pub(super) messages: Vec<u64>,
}

/// A row of a table.
#[derive(Debug, Deserialize)]
pub(super) struct Row {
    pub(super) row: String,
    pub(super) verdicts: Vec<Verdict>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Verdict {
    pub(super) figure: String,
    #[serde(default)]
    pub(super) unit: String,
    pub(super) ours: Option<f64>,
    pub(super) other: Option<f64>,
    #[serde(default)]
    pub(super) compared_with: String,
    pub(super) ratio: Option<f64>,
    pub(super) least_ratio: Option<f64>,
    pub(super) most_ratio: Option<f64>,
    #[serde(default)]
    pub(super) target: BTreeMap<String, f64>,
    pub(super) is_met: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Unmeasured {
    pub(super) row: String,
    pub(super) why: String,
}

/// Reads files. A page may have several documents.
pub(super) fn read_all(files: &[std::path::PathBuf]) -> Outcome<Vec<Named>> {
    let too_many =
        |count| Failure::Usage(format!("FILES have {count} results; at most {MOST_FILES} fit on a page: give fewer"));
    if files.len() > MOST_FILES {
        return Err(too_many(files.len()));
    }
    let mut documents = Vec::new();
    for file in files {
        let found = read(file).map_err(|reason| Failure::Failed(format!("{}: {reason}", file.display())))?;
        documents.extend(found);
    }
    if documents.len() > MOST_FILES {
        return Err(too_many(documents.len()));
    }
    number_equal_names(&mut documents);
    Ok(documents)
}

fn read(file: &Path) -> Result<Vec<Named>, String> {
    let (name, text) = if file == Path::new("-") {
        ("standard input".to_owned(), text_of(std::io::stdin().lock())?)
    } else {
        let opened = std::fs::File::open(file).map_err(|error| format!("cannot read it: {error}"))?;
        let name = file.file_stem().unwrap_or(file.as_os_str());
        (name.to_string_lossy().into_owned(), text_of(opened)?)
    };
    if text.trim_start().starts_with('<') {
        return documents_of_page(&name, &text);
    }
    Ok(vec![Named { name, value: parse(&text)? }])
}

fn text_of(source: impl Read) -> Result<String, String> {
    let mut text = Vec::new();
    source.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|error| format!("cannot read it: {error}"))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("it is longer than {} MiB, the most that is read", MOST_BYTES >> 20));
    }
    String::from_utf8(text).map_err(|_| "it is not UTF-8, so it is no result of perf --json".to_owned())
}

/// Returns text of a document as it may be printed to a terminal: short, and without control characters.
pub(super) fn plain(text: &str) -> String {
    printable_bytes(text.as_bytes(), MOST_TEXT)
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("it is no JSON document of perf --json: {}", plain(&error.to_string())))
}

/// Returns the documents in a page of this program.
fn documents_of_page(name: &str, text: &str) -> Result<Vec<Named>, String> {
    let none = || "it is a page, but not one that perf report wrote: its results are missing".to_owned();
    let (_, rest) = text.split_once(&format!("id=\"{DATA_ID}\">")).ok_or_else(none)?;
    let (data, _) = rest.split_once("</script>").ok_or_else(none)?;
    let Value::Array(elements) = parse(data)? else { return Err(none()) };
    let is_single = elements.len() == 1;
    let named = |mut element: Value| {
        let own = element["name"].as_str().map(plain).filter(|_| !is_single);
        let value = element.get_mut("document").map(Value::take)?;
        Some(Named { name: own.unwrap_or_else(|| name.to_owned()), value })
    };
    elements.into_iter().map(|element| named(element).ok_or_else(none)).collect()
}

/// Gives each document a name of its own.
fn number_equal_names(documents: &mut [Named]) {
    let names: Vec<String> = documents.iter().map(|document| document.name.clone()).collect();
    for (index, document) in documents.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == names[index]).count() > 1 {
            let number = names[..=index].iter().filter(|name| **name == names[index]).count();
            document.name = format!("{} ({number})", document.name);
        }
    }
}

impl Document {
    /// Checks a document and returns what it contains.
    pub(super) fn of(named: &Named) -> Outcome<Self> {
        let document = Self::parse(&named.value).and_then(|document| document.check().map(|()| document));
        document.map_err(|reason| Failure::Failed(format!("{}: {reason}", named.name)))
    }

    fn parse(value: &Value) -> Result<Self, String> {
        if let Some(schema) = value.get("schema")
            && schema.as_u64().is_none_or(|schema| schema > SCHEMA)
        {
            return Err(format!(
                "its schema is {}; this version of the program reads {SCHEMA}",
                plain(&schema.to_string())
            ));
        }
        let is_known = ["test", "runs", "rows"].iter().any(|name| value.get(name).is_some());
        if !is_known {
            let what = "it has none of \"test\", \"runs\" and \"rows\"";
            return Err(format!("{what}; `perf ... --json`, `perf table --json` and `perf report --save` write them"));
        }
        let wrong = |error: serde_json::Error| format!("it is no result of perf --json: {}", plain(&error.to_string()));
        let mut document = Self::deserialize(value).map_err(wrong)?;
        if value.get("test").is_some() {
            document.runs.push(Run::deserialize(value).map_err(wrong)?);
        }
        Ok(document)
    }

    fn check(&self) -> Result<(), String> {
        check_count("runs", self.runs.len(), MOST_RUNS)?;
        check_count("rows", self.rows.len() + self.not_measured.len() + self.failed.len(), MOST_ROWS)?;
        check_count("verdicts", self.rows.iter().map(|row| row.verdicts.len()).sum(), MOST_ROWS)?;
        check_text("invocation", self.invocation.as_deref().unwrap_or_default())?;
        for row in &self.rows {
            check_text("row", &row.row)?;
            row.verdicts.iter().try_for_each(Verdict::check)?;
        }
        for row in self.not_measured.iter().chain(&self.failed) {
            check_text("row", &row.row)?;
            check_text("why", &row.why)?;
        }
        self.machine.iter().try_for_each(Machine::check)?;
        self.runs.iter().try_for_each(Run::check)
    }
}

impl Run {
    fn check(&self) -> Result<(), String> {
        if self.results.is_empty() {
            return Err("a run has no results: it was interrupted, or it failed".to_owned());
        }
        check_count("results", self.results.len() + self.references.len(), MOST_LINES)?;
        check_text("invocation", self.invocation.as_deref().unwrap_or_default())?;
        self.machine.check()?;
        if let Some(Device { name, provider, gid, shared_memory, .. }) = &self.device {
            let shared_memory = shared_memory.as_deref().unwrap_or_default();
            [name, provider, gid, shared_memory].iter().try_for_each(|text| check_text("device", text))?;
        }
        self.references.iter().try_for_each(|reference| check_text("name", &reference.name))?;
        let references = self.references.iter().map(|reference| &reference.line);
        self.results.iter().chain(references).try_for_each(Line::check)
    }
}

impl Machine {
    fn check(&self) -> Result<(), String> {
        let Self { processor, kernel, receive_buffer_limit, load, version, .. } = self;
        let texts = [processor, kernel, receive_buffer_limit, load, version];
        texts.iter().try_for_each(|text| check_text("machine", text))
    }
}

impl Verdict {
    fn check(&self) -> Result<(), String> {
        let Self { figure, unit, compared_with, .. } = self;
        [figure, unit, compared_with].iter().try_for_each(|text| check_text("verdicts", text))?;
        check_count("target", self.target.len(), 1)?;
        self.target.keys().try_for_each(|text| check_text("target", text))?;
        let numbers = [self.ours, self.other, self.ratio, self.least_ratio, self.most_ratio];
        numbers.into_iter().flatten().chain(self.target.values().copied()).try_for_each(|n| check_number("verdicts", n))
    }
}

impl Line {
    fn check(&self) -> Result<(), String> {
        let Distribution { microseconds, messages } = &self.distribution;
        check_count("distribution", microseconds.len(), MOST_BINS)?;
        if microseconds.len() != messages.len() || !microseconds.is_sorted() {
            return Err("distribution: there are not as many messages as times, or the times do not ascend".to_owned());
        }
        let latency = self.latency.iter().flat_map(|latency| {
            let Latency { min, p50, mean, p99, p999, max } = *latency;
            [min, p50, mean, p99, p999, max]
        });
        let others = [self.gigabytes_per_second, self.million_messages_per_second, self.cpu_seconds_per_gigabyte];
        let numbers = latency.chain(others).flatten().chain(microseconds.iter().copied());
        numbers.into_iter().try_for_each(|number| check_number("results", number))
    }
}

fn check_count(what: &str, count: usize, most: usize) -> Result<(), String> {
    if count <= most { Ok(()) } else { Err(format!("{what} has {count} elements; at most {most} are read")) }
}

fn check_text(what: &str, text: &str) -> Result<(), String> {
    if text.len() <= MOST_TEXT {
        return Ok(());
    }
    Err(format!("{what} has a text of {} bytes; at most {MOST_TEXT} are read", text.len()))
}

/// Times, rates and ratios are not negative, and not beyond anything that a chart can show.
fn check_number(what: &str, number: f64) -> Result<(), String> {
    if (0.0..=1e12).contains(&number) {
        return Ok(());
    }
    Err(format!("{what} has the number {number}; allowed are 0 to 10^12"))
}
