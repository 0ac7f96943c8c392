//! The congestion control of a software device.

use std::fmt;
use std::str::FromStr;

/// Algorithm by which a software device determines its sending rate to another host.
///
/// Queue pairs of one device and one peer address share a window and a rate: together they form one flow, like a TCP
/// connection. Traffic to addresses of the local host is never controlled.
///
/// ```
/// use rdma_verbs::types::CongestionAlgorithm;
///
/// assert_eq!("constant".parse(), Ok(CongestionAlgorithm::Constant));
/// assert_eq!(CongestionAlgorithm::default().to_string(), "cubic");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// CUBIC (RFC 9438), as in TCP, with paced packets: shares a link with other flows. Unlike TCP, it does not slow
    /// down for packets lost by chance.
    #[default]
    Cubic,
    /// A constant window, as large as the peer's socket allows; smaller after a loss towards a standard peer. For
    /// dedicated networks: where several senders share a link, most of their packets are lost.
    Constant,
}

impl CongestionAlgorithm {
    /// All algorithms.
    pub const ALL: &[Self] = &[Self::Cubic, Self::Constant];

    /// Returns its name, as in the environment variable `RDMA_VERBS_CONGESTION`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Constant => "constant",
        }
    }
}

impl fmt::Display for CongestionAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for an unknown algorithm name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{0}\" is not a congestion control algorithm; use cubic or constant")]
pub struct UnknownAlgorithm(String);

impl FromStr for CongestionAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.iter().copied();
        all.find(|algorithm| algorithm.name() == name).ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for &algorithm in CongestionAlgorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "Cubic".parse::<CongestionAlgorithm>().unwrap_err();
        assert_eq!(error.to_string(), "\"Cubic\" is not a congestion control algorithm; use cubic or constant");
    }
}
