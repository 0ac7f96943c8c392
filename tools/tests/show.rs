//! Shows captures of real traffic, with losses and refusals, and captures of running processes. tshark, if it is
//! installed, judges the counts.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

use support::{PROGRAM, Shell, ensure, in_namespace};

const UP: &str = "ip link set dev lo up && export RDMA_VERBS_SHARED_MEMORY=off && mkdir captures";
const CAPTURE: &str = "export RDMA_VERBS_CAPTURE=/tmp/captures";
/// Drops three of a hundred datagrams.
const LOSS: &str = concat!(
    "nft add table inet t && nft 'add chain inet t c { type filter hook input priority 0; }' && ",
    "nft add rule inet t c udp dport 4791 numgen random mod 100 '<' 3 drop"
);
const DEVICES: &str = "-d soft:127.0.0.1 --partner-dev soft:127.0.0.2";
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    type Test = fn(&mut Shell) -> Result<(), Failed>;
    let in_namespaces: [(&'static str, Test); 7] = [
        ("writes_with_losses", |shell| with_losses(shell, "write bw -n 20 -s 65536", "WRITE")),
        ("reads_with_losses", |shell| with_losses(shell, "read bw -n 20 -s 65536", "READ")),
        ("sends_with_losses", |shell| with_losses(shell, "send bw -n 100 -s 8192", "SEND")),
        ("atomics", atomics),
        ("unreliable_with_losses", unreliable_with_losses),
        ("capture_of_a_process", capture_of_a_process),
        ("capture_of_several_processes", capture_of_several_processes),
    ];
    let mut trials: Vec<Trial> = in_namespaces
        .into_iter()
        .map(|(name, test)| Trial::test(name, move || in_namespace(name, |shell| prepared(shell, test))))
        .collect();
    trials.push(Trial::test("wrong_usage", wrong_usage));
    trials.push(Trial::test("files_that_are_no_captures", files_that_are_no_captures));
    trials.push(Trial::test("long_input_needs_little_memory", long_input_needs_little_memory));
    trials.push(Trial::test("closed_pipe", closed_pipe));
    trials
}

/// Numbers of packets, by opcode and sequence number.
type Packets = BTreeMap<(u32, u32), u64>;

/// The requests that `show` prints, and its object at the end.
type Shown = (Vec<Value>, Value);

/// Runs `show --json`. Returns the requests, and the object at the end.
fn show(shell: &mut Shell, files: &str) -> Result<Shown, Failed> {
    let output = shell.succeed(&format!("\"$PROGRAM\" show --json {files}"))?;
    let lines = output.lines().filter(|line| !line.is_empty());
    let mut objects = lines.map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let end = objects.pop().ok_or("no output")?;
    ensure(end["type"] == "end" && end["schema"] == 1, || end.to_string())?;
    objects.retain(|object| object["type"] == "request");
    Ok((objects, end))
}

