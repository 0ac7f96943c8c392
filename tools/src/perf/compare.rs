//! The raw programs that a measurement is compared with.

use super::job::{Job, Measure};
use super::reference::{DatagramLatency, DatagramStream, Offload, Reference, TcpLatency, TcpRate, Wait};

pub(crate) const RAW_UDP: &str = "raw UDP";
pub(crate) const TCP: &str = "TCP";
/// Length of the largest IPv4 datagram.
const MOST_DATAGRAM_BYTES: usize = 65_507;
/// Number of bytes of a raw stream: about the same for each size, and a multiple of the window.
const STREAM_BYTES: u64 = 256 << 20;
const STREAM_MESSAGES: u64 = 400_000;
const MOST_ROUNDS: u64 = 20_000;

/// Returns the raw programs for each size, with the fastest settings for processes that poll.
pub(crate) fn references(job: &Job) -> Vec<(&'static str, Reference, usize)> {
    let mut references = Vec::new();
    for &size in &job.sizes {
        match job.measure {
            Measure::Latency => {
                let iterations = job.iterations(size).unwrap_or(MOST_ROUNDS).min(MOST_ROUNDS);
                let (wait, warm_up) = (Wait::Yield, job.warm_up);
                if size <= MOST_DATAGRAM_BYTES {
                    let test = DatagramLatency { size, wait, iterations, warm_up };
                    references.push((RAW_UDP, Reference::DatagramLatency(test), size));
                }
                let test = TcpLatency { size, wait: Wait::Spin, iterations, warm_up };
                references.push((TCP, Reference::TcpLatency(test), size));
            }
            Measure::Bandwidth | Measure::Rate => {
                let bytes = STREAM_BYTES.min(STREAM_MESSAGES * size as u64);
                let test = stream(size, job.mtu.unwrap_or(4096) as usize, job.post_list as usize, bytes);
                references.push((RAW_UDP, Reference::DatagramStream(test), size));
                let messages = (bytes / size as u64).max(1);
                let test = TcpRate { size, call: size, wait: Wait::Spin, messages };
                references.push((TCP, Reference::TcpRate(test), size));
            }
        }
    }
    references
}

/// Returns a raw stream of messages of a size, with the same packets and batches as the measurement.
pub(crate) fn stream(size: usize, mtu: usize, post_list: usize, bytes: u64) -> DatagramStream {
    let payload = size.min(mtu);
    let segments = size.div_ceil(mtu) * post_list;
    DatagramStream { payload, segments, offload: Offload::Segmentation, bytes }
}
