//! One life of another process, from its start to the failure of all connections to it.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::pace::{is_starved, process_waited};

/// Killed processes that are not reaped yet.
static UNREAPED: AtomicUsize = AtomicUsize::new(0);

/// Waits for killed processes. On a busy machine the kernel takes seconds to remove one from its file system of
/// processes, and the judge's thread must go on.
static REAPER: LazyLock<Sender<Child>> = LazyLock::new(|| {
    let (sender, killed) = channel::<Child>();
    std::thread::spawn(move || {
        for mut child in killed {
            let _ = child.wait();
            UNREAPED.fetch_sub(1, Ordering::Relaxed);
        }
    });
    sender
});

/// Whether all processes that were killed are gone.
pub(crate) fn are_reaped() -> bool {
    UNREAPED.load(Ordering::Relaxed) == 0
}

/// The state of a process and of the connections to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It has not introduced itself.
    Starts,
    /// The queue pairs here are connected; those there, perhaps not.
    Connects,
    Exchanges,
    /// It is stopped, until this time.
    Stopped(Instant),
    /// It is killed, or stopped forever, since this time: its connections must fail.
    Gone(Instant),
}

/// The end of a process, and its time: after its start, or after the exchange has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fate {
    pub(crate) after: Duration,
    pub(crate) dies_early: bool,
    /// It is stopped for this time before, and continues.
    pub(crate) stop: Option<Duration>,
    /// It is stopped instead of killed, until its connections have failed.
    pub(crate) is_stopped_forever: bool,
}

/// A process.
pub(crate) struct Life {
    /// Until it is killed or has ended.
    child: Option<Child>,
    socket: UnixStream,
    said: Vec<u8>,
    pub(crate) fate: Fate,
    pub(crate) phase: Phase,
    /// When the fate comes, if that is known.
    pub(crate) due: Option<Instant>,
    pub(crate) has_been_stopped: bool,
    /// How long it had waited for a processor when the queue pairs here were connected.
    waited: Duration,
}

impl Life {
    /// Starts a process at an address.
    pub(crate) fn start(address: &str, fate: Fate) -> std::io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let mut command = Command::new(std::env::current_exe()?);
        // In its own process group: Ctrl-C is for the parent alone.
        command.args(["--peer", address]).process_group(0);
        let child = Some(command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?);
        let due = fate.dies_early.then(|| Instant::now() + fate.after);
        let (said, phase, has_been_stopped, waited) = (Vec::new(), Phase::Starts, false, Duration::ZERO);
        Ok(Self { child, socket, said, fate, phase, due, has_been_stopped, waited })
    }

    /// Returns the next line that it has written. An error says that it has ended.
    pub(crate) fn line(&mut self) -> std::io::Result<Option<String>> {
        loop {
            if let Some(end) = self.said.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.said.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            let mut bytes = [0; 4_096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.said.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes a line. If the process is gone, other code detects this.
    pub(crate) fn tell(&mut self, line: &str) {
        let _ = self.socket.write_all(format!("{line}\n").as_bytes());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }

    pub(crate) fn stop(&mut self, length: Duration) {
        self.signal(Signal::SIGSTOP);
        (self.phase, self.has_been_stopped) = (Phase::Stopped(Instant::now() + length), true);
    }

    /// Notes that the queue pairs here are connected.
    pub(crate) fn note_connected(&mut self) {
        (self.phase, self.waited) = (Phase::Connects, self.waited_so_far());
    }

    /// Whether it has had no processor since the connection, for so long that it may have failed to answer.
    pub(crate) fn is_starved(&self) -> bool {
        is_starved(self.waited_so_far().saturating_sub(self.waited))
    }

    fn waited_so_far(&self) -> Duration {
        self.child.as_ref().map_or(Duration::ZERO, |child| process_waited(child.id()))
    }

    /// Lets it exit by itself, and waits until it has.
    pub(crate) fn end(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            UNREAPED.fetch_add(1, Ordering::Relaxed);
            let _ = REAPER.send(child);
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}
