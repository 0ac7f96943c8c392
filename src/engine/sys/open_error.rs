//! The error of opening a socket, a file or a thread.

use std::{fmt, io};

/// Why a socket could not be opened: a text for people, and what the system said.
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
    /// The error with this text.
    pub(crate) fn new(message: impl fmt::Display, source: io::Error) -> Self {
        Self { message: message.to_string(), source }
    }
}
