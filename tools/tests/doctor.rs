//! Provokes the problems that `rdma-verbs doctor` finds, in namespaces of this test's own: limits, mounts, firewall
//! rules, sockets that hold the port. Where the suggested command can be run there, it must mend the problem.

#[path = "doctor/cases.rs"]
mod cases;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use cases::{Case, FILTER, HOSTS, MACHINE, PATH, SERVER, UP};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::unistd::geteuid;
use serde_json::Value;
use support::{PROGRAM, Shell, ensure, in_namespace, with_users};

const ROCE_PORT: u16 = 4791;
/// Arguments of this program as a process that holds the port: it starts one that stays, and waits until it is ready.
const HOLD: &str = "hold";
const HELD: &str = "held";
const HOLD_TIME: Duration = Duration::from_secs(120);
const OTHER_USER: u32 = 65_534;

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().collect();
    match given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, HOLD, address, ref user @ ..] => hold(address, user.first().and_then(|user| user.parse().ok())),
        [_, HELD, address] => held(address),
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

/// Starts a process that holds the port, as another user if one is given. It outlives this one, until the end of its
/// time or of its namespace.
#[expect(clippy::zombie_processes)]
fn hold(address: &str, user: Option<u32>) -> ExitCode {
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([HELD, address]).stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user);
    }
    let mut child = command.spawn().expect("the process starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    print!("{line}");
    ExitCode::SUCCESS
}

fn held(address: &str) -> ExitCode {
    let _socket = UdpSocket::bind((address, ROCE_PORT)).expect("the port is free");
    println!("{}", std::process::id());
    std::thread::sleep(HOLD_TIME);
    ExitCode::SUCCESS
}

fn trials() -> Vec<Trial> {
    let own = |case: &'static Case, prefix: &'static str| {
        Trial::test(case.name, move || in_namespace(case.name, |shell| provoked(shell, case, prefix)))
    };
    let mut trials: Vec<Trial> = MACHINE.iter().chain(&HOSTS).map(|case| own(case, ":")).collect();
    trials.extend(PATH.iter().map(|case| own(case, SERVER)));
    type Test = fn(&mut Shell) -> Result<(), Failed>;
    let tests: [(&str, Test); 5] = [
        ("healthy_machine", healthy_machine),
        ("text", text),
        ("port_shared", port_shared),
        ("memory_limit", memory_limit),
        ("firewalls_are_opened", firewalls_are_opened),
    ];
    trials.extend(tests.into_iter().map(|(name, test)| Trial::test(name, move || in_namespace(name, test))));
    trials.push(Trial::test("port_held_by_another_user", port_held_by_another_user));
    trials.push(Trial::test("folder_of_another_user", folder_of_another_user));
    trials.push(Trial::test("folder_outside_of_the_namespace", folder_outside_of_the_namespace));
    trials.push(Trial::test("wrong_usage", wrong_usage));
    trials.push(Trial::test("list", list));
    trials.push(Trial::test("server_bounds", server_bounds));
    trials
}

/// The program in the shell.
trait Doctor {
    fn doctor(&mut self, arguments: &str) -> Result<(i32, Value), Failed>;
    fn finding(&mut self, check: &str, arguments: &str) -> Result<Value, Failed>;
}

impl Doctor for Shell {
    /// Runs the program. Returns its exit status and its report.
    fn doctor(&mut self, arguments: &str) -> Result<(i32, Value), Failed> {
        let (status, output) = self.run(&format!("timeout 60 \"$PROGRAM\" doctor --json {arguments}"))?;
        let document: Value = serde_json::from_str(&output).map_err(|error| format!("{error}: {output}"))?;
        let checks = document["checks"].as_array().ok_or("no checks")?;
        let problems = checks.iter().filter(|check| check["outcome"] == "problem");
        ensure(document["schema"] == 1, || document.to_string())?;
        for problem in problems.clone() {
            ensure(problem["commands"].as_array().is_some_and(|all| !all.is_empty()), || {
                format!("no command: {problem}")
            })?;
        }
        ensure(document["problems"] == problems.clone().count(), || document.to_string())?;
        ensure(status == i32::from(problems.count() > 0), || format!("status {status}: {document}"))?;
        Ok((status, document))
    }

