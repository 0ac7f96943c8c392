//! Watches processes that measure (`rdma-verbs perf`) with `rdma-verbs top` and `rdma-verbs stat`: the numbers are
//! those of the measurement, the terminal shows what is pressed for and is left as it was.

#[path = "support/ensure.rs"]
mod ensure;
#[path = "top/openmetrics.rs"]
mod openmetrics;
#[path = "top/picture.rs"]
mod picture;
#[path = "top/terminal.rs"]
mod terminal;
#[path = "top/traffic.rs"]
mod traffic;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ensure::ensure;
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::Signal;
use serde_json::Value;

use terminal::Terminal;
use traffic::{Stopped, Traffic, devices, own_device, queue_pairs};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdma-verbs");
const PATIENCE: Duration = Duration::from_secs(60);
/// Argument of this program that makes a picture of what runs: the file, and then the keys to press.
const PICTURE: &str = "picture";
const UP_KEY: &str = "\u{1b}[A";
const DOWN_KEY: &str = "\u{1b}[B";
const CONTROL_C: &str = "\u{3}";
const CONTROL_L: &str = "\u{c}";
/// Stops nothing here: the kernel ignores it in a session of one process. The terminal is left and entered again.
const CONTROL_Z: &str = "\u{1a}";

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().collect();
    if let [_, PICTURE, file, keys @ ..] = &given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return match draw(file, keys) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{file}: {error:?}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    // Rates are judged, so the processes of one test must not slow down those of another.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        Trial::test("counts_are_those_of_the_measurement", counts_are_those_of_the_measurement),
        Trial::test("paths_are_named", paths_are_named),
        Trial::test("text_of_stat", text_of_stat),
        Trial::test("openmetrics_are_valid", openmetrics_are_valid),
        Trial::test("selections", selections),
        Trial::test("wrong_usage", wrong_usage),
        Trial::test("a_stopped_process_is_named", a_stopped_process_is_named),
        Trial::test("batch", batch),
        Trial::test("closed_pipe", closed_pipe),
        Trial::test("keys_change_the_screen", keys_change_the_screen),
        Trial::test("sizes", sizes),
        Trial::test("processes_come_and_go", processes_come_and_go),
        Trial::test("stopped_on_the_screen", stopped_on_the_screen),
        Trial::test("the_terminal_is_restored", the_terminal_is_restored),
        Trial::test("the_terminal_goes_away", the_terminal_goes_away),
        Trial::test("colors", colors),
        Trial::test("cost", cost),
        Trial::test("pictures_are_xml", pictures_are_xml),
    ]
}

fn program(arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

fn output(arguments: &str) -> Result<Output, Failed> {
    Ok(program(arguments).output()?)
}

fn text(arguments: &str) -> Result<String, Failed> {
    let output = output(arguments)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success(), || format!("{arguments}: {}: {text}{output:?}", output.status))?;
    Ok(text)
}

/// Returns what `rdma-verbs stat` prints as JSON.
fn stat(arguments: &str) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&text(&format!("stat {arguments}"))?)?)
}

/// A number of a queue pair or a device, by the path to it.
fn number(value: &Value, path: &str) -> Result<f64, Failed> {
    value.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("no {path} in {value:#}").into())
}

/// The queue pair that sends, with the time of its snapshot in seconds.
fn sender(document: &Value) -> Result<(f64, Value), Failed> {
    let [own, _] = devices();
    let processes = document["processes"].as_array().ok_or("no processes")?;
    for process in processes {
        for device in process["devices"].as_array().into_iter().flatten().filter(|device| device["name"] == *own) {
            if let Some(qp) = queue_pairs(device).iter().find(|qp| qp["sends"].as_u64() > Some(0)) {
                return Ok((number(process, "/taken_at_ns")? / 1e9, qp.clone()));
            }
        }
    }
    Err(format!("no queue pair of {own} sends: {document:#}").into())
}

