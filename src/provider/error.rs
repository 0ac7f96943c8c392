//! Errors of verbs: which verb, what kind, what was requested and what is allowed.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use super::{AttributeFault, InvalidAttribute};
use crate::memory::Backing;

/// Kind of an error, for programs; the message of [`Error`] is for people.
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
    /// The wait exceeded its timeout.
    TimedOut,
    /// The other end violated the protocol of the exchange.
    Protocol,
}

/// The error of a failed verb: a message for people, and for programs the [verb](Error::verb), the [kind](Error::kind)
/// and the [attributes](Error::attributes) that were refused.
///
/// ```
/// use rdma_verbs::verbs::{self, AttributeFault};
///
/// let context = verbs::open("soft:127.0.1.115")?;
/// let most = context.query_device().max_cqe;
/// let error = context.create_cq(0).unwrap_err();
/// assert_eq!(error.to_string(), format!("create_cq: cqe is 0; allowed are 1 to {most}"));
///
/// let [refused] = error.attributes() else { panic!("one was refused") };
/// assert_eq!(refused.name(), "cqe");
/// assert_eq!(*refused.fault(), AttributeFault::OutOfRange { given: 0, allowed: 1..=most.into() });
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct Error {
    verb: &'static str,
    kind: ErrorKind,
    message: Cow<'static, str>,
    details: Option<Box<Details>>,
}

/// Boxed, because it makes results large and few errors have it.
#[derive(Debug, Default)]
struct Details {
    attributes: Vec<InvalidAttribute>,
    source: Option<std::io::Error>,
}

impl Error {
    /// Creates an error of `verb`; the message states what was requested, what is allowed and what to do.
    pub fn new(verb: &'static str, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { verb, kind, message: message.into(), details: None }
    }

    /// Adds a text to the message, such as another cause that is possible.
    #[must_use]
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        self.message = format!("{}; {note}", self.message).into();
        self
    }

    /// Adds the attributes that the message names.
    #[must_use]
    pub fn with_attributes(mut self, attributes: impl IntoIterator<Item = InvalidAttribute>) -> Self {
        let attributes: Vec<_> = attributes.into_iter().collect();
        if !attributes.is_empty() {
            self.details.get_or_insert_default().attributes.extend(attributes);
        }
        self
    }

    /// Creates the error of an attribute that is missing, not allowed, or whose value does not fit.
    pub(crate) fn of_attribute(
        verb: &'static str,
        name: impl Into<Cow<'static, str>>,
        fault: AttributeFault,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        let attribute = InvalidAttribute::new(name, fault);
        Self::new(verb, ErrorKind::InvalidArgument, message).with_attributes([attribute])
    }

    /// Creates the error of an attribute whose value does not fit, as the message states.
    pub(crate) fn unsuitable(
        verb: &'static str,
        name: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of_attribute(verb, name, AttributeFault::Unsuitable, message)
    }

    /// Creates the error of an attribute whose value is out of range, as the message states.
    pub(crate) fn out_of_range(
        verb: &'static str,
        name: impl Into<Cow<'static, str>>,
        given: impl Into<u64>,
        allowed: RangeInclusive<u64>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of_attribute(verb, name, AttributeFault::OutOfRange { given: given.into(), allowed }, message)
    }

    /// Creates an error from the operating system's `source`, which occurred during the step that `message` states.
    pub fn from_io(verb: &'static str, message: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
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
        message: impl Into<Cow<'static, str>>,
        source: std::io::Error,
    ) -> Self {
        let details = Details { attributes: Vec::new(), source: Some(source) };
        Self { verb, kind, message: message.into(), details: Some(Box::new(details)) }
    }

    /// Returns the verb that failed.
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the attributes that were refused, if the failure concerns attributes and the device reports which. The
    /// message also names them.
    pub fn attributes(&self) -> &[InvalidAttribute] {
        self.details.as_ref().map_or(&[], |details| &details.attributes)
    }

    /// Returns the operating system's error number, if the system caused the failure.
    pub fn os_error(&self) -> Option<i32> {
        self.io_error().and_then(std::io::Error::raw_os_error)
    }

    fn io_error(&self) -> Option<&std::io::Error> {
        self.details.as_ref()?.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verb, self.message)?;
        match self.io_error() {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.io_error().map(|source| source as _)
    }
}

/// A refused registration, with the memory that was to be registered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedBacking {
    /// Reason for the refusal.
    pub error: Error,
    /// The memory, unchanged.
    pub backing: Backing,
}

impl From<RefusedBacking> for Error {
    fn from(refused: RefusedBacking) -> Self {
        refused.error
    }
}

/// A refused re-registration, with the memory that was given.
#[derive(Debug)]
pub struct RefusedChange {
    /// Reason for the refusal.
    pub error: Error,
    /// The memory, as it was given.
    pub backing: Option<Backing>,
}

/// Result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;
