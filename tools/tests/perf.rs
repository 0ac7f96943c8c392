//! Brief runs of `rdma-verbs perf` in all its modes: it measures, prints the right format, refuses invalid arguments,
//! and exits with the right code. The measured speed is not judged.

#[path = "support/ensure.rs"]
mod ensure;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use ensure::ensure;
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // All tests use the same two devices.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let mut trials = measurements();
    trials.extend([
        Trial::test("all_sizes_with_references_and_a_plot", all_sizes_with_references_and_a_plot),
        Trial::test("bandwidth_plot", bandwidth_plot),
        Trial::test("path_report", path_report),
        Trial::test("text", text),
        Trial::test("two_processes", two_processes),
        Trial::test("two_processes_that_differ", two_processes_that_differ),
        Trial::test("wrong_usage", wrong_usage),
        Trial::test("failures", failures),
        Trial::test("interrupt", interrupt),
        Trial::test("table", table),
        Trial::test("table_over_veth", table_over_veth),
        Trial::test("table_without_what_it_needs", table_without_what_it_needs),
        Trial::test("interrupt_over_veth", interrupt_over_veth),
    ]);
    trials
}

/// One measurement each.
const LATENCY: [&str; 18] = [
    "send lat --check",
    "send lat -s 8",
    "send lat -s 70000 --check -m 1024",
    "send lat -e --check",
    "send lat -c UC --check",
    "send lat -c UD --check -s 100",
    "send lat -I 0 -Q 1 -t 1 -r 1",
    "send lat -D 0.05",
    "write lat --check",
    "write lat -s 5000 -F",
    "write lat -s 1",
    "write lat --memory-only",
    "write lat -c UC",
    "write lat -D 0.05 -S 3",
    "read lat -s 4K --check",
    "read lat -e -o 1",
    "atomic lat --check",
    "atomic lat -A CMP_AND_SWAP --check -u 15",
];
const STREAMS: [&str; 19] = [
    "send bw --check",
    "send bw -b -q 3 --check -s 3000",
    "send bw -b -D 0.05 -s 1000",
    "send bw -c UC -s 4096 -t 4",
    "send bw -c UD -s 1K -t 4",
    "send bw -e --check",
    "send bw -D 0.05 -q 2",
    "write bw --check -m 256 -s 10000",
    "write bw -b --check -t 7 -Q 5 -l 3",
    "write bw -c UC -s 4096",
    "write bw -q 4 -D 0.05",
    "write bw -s 1M",
    "read bw --check",
    "read bw -b -q 2 --check -e",
    "atomic bw --check -q 2",
    "atomic bw -A CMP_AND_SWAP -b --check",
    "send rate --check",
    "write rate -l 64 -t 64 --check",
    "write rate --core 0",
];

fn measurements() -> Vec<Trial> {
    let trial = |command: &'static str, is_latency: bool| {
        Trial::test(command.replace(' ', "_"), move || measurement(command, is_latency))
    };
    let latency = LATENCY.into_iter().map(|command| trial(command, true));
    let mut trials: Vec<Trial> = latency.chain(STREAMS.into_iter().map(|command| trial(command, false))).collect();
    trials.push(trial("send lat --futures --check", true));
    trials
}

/// Returns a command for the program with these arguments; quoted text is one argument.
fn program(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-verbs"));
    command.arg("perf");
    for (number, part) in arguments.split('"').enumerate() {
        if number % 2 == 1 {
            command.arg(part)
        } else {
            command.args(part.split_whitespace())
        };
    }
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the names of two devices of this test's own, by process number.
fn devices() -> [String; 2] {
    let [.., high, low] = std::process::id().to_be_bytes();
    [95, 96].map(|network| format!("soft:127.{network}.{high}.{low}"))
}

/// Returns the arguments of `perf self` on those devices.
fn both(arguments: &str) -> String {
    let [own, partner] = devices();
    format!("self {arguments} -d {own} --partner-dev {partner}")
}

/// Runs the program to its end.
fn run(arguments: &str) -> Result<Output, Failed> {
    finish(program(arguments).spawn()?, arguments)
}

fn finish(child: Child, what: &str) -> Result<Output, Failed> {
    let pid = Pid::from_raw(child.id() as i32);
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match end.recv_timeout(PATIENCE) {
        Ok(output) => Ok(output?),
        Err(_) => {
            kill(pid, Signal::SIGKILL)?;
            Err(format!("{what}: hangs").into())
        }
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the program, which must succeed, and returns its standard output.
fn output(arguments: &str) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = run(arguments)?;
    if status.success() {
        return Ok(text_of(&stdout));
    }
    Err(format!("{arguments}: {status}: {}", text_of(&stderr)).into())
}

fn json(arguments: &str) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&output(&format!("{arguments} --json"))?)?)
}

