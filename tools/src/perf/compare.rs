//! Which raw programs stand beside a measurement.

use super::job::{Job, Measure};
use super::reference::{DatagramLatency, DatagramStream, Offload, Reference, TcpLatency, TcpRate, Wait};

pub(crate) const RAW_UDP: &str = "raw UDP";
pub(crate) const TCP: &str = "TCP";
/// Largest datagram of IPv4.
const MOST_DATAGRAM_BYTES: usize = 65_507;
/// A raw stream moves about as much for each size, and a multiple of what is on its way.
const STREAM_BYTES: u64 = 256 << 20;
const STREAM_MESSAGES: u64 = 400_000;
const MOST_ROUNDS: u64 = 20_000;

/// Raw programs for each size, as fast as they are between processes that poll.
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

/// A raw stream of messages of a size: cut into packets as they are, and sent together as they are.
pub(crate) fn stream(size: usize, mtu: usize, post_list: usize, bytes: u64) -> DatagramStream {
    let payload = size.min(mtu);
    let segments = size.div_ceil(mtu) * post_list;
    DatagramStream { payload, segments, offload: Offload::Segmentation, bytes }
}
