//! Shared receive queues: their numbers and attributes.

use std::fmt;

/// Number of a shared receive queue: 24 bits, unique in its device. The requests of extended reliable connections
/// identify their receive queue by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct SharedReceiveQueueNumber(u32);

impl SharedReceiveQueueNumber {
    /// Creates the number with the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// Returns the number, at most 24 bits.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for SharedReceiveQueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceiveQueueNumber({:#08x})", self.0)
    }
}

impl fmt::Display for SharedReceiveQueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Changes to a shared receive queue; attributes that are `None` stay unchanged. Names are those of `ibv_srq_attr`.
///
/// ```
/// use rdma_verbs::types::SharedReceiveQueueAttributes;
///
/// let armed = SharedReceiveQueueAttributes { srq_limit: Some(16), ..Default::default() };
/// assert_eq!(armed.max_wr, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharedReceiveQueueAttributes {
    /// Number of receives that it holds: at least those that wait in it, and at least the armed limit.
    pub max_wr: Option<u32>,
    /// Arms the limit event: it is raised once, when fewer receives than this wait. 0 disarms it.
    pub srq_limit: Option<u32>,
}

/// Current attributes of a shared receive queue. Names are those of `ibv_srq_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharedReceiveQueueStatus {
    /// Number of receives that it holds.
    pub max_wr: u32,
    /// Maximum number of scatter-gather entries of a receive.
    pub max_sge: u32,
    /// The armed limit; 0: none, or its event was raised.
    pub srq_limit: u32,
}