    fn finding(&mut self, check: &str, arguments: &str) -> Result<Value, Failed> {
        check_of(&self.doctor(arguments)?.1, check)
    }
}

fn check_of(document: &Value, check: &str) -> Result<Value, Failed> {
    let found = document["checks"].as_array().into_iter().flatten().find(|found| found["name"] == check);
    Ok(found.ok_or_else(|| format!("no check {check} in {document}"))?.clone())
}

fn provoked(shell: &mut Shell, case: &Case, before: &str) -> Result<(), Failed> {
    if case.setup.contains("nft add rule") {
        shell.succeed(FILTER)?;
    }
    if !before.is_empty() {
        shell.succeed(before)?;
    }
    if !case.setup.is_empty() {
        shell.succeed(case.setup)?;
    }
    let found = shell.finding(case.check, case.arguments)?;
    ensure(found["outcome"] == case.outcome && found.to_string().contains(&case.says.replace('"', "\\\"")), || {
        format!("expected {} with \"{}\": {found:#}", case.outcome, case.says)
    })?;
    let command = found["commands"][0].as_str().unwrap_or_default().to_owned();
    ensure(command.contains(case.command), || format!("expected the command {}: {found:#}", case.command))?;
    if case.mends && (geteuid().is_root() || !case.is_for_root) {
        shell.succeed(&command)?;
        let after = shell.finding(case.check, case.arguments)?;
        let is_mended = after["outcome"] == "ok" || (case.outcome == "problem" && after["outcome"] == "note");
        ensure(is_mended, || format!("{command} does not mend it: {after:#}"))?;
    }
    Ok(())
}

fn healthy_machine(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed(UP)?;
    let (status, document) = shell.doctor("")?;
    ensure(status == 0, || format!("{document:#}"))?;
    for check in ["devices", "port", "transfer", "settings", "registry", "segmentation"] {
        let is_ok = |found: &&Value| found["name"] == check && found["outcome"] == "ok";
        let is_there = document["checks"].as_array().is_some_and(|checks| checks.iter().any(|found| is_ok(&found)));
        ensure(is_there, || format!("{check} is not ok: {document:#}"))?;
    }
    Ok(())
}

/// As text, a problem is followed by the command.
fn text(shell: &mut Shell) -> Result<(), Failed> {
    let (status, output) = shell.run("timeout 60 \"$PROGRAM\" doctor")?;
    ensure(status == 1, || output.clone())?;
    let mut lines = output.lines().skip_while(|line| !line.starts_with("problem  devices "));
    ensure(
        lines.next().is_some() && lines.next().is_some_and(|line| line.ends_with("$ ip link set dev lo up")),
        || output.clone(),
    )?;
    ensure(output.contains(" 1 problem, ") && output.lines().all(|line| line.chars().count() <= 120), || output.clone())
}

