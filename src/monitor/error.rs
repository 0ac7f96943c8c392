//! Errors of watching and capturing other processes.

use std::io;
use std::time::Duration;

use crate::engine::Failure;

/// Result of watching or capturing another process.
pub type Result<T> = std::result::Result<T, MonitorError>;

/// Reason why a process cannot be watched, or its packets not be captured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The process has ended, or has closed its last device.
    #[error("process {process} has ended, or has closed its software devices")]
    Ended {
        /// ID of the process.
        process: u32,
    },
    /// There is no process of this user with this ID that has a software device in use.
    #[error(
        "process {process} is no process of this user with a software device in use: it does not exist, belongs to \
         another user, does not use this library, or has no queue pair or listener yet"
    )]
    NotFound {
        /// The ID that was asked for.
        process: u32,
    },
    /// The process belongs to another user.
    #[error("process {process} belongs to user {user}; only that user can watch it")]
    OtherUser {
        /// ID of the process.
        process: u32,
        /// Its user.
        user: u32,
    },
    /// The process has more privileges than the user who started it, or is protected from being traced.
    #[error(
        "process {process} refuses: it has more privileges than the user who started it (setuid, setgid, \
         capabilities), or is protected from being traced"
    )]
    Privileged {
        /// ID of the process.
        process: u32,
    },
    /// The process uses another version of this library, with other statistics.
    #[error("process {process} uses another version of the library; use the program of the same version")]
    OtherVersion {
        /// ID of the process.
        process: u32,
    },
    /// The process has as many watchers or captures as it accepts.
    #[error("process {process} refuses: {reason}")]
    TooMany {
        /// ID of the process.
        process: u32,
        /// The limit that is reached.
        reason: String,
    },
    /// The process did not answer in time.
    #[error("process {process} does not answer within {} s: it is probably stopped", .timeout.as_secs_f32())]
    NoAnswer {
        /// ID of the process.
        process: u32,
        /// Time for which it was waited.
        timeout: Duration,
    },
    /// The process refuses the request, with its reason.
    #[error("process {process} refuses: {reason}")]
    Refused {
        /// ID of the process.
        process: u32,
        /// Its reason, in words.
        reason: String,
    },
    /// The interval is not allowed.
    #[error("the interval is {} s; allowed are 0.1 s to 10 s", .given.as_secs_f32())]
    Interval {
        /// The interval that was asked for.
        given: Duration,
    },
    /// Something that the process sent or exported is malformed.
    #[error("process {process} sent something that is not understood")]
    Malformed {
        /// ID of the process.
        process: u32,
    },
    /// The system refused something.
    #[error("{action}: {source}")]
    System {
        /// The attempt that failed.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Explains why a process cannot be watched.
pub(super) fn explain(process: u32, timeout: Duration, failure: Failure) -> MonitorError {
    match failure {
        Failure::Ended => MonitorError::Ended { process },
        Failure::OtherUser(user) => MonitorError::OtherUser { process, user },
        Failure::Protected => MonitorError::Privileged { process },
        Failure::OtherVersion => MonitorError::OtherVersion { process },
        Failure::TooMany(reason) => MonitorError::TooMany { process, reason },
        Failure::Refused(reason) => MonitorError::Refused { process, reason },
        Failure::NoAnswer => MonitorError::NoAnswer { process, timeout },
        Failure::Malformed => MonitorError::Malformed { process },
        Failure::System(action, source) => MonitorError::System { action, source },
    }
}
