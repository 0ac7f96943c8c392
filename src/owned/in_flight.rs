//! The unsafe part of the owned tier, second half: memory in flight, and when it comes back.
//!
//! [`Posted`] is a queue pair whose requests own their memory. It is the only user of that queue pair: its verbs
//! handle never leaves this module. Each of its two queues has a ledger of the memory in
//! flight, in posting order ([`super::ledger`]). Memory enters the ledger before the device gets the request, and
//! leaves it in one of these cases only:
//!
//! * a completion reports that the request is finished ([`Posted::finish_one`]). It must come from this work queue: it
//!   carries the source that the device assigned to the queue, which no other queue of the completion queue ever has,
//!   so completions of other queue pairs match nothing, whatever `wr_id` their owners choose. It must identify a
//!   request in flight: requests have the numbers by which the device counts them (from 0, continuing across RESET),
//!   and a completion's `retired` gives the number below which all are finished. A provider of this crate does not
//!   access the memory of requests that it reports as finished: its endpoints retire a request before they complete it,
//!   and cannot name a retired request's memory;
//! * RESET or destruction has returned ([`Posted::reset`], [`Posted::destroy`]): the device waits for the pass in
//!   progress, forgets everything posted, and continues to count;
//! * posting failed: the device then has nothing.
//!
//! [`PostedReceives`] is the same for a shared receive queue, which serves any number of queue pairs. Its receives
//! finish in any order, so each has a slot of its own instead of a number. It leaves the slot when its completion
//! comes, from the receive queue of the queue pair that took it; when the queue pair that had begun to fill it stops
//! receiving, and reports it; or when the queue is destroyed, which no device does while queue pairs use it.
//!
//! Until then the memory is an [`InFlight`], which gives no access to the bytes and leaks them if it is dropped. The
//! worst case of a panic between post and completion, or of a forgotten handle, is therefore a leak.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Refused;
use super::batch::PartlyPosted;
use super::finished::Finished;
use super::ledger::{OrderedLedger, UnorderedLedger};
use super::request::{CompletedLength, Request, RequestBuffer};
use crate::types::{Cause, CompletionSource, CompletionStatus, Qpn, RawCompletion};
use crate::verbs::{
    Completion, Error, ErrorKind, MemoryWindow, MemoryWindowBind, ProtectionDomain, QueuePair, QueuePairType,
    ReceiveRequest, Result, Rkey, SendBatch, SendRequest, SharedReceiveQueue, SharedReceiveQueueAttributes,
    SharedReceiveQueueOptions,
};

/// Memory that a device may be using.
struct InFlight(ManuallyDrop<RequestBuffer>);

impl InFlight {
    fn new(buffer: RequestBuffer) -> Self {
        Self(ManuallyDrop::new(buffer))
    }

    /// Returns the memory for the request to name. Nothing else is accessible in flight.
    fn request_buffer(&self) -> &RequestBuffer {
        &self.0
    }

    /// Returns the memory, to be used again.
    ///
    /// # Safety
    /// No device uses the memory, and none will for the request that it was in flight for.
    unsafe fn reclaim(self) -> RequestBuffer {
        ManuallyDrop::into_inner(self.0)
    }
}

struct Entry {
    memory: InFlight,
    wr_id: u64,
    outcome: CompletedLength,
}

/// One of the two queues of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Send,
    Receive,
}

/// A queue pair whose requests own their memory.
pub(super) struct Posted {
    qp: QueuePair,
    /// The shared queue that its receives come from, if any. It outlives the queue pair in the device.
    shared: Option<Arc<PostedReceives>>,
    send: Mutex<OrderedLedger<Entry>>,
    receive: Mutex<OrderedLedger<Entry>>,
    sources: [CompletionSource; 2],
    /// The receive of the shared queue that a message had begun to fill, until RESET or destruction has succeeded.
    begun: Mutex<Option<Finished>>,
    destroyed: AtomicBool,
}

