//! Attacks on the sockets through which processes of one user communicate.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, MaybeUninitSlice, SockAddr, Socket, Type};
use support::PATIENCE;
use support::process::unix_sockets;

use super::processes::{Folder, Victim, copy_of_this_program, is_root, role, role_of_other_user, run};

/// Sockets that attackers send to, separated by spaces.
const TARGETS: &str = "RDMA_VERBS_TEST_TARGETS";
/// More than the backlog ever holds.
const CONNECTIONS: usize = 4_200;

fn address(name: &str) -> SockAddr {
    SockAddr::unix(name.strip_prefix('@').map_or(name.to_owned(), |name| format!("\0{name}"))).unwrap()
}

fn targets() -> Option<Vec<String>> {
    let targets = std::env::var(TARGETS).ok()?;
    Some(targets.split_whitespace().map(str::to_owned).collect())
}

/// Sends a message with descriptors of a file.
fn send_descriptors(socket: &Socket, to: &SockAddr, bytes: &[u8]) -> io::Result<usize> {
    let file = std::fs::File::open("/dev/null").unwrap();
    let message = [nix::sys::socket::ControlMessage::ScmRights(&[file.as_raw_fd(); 4])];
    socket.connect(to)?;
    let sent = nix::sys::socket::sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &message,
        nix::sys::socket::MsgFlags::MSG_DONTWAIT,
        None,
    );
    Ok(sent?)
}

/// Waits until the receiver has read everything.
fn wait_until_taken(socket: &Socket) {
    let mut waiting: libc::c_int = 1;
    while waiting > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        // SAFETY: the kernel writes one integer into a variable of this size.
        let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
        assert_eq!(result, 0);
    }
}

/// Not a test: sends 400 descriptors to each inbox.
#[test]
#[ignore = "started by the other tests"]
fn sender_of_descriptors() {
    let Some(targets) = targets() else { return };
    for target in targets {
        for round in 0..100 {
            let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
            let bytes = [[1, 1], [1, 2], [0xff, 0]][round % 3];
            match send_descriptors(&socket, &address(&target), &bytes) {
                Ok(_) => wait_until_taken(&socket),
                Err(error) => println!("refused: {error}"),
            }
        }
    }
    println!("sent");
}

fn send_descriptors_to(victim: &Victim, is_other_user: bool) {
    let folder = Folder::new("descriptors");
    let program = copy_of_this_program(&folder, 0o755);
    let name = "sockets::sender_of_descriptors";
    let mut attacker = if is_other_user { role_of_other_user(&program, name) } else { role(&program, name) };
    let inboxes = unix_sockets(victim.id(), "inbox");
    assert_eq!(inboxes.len(), 1, "{inboxes:?}");
    attacker.env(TARGETS, inboxes.join(" "));
    let before = victim.descriptors();
    let (_, said) = run(attacker);
    assert!(said.contains("sent"), "{said}");
    // The victim's mailbox opens files of the registry for a moment.
    let end = Instant::now() + PATIENCE;
    while victim.descriptors() > before {
        assert!(Instant::now() < end, "the victim has descriptors that others sent");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn descriptors_of_another_user_are_not_taken() {
    if is_root() {
        let victim = Victim::new("soft:127.99.0.1");
        send_descriptors_to(&victim, true);
        victim.end();
    }
}

#[test]
fn descriptors_of_the_same_user_are_not_taken() {
    let victim = Victim::new("soft:127.99.0.2");
    send_descriptors_to(&victim, false);
    victim.end();
}

/// Connects to a socket without waiting.
fn connect(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&address(name))?;
    Ok(socket)
}

/// Not a test: fills the listeners with connections, and keeps them until its input ends.
#[test]
#[ignore = "started by the other tests"]
fn filler_of_listeners() {
    let Some(targets) = targets() else { return };
    let connections = targets.iter().flat_map(|target| (0..CONNECTIONS).map_while(|_| connect(target).ok()));
    let connections: Vec<Socket> = connections.collect();
    println!("{} connections", connections.len());
    println!("ready");
    let _ = io::Read::read_to_end(&mut io::stdin(), &mut Vec::new());
}

#[test]
fn another_user_cannot_fill_the_listener() {
    if !is_root() {
        return;
    }
    let victim = Victim::new("soft:127.99.0.3");
    let listeners = unix_sockets(victim.id(), "life");
    assert!(!listeners.is_empty());
    let folder = Folder::new("listener");
    let program = copy_of_this_program(&folder, 0o755);
    let mut attacker = role_of_other_user(&program, "sockets::filler_of_listeners");
    attacker.env(TARGETS, listeners.join(" "));
    let limit = libc::rlimit { rlim_cur: 8_192, rlim_max: 8_192 };
    // SAFETY: the closure makes one system call, which is allowed between fork and exec.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut attacker, move || {
            match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    let attacker = Victim::start(attacker, "none").unwrap_or_else(|said| panic!("{said}"));
    println!("{}", attacker.said);
    for listener in &listeners {
        let connection = connect(listener);
        assert!(connection.is_ok(), "a process of the same user cannot watch the victim: {:?}", connection.err());
        let mut nothing = [std::mem::MaybeUninit::uninit(); 1];
        let read = connection.unwrap().recv_vectored(&mut [MaybeUninitSlice::new(&mut nothing)]);
        assert_eq!(read.map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock), "it lives");
    }
    attacker.kill();
    victim.end();
}
