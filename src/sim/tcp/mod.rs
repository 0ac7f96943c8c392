//! A model of TCP as Linux has it: CUBIC, selective acknowledgements, RACK-TLP and proportional rate reduction. It is
//! the yardstick for streams on the same link, and their competitor.
//!
//! One stream in one direction, whose application has data until all is sent. All segments are full, so sequence
//! numbers count segments. The parts do no I/O: they take the time and what arrives, and give what to send.
//!
//! It leaves out: the handshake, HyStart (RFC 9406), F-RTO (RFC 5682), the undoing of reductions that duplicates show
//! to be wrong, ECN, pacing, the sender's local queue, and the quick acknowledgements at the start of a connection.

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
/// An acknowledgement has at most so many SACK blocks beside timestamps (RFC 2018, section 3).
const SACK_BLOCKS: usize = 3;

/// How the window of CUBIC grows between losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Growth {
    /// With each acknowledgement, as in RFC 9438.
    #[default]
    Continuous,
    /// As in Linux, which computes the rate of growth again only when the window has changed, or after 32 ms. Where
    /// losses come more often than that, the window hardly grows, and falls to two segments.
    Linux,
}

/// What can be chosen of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Payload of a segment in bytes.
    pub segment_bytes: u32,
    /// The receive window in bytes: the most that is in flight. Stands for the bound of the kernel's autotuning.
    pub receive_window_bytes: u32,
    /// How the congestion window grows.
    pub growth: Growth,
    /// Bytes that the application sends; `None`: it always has more.
    pub most_bytes: Option<u64>,
}

impl Default for TcpConfig {
    /// Ethernet's MTU, and a window that is Linux' default for large buffers (`tcp_rmem`).
    fn default() -> Self {
        Self { segment_bytes: 1_448, receive_window_bytes: 6 << 20, growth: Growth::default(), most_bytes: None }
    }
}

impl TcpConfig {
    /// The most segments in flight; at least two, so that delayed acknowledgements do not stop the stream.
    fn window_segments(&self) -> u64 {
        u64::from(self.receive_window_bytes / self.segment_bytes.max(1)).max(2)
    }

    /// The segments of all that the application sends.
    fn most_segments(&self) -> u64 {
        self.most_bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(u64::from(self.segment_bytes.max(1))))
    }

    /// Bytes of a data segment on the wire, from Ethernet on.
    pub(super) fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.segment_bytes as usize
    }
}

/// An acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ack {
    /// All segments before this one have arrived.
    cumulative: u64,
    /// SACK blocks, the first of them with what arrived last (RFC 2018); one that is known already is a duplicate's
    /// (RFC 2883). Empty ones are not sent.
    blocks: [Range<u64>; SACK_BLOCKS],
}

impl Ack {
    fn blocks(&self) -> impl Iterator<Item = &Range<u64>> {
        self.blocks.iter().filter(|block| !block.is_empty())
    }

    /// Whether the first block is a duplicate's (RFC 2883, section 4): known by the left edge, or by the second block.
    fn reports_duplicate(&self) -> bool {
        let [first, second, _] = &self.blocks;
        let is_within = second.start <= first.start && first.end <= second.end;
        !first.is_empty() && (first.end <= self.cumulative || is_within && !second.is_empty())
    }

    /// Bytes on the wire, from Ethernet on: the option has 2 bytes, 2 of padding, and 8 for each block.
    pub(super) fn wire_bytes(&self) -> usize {
        match self.blocks().count() {
            0 => HEADER_BYTES,
            blocks => HEADER_BYTES + 4 + 8 * blocks,
        }
    }
}
