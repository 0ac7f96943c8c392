//! The example `rping`: both ends as processes with the program's flags, on loopback addresses.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::PATIENCE;
use support::process::{ignored_test, signal};

#[path = "../../examples/rping/mod.rs"]
mod example;

/// The program's arguments, separated by spaces.
const ARGUMENTS: &str = "RDMA_VERBS_TEST_RPING";

#[test]
#[ignore = "started by the other tests"]
fn process() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let given = std::iter::once("rping").chain(arguments.split_whitespace());
        std::process::exit(example::run(given.map(Into::into)).into());
    }
}

/// A running program. Its output goes to files: nothing has to read while it runs. Dropping it ends it.
struct Running {
    child: Child,
    out: File,
    errors: File,
}

impl Running {
    #[track_caller]
    fn start(arguments: &str) -> Self {
        let (out, errors) = (temporary_file(), temporary_file());
        let mut command = ignored_test(concat!(module_path!(), "::process"));
        command.env(ARGUMENTS, arguments).stdout(out.try_clone().unwrap()).stderr(errors.try_clone().unwrap());
        Self { child: command.spawn().unwrap(), out, errors }
    }

    /// Starts a server, and waits until it listens.
    #[track_caller]
    fn server(address: &str, flags: &str) -> Self {
        let mut server = Self::start(&format!("-s -a {address} -d {flags}"));
        server.wait_for("listening on");
        server
    }

