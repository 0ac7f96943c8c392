//! Whether a software device shares memory with other processes, and the path that packets take.

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
    /// Always: a connection for which it is not possible is refused when its queue pair becomes ready to receive.
    Require,
}

impl SharedMemory {
    /// All settings.
    pub const ALL: &[Self] = &[Self::Auto, Self::Off, Self::Require];

    /// Returns its name, as in the environment variable `RDMA_VERBS_SHARED_MEMORY`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Require => "require",
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
#[error("\"{0}\" is not a setting of shared memory; use auto, off or require")]
pub struct UnknownSharedMemory(String);

impl FromStr for SharedMemory {
    type Err = UnknownSharedMemory;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.iter().copied();
        all.find(|setting| setting.name() == name).ok_or_else(|| UnknownSharedMemory(name.to_owned()))
    }
}

/// The path of a connection's packets from this end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PacketPath {
    /// Through memory that both processes have mapped.
    SharedMemory,
    /// Through UDP sockets, because memory is not shared.
    Sockets(NoSharedMemory),
}

/// Its `Display` output is a phrase that follows "packets go".
impl fmt::Display for PacketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedMemory => f.write_str("through shared memory"),
            Self::Sockets(reason) => write!(f, "through sockets: {reason}"),
        }
    }
}

/// Reason why a connection's packets do not go through shared memory. Its `Display` output is a clause.
///
/// ```
/// use rdma_verbs::types::NoSharedMemory;
///
/// assert_eq!(NoSharedMemory::OtherUser(7).to_string(), "the peer's process is of another user (7)");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoSharedMemory {
    /// This device has it switched off.
    SwitchedOff,
    /// The peer's device has it switched off.
    SwitchedOffByPeer,
    /// The peer's address is not an address of this host, or of another network namespace.
    OtherHost,
    /// A process of another user receives at the peer's address.
    OtherUser(u32),
    /// No process of this user is known to have the peer's queue pair: the peer is not ready, does not use this crate,
    /// or keeps its records where this process does not see them.
    UnknownPeer,
    /// It is being set up. If that lasts, the peer's device has not offered it: it may have it switched off.
    Pending,
    /// The peer's process has not accepted it: it has closed its device, or its system denies it what it needs.
    Refused,
    /// This process's system denies it what is needed; the text is the system's.
    System(String),
}

impl fmt::Display for NoSharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("shared memory is switched off here"),
            Self::SwitchedOffByPeer => f.write_str("the peer's device has shared memory switched off"),
            Self::OtherHost => f.write_str("the peer's address is of another host or another network namespace"),
            Self::OtherUser(user) => write!(f, "the peer's process is of another user ({user})"),
            Self::UnknownPeer => f.write_str(
                "no process of this user has announced the peer's queue pair: it is not connected yet, its program \
                 does not use this library, or it keeps its records in another /dev/shm",
            ),
            Self::Pending => f.write_str("shared memory is being set up, or the peer's device does not offer it"),
            Self::Refused => f.write_str(
                "the peer's process has not accepted shared memory: it has closed its device, or its system denies it \
                 memory or descriptors",
            ),
            Self::System(error) => write!(f, "this system denies shared memory: {error}"),
        }
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
        assert_eq!(error.to_string(), "\"on\" is not a setting of shared memory; use auto, off or require");
    }
}
