//! Errors of verbs: which verb, what kind, what was asked and what is allowed.

use std::fmt;

use crate::memory::{self, Backing};

/// Kind of an error, for programs; the text of [`Error`] is for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or attribute is wrong, missing or not allowed here.
    InvalidArgument,
    /// The object is in the wrong state for this verb.
    InvalidState,
    /// The queue has no free slot: poll completions first. Nothing was posted.
    QueueFull,
    /// A limit of the device is exhausted.
    ResourceLimit,
    /// The object is still in use; it is unchanged.
    Busy,
    /// No such device, address, GID or port.
    NotFound,
    /// The address or port is in use.
    AddressInUse,
    /// The operating system denied permission.
    PermissionDenied,
    /// The provider or device cannot do this at all.
    Unsupported,
    /// The operating system failed.
    System,
    /// Waiting took longer than allowed.
    TimedOut,
    /// The other end violated the protocol of the exchange.
    Protocol,
}

/// The error of a failed verb.
///
/// ```
/// use rdma_verbs::provider::{Error, ErrorKind};
///
/// let error = Error::new("create_cq", ErrorKind::InvalidArgument, "cqe is 0; allowed are 1 to 65536");
/// assert_eq!(error.to_string(), "create_cq: cqe is 0; allowed are 1 to 65536");
/// ```
#[derive(Debug)]
pub struct Error {
    verb: &'static str,
    kind: ErrorKind,
    message: String,
    source: Option<std::io::Error>,
}

impl Error {
    /// Creates an error of `verb`; the message says what was asked, what is allowed and what to do.
    pub fn new(verb: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { verb, kind, message: message.into(), source: None }
    }

    /// Creates an error from the operating system's `source`, which occurred while doing what `message` says.
    pub fn from_io(verb: &'static str, message: impl Into<String>, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::AddressInUse,
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            std::io::ErrorKind::NotFound | std::io::ErrorKind::AddrNotAvailable => ErrorKind::NotFound,
            std::io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            _ => ErrorKind::System,
        };
        Self::from_source(verb, kind, message, source)
    }

    /// Creates an error like [`Error::from_io`], with an explicit kind.
    pub fn from_source(
        verb: &'static str,
        kind: ErrorKind,
        message: impl Into<String>,
        source: std::io::Error,
    ) -> Self {
        Self { verb, kind, message: message.into(), source: Some(source) }
    }

    /// Returns the verb that failed.
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the operating system's error number, if the system caused the failure.
    pub fn os_error(&self) -> Option<i32> {
        self.source.as_ref().and_then(std::io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verb, self.message)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// A refused registration, with the memory that was to be registered.
pub type RefusedBacking = memory::RefusedBacking<Error>;

impl From<RefusedBacking> for Error {
    fn from(refused: RefusedBacking) -> Self {
        refused.error
    }
}

/// A refused re-registration, with the memory that was given.
#[derive(Debug)]
pub struct RefusedChange {
    /// Why it was refused.
    pub error: Error,
    /// The memory, as it was given.
    pub backing: Option<Backing>,
}

/// Result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;