/// Processes of this library share the port.
fn port_shared(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed(UP)?;
    let devices = "-d soft:127.0.0.1 --partner-dev soft:127.0.0.1";
    shell.succeed(&format!("\"$PROGRAM\" perf self send lat -D 20 {devices} > /tmp/perf 2>&1 &"))?;
    for _ in 0..50 {
        let found = shell.finding("port", "")?;
        ensure(found["outcome"] == "ok", || format!("{found:#}"))?;
        if found["why"].as_str().is_some_and(|why| why.contains("of this user share")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("no process shares the port: {}", shell.succeed("cat /tmp/perf")?).into())
}

fn memory_limit(shell: &mut Shell) -> Result<(), Failed> {
    let group = shell.succeed("sed -n s/^0:://p /proc/self/cgroup")?;
    if group.trim().is_empty() {
        println!("memory_limit: only the judgement is tested, this system has no control groups of version 2");
        return Ok(());
    }
    shell.succeed("mount -t tmpfs tmpfs /sys/fs/cgroup")?;
    let folder = format!("/sys/fs/cgroup{}", group.trim());
    shell.succeed(&format!(
        "mkdir -p {folder} && echo 67108864 > {folder}/memory.max && echo 67000000 > {folder}/memory.current"
    ))?;
    let found = shell.finding("memory-limit", "")?;
    ensure(found["outcome"] == "problem" && found.to_string().contains("of at most 64 MiB"), || format!("{found:#}"))?;
    // The cache of files is taken back when memory is needed.
    shell.succeed(&format!(
        "echo 134217728 > {folder}/memory.max && echo inactive_file 67000000 > {folder}/memory.stat"
    ))?;
    shell.succeed(&format!("echo 134000000 > {folder}/memory.current"))?;
    let cached = shell.finding("memory-limit", "")?;
    ensure(cached["outcome"] == "ok", || format!("{cached:#}"))?;
    shell.succeed(&format!("rm {folder}/memory.stat && {}", found["commands"][0].as_str().ok_or("no command")?))?;
    let after = shell.finding("memory-limit", "")?;
    ensure(after["outcome"] == "ok", || format!("{after:#}"))
}

/// The commands for nft find the chains that drop, whatever they are called. For other firewalls, they are not run.
fn firewalls_are_opened(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed(FILTER)?;
    shell.succeed("nft add table ip u && nft 'add chain ip u d { type filter hook input priority 5; }'")?;
    shell.succeed("nft add table arp v && nft 'add chain arp v e { type filter hook input priority 0; }'")?;
    shell.succeed(SERVER)?;
    for (check, rule) in [("service", "tcp dport 18516 drop"), ("rdma", "ip daddr 127.0.0.2 udp dport 4791 drop")] {
        shell.succeed(&format!("nft add rule inet t c {rule} && nft add rule ip u d {rule}"))?;
        let found = shell.finding(check, "127.0.0.2")?;
        let commands: Vec<&str> =
            found["commands"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(command) = commands.iter().find(|command| command.contains("nft ") && command.contains("accept"))
        else {
            println!(
                "firewalls_are_opened: only the finding is tested, this system has another firewall: {commands:?}"
            );
            return Ok(());
        };
        shell.succeed(command)?;
        let after = shell.finding(check, "127.0.0.2")?;
        ensure(after["outcome"] == "ok", || format!("{command} does not mend it: {after:#}"))?;
    }
    Ok(())
}

/// Runs a test that needs two users, so only as root.
fn with_two_users(name: &str, test: impl FnOnce(&mut Shell) -> Result<(), Failed>) -> Result<(), Failed> {
    if geteuid().is_root() {
        return with_users(name, &[], test);
    }
    println!("{name}: skipped, only root can be two users");
    Ok(())
}

fn port_held_by_another_user() -> Result<(), Failed> {
    with_two_users("port_held_by_another_user", |shell| {
        shell.succeed(&format!("{UP} && \"$TEST\" {HOLD} 127.0.0.1 {OTHER_USER}"))?;
        let found = shell.finding("port", "")?;
        let text = format!("of user {OTHER_USER}");
        ensure(found["outcome"] == "problem" && found.to_string().contains(&text), || format!("{found:#}"))?;
        shell.succeed(found["commands"][0].as_str().ok_or("no command")?)?;
        let after = shell.finding("port", "")?;
        ensure(after["outcome"] == "ok", || format!("{after:#}"))
    })
}

fn folder_of_another_user() -> Result<(), Failed> {
    with_two_users("folder_of_another_user", |shell| {
        let shm = "mount -t tmpfs tmpfs /dev/shm";
        shell.succeed(&format!(
            "{UP} && {shm} && mkdir -m 700 /dev/shm/rdma-verbs-0 && chown {OTHER_USER} /dev/shm/rdma-verbs-0"
        ))?;
        let found = shell.finding("registry", "")?;
        let text = format!("belongs to user {OTHER_USER}");
        ensure(found["outcome"] == "problem" && found.to_string().contains(&text), || format!("{found:#}"))?;
        shell.succeed(found["commands"][0].as_str().ok_or("no command")?)?;
        let after = shell.finding("registry", "")?;
        ensure(after["outcome"] == "ok", || format!("{after:#}"))
    })
}

/// A rootless container that shares /dev/shm with the host: root's folder is that of an unknown user there.
fn folder_outside_of_the_namespace() -> Result<(), Failed> {
    with_two_users("folder_outside_of_the_namespace", |shell| {
        shell.succeed("mkdir -m 700 /dev/shm/rdma-verbs-0")?;
        let users = "setpriv --reuid 1 --regid 1 --clear-groups unshare --map-root-user --mount";
        let doctor = |before: &str| format!("{users} sh -c '{before} timeout 60 \"$PROGRAM\" doctor --json'");
        let (_, output) = shell.run(&doctor(""))?;
        let found = check_of(&serde_json::from_str(&output)?, "registry")?;
        ensure(found["outcome"] == "problem" && found.to_string().contains("outside of this user namespace"), || {
            format!("{found:#}")
        })?;
        let command = found["commands"][0].as_str().ok_or("no command")?.to_owned();
        let (_, output) = shell.run(&doctor(&format!("{command} &&")))?;
        let after = check_of(&serde_json::from_str(&output)?, "registry")?;
        ensure(after["outcome"] == "ok", || format!("{after:#}"))
    })
}

fn wrong_usage() -> Result<(), Failed> {
    for arguments in
        ["host --serve", "host --port 0", "host --port 65536", "--serve --json", "--bind 127.0.0.1", "a b", "--no-such"]
            .into_iter()
            .chain(["--port 18517", "--port 18517 --json", "--list --port 18517"])
    {
        let ended = Command::new(PROGRAM).arg("doctor").args(arguments.split_whitespace()).output()?;
        ensure(ended.status.code() == Some(2), || format!("doctor {arguments} ends with {}", ended.status))?;
    }
    let help = Command::new(PROGRAM).args(["doctor", "--help"]).output()?;
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    ensure(text.contains("Exit status") && text.contains("--serve"), || text.clone())
}

/// The list has the names that the cases use, each once, and each check in it is provoked.
fn list() -> Result<(), Failed> {
    let output = Command::new(PROGRAM).args(["doctor", "--list"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let cases = || MACHINE.iter().chain(&HOSTS).chain(&PATH);
    for case in cases() {
        ensure(names.iter().filter(|name| **name == case.check).count() == 1, || format!("{}: {text}", case.check))?;
    }
    for name in names {
        let is_provoked = cases().any(|case| case.check == name && case.outcome != "ok");
        ensure(is_provoked || name == "memory-limit", || format!("no test provokes {name}"))?;
    }
    Ok(())
}

/// The server returns nothing to a client that does not speak its protocol, and has bounds for those that do.
fn server_bounds() -> Result<(), Failed> {
    let address = format!("127.93.{}.{}", std::process::id() >> 8 & 255, std::process::id() & 254 | 1);
    let port = TcpListener::bind((address.as_str(), 0))?.local_addr()?.port();
    let arguments = ["doctor", "--serve", "--port", &port.to_string(), "--bind", &address].map(str::to_owned);
    let mut server = Command::new(PROGRAM).args(arguments).stderr(Stdio::piped()).spawn()?;
    let result = (|| {
        let mut line = String::new();
        BufReader::new(server.stderr.as_mut().ok_or("no pipe")?).read_line(&mut line)?;
        let connect = || -> Result<TcpStream, Failed> {
            let stream = TcpStream::connect((address.as_str(), port))?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            Ok(stream)
        };
        let mut stream = connect()?;
        stream.write_all(&[b'x'; 1024])?;
        ensure(stream.read(&mut [0; 2048])? == 0, || "it responds to another protocol".to_owned())?;
        // Kinds of messages: 1 returns datagrams to a port, 4 is a failure. Each client gets one thread for datagrams.
        let mut stream = connect()?;
        let mut hello = [0; 1024];
        hello[..10].copy_from_slice(b"RVDR\x01\x01\x00\x0a\x12\xb7");
        for kind in [1, 4] {
            let mut response = [0; 1024];
            stream.write_all(&hello)?;
            stream.read_exact(&mut response)?;
            ensure(response[5] == kind, || format!("a message of kind {}, not {kind}", response[5]))?;
        }
        drop(stream);
        let waiting = (0..8).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
        ensure(connect()?.read(&mut [0; 1])? == 0, || "it has a ninth place".to_owned())?;
        drop(waiting);
        Ok(())
    })();
    server.kill()?;
    server.wait()?;
    result
}
