//! The send and the receive side of a queue pair: batches on their way to the adapter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::errors;
use super::ledger::{Held, Ledger, Ordered};
use super::sys;
use crate::provider::{Error, ErrorKind, Result};
use crate::queue::{ProducerLock, QueueError, check_request};
use crate::types::{BatchEnd, Qpn, ReceiveRequest, SendRequest, Sge};

/// One side: its book, the batch that is open, and who holds it.
pub(super) struct Side<S> {
    pub(super) ledger: Arc<Ledger>,
    lock: ProducerLock,
    staging: Mutex<S>,
    pub(super) max_sge: u32,
}

/// What posting came to, if not to success.
pub(super) enum Trouble {
    /// Nothing was posted.
    Refused(Error),
    /// Nobody knows what was posted: the queue pair must go, so that nothing of it is under way.
    Unknown(Error),
}

impl<S: Default> Side<S> {
    pub(super) fn new(ledger: Arc<Ledger>, max_sge: u32) -> Self {
        Self { ledger, lock: ProducerLock::new(), staging: Mutex::default(), max_sge }
    }

    /// Takes the side for this thread.
    pub(super) fn begin(&self) {
        self.lock.acquire();
    }

    pub(super) fn book(&self) -> &Ordered {
        match &*self.ledger {
            Ledger::Ordered(ledger) => ledger,
            Ledger::Shared(_) => unreachable!("a queue pair's own queues are ordered"),
        }
    }

    fn staging(&self) -> MutexGuard<'_, S> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_begun(&self, verb: &'static str) -> Result<()> {
        if self.lock.is_held() { Ok(()) } else { Err(errors::from_queue(verb, &QueueError::NotBegun)) }
    }

    fn check_room(&self, verb: &'static str, staged: usize) -> Result<()> {
        if self.book().has_room(staged) {
            return Ok(());
        }
        Err(errors::full(verb, self.book().limit()))
    }
}

/// The adapter did not take a batch.
fn trouble(
    verb: &'static str,
    limit: u32,
    posted: Option<Result<(), sys::PostFailure>>,
    qpn: Qpn,
) -> Result<(), Trouble> {
    match posted {
        Some(Ok(())) => Ok(()),
        None => {
            let message = format!("queue pair {qpn} is destroyed");
            Err(Trouble::Refused(Error::new(verb, ErrorKind::InvalidState, message)))
        }
        Some(Err(failure)) if failure.nothing_posted => Err(Trouble::Refused(match failure.error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => errors::full(verb, limit),
            _ => errors::from_errno(verb, format!("posting to queue pair {qpn}"), &failure.error),
        })),
        Some(Err(failure)) => {
            let asked = format!("queue pair {qpn} is destroyed, because a batch was taken in part at most");
            Err(Trouble::Unknown(errors::from_errno(verb, asked, &failure.error)))
        }
    }
}

impl Side<sys::SendStaging> {
    /// Whether this thread's batch has requests.
    pub(super) fn has_staged(&self) -> bool {
        self.lock.is_held() && self.staging().len() > 0
    }

    /// Copies a request into the batch.
    pub(super) fn push(
        &self,
        request: &SendRequest<'_>,
        max_inline: u32,
        target: sys::Target,
        bind: Option<(sys::Bind, Held)>,
    ) -> Result<()> {
        self.check_begun("post_send")?;
        check_request(request, self.max_sge, max_inline).map_err(|error| errors::from_queue("post_send", &error))?;
        let mut staging = self.staging();
        self.check_room("post_send", staging.len())?;
        let (bind, held) = match (bind, &target) {
            (Some((bind, held)), _) => (Some(bind), Some(held)),
            (None, sys::Target::Datagram { handle, .. }) => (None, Some(Held::AddressHandle(Arc::clone(handle)))),
            (None, _) => (None, None),
        };
        let number = self.book().enter(staging.len(), request.wr_id, held);
        staging.push(number, request, target, bind);
        Ok(())
    }

    /// Ends the batch.
    pub(super) fn end(&self, end: BatchEnd, queue_pair: &sys::QueuePair) -> Result<(), Trouble> {
        self.check_begun("post_send").map_err(Trouble::Refused)?;
        let mut staging = self.staging();
        let mut outcome = Ok(());
        if end == BatchEnd::Publish && staging.len() > 0 {
            let count = staging.len();
            let posted = staging.post(queue_pair);
            outcome = trouble("post_send", self.book().limit(), posted, self.book().qpn);
            if outcome.is_ok() {
                self.book().note_posted(count);
            }
        }
        staging.clear();
        drop(staging);
        self.lock.release();
        outcome
    }
}

impl Side<sys::ReceiveStaging> {
    /// Whether this thread's batch has requests.
    pub(super) fn has_staged(&self) -> bool {
        self.lock.is_held() && self.staging().len() > 0
    }

    /// Copies a request into the batch.
    pub(super) fn push(&self, request: &ReceiveRequest<'_>) -> Result<()> {
        self.check_begun("post_recv")?;
        check_receive(request.sges, self.max_sge).map_err(|error| errors::from_queue("post_recv", &error))?;
        let mut staging = self.staging();
        self.check_room("post_recv", staging.len())?;
        let number = self.book().enter(staging.len(), request.wr_id, None);
        staging.push(number, request.sges);
        Ok(())
    }

    /// Ends the batch.
    pub(super) fn end(&self, end: BatchEnd, limit: u32, queue_pair: &sys::QueuePair) -> Result<(), Trouble> {
        self.check_begun("post_recv").map_err(Trouble::Refused)?;
        let mut staging = self.staging();
        let mut outcome = Ok(());
        if end == BatchEnd::Publish && staging.len() > 0 {
            let count = staging.len();
            let posted = staging.post(queue_pair);
            outcome = trouble("post_recv", limit, posted, self.book().qpn);
            if outcome.is_ok() {
                self.book().note_posted(count);
            }
        }
        staging.clear();
        drop(staging);
        self.lock.release();
        outcome
    }
}

/// Whether a receive queue that takes so many entries takes these.
pub(super) fn check_receive(sges: &[Sge], limit: u32) -> Result<(), QueueError> {
    if sges.len() > limit as usize {
        return Err(QueueError::TooManySges { given: sges.len(), limit });
    }
    Ok(())
}
