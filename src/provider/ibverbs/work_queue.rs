//! The send and the receive queue of a queue pair: they stage the requests of a batch and post them to the adapter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::errors;
use super::sys;
use super::wr_tracker::{Ordered, Retained, WrTracker};
use crate::provider::{Error, ErrorKind, Result};
use crate::queue::{ProducerLock, QueueError, check_request};
use crate::types::{BatchEnd, ReceiveRequest, SendRequest, Sge};

/// One queue: its tracker, the open batch, and the lock that the posting thread holds.
pub(super) struct WorkQueue<S> {
    pub(super) tracker: Arc<WrTracker>,
    lock: ProducerLock,
    staging: Mutex<S>,
    pub(super) max_sge: u32,
}

/// A failure to post.
pub(super) enum PostError {
    /// Nothing was posted.
    Refused(Error),
    /// It is unknown which requests were posted. All of them count as posted: the queue pair must be destroyed, so that
    /// none is in flight.
    Unknown(Error),
}

/// Requests that are staged for the adapter.
pub(super) trait Staging: Default {
    /// Verb that posts them.
    const VERB: &'static str;

    fn len(&self) -> usize;
    fn clear(&mut self);
    fn post(&mut self, queue_pair: &sys::QueuePair) -> Option<Result<(), sys::PostFailure>>;
}

impl Staging for sys::SendStaging {
    const VERB: &'static str = "post_send";

    fn len(&self) -> usize {
        self.len()
    }

    fn clear(&mut self) {
        self.clear();
    }

    fn post(&mut self, queue_pair: &sys::QueuePair) -> Option<Result<(), sys::PostFailure>> {
        self.post(queue_pair)
    }
}

impl Staging for sys::ReceiveStaging {
    const VERB: &'static str = "post_recv";

    fn len(&self) -> usize {
        self.len()
    }

    fn clear(&mut self) {
        self.clear();
    }

    fn post(&mut self, queue_pair: &sys::QueuePair) -> Option<Result<(), sys::PostFailure>> {
        self.post(queue_pair)
    }
}

impl<S: Staging> WorkQueue<S> {
    pub(super) fn new(tracker: Arc<WrTracker>, max_sge: u32) -> Self {
        Self { tracker, lock: ProducerLock::new(), staging: Mutex::default(), max_sge }
    }

    /// Locks the queue for this thread.
    pub(super) fn begin(&self) {
        self.lock.acquire();
    }

    pub(super) fn tracker(&self) -> &Ordered {
        match &*self.tracker {
            WrTracker::Ordered(tracker) => tracker,
            WrTracker::Shared(_) => unreachable!("a queue pair's own queues are ordered"),
        }
    }

    /// Blocks posting while the guard lives.
    pub(super) fn pause(&self) -> impl Sized + '_ {
        self.staging()
    }

    /// Ends the batch; `allowed` returns whether it may be posted now.
    pub(super) fn end(
        &self,
        end: BatchEnd,
        queue_pair: &sys::QueuePair,
        allowed: impl FnOnce() -> Result<()>,
    ) -> Result<(), PostError> {
        self.finish(end, allowed, |staging| staging.post(queue_pair))
    }

    /// Ends the batch. The stage is locked while the batch is posted. After [`WorkQueue::pause`], each batch is
    /// therefore either posted and counted, or has not called `allowed` yet.
    fn finish(
        &self,
        end: BatchEnd,
        allowed: impl FnOnce() -> Result<()>,
        post: impl FnOnce(&mut S) -> Option<Result<(), sys::PostFailure>>,
    ) -> Result<(), PostError> {
        self.check_begun().map_err(PostError::Refused)?;
        let mut staging = self.staging();
        let count = staging.len();
        let outcome = match end {
            BatchEnd::Publish if count > 0 => allowed()
                .map_err(PostError::Refused)
                .and_then(|()| post_error(S::VERB, self.tracker(), post(&mut staging))),
            _ => Ok(()),
        };
        match (&outcome, end) {
            // Counted before the lock is released, so that the next batch does not reuse the indices of requests that
            // may be in flight.
            (Ok(()), BatchEnd::Publish) | (Err(PostError::Unknown(_)), _) => self.tracker().note_posted(count),
            _ => self.tracker().withdraw(count),
        }
        staging.clear();
        drop(staging);
        self.lock.release();
        outcome
    }

    fn staging(&self) -> MutexGuard<'_, S> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_begun(&self) -> Result<()> {
        if self.lock.is_held() { Ok(()) } else { Err(errors::from_queue(S::VERB, &QueueError::NotBegun)) }
    }

    fn check_room(&self, staged: usize) -> Result<()> {
        if self.tracker().has_room(staged) {
            return Ok(());
        }
        Err(errors::full(S::VERB, self.tracker().limit()))
    }
}

