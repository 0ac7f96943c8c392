//! Work requests as the provider tier passes them on: plain data, with the caller's `wr_id` unchanged.

use super::{AccessFlags, Lkey, QueuePairType, Rkey};

/// Scatter-gather entry (SGE): a range of registered memory. Laid out like `ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Start address, in the region's `iova` range.
    pub addr: u64,
    /// Length in bytes. 0 means no bytes, not 2^31.
    pub length: u32,
    /// Local key of the region.
    pub lkey: Lkey,
}

const _: () = assert!(size_of::<Sge>() == 16 && align_of::<Sge>() == 8);

bitflags::bitflags! {
    /// Flags of a send request. The bits are those of `ibv_send_flags`, without the inline flag, which [`Data::Inline`]
    /// replaces.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Waits for all earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// Generates a completion on success too (failures always generate one; IBTA 10.7.3.1).
        const SIGNALED = 2;
        /// Makes the peer's receive completion wake a channel that is armed for solicited events only.
        const SOLICITED = 4;
    }
}

/// Operation of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Fills the peer's next posted receive.
    Send,
    /// Like `Send`, and also delivers four bytes of immediate data with the peer's completion (IBTA 9.4.1).
    SendWithImmediate(u32),
    /// Like `Send`, and also invalidates a key at the peer.
    SendWithInvalidate(Rkey),
    /// Writes the peer's memory.
    Write {
        /// Start address, in the address range of the peer's region.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
    },
    /// Writes the peer's memory, then completes its next posted receive with four bytes of immediate data (IBTA
    /// 10.7.2.2).
    WriteWithImmediate {
        /// Start address, in the address range of the peer's region.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// The immediate data, in network byte order on the wire.
        immediate: u32,
    },
    /// Reads the peer's memory into the scatter-gather list.
    Read {
        /// Start address, in the address range of the peer's region.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
    },
    /// Replaces eight bytes at the peer if they equal `compare`. The original value goes into the 8-byte SGE.
    CompareAndSwap {
        /// Address, a multiple of eight.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// Expected value; the peer applies its own byte order.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to eight bytes at the peer. The original value goes into the 8-byte SGE.
    FetchAndAdd {
        /// Address, a multiple of eight.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// Addend, modulo 2^64.
        add: u64,
    },
    /// Writes eight bytes at the peer atomically (IBTA A19.4.2).
    AtomicWrite {
        /// Address, a multiple of eight.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
    },
    /// Makes earlier writes to the peer's memory globally visible or persistent (IBTA A19.4.1).
    Flush {
        /// Start address, in the address range of the peer's region; meaningless if the whole region is flushed.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: Rkey,
        /// Number of bytes to flush; meaningless if the whole region is flushed.
        length: u32,
        /// Placement type and selectivity.
        flags: FlushFlags,
    },
    /// Invalidates a local key: that of an invalidatable region, or of a bound type 2 window.
    LocalInvalidate(Rkey),
    /// Binds a local memory window to a range of a region.
    BindMemoryWindow {
        /// The window's new key: its index in the upper 24 bits, the new tag in the lower eight.
        rkey: Rkey,
        /// Local key of the region.
        lkey: Lkey,
        /// Start address, in the region's `iova` range.
        addr: u64,
        /// Length in bytes; 0 unbinds a type 1 window.
        length: u64,
        /// Access that the window grants to peers, and whether its addresses count from 0.
        access: AccessFlags,
    },
}

bitflags::bitflags! {
    /// Placement type and selectivity of a FLUSH (IBTA A19.4.1.1 and A19.4.1.2). The lower bits are those of
    /// `ibv_placement_type`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct FlushFlags: u8 {
        /// Makes earlier writes visible to every observer at the peer.
        const GLOBAL = 1;
        /// Makes earlier writes survive power loss.
        const PERSISTENT = 1 << 1;
        /// Flushes the whole region instead of a range.
        const WHOLE_REGION = 1 << 4;
    }
}

impl Operation {
    /// Returns the standard's name.
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

    /// Returns whether a queue pair of this type supports the operation.
    pub const fn is_possible_on(&self, qp_type: QueuePairType) -> bool {
        match qp_type {
            QueuePairType::UnreliableDatagram => matches!(self, Self::Send | Self::SendWithImmediate(_)),
            QueuePairType::UnreliableConnection => {
                !self.has_explicit_response() && !matches!(self, Self::SendWithInvalidate(_))
            }
            _ => true,
        }
    }

    /// Returns whether the response carries data: READ and atomics, which `max_rd_atomic` limits.
    pub const fn is_read_or_atomic(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }

    /// Returns whether the operation has a response of its own instead of an acknowledgement; `max_rd_atomic` limits
    /// these.
    pub const fn has_explicit_response(&self) -> bool {
        self.is_read_or_atomic() || self.is_ack_only()
    }

    /// Returns whether the response is an empty READ response: ATOMIC WRITE and FLUSH.
    pub const fn is_ack_only(&self) -> bool {
        matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Returns whether the operation sends no packet.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindMemoryWindow { .. })
    }

    /// Returns whether the operation is a compare-and-swap or a fetch-and-add.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }
}

/// Source of a send request's bytes, or their destination for READ and atomics.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Ranges of registered memory, in order.
    Sges(&'a [Sge]),
    /// Bytes that are copied when posted, concatenated in order. Not for READ and atomics.
    Inline(&'a [&'a [u8]]),
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Caller-defined number, returned in the completion.
    pub wr_id: u64,
    /// Operation to execute.
    pub operation: Operation,
    /// Flags of the request.
    pub flags: SendFlags,
    /// Memory that the request reads or writes.
    pub data: Data<'a>,
}

/// A request for the receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Caller-defined number, returned in the completion.
    pub wr_id: u64,
    /// Memory for the message, filled in order.
    pub sges: &'a [Sge],
}

/// How a batch of requests ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchEnd {
    /// Posts all requests pushed since the batch began.
    Publish,
    /// Discards all requests pushed since the batch began.
    Rollback,
}
