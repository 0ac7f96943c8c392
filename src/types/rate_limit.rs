//! The rate limit of a queue pair.

use super::setters::setters;

/// Bytes per kilobit, the unit of `rate_limit`.
const BYTES_OF_A_KILOBIT: u64 = 125;

/// Limit of a queue pair's sending rate. Names and units are those of `ibv_qp_rate_limit_attr`. The default is no
/// limit; setters are named after the fields.
///
/// ```
/// use rdma_verbs::types::RateLimit;
///
/// let limit = RateLimit::default().rate_limit(80_000);
/// assert_eq!(limit.bytes_per_second(), Some(10_000_000));
/// assert_eq!(RateLimit::default().bytes_per_second(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RateLimit {
    /// Kilobits (1,000 bits) per second; 0: no limit.
    pub rate_limit: u32,
    /// Maximum burst in bytes, at least one packet; 0: the device decides.
    pub max_burst_sz: u32,
    /// Typical packet size in bytes, used to count the packets of a burst; 0: the path MTU.
    pub typical_pkt_sz: u16,
}

impl RateLimit {
    setters! {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
    }

    /// Returns the limit in bytes per second, or `None` if there is none.
    pub fn bytes_per_second(&self) -> Option<u64> {
        (self.rate_limit > 0).then(|| u64::from(self.rate_limit) * BYTES_OF_A_KILOBIT)
    }
}
