//! UCX's benchmark, over TCP on the loopback or over memory.

use std::process::Command;

use super::{External, UcxTest, UcxTransport};
use crate::perf::report::ExternalResults;

pub(super) const PROGRAM: &str = "ucx_perftest";
const MEBIBYTE: f64 = (1 << 20) as f64;
/// Number of columns of a result: number, three latencies, two bandwidths, two rates.
const COLUMNS: usize = 8;
const MEDIAN: usize = 1;
const OVERALL_LATENCY: usize = 3;
const OVERALL_BANDWIDTH: usize = 5;

/// Number of messages in flight: with more, data leaves the cache before it is read.
const FEW_OUTSTANDING: &str = "4";
/// Length of the segments of a put, 8 KiB by default.
const LARGE_SEGMENTS: &str = "64k";

pub(super) fn server(test: UcxTest, transport: UcxTransport, port: u16) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["-p", &port.to_string()]).env("UCX_LOG_LEVEL", "error");
    match transport {
        UcxTransport::Tcp => command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", "lo"),
        UcxTransport::SharedMemory => command.env("UCX_TLS", "posix,self"),
        UcxTransport::SharedMemoryAndCopies => command.env("UCX_TLS", "posix,cma,self"),
    };
    if test == UcxTest::TunedPutBandwidth {
        command.env("UCX_TCP_TX_SEG_SIZE", LARGE_SEGMENTS);
    }
    command
}

pub(super) fn client(external: &External, test: UcxTest, transport: UcxTransport, port: u16) -> Command {
    let name = match test {
        UcxTest::TagLatency => "tag_lat",
        UcxTest::PutLatency => "ucp_put_lat",
        UcxTest::TagBandwidth | UcxTest::TunedTagBandwidth => "tag_bw",
        UcxTest::PutBandwidth | UcxTest::TunedPutBandwidth => "ucp_put_bw",
    };
    let External { size, iterations, warm_up, .. } = external;
    let mut command = server(test, transport, port);
    if test == UcxTest::TunedTagBandwidth {
        command.args(["-O", FEW_OUTSTANDING]);
    }
    command.args(["-t", name, "-s", &size.to_string(), "-n", &iterations.to_string(), "-w", &warm_up.to_string()]);
    // Prints final results only; the last argument is the server's address.
    command.args(["-f", "127.0.0.1"]);
    command
}

/// Parses the last line of the table. Latencies are half round trips already; a megabyte has 2^20 bytes.
pub(super) fn read(output: &str, size: usize, test: UcxTest) -> Option<ExternalResults> {
    let columns: Vec<f64> = output.lines().rev().find_map(|line| {
        let columns: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        columns.filter(|columns| columns.len() == COLUMNS && columns.iter().all(|value| value.is_finite()))
    })?;
    let messages = columns[0] as u64;
    let results = match test {
        UcxTest::TagLatency | UcxTest::PutLatency => {
            let mean = columns[OVERALL_LATENCY];
            let seconds = 2.0 * mean / 1e6 * messages as f64;
            ExternalResults { bytes: size, messages, seconds, median: Some(columns[MEDIAN]), mean: Some(mean) }
        }
        UcxTest::TagBandwidth | UcxTest::PutBandwidth | UcxTest::TunedTagBandwidth | UcxTest::TunedPutBandwidth => {
            let seconds = messages as f64 * size as f64 / (columns[OVERALL_BANDWIDTH] * MEBIBYTE);
            ExternalResults { bytes: size, messages, seconds, median: None, mean: None }
        }
    };
    (results.messages > 0 && results.seconds.is_finite() && results.seconds > 0.0).then_some(results)
}
