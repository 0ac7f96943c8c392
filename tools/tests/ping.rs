//! Runs `rdma-verbs ping` and its server: on one host and between two, with losses, delays and ends of the server, and
//! at hosts without a server.

mod support;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use support::{PROGRAM, Shell, ensure, in_namespace};

fn main() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    type Test = fn(&mut Shell) -> Result<(), Failed>;
    let tests: [(&str, Test); 18] = [
        ("all_services", all_services),
        ("sizes", sizes),
        ("through_sockets", through_sockets),
        ("ipv6", ipv6),
        ("text", text),
        ("quiet", quiet),
        ("flood", flood),
        ("device", device),
        ("losses_are_counted", losses_are_counted),
        ("reliable_over_losses", reliable_over_losses),
        ("all_lost", all_lost),
        ("late_replies", late_replies),
        ("interrupted", interrupted),
        ("server_comes_back", server_comes_back),
        ("several_clients", several_clients),
        ("no_server", no_server),
        ("two_hosts", two_hosts),
        ("closed_pipe", closed_pipe),
    ];
    let tests = tests.into_iter().map(|(name, test)| Trial::test(name, move || in_namespace(name, test)));
    tests.chain([Trial::test("wrong_usage", wrong_usage)]).collect()
}

const FILTER: &str = concat!(
    "nft add table inet t && nft 'add chain inet t c { type filter hook input priority 0; }' && ",
    "nft add rule inet t c "
);

/// Waits longer for a reply than any machine needs.
const PATIENT: &str = "-W 20";

/// The program in the shell.
trait Ping {
    fn serve(&mut self, arguments: &str) -> Result<(), Failed>;
    fn ping(&mut self, arguments: &str) -> Result<(i32, Value), Failed>;
}

impl Ping for Shell {
    /// Starts a server, and returns when it listens.
    fn serve(&mut self, arguments: &str) -> Result<(), Failed> {
        self.succeed("ip link set dev lo up")?;
        self.succeed(&format!(
            "rm -f /tmp/log; \"$PROGRAM\" ping --serve {arguments} 2> /tmp/log & echo $! > /tmp/server"
        ))?;
        self.succeed("for i in $(seq 500); do grep -qs answering /tmp/log && break; sleep 0.02; done; cat /tmp/log")
            .and_then(|log| ensure(log.contains("answering on port"), || log))
    }

    /// Runs the program. Returns its exit status and its document.
    fn ping(&mut self, arguments: &str) -> Result<(i32, Value), Failed> {
        // A busy machine is no loss.
        let patience = if arguments.contains("-W") { "" } else { PATIENT };
        let (status, output) = self.run(&format!("timeout 60 \"$PROGRAM\" ping --json {patience} {arguments}"))?;
        let found: Value = serde_json::from_str(&output).map_err(|error| format!("{arguments}: {error}: {output}"))?;
        ensure(found["schema"] == 1 && found["command"] == "ping", || format!("{found:#}"))?;
        let count = |name: &str| found[name].as_u64().unwrap_or(u64::MAX);
        ensure(count("sent") == count("received") + count("lost"), || format!("{found:#}"))?;
        ensure(found["round_trip"].is_null() == (count("received") == 0), || format!("{found:#}"))?;
        Ok((status, found))
    }
}

/// Compares some fields with what they must be.
fn expect(found: &Value, fields: &[(&str, Value)]) -> Result<(), Failed> {
    for (name, value) in fields {
        ensure(found[name] == *value, || format!("{name} is not {value}: {found:#}"))?;
    }
    Ok(())
}

