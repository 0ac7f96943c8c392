//! Whether a software device shares memory with other processes.

use std::fmt;
use std::str::FromStr;

/// Whether packets between two processes of one user on one host go through memory that both have mapped, instead of
/// sockets.
///
/// ```
/// use rdma_verbs::types::SharedMemory;
///
/// assert_eq!("off".parse(), Ok(SharedMemory::Off));
/// assert_eq!(SharedMemory::default().to_string(), "auto");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Wherever it is possible and the peer's device has it, too. Other packets go through sockets, without an error.
    #[default]
    Auto,
    /// Never: all packets go through sockets.
    Off,
}

impl SharedMemory {
    /// All settings.
    pub const ALL: &[Self] = &[Self::Auto, Self::Off];

    /// Returns its name, as in the environment variable `RDMA_VERBS_SHARED_MEMORY`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for an unknown setting of shared memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{0}\" is not a setting of shared memory; use auto or off")]
pub struct UnknownSharedMemory(String);

impl FromStr for SharedMemory {
    type Err = UnknownSharedMemory;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.iter().copied();
        all.find(|setting| setting.name() == name).ok_or_else(|| UnknownSharedMemory(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for &setting in SharedMemory::ALL {
            assert_eq!(setting.to_string().parse(), Ok(setting));
        }
        let error = "on".parse::<SharedMemory>().unwrap_err();
        assert_eq!(error.to_string(), "\"on\" is not a setting of shared memory; use auto or off");
    }
}
