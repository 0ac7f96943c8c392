//! Runs tests of this program with a fault, in a process of their own.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rdma_verbs::fault;

/// Runs the tests that the arguments select in a process with this fault, or none, until one fails. Returns that one,
/// or how the process ended. Tests that take longer than `limit` are killed.
pub(crate) fn run(arguments: &[&str], fault: &str, limit: Duration) -> Option<String> {
    let mut tests = Command::new(std::env::current_exe().expect("the path of this program"));
    tests.args(arguments).env(fault::VARIABLE, fault);
    // Backtraces take longer than many tests.
    tests.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // A group of its own, with the processes that it starts: some of them are stopped, and would stay for ever.
    let mut process = tests.process_group(0).spawn().expect("this program can be started again");
    let output = BufReader::new(process.stdout.take().expect("a pipe"));
    let (sender, results) = mpsc::channel();
    std::thread::spawn(move || {
        let failed = output.lines().map_while(Result::ok).find_map(|line| failed_test(&line));
        let _ = sender.send(failed);
    });
    let result = results.recv_timeout(limit);
    let is_over = matches!(result, Ok(None));
    let status = is_over.then(|| process.wait().expect("a child"));
    // Tests that succeed leave no process behind.
    if !status.is_some_and(|status| status.success()) {
        let _ = killpg(Pid::from_raw(process.id().try_into().expect("a process")), Signal::SIGKILL);
        let _ = process.wait();
    }
    match (result, status) {
        (Err(_), _) => Some("tests that do not end".to_owned()),
        (Ok(Some(test)), _) => Some(test),
        (Ok(None), Some(status)) if !status.success() => Some(format!("the end of the process, {status}")),
        (Ok(None), _) => None,
    }
}

/// Returns the name of the test if the line says that it has failed.
fn failed_test(line: &str) -> Option<String> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned)
}