/// Packets in a file by opcode and number, as tshark counts them; `None` without tshark.
fn tshark(shell: &mut Shell, file: &str) -> Result<Option<Packets>, Failed> {
    if shell.run("tshark --version")?.0 != 0 {
        return Ok(None);
    }
    let fields = "-T fields -e infiniband.bth.opcode -e infiniband.bth.psn -e infiniband.bth.destqp";
    let output = shell.succeed(&format!("tshark -r {file} -Y infiniband {fields} 2> /tmp/tshark.log"))?;
    let mut packets = Packets::new();
    for line in output.lines().filter(|line| !line.is_empty()) {
        let numbers = line.split('\t').map(number).collect::<Option<Vec<u32>>>().ok_or_else(|| line.to_owned())?;
        let [opcode, psn, _] = numbers[..] else { return Err(line.into()) };
        *packets.entry((opcode, psn)).or_default() += 1;
    }
    Ok(Some(packets))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Runs a test in a network without shared memory.
fn prepared(shell: &mut Shell, test: impl FnOnce(&mut Shell) -> Result<(), Failed>) -> Result<(), Failed> {
    shell.succeed(UP)?;
    test(shell)
}

fn sum(requests: &[Value], field: &str) -> u64 {
    requests.iter().filter_map(|request| request[field].as_u64()).sum()
}

/// Runs a measurement with losses until the captures of both ends have all packets: a capture leaves some out if its
/// thread gets no processor in time. Returns what `show` says of each.
fn capture_with_losses(shell: &mut Shell, run: &str, [here, there]: [&str; 2]) -> Result<[Shown; 2], Failed> {
    for _ in 0..20 {
        shell.succeed("rm -rf captures; mkdir captures")?;
        let output = shell.run(&format!("timeout 100 \"$PROGRAM\" perf self {run} {DEVICES} 2>&1"))?;
        ensure(output.0 == 0, || output.1.clone())?;
        let shown = [show(shell, here)?, show(shell, there)?];
        if shown.iter().all(|(_, end)| end["lost_packets"] == 0) {
            return Ok(shown);
        }
    }
    Err("no capture is complete".into())
}

/// Both ends see the same requests, and the counts are those of tshark.
fn with_losses(shell: &mut Shell, run: &str, kind: &str) -> Result<(), Failed> {
    shell.succeed(LOSS)?;
    shell.succeed(CAPTURE)?;
    let (here, there) = ("captures/*127.0.0.1-*", "captures/*127.0.0.2-*");
    let [(requests, own), (seen, _)] = capture_with_losses(shell, run, [here, there])?;
    ensure(requests.len() > 20, || format!("{} requests", requests.len()))?;
    for request in &requests {
        let is_right = request["outcome"] == "done" && request["kind"] == kind && request["missing"] == 0;
        ensure(is_right, || request.to_string())?;
    }
    let identity =
        |request: &Value| ["first_psn", "last_psn", "bytes", "address"].map(|field| request[field].to_string());
    let identities = |requests: &[Value]| {
        let mut list: Vec<_> = requests.iter().map(identity).collect();
        list.sort();
        list
    };
    same(&identities(&requests), &identities(&seen))?;
    let (merged, end) = show(shell, "captures/*")?;
    same(&identities(&requests), &identities(&merged))?;
    ensure(end["malformed_packets"] == 0 && end["unmatched_responses"] == 0, || end.to_string())?;
    judge(shell, here, &requests, own["late_retransmissions"].as_u64().unwrap_or_default(), kind)
}

fn same(ours: &[[String; 4]], theirs: &[[String; 4]]) -> Result<(), Failed> {
    let without = |list: &[[String; 4]], other: &[[String; 4]]| {
        list.iter().filter(|request| !other.contains(request)).cloned().collect::<Vec<_>>()
    };
    ensure(ours == theirs, || {
        format!("only there: {:?}, only here: {:?}", without(theirs, ours), without(ours, theirs))
    })
}

/// Compares the packets of the requests with those that tshark sees in the requester's capture.
/// Those that came after the response are counted by themselves.
fn judge(shell: &mut Shell, file: &str, requests: &[Value], late: u64, kind: &str) -> Result<(), Failed> {
    let Some(packets) = tshark(shell, file)? else {
        println!("without tshark, the counts are not judged");
        return Ok(());
    };
    let is_request = |opcode: u32| match kind {
        "SEND" => opcode <= 5,
        "WRITE" => (6..=11).contains(&opcode),
        _ => opcode == 12,
    };
    let sent: Vec<(u32, u64)> =
        packets.iter().filter(|((opcode, _), _)| is_request(*opcode)).map(|((_, psn), count)| (*psn, *count)).collect();
    let packets: u64 = sent.iter().map(|(_, count)| count).sum();
    let found = sum(requests, "packets") + late;
    ensure(found == packets, || format!("{found} packets, not {packets}"))?;
    if kind != "READ" {
        // A READ that is requested again may begin at another number.
        let again = packets - sent.len() as u64;
        let found = sum(requests, "retransmitted") + late;
        ensure(found == again, || format!("{found} packets again, not {again}"))?;
    }
    Ok(())
}

fn atomics(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed(CAPTURE)?;
    shell.succeed(&format!("timeout 100 \"$PROGRAM\" perf self atomic lat -n 50 {DEVICES} > /tmp/perf 2>&1"))?;
    let (requests, end) = show(shell, "captures/*127.0.0.1-*")?;
    ensure(requests.len() >= 50 && end["unmatched_responses"] == 0, || end.to_string())?;
    for (number, request) in requests.iter().enumerate() {
        // Each one adds 1, and returns the value before.
        let is_right = request["kind"] == "FETCH AND ADD" && request["original"] == number;
        ensure(is_right && request["swap_or_add"] == 1, || request.to_string())?;
    }
    let text = shell.succeed("\"$PROGRAM\" show --summary captures/*127.0.0.1-*")?;
    ensure(text.contains("latency: median") && text.contains(&format!("{} requests", requests.len())), || text.clone())
}

/// The sender's capture has all messages, the receiver's those that arrived; both together know the difference.
fn unreliable_with_losses(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed(LOSS)?;
    shell.succeed(CAPTURE)?;
    shell
        .run(&format!("timeout 100 \"$PROGRAM\" perf self send bw -n 300 -s 8192 -c UC {DEVICES} > /tmp/perf 2>&1"))?;
    let (sent, _) = show(shell, "captures/*127.0.0.1-*")?;
    let (arrived, _) = show(shell, "captures/*127.0.0.2-*")?;
    let (merged, _) = show(shell, "captures/*")?;
    ensure(sent.len() >= 300 && merged.len() == sent.len(), || format!("{} and {}", sent.len(), merged.len()))?;
    let lost = sum(&sent, "packets") - sum(&arrived, "packets");
    // Messages of the first burst are shown before the first packet at the other end.
    let found = sum(&merged, "lost");
    ensure((1..=lost).contains(&found) && found + 32 >= lost, || format!("{found} lost, not {lost}"))
}

/// Starts traffic between two devices, and waits until both processes can be found.
fn start_traffic(shell: &mut Shell, devices: &str) -> Result<(), Failed> {
    let run = format!("timeout 100 \"$PROGRAM\" perf self write lat -s 4096 -D 60 {devices} > /tmp/perf 2>&1 &");
    shell.succeed(&run)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, text) = shell.run("\"$PROGRAM\" capture soft:127.99.99.99 2>&1")?;
        if devices.split_whitespace().filter(|word| word.starts_with("soft:")).all(|device| text.contains(device)) {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || text)?;
        thread::sleep(Duration::from_millis(100));
    }
}