fn all_services(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    for (flags, service, is_one_sided) in
        [("", "rc", false), ("--type uc", "uc", false), ("-t UD", "ud", false), ("--one-sided", "rc", true)]
    {
        let (status, found) = shell.ping(&format!("-c 3 -i 0.05 {flags} 127.0.0.2"))?;
        ensure(status == 0, || format!("{found:#}"))?;
        let path = if service == "ud" { Value::Null } else { "memory".into() };
        expect(&found, &[("service", service.into()), ("one_sided", is_one_sided.into()), ("path", path)])?;
        expect(
            &found,
            &[("sent", 3.into()), ("received", 3.into()), ("corrupted", 0.into()), ("message_bytes", 72.into())],
        )?;
        let times = found["echoes"].as_array().ok_or("no echoes")?;
        let times: Vec<f64> = times.iter().filter_map(|echo| echo["round_trip"].as_f64()).collect();
        let mean = times.iter().sum::<f64>() / 3.0;
        let said = found["round_trip"]["mean"].as_f64().unwrap_or_default();
        ensure(times.len() == 3 && (mean - said).abs() < 0.01, || format!("{found:#}"))?;
        let bounds = [&found["round_trip"]["min"], &found["round_trip"]["max"]].map(|bound| bound.as_f64());
        let real = [f64::min, f64::max].map(|of| times.iter().copied().reduce(of));
        ensure(bounds == real && found["seconds"].as_f64() > Some(0.1), || format!("{found:#}"))?;
    }
    Ok(())
}

/// Several packets, one without data, and the largest.
fn sizes(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    for flags in [
        "-s 0",
        "-s 65520",
        "-s 65520 -t uc",
        "-s 0 -t ud",
        "-s 4080 -t ud",
        "-s 65520 --one-sided",
        "-s 0 --one-sided",
    ] {
        let (status, found) = shell.ping(&format!("-c 2 -i 0.02 {flags} 127.0.0.2"))?;
        ensure(status == 0, || format!("{flags}: {found:#}"))?;
        expect(&found, &[("received", 2.into()), ("corrupted", 0.into())])?;
    }
    let (status, _) = shell.run("\"$PROGRAM\" ping -c 1 -s 4081 -t ud 127.0.0.2 2>&1 | grep 'up to 4080 bytes'")?;
    ensure(status == 0, || "a datagram longer than a packet is accepted".to_owned())
}

fn through_sockets(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed("ip link set dev lo mtu 1500 && export RDMA_VERBS_SHARED_MEMORY=off")?;
    let (status, found) = shell.ping("-c 2 -i 0.05 127.0.0.2")?;
    ensure(status == 0, || format!("{found:#}"))?;
    expect(&found, &[("path", "sockets".into()), ("path_mtu", 1024.into())])?;
    ensure(found["path_reason"].as_str().is_some_and(|why| why.contains("switched off")), || format!("{found:#}"))
}

fn ipv6(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--port 4000")?;
    for host in ["[::1]:4000", "--port 4000 ::1", "127.0.0.1:4000"] {
        for service in ["rc", "uc", "ud"] {
            let (status, found) = shell.ping(&format!("-c 1 -t {service} {host}"))?;
            ensure(status == 0, || format!("{host}: {found:#}"))?;
            expect(&found, &[("received", 1.into()), ("port", 4000.into())])?;
        }
    }
    Ok(())
}

fn text(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    let output = shell.succeed("\"$PROGRAM\" ping -c 2 -i 0.05 -W 20 -D -v 127.0.0.2")?;
    let lines: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
    let [first, path, one, two, title, counts, times, quantiles] = lines[..] else { return Err(output.into()) };
    ensure(first.starts_with("PING 127.0.0.2 (127.0.0.2) port 18517 over RC, 56(72) bytes of data"), || {
        output.clone()
    })?;
    ensure(first.ends_with(" from 127.0.0.1 on soft_lo, path MTU 4096, through shared memory"), || output.clone())?;
    ensure(path == "packets go through shared memory", || output.clone())?;
    for (line, sequence) in [(one, 1), (two, 2)] {
        let (stamp, rest) = line.strip_prefix('[').and_then(|line| line.split_once("] ")).ok_or(output.clone())?;
        let stamp: f64 = stamp.parse()?;
        ensure(stamp > 1.7e9, || output.clone())?;
        let time =
            rest.strip_prefix(&format!("72 bytes from 127.0.0.2: seq={sequence} time=")).ok_or(output.clone())?;
        let time: f64 = time.strip_suffix(" ms").ok_or(output.clone())?.parse()?;
        ensure(time > 0.0, || output.clone())?;
    }
    ensure(title == "--- 127.0.0.2 ping statistics ---", || output.clone())?;
    ensure(counts.starts_with("2 packets transmitted, 2 received, 0% packet loss, time "), || output.clone())?;
    ensure(times.starts_with("rtt min/avg/max/mdev = ") && times.ends_with(" ms"), || output.clone())?;
    ensure(quantiles.starts_with("rtt p50/p90/p99/p99.9 = "), || output.clone())
}