fn counts_are_those_of_the_measurement() -> Result<(), Failed> {
    const BYTES: f64 = 1024.0;
    // Each message is one packet: base transport header, payload, ICRC.
    const PACKET: f64 = 12.0 + BYTES + 4.0;
    let traffic = Traffic::start("send bw -s 1024 -m 1024 -D 5", &[])?;
    let (first_time, first) = sender(&stat("--json")?)?;
    thread::sleep(Duration::from_millis(1500));
    let (second_time, second) = sender(&stat("--json")?)?;
    let result = traffic.result()?;
    let grown = |path| -> Result<f64, Failed> { Ok(number(&second, path)? - number(&first, path)?) };
    let (sends, bytes) = (grown("/sends")?, grown("/counters/sent_bytes")?);
    let rate = sends / (second_time - first_time);
    let measured = number(&result, "/million_messages_per_second")? * 1e6;
    println!("messages a second: {rate:.0}, measured {measured:.0}; bytes a message: {:.1}", bytes / sends);
    // The speed changes with what else the machine does.
    ensure((0.5..2.0).contains(&(rate / measured)), || format!("{rate} messages a second, measured {measured}"))?;
    ensure((bytes / sends / PACKET - 1.0).abs() < 0.02, || format!("{bytes} bytes, {sends} messages"))?;
    // The measurement counts no messages of its warm-up.
    let most = number(&result, "/iterations")? + 2000.0;
    ensure(number(&second, "/sends")? <= most, || format!("{second:#} after {result:#}"))
}

fn paths_are_named() -> Result<(), Failed> {
    for (setting, path) in [("auto", "memory"), ("off", "UDP")] {
        let traffic = Traffic::start("send bw -s 4096 -D 30", &[("RDMA_VERBS_SHARED_MEMORY", setting)])?;
        let (_, qp) = sender(&stat("--json")?)?;
        ensure(qp["path"] == path && qp["type"] == "RC" && qp["state"] == "RTS", || format!("{setting}: {qp:#}"))?;
        let partner = devices()[1].replace("soft:", "");
        ensure(qp["peer_address"] == *partner && qp["error"].is_null(), || format!("{qp:#}"))?;
        drop(traffic);
    }
    Ok(())
}

fn text_of_stat() -> Result<(), Failed> {
    let traffic = Traffic::start("write bw -s 4096 -D 30", &[])?;
    let [own, partner] = traffic.processes()?;
    let text = text("stat --queue-pairs")?;
    for (process, device) in [own, partner].iter().zip(devices()) {
        let is_row = |line: &&str| line.contains(&process.to_string()) && line.contains(&device);
        // One row of the device, one of its queue pair.
        ensure(text.lines().filter(is_row).count() == 2, || text.clone())?;
    }
    ensure(text.contains("PROCESS") && text.contains("rdma-verbs") && text.contains("RTS"), || text.clone())
}

fn openmetrics_are_valid() -> Result<(), Failed> {
    let traffic = Traffic::start("send bw -s 4096 -D 30", &[])?;
    let [own, _] = traffic.processes()?;
    for (arguments, has_queue_pairs) in [("", false), ("--queue-pairs", true)] {
        let text = text(&format!("stat --openmetrics {arguments}"))?;
        let families = openmetrics::parse(&text)?;
        let sent = families.get("rdma_verbs_sent_bytes").ok_or("no bytes")?;
        let is_own = |labels: &[(String, String)]| {
            [("pid", own.to_string()), ("device", devices()[0].clone())]
                .iter()
                .all(|(name, value)| labels.iter().any(|label| label.0 == *name && label.1 == *value))
        };
        let values: Vec<f64> =
            sent.samples.iter().filter(|(labels, _)| is_own(labels)).map(|(_, value)| *value).collect();
        ensure(sent.kind == "counter" && values.len() == 1 && values[0] > 4096.0, || format!("{sent:?}"))?;
        let names_one = |(labels, _): &openmetrics::Sample| labels.iter().any(|label| label.0 == "queue_pair");
        let has_label = families.values().flat_map(|family| &family.samples).any(names_one);
        ensure(has_label == has_queue_pairs, || format!("queue pairs as labels: {has_label}"))?;
    }
    // The reader refuses what is wrong.
    let good = "# TYPE a counter\n# HELP a text\na_total{x=\"1\"} 2\n# EOF\n";
    ensure(openmetrics::parse(good).is_ok(), || "it refuses a valid text".to_owned())?;
    for (from, to) in [("a_total", "a"), ("# EOF\n", ""), ("x=\"1\"", "x=1"), (" 2", " -2"), ("# HELP a text\n", "")] {
        let bad = good.replace(from, to);
        ensure(openmetrics::parse(&bad).is_err(), || format!("it accepts {bad}"))?;
    }
    Ok(())
}