/// Converts the result of posting a batch.
fn post_error(
    verb: &'static str,
    tracker: &Ordered,
    posted: Option<Result<(), sys::PostFailure>>,
) -> Result<(), PostError> {
    let (limit, qpn) = (tracker.limit(), tracker.qpn);
    match posted {
        Some(Ok(())) => Ok(()),
        None => {
            let message = format!("queue pair {qpn} is destroyed");
            Err(PostError::Refused(Error::new(verb, ErrorKind::InvalidState, message)))
        }
        Some(Err(failure)) if failure.nothing_posted => Err(PostError::Refused(match failure.error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => errors::full(verb, limit),
            _ => errors::from_errno(verb, format!("posting to queue pair {qpn}"), &failure.error),
        })),
        Some(Err(failure)) => {
            let asked = format!("queue pair {qpn} is destroyed, because a batch may have been posted in part");
            Err(PostError::Unknown(errors::from_errno(verb, asked, &failure.error)))
        }
    }
}

impl WorkQueue<sys::SendStaging> {
    /// Copies a request into the batch.
    pub(super) fn push(
        &self,
        request: &SendRequest<'_>,
        max_inline: u32,
        target: sys::Target,
        bind: Option<(sys::Bind, Retained)>,
    ) -> Result<()> {
        self.check_begun()?;
        check_request(request, self.max_sge, max_inline).map_err(|error| errors::from_queue("post_send", &error))?;
        let mut staging = self.staging();
        self.check_room(staging.len())?;
        let (bind, held) = match (bind, &target) {
            (Some((bind, held)), _) => (Some(bind), Some(held)),
            (None, sys::Target::Datagram { handle, .. }) => (None, Some(Retained::AddressHandle(Arc::clone(handle)))),
            (None, _) => (None, None),
        };
        let number = self.tracker().enter(staging.len(), request.wr_id, held);
        staging.push(number, request, target, bind);
        Ok(())
    }

    /// Posts a request without a batch. As in [`WorkQueue::finish`], the stage is locked meanwhile.
    pub(super) fn post_unstaged(
        &self,
        request: &SendRequest<'_>,
        unstaged: sys::UnstagedRequest<'_>,
        max_inline: u32,
        queue_pair: &sys::QueuePair,
        allowed: impl FnOnce() -> Result<()>,
    ) -> Result<(), PostError> {
        let refuse = |error: QueueError| PostError::Refused(errors::from_queue("post_send", &error));
        check_request(request, self.max_sge, max_inline).map_err(refuse)?;
        if !self.lock.acquire() {
            let message = "this thread has an open batch of this queue";
            return Err(PostError::Refused(Error::new("post_send", ErrorKind::InvalidState, message)));
        }
        let mut staging = self.staging();
        let allowed = allowed().and_then(|()| self.check_room(0)).map_err(PostError::Refused);
        let outcome = allowed.and_then(|()| {
            let number = self.tracker().enter(0, request.wr_id, None);
            post_error("post_send", self.tracker(), staging.post_unstaged(number, unstaged, queue_pair))
        });
        if !matches!(outcome, Err(PostError::Refused(_))) {
            self.tracker().note_posted(1);
        }
        drop(staging);
        self.lock.release();
        outcome
    }
}

impl WorkQueue<sys::ReceiveStaging> {
    /// Copies a request into the batch.
    pub(super) fn push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        self.check_begun()?;
        check_receive(request.sges, self.max_sge).map_err(|error| errors::from_queue("post_recv", &error))?;
        let mut staging = self.staging();
        self.check_room(staging.len())?;
        let number = self.tracker().enter(staging.len(), request.wr_id, None);
        staging.push(number, request.sges);
        Ok(())
    }
}

/// Checks that a receive has at most `limit` entries.
pub(super) fn check_receive(sges: &[Sge], limit: u32) -> Result<(), QueueError> {
    if sges.len() > limit as usize {
        return Err(QueueError::TooManySges { given: sges.len(), limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Qpn;

    #[test]
    fn requests_possibly_in_flight_keep_their_indices() {
        let tracker = Arc::new(WrTracker::Ordered(Ordered::new(1, Qpn::new(1), 4, false)));
        let receives = WorkQueue::<sys::ReceiveStaging>::new(tracker, 1);
        let unknown =
            || sys::PostFailure { error: std::io::Error::from_raw_os_error(libc::EIO), nothing_posted: false };
        for (wr_id, index) in [(10, 0), (20, 1)] {
            receives.begin();
            receives.push(&ReceiveRequest { wr_id, sges: &[] }).unwrap();
            assert_eq!(receives.staging().numbers().collect::<Vec<_>>(), [1 << 32 | index]);
            let posted = receives.finish(BatchEnd::Publish, || Ok(()), |_| Some(Err(unknown())));
            assert!(matches!(posted, Err(PostError::Unknown(_))));
        }
    }
}
