//! libfabric's ping-pong, over datagrams that it makes reliable or over memory.

use std::process::Command;

use super::{External, LibfabricProvider};
use crate::perf::report::ExternalResults;

pub(super) const PROGRAM: &str = "fi_pingpong";
/// Column of the time per transfer. Before it: size, sent, acknowledged, total, time, megabytes per second; after it:
/// transfers per second.
const TIME_PER_TRANSFER: usize = 6;
const COLUMNS: usize = 8;

fn program(external: &External, provider: LibfabricProvider) -> Command {
    let provider = match provider {
        LibfabricProvider::ReliableDatagrams => "udp;ofi_rxd",
        LibfabricProvider::SharedMemory => "shm",
    };
    let mut command = Command::new(PROGRAM);
    command.args(["-p", provider, "-e", "rdm"]);
    command.args(["-I", &external.iterations.to_string(), "-S", &external.size.to_string()]);
    command
}

pub(super) fn server(external: &External, provider: LibfabricProvider, port: u16) -> Command {
    let mut command = program(external, provider);
    command.args(["-B", &port.to_string()]);
    command
}

pub(super) fn client(external: &External, provider: LibfabricProvider, port: u16) -> Command {
    let mut command = program(external, provider);
    command.args(["-P", &port.to_string(), "127.0.0.1"]);
    command
}

/// Parses the last line. A transfer is one-way, so its time is half a round trip; one is in flight at a time.
pub(super) fn read(output: &str, size: usize) -> Option<ExternalResults> {
    let columns: Vec<&str> = output.lines().rev().find(|line| !line.trim().is_empty())?.split_whitespace().collect();
    if columns.len() != COLUMNS {
        return None;
    }
    let rounds = count(columns[1])?;
    let mean: f64 = columns[TIME_PER_TRANSFER].parse().ok()?;
    let messages = 2 * rounds;
    let seconds = messages as f64 * mean / 1e6;
    let results = ExternalResults { bytes: size, messages, seconds, median: None, mean: Some(mean) };
    (messages > 0 && seconds.is_finite() && seconds > 0.0).then_some(results)
}

/// Parses a number of transfers, which from a thousand on is cut to thousands, and so on.
fn count(text: &str) -> Option<u64> {
    let scales = [("k", 1_000), ("m", 1_000_000)];
    let scaled = scales.iter().find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(scale)
}
