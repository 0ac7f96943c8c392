//! Waiting for a connection, while a silent host is examined.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rdma_verbs::verbs;
use rdma_verbs::verbs::cm::{ConnectError, Route};

use super::probe::{self, Presence};
use crate::common::is_interrupted;

/// A host that does not respond for this time is examined.
const PATIENCE: Duration = Duration::from_millis(300);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Why there is no session.
pub(super) enum Failure {
    /// The attempt failed; and what is known about the host.
    Connect(Box<(ConnectError, Option<Presence>)>),
    /// The options do not fit the path.
    Usage(String),
    Interrupted,
    Failed(String),
}

impl Failure {
    pub(super) fn connect(error: ConnectError, presence: Option<Presence>) -> Self {
        Self::Connect(Box::new((error, presence)))
    }
}

impl From<verbs::Error> for Failure {
    fn from(error: verbs::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Waits for the outcome of an attempt until the deadline, or until the host's kernel says that there is nothing.
pub(super) fn settle<T>(
    mut pending: impl Future<Output = Result<T, ConnectError>> + Unpin,
    route: &Route,
    deadline: Instant,
) -> Result<T, Failure> {
    let begin = Instant::now();
    let (mut probe, mut presence) = (None, None);
    loop {
        match Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(connected)) => return Ok(connected),
            Poll::Ready(Err(error)) => return Err(Failure::connect(error, presence)),
            Poll::Pending => {}
        }
        if is_interrupted() {
            return Err(Failure::Interrupted);
        }
        if probe.is_none() && begin.elapsed() > PATIENCE {
            probe = Some(probe::start(route.local_addr().ip(), route.remote_addr().ip()));
        }
        presence = presence.or_else(|| probe.as_ref().and_then(|probe| probe.try_recv().ok()));
        let is_vain = matches!(presence, Some(Presence::PortClosed | Presence::Unreachable));
        if is_vain || Instant::now() > deadline {
            return Err(Failure::connect(ConnectError::TimedOut, presence));
        }
        std::thread::sleep(PAUSE);
    }
}
