//! The unsafe part of the owned tier, second half: memory in flight, and the moment in which it comes back.
//!
//! [`Posted`] is a queue pair whose requests own their memory. It is the only user of that queue pair: it is built from
//! plain options, and its verbs handle never leaves this module. Each of its two queues has a ledger of what is in
//! flight, in the order of posting ([`super::ledger`]). Memory goes into the ledger before the device hears of the
//! request, and is taken out at one of these moments only:
//!
//! * a completion says that the request is finished ([`Posted::finish_one`]). It must come from this work queue: it
//!   bears the source that the device gave the queue, which no other queue of the completion queue ever has, so
//!   completions of other queue pairs fit nothing, whatever `wr_id` their owners choose. It must name a request in
//!   flight: requests have the numbers by which the device counts them (from 0, also over RESET), and a completion's
//!   `retired` says below which number all are finished. What a provider of this crate reports as finished it does not
//!   access any more: its endpoints retire a request before they complete it, and cannot name a retired request's
//!   memory;
//! * RESET or destruction returned ([`Posted::reset`], [`Posted::destroy`]): the device waits for the pass in progress,
//!   forgets everything posted, and counts on;
//! * posting failed: then the device has nothing.
//!
//! [`PostedReceives`] is the same for a shared receive queue, of which any number of queue pairs take. Its receives end
//! in any order, so each has a slot of its own instead of a number, and leaves it when its completion comes, from the
//! receive queue of whichever queue pair took it; when the queue pair that had begun to fill it stops receiving, and
//! says so; or when the queue is destroyed, which no device does while queue pairs use it.
//!
//! Until then the memory is an [`InFlight`], which has no access to the bytes, and which leaks them if it is dropped.
//! So a panic between post and completion, or a handle that is forgotten, leaks at most.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Refused;
use super::finished::Finished;
use super::ledger::{OrderedLedger, UnorderedLedger};
use super::request::{CompletedLength, Loan, Request};
use crate::types::{Cause, CompletionSource, CompletionStatus, Qpn, RawCompletion};
use crate::verbs::{
    Completion, Error, ErrorKind, QueuePair, ReceiveRequest, Result, SharedReceiveQueue, SharedReceiveQueueAttributes,
    SharedReceiveQueueBuilder,
};

/// Memory that a device may be using.
struct InFlight(ManuallyDrop<Loan>);

impl InFlight {
    fn new(loan: Loan) -> Self {
        Self(ManuallyDrop::new(loan))
    }

    /// What the request names. Nothing else can be had from memory in flight.
    fn loan(&self) -> &Loan {
        &self.0
    }

    /// The memory, to be used again.
    ///
    /// # Safety
    /// No device uses the memory, and none will for the request that it was in flight for.
    unsafe fn reclaim(self) -> Loan {
        ManuallyDrop::into_inner(self.0)
    }
}

struct Entry {
    memory: InFlight,
    wr_id: u64,
    outcome: CompletedLength,
}

/// A queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Send,
    Receive,
}

/// A queue pair whose requests own their memory.
pub(super) struct Posted {
    qp: QueuePair,
    /// Where its receives come from, if they are not its own. It outlives the queue pair in the device.
    shared: Option<Arc<PostedReceives>>,
    send: Mutex<OrderedLedger<Entry>>,
    receive: Mutex<OrderedLedger<Entry>>,
    sources: [CompletionSource; 2],
    /// The receive of the shared queue that a message had begun to fill, until RESET or destruction has succeeded.
    begun: Mutex<Option<Finished>>,
    destroyed: AtomicBool,
}

impl Posted {
    /// Takes over a queue pair that was just made: nothing was ever posted to it.
    pub(super) fn new(qp: QueuePair, shared: Option<Arc<PostedReceives>>) -> Self {
        let (cap, sources) = (qp.cap(), qp.completion_sources());
        let ledger = |source, limit| Mutex::new(OrderedLedger::new(source, limit));
        let (send, receive) = (ledger(sources[0], cap.max_send_wr), ledger(sources[1], cap.max_recv_wr));
        Self { qp, shared, send, receive, sources, begun: Mutex::new(None), destroyed: AtomicBool::new(false) }
    }

    /// What the completions of a queue bear as their source.
    pub(super) fn source(&self, side: Side) -> CompletionSource {
        match side {
            Side::Send => self.sources[0],
            Side::Receive => self.sources[1],
        }
    }

    /// Where its receives come from, if they are not its own.
    pub(super) fn shared(&self) -> Option<&Arc<PostedReceives>> {
        self.shared.as_ref()
    }