fn quiet(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    let output = shell.succeed("\"$PROGRAM\" ping -c 2 -i 0.05 -W 20 -q 127.0.0.2")?;
    ensure(!output.contains("seq=") && output.contains("2 received") && output.contains("p50/p90"), || output.clone())?;
    // Why a connection broke is said in the summary, because no line says it before.
    let output = shell.succeed(concat!(
        "rm -f /tmp/out; \"$PROGRAM\" ping -q -i 0.1 127.0.0.2 > /tmp/out & client=$!; ",
        "for i in $(seq 500); do grep -qs PING /tmp/out && break; sleep 0.02; done; sleep 0.5; ",
        "kill -INT $(cat /tmp/server); wait $(cat /tmp/server); sleep 1; kill -INT $client; wait $client; cat /tmp/out"
    ))?;
    ensure(output.contains("\n1 connection broke\nlast failure: ") && !output.contains("seq="), || output.clone())
}

/// A flood is as fast as the server allows, and no faster.
fn flood(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2 --rate 50")?;
    let (status, found) = shell.ping("-f -w 2 127.0.0.2")?;
    let sent = found["sent"].as_u64().unwrap_or_default();
    ensure(status == 0 && (10..=101).contains(&sent), || format!("{found:#}"))?;
    expect(&found, &[("server_interval", 0.02.into())])?;
    let (_, output) = shell.run("\"$PROGRAM\" ping -c 2 -i 0.001 127.0.0.2 2>&1")?;
    ensure(output.contains("the server allows one echo in 20ms"), || output.clone())
}

fn device(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    for device in ["-d soft:127.0.0.7", "-I 127.0.0.7"] {
        let (status, found) = shell.ping(&format!("-c 1 {device} 127.0.0.2"))?;
        ensure(status == 0, || format!("{found:#}"))?;
        expect(&found, &[("local", "127.0.0.7".into()), ("device", "soft:127.0.0.7".into())])?;
    }
    for device in ["-d no_such_device", "-d 192.0.2.7", "-d ::1"] {
        let (status, output) = shell.run(&format!("\"$PROGRAM\" ping -c 1 {device} 127.0.0.2 2>&1"))?;
        ensure(status == 2 && output.starts_with("ping: "), || format!("{device}: status {status}: {output}"))?;
    }
    Ok(())
}

/// Each fourth echo is lost on its way: the messages that set up connections are shorter.
fn losses_are_counted(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("export RDMA_VERBS_SHARED_MEMORY=off")?;
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed(&format!("{FILTER} ip daddr 127.0.0.2 udp length '>' 1000 numgen inc mod 4 == 0 drop"))?;
    for service in ["uc", "ud"] {
        let (status, found) = shell.ping(&format!("-c 20 -i 0.02 -W 3 -s 1200 -t {service} 127.0.0.2"))?;
        ensure(status == 0, || format!("{found:#}"))?;
        let counts = [("sent", 20), ("received", 15), ("lost", 5)].map(|(name, count)| (name, Value::from(count)));
        expect(&found, &counts)?;
        expect(&found, &[("loss_percent", 25.0.into()), ("packets_sent_again", 0.into())])?;
        let missing = found["echoes"].as_array().into_iter().flatten().filter(|echo| echo["round_trip"].is_null());
        ensure(missing.count() == 5, || format!("{found:#}"))?;
    }
    let output = shell.succeed("\"$PROGRAM\" ping -c 4 -i 0.02 -W 0.5 -s 1200 -t ud 127.0.0.2")?;
    ensure(output.contains("no reply to seq=") && output.contains("25% packet loss"), || output.clone())
}

