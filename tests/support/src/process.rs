//! Processes that tests start: this program again, with one test only or in its own network namespace.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Names the test for which a process was started.
const ALONE: &str = "RDMA_VERBS_TEST_ALONE";
/// Longest time that such a process runs.
const LONGEST: Duration = Duration::from_secs(600);

/// Runs the body of a test in its own process, and such tests one after the other. This is for tests that count or
/// change something of the whole process, or need the machine to themselves. The process is this program again, with
/// that test only. `body` is a closure in the test's function: the name of its type gives the name of the test.
#[track_caller]
pub fn alone<F: FnOnce()>(body: F) {
    static TURN: Mutex<()> = Mutex::new(());
    let test = without_crate(std::any::type_name::<F>()).trim_end_matches("::{{closure}}");
    if std::env::var(ALONE).is_ok_and(|own| own == test) {
        return body();
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = this_program();
    command.args(["--exact", test, "--nocapture"]).env(ALONE, test);
    let name = format!("rdma-verbs-alone-{}-{}", std::process::id(), test.replace(':', "-"));
    let (status, said) = run_into(&mut command, &std::env::temp_dir().join(name));
    // Omit the result lines of the process's harness, which would be counted as results of this one.
    said.lines().filter(|line| !line.starts_with("test result:")).for_each(|line| println!("{line}"));
    let status = status.unwrap_or_else(|| panic!("{test}, in a process of its own, took more than {LONGEST:?}"));
    // A process that found no test of this name succeeds as well.
    let is_run = said.contains("test result: ok. 1 passed");
    assert!(status.success() && is_run, "{test}, in a process of its own: {status}");
}

/// Runs a command with its output in a file, and removes the file. Returns the status, `None` if the command took too
/// long and was killed, and the output. A pipe would also wait for the command's own children.
fn run_into(command: &mut Command, path: &Path) -> (Option<ExitStatus>, String) {
    let file = File::create(path).unwrap();
    let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let end = Instant::now() + LONGEST;
    let mut has_ended = || child.try_wait().unwrap();
    while has_ended().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = has_ended();
    if status.is_none() {
        child.kill().unwrap();
    }
    child.wait().unwrap();
    let said = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    fs::remove_file(path).unwrap();
    (status, said)
}

/// Returns a command that runs an ignored test of this program, as the work of another process. The test is named with
/// its crate: `concat!(module_path!(), "::name")`.
pub fn ignored_test(path: &str) -> Command {
    let mut command = this_program();
    command.args(["--exact", without_crate(path), "--ignored", "--nocapture"]);
    command
}

/// Returns the command with the arguments of this one, in user and network namespaces of its own. Variables that `env`
/// has set on `command` are not copied.
pub fn in_namespace(command: &Command) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.arg("-rn").arg(command.get_program()).args(command.get_args());
    unshare
}

/// Returns whether this system allows `ip` with these arguments in a new network namespace.
pub fn namespace_allows(ip_arguments: &str) -> bool {
    let mut ip = Command::new("ip");
    ip.args(ip_arguments.split(' '));
    in_namespace(&ip).output().is_ok_and(|output| output.status.success())
}

/// Runs `ip` with these arguments, separated by spaces.
#[track_caller]
pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Sends a signal, named as for `kill`: `-STOP`.
#[track_caller]
pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(status.success(), "kill {name} {process}");
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

fn without_crate(path: &str) -> &str {
    path.split_once("::").expect("a path that begins with a crate").1
}

/// Most reads of the kernel's table. It is read in chunks: while sockets come and go, a line may be missing or appear
/// twice.
const MOST_READS: usize = 16;

/// Returns the names of the Unix sockets of a process, with `@` in front if they are not in the file system.
pub fn unix_sockets(process: u32, kind: &str) -> Vec<String> {
    let reads = std::iter::repeat_with(|| unix_sockets_in_table(process, kind));
    reads.take(MOST_READS).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Returns them as one read of the table shows them. The kernel reports the name that a socket was bound to, with
/// `new-` in front, although it was renamed since.
fn unix_sockets_in_table(process: u32, kind: &str) -> Vec<String> {
    let folder = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = folder.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let links: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = lines.filter(|words| links.contains(&format!("socket:[{}]", words[6])));
    let names = own.filter_map(|words| words.get(7).map(|name| name.replace("/new-", "/")));
    let mut names: Vec<String> = names.filter(|name| name.contains(kind)).collect();
    names.sort_unstable();
    names.dedup();
    names
}