    /// For everything but posting, RESET and destruction.
    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Posts a request. The open batch keeps other threads out, so that numbers and requests stay in one order. The
    /// device sees the request's number as its `wr_id`.
    #[expect(clippy::result_large_err, reason = "the request comes back by value, as it went in")]
    pub(super) fn post_send(&self, request: Request) -> Result<(), Refused<Request>> {
        let Request { loan, settings } = request;
        let outcome = settings.outcome(&loan);
        let memory = InFlight::new(loan);
        let opened = (|| {
            self.check_alive("post_send")?;
            let mut batch = self.qp.send_batch()?;
            let ledger = lock(&self.send);
            check_room("post_send", &ledger)?;
            batch.push(&settings.lower(memory.loan(), ledger.next_wr_id())?)?;
            Ok((ledger, batch))
        })();
        let result = match opened {
            Ok((ledger, batch)) => {
                enter_then_post(ledger, Entry { memory, wr_id: settings.wr_id, outcome }, || batch.post())
            }
            // SAFETY: the batch, if it was opened, ended without being posted: the device has nothing.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, loan)| Refused::new(error, Request { loan, settings }))
    }

    /// Posts a receive, as [`Posted::post_send`].
    pub(super) fn post_recv(&self, loan: Loan, wr_id: u64) -> Result<(), Refused<Loan>> {
        let memory = InFlight::new(loan);
        let opened = (|| {
            self.check_alive("post_recv")?;
            let mut batch = self.qp.recv_batch()?;
            let ledger = lock(&self.receive);
            check_room("post_recv", &ledger)?;
            let range = memory.loan().range(memory.loan().capacity())?;
            batch.push(&ReceiveRequest::new(range).wr_id(ledger.next_wr_id()))?;
            Ok((ledger, batch))
        })();
        let result = match opened {
            Ok((ledger, batch)) => {
                enter_then_post(ledger, Entry { memory, wr_id, outcome: CompletedLength::Received }, || batch.post())
            }
            // SAFETY: as for sends.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, loan)| Refused::new(error, loan))
    }

    /// Takes the oldest request that `completion`, just polled from the device, says to be finished. Called until it
    /// gives nothing, it gives those before the completed one as well, in order.
    pub(super) fn finish_one(&self, side: Side, completion: &Completion) -> Option<Finished> {
        let (source, wr_id, retired) = (completion.source(), completion.wr_id(), completion.retired());
        let (entry, is_own) = lock(self.ledger(side)).finish(source, wr_id, retired)?;
        let own = is_own.then(|| completion.renumbered(entry.wr_id));
        // SAFETY: the device completed a request of this very queue, and says that it is finished with all requests
        // before number `retired`, of which this is one; see the module's documentation.
        let loan = unsafe { entry.memory.reclaim() };
        Some(Finished::new(side, entry.wr_id, self.qp.qpn(), filled(loan, entry.outcome, own.as_ref()), own))
    }

    /// Back to the RESET state. Everything in flight comes back, in order, sends first.
    ///
    /// `keep` is called in between if receives come from a shared queue: what has completed is to be polled then,
    /// before the device removes it.
    pub(super) fn reset(&self, keep: impl FnOnce()) -> Result<Vec<Finished>> {
        self.check_alive("modify_qp")?;
        // While these batches are open nobody posts.
        let batches = (self.qp.send_batch()?, self.qp.recv_batch()?);
        self.stop_receiving(keep)?;
        self.qp.reset()?;
        let returned = self.return_all();
        drop(batches);
        Ok(returned)
    }

    /// Takes back the receive of a shared queue that a message had begun to fill.
    fn stop_receiving(&self, keep: impl FnOnce()) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        if let Some(wr_id) = self.qp.stop_receiving()? {
            *lock(&self.begun) = shared.give_up(wr_id, self.qp.qpn());
        }
        keep();
        Ok(())
    }

    /// Takes the queue pair out of the device. Everything in flight comes back, in order, sends first. Destroying again
    /// gives nothing. `keep` as in [`Posted::reset`].
    pub(super) fn destroy(&self, keep: impl FnOnce()) -> Result<Vec<Finished>> {
        self.qp.context().check_process("destroy_qp")?;
        let batches = (self.qp.send_batch()?, self.qp.recv_batch()?);
        if self.destroyed.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        self.stop_receiving(keep)?;
        self.qp.destroy()?;
        self.destroyed.store(true, Ordering::Release);
        let returned = self.return_all();
        drop(batches);
        Ok(returned)
    }

    /// Takes everything in flight, a receive that was begun last; after RESET or destruction only, with nobody posting.
    fn return_all(&self) -> Vec<Finished> {
        let mut returned = Vec::new();
        for side in [Side::Send, Side::Receive] {
            let mut ledger = lock(self.ledger(side));
            while let Some(entry) = ledger.take_oldest() {
                // SAFETY: the device has forgotten everything posted, and waited for the pass that might have used it;
                // nothing was posted since, because the caller holds open batches of both queues.
                let loan = unsafe { entry.memory.reclaim() };
                let own = destroyed(entry.wr_id, self.qp.qpn());
                let loan = filled(loan, entry.outcome, Some(&own));
                returned.push(Finished::new(side, entry.wr_id, self.qp.qpn(), loan, Some(own)));
            }
        }
        returned.extend(lock(&self.begun).take());
        returned
    }

    /// Buffers in flight on a queue; none in a process that only inherited it.
    pub(super) fn in_flight(&self, side: Side) -> usize {
        match self.qp.context().check_process("query_qp") {
            Ok(()) => lock(self.ledger(side)).in_flight(),
            Err(_) => 0,
        }
    }

    fn ledger(&self, side: Side) -> &Mutex<OrderedLedger<Entry>> {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.receive,
        }
    }

