//! Processes that tests start: this program again, also alone, and in a network namespace of its own.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Names the test for which a process was started.
const ALONE: &str = "RDMA_VERBS_TEST_ALONE";

/// Runs the body of a test in a process of its own, and such tests one after the other: for tests that count what
/// belongs to the whole process, change it, or need the machine to themselves. `body` is a closure in the test's
/// function, whose name it has; the process is this program again, with that test only.
#[track_caller]
pub fn alone<F: FnOnce()>(body: F) {
    static TURN: Mutex<()> = Mutex::new(());
    let test = without_crate(std::any::type_name::<F>()).trim_end_matches("::{{closure}}");
    if std::env::var(ALONE).is_ok_and(|own| own == test) {
        return body();
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = this_program();
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, test).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    // A process that found no test of this name succeeds as well.
    let is_run = said.contains("test result: ok. 1 passed");
    assert!(output.status.success() && is_run, "{test}, in a process of its own: {}", output.status);
}

/// Returns a command that runs an ignored test of this program, which is the program of another process. The test is
/// named with its crate: `concat!(module_path!(), "::name")`.
pub fn ignored_test(path: &str) -> Command {
    let mut command = this_program();
    command.args(["--exact", without_crate(path), "--ignored", "--nocapture"]);
    command
}

/// Returns the command with the arguments of this one, in user and network namespaces of its own. Its variables are not
/// taken over.
pub fn in_namespace(command: &Command) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.arg("-rn").arg(command.get_program()).args(command.get_args());
    unshare
}

/// Returns whether this system lets `ip` do this in a network namespace of its own.
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
