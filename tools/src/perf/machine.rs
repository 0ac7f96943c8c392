//! The machine: its cores, its description, and Ctrl-C.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::outcome::{Failure, Outcome};
use super::reference::Role;
use crate::common::quoted;

/// How long loops may take to end after Ctrl-C, before the process exits.
const GRACE: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// On Ctrl-C, lets the loops end and the queue pairs be destroyed.
pub(crate) fn watch_for_interrupt() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
            std::thread::sleep(GRACE);
            std::process::exit(130);
        }
    });
}

/// The cores of the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Placement {
    /// Wherever the scheduler puts them.
    Anywhere,
    /// The client on the first allowed core, the server on the last.
    Apart,
    /// Both on the first core.
    Together,
    /// Each on its core, or anywhere if `None`.
    On { client: Option<usize>, server: Option<usize> },
}

/// Returns the cores that this process was allowed to use when it began.
pub(crate) fn cores() -> Outcome<&'static [usize]> {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    if CORES.get().is_none() {
        let allowed = sched_getaffinity(Pid::from_raw(0)).map_err(|error| format!("cannot get the cores: {error}"));
        let allowed = allowed?;
        let cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
        // If another thread was first, it stored the same value.
        let _ = CORES.set(cores);
    }
    Ok(CORES.get().map_or(&[], Vec::as_slice))
}

/// Pins this thread and the threads that it starts from now on.
pub(crate) fn pin(role: Role, placement: Placement) -> Outcome {
    let all = cores()?;
    let one = |core: Option<&usize>| core.copied().map(|core| vec![core]);
    let chosen = match (placement, role) {
        (Placement::Apart, Role::Client) | (Placement::Together, _) => one(all.first()),
        (Placement::Apart, Role::Server) => one(all.last()),
        (Placement::On { client: core, .. }, Role::Client) | (Placement::On { server: core, .. }, Role::Server) => {
            one(core.as_ref())
        }
        (Placement::Anywhere, _) => None,
    };
    let mut set = CpuSet::new();
    for core in chosen.as_deref().unwrap_or(all) {
        set.set(*core).map_err(|_| Failure::Usage(format!("core is {core}; it is below {}", CpuSet::count())))?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(|error| {
        Failure::Usage(format!(
            "cannot run on core {:?}: {error}; this process may use {all:?}",
            chosen.unwrap_or_default()
        ))
    })
}

/// Returns whether a program of this name can be started.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the command line of this process, as a shell takes it.
pub(crate) fn invocation() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("rdma-verbs".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

pub(crate) fn seconds_since_1970() -> u64 {
    // Before 1970 only if the clock was never set.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The description of the machine in reports and tables.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Description {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) receive_buffer_limit: String,
    /// The load average over one minute when it was queried.
    pub(crate) load: String,
    pub(crate) version: &'static str,
    pub(crate) optimised: bool,
}

impl Description {
    pub(crate) fn now() -> Outcome<Self> {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let information = file("/proc/cpuinfo");
        let processor = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Ok(Self {
            processor: processor.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            cores: cores()?.len(),
            kernel: file("/proc/sys/kernel/osrelease"),
            receive_buffer_limit: file("/proc/sys/net/core/rmem_max"),
            load: file("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
        })
    }
}