    fn check_alive(&self, verb: &'static str) -> Result<()> {
        self.qp.context().check_process(verb)?;
        if self.destroyed.load(Ordering::Acquire) {
            let message = format!("queue pair {} is destroyed", self.qp.qpn());
            return Err(Error::new(verb, ErrorKind::InvalidState, message));
        }
        Ok(())
    }
}

/// A shared receive queue whose receives own their memory.
pub(super) struct PostedReceives {
    srq: SharedReceiveQueue,
    ledger: Mutex<UnorderedLedger<Entry>>,
    destroyed: AtomicBool,
}

impl PostedReceives {
    /// Creates the queue: nobody else ever has a handle of it.
    pub(super) fn new(builder: &SharedReceiveQueueBuilder<'_>) -> Result<Self> {
        let srq = builder.build()?;
        let ledger = Mutex::new(UnorderedLedger::new(srq.query()?.max_wr));
        Ok(Self { srq, ledger, destroyed: AtomicBool::new(false) })
    }

    /// For everything but posting, changes of size and destruction.
    pub(super) fn queue(&self) -> &SharedReceiveQueue {
        &self.srq
    }

    /// Posts a receive, as [`Posted::post_recv`].
    pub(super) fn post(&self, loan: Loan, wr_id: u64) -> Result<(), Refused<Loan>> {
        let memory = InFlight::new(loan);
        let opened = (|| {
            self.check_alive("post_srq_recv")?;
            let mut batch = self.srq.recv_batch()?;
            let ledger = lock(&self.ledger);
            let number = ledger.next_wr_id().ok_or_else(|| full("post_srq_recv", ledger.limit()))?;
            let range = memory.loan().range(memory.loan().capacity())?;
            batch.push(&ReceiveRequest::new(range).wr_id(number))?;
            Ok((ledger, number, batch))
        })();
        let result = match opened {
            Ok((mut ledger, number, batch)) => {
                // As in `enter_then_post`: there before it is posted, and locked meanwhile.
                ledger.enter(Entry { memory, wr_id, outcome: CompletedLength::Received });
                batch.post().map_err(|error| {
                    let entry = ledger.take(number).expect("put there just now");
                    // SAFETY: the batch was refused as a whole, so the device has nothing.
                    (error, unsafe { entry.memory.reclaim() })
                })
            }
            // SAFETY: the batch, if it was opened, ended without being posted: the device has nothing.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, loan)| Refused::new(error, loan))
    }

    /// Takes the receive that `completion`, just polled from the device, says to be finished. Its source must be the
    /// receive queue of a queue pair that takes its receives from here.
    pub(super) fn finish(&self, completion: &Completion) -> Option<Finished> {
        let entry = lock(&self.ledger).take(completion.wr_id())?;
        let own = completion.renumbered(entry.wr_id);
        // SAFETY: a receive completes once, after the device has ended with its memory, and this is its completion: its
        // source completes no receives but this queue's, and its number is the one that the slot's memory has.
        let loan = unsafe { entry.memory.reclaim() };
        let loan = filled(loan, entry.outcome, Some(&own));
        Some(Finished::new(Side::Receive, entry.wr_id, completion.qpn(), loan, Some(own)))
    }

    /// Takes the receive that a queue pair had begun to fill when it stopped receiving: the one of this `wr_id` of the
    /// device's.
    fn give_up(&self, wr_id: u64, qpn: Qpn) -> Option<Finished> {
        let entry = lock(&self.ledger).take(wr_id)?;
        let own = destroyed(entry.wr_id, qpn);
        // SAFETY: the device says that it does not access the memory any more, and that the receive does not complete.
        let loan = unsafe { entry.memory.reclaim() };
        let loan = filled(loan, entry.outcome, Some(&own));
        Some(Finished::new(Side::Receive, entry.wr_id, qpn, loan, Some(own)))
    }

    /// Changes size, limit or both.
    pub(super) fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()> {
        self.check_alive("modify_srq")?;
        self.srq.modify(attributes)?;
        // Two changes at once end with what the device has in the end.
        let mut ledger = lock(&self.ledger);
        ledger.resize(self.srq.query()?.max_wr);
        Ok(())
    }

    /// Takes the queue out of the device. Everything in flight comes back, in no order. Destroying again gives nothing.
    pub(super) fn destroy(&self) -> Result<Vec<Finished>> {
        self.srq.context().check_process("destroy_srq")?;
        // While the batch is open nobody posts.
        let batch = self.srq.recv_batch()?;
        self.srq.destroy()?;
        self.destroyed.store(true, Ordering::Release);
        let entries = lock(&self.ledger).take_all();
        let mut returned = Vec::with_capacity(entries.len());
        for entry in entries {
            // SAFETY: the device has destroyed the queue, so no queue pair uses it: each was destroyed before, which
            // waited for the pass that might have used the memory. Nothing was posted since.
            let loan = unsafe { entry.memory.reclaim() };
            let own = destroyed(entry.wr_id, Qpn::default());
            let loan = filled(loan, entry.outcome, Some(&own));
            returned.push(Finished::new(Side::Receive, entry.wr_id, Qpn::default(), loan, Some(own)));
        }
        drop(batch);
        Ok(returned)
    }

    /// Buffers in flight; none in a process that only inherited it.
    pub(super) fn in_flight(&self) -> usize {
        match self.srq.context().check_process("query_srq") {
            Ok(()) => lock(&self.ledger).in_flight(),
            Err(_) => 0,
        }
    }

    fn check_alive(&self, verb: &'static str) -> Result<()> {
        self.srq.context().check_process(verb)?;
        if self.destroyed.load(Ordering::Acquire) {
            let message = format!("shared receive queue {} is destroyed", self.srq.number());
            return Err(Error::new(verb, ErrorKind::InvalidState, message));
        }
        Ok(())
    }
}

impl Drop for PostedReceives {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::warn!(srq = %self.srq.number(), %error, "a dropped shared receive queue's buffers are lost");
        }
    }
}