    /// Waits until the program has printed this.
    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !content(&self.out).contains(text) {
            let (status, errors) = (self.child.try_wait().unwrap(), content(&self.errors));
            assert!(status.is_none() && Instant::now() < end, "no \"{text}\", {status:?}: {errors}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn interrupt(self) -> Said {
        signal(self.child.id(), "-INT");
        self.wait()
    }

    /// Waits until the program ends.
    #[track_caller]
    fn wait(mut self) -> Said {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
                None => panic!("it goes on: {} {}", content(&self.out), content(&self.errors)),
            }
        };
        Said::new(status, content(&self.out), content(&self.errors))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a file without a name.
fn temporary_file() -> File {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("rdma-verbs-rping-{}-{number}", std::process::id()));
    let file = File::options().read(true).append(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn content(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Output and exit code of a program.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    errors: String,
}

impl Said {
    fn new(status: ExitStatus, out: String, errors: String) -> Self {
        Self { code: status.code(), out, errors }
    }

    /// Returns what follows `beginning` in the lines that begin with it.
    fn lines(&self, beginning: &str) -> Vec<&str> {
        self.out.lines().filter_map(|line| line.strip_prefix(beginning)).collect()
    }
}

#[track_caller]
fn run(arguments: &str) -> Said {
    Running::start(arguments).wait()
}

#[test]
fn a_client_gets_its_pings_back() {
    let server = Running::server("127.46.2.1", "-v");
    let client = run("-c -I 127.46.2.2 -a 127.46.2.1 -C 3 -S 24 -vV");
    let server = server.wait();
    assert_eq!((client.code, server.code), (Some(0), Some(0)), "{client:?} {server:?}");
    let expected = ["rdma-ping-0: ABCDEFGHIJ", "rdma-ping-1: BCDEFGHIJK", "rdma-ping-2: CDEFGHIJKL"];
    assert_eq!(client.lines("ping data: "), expected);
    assert_eq!(server.lines("server ping data: "), expected);
    assert!(client.errors.contains("client DISCONNECT EVENT..."), "{client:?}");
    assert!(server.errors.contains("server DISCONNECT EVENT..."), "{server:?}");
}

#[test]
fn pings_have_the_default_and_the_largest_size() {
    let server = Running::server("127.46.2.3", "-P -S 65535");
    let small = run("-c -I 127.46.2.4 -a 127.46.2.3 -C 1 -vV");
    let large = run("-c -I 127.46.2.4 -a 127.46.2.3 -C 60 -S 65535 -vV");
    drop(server);
    assert_eq!((small.code, large.code), (Some(0), Some(0)), "{small:?}");
    let text = "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr";
    assert_eq!(small.lines("ping data: "), [text], "the last of 64 bytes is 0");
    let texts = large.lines("ping data: ");
    assert_eq!(texts.len(), 60);
    assert!(texts.iter().all(|text| text.len() == 65534));
    assert!(texts[57].starts_with("rdma-ping-57: zABC") && texts[58].starts_with("rdma-ping-58: ABC"));
}

#[test]
fn a_persistent_server_takes_clients_at_once_until_it_is_interrupted() {
    let server = Running::server("127.46.2.5", "-P");
    let mut endless = Running::start("-c -I 127.46.2.6 -a 127.46.2.5 -d");
    endless.wait_for("the server has written ping 0");
    let other = run("-c -I 127.46.2.7 -a 127.46.2.5 -C 20 -V");
    assert_eq!(other.code, Some(0), "{other:?}");
    assert_eq!(endless.child.try_wait().unwrap(), None, "a client without -C goes on");
    let endless = endless.interrupt();
    assert_eq!(endless.code, Some(130), "{}", endless.errors);
    assert!(endless.errors.contains("client DISCONNECT EVENT..."), "{}", endless.errors);

    let mut last = Running::start("-c -I 127.46.2.8 -a 127.46.2.5 -d");
    last.wait_for("the server has written ping 0");
    let server = server.interrupt();
    assert_eq!(server.code, Some(130), "{}", server.errors);
    assert!(server.errors.contains("server DISCONNECT EVENT..."), "{}", server.errors);
    let last = last.wait();
    assert_eq!(last.code, Some(0), "the other end has disconnected: {}", last.errors);
}

#[test]
fn a_server_for_one_client_rejects_the_next() {
    let mut server = Running::server("127.46.2.9", "");
    let _first = Running::start("-c -I 127.46.2.10 -a 127.46.2.9");
    server.wait_for("connected to 127.46.2.10");
    let second = run("-c -I 127.46.2.11 -a 127.46.2.9 -C 1");
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.errors.contains("(REJ, invalid service ID (8))"), "{second:?}");
}

#[test]
fn a_client_without_a_server_names_the_rejection() {
    let _another_port = Running::server("127.46.2.12", "-p 7175");
    let client = run("-c -I 127.46.2.13 -a 127.46.2.12 -C 1");
    assert_eq!(client.code, Some(1), "{client:?}");
    let expected = "rping: no application listens on port 7174 of 127.46.2.12 (REJ, invalid service ID (8))\n";
    assert_eq!(client.errors, expected);
}

#[test]
fn a_server_refuses_pings_that_are_larger_than_its_memory() {
    let server = Running::server("127.46.2.14", "-S 23");
    let client = run("-c -I 127.46.2.15 -a 127.46.2.14 -C 1 -S 100");
    let server = server.wait();
    assert_eq!((client.code, server.code), (Some(0), Some(1)), "{client:?} {server:?}");
    assert!(server.errors.contains("pings have 100 bytes, and this server's 23: raise -S"), "{server:?}");
}

#[test]
fn wrong_arguments_get_one_line() {
    let cases = [
        ("", "either -s, for the server, or -c, for the client"),
        ("-c", "-c needs the server's address"),
        ("-s -S 22", "22 is not in 23..=65535"),
        ("-s -S 65536", "65536 is not in 23..=65535"),
        ("-c -a ::1 -C -4", "invalid value '-4' for '-C"),
        ("-s -p 65536", "65536 is not in 0..=65535"),
        ("-s -x", "unexpected argument '-x'"),
    ];
    for (arguments, expected) in cases {
        let said = run(arguments);
        assert_eq!(said.code, Some(2), "{arguments}: {said:?}");
        assert!(said.errors.starts_with("rping: ") && said.errors.contains(expected), "{arguments}: {said:?}");
        assert_eq!(said.errors.lines().count(), 1, "{arguments}: {said:?}");
    }
    let help = run("-h");
    assert_eq!(help.code, Some(0), "{help:?}");
    assert!(help.out.contains("-P") && help.errors.is_empty(), "{help:?}");
}