fn number(value: &Value, name: &str) -> Result<f64, Failed> {
    let number = value[name].as_f64();
    number.ok_or_else(|| format!("no number {name} in {value}").into())
}

fn measurement(command: &str, is_latency: bool) -> Result<(), Failed> {
    let count = if command.contains("-D") { "" } else { " -n 300" };
    let document = json(&both(&format!("{command}{count}")))?;
    let results = document["results"].as_array().ok_or("no results")?;
    ensure(results.len() == 1, || format!("{} results", results.len()))?;
    let line = &results[0];
    let (iterations, lost) = (number(line, "iterations")?, number(line, "lost")?);
    ensure(iterations >= 1.0 && number(line, "seconds")? > 0.0, || format!("nothing was measured: {line}"))?;
    let is_reliable = !command.contains("-c U");
    ensure(lost == 0.0 || !is_reliable, || format!("a reliable connection lost something: {line}"))?;
    if !is_latency {
        return ensure(number(line, "gigabytes_per_second")? > 0.0, || format!("no bandwidth: {line}"));
    }
    let latency = &line["latency"];
    let quantiles = ["min", "p50", "p99", "p999", "max"].map(|name| number(latency, name));
    let quantiles = quantiles.into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure(quantiles[0] > 0.0 && quantiles.is_sorted(), || format!("{quantiles:?} do not grow"))
}

/// Checks that the file is a readable picture that contains these words.
fn check_picture(file: &PathBuf, words: &[&str]) -> Result<(), Failed> {
    let text = std::fs::read_to_string(file)?;
    std::fs::remove_file(file)?;
    let document = roxmltree::Document::parse(&text)?;
    ensure(document.root_element().has_tag_name("svg"), || "it is no picture".to_owned())?;
    let lines = document.descendants().filter(|node| node.has_tag_name("polyline")).count();
    ensure(lines > 3, || format!("{lines} lines"))?;
    for word in words {
        let is_there = document.descendants().any(|node| node.text().is_some_and(|text| text.contains(word)));
        ensure(is_there, || format!("\"{word}\" is not in the picture"))?;
    }
    ensure(!text.contains("NaN") && !text.contains("inf"), || "a value is not a number".to_owned())
}

fn picture(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rdma-verbs-perf-{}-{name}.svg", std::process::id()))
}

fn all_sizes_with_references_and_a_plot() -> Result<(), Failed> {
    let file = picture("latency");
    let document = json(&both(&format!("send lat -a -n 20 --references --plot {}", file.display())))?;
    let bytes = |name: &str| -> Vec<u64> {
        document[name].as_array().into_iter().flatten().filter_map(|line| line["bytes"].as_u64()).collect()
    };
    let sizes: Vec<u64> = (1..=23).map(|power| 1 << power).collect();
    ensure(bytes("results") == sizes, || format!("{:?}", bytes("results")))?;
    // Raw datagrams are at most 64 KiB long.
    ensure(bytes("references").len() == 23 + 15, || format!("{:?}", bytes("references")))?;
    check_picture(&file, &["Half round trip, median", "distribution", "SEND", "raw UDP", "TCP"])
}

fn bandwidth_plot() -> Result<(), Failed> {
    let file = picture("bandwidth");
    let document = json(&both(&format!("write bw -a -n 3 --plot {}", file.display())))?;
    ensure(document["results"].as_array().is_some_and(|lines| lines.len() == 23), || "not all sizes".to_owned())?;
    check_picture(&file, &["Bandwidth", "WRITE", "message [bytes]"])
}

