//! The unsafe part of the owned tier, second half: memory in flight, and the moment in which it comes back.
//!
//! [`Posted`] is a queue pair whose requests own their memory. It is the only user of that queue pair: nobody else
//! posts to it. Each of its two queues has a ring of what is in flight, in the order of posting, made at creation.
//! Memory goes into the ring before the device hears of the request, and is taken out at one of these moments only:
//!
//! * a completion says that the request is finished ([`Posted::finish_one`]). Requests have the numbers by which the
//!   device counts them (from 0, also over RESET), and a completion's `retired` says below which number all are
//!   finished. What a provider of this crate reports as finished it does not access any more: its endpoints retire a
//!   request before they complete it, and cannot name a retired request's memory;
//! * RESET or destruction returned ([`Posted::reset`], [`Posted::destroy`]): the device waits for the pass in progress,
//!   forgets everything posted, and counts on;
//! * posting failed: then the device has nothing.
//!
//! [`PostedReceives`] is the same for a shared receive queue, of which any number of queue pairs take. Its receives end
//! in any order, so each has a place of its own instead of a number, and leaves it when its completion comes, whichever
//! queue pair took it; when the queue pair that had begun to fill it stops receiving, and says so; or when the queue is
//! destroyed, which no device does while queue pairs use it.
//!
//! Until then the memory is an [`InFlight`], which has no access to the bytes, and which leaks them if it is dropped.
//! So a panic between post and completion, or a handle that is forgotten, leaks at most.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Refused;
use super::finished::Finished;
use super::request::{Loan, Outcome, Request};
use crate::types::{Cause, CompletionStatus, Qpn, RawCompletion};
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
    outcome: Outcome,
}

/// What is in flight on one queue, oldest first.
struct Ring {
    entries: VecDeque<Entry>,
    limit: usize,
    /// The device's number of the oldest.
    first: u32,
}

impl Ring {
    fn new(limit: u32) -> Self {
        Self { entries: VecDeque::with_capacity(limit as usize), limit: limit as usize, first: 0 }
    }

    /// The device's number of the next request.
    fn next(&self) -> u32 {
        self.first.wrapping_add(self.entries.len() as u32)
    }

    fn pop(&mut self) -> Option<(u32, Entry)> {
        let entry = self.entries.pop_front()?;
        let number = self.first;
        self.first = number.wrapping_add(1);
        Some((number, entry))
    }

    fn check_room(&self, verb: &'static str) -> Result<()> {
        if self.entries.len() < self.limit {
            return Ok(());
        }
        let message = format!("{} buffers are in flight, and that is the queue's size; poll completions", self.limit);
        Err(Error::new(verb, ErrorKind::QueueFull, message))
    }
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
    send: Mutex<Ring>,
    receive: Mutex<Ring>,
    /// The receive of the shared queue that a message had begun to fill, until RESET or destruction has succeeded.
    begun: Mutex<Option<Finished>>,
    destroyed: AtomicBool,
}

impl Posted {
    /// Takes over a queue pair that was just made: nothing was ever posted to it.
    pub(super) fn new(qp: QueuePair, shared: Option<Arc<PostedReceives>>) -> Self {
        let cap = qp.cap();
        let (send, receive) = (Ring::new(cap.max_send_wr), Ring::new(cap.max_recv_wr));
        let (send, receive, begun) = (Mutex::new(send), Mutex::new(receive), Mutex::new(None));
        Self { qp, shared, send, receive, begun, destroyed: AtomicBool::new(false) }
    }

    /// Where its receives come from, if they are not its own.
    pub(super) fn shared(&self) -> Option<&Arc<PostedReceives>> {
        self.shared.as_ref()
    }

