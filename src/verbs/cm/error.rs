//! Why a connection was not set up.

use std::fmt;

use crate::provider::{RejectReason, ServiceIdStatus};
use crate::verbs::{Error, ErrorKind};

/// Why a connection, or a datagram queue pair of a peer, could not be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer refuses, or its host does because no application listens on the port.
    Rejected(Rejected),
    /// The peer does not respond.
    Unreachable(Unreachable),
    /// The deadline of the options has passed.
    TimedOut,
    /// A verb has failed on this end.
    Verb(Error),
}

/// A refusal by the peer.
#[derive(Clone, PartialEq, Eq)]
pub struct Rejected {
    pub(super) peer: std::net::SocketAddr,
    pub(super) reason: Reason,
    pub(super) private_data: Vec<u8>,
}

/// The reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// Of a connection.
    Connection(RejectReason),
    /// Of a datagram queue pair.
    Datagram(ServiceIdStatus),
}

impl Rejected {
    /// Returns the reason.
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the data of the peer's application, with zeros behind it: 148 bytes, or 136 for datagrams.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns whether no application listens on the port.
    pub fn is_no_listener(&self) -> bool {
        let connection = Reason::Connection(RejectReason::INVALID_SERVICE_ID);
        [connection, Reason::Datagram(ServiceIdStatus::UNSUPPORTED)].contains(&self.reason)
    }
}

/// The private data may contain secrets.
impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("peer", &self.peer).field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, reason, .. } = self;
        if self.is_no_listener() {
            return write!(f, "no application listens on port {} of {} ({reason})", peer.port(), peer.ip());
        }
        match reason {
            Reason::Connection(RejectReason::CONSUMER) => {
                let (port, address) = (peer.port(), peer.ip());
                write!(f, "the application on port {port} of {address} rejects the connection ({reason})")
            }
            _ => write!(f, "{peer} rejects the connection: {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(reason) => write!(f, "REJ, {reason}"),
            Self::Datagram(status) => write!(f, "SIDR_REP, {status}"),
        }
    }
}

/// A peer that does not respond.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreachable {
    pub(super) peer: std::net::SocketAddr,
    /// The name of the message without a response.
    pub(super) message: &'static str,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, message } = self;
        let address = peer.ip();
        write!(f, "{address} does not respond to {message}: is the host up, does RDMA run there, ")?;
        f.write_str("and is UDP port 4791 open in both directions?")
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::Unreachable(unreachable) => unreachable.fmt(f),
            Self::TimedOut => f.write_str("the deadline has passed before the connection was set up"),
            Self::Verb(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Verb(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        Self::Verb(error)
    }
}

/// For programs that treat all errors alike.
impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        let kind = match &error {
            ConnectError::Verb(_) => ErrorKind::System,
            ConnectError::TimedOut | ConnectError::Unreachable(_) => ErrorKind::TimedOut,
            ConnectError::Rejected(rejected) if rejected.is_no_listener() => ErrorKind::NotFound,
            ConnectError::Rejected(_) => ErrorKind::InvalidState,
        };
        match error {
            ConnectError::Verb(error) => error,
            other => Self::new("connect", kind, other.to_string()),
        }
    }
}