fn selections() -> Result<(), Failed> {
    let traffic = Traffic::start("send bw -D 30", &[])?;
    let ([own, partner], [own_device, partner_device]) = (traffic.processes()?, devices());
    let names = |document: &Value| -> Vec<String> {
        let processes = document["processes"].as_array().into_iter().flatten();
        let devices = processes.filter_map(|process| process["devices"].as_array()).flatten();
        devices.filter_map(|device| device["name"].as_str()).map(str::to_owned).collect()
    };
    let of_process = stat(&format!("--json --pid {partner}"))?;
    ensure(names(&of_process) == [partner_device.clone()], || format!("{of_process:#}"))?;
    let of_device = stat(&format!("--json --device {own_device}"))?;
    ensure(names(&of_device) == [own_device.clone()], || format!("{of_device:#}"))?;
    let address = own_device.replace("soft:", "");
    ensure(names(&stat(&format!("--json --device {address}"))?) == [own_device.clone()], || address.clone())?;
    ensure(names(&stat(&format!("--json --pid {own} --device {partner_device}"))?).is_empty(), || "both".to_owned())
}

fn wrong_usage() -> Result<(), Failed> {
    for arguments in [
        "stat --json --openmetrics",
        "stat --pid x",
        "stat more",
        "top --interval 0.05",
        "top --interval 11",
        "top --interval x",
        "top -n 3",
        "top --batch -n 0",
        "top --view nothing",
    ] {
        let ended = output(arguments)?;
        ensure(ended.status.code() == Some(2), || format!("{arguments} ends with {}", ended.status))?;
    }
    let own = std::process::id();
    for arguments in [format!("stat --pid {own}"), format!("top --batch -n 1 --pid {own}"), "stat --pid 1".to_owned()] {
        let ended = output(&arguments)?;
        let says = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure(ended.status.code() == Some(1) && says.contains("process"), || format!("{arguments}: {ended:?}"))?;
    }
    for command in ["top", "stat"] {
        let help = text(&format!("{command} --help"))?;
        ensure(help.contains("Exit status") && help.contains("Examples"), || help.clone())?;
    }
    Ok(())
}

fn a_stopped_process_is_named() -> Result<(), Failed> {
    let traffic = Traffic::start("send lat -D 60", &[])?;
    let beside = Traffic::on([99, 100].map(own_device), "send lat -D 60", &[])?;
    let [own, partner] = traffic.processes()?;
    let _stopped = Stopped::new(&traffic)?;
    let begin = Instant::now();
    let document = stat("--json")?;
    ensure(begin.elapsed() < Duration::from_secs(10), || format!("it took {:?}", begin.elapsed()))?;
    let process = |id: u32| {
        let processes = document["processes"].as_array().into_iter().flatten();
        processes.into_iter().find(|process| process["pid"] == id).cloned().unwrap_or_default()
    };
    for running in beside.processes()?.map(process) {
        ensure(running["error"].is_null() && running["devices"].is_array(), || format!("{document:#}"))?;
    }
    for stopped in [own, partner].map(process) {
        ensure(stopped["error"].to_string().contains("stopped"), || format!("{document:#}"))?;
    }
    let refused = output(&format!("stat --pid {partner}"))?;
    ensure(refused.status.code() == Some(1), || format!("{refused:?}"))
}