/// A capture by the device and by the process, for a time, up to a size, and until Ctrl-C.
fn capture_of_a_process(shell: &mut Shell) -> Result<(), Failed> {
    start_traffic(shell, DEVICES)?;
    let text = shell.succeed("\"$PROGRAM\" capture 127.0.0.1 -w one.pcapng --duration 0.1 --bytes 1G 2>&1")?;
    ensure(text.contains("; complete") && text.contains("soft:127.0.0.1 of process"), || text.clone())?;
    let (requests, end) = show(shell, "one.pcapng")?;
    ensure(!requests.is_empty() && end["is_cut"] == false, || end.to_string())?;
    let id = text.split("of process ").nth(1).and_then(|rest| rest.split(' ').next()).ok_or("no ID")?.to_owned();
    let text = shell.succeed(&format!("\"$PROGRAM\" capture {id} --bytes 64K 2>&1"))?;
    ensure(text.contains("maximum size") && text.contains(&format!("rdma-verbs-{id}.pcapng")), || text.clone())?;
    let length: u64 = shell.succeed(&format!("stat -c %s rdma-verbs-{id}.pcapng"))?.trim().parse()?;
    ensure(length <= 65_536, || format!("{length} bytes"))?;
    // The name is taken now. Ctrl-C ends the capture; the file has its last block.
    let interrupted = "for i in $(seq 300); do grep -q WRITE out && break; sleep 0.1; done; kill -INT $pid; wait $pid";
    let text = shell
        .succeed(&format!("\"$PROGRAM\" capture {id} --bytes 1G --show > out 2>&1 & pid=$!; {interrupted}; cat out"))?;
    ensure(text.contains("; complete") && text.contains(" WRITE 4 KiB to 0x"), || text.clone())?;
    let (requests, end) = show(shell, &format!("rdma-verbs-{id}-2.pcapng"))?;
    ensure(!requests.is_empty() && end["is_cut"] == false, || end.to_string())?;
    let qp = requests[0]["destination_queue_pair"].to_string();
    shell.succeed(&format!("\"$PROGRAM\" capture {id} --qp {qp} -w qp.pcapng --duration 0.3 2>&1"))?;
    refusals(shell, &id)
}

fn refusals(shell: &mut Shell, id: &str) -> Result<(), Failed> {
    shell.succeed("ln -s one.pcapng link && mkfifo fifo")?;
    for (arguments, says) in [
        ("soft:127.99.99.99".to_owned(), "in use are:"),
        ("999999".to_owned(), "999999"),
        ("1".to_owned(), "does not use this library"),
        (format!("{id} -w link"), "link cannot be created or written"),
        (format!("{id} -w fifo"), "fifo cannot be created or written"),
        (format!("{id} -w /dev/null"), "not a regular file"),
        (format!("{id} -w no/such"), "No such file"),
        (format!("{id} --device soft:127.99.99.99"), "soft:127.99.99.99"),
    ] {
        let (status, text) = shell.run(&format!("timeout 20 \"$PROGRAM\" capture {arguments} 2>&1"))?;
        ensure(status == 1 && text.contains(says), || format!("{arguments}: status {status}: {text}"))?;
    }
    // A stopped process does not answer, and no empty file remains. Its peer gives up meanwhile, which ends the
    // traffic.
    let stopped = format!("kill -STOP {id}; timeout 20 \"$PROGRAM\" capture {id} -w stopped 2>&1; kill -CONT {id}; ls");
    let text = shell.succeed(&stopped)?;
    ensure(text.contains("does not answer") && !text.lines().any(|line| line == "stopped"), || text.clone())
}

