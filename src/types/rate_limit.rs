//! How fast a queue pair may send.

/// Bits a second of a unit, in bytes.
const BYTES_OF_A_KILOBIT: u64 = 125;

/// A limit of what a queue pair sends. Names and units are those of `ibv_qp_rate_limit_attr`.
///
/// ```
/// use rdma_verbs::types::RateLimit;
///
/// let limit = RateLimit { rate_limit: 80_000, ..RateLimit::default() };
/// assert_eq!(limit.bytes_per_second(), Some(10_000_000));
/// assert_eq!(RateLimit::default().bytes_per_second(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimit {
    /// Kilobits (1,000 bits) a second; 0: no limit.
    pub rate_limit: u32,
    /// Most bytes that leave at once, at least a packet; 0: the device decides.
    pub max_burst_sz: u32,
    /// Bytes of the packets that are usual, from which the packets of a burst are counted; 0: the path MTU.
    pub typical_pkt_sz: u16,
}

impl RateLimit {
    /// The limit in bytes a second; `None`: there is none.
    pub fn bytes_per_second(&self) -> Option<u64> {
        (self.rate_limit > 0).then(|| u64::from(self.rate_limit) * BYTES_OF_A_KILOBIT)
    }
}