fn batch() -> Result<(), Failed> {
    let traffic = Traffic::start("send bw -D 30", &[])?;
    let [own, partner] = traffic.processes()?;
    let pages = text("top --batch -n 3 --interval 0.2")?;
    let blocks: Vec<&str> = pages.trim_end().split("\n\n").collect();
    ensure(blocks.len() == 3, || pages.clone())?;
    for process in [own, partner] {
        let is_row = |line: &&str| line.trim_start().starts_with(&format!("{process} "));
        ensure(blocks.iter().all(|block| block.lines().any(|line| is_row(&line))), || pages.clone())?;
    }
    ensure(!pages.contains('\u{1b}'), || "it controls the terminal".to_owned())?;
    let queue_pairs = text("top --batch -n 1 --interval 0.2 --view queue-pairs")?;
    ensure(queue_pairs.contains("QPN") && queue_pairs.contains("RTS"), || queue_pairs.clone())
}

/// A reader that goes away ends the program, without an error.
fn closed_pipe() -> Result<(), Failed> {
    let mut program = program("top --interval 0.1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(program.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
    ensure(line.contains("UTC"), || line.clone())?;
    let end = Instant::now() + PATIENCE;
    while program.try_wait()?.is_none() && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    let _ = program.kill();
    let output = program.wait_with_output()?;
    ensure(output.status.success() && output.stderr.is_empty(), || format!("{output:?}"))
}

/// Returns the text of a screen without the blanks at the ends of lines.
fn trimmed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Waits until the screen no longer changes, and returns its text.
fn steady(terminal: &Terminal) -> Result<Vec<String>, Failed> {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = trimmed(&terminal.screen().contents());
        // Three intervals.
        thread::sleep(Duration::from_millis(600));
        if before == trimmed(&terminal.screen().contents()) {
            return Ok(before);
        }
        ensure(Instant::now() < end, || format!("it still changes:\n{before:#?}"))?;
    }
}

fn keys_change_the_screen() -> Result<(), Failed> {
    let traffic = Traffic::start("send bw -D 60", &[])?;
    let [own, partner] = traffic.processes()?.map(|process| process.to_string());
    let mut top = Terminal::start(PROGRAM, "top --interval 0.2", (24, 120), &[])?;
    // Rates are shown: a number and a unit in OUT, and bars.
    let first = top.wait("both processes", |text| {
        text.contains(&own) && text.contains(&partner) && (text.contains(" Gb") || text.contains(" Mb"))
    })?;
    ensure(first.contains("rdma-verbs top") && first.contains("1 Processes"), || first.clone())?;
    top.wait("bars", |text| text.contains('\u{2588}'))?;
    top.press("2")?;
    top.wait("queue pairs", |text| text.contains("QPN") && text.contains("RTS"))?;
    top.press(&format!("/{own}\r"))?;
    top.wait("the filter", |text| {
        text.contains(&format!("with \"{own}\"")) && text.lines().filter(|line| line.contains("RTS")).count() == 1
    })?;
    top.press("\r")?;
    top.wait("details", |text| {
        text.contains("queue pair") && text.contains("sent_pkts") && text.contains("rdma-verbs")
    })?;
    top.press("x\u{1b}")?;
    top.wait("the table without a filter", |text| text.lines().filter(|line| line.contains("RTS")).count() >= 2)?;
    top.press("h")?;
    top.wait("the help", |text| text.contains("reverse the order"))?;
    top.press("h1sp")?;
    top.wait("a pause", |text| text.contains("PAUSED") && text.contains("PROCESS"))?;
    let paused = steady(&top)?;
    for key in [DOWN_KEY, UP_KEY, CONTROL_L, CONTROL_Z] {
        top.press(key)?;
        thread::sleep(Duration::from_millis(100));
    }
    top.wait("the same screen after keys that change no value", |text| trimmed(text) == paused)?;
    top.press("p4")?;
    top.wait("drops", |text| !text.contains("PAUSED") && text.contains("every 0.2 s"))?;
    top.press("3")?;
    top.wait("connections", |text| text.contains("3 Connections") && !text.contains("QPN"))?;
    top.press("q")?;
    let status = top.end()?;
    ensure(status.success(), || status.to_string())
}

