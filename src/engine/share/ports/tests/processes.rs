//! Ports of several processes: this program again, which obeys commands.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use support::process::{ignored_test, signal};

use super::arbitration::cases;
use super::*;

/// Names the registry folder of a process that obeys commands.
const FOLDER: &str = "RDMA_VERBS_TEST_PORTS";
/// Begins each of its responses, among the lines of its test harness.
const RESPONSE: &str = "response:";

/// A process with at most one port. It is killed at the end.
struct Process {
    child: Child,
    commands: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let mut command = ignored_test(concat!(module_path!(), "::obeys_commands"));
        command.env(FOLDER, folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (commands, responses) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, commands, responses }
    }

    /// Sends a command; returns the number in the response.
    fn obey(&mut self, command: &str) -> i32 {
        writeln!(self.commands, "{command}").unwrap();
        let mut lines = (&mut self.responses).lines().map(Result::unwrap);
        let response = lines.find_map(|line| Some(line.split_once(RESPONSE)?.1.trim().parse().unwrap()));
        response.expect("a response")
    }

    fn bind(&mut self, request: &PortRequest) -> i32 {
        let PortRequest { space, address, port, reuse_address, only_v6, block } = request;
        let only_v6 = only_v6.map_or(2, u8::from);
        self.obey(&format!("bind {} {address} {port} {reuse_address} {only_v6} {block}", *space as u16))
    }

    fn listener(&mut self, space: PortSpace, port: u16, destination: IpAddr) -> Option<u16> {
        u16::try_from(self.obey(&format!("listener {} {destination} {port}", space as u16))).ok()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The work of another process.
#[test]
#[ignore = "started by other tests"]
fn obeys_commands() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let table =
        Arc::new(Table::new(Some(Box::leak(Box::new(Registry::open_in(folder.as_ref()).unwrap()))), namespace()));
    let mut port = None;
    for line in std::io::stdin().lines().map(Result::unwrap) {
        let words: Vec<&str> = line.split(' ').collect();
        let space = |word: &str| *PortSpace::ALL.iter().find(|space| (**space as u16).to_string() == word).unwrap();
        let response = match words[..] {
            ["bind", of, address, number, reuse_address, only_v6, block] => {
                let request = PortRequest {
                    space: space(of),
                    address: address.parse().unwrap(),
                    port: number.parse().unwrap(),
                    reuse_address: reuse_address.parse().unwrap(),
                    only_v6: [Some(false), Some(true), None][only_v6.parse::<usize>().unwrap()],
                    block: block.parse().unwrap(),
                };
                match errno(Port::bind_in(&table, &request)) {
                    Ok(bound) => {
                        port = Some(bound);
                        0
                    }
                    Err(errno) => errno,
                }
            }
            ["listen"] => port.as_mut().map_or(-1, |port| errno(port.listen()).err().unwrap_or(0)),
            ["drop"] => i32::from(port.take().is_some()),
            ["listener", of, destination, number] => {
                let key = (space(of), number.parse().unwrap());
                block_of(&table, key, destination.parse().unwrap()).map_or(-1, i32::from)
            }
            _ => -2,
        };
        writeln!(std::io::stdout(), "\n{RESPONSE} {response}").unwrap();
    }
}

#[test]
fn ports_conflict_as_in_linux_between_processes() {
    let folder = Folder::new("processes");
    let [mut first, mut second] = [(); 2].map(|()| Process::start(&folder.0));
    for case in cases() {
        let (one, other) = (&case.first, &case.second);
        assert_eq!(first.bind(one), 0);
        if case.first_listens {
            assert_eq!(first.obey("listen"), 0);
        }
        let bound = second.bind(other);
        let listened = if bound == 0 { second.obey("listen") } else { 0 };
        assert_eq!([bound, listened], case.result, "{one:?} then {other:?}");
        let expected = case.expected_listener();
        assert_eq!(first.listener(other.space, other.port, case.destination()), expected, "{one:?} then {other:?}");
        assert_eq!(second.listener(other.space, other.port, case.destination()), expected, "{one:?} then {other:?}");
        assert_eq!(first.obey("drop"), 1);
        assert_eq!(second.obey("drop"), i32::from(bound == 0));
    }
}

#[test]
fn the_port_of_a_killed_process_is_free_at_once() {
    let folder = Folder::new("killed");
    let mut second = Process::start(&folder.0);
    for requested in [request("10.0.0.1", 5_030), request("0.0.0.0", 5_031), request("10.0.0.1", 5_030)] {
        let mut first = Process::start(&folder.0);
        assert_eq!([first.bind(&requested), first.obey("listen")], [0, 0]);
        assert_ne!(second.bind(&requested), 0);
        let destination = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(second.listener(PortSpace::Tcp, requested.port, destination), Some(0x123));
        first.kill();
        assert_eq!(second.listener(PortSpace::Tcp, requested.port, destination), None);
        assert_eq!([second.bind(&requested), second.obey("listen"), second.obey("drop")], [0, 0, 1]);
    }
}

#[test]
fn the_port_of_a_stopped_process_is_not_free() {
    let folder = Folder::new("halted");
    let [mut first, mut second] = [(); 2].map(|()| Process::start(&folder.0));
    let requested = request("10.0.0.1", 5_032);
    assert_eq!([first.bind(&requested), first.obey("listen")], [0, 0]);
    signal(first.child.id(), "-STOP");
    assert_eq!(second.bind(&requested), libc::EADDRINUSE);
    assert_eq!(second.listener(PortSpace::Tcp, 5_032, requested.address), Some(0x123));
    signal(first.child.id(), "-CONT");
    assert_eq!([first.obey("drop"), second.bind(&requested)], [1, 0]);
}
