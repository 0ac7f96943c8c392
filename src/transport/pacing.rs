//! The arithmetic of pacing, the same for a path and for a queue pair with a rate of its own: how long bytes take, and
//! how many packets leave in one send.

use std::time::Duration;

const SECOND_NANOSECONDS: u64 = 1_000_000_000;
/// What leaves in one send takes this long at the rate at most: shorter pauses than that are no longer exact where a
/// thread sleeps, and longer ones overflow the short queue of a switch (31 kB at 1 Gbit/s).
pub(super) const BURST: Duration = Duration::from_micros(250);
/// A send may have so many packets, whatever the rate.
const LEAST_BURST_PACKETS: u32 = 2;

/// How long so many bytes take; a rate of 0 counts as 1.
pub(super) fn cost(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(SECOND_NANOSECONDS) / bytes_per_second.max(1))
}

/// Packets of this size that leave in one send.
pub(super) fn burst_packets(bytes_per_second: u64, packet_bytes: u64) -> u32 {
    let bytes = u128::from(bytes_per_second) * BURST.as_nanos() / u128::from(SECOND_NANOSECONDS);
    u32::try_from(bytes / u128::from(packet_bytes)).unwrap_or(u32::MAX).max(LEAST_BURST_PACKETS)
}