fn text() -> Result<(), Failed> {
    let latency = output(&both("send lat -n 50"))?;
    ensure(latency.contains("t_p50[us]") && latency.contains(" 50 "), || latency.clone())?;
    let bandwidth = output(&both("write bw -n 50 -s 2K"))?;
    ensure(bandwidth.contains("MsgRate[Mpps]") && bandwidth.contains(" 2048 "), || bandwidth.clone())?;
    let help = output("--help")?;
    ensure(help.contains("perf self send lat"), || help.clone())
}

/// Paths within the host have no congestion control, and no queue that marks packets. Counters that are 0 are left out.
fn path_report() -> Result<(), Failed> {
    let report = output(&both("write bw -n 50 --report"))?;
    ensure(report.lines().any(|line| line.starts_with("The path from ")), || report.clone())?;
    let document = json(&both("write bw -n 50 --report"))?;
    let paths = document["paths"].as_array().ok_or("no paths")?;
    ensure(paths.len() == 1 && paths[0]["algorithm"].is_null(), || format!("{paths:?}"))?;
    ensure(number(&paths[0], "window_bytes")? > 0.0, || format!("{paths:?}"))?;
    let counters = &document["counters"];
    ensure(number(counters, "sent_pkts")? > 0.0, || format!("{counters}"))?;
    ensure(counters["np_ecn_marked_roce_packets"].is_null(), || format!("{counters}"))?;
    let values = counters.as_object().ok_or("no counters")?.values();
    ensure(values.into_iter().all(|value| value.as_u64() > Some(0)), || format!("{counters}"))?;
    let without = json(&both("write bw -n 50"))?;
    let is_silent = without["paths"].is_null() && without["counters"].is_null();
    ensure(is_silent, || format!("not requested: {without}"))
}

/// Starts a server and returns it with its port, once it listens.
fn server(arguments: &str) -> Result<(Child, u16), Failed> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = program(&format!("{arguments} -p {port}")).spawn()?;
    let stderr = server.stderr.as_mut().ok_or("no pipe")?;
    let mut line = String::new();
    BufReader::new(stderr).read_line(&mut line)?;
    ensure(line.contains("waiting"), || line.clone())?;
    Ok((server, port))
}

fn two_processes() -> Result<(), Failed> {
    let [near, far] = devices();
    for command in [
        "send lat -n 100 --check",
        "write lat -n 100 --references",
        "write bw -n 100 -b",
        "read lat -n 10",
        "send bw -D 0.05 --core 0",
    ] {
        let (server, port) = server(&format!("{command} -d {far}"))?;
        let printed = output(&format!("{command} -d {near} -p {port} 127.0.0.1"))?;
        ensure(printed.contains("#bytes"), || printed.clone())?;
        let status = finish(server, command)?.status;
        ensure(status.success(), || format!("{command}: the server ends with {status}"))?;
    }
    Ok(())
}

fn two_processes_that_differ() -> Result<(), Failed> {
    let [near, far] = devices();
    let (server, port) = server(&format!("send lat -s 64 -d {far}"))?;
    let client = run(&format!("send lat -s 8 -d {near} -p {port} 127.0.0.1"))?;
    let printed = text_of(&client.stderr);
    ensure(client.status.code() == Some(2), || format!("{}", client.status))?;
    ensure(printed.contains("sizes is [64] at the server and [8] at the client"), || printed.clone())?;
    let status = finish(server, "server")?.status;
    ensure(status.code() == Some(2), || format!("the server ends with {status}"))
}

fn wrong_usage() -> Result<(), Failed> {
    let wrong = [
        ("", "Usage"),
        ("send", "Usage"),
        ("send speed", "lat"),
        ("send lat -s 0", "-s"),
        ("send lat -s 8 -a", "cannot be used"),
        ("send lat -q 2", "-q"),
        ("send lat -b", "-b"),
        ("send bw -c XY", "RC"),
        ("write lat -e", "-e"),
        ("write bw -c UD", "-c"),
        ("read lat -c UC", "-c"),
        ("atomic lat -s 16", "8 bytes"),
        ("send bw -c UD -s 8192", "4096"),
        ("send bw -q 10000 -r 32768", "smaller depths"),
        ("send bw -m 1000", "256"),
        ("send bw -D 0", "--duration"),
        ("send bw -D 1 -n 5", "cannot be used"),
        ("read lat --references", "--references"),
        ("send bw --plot picture.svg", "--plot"),
        ("send lat --memory-only", "--memory-only"),
        ("send lat --partner-core 1", "perf self"),
        ("self send lat host", "no host"),
        ("self send lat --core 100000", "core"),
        ("table --only nonsense", "WRITE 8 B"),
        ("table --repetitions 0", "repetitions"),
    ];
    for (arguments, hint) in wrong {
        let ended = run(arguments)?;
        let printed = text_of(&ended.stderr);
        ensure(ended.status.code() == Some(2), || format!("perf {arguments}: {}: {printed}", ended.status))?;
        ensure(printed.contains(hint), || format!("perf {arguments}: {printed}"))?;
    }
    Ok(())
}

