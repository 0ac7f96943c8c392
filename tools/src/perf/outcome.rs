//! Reasons for which a measurement fails.

use std::{fmt, io};

use rdma_verbs::verbs;

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The request does not exist or is inconsistent.
    Usage(String),
    /// A requirement is missing: why, and what to install or to allow.
    Missing(String),
    /// Ctrl-C.
    Interrupted,
    /// The reader of the output, such as `head`, has seen enough.
    OutputClosed,
    /// The other process is gone, or failed and reported so itself.
    PeerLeft,
    /// Everything else, as text.
    Failed(String),
}

impl Failure {
    /// Adds the action that failed to the message.
    pub(crate) fn while_doing(self, what: &str) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(format!("{what}: {message}")),
            other => other,
        }
    }
}

/// Returns the outcome of printing, where a closed pipe is that of the standard output.
pub(crate) fn printed(done: io::Result<()>) -> Outcome {
    done.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => error.into(),
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Missing(message) | Self::Failed(message) => f.write_str(message),
            Self::Interrupted => f.write_str("interrupted"),
            Self::OutputClosed => f.write_str("the reader of the output is gone"),
            Self::PeerLeft => f.write_str("the other process is gone"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<verbs::Error> for Failure {
    fn from(error: verbs::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Self::Failed(message.to_owned())
    }
}
