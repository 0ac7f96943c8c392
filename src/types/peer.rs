//! Capabilities of a peer beyond the standard.

use super::setters::setters;

/// Capabilities of a peer. The default is a standard peer: exactly the standard and nothing more. Setters are named
/// after the fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct PeerCapabilities {
    /// Version of this crate's extensions that the peer speaks; 0 for a standard peer.
    pub version: u8,
    /// Whether the peer's sockets accept segmented sends (UDP GSO, checksums on) and coalesce them again (UDP GRO).
    pub segmentation_offload: bool,
    /// Capacity in bytes of the peer's receive socket, as its kernel accounts for it; 0: unknown.
    pub receive_buffer_bytes: u32,
    /// Extensions that the peer understands, one bit each: [`PeerCapabilities::GAP_RUNS`], [`PeerCapabilities::MARKS`].
    /// Unknown bits are ignored.
    pub extensions: u32,
}

impl PeerCapabilities {
    /// Version of the extensions that this crate speaks.
    pub const VERSION: u8 = 1;
    /// Extension: a NAK for a sequence error may list all gaps, and the peer's reorder buffer reaches four windows
    /// ahead.
    pub const GAP_RUNS: u32 = 1;
    /// Extension: the peer echoes ECN marks, so queues on the path may mark packets to it instead of dropping them.
    pub const MARKS: u32 = 2;
    /// A standard peer, about which nothing else is known.
    pub const STANDARD: PeerCapabilities =
        PeerCapabilities { version: 0, segmentation_offload: false, receive_buffer_bytes: 0, extensions: 0 };

    setters! {
        version: u8,
        segmentation_offload: bool,
        receive_buffer_bytes: u32,
        extensions: u32,
    }

    /// Returns whether the peer is native: it runs this crate.
    pub const fn is_native(&self) -> bool {
        self.version > 0
    }

    /// Returns whether the peer has an extension.
    pub const fn has_extension(&self, extension: u32) -> bool {
        self.version > 0 && self.extensions & extension == extension
    }
}
