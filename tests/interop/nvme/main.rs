//! NVMe over RDMA with the kernel as the other end. `tests/interop/run` starts both ends.
//!
//! `interop_nvme host` is a host of the kernel's target (`nvmet-rdma`): wrong requests and commands are refused with
//! the status of the specification; a right one connects; blocks are written and read back. `interop_nvme target` is
//! the target of four `nvme connect` of the kernel's host (`nvme-rdma`): one connection is rejected, one Connect
//! command refused, one controller identifies itself as another one, and one becomes a block device.

mod capsule;
mod controller;
mod host;
mod host_queue;
mod target;
mod target_queue;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(10);
const HOST_NQN: &str = "nqn.2014-08.org.example:host";
/// `HOST_ID` is 00112233-4455-6677-8899-aabbccddeeff on the command line of `nvme`.
const HOST_ID: [u8; 16] =
    [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];

#[derive(Parser)]
#[command(about = "NVMe over RDMA with the kernel as the other end")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Connects to the kernel's target
    Host {
        /// Own device, for example soft:192.0.2.1
        device: String,
        /// Address and port of the target
        target: SocketAddr,
        /// Name of its subsystem
        subsystem: String,
        /// A file for the start of its namespace 1
        data: PathBuf,
    },
    /// Waits for the kernel's host
    Target {
        /// Own address and port
        address: SocketAddr,
        /// Name of the subsystem
        subsystem: String,
        /// A file that the kernel's host copies to the namespace
        data: PathBuf,
    },
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

fn main() -> std::process::ExitCode {
    let outcome = match &Arguments::parse().role {
        Role::Host { device, target, subsystem, data } => host::run(device, *target, subsystem, data),
        Role::Target { address, subsystem, data } => target::run(*address, subsystem, data),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("interop_nvme: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