/// The transport of a reliable connection sends again what is lost.
fn reliable_over_losses(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("export RDMA_VERBS_SHARED_MEMORY=off")?;
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed(&format!("{FILTER} ip daddr 127.0.0.2 udp length '>' 1000 numgen inc mod 4 == 0 drop"))?;
    let (status, found) = shell.ping("-c 8 -i 0.05 -W 20 -s 1200 127.0.0.2")?;
    ensure(status == 0, || format!("{found:#}"))?;
    expect(&found, &[("received", 8.into()), ("loss_percent", 0.0.into()), ("broken_connections", 0.into())])?;
    ensure(found["packets_sent_again"].as_u64() >= Some(2), || format!("{found:#}"))
}

fn all_lost(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("export RDMA_VERBS_SHARED_MEMORY=off")?;
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed(&format!("{FILTER} ip daddr 127.0.0.2 udp length '>' 1000 drop"))?;
    for service in ["uc", "ud"] {
        let (status, found) = shell.ping(&format!("-c 3 -i 0.05 -W 0.2 -s 1200 -t {service} 127.0.0.2"))?;
        ensure(status == 1, || format!("status {status}: {found:#}"))?;
        expect(&found, &[("sent", 3.into()), ("received", 0.into()), ("round_trip", Value::Null)])?;
        ensure(found["seconds"].as_f64() < Some(10.0), || format!("{found:#}"))?;
    }
    // Fewer replies than asked for before the deadline.
    shell.succeed("nft flush chain inet t c")?;
    let (status, found) = shell.ping("-c 1000 -i 0.05 -w 1 127.0.0.2")?;
    ensure(status == 1 && found["received"].as_u64() > Some(0), || format!("status {status}: {found:#}"))
}

/// A server that is stopped for a time longer than the client waits.
fn late_replies(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    let (_, found) = {
        shell.succeed("(sleep 1; kill -STOP $(cat /tmp/server); sleep 1.5; kill -CONT $(cat /tmp/server)) & :")?;
        shell.ping("-i 0.1 -W 0.3 -w 6 -t ud 127.0.0.2")?
    };
    let late = found["late"].as_u64().unwrap_or_default();
    ensure(late >= 3 && found["round_trip"]["max"].as_f64() > Some(300_000.0), || format!("{found:#}"))?;
    expect(&found, &[("duplicates", 0.into())])
}

/// Ctrl-C ends both ends: the client with its summary, and the server after telling its clients.
fn interrupted(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    // The shell creates the file of a background job some time later: that of the client before must not be there.
    let start = "rm -f /tmp/out; \"$PROGRAM\" ping -i 0.05 127.0.0.2 > /tmp/out & client=$!; ";
    let wait = "for i in $(seq 500); do grep -qs seq=2 /tmp/out && break; sleep 0.02; done; ";
    let (status, output) =
        shell.run(&format!("{start}{wait}kill -INT $client; wait $client; s=$?; cat /tmp/out; (exit $s)"))?;
    ensure(status == 0 && output.contains(" packets transmitted, "), || format!("status {status}: {output}"))?;
    let ask = "kill -QUIT $client; for i in $(seq 500); do grep -q ' packets, ' /tmp/state && break; sleep 0.02; done";
    let (status, output) = shell
        .run(&format!("exec 2> /tmp/state; {start}{wait}{ask}; kill -TERM $client; wait $client; cat /tmp/state"))?;
    ensure(status == 0 && output.contains(" packets, ") && output.contains("% loss, min/avg/max = "), || {
        output.clone()
    })?;
    let (status, _) = shell.run(&format!("{start}{wait}kill -INT $(cat /tmp/server); wait $(cat /tmp/server)"))?;
    ensure(status == 0, || format!("the server ends with {status}"))?;
    shell.succeed("for i in $(seq 500); do grep -q 'no RDMA stack' /tmp/out && break; sleep 0.02; done")?;
    let output = shell.succeed("kill -INT $client; wait $client; cat /tmp/out")?;
    ensure(output.contains("connection lost: the server has ended it"), || output.clone())?;
    ensure(output.contains("not sent: 127.0.0.2 is up, but has no RDMA stack"), || output.clone())
}

