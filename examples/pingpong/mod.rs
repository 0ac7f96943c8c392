//! The common part of the ping-pong examples: the flags, the devices and the output of rdma-core's programs.

pub(crate) mod exchange;
mod program;

use std::process::ExitCode;

use clap::Parser;
use rdma_verbs::verbs::{self, ConnectionInfo, Context, Mtu};

pub(crate) use program::{Outcome, interrupted};

/// One end of a ping-pong. Without arguments, both ends run in this program.
#[derive(Parser)]
#[command(disable_version_flag = true)]
#[command(after_help = "RDMA_VERBS_CAPTURE=FOLDER captures all packets for Wireshark: see docs/capture.md.")]
pub(crate) struct Arguments {
    /// Listen on or connect to this TCP port.
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,
    /// Device, for example soft_eth0 or soft:192.0.2.1; by default the first one that is not the loopback.
    #[arg(short = 'd', long)]
    pub(crate) ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) ib_port: u8,
    /// Size of a message in bytes.
    #[arg(short, long, default_value_t = 4096)]
    pub(crate) size: usize,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    pub(crate) mtu: Mtu,
    /// Receives to post at a time.
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rx_depth: u32,
    /// Number of exchanges.
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub(crate) iters: u32,
    /// Service level.
    #[arg(short = 'l', long, default_value_t = 0)]
    pub(crate) sl: u8,
    /// Sleep on events instead of polling.
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Check the received data.
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Index of the local GID; by default that of the first IPv4 address, or else the first.
    #[arg(short, long)]
    pub(crate) gid_idx: Option<u8>,
    /// The server to connect to; without it, this is the server.
    pub(crate) server: Option<String>,
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_size);
    mtu.ok_or_else(|| "allowed are 256, 512, 1024, 2048 and 4096".to_owned())
}

/// Runs an example program: `both` without arguments, `one` with them; `adjust` changes the flags.
pub(crate) fn launch_as<A: Parser>(
    name: &str,
    adjust: impl FnOnce(clap::Command) -> clap::Command,
    both: impl FnOnce() -> Outcome,
    one: impl FnOnce(&A) -> Outcome,
) -> ExitCode {
    let both_ends = std::env::args_os().len() == 1;
    let matches = adjust(A::command()).get_matches();
    let arguments = A::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    program::watch_for_interrupt();
    let outcome = if both_ends { both() } else { one(&arguments) };
    program::status(name, outcome).into()
}

pub(crate) fn print_address(which: &str, info: &ConnectionInfo) {
    let (qpn, psn, gid) = (info.qpn.value(), info.psn.value(), info.gid);
    println!("  {which} LID 0x0000, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}");
}

pub(crate) fn print_speed(arguments: &Arguments, seconds: f64) {
    let bytes = arguments.size as u64 * u64::from(arguments.iters) * 2;
    let (iters, megabits) = (arguments.iters, bytes as f64 * 8.0 / 1e6);
    println!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", megabits / seconds);
    println!("{iters} iters in {seconds:.2} seconds = {:.2} usec/iter", seconds * 1e6 / f64::from(iters));
}

pub(crate) fn open_device(name: Option<&str>) -> Outcome<Context> {
    if let Some(name) = name {
        return Ok(verbs::open(name)?);
    }
    let devices = verbs::devices()?;
    let device = devices.iter().find(|device| device.name() != "soft_lo").or(devices.first());
    Ok(device.ok_or("there is no device")?.open()?)
}

pub(crate) fn first_gid(context: &Context, port: u8) -> Outcome<u8> {
    let table = context.gid_table(port)?;
    let entry = table.iter().find(|entry| entry.gid.to_ip().is_ipv4()).or(table.first());
    Ok(entry.ok_or("the device has no GID")?.gid_index)
}
