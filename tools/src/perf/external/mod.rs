//! Measurements of other transports by their own programs, where they are installed: UCX and libfabric.
//!
//! Starts the server and the client, each on its core like all other programs, on 127.0.0.1, and parses the client's
//! output.

mod libfabric;
mod ucx;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::channel::check_interrupted;
use super::machine::{Placement, is_installed, pin};
use super::outcome::{Failure, Outcome};
use super::reference::Role;
use super::report::{ExternalResults, Line};

/// How long the server may take to listen, and both ends to finish.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Pause between two checks; long, because checks take time on the client's core.
const PAUSE: Duration = Duration::from_millis(20);
/// The state LISTEN in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// A measurement by another project's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct External {
    pub(crate) program: Program,
    pub(crate) size: usize,
    pub(crate) iterations: u64,
    pub(crate) warm_up: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Program {
    /// `ucx_perftest`.
    Ucx(UcxTest, UcxTransport),
    /// `fi_pingpong`.
    LibfabricPingPong(LibfabricProvider),
}

/// The transports that UCX may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum UcxTransport {
    Tcp,
    /// `posix`.
    SharedMemory,
    /// `posix`, and `cma` for long messages: copies by the kernel between two processes.
    SharedMemoryAndCopies,
}

/// libfabric's provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum LibfabricProvider {
    /// `udp;ofi_rxd`: reliable datagrams on top of plain ones.
    ReliableDatagrams,
    /// `shm`.
    SharedMemory,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum UcxTest {
    TagLatency,
    PutLatency,
    TagBandwidth,
    PutBandwidth,
    /// With settings faster than the defaults: few messages in flight, and large segments.
    TunedTagBandwidth,
    TunedPutBandwidth,
}

impl External {
    /// Checks that its program is installed.
    pub(crate) fn check(&self) -> Outcome {
        let (name, package) = (self.program.name(), self.program.package());
        if is_installed(name) {
            return Ok(());
        }
        Err(Failure::Missing(format!("{name} is not installed: apt-get install {package}")))
    }

    /// Runs both ends.
    pub(crate) fn run(&self, placement: Placement) -> Outcome<Line> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        pin(Role::Server, placement)?;
        let mut server = Running::start(self.server(port), self.program)?;
        server.await_listening(port)?;
        pin(Role::Client, placement)?;
        let client = Running::start(self.client(port), self.program)?;
        let output = client.end()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}: {printed}{errors}", self.program.name(), output.status).into());
        }
        server.end()?;
        let results =
            self.read(&printed).ok_or_else(|| format!("{} printed unexpected output: {printed}", self.program.name()));
        Ok(Line::of_external(results?))
    }

    fn server(&self, port: u16) -> Command {
        match self.program {
            Program::Ucx(test, transport) => ucx::server(test, transport, port),
            Program::LibfabricPingPong(provider) => libfabric::server(self, provider, port),
        }
    }

    fn client(&self, port: u16) -> Command {
        match self.program {
            Program::Ucx(test, transport) => ucx::client(self, test, transport, port),
            Program::LibfabricPingPong(provider) => libfabric::client(self, provider, port),
        }
    }

    /// Parses the client's output.
    pub(crate) fn read(&self, output: &str) -> Option<ExternalResults> {
        match self.program {
            Program::Ucx(test, _) => ucx::read(output, self.size, test),
            Program::LibfabricPingPong(_) => libfabric::read(output, self.size),
        }
    }
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Ucx(..) => ucx::PROGRAM,
            Self::LibfabricPingPong(_) => libfabric::PROGRAM,
        }
    }

    /// Returns Debian's package.
    fn package(self) -> &'static str {
        match self {
            Self::Ucx(..) => "ucx-utils",
            Self::LibfabricPingPong(_) => "libfabric-bin",
        }
    }
}

/// A process that is killed when this is dropped.
struct Running {
    child: Option<Child>,
    name: &'static str,
}

impl Running {
    fn start(mut command: Command, program: Program) -> Outcome<Self> {
        let name = program.name();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { child: Some(child), name })
    }

    fn has_ended(&mut self) -> Outcome<bool> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        })
    }

    /// Waits until the server listens, without connecting: it accepts only one client.
    fn await_listening(&mut self, port: u16) -> Outcome {
        let start = Instant::now();
        loop {
            let sockets =
                ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default());
            if sockets.iter().any(|sockets| listens(sockets, port)) {
                return Ok(());
            }
            check_interrupted()?;
            if self.has_ended()? || start.elapsed() > LISTENS_WITHIN {
                return Err(format!("the server of {} does not listen on port {port}", self.name).into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for its end and returns its output, which is short.
    fn end(mut self) -> Outcome<Output> {
        let start = Instant::now();
        while !self.has_ended()? {
            check_interrupted()?;
            if start.elapsed() > ENDS_WITHIN {
                return Err(format!("{} does not end within {ENDS_WITHIN:?}", self.name).into());
            }
            std::thread::sleep(PAUSE);
        }
        let child = self.child.take().ok_or("it has ended already")?;
        Ok(child.wait_with_output()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only if the process is gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns whether a socket listens on the port, by the kernel's list of sockets.
pub(crate) fn listens(sockets: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(LISTENS)
    })
}

#[cfg(test)]
mod tests;
