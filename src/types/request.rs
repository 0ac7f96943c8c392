//! Work requests as the provider tier passes them on: plain data, the caller's `wr_id` untouched.

use super::{AccessFlags, Lkey, QueuePairType, Rkey};

/// Scatter-gather entry: a piece of registered memory. Laid out like `ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address as the region knows it (its `iova` range).
    pub addr: u64,
    /// Length in bytes. 0 means nothing, not 2^31.
    pub length: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

const _: () = assert!(size_of::<Sge>() == 16 && align_of::<Sge>() == 8);

bitflags::bitflags! {
    /// Flags of a send request. The bits are those of `ibv_send_flags`, less the inline flag, which
    /// [`Data::Inline`] says.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait for all earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// Make a completion on success too (failures always make one).
        const SIGNALED = 2;
        /// The peer's receive completion shall wake a channel that is armed for solicited events only.
        const SOLICITED = 4;
    }
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Fill the peer's next posted receive.
    Send,
    /// The same, and hand four bytes of immediate data to its completion.
    SendWithImmediate(u32),
    /// The same, and invalidate a key at the peer.
    SendWithInvalidate(Rkey),
    /// Write the peer's memory.
    Write {
        /// First address, as the peer's region knows it.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
    },
    /// Write the peer's memory, then complete its next posted receive with four bytes of immediate data.
    WriteWithImmediate {
        /// First address, as the peer's region knows it.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// The immediate data; on the wire in network order.
        immediate: u32,
    },
    /// Read the peer's memory into the scatter-gather list.
    Read {
        /// First address, as the peer's region knows it.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
    },
    /// Replace eight bytes at the peer if they equal `compare`; the value before goes into the 8-byte entry.
    CompareAndSwap {
        /// Address, a multiple of eight.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// Expected value, in the peer's own byte order.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add to eight bytes at the peer; the value before goes into the 8-byte entry.
    FetchAndAdd {
        /// Address, a multiple of eight.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// Write eight bytes at the peer in one piece.
    AtomicWrite {
        /// Address, a multiple of eight.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
    },
    /// Make sure that what was written to the peer's memory is visible there, or persistent.
    Flush {
        /// First address, as the peer's region knows it; without meaning if the whole region is flushed.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// Bytes to flush; without meaning if the whole region is flushed.
        length: u32,
        /// What is asked for.
        flags: FlushFlags,
    },
    /// Revoke a key of this host: of a region that may be invalidated, or of a bound type 2 window.
    LocalInvalidate(Rkey),
    /// Bind a memory window of this host to a part of a region.
    BindMemoryWindow {
        /// The window's new key: its index in the upper 24 bits, the new tag below.
        rkey: Rkey,
        /// The region.
        lkey: Lkey,
        /// First address, as the region knows it.
        addr: u64,
        /// Bytes; 0 unbinds a type 1 window.
        length: u64,
        /// What peers may do through the window, and whether its addresses count from 0.
        access: AccessFlags,
    },
}

bitflags::bitflags! {
    /// What a FLUSH asks for. The lower bits are those of `ibv_placement_type`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct FlushFlags: u8 {
        /// What was written is visible to every party at the peer.
        const GLOBAL = 1;
        /// What was written survives a loss of power.
        const PERSISTENT = 1 << 1;
        /// The whole region instead of a range.
        const WHOLE_REGION = 1 << 4;
    }
}

impl Operation {
    /// The name that the standard uses.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendWithImmediate(_) => "SEND with immediate",
            Self::SendWithInvalidate(_) => "SEND with invalidate",
            Self::Write { .. } => "RDMA WRITE",
            Self::WriteWithImmediate { .. } => "RDMA WRITE with immediate",
            Self::Read { .. } => "RDMA READ",
            Self::CompareAndSwap { .. } => "CmpSwap",
            Self::FetchAndAdd { .. } => "FetchAdd",
            Self::AtomicWrite { .. } => "ATOMIC WRITE",
            Self::Flush { .. } => "FLUSH",
            Self::LocalInvalidate(_) => "Local Invalidate",
            Self::BindMemoryWindow { .. } => "Bind Memory Window",
        }
    }

    /// Whether a queue pair of this type carries it.
    pub const fn is_possible_on(&self, qp_type: QueuePairType) -> bool {
        match qp_type {
            QueuePairType::UnreliableDatagram => matches!(self, Self::Send | Self::SendWithImmediate(_)),
            QueuePairType::UnreliableConnection => {
                !self.has_explicit_response() && !matches!(self, Self::SendWithInvalidate(_))
            }
            _ => true,
        }
    }

    /// Whether the response carries data: READ and atomics, which `max_rd_atomic` limits.
    pub const fn is_read_or_atomic(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }

    /// Whether it has a response of its own instead of an acknowledgement; `max_rd_atomic` limits these.
    pub const fn has_explicit_response(&self) -> bool {
        self.is_read_or_atomic() || self.is_ack_only()
    }

    /// Whether its response is an empty READ response: ATOMIC WRITE and FLUSH.
    pub const fn is_ack_only(&self) -> bool {
        matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Whether no packet leaves for it.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindMemoryWindow { .. })
    }

    /// Whether it is a compare-and-swap or a fetch-and-add.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }
}

/// Where a send request's bytes come from (or go to, for READ and atomics).
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Pieces of registered memory, in order.
    Sges(&'a [Sge]),
    /// Bytes that are copied while posting; joined in order. Not for READ and atomics.
    Inline(&'a [&'a [u8]]),
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The caller's own number; comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// How.
    pub flags: SendFlags,
    /// The bytes.
    pub data: Data<'a>,
}

/// A request for the receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// The caller's own number; comes back in the completion.
    pub wr_id: u64,
    /// Memory for the message, filled in order.
    pub sges: &'a [Sge],
}

/// How a batch of requests ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchEnd {
    /// Hand over all that was pushed since the batch began.
    Publish,
    /// Forget all that was pushed since the batch began.
    Rollback,
}