/// The client connects again to a server that was killed and started again.
fn server_comes_back(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed(
        "\"$PROGRAM\" ping -i 0.1 -W 0.5 --json 127.0.0.2 > /tmp/out 2>&1 & echo $! > /tmp/client; sleep 1.5",
    )?;
    shell.succeed("kill -KILL $(cat /tmp/server); wait $(cat /tmp/server) || sleep 1.5")?;
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed("sleep 5; kill -INT $(cat /tmp/client); wait $(cat /tmp/client)")?;
    let found: Value = serde_json::from_str(&shell.succeed("cat /tmp/out")?)?;
    ensure(found["broken_connections"].as_u64() >= Some(1), || format!("{found:#}"))?;
    let replies: Vec<bool> =
        found["echoes"].as_array().into_iter().flatten().map(|echo| !echo["round_trip"].is_null()).collect();
    let lost = replies.iter().position(|has_reply| !has_reply);
    ensure(replies.first() == Some(&true) && lost.is_some_and(|lost| replies[lost..].contains(&true)), || {
        format!("{found:#}")
    })
}

/// Two clients at a time; the server takes no third one.
fn several_clients(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2 --clients 2")?;
    for number in [1, 2] {
        shell.succeed(&format!("\"$PROGRAM\" ping -c 40 -i 0.1 -W 20 127.0.0.2 > /tmp/out{number} & c{number}=$!"))?;
        shell.succeed(&format!("for i in $(seq 500); do grep seq=1 /tmp/out{number} && break; sleep 0.02; done"))?;
    }
    let (status, found) = shell.ping("-c 1 127.0.0.2")?;
    let diagnosis = &found["diagnosis"];
    ensure(status == 1 && diagnosis["kind"] == "refused", || format!("{found:#}"))?;
    ensure(diagnosis["text"].as_str().is_some_and(|text| text.contains("it has 2 clients")), || format!("{found:#}"))?;
    shell.succeed("wait $c1 && wait $c2")?;
    for number in [1, 2] {
        let output = shell.succeed(&format!("cat /tmp/out{number}"))?;
        ensure(output.contains("40 packets transmitted, 40 received, 0% packet loss"), || output.clone())?;
    }
    Ok(())
}

/// Each kind of host without a server has its own diagnosis.
fn no_server(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    shell.succeed(&format!("{FILTER} ip daddr 127.0.0.4 udp dport 4791 drop"))?;
    shell.succeed("nft add rule inet t c ip daddr 127.0.0.5 drop")?;
    shell.succeed("nft add rule inet t c ip daddr 127.0.0.6 reject with icmp type host-unreachable")?;
    for (host, kind, text) in [
        ("127.0.0.2:77", "no-service", "an RDMA stack answers there, but no service is on port 77"),
        ("-t ud 127.0.0.2:77", "no-service", "an RDMA stack answers there, but no service is on port 77"),
        ("127.0.0.1", "no-service", "this process's own RDMA stack"),
        ("127.0.0.3", "no-rdma", "its UDP port 4791 is closed"),
        ("-t ud 127.0.0.3", "no-rdma", "its UDP port 4791 is closed"),
        ("127.0.0.4", "blocked", "is up, but nothing responds on its UDP port 4791"),
        ("127.0.0.5", "silent", "the host is down, or a firewall drops packets"),
        ("127.0.0.6", "unreachable", "cannot be reached"),
    ] {
        let (status, found) = shell.ping(&format!("-c 1 {host}"))?;
        ensure(status == 1 && found["diagnosis"]["kind"] == kind, || format!("{host}: status {status}: {found:#}"))?;
        let is_told = found["diagnosis"]["text"].as_str().is_some_and(|said| said.contains(text));
        let has_command = found["diagnosis"]["commands"].as_array().is_some_and(|commands| !commands.is_empty());
        ensure(is_told && has_command, || format!("{host}: {found:#}"))?;
    }
    let (status, output) = shell.run("\"$PROGRAM\" ping 127.0.0.3")?;
    ensure(status == 1 && output.contains("  $ rdma-verbs ping --serve"), || format!("status {status}: {output}"))?;
    for host in ["192.0.2.1", "no.such.host.invalid"] {
        let (status, output) = shell.run(&format!("\"$PROGRAM\" ping -c 1 {host} 2>&1"))?;
        ensure(status == 2 && output.contains(host), || format!("{host}: status {status}: {output}"))?;
    }
    Ok(())
}

