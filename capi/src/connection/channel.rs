//! Event channels.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_verbs::provider::abi::cm::EventChannel;

use super::event::Queued;
use super::id::Id;
use crate::error::{INVALID, Result, last_errno, pointer};
use crate::object::{Object, make, own, take};
use crate::settings::settings;

/// The events of a channel that the program has not read, oldest first.
///
/// They are bounded: an identifier has a bounded number of them, and a listener one ([`Id`]).
pub(crate) struct Queue {
    waiting: Mutex<VecDeque<Queued>>,
    /// A semaphore whose count is the number of events: readable exactly while there are any, and each event is an
    /// edge.
    count: OwnedFd,
    /// The process that has created the channel. A forked child may have inherited the locks taken.
    process: u32,
}

impl Object for EventChannel {
    type Own = Arc<Queue>;
}

impl Queue {
    pub(super) fn new() -> Result<Arc<Self>> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: a new descriptor with no other owner.
        let count = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Self { waiting: Mutex::default(), count, process: std::process::id() }))
    }

    /// Returns the descriptor.
    pub(super) fn fd(&self) -> i32 {
        self.count.as_raw_fd()
    }

    /// Fails in a process that inherited the channel.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() { Ok(()) } else { Err(INVALID) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Queued>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events.
    pub(super) fn push(&self, events: impl IntoIterator<Item = Queued>) {
        let mut waiting = self.lock();
        let before = waiting.len();
        waiting.extend(events);
        let added = (waiting.len() - before) as u64;
        if added > 0 {
            // SAFETY: reads a local number.
            let _ = unsafe { libc::write(self.fd(), (&raw const added).cast(), size_of::<u64>()) };
        }
    }

    /// Takes the oldest event. Its identifier cannot be destroyed until it is acknowledged.
    pub(super) fn pop(&self) -> Option<Queued> {
        let mut waiting = self.lock();
        let taken = waiting.pop_front()?;
        self.lower(1);
        taken.id.note_reported();
        Some(taken)
    }

    /// Returns whether an event of an identifier waits.
    pub(super) fn has_event_of(&self, id: &Id) -> bool {
        self.lock().iter().any(|queued| std::ptr::eq(&*queued.id, id))
    }

    /// Removes the events of an identifier that `is_meant` selects.
    pub(super) fn remove(&self, id: &Id, is_meant: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let mut waiting = self.lock();
        let all = std::mem::take(&mut *waiting);
        let (removed, kept): (Vec<Queued>, Vec<Queued>) =
            all.into_iter().partition(|queued| std::ptr::eq(&*queued.id, id) && is_meant(queued));
        *waiting = kept.into();
        self.lower(removed.len());
        removed
    }

    /// Lowers the semaphore, which counts the events that were just taken.
    fn lower(&self, count: usize) {
        for _ in 0..count {
            let mut entry = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            let mut one = 0_u64;
            // SAFETY: one local structure and one local number. The read does not block, because it is readable; it is
            // not if the program has read it itself.
            unsafe {
                if libc::poll(&raw mut entry, 1, 0) == 1 && entry.revents & libc::POLLIN != 0 {
                    libc::read(self.fd(), (&raw mut one).cast(), size_of::<u64>());
                }
            }
        }
    }
}

/// Creates a channel that the program sees.
pub(super) fn create() -> Result<*mut EventChannel> {
    let queue = Queue::new()?;
    Ok(make(EventChannel { fd: queue.fd() }, queue))
}

/// Returns the queue of a channel.
///
/// # Safety
/// `channel` is null or the program's.
pub(super) unsafe fn queue_of<'a>(channel: *mut EventChannel) -> Result<&'a Arc<Queue>> {
    if channel.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let queue = unsafe { own(channel) };
    queue.check_process()?;
    Ok(queue)
}

/// Closes a channel.
///
/// # Safety
/// `channel` is the program's, or that of an identifier; nothing uses it afterwards.
pub(super) unsafe fn destroy(channel: *mut EventChannel) {
    // SAFETY: the caller's promise.
    drop(unsafe { take(channel) });
}

pub(super) unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    // The log shows why the first call fails.
    settings();
    pointer(create())
}

pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    if !channel.is_null() {
        // SAFETY: the program gives it up.
        unsafe { destroy(channel) };
    }
}
