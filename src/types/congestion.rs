//! How a software device shares the network with others.

use std::fmt;
use std::str::FromStr;

/// How a software device finds out how fast it may send to another host.
///
/// Queue pairs of one device and one peer address share a window and a rate: together they are one flow, as a
/// connection of TCP is. Towards addresses of the own host nothing is controlled, whatever is chosen here.
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
    /// CUBIC (RFC 9438), as TCP has it, with paced packets: takes its share of a link beside others. Unlike TCP, it
    /// does not slow down for packets that are lost by chance.
    #[default]
    Cubic,
    /// As much as the peer's socket takes, whatever happens; towards standard peers less after a loss. For networks
    /// that nothing else uses: where several senders share a link, most of what they send is lost.
    Constant,
}

impl CongestionAlgorithm {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Cubic, Self::Constant];

    /// Its name, as in the environment variable `RDMA_VERBS_CONGESTION`.
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

/// There is no algorithm of this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{0}\" is no congestion control; there are cubic and constant")]
pub struct UnknownAlgorithm(String);

impl FromStr for CongestionAlgorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        all.find(|algorithm| algorithm.name() == name).ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for algorithm in CongestionAlgorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "Cubic".parse::<CongestionAlgorithm>().unwrap_err();
        assert_eq!(error.to_string(), "\"Cubic\" is no congestion control; there are cubic and constant");
    }
}
