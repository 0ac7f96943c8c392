//! A member as seen by its parent.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Arguments;
use super::holdings::Holdings;

/// A process that takes longer to exit hangs.
const LONGEST_END: Duration = Duration::from_secs(20);

/// A line from a member, with the member's number and which of its lives it is.
pub(crate) struct Said {
    pub(crate) member: usize,
    pub(crate) life: u64,
    pub(crate) line: String,
}

pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    pub(crate) life: u64,
    /// The resources that it held after its warm-up.
    pub(crate) baseline: Option<Holdings>,
}

impl Process {
    /// Starts a member, whose lines go to `said`.
    pub(crate) fn start(arguments: &Arguments, member: usize, life: u64, said: &Sender<Said>) -> std::io::Result<Self> {
        let numbers = [("--queue-pairs", arguments.queue_pairs), ("--processes", arguments.processes)];
        let mut command = Command::new(std::env::current_exe()?);
        for (name, value) in numbers {
            command.args([name, &value.to_string()]);
        }
        if arguments.standard {
            command.arg("--standard");
        }
        // In its own process group: Ctrl-C is for the parent alone.
        command.args(["--member", &member.to_string()]).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| std::io::Error::other("a child without pipes"))?;
        let said = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if said.send(Said { member, life, line }).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, life, baseline: None })
    }

    /// Sends the process a command. If the process is gone, other code detects this.
    pub(crate) fn command(&mut self, command: &str) {
        let _ = self.input.write_all(format!("{command}\n").as_bytes()).and_then(|()| self.input.flush());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it exit by itself. Returns whether it did so in time and without an error.
    pub(crate) fn end(&mut self) -> bool {
        self.command("end");
        let deadline = Instant::now() + LONGEST_END;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
