//! Memory of a peer.

use std::ops::RangeBounds;

use super::memory_region::resolve;
use super::{Error, Result, Rkey};

/// Memory of a peer: address, key and length.
///
/// The peer creates it with [`MemoryRegion::remote`](super::MemoryRegion::remote) and sends it as
/// [`RemoteMemory::to_bytes`]. Requests that extend beyond it are refused when they are posted. The peer checks key,
/// bounds and access flags when the request arrives.
///
/// ```
/// use rdma_verbs::verbs::{RemoteMemory, Rkey};
///
/// let sent = RemoteMemory::new(0x7f00_0000_0000, Rkey(0x1234), 4096);
/// let received = RemoteMemory::from_bytes(sent.to_bytes());
/// assert_eq!(received, sent);
/// assert_eq!(received.slice(8..16)?.addr(), 0x7f00_0000_0008);
/// assert!(received.slice(4000..5000).is_err());
/// # Ok::<(), rdma_verbs::verbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteMemory {
    addr: u64,
    rkey: Rkey,
    len: u64,
}

impl RemoteMemory {
    /// Size of [`RemoteMemory::to_bytes`], in bytes.
    pub const ENCODED_BYTES: usize = 20;

    /// Describes `len` bytes from `addr`, in the region or window that `rkey` identifies. Programs that know only
    /// address and key can pass `u64::MAX - addr` as the length and leave the check to the peer.
    pub const fn new(addr: u64, rkey: Rkey, len: u64) -> Self {
        Self { addr, rkey, len }
    }

    /// Returns the address of the first byte in the peer's region.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the key of the peer's region or window.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns the size in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the size is 0.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns part of the memory. `range` counts bytes from its start.
    ///
    /// # Errors
    /// The range does not lie within the memory, or its address exceeds 2^64.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (offset, len) = resolve("slice", &range, usize::try_from(self.len).unwrap_or(usize::MAX))?;
        let addr = self.addr.checked_add(offset as u64).ok_or_else(|| {
            let message = format!("offset {offset} from address {:#x} exceeds 2^64", self.addr);
            Error::unsuitable("slice", "range", message)
        })?;
        Ok(Self { addr, rkey: self.rkey, len: len as u64 })
    }

    /// Encodes address, key and length in network byte order, to send over any channel.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes the result of [`RemoteMemory::to_bytes`]. Every value is accepted; the peer checks it when a request
    /// uses it.
    pub fn from_bytes(bytes: [u8; Self::ENCODED_BYTES]) -> Self {
        let word = |from: usize| u64::from_be_bytes(std::array::from_fn(|index| bytes[from + index]));
        let rkey = u32::from_be_bytes(std::array::from_fn(|index| bytes[8 + index]));
        Self { addr: word(0), rkey: Rkey(rkey), len: word(12) }
    }
}
