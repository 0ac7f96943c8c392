//! The second process, which the first one starts and gives its tasks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::end::Device;
use super::job::Assignment;
use super::machine::{self, Placement};
use super::outcome::{Failure, Outcome};
use super::reference::Role;
use super::run::{measure_all, refer};

/// How long it may take to connect, and to exit.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to exit by itself after a failure.
const EXIT_GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The first process's handle of the second.
pub(crate) struct Partner {
    child: Child,
    pub(crate) channel: Channel,
}

impl Partner {
    /// Starts this program again. The process inherits this thread's cores, so pin the thread afterwards.
    pub(crate) fn start() -> Outcome<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), |command| Ok(command.spawn()?))
    }

    /// Starts it like `start`, but it connects to this process at the given address.
    pub(crate) fn start_at(address: IpAddr, spawn: impl FnOnce(&mut Command) -> Outcome<Child>) -> Outcome<Self> {
        machine::pin(Role::Client, Placement::Anywhere)?;
        let listener = TcpListener::bind((address, 0))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["perf".to_owned(), "partner".to_owned(), listener.local_addr()?.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child =
            spawn(&mut command).map_err(|failure| failure.while_doing("cannot start the second process"))?;
        let start = Instant::now();
        let accepted = Channel::accept(&listener, || match child.try_wait()? {
            Some(status) => Err(format!("the second process ended at once: {status}").into()),
            None if start.elapsed() > PATIENCE => Err("the second process does not connect".into()),
            None => Ok(()),
        });
        match accepted {
            Ok(channel) => Ok(Self { child, channel }),
            Err(failure) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failure)
            }
        }
    }

    /// Waits until it has exited successfully.
    pub(crate) fn end(mut self) -> Outcome {
        wait_for(&mut self.child)
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.channel.close();
        terminate(&mut self.child);
    }
}

/// Waits until a process whose end was requested has exited successfully.
pub(crate) fn wait_for(child: &mut Child) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => return Err(Failure::PeerLeft),
            None => std::thread::sleep(PAUSE),
        }
    }
    Err("the second process does not end".into())
}

/// Ends a process whose channel is closed. It has exited already, unless something failed; then it may still report
/// why.
pub(crate) fn terminate(child: &mut Child) {
    let start = Instant::now();
    while start.elapsed() < EXIT_GRACE && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(PAUSE);
    }
    // Both fail only if the process is gone.
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs the second process: performs its tasks.
pub(crate) fn serve(address: SocketAddr) -> Outcome {
    let mut channel = Channel::join(address)?;
    channel.end_with_peer()?;
    loop {
        match channel.receive()? {
            Assignment::Verbs { job, placement, device } => {
                machine::pin(Role::Server, placement)?;
                let device = Device::open(Some(&device), 1, None, job.sharing)?;
                measure_all(&job, &device, &mut channel)?;
            }
            Assignment::Reference { reference, placement } => {
                machine::pin(Role::Server, placement)?;
                refer(&reference, None, Role::Server, &mut channel)?;
            }
            Assignment::End => return Ok(()),
        }
    }
}