impl Posted {
    /// Takes over a new queue pair: nothing was ever posted to it.
    pub(super) fn new(qp: QueuePair, shared: Option<Arc<PostedReceives>>) -> Self {
        let (cap, sources) = (qp.cap(), qp.completion_sources());
        let ledger = |source, limit| Mutex::new(OrderedLedger::new(source, limit));
        let (send, receive) = (ledger(sources[0], cap.max_send_wr), ledger(sources[1], cap.max_recv_wr));
        Self { qp, shared, send, receive, sources, begun: Mutex::new(None), destroyed: AtomicBool::new(false) }
    }

    /// Returns the source that the completions of a queue carry.
    pub(super) fn source(&self, side: Side) -> CompletionSource {
        match side {
            Side::Send => self.sources[0],
            Side::Receive => self.sources[1],
        }
    }

    /// Returns the shared queue that its receives come from, if any.
    pub(super) fn shared(&self) -> Option<&Arc<PostedReceives>> {
        self.shared.as_ref()
    }

    /// Returns whether each message that it receives begins with a route header.
    pub(super) fn is_datagram(&self) -> bool {
        self.qp.qp_type() == QueuePairType::UnreliableDatagram
    }

    /// Returns the queue pair, for everything but posting, RESET and destruction.
    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Posts a request. The open batch excludes other threads, so that numbers and requests have the same order. The
    /// device sees the request's number as its `wr_id`.
    #[expect(clippy::result_large_err, reason = "the request comes back by value, as it went in")]
    pub(super) fn post_send(&self, request: Request) -> Result<(), Refused<Request>> {
        let Request { buffer, settings } = request;
        let outcome = settings.outcome(&buffer);
        let memory = InFlight::new(buffer);
        let opened = (|| {
            self.check_alive("post_send")?;
            let mut batch = self.qp.send_batch()?;
            let ledger = lock(&self.send);
            check_room("post_send", &ledger)?;
            batch.push(&settings.lower(memory.request_buffer(), ledger.next_wr_id())?)?;
            Ok((ledger, batch))
        })();
        let result = match opened {
            Ok((ledger, batch)) => {
                enter_then_post(ledger, Entry { memory, wr_id: settings.wr_id, outcome }, || batch.post())
            }
            // SAFETY: the batch, if it was opened, ended without being posted: the device has nothing.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, buffer)| Refused::new(error, Request { buffer, settings }))
    }

    /// Posts requests in order with one doorbell, until one is refused, and takes the posted ones out of `requests`.
    pub(super) fn post_send_all(&self, requests: &mut Vec<Request>) -> Result<(), PartlyPosted> {
        let nothing = |error| PartlyPosted::new(0, error);
        self.check_alive("post_send").map_err(nothing)?;
        let mut batch = self.qp.send_batch().map_err(nothing)?;
        let mut ledger = lock(&self.send);
        let mut accepted = 0;
        let refused = requests.iter_mut().find_map(|request| {
            let refused = push_and_enter(&mut batch, &mut ledger, request).err();
            accepted += usize::from(refused.is_none());
            refused
        });
        if accepted > 0
            && let Err(error) = batch.post()
        {
            for request in requests[..accepted].iter_mut().rev() {
                let entry = ledger.withdraw().expect("put there just now");
                // SAFETY: the batch was refused as a whole, so the device has nothing.
                request.buffer = unsafe { entry.memory.reclaim() };
            }
            return Err(nothing(error));
        }
        drop(ledger);
        requests.drain(..accepted);
        refused.map_or(Ok(()), |error| Err(PartlyPosted::new(accepted, error)))
    }

    /// Posts the bind of a memory window: of type 2 with a tag, otherwise of type 1. Returns the window's new key. The
    /// request has no memory: the region belongs to the verbs tier, and the device looks window and region up by their
    /// keys when it executes the request, so neither must outlive it.
    pub(super) fn bind_mw(&self, window: &MemoryWindow, tag: Option<u8>, bind: &MemoryWindowBind<'_>) -> Result<Rkey> {
        self.check_alive("bind_mw")?;
        let mut batch = self.qp.send_batch()?;
        let ledger = lock(&self.send);
        check_room("bind_mw", &ledger)?;
        let (request, key) = match tag {
            Some(tag) => (SendRequest::bind_mw(window, tag, bind)?, window.rkey_with(tag)),
            None => bind.request_of_type1(window, "bind_mw_type2")?,
        };
        batch.push(&request.wr_id(ledger.next_wr_id()))?;
        let memory = InFlight::new(RequestBuffer::None);
        let entry = Entry { memory, wr_id: bind.number(), outcome: CompletedLength::Unchanged };
        let post = || enter_then_post(ledger, entry, || batch.post()).map_err(|(error, _no_memory)| error);
        match tag {
            Some(_) => post()?,
            None => window.post_bind_of_type1(key, post)?,
        }
        Ok(key)
    }

    /// Posts a receive, like [`Posted::post_send`].
    pub(super) fn post_recv(&self, buffer: RequestBuffer, wr_id: u64) -> Result<(), Refused<RequestBuffer>> {
        let memory = InFlight::new(buffer);
        let opened = (|| {
            self.check_alive("post_recv")?;
            let mut batch = self.qp.recv_batch()?;
            let ledger = lock(&self.receive);
            check_room("post_recv", &ledger)?;
            let ranges = memory.request_buffer().ranges(memory.request_buffer().capacity())?;
            batch.push(&ReceiveRequest::new(ranges).wr_id(ledger.next_wr_id()))?;
            Ok((ledger, batch))
        })();
        let result = match opened {
            Ok((ledger, batch)) => {
                enter_then_post(ledger, Entry { memory, wr_id, outcome: CompletedLength::Received }, || batch.post())
            }
            // SAFETY: as for sends.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, buffer)| Refused::new(error, buffer))
    }

    /// Takes the oldest request that `completion`, just polled from the device, finishes. Repeated calls until `None`
    /// also return the requests before the completed one, in order.
    pub(super) fn finish_one(&self, side: Side, completion: &Completion) -> Option<Finished> {
        let (source, wr_id, retired) = (completion.source(), completion.wr_id(), completion.retired());
        let (entry, is_own) = lock(self.ledger(side)).finish(source, wr_id, retired)?;
        let own = is_own.then(|| completion.renumbered(entry.wr_id));
        // SAFETY: the device completed a request of this very queue, and reports that it is finished with all requests
        // below number `retired`, and this is one of them; see the module's documentation.
        let buffer = unsafe { entry.memory.reclaim() };
        let buffer = filled(buffer, entry.outcome, own.as_ref());
        Some(Finished::new(side, entry.wr_id, self.qp.qpn(), buffer, own).datagram(self.is_datagram()))
    }

    /// Moves to the RESET state. Returns everything in flight, in order, sends first.
    ///
    /// If receives come from a shared queue, `keep` is called in between, to poll completions before the device removes
    /// them.
    pub(super) fn reset(&self, keep: impl FnOnce()) -> Result<Vec<Finished>> {
        self.check_alive("modify_qp")?;
        // While these batches are open, no thread can post.
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

    /// Destroys the queue pair in the device. Returns everything in flight, in order, sends first; nothing if it was
    /// already destroyed. `keep` is as in [`Posted::reset`].
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

    /// Takes everything in flight, a begun receive last. Only after RESET or destruction, while no thread can post.
    fn return_all(&self) -> Vec<Finished> {
        let mut returned = Vec::new();
        for side in [Side::Send, Side::Receive] {
            let mut ledger = lock(self.ledger(side));
            while let Some(entry) = ledger.take_oldest() {
                // SAFETY: the device has forgotten everything posted, and waited for the pass that might have used it;
                // nothing was posted since, because the caller holds open batches of both queues.
                let buffer = unsafe { entry.memory.reclaim() };
                let own = destroyed(entry.wr_id, self.qp.qpn());
                let buffer = filled(buffer, entry.outcome, Some(&own));
                returned.push(Finished::new(side, entry.wr_id, self.qp.qpn(), buffer, Some(own)));
            }
        }
        returned.extend(lock(&self.begun).take());
        returned
    }

    /// Returns the number of buffers in flight on a queue; 0 in a process that inherited it.
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
    /// Creates the queue. Other handles of it stay in this crate: queue pairs and their options hold them, and neither
    /// post to the queue nor resize or destroy it.
    pub(super) fn new(domain: &ProtectionDomain, max_wr: u32, options: &SharedReceiveQueueOptions) -> Result<Self> {
        let srq = domain.create_srq_with(max_wr, 1, options)?;
        let ledger = Mutex::new(UnorderedLedger::new(srq.query()?.max_wr));
        Ok(Self { srq, ledger, destroyed: AtomicBool::new(false) })
    }

    /// Returns the queue, for everything but posting, changes of size and destruction.
    pub(super) fn queue(&self) -> &SharedReceiveQueue {
        &self.srq
    }

    /// Posts a receive, like [`Posted::post_recv`].
    pub(super) fn post(&self, buffer: RequestBuffer, wr_id: u64) -> Result<(), Refused<RequestBuffer>> {
        let memory = InFlight::new(buffer);
        let opened = (|| {
            self.check_alive("post_srq_recv")?;
            let mut batch = self.srq.recv_batch()?;
            let ledger = lock(&self.ledger);
            let number = ledger.next_wr_id().ok_or_else(|| full("post_srq_recv", ledger.limit()))?;
            let ranges = memory.request_buffer().ranges(memory.request_buffer().capacity())?;
            batch.push(&ReceiveRequest::new(ranges).wr_id(number))?;
            Ok((ledger, number, batch))
        })();
        let result = match opened {
            Ok((mut ledger, number, batch)) => {
                // As in `enter_then_post`: entered before it is posted, and locked meanwhile.
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
        result.map_err(|(error, buffer)| Refused::new(error, buffer))
    }

    /// Takes the receive that `completion`, just polled from the device, finishes. Its source must be the receive queue
    /// of a queue pair that takes its receives from here; `is_datagram` specifies whether it receives datagrams.
    pub(super) fn finish(&self, completion: &Completion, is_datagram: bool) -> Option<Finished> {
        let entry = lock(&self.ledger).take(completion.wr_id())?;
        let own = completion.renumbered(entry.wr_id);
        // SAFETY: a receive completes once, after the device has finished with its memory, and this is its completion:
        // its source completes only receives of this queue, and its number is that of the memory in the slot.
        let buffer = unsafe { entry.memory.reclaim() };
        let buffer = filled(buffer, entry.outcome, Some(&own));
        Some(Finished::new(Side::Receive, entry.wr_id, completion.qpn(), buffer, Some(own)).datagram(is_datagram))
    }

    /// Takes the receive that a queue pair had begun to fill when it stopped receiving. `wr_id` is the device's.
    fn give_up(&self, wr_id: u64, qpn: Qpn) -> Option<Finished> {
        let entry = lock(&self.ledger).take(wr_id)?;
        let own = destroyed(entry.wr_id, qpn);
        // SAFETY: the device reports that it does not access the memory any more, and that the receive does not
        // complete.
        let buffer = unsafe { entry.memory.reclaim() };
        let buffer = filled(buffer, entry.outcome, Some(&own));
        Some(Finished::new(Side::Receive, entry.wr_id, qpn, buffer, Some(own)))
    }

    /// Changes size, limit or both.
    pub(super) fn modify(&self, attributes: &SharedReceiveQueueAttributes) -> Result<()> {
        self.check_alive("modify_srq")?;
        self.srq.modify(attributes)?;
        // After concurrent changes, the ledger has the size that the device ended up with.
        let mut ledger = lock(&self.ledger);
        ledger.resize(self.srq.query()?.max_wr);
        Ok(())
    }

    /// Destroys the queue in the device. Returns everything in flight, in no order; nothing if it was already
    /// destroyed.
    pub(super) fn destroy(&self) -> Result<Vec<Finished>> {
        self.srq.context().check_process("destroy_srq")?;
        // While the batch is open, no thread can post.
        let batch = self.srq.recv_batch()?;
        self.srq.destroy()?;
        self.destroyed.store(true, Ordering::Release);
        let entries = lock(&self.ledger).take_all();
        let mut returned = Vec::with_capacity(entries.len());
        for entry in entries {
            // SAFETY: the device has destroyed the queue, so no queue pair uses it: each was destroyed before, which
            // waited for the pass that might have used the memory. Nothing was posted since.
            let buffer = unsafe { entry.memory.reclaim() };
            let own = destroyed(entry.wr_id, Qpn::default());
            let buffer = filled(buffer, entry.outcome, Some(&own));
            returned.push(Finished::new(Side::Receive, entry.wr_id, Qpn::default(), buffer, Some(own)));
        }
        drop(batch);
        Ok(returned)
    }

    /// Returns the number of buffers in flight; 0 in a process that inherited it.
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
            tracing::warn!(
                target: "rdma_verbs::queue_pair",
                srq = %self.srq.number(), %error, "the buffers of a dropped shared receive queue leak"
            );
        }
    }
}

fn check_room(verb: &'static str, ledger: &OrderedLedger<Entry>) -> Result<()> {
    if ledger.has_room() { Ok(()) } else { Err(full(verb, ledger.limit())) }
}

fn full(verb: &'static str, limit: usize) -> Error {
    let message = format!("{limit} requests are in flight, as many as the queue holds; poll completions first");
    Error::new(verb, ErrorKind::QueueFull, message)
}

/// Enters memory into the ledger, then posts its batch. The ledger stays locked: a completion that arrives meanwhile is
/// processed afterwards, and an entry whose posting failed is still the newest. If posting panics, the entry stays:
/// whether or not the device has the request, no later completion returns it too early.
fn enter_then_post(
    mut ledger: MutexGuard<'_, OrderedLedger<Entry>>,
    entry: Entry,
    post: impl FnOnce() -> Result<()>,
) -> Result<(), (Error, RequestBuffer)> {
    ledger.enter(entry);
    let Err(error) = post() else { return Ok(()) };
    let entry = ledger.withdraw().expect("put there just now");
    // SAFETY: the batch was refused as a whole, so the device has nothing.
    Err((error, unsafe { entry.memory.reclaim() }))
}

/// Adds a request to an open batch, and its memory to the ledger, which stays locked until the batch is posted or its
/// memory withdrawn; [`enter_then_post`] describes the effect of a panic.
fn push_and_enter(
    batch: &mut SendBatch<'_>,
    ledger: &mut OrderedLedger<Entry>,
    Request { buffer, settings }: &mut Request,
) -> Result<()> {
    check_room("post_send", ledger)?;
    let outcome = settings.outcome(buffer);
    let memory = InFlight::new(std::mem::replace(buffer, RequestBuffer::None));
    let lowered = settings.lower(memory.request_buffer(), ledger.next_wr_id());
    match lowered.and_then(|request| batch.push(&request).map(|_| ())) {
        Ok(()) => {
            ledger.enter(Entry { memory, wr_id: settings.wr_id, outcome });
            Ok(())
        }
        Err(error) => {
            // SAFETY: the batch does not have a request that it refused, so the device never gets it.
            *buffer = unsafe { memory.reclaim() };
            Err(error)
        }
    }
}

/// Returns the completion of a request that RESET or destruction removed from the device.
fn destroyed(wr_id: u64, qpn: Qpn) -> Completion {
    let (status, cause) = (CompletionStatus::WorkRequestFlushedError, Cause::Destroyed);
    Completion::from(RawCompletion { wr_id, qpn, status, cause, ..RawCompletion::default() })
}

/// Returns the memory, with its length set to the request's result. A request without a completion succeeded.
fn filled(mut buffer: RequestBuffer, outcome: CompletedLength, own: Option<&Completion>) -> RequestBuffer {
    let result = own.map(Completion::result).transpose();
    let len = match (outcome, result) {
        (CompletedLength::Unchanged, _) => return buffer,
        (_, Err(_)) => 0,
        (CompletedLength::Filled(len), Ok(_)) => len,
        (CompletedLength::Received, Ok(Some(success))) if success.opcode == crate::types::CompletionOpcode::Receive => {
            success.byte_len as usize
        }
        (CompletedLength::Received, Ok(_)) => 0,
    };
    buffer.set_len(len.min(buffer.capacity()));
    buffer
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can panic in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