fn check_room(verb: &'static str, ledger: &OrderedLedger<Entry>) -> Result<()> {
    if ledger.has_room() { Ok(()) } else { Err(full(verb, ledger.limit())) }
}

fn full(verb: &'static str, limit: usize) -> Error {
    let message = format!("{limit} buffers are in flight, and that is the queue's size; poll completions");
    Error::new(verb, ErrorKind::QueueFull, message)
}

/// Enters memory into the ledger, then posts the batch that it is in. The ledger stays locked: a completion that comes
/// meanwhile is looked at afterwards, and an entry whose posting failed is still the newest. If posting panics, the
/// entry stays: whether the device has the request or not, no later completion gives it back too early.
fn enter_then_post(
    mut ledger: MutexGuard<'_, OrderedLedger<Entry>>,
    entry: Entry,
    post: impl FnOnce() -> Result<()>,
) -> Result<(), (Error, Loan)> {
    ledger.enter(entry);
    let Err(error) = post() else { return Ok(()) };
    let entry = ledger.withdraw().expect("put there just now");
    // SAFETY: the batch was refused as a whole, so the device has nothing.
    Err((error, unsafe { entry.memory.reclaim() }))
}

/// What a request gets that RESET or destruction took from the device.
fn destroyed(wr_id: u64, qpn: Qpn) -> Completion {
    let (status, cause) = (CompletionStatus::WorkRequestFlushedError, Cause::Destroyed);
    Completion::from(RawCompletion { wr_id, qpn, status, cause, ..RawCompletion::default() })
}

/// The memory, with its length set to what the request made of it. Without a completion it succeeded.
fn filled(mut loan: Loan, outcome: CompletedLength, own: Option<&Completion>) -> Loan {
    let result = own.map(Completion::result).transpose();
    let len = match (outcome, result) {
        (CompletedLength::Unchanged, _) => return loan,
        (_, Err(_)) => 0,
        (CompletedLength::Filled(len), Ok(_)) => len,
        (CompletedLength::Received, Ok(Some(success))) if success.opcode == crate::types::CompletionOpcode::Receive => {
            success.byte_len as usize
        }
        (CompletedLength::Received, Ok(_)) => 0,
    };
    loan.set_len(len.min(loan.capacity()));
    loan
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can panic in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
