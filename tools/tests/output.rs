//! The standard streams of all commands: their readers may go away at any time.

mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use support::{Shell, ensure, in_namespace};

/// Commands that print.
const COMMANDS: [(&str, &str); 15] = [
    ("help", "--help"),
    ("doctor", "doctor"),
    ("doctor_list", "doctor --list"),
    ("devices", "devices -d soft:127.0.0.1"),
    ("devices_json", "devices -d soft:127.0.0.1 --json"),
    ("ping", "ping -c 2 -i 0.02 127.0.0.2"),
    ("latency", "perf self send lat -n 50 --report $DEVICES"),
    ("bandwidth", "perf self write bw -n 50 --json $DEVICES"),
    ("table", "perf table --brief --repetitions 1 --only '1 MiB beside'"),
    ("top", "top --batch -n 2 --interval 0.1"),
    ("stat", "stat"),
    ("stat_json", "stat --json"),
    ("openmetrics", "stat --openmetrics"),
    ("completions", "completions bash"),
    ("man", "man perf"),
];

fn main() -> ExitCode {
    let commands = COMMANDS.into_iter().map(|(name, command)| {
        Trial::test(format!("closed_pipe::{name}"), move || in_namespace(name, |shell| closed_pipe(shell, command)))
    });
    let own = [
        Trial::test("server_without_errors", || in_namespace("server", server_without_errors)),
        Trial::test("server_with_a_full_pipe", || in_namespace("full pipe", server_with_a_full_pipe)),
    ];
    libtest_mimic::run(&Arguments::from_args(), commands.chain(own).collect()).exit_code()
}

fn serve(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("ip link set dev lo up")?;
    shell.succeed("\"$PROGRAM\" ping --serve --bind 127.0.0.2 2> /tmp/log &")?;
    shell.succeed("for i in $(seq 500); do grep answering /tmp/log && break; sleep 0.02; done")?;
    Ok(())
}

/// A reader that ends early is no error: the command ends quietly.
fn closed_pipe(shell: &mut Shell, command: &str) -> Result<(), Failed> {
    serve(shell)?;
    let command = command.replace("$DEVICES", "-d soft:127.0.0.1 --partner-dev soft:127.0.0.3");
    // The reader has ended before the command starts.
    shell.succeed(&format!(
        "{{ sleep 0.3; timeout 200 \"$PROGRAM\" {command}; echo $? > /tmp/status; }} 2> /tmp/errors | true"
    ))?;
    let (status, errors) = (shell.succeed("cat /tmp/status")?, shell.succeed("cat /tmp/errors")?);
    ensure(status.trim() == "0" && errors.trim().is_empty(), || format!("{command}: status {status}: {errors}"))
}

/// A server whose messages are no longer read goes on.
fn server_without_errors(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("ip link set dev lo up")?;
    shell.succeed("{ sleep 0.3; \"$PROGRAM\" ping --serve --bind 127.0.0.2; } 2>&1 | true &")?;
    let ping = "\"$PROGRAM\" ping -c 1 127.0.0.2 -w";
    shell.succeed(&format!("for i in $(seq 20); do {ping} 1 && break; done"))?;
    // The server has told about the first client meanwhile.
    shell.succeed(&format!("{ping} 5"))?;
    Ok(())
}

/// A server whose messages wait in a full pipe goes on.
fn server_with_a_full_pipe(shell: &mut Shell) -> Result<(), Failed> {
    shell.succeed("ip link set dev lo up && mkfifo /tmp/pipe")?;
    // The shell has the pipe open, and reads nothing.
    shell.succeed("exec 9<> /tmp/pipe; timeout 1 cat /dev/zero > /tmp/pipe || true")?;
    shell.succeed("\"$PROGRAM\" ping --serve --bind 127.0.0.2 2> /tmp/pipe &")?;
    let ping = "\"$PROGRAM\" ping -c 1 127.0.0.2 -w";
    shell.succeed(&format!("for i in $(seq 20); do {ping} 1 && break; done"))?;
    shell.succeed(&format!("{ping} 5"))?;
    Ok(())
}
