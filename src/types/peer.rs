//! What is known of a peer beyond the standard.

/// Capabilities of a peer. The default is a stranger: exactly the standard, nothing more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerCapabilities {
    /// Version of this crate's extensions that the peer speaks; 0: a stranger.
    pub version: u8,
    /// The peer's sockets take segmented sends (UDP GSO, checksums on) and merge them again (UDP GRO).
    pub segmentation_offload: bool,
    /// Bytes that the peer's receive socket holds, as its kernel counts; 0: unknown.
    pub receive_buffer_bytes: u32,
    /// Extensions that it understands, a bit each: [`PeerCapabilities::GAP_RUNS`], [`PeerCapabilities::MARKS`].
    /// Unknown ones mean nothing.
    pub extensions: u32,
}

impl PeerCapabilities {
    /// Version that this crate speaks.
    pub const VERSION: u8 = 1;
    /// Extension: a NAK for a sequence error may name all gaps, and the peer keeps packets four windows ahead.
    pub const GAP_RUNS: u32 = 1;
    /// Extension: it echoes the marks of queues on the way (ECN), so packets to it may be marked instead of dropped.
    pub const MARKS: u32 = 2;
    /// A peer of which nothing is known.
    pub const STRANGER: PeerCapabilities =
        PeerCapabilities { version: 0, segmentation_offload: false, receive_buffer_bytes: 0, extensions: 0 };

    /// Whether the peer runs this crate.
    pub const fn is_ours(&self) -> bool {
        self.version > 0
    }

    /// Whether it has an extension.
    pub const fn has_extension(&self, extension: u32) -> bool {
        self.version > 0 && self.extensions & extension == extension
    }
}
