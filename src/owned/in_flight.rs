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
//! Until then the memory is an [`InFlight`], which has no access to the bytes, and which leaks them if it is dropped.
//! So a panic between post and completion, or a handle that is forgotten, leaks at most.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Refused;
use super::finished::Finished;
use super::request::{Loan, Outcome, Request};
use crate::types::{Cause, CompletionStatus, RawCompletion};
use crate::verbs::{Completion, Error, ErrorKind, QueuePair, ReceiveRequest, Result};

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
    send: Mutex<Ring>,
    receive: Mutex<Ring>,
    destroyed: AtomicBool,
}

impl Posted {
    /// Takes over a queue pair that was just made: nothing was ever posted to it.
    pub(super) fn new(qp: QueuePair) -> Self {
        let cap = qp.cap();
        let (send, receive) = (Ring::new(cap.max_send_wr), Ring::new(cap.max_recv_wr));
        Self { qp, send: Mutex::new(send), receive: Mutex::new(receive), destroyed: AtomicBool::new(false) }
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
    pub(super) fn reset(&self) -> Result<Vec<Finished>> {
        self.check_alive("modify_qp")?;
        // While these batches are open nobody posts.
        let batches = (self.qp.send_batch()?, self.qp.recv_batch()?);
        self.qp.reset()?;
        let returned = self.return_all();
        drop(batches);
        Ok(returned)
    }

    /// Takes the queue pair out of the device. Everything in flight comes back, in order, sends first. Destroying again
    /// gives nothing.
    pub(super) fn destroy(&self) -> Result<Vec<Finished>> {
        self.qp.context().check_process("destroy_qp")?;
        let batches = (self.qp.send_batch()?, self.qp.recv_batch()?);
        self.qp.destroy()?;
        self.destroyed.store(true, Ordering::Release);
        let returned = self.return_all();
        drop(batches);
        Ok(returned)
    }

    /// Takes everything in flight; after RESET or destruction only, with nobody posting.
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
fn destroyed(wr_id: u64, qpn: crate::types::Qpn) -> Completion {
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

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // Nothing under these locks can panic in the middle of a change.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