fn sizes() -> Result<(), Failed> {
    let traffic = Traffic::start("send bw -D 60", &[])?;
    let own = traffic.processes()?[0].to_string();
    let mut top = Terminal::start(PROGRAM, "top --interval 0.2", (24, 80), &[])?;
    top.wait("80x24", |text| text.contains(&own) && text.contains("q quit"))?;
    for (rows, columns) in [(10, 40), (3, 20), (1, 1), (50, 200)] {
        top.resize(rows, columns)?;
        if columns >= 20 {
            top.wait(&format!("{columns}x{rows}"), |text| {
                text.contains(&own) && text.lines().all(|line| line.chars().count() <= usize::from(columns))
            })?;
        }
        thread::sleep(Duration::from_millis(300));
    }
    top.wait("200x50", |text| text.contains("DROPS/S") && text.contains("q quit"))?;
    top.press("q")?;
    let status = top.end()?;
    ensure(status.success(), || status.to_string())
}

fn processes_come_and_go() -> Result<(), Failed> {
    let mut top = Terminal::start(PROGRAM, &format!("top --interval 0.2 -d {}", devices()[0]), (24, 100), &[])?;
    // Processes of other tests, which ran before, may be listed, but not this device.
    top.press("2")?;
    top.wait("no queue pairs", |text| text.contains("No queue pairs."))?;
    let traffic = Traffic::start("send bw -D 60", &[])?;
    top.wait("a queue pair", |text| text.contains("RTS"))?;
    drop(traffic);
    top.wait("no queue pairs again", |text| text.contains("No queue pairs."))?;
    top.press("q")?;
    let status = top.end()?;
    ensure(status.success(), || status.to_string())
}

fn stopped_on_the_screen() -> Result<(), Failed> {
    let traffic = Traffic::start("send lat -D 60", &[])?;
    let partner = traffic.processes()?[1];
    let mut top = Terminal::start(PROGRAM, &format!("top --interval 0.2 --pid {partner}"), (24, 120), &[])?;
    let units = [" b ", " kb ", " Mb ", " Gb "];
    let has_rates = |text: &str| {
        let row = text.lines().find(|line| line.contains(&partner.to_string()));
        row.is_some_and(|row| units.iter().any(|unit| row.contains(unit)))
    };
    top.wait("values", has_rates)?;
    let stopped = Stopped::new(&traffic)?;
    top.wait("it is stopped", |text| text.contains("stopped: values of ") && has_rates(text))?;
    drop(stopped);
    top.wait("it goes on", |text| text.contains(&partner.to_string()) && !text.contains("stopped"))?;
    top.press("q")?;
    let status = top.end()?;
    ensure(status.success(), || status.to_string())
}

fn the_terminal_is_restored() -> Result<(), Failed> {
    for signal in [None, Some(Signal::SIGINT), Some(Signal::SIGTERM), Some(Signal::SIGHUP)] {
        let mut top = Terminal::start(PROGRAM, "top", (24, 80), &[])?;
        top.wait("the first screen", |text| text.contains("rdma-verbs top"))?;
        ensure(top.screen().alternate_screen(), || "it draws over what was there".to_owned())?;
        match signal {
            None => top.press(CONTROL_C)?,
            Some(signal) => top.signal(signal)?,
        }
        let status = top.end()?;
        ensure(status.success(), || format!("{signal:?}: {status}"))?;
        if let Some(damage) = top.damage()? {
            return Err(format!("after {signal:?}, {damage}").into());
        }
    }
    Ok(())
}

/// A program whose terminal is closed ends, as with an ssh connection that breaks.
fn the_terminal_goes_away() -> Result<(), Failed> {
    let ends = terminal::ends_with_its_terminal(PROGRAM, "top")?;
    ensure(ends, || "it goes on without a terminal".to_owned())
}

fn colors() -> Result<(), Failed> {
    for (variables, has_colors) in [(&[][..], true), (&[("NO_COLOR", "1")][..], false)] {
        let top = Terminal::start(PROGRAM, "top", (24, 80), variables)?;
        top.wait("the first screen", |text| text.contains("1 Processes"))?;
        let screen = top.screen();
        let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        let colored = cells.filter_map(|(row, column)| screen.cell(row, column));
        let found = colored.into_iter().any(|cell| cell.fgcolor() != vt100::Color::Default);
        ensure(found == has_colors, || format!("{variables:?}: colors are {found}"))?;
    }
    // A terminal whose cursor cannot be moved gets text.
    let top = Terminal::start(PROGRAM, "top --interval 0.2", (24, 80), &[("TERM", "dumb")])?;
    top.wait("a table", |text| text.contains(" UTC  Processes"))?;
    ensure(!top.screen().alternate_screen(), || "it moves the cursor of a dumb terminal".to_owned())
}

