//! The monitor: how other processes of this user read the statistics of this one, and capture its packets.
//!
//! Each process has one more Unix socket in the registry's folder, which other users cannot enter. A process that wants
//! statistics connects to it and gets a page, which this process refreshes while the connection is open. So a reader
//! never waits for this process, and nothing is collected without a reader. A process that wants a capture passes an
//! open file.
//!
//! The mailbox's thread answers. Nothing that arrives makes it wait: a capture, whose file may be slow, has a thread of
//! its own.

mod client;
mod codec;
mod collector;
#[cfg(feature = "sim")]
mod fuzz;
mod message;
mod page;
mod server;
mod session;
mod source;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use self::client::{CaptureNews, Failure, Finder, Found, OpenCapture, OpenWatch};
#[cfg(feature = "sim")]
pub use self::fuzz::statistics_page;
pub(crate) use self::message::{CaptureOutcome, CaptureRequest};
pub(super) use self::server::Monitor;
pub(crate) use self::source::{Monitored, Room, StartedCapture, register};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest name of a device that a message or a page has.
const MOST_NAME_BYTES: usize = 64;