/// Another network namespace behind a cable is another host.
fn two_hosts(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("unshare --net sleep 300 & echo $! > /tmp/far; sleep 0.3")?;
    shell.succeed(concat!(
        "ip link set dev lo up && far=$(cat /tmp/far) && ip link add near type veth peer name far netns $far && ",
        "ip addr add 10.91.0.1/24 dev near && ip link set near up && ",
        "nsenter -t $far -n sh -c 'ip addr add 10.91.0.2/24 dev far && ip link set far up && ip link set lo up'"
    ))?;
    shell.succeed(concat!(
        "nsenter -t $far -n \"$PROGRAM\" ping --serve 2> /tmp/log & ",
        "for i in $(seq 500); do grep -qs answering /tmp/log && break; sleep 0.02; done"
    ))?;
    for service in ["rc", "uc", "ud"] {
        let (status, found) = shell.ping(&format!("-c 3 -i 0.05 -t {service} 10.91.0.2"))?;
        ensure(status == 0, || format!("{found:#}"))?;
        let path = if service == "ud" { Value::Null } else { "sockets".into() };
        expect(
            &found,
            &[("received", 3.into()), ("path", path), ("path_mtu", 1024.into()), ("device", "soft_near".into())],
        )?;
    }
    let (status, found) = shell.ping("-c 1 10.91.0.3")?;
    ensure(status == 1 && found["diagnosis"]["kind"] == "unreachable", || format!("{found:#}"))
}

/// A reader that ends early is no error.
fn closed_pipe(shell: &mut Shell) -> Result<(), Failed> {
    shell.serve("--bind 127.0.0.2")?;
    let (_, output) = shell.run(concat!(
        "{ \"$PROGRAM\" ping -c 50 -i 0.02 127.0.0.2 2> /tmp/errors; echo $? > /tmp/status; } | head -1; ",
        "cat /tmp/errors /tmp/status"
    ))?;
    ensure(output.starts_with("PING ") && output.trim().ends_with('0') && !output.contains("panic"), || output.clone())
}

fn wrong_usage() -> Result<(), Failed> {
    for arguments in [
        "",
        "a b",
        "host --serve",
        "--serve --count 3",
        "--bind 127.0.0.1 host",
        "--rate 5 host",
        "--serve --rate 0",
        "--serve --port 0",
        "-c 0 host",
        "-i -1 host",
        "-i nan host",
        "-W 0 host",
        "-w 0 host",
        "-s 65521 host",
        "-f -i 1 host",
        "--type xrc host",
        "--type uc --one-sided host",
        "--type ud --one-sided host",
        "host:",
        "host:65536",
        "[::1",
        "--no-such host",
    ] {
        let ended = Command::new(PROGRAM).arg("ping").args(arguments.split_whitespace()).output()?;
        ensure(ended.status.code() == Some(2), || format!("ping {arguments} ends with {}", ended.status))?;
        ensure(!ended.stderr.is_empty(), || format!("ping {arguments} says nothing"))?;
    }
    let help = Command::new(PROGRAM).args(["ping", "--help"]).output()?;
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    ensure(text.contains("Exit status") && text.contains("Examples") && text.contains("--one-sided"), || text.clone())
}