fn failures() -> Result<(), Failed> {
    let [own, _] = devices();
    let wrong = [
        ("send lat -d soft_nonsense0 127.0.0.1".to_owned(), "soft_nonsense0"),
        (format!("send lat -d {own} no.such.host.invalid"), "no.such.host.invalid"),
        (format!("self send lat -d {own} --partner-dev soft_nonsense0"), "soft_nonsense0"),
        (format!("self send lat -d {own} -x 99"), "99"),
        (both("write bw -n 5 --plot /nonsense/picture.svg -a"), "/nonsense/picture.svg"),
    ];
    for (arguments, hint) in wrong {
        let ended = run(&arguments)?;
        let printed = text_of(&ended.stderr);
        ensure(ended.status.code() == Some(1), || format!("perf {arguments}: {}: {printed}", ended.status))?;
        ensure(printed.contains(hint), || format!("perf {arguments}: {printed}"))?;
    }
    Ok(())
}

/// Ctrl-C ends a run, and a waiting server.
fn interrupt() -> Result<(), Failed> {
    let running = program(&both("write bw -D 60")).spawn()?;
    std::thread::sleep(Duration::from_millis(800));
    let (waiting, _) = server("send lat -d soft:127.0.0.1")?;
    for child in [running, waiting] {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT)?;
        let start = Instant::now();
        let status = finish(child, "interrupted")?.status;
        ensure(status.code() == Some(130), || format!("it ends with {status}"))?;
        ensure(start.elapsed() < PATIENCE / 10, || "it takes its time".to_owned())?;
    }
    Ok(())
}

fn table() -> Result<(), Failed> {
    let file = picture("table");
    let document = json(&format!("table --brief --repetitions 1 --plot {}", file.display()))?;
    let measured = check_table(&document)?;
    ensure(measured > 20, || format!("{measured} rows"))?;
    check_picture(&file, &["Half round trip, median", "Bandwidth", "distribution", "raw UDP", "TCP"])?;
    let text = output("table --brief --repetitions 3 --only \"beside TCP\"")?;
    ensure(text.contains("WRITE 1 MiB beside TCP") && text.contains(">= 1"), || text.clone())
}

/// Checks that nothing failed and that every row has a verdict; returns the number of rows.
fn check_table(document: &Value) -> Result<usize, Failed> {
    let rows = document["rows"].as_array().ok_or("no rows")?;
    ensure(document["failed"].as_array().is_some_and(Vec::is_empty), || document["failed"].to_string())?;
    for row in rows {
        let verdicts = row["verdicts"].as_array().ok_or("no verdicts")?;
        ensure(!verdicts.is_empty(), || format!("no verdict for {}", row["row"]))?;
        for verdict in verdicts {
            let ratio = number(verdict, "ratio")?;
            ensure(ratio > 0.0 && ratio.is_finite(), || format!("{}: {verdict}", row["row"]))?;
            let is_judged = verdict["target"].is_null() == verdict["is_met"].is_null();
            ensure(is_judged, || format!("{}: {verdict}", row["row"]))?;
        }
    }
    Ok(rows.len())
}

/// Returns whether this system allows network namespaces and veth pairs.
fn gives_veth() -> bool {
    let tried = Command::new("unshare").args(["-rn", "ip", "link", "add", "type", "veth"]).output();
    tried.is_ok_and(|output| output.status.success())
}

