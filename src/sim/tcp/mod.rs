//! A model of Linux TCP: CUBIC, selective acknowledgements, RACK-TLP and proportional rate reduction. It is the
//! reference for RoCE streams on the same link, and their competitor.
//!
//! One stream in one direction, whose application always has data until all is sent. All segments are full, so sequence
//! numbers count segments. The parts do no I/O: they take the time and arrivals, and return segments to send.
//!
//! It omits the handshake, HyStart (RFC 9406), F-RTO (RFC 5682), undoing reductions that duplicates prove spurious,
//! ECN, pacing, the sender's local queue, and quick acknowledgements at the start of a connection.

mod cubic;
mod prr;
mod rack;
mod ranges;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(super) use receiver::Receiver;
pub(super) use sender::Sender;

/// Bytes of a segment's headers from Ethernet on: Ethernet 14, IPv4 20, TCP with timestamps 32.
const HEADER_BYTES: usize = 14 + 20 + 32;
/// Maximum number of SACK blocks beside timestamps (RFC 2018, section 3).
const SACK_BLOCKS: usize = 3;

/// How the window of CUBIC grows between losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Growth {
    /// With each acknowledgement, as in RFC 9438.
    #[default]
    Continuous,
    /// As in Linux, which recomputes the rate of growth only when the window has changed, or after 32 ms. With losses
    /// more frequent than that, the window hardly grows, and falls to two segments.
    Linux,
}

/// Options of a TCP stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Payload of a segment in bytes.
    pub segment_bytes: u32,
    /// The receive window in bytes, the bound of data in flight. Stands for the limit of the kernel's autotuning.
    pub receive_window_bytes: u32,
    /// How the congestion window grows.
    pub growth: Growth,
    /// Bytes that the application sends; `None`: unlimited.
    pub most_bytes: Option<u64>,
}

impl Default for TcpConfig {
    /// Ethernet's MTU, and Linux's default maximum of the receive buffer (`tcp_rmem`) as the window.
    fn default() -> Self {
        Self { segment_bytes: 1_448, receive_window_bytes: 6 << 20, growth: Growth::default(), most_bytes: None }
    }
}

impl TcpConfig {
    /// Returns the bound of segments in flight, at least two, so that delayed acknowledgements do not stop the stream.
    fn window_segments(&self) -> u64 {
        u64::from(self.receive_window_bytes / self.segment_bytes.max(1)).max(2)
    }

    /// Returns the number of segments that the application sends.
    fn most_segments(&self) -> u64 {
        self.most_bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(u64::from(self.segment_bytes.max(1))))
    }

    /// Returns the bytes of a data segment on the wire, Ethernet header included.
    pub(super) fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.segment_bytes as usize
    }
}

/// An acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ack {
    /// The next segment expected: all before it have arrived.
    cumulative: u64,
    /// SACK blocks. The first contains the latest arrival (RFC 2018); if already known, it reports a duplicate (RFC
    /// 2883). Empty ones are not sent.
    blocks: [Range<u64>; SACK_BLOCKS],
}

impl Ack {
    fn blocks(&self) -> impl Iterator<Item = &Range<u64>> {
        self.blocks.iter().filter(|block| !block.is_empty())
    }

    /// Whether the first block reports a duplicate (RFC 2883, section 4): it lies before the left edge, or within the
    /// second block.
    fn reports_duplicate(&self) -> bool {
        let [first, second, _] = &self.blocks;
        let is_within = second.start <= first.start && first.end <= second.end;
        !first.is_empty() && (first.end <= self.cumulative || is_within && !second.is_empty())
    }

    /// Returns the bytes on the wire, Ethernet header included. The option has 2 bytes, 2 of padding, and 8 for each
    /// block.
    pub(super) fn wire_bytes(&self) -> usize {
        match self.blocks().count() {
            0 => HEADER_BYTES,
            blocks => HEADER_BYTES + 4 + 8 * blocks,
        }
    }
}