/// Returns the processor time of the thread that collects statistics, and of all threads of the process.
fn processor_times(process: u32) -> Result<[Duration; 2], Failed> {
    let mut times = [Duration::ZERO; 2];
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?.path();
        let statistics = std::fs::read_to_string(thread.join("schedstat"))?;
        let nanoseconds = statistics.split(' ').next().ok_or("an empty file")?.parse()?;
        let is_collector = std::fs::read_to_string(thread.join("comm"))?.trim_end() == "rdma-mailbox";
        times[0] += Duration::from_nanos(if is_collector { nanoseconds } else { 0 });
        times[1] += Duration::from_nanos(nanoseconds);
    }
    Ok(times)
}

/// Returns how much of both grows in this time.
fn growth(process: u32, time: Duration) -> Result<[Duration; 2], Failed> {
    let before = processor_times(process)?;
    thread::sleep(time);
    let after = processor_times(process)?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

/// A process that is not watched spends nothing on statistics, and one that is watched little.
fn cost() -> Result<(), Failed> {
    const TIME: Duration = Duration::from_secs(3);
    let traffic = Traffic::start("send lat -s 8 -D 60", &[])?;
    let process = traffic.processes()?[0];
    rests(process)?;
    for (interval, most) in [("1", 0.01), ("0.1", 0.05)] {
        let command = format!("top --batch --interval {interval} --pid {process}");
        let mut watcher = program(&command).stdout(Stdio::null()).spawn()?;
        thread::sleep(Duration::from_millis(500));
        let growth = growth(process, TIME);
        watcher.kill()?;
        watcher.wait()?;
        let [collecting, all] = growth?;
        let part = collecting.as_secs_f64() / all.as_secs_f64();
        println!("each {interval} s: {collecting:?} of {all:?}, {:.3} %", part * 100.0);
        ensure(!collecting.is_zero(), || format!("it is not watched each {interval} s"))?;
        // Figures of optimized programs are a small part of these.
        ensure(part < most, || format!("{collecting:?} of {all:?} each {interval} s"))?;
    }
    rests(process)
}

/// Checks that nothing is collected. The thread also serves other processes of the user, so several times may be needed
/// to find one without work, but a watcher each second or more often leaves none.
fn rests(process: u32) -> Result<(), Failed> {
    for _ in 0..10 {
        let [collecting, _] = growth(process, Duration::from_millis(1500))?;
        if collecting.is_zero() {
            return Ok(());
        }
    }
    Err("the thread that collects has work all the time, although nothing watches".into())
}

fn pictures_are_xml() -> Result<(), Failed> {
    let mut emulator = terminal::emulator(4, 20)?;
    emulator.process("<a> & \u{1b}[31mred\u{1b}[0m\r\n\u{1b}[7mreversed\u{1b}[0m \u{2581}\u{2588}".as_bytes());
    let svg = picture::svg(emulator.screen());
    let document = roxmltree::Document::parse(&svg)?;
    let texts: Vec<&str> =
        document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|node| node.text()).collect();
    ensure(texts == ["<a>\u{a0}&", "red", "reversed"], || format!("{texts:?}"))?;
    let bars = document.descendants().filter(|node| node.has_tag_name("rect")).count();
    ensure(bars == 4, || svg.clone())
}

/// Runs `top` in a terminal, presses keys, and draws the screen after some seconds.
fn draw(file: &str, keys: &[&str]) -> Result<(), Failed> {
    let mut top = Terminal::start(PROGRAM, "top --interval 0.5", (18, 130), &[])?;
    top.wait("the first screen", |text| text.contains("rdma-verbs top"))?;
    for key in keys {
        top.press(key)?;
    }
    thread::sleep(Duration::from_secs(25));
    std::fs::write(file, picture::svg(&top.screen()))?;
    println!("{}", top.screen().contents());
    Ok(())
}
