//! The error of opening a socket, a file or a thread.

use std::{fmt, io};

/// Error of opening a socket, a file or a thread: a message for users, and the system's error.
#[derive(Debug)]
pub(crate) struct OpenError {
    pub(crate) message: String,
    pub(crate) source: io::Error,
}

impl From<io::Error> for OpenError {
    fn from(source: io::Error) -> Self {
        Self { message: "the address cannot be shared with this user's other processes".to_owned(), source }
    }
}

impl OpenError {
    /// Returns an error with this message.
    pub(crate) fn new(message: impl fmt::Display, source: io::Error) -> Self {
        Self { message: message.to_string(), source }
    }
}