fn table_over_veth() -> Result<(), Failed> {
    if !gives_veth() {
        println!("table_over_veth: skipped, no network namespace, or no veth links");
        return Ok(());
    }
    for only in ["SEND 8 B, veth", "WRITE 64 KiB, veth 4200"] {
        let document = json(&format!("table --brief --repetitions 2 --only \"{only}\""))?;
        let (measured, missing) = (check_table(&document)?, &document["not_measured"]);
        let may_miss = missing.as_array().is_some_and(|rows| {
            rows.iter().all(|row| row["why"].as_str().is_some_and(|why| why.contains("apt-get install ethtool")))
        });
        ensure(measured > 0 && may_miss, || document.to_string())?;
    }
    Ok(())
}

/// Rows whose programs are missing are omitted and reported.
fn table_without_what_it_needs() -> Result<(), Failed> {
    let ended = |arguments: &str| -> Result<Output, Failed> {
        finish(program(arguments).env("PATH", "/nonexistent").spawn()?, arguments)
    };
    for (only, hint) in [("veth 1500", "util-linux"), ("UCX", "ucx-utils"), ("libfabric", "libfabric-bin")] {
        let Output { status, stderr, .. } = ended(&format!("table --brief --repetitions 1 --only \"{only}\""))?;
        let printed = text_of(&stderr);
        ensure(status.code() == Some(1), || format!("{only}: nothing was measured, and it ends with {status}"))?;
        ensure(printed.contains("not measured") && printed.contains(hint), || format!("{only}: {printed}"))?;
    }
    // Some rows can be measured, some not.
    let arguments = "table --brief --repetitions 1 --json --only \"1 MiB beside\"";
    let Output { status, stdout, .. } = ended(arguments)?;
    let document: Value = serde_json::from_slice(&stdout)?;
    ensure(status.success(), || format!("it ends with {status}"))?;
    ensure(check_table(&document)? == 1, || document.to_string())?;
    let missing = document["not_measured"].as_array().ok_or("not_measured is missing")?;
    ensure(missing.len() == 5, || format!("{missing:?}"))?;
    // Whether the measured row meets its target depends on the machine.
    let strict = ended(&format!("{arguments} --strict"))?.status;
    ensure(matches!(strict.code(), Some(1 | 3)), || format!("--strict ends with {strict}"))
}

/// Ending the table ends the processes in the namespaces, and with them the namespaces.
fn interrupt_over_veth() -> Result<(), Failed> {
    if !gives_veth() {
        println!("interrupt_over_veth: skipped, no network namespace, or no veth links");
        return Ok(());
    }
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let table = program("table --repetitions 1000 --only \"SEND 8 B, veth\"").spawn()?;
        let pid = table.id();
        let descendants = await_that("there is a partner", || {
            let found = descendants(pid);
            found.iter().any(|(pid, _)| is_partner(*pid)).then_some(found)
        })?;
        kill(Pid::from_raw(pid as i32), signal)?;
        finish(table, "interrupted")?;
        await_that("the processes in the namespaces end", || {
            descendants.iter().all(|(pid, started)| start_of(*pid).as_ref() != Some(started)).then_some(())
        })?;
    }
    Ok(())
}

fn await_that<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> Result<T, Failed> {
    let start = Instant::now();
    loop {
        if let Some(seen) = poll() {
            return Ok(seen);
        }
        ensure(start.elapsed() < PATIENCE / 10, || format!("never seen: {what}"))?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the parent and the start time of a running process.
fn process(pid: u32) -> Option<(u32, String)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = status.rsplit_once(')')?.1.split_whitespace().collect();
    (*fields.first()? != "Z").then_some((fields.get(1)?.parse().ok()?, fields.get(19)?.to_string()))
}

fn start_of(pid: u32) -> Option<String> {
    process(pid).map(|(_, start)| start)
}

fn is_partner(pid: u32) -> bool {
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split('\0').nth(2) == Some("partner")
}

/// Returns all descendants of a process, with their start times, because process numbers are reused.
fn descendants(pid: u32) -> Vec<(u32, String)> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let known: Vec<(u32, u32, String)> =
        numbers.filter_map(|number| process(number).map(|(parent, start)| (number, parent, start))).collect();
    let mut found: Vec<(u32, String)> = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for (number, _, start) in known.iter().filter(|(_, of, _)| *of == parent) {
            parents.push(*number);
            found.push((*number, start.clone()));
        }
    }
    found
}
