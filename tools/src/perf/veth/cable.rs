//! The veth pair and the far end's namespace, made with iproute2 and ethtool by root of the near end's namespace.

use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};

use super::Veth;
use crate::perf::outcome::Outcome;

pub(super) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
const NEAR_INTERFACE: &str = "near";
const FAR_INTERFACE: &str = "far";
/// The namespace of the thread that opens it.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// A network namespace, which exists as long as this value, or a process in it.
pub(super) struct Namespace {
    file: File,
}

impl Namespace {
    fn new() -> Outcome<Self> {
        in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no network namespace: {error}"))?;
            Ok(Self { file: File::open(OWN_NAMESPACE)? })
        })
    }

    /// Runs a closure in the namespace; processes that it starts are in it, too.
    pub(super) fn enter<T: Send>(&self, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
        in_thread(|| {
            setns(&self.file, CloneFlags::CLONE_NEWNET)
                .map_err(|error| format!("cannot enter the network namespace: {error}"))?;
            work()
        })
    }
}

/// Runs a closure in its own thread, which may enter another namespace and then ends.
fn in_thread<T: Send>(work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    std::thread::scope(|scope| scope.spawn(work).join().map_err(|_| "a thread panicked")?)
}

/// Creates the cable from this process's namespace to a new one. Returns the new one.
pub(super) fn lay(veth: Veth) -> Outcome<Namespace> {
    let far = Namespace::new()?;
    let mtu = veth.mtu.to_string();
    let here = std::process::id().to_string();
    far.enter(|| {
        let pair = ["link", "add", FAR_INTERFACE, "mtu", &mtu, "type", "veth"];
        run("ip", &[&pair[..], &["peer", "name", NEAR_INTERFACE, "mtu", &mtu, "netns", &here]].concat())?;
        set_up(FAR_INTERFACE, FAR, veth)
    })?;
    set_up(NEAR_INTERFACE, NEAR, veth)?;
    Ok(far)
}

fn set_up(interface: &str, address: Ipv4Addr, veth: Veth) -> Outcome {
    run("ip", &["address", "add", &format!("{address}/24"), "dev", interface])?;
    if veth.kernel_segments {
        run("ethtool", &["-K", interface, "tx-udp-segmentation", "off"])?;
    }
    run("ip", &["link", "set", "lo", "up"])?;
    run("ip", &["link", "set", interface, "up"])
}

fn run(program: &str, arguments: &[&str]) -> Outcome {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}: {}", arguments.join(" "), output.status, printed.trim()).into())
}
