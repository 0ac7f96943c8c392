//! Processes that measure, for the commands that watch them.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{PATIENCE, PROGRAM, ensure, stat};

/// Returns the names of two devices of this test's own, by process number.
pub(super) fn devices() -> [String; 2] {
    [97, 98].map(own_device)
}

pub(super) fn own_device(network: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("soft:127.{network}.{high}.{low}")
}

/// A measurement between two processes on those devices, which ends with this value.
pub(super) struct Traffic(Option<Child>);

impl Traffic {
    /// Starts it, and waits until both processes can be seen and have sent something.
    pub(super) fn start(arguments: &str, variables: &[(&str, &str)]) -> Result<Self, Failed> {
        Self::on(devices(), arguments, variables)
    }

    pub(super) fn on(devices: [String; 2], arguments: &str, variables: &[(&str, &str)]) -> Result<Self, Failed> {
        let [own, partner] = &devices;
        let mut command = Command::new(PROGRAM);
        command.args(["perf", "self"]).args(arguments.split_whitespace());
        command.args(["--json", "-d", own, "--partner-dev", partner]);
        let child = command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let traffic = Self(Some(child));
        let end = Instant::now() + PATIENCE;
        while !has_traffic(&stat("--json")?, &devices) {
            ensure(Instant::now() < end, || "no process sends".to_owned())?;
            thread::sleep(Duration::from_millis(50));
        }
        Ok(traffic)
    }

    /// Returns the numbers of its processes: the one that was started, and its partner.
    pub(super) fn processes(&self) -> Result<[u32; 2], Failed> {
        let own = self.0.as_ref().ok_or("it has ended")?.id();
        let mut processes = Vec::new();
        for thread in std::fs::read_dir(format!("/proc/{own}/task"))? {
            let children = std::fs::read_to_string(thread?.path().join("children"))?;
            processes.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        Ok([own, *processes.first().ok_or("it has no partner")?])
    }

    /// Returns the result of the measurement, after its end.
    pub(super) fn result(mut self) -> Result<Value, Failed> {
        let child = self.0.take().ok_or("it has ended")?;
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        Ok(value["results"][0].clone())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let processes = self.processes().unwrap_or_default();
        for process in processes.into_iter().filter(|process| *process > 0) {
            let _ = kill(Pid::from_raw(process as i32), Signal::SIGKILL);
        }
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn has_traffic(document: &Value, devices: &[String]) -> bool {
    let moves = |qp: &Value| qp["sends"].as_u64() > Some(0) || qp["receives"].as_u64() > Some(0);
    devices.iter().all(|name| device(document, name).is_some_and(|device| queue_pairs(device).iter().any(moves)))
}

/// Returns the statistics of a device, wherever it is open.
fn device<'a>(document: &'a Value, name: &str) -> Option<&'a Value> {
    let processes = document["processes"].as_array()?;
    let mut devices = processes.iter().filter_map(|process| process["devices"].as_array()).flatten();
    devices.find(|device| device["name"] == name)
}

pub(super) fn queue_pairs(device: &Value) -> &[Value] {
    device["queue_pairs"].as_array().map_or(&[], Vec::as_slice)
}

/// Stops both processes of a measurement until this value is dropped: the requests of one alone would time out.
pub(super) struct Stopped([Pid; 2]);

impl Stopped {
    pub(super) fn new(traffic: &Traffic) -> Result<Self, Failed> {
        let stopped = Self(traffic.processes()?.map(|process| Pid::from_raw(process as i32)));
        for process in stopped.0 {
            kill(process, Signal::SIGSTOP)?;
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for process in self.0 {
            let _ = kill(process, Signal::SIGCONT);
        }
    }
}
