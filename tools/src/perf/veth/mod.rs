//! Two processes with a virtual cable between them: a veth pair, each end in its own network namespace.
//!
//! ```text
//! perf table ── perf near ── perf partner
//!               10.98.0.1 ══ 10.98.0.2
//! ```
//!
//! The namespaces have no names: the kernel removes them, and the cable with them, when the processes in them have
//! ended, however they end. Without root, the processes get a user namespace, too, in which they are root.

mod cable;
mod near;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::machine::{self, Placement};
use super::outcome::{Failure, Outcome};
use super::partner;
use super::reference::Role;
use super::report::Line;
use super::task::Task;
pub(crate) use near::serve;

/// A kind of cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Veth {
    /// The MTU of both interfaces.
    pub(crate) mtu: u32,
    /// Whether the kernel segments packets before they enter the cable, as it does for adapters that cannot. Otherwise
    /// they go through it whole.
    pub(crate) kernel_segments: bool,
}

/// A command from the table to the near process.
#[derive(Serialize, Deserialize)]
enum Order {
    Measure { task: Task, placement: Placement },
    End,
}

/// The table's handle of the near process, which has that of the far one.
pub(crate) struct Link {
    child: Child,
    channel: Channel,
}

impl Link {
    /// Starts both processes.
    pub(crate) fn start(veth: Veth) -> Outcome<Self> {
        check(veth)?;
        machine::pin(Role::Client, Placement::Anywhere)?;
        // A socket belongs to the namespace in which it was created, even if a process in another one uses it.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let theirs = TcpStream::connect(listener.local_addr()?)?;
        let channel = Channel::over(listener.accept()?.0)?;
        let child = unshare()
            .arg(std::env::current_exe()?)
            .args(["perf", "near"])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start the process in a network namespace: {error}"))?;
        let mut link = Self { child, channel };
        link.channel.send(&veth)?;
        link.channel.receive::<Result<(), String>>()??;
        Ok(link)
    }

    pub(crate) fn perform(&mut self, task: &Task, placement: Placement) -> Outcome<Line> {
        self.channel.send(&Order::Measure { task: task.clone(), placement })?;
        Ok(self.channel.receive::<Result<Line, String>>()??)
    }

    /// Waits until both processes have exited successfully.
    pub(crate) fn end(mut self) -> Outcome {
        self.channel.send(&Order::End)?;
        partner::wait_for(&mut self.child)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.channel.close();
        partner::terminate(&mut self.child);
    }
}

/// Returns a command that starts a program in new namespaces.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

/// Checks that this system has what is needed; the error says what to do.
fn check(veth: Veth) -> Outcome {
    let missing = |why: String| Err(Failure::Missing(why));
    let tried = unshare().args(["ip", "link", "add", "type", "veth"]).stdin(Stdio::null()).output();
    match tried {
        Err(error) => return missing(format!("cannot run unshare: {error}; apt-get install util-linux")),
        Ok(output) if !output.status.success() => {
            let printed = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            return missing(format!(
                "no network namespace with a veth pair: {printed}; it needs iproute2 (apt-get install iproute2), and \
                 root or unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, \
                 user.max_user_namespaces)"
            ));
        }
        Ok(_) => {}
    }
    if veth.kernel_segments && !machine::is_installed("ethtool") {
        return missing("ethtool is not installed: apt-get install ethtool".to_owned());
    }
    Ok(())
}
