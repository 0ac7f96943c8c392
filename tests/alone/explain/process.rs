//! The peer is another process, which stops, ends or is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rdma_verbs::verbs::{ConnectionInfo, Payload, ReceiveRequest, RegionList, SendRequest};
use support::process::{ignored_test, signal};

use super::world::{End, hasty};

/// Set in the child process: the case, which selects its address.
const CASE_VARIABLE: &str = "RDMA_VERBS_EXPLAIN_CASE";
const MARK: &str = "connection info: ";
const READY: &str = "connected";

fn to_hex(info: &ConnectionInfo) -> String {
    info.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> ConnectionInfo {
    let bytes: Vec<u8> =
        (0..text.len() / 2).map(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap()).collect();
    ConnectionInfo::from_bytes(&bytes).unwrap()
}

/// The other process: takes one message, and then waits until its input ends.
#[test]
#[ignore = "started by the explanations test"]
fn child() {
    let Ok(case) = std::env::var(CASE_VARIABLE) else { return };
    let end = End::open(case.parse().unwrap(), 2);
    end.qp.init().unwrap();
    end.qp.post_recv(&[ReceiveRequest::new(RegionList::EMPTY)]).unwrap();
    println!("\n{MARK}{}", to_hex(&end.info()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    end.qp.connect(&from_hex(line.trim())).unwrap();
    println!("{READY}");
    end.succeeds();
    // Ends at the latest when the parent does.
    while std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {}
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(case: u8) -> Self {
        let mut child = ignored_test(concat!(module_path!(), "::child"))
            .env(CASE_VARIABLE, case.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Waits for a line of the child's output with these words and returns the text after them.
    fn wait_for(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some(rest) = line.trim().strip_prefix(words) {
                return rest.to_owned();
            }
        }
    }

    /// Returns the kernel's letter for the process state.
    fn state(&self) -> Option<char> {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        status.rsplit(") ").next().and_then(|rest| rest.chars().next())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates an end that is connected to another process, which has taken a message.
fn connected(case: u8) -> (End, Process) {
    let mut process = Process::start(case);
    let end = End::open(case, 1);
    end.qp.connect_with(&from_hex(&process.wait_for(MARK)), &hasty()).unwrap();
    writeln!(process.input, "{}", to_hex(&end.info())).unwrap();
    process.wait_for(READY);
    end.post(SendRequest::send(Payload::EMPTY));
    end.succeeds();
    (end, process)
}

pub(crate) fn peer_is_killed(case: u8) -> String {
    let (end, mut process) = connected(case);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    end.send();
    end.why()
}

pub(crate) fn peer_is_stopped(case: u8) -> String {
    let (end, process) = connected(case);
    signal(process.child.id(), "-STOP");
    end.until(|_| process.state() == Some('T'));
    end.send();
    end.why()
}