    /// For everything but posting, RESET and destruction.
    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Posts a request. The open batch keeps other threads out, so that numbers and requests stay in one order. Its
    /// number at the device is the lower half of the `wr_id` that the device sees; `tag` is the upper one.
    #[expect(clippy::result_large_err, reason = "the request comes back by value, as it went in")]
    pub(super) fn post_send(&self, tag: u32, request: Request) -> Result<(), Refused<Request>> {
        let Request { loan, settings } = request;
        let outcome = settings.outcome(&loan);
        let memory = InFlight::new(loan);
        let opened = (|| {
            self.check_alive("post_send")?;
            let mut batch = self.qp.send_batch()?;
            let ring = lock(&self.send);
            ring.check_room("post_send")?;
            batch.push(&settings.lower(memory.loan(), device_wr_id(tag, ring.next()))?)?;
            Ok((ring, batch))
        })();
        let result = match opened {
            Ok((ring, batch)) => {
                ring_then_post(ring, Entry { memory, wr_id: settings.wr_id, outcome }, || batch.post())
            }
            // SAFETY: the batch, if it was opened, ended without being posted: the device has nothing.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, loan)| Refused::new(error, Request { loan, settings }))
    }

    /// Posts a receive, as [`Posted::post_send`].
    pub(super) fn post_recv(&self, tag: u32, loan: Loan, wr_id: u64) -> Result<(), Refused<Loan>> {
        let memory = InFlight::new(loan);
        let opened = (|| {
            self.check_alive("post_recv")?;
            let mut batch = self.qp.recv_batch()?;
            let ring = lock(&self.receive);
            ring.check_room("post_recv")?;
            let range = memory.loan().range(memory.loan().capacity())?;
            batch.push(&ReceiveRequest::new(range).wr_id(device_wr_id(tag, ring.next())))?;
            Ok((ring, batch))
        })();
        let result = match opened {
            Ok((ring, batch)) => {
                ring_then_post(ring, Entry { memory, wr_id, outcome: Outcome::Received }, || batch.post())
            }
            // SAFETY: as for sends.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, loan)| Refused::new(error, loan))
    }

    /// Takes the oldest request that `completion`, just polled from the device, says to be finished. Called until it
    /// gives nothing, it gives those before the completed one as well, in order.
    pub(super) fn finish_one(&self, side: Side, completion: &Completion) -> Option<Finished> {
        let mut ring = lock(self.ring(side));
        let finished = completion.retired().wrapping_sub(ring.first) as i32;
        // Of what RESET gave back already, the number lies behind.
        if finished <= 0 {
            return None;
        }
        let (number, entry) = ring.pop()?;
        drop(ring);
        let own = (number == completion.wr_id() as u32).then(|| completion.renumbered(entry.wr_id));
        // SAFETY: the device says that requests before number `retired` are finished, and this one is; see the module's
        // documentation.
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
            let mut ring = lock(self.ring(side));
            while let Some((_, entry)) = ring.pop() {
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
            Ok(()) => lock(self.ring(side)).entries.len(),
            Err(_) => 0,
        }
    }

    fn ring(&self, side: Side) -> &Mutex<Ring> {
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

/// The receives of a shared queue that are in flight, each in its place.
struct Places {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Buffers in flight at most; there may be more places after the queue was made smaller.
    limit: usize,
}

impl Places {
    fn new(limit: u32) -> Self {
        let mut places = Self { entries: Vec::new(), free: Vec::new(), limit: 0 };
        places.resize(limit);
        places
    }

    fn resize(&mut self, limit: u32) {
        self.limit = limit as usize;
        let before = self.entries.len();
        if before < self.limit {
            self.entries.resize_with(self.limit, || None);
            // Room for all, so that no return of a place allocates.
            self.free.reserve_exact(self.limit - self.free.len());
            self.free.extend((before as u32..limit).rev());
        }
    }

    fn in_flight(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// A place for one more.
    fn find(&self) -> Result<u32> {
        match self.free.last() {
            Some(&place) if self.in_flight() < self.limit => Ok(place),
            _ => {
                let message =
                    format!("{} buffers are in flight, and that is the queue's size; poll completions", self.limit);
                Err(Error::new("post_srq_recv", ErrorKind::QueueFull, message))
            }
        }
    }

    fn take(&mut self, place: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(entry)
    }
}

/// Tags of shared queues, apart from those of queue pairs; each is used once in the life of the process, so a late
/// completion never meets a queue that it does not belong to.
const SHARED_TAGS: u32 = 1 << 31;
static NEXT_SHARED_TAG: AtomicU32 = AtomicU32::new(SHARED_TAGS);

/// A shared receive queue whose receives own their memory.
pub(super) struct PostedReceives {
    srq: SharedReceiveQueue,
    places: Mutex<Places>,
    tag: u32,
    destroyed: AtomicBool,
}

impl PostedReceives {
    /// Creates the queue: nobody else ever has a handle of it.
    pub(super) fn new(builder: &SharedReceiveQueueBuilder<'_>) -> Result<Self> {
        if builder.is_for_xrc() {
            let message = "xrc is set; the owned tier has no targets of extended reliable connections";
            return Err(Error::new("create_srq", ErrorKind::Unsupported, message));
        }
        let next = |tag: u32| tag.checked_add(1);
        let tag = NEXT_SHARED_TAG.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
            let message = "this process has made 2^31 shared receive queues of the owned tier; no more are possible";
            Error::new("create_srq", ErrorKind::ResourceLimit, message)
        })?;
        let srq = builder.build()?;
        let places = Mutex::new(Places::new(srq.query()?.max_wr));
        Ok(Self { srq, places, tag, destroyed: AtomicBool::new(false) })
    }

    /// For everything but posting, changes of size and destruction.
    pub(super) fn queue(&self) -> &SharedReceiveQueue {
        &self.srq
    }

    /// What the completions of its receives carry.
    pub(super) fn tag(&self) -> u32 {
        self.tag
    }

    /// Posts a receive, as [`Posted::post_recv`].
    pub(super) fn post(&self, loan: Loan, wr_id: u64) -> Result<(), Refused<Loan>> {
        let memory = InFlight::new(loan);
        let opened = (|| {
            self.check_alive("post_srq_recv")?;
            let mut batch = self.srq.recv_batch()?;
            let places = lock(&self.places);
            let place = places.find()?;
            let range = memory.loan().range(memory.loan().capacity())?;
            batch.push(&ReceiveRequest::new(range).wr_id(device_wr_id(self.tag, place)))?;
            Ok((places, place, batch))
        })();
        let result = match opened {
            Ok((mut places, place, batch)) => {
                // As with rings: there before it is posted, and locked meanwhile.
                places.free.pop();
                places.entries[place as usize] = Some(Entry { memory, wr_id, outcome: Outcome::Received });
                batch.post().map_err(|error| {
                    let entry = places.take(place).expect("put there just now");
                    // SAFETY: the batch was refused as a whole, so the device has nothing.
                    (error, unsafe { entry.memory.reclaim() })
                })
            }
            // SAFETY: the batch, if it was opened, ended without being posted: the device has nothing.
            Err(error) => Err((error, unsafe { memory.reclaim() })),
        };
        result.map_err(|(error, loan)| Refused::new(error, loan))
    }

    /// Takes the receive that `completion`, just polled from the device, says to be finished. To be called once for
    /// each completion: its place may be in use again afterwards.
    pub(super) fn finish(&self, completion: &Completion) -> Option<Finished> {
        let entry = lock(&self.places).take(completion.wr_id() as u32)?;
        let own = completion.renumbered(entry.wr_id);
        // SAFETY: a receive completes once, after the device has ended with its memory, and this is its completion: it
        // carries the tag, which no other queue has, and the place, which it had until now.
        let loan = unsafe { entry.memory.reclaim() };
        let loan = filled(loan, entry.outcome, Some(&own));
        Some(Finished::new(Side::Receive, entry.wr_id, completion.qpn(), loan, Some(own)))
    }

    /// Takes the receive that a queue pair had begun to fill when it stopped receiving: the one of this `wr_id` of the
    /// device's.
    fn give_up(&self, wr_id: u64, qpn: Qpn) -> Option<Finished> {
        if (wr_id >> 32) as u32 != self.tag {
            return None;
        }
        let entry = lock(&self.places).take(wr_id as u32)?;
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
        let mut places = lock(&self.places);
        places.resize(self.srq.query()?.max_wr);
        Ok(())
    }

    /// Takes the queue out of the device. Everything in flight comes back, in no order. Destroying again gives nothing.
    pub(super) fn destroy(&self) -> Result<Vec<Finished>> {
        self.srq.context().check_process("destroy_srq")?;
        // While the batch is open nobody posts.
        let batch = self.srq.recv_batch()?;
        self.srq.destroy()?;
        self.destroyed.store(true, Ordering::Release);
        let mut places = lock(&self.places);
        let mut returned = Vec::with_capacity(places.in_flight());
        for place in 0..places.entries.len() as u32 {
            let Some(entry) = places.take(place) else { continue };
            // SAFETY: the device has destroyed the queue, so no queue pair uses it: each was destroyed before, which
            // waited for the pass that might have used the memory. Nothing was posted since.
            let loan = unsafe { entry.memory.reclaim() };
            let own = destroyed(entry.wr_id, Qpn::default());
            let loan = filled(loan, entry.outcome, Some(&own));
            returned.push(Finished::new(Side::Receive, entry.wr_id, Qpn::default(), loan, Some(own)));
        }
        drop(places);
        drop(batch);
        Ok(returned)
    }

    /// Buffers in flight; none in a process that only inherited it.
    pub(super) fn in_flight(&self) -> usize {
        match self.srq.context().check_process("query_srq") {
            Ok(()) => lock(&self.places).in_flight(),
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

/// Puts an entry into the ring, then posts the batch that it is in. The ring stays locked: a completion that comes
/// meanwhile is looked at afterwards, and an entry whose posting failed is still the newest. If posting panics, the
/// entry stays, so that the numbers stay right whether the device has it or not.
fn ring_then_post(
    mut ring: MutexGuard<'_, Ring>,
    entry: Entry,
    post: impl FnOnce() -> Result<()>,
) -> Result<(), (Error, Loan)> {
    ring.entries.push_back(entry);
    let Err(error) = post() else { return Ok(()) };
    let entry = ring.entries.pop_back().expect("put there just now");
    // SAFETY: the batch was refused as a whole, so the device has nothing.
    Err((error, unsafe { entry.memory.reclaim() }))
}

/// The `wr_id` that the device sees.
fn device_wr_id(tag: u32, number: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(number)
}

/// What a request gets that RESET or destruction took from the device.
fn destroyed(wr_id: u64, qpn: Qpn) -> Completion {
    let (status, cause) = (CompletionStatus::WorkRequestFlushedError, Cause::Destroyed);
    Completion::from(RawCompletion { wr_id, qpn, status, cause, ..RawCompletion::default() })
}

/// The memory, with its length set to what the request made of it. Without a completion it succeeded.
fn filled(mut loan: Loan, outcome: Outcome, own: Option<&Completion>) -> Loan {
    let result = own.map(Completion::result).transpose();
    let len = match (outcome, result) {
        (Outcome::Unchanged, _) => return loan,
        (_, Err(_)) => 0,
        (Outcome::Filled(len), Ok(_)) => len,
        (Outcome::Received, Ok(Some(success))) if success.opcode == crate::types::CompletionOpcode::Receive => {
            success.byte_len as usize
        }
        (Outcome::Received, Ok(_)) => 0,
    };
    loan.set_len(len.min(loan.capacity()));
    loan
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can panic in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