/// A device that several processes have open stands for none of them.
fn capture_of_several_processes(shell: &mut Shell) -> Result<(), Failed> {
    start_traffic(shell, "-d soft:127.0.0.1 --partner-dev soft:127.0.0.1")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, text) = shell.run("\"$PROGRAM\" capture soft:127.0.0.1 --duration 0.01 -w x 2>&1")?;
        if status == 1 && text.contains("several processes") && text.matches("(rdma-verbs)").count() == 2 {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || text)?;
    }
}

fn wrong_usage() -> Result<(), Failed> {
    for arguments in [
        "show",
        "show --qp 0x1000000 x",
        "show --qp -1 x",
        "show --from -1 x",
        "show --peer host x",
        "show --summary --packets x",
        "capture",
        "capture 1 --bytes 8191",
        "capture 1 --duration 0",
        "capture 1 --qp x",
    ] {
        let ended = Command::new(PROGRAM).args(arguments.split_whitespace()).output()?;
        ensure(ended.status.code() == Some(2), || format!("{arguments} ends with {}", ended.status))?;
    }
    for command in ["show", "capture"] {
        let help = Command::new(PROGRAM).args([command, "--help"]).output()?;
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        ensure(text.contains("Exit status") && text.contains("Examples"), || text.clone())?;
    }
    Ok(())
}

fn files_that_are_no_captures() -> Result<(), Failed> {
    for (file, says) in [
        ("/no/such/file", "No such file"),
        ("/", "directory"),
        ("/dev/null", "empty"),
        (PROGRAM, "neither a pcapng nor a pcap file"),
    ] {
        let ended = Command::new(PROGRAM).args(["show", file]).output()?;
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure(ended.status.code() == Some(1) && text.contains(says), || format!("{file}: {}: {text}", ended.status))?;
    }
    Ok(())
}

/// Blocks of a pcapng file with packets of a SEND each, without end: the opcode, queue pair and number differ.
fn blocks(count: u32, start: u32) -> Vec<u8> {
    let mut file = Vec::new();
    for number in start..start + count {
        let mut body = [0_u32, 0, number, 48, 48].map(u32::to_le_bytes).concat();
        body.extend([0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        body.extend([0xd0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
        let [_, high, middle, low] = (number / 7).to_be_bytes();
        let [_, psn @ ..] = number.to_be_bytes();
        body.extend([4, 0, 0xff, 0xff, 0, high & 1, middle, low | 2, 0]);
        body.extend(psn);
        body.extend([0; 8]);
        let length = (12 + body.len() as u32).to_le_bytes();
        file.extend([&6_u32.to_le_bytes()[..], &length, &body, &length].concat());
    }
    file
}

const FILE_START: [u32; 12] = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 101, 0, 20];

fn start_show(arguments: &[&str]) -> Result<(Child, ChildStdin), Failed> {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no pipe")?;
    stdin.write_all(&FILE_START.map(u32::to_le_bytes).concat())?;
    Ok((child, stdin))
}

/// The input is a pipe, with thousands of connections whose requests are never answered.
fn long_input_needs_little_memory() -> Result<(), Failed> {
    let (mut child, mut stdin) = start_show(&["show", "--summary", "-"])?;
    let mut peaks = Vec::new();
    for round in 0..8 {
        stdin.write_all(&blocks(50_000, round * 50_000))?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no peak")?;
        peaks.push(peak.trim().trim_end_matches(" kB").parse::<u64>()?);
    }
    drop(stdin);
    let mut text = String::new();
    child.stdout.take().ok_or("no pipe")?.read_to_string(&mut text)?;
    ensure(child.wait()?.success() && text.contains("400000 frames, 400000 of RoCEv2"), || text)?;
    ensure(peaks[7] < 150_000 && peaks[7] < peaks[5] + 10_000, || format!("{peaks:?} kB"))
}

/// Its reader goes away: it ends without a message.
fn closed_pipe() -> Result<(), Failed> {
    let (mut child, mut stdin) = start_show(&["show", "--json", "-"])?;
    drop(child.stdout.take());
    // The pipe breaks once it has ended.
    for round in 0..40 {
        if stdin.write_all(&blocks(10_000, round * 10_000)).is_err() {
            break;
        }
    }
    drop(stdin);
    let ended = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure(ended.status.success() && text.is_empty(), || format!("{}: {text}", ended.status))
}
