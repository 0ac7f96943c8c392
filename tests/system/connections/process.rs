//! A member as its test sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::process::{ignored_test, signal};

use super::{LIMIT, MEMBER, PROGRAM, REPLY};

/// A running member. Dropping it kills it.
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    replies: Receiver<String>,
}

impl Process {
    pub(super) fn start() -> Self {
        Self::start_as(ignored_test(PROGRAM))
    }

    /// Starts a member by this command.
    pub(super) fn start_as(mut command: Command) -> Self {
        command.env(MEMBER, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let replies = lines.filter_map(|line| line.strip_prefix(REPLY).map(str::to_owned));
            // If the test has dropped the member, nothing has to read.
            replies.for_each(|reply| drop(sender.send(reply)));
        });
        Self { child, input, replies }
    }

    /// Starts a member that serves connections under a name.
    #[track_caller]
    pub(super) fn server(address: &str, name: &str) -> Self {
        let mut server = Self::start();
        server.serves(address, name);
        server
    }

    #[track_caller]
    pub(super) fn serves(&mut self, address: &str, name: &str) {
        self.does(&format!("listen {address} 128"), "listens");
        self.does(&format!("serve {address} {name}"), "serves");
    }

    /// Gives the member a line to obey. [`Process::reply`] waits for the reply.
    pub(super) fn order(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    #[track_caller]
    pub(super) fn reply(&self) -> String {
        self.replies.recv_timeout(2 * LIMIT).expect("a reply of a member that lives")
    }

    #[track_caller]
    pub(super) fn ask(&mut self, line: &str) -> String {
        self.order(line);
        self.reply()
    }

    #[track_caller]
    pub(super) fn does(&mut self, line: &str, expected: &str) {
        assert_eq!(self.ask(line), expected, "{line}");
    }

    /// Asserts that the member's servers have accepted that many connections, and have seen no request, message or
    /// reply of another connection. A server knows a connection a little later than its client.
    #[track_caller]
    pub(super) fn has_served(&mut self, accepted: u64) {
        let (expected, end) = (format!("accepted {accepted} failed 0 wrong []"), Instant::now() + LIMIT);
        let mut served = self.ask("served");
        while served != expected && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            served = self.ask("served");
        }
        assert_eq!(served, expected);
    }

    /// Connects to a server, and makes an exchange on each connection.
    #[track_caller]
    pub(super) fn calls(&mut self, server: &str, name: &str, count: usize) {
        self.order(&format!("call {server} {name} {count}"));
        self.has_called();
    }

    /// Waits for the end of an ordered call.
    #[track_caller]
    pub(super) fn has_called(&mut self) {
        let reply = self.reply();
        assert!(reply.starts_with("exchanged "), "{reply}");
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process, so that no thread of it runs.
    pub(super) fn stop(&self) {
        signal(self.id(), "-STOP");
    }

    pub(super) fn resume(&self) {
        signal(self.id(), "-CONT");
    }

    /// Kills the process, and waits until it is gone.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
