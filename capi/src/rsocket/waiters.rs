//! Threads that wait for a socket. Each thread has a descriptor of its own, which others make readable: the descriptors
//! of the objects below a socket are consumed by one thread, and must wake all.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Result, last_errno};

/// A thread's descriptor.
pub(super) struct Signal {
    descriptor: OwnedFd,
    /// Set after the descriptor was made readable, so that one that is not needs no system call. A thread that misses
    /// it wakes once more.
    is_raised: AtomicBool,
}

thread_local! {
    static OWN: std::cell::RefCell<Option<Arc<Signal>>> = const { std::cell::RefCell::new(None) };
}

impl Signal {
    /// Creates one that belongs to no thread.
    pub(super) fn create() -> Result<Arc<Self>> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: a new descriptor with no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(Self { descriptor, is_raised: AtomicBool::new(false) }))
    }

    /// Returns the calling thread's. A thread that ends has none left, and gets one for the call.
    pub(super) fn of_thread() -> Result<Arc<Self>> {
        let own = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            match &*own {
                Some(signal) => Ok(Arc::clone(signal)),
                None => Ok(Arc::clone(own.insert(Self::create()?))),
            }
        });
        own.unwrap_or_else(|_| Self::create())
    }

    pub(super) fn fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Makes it readable.
    pub(super) fn raise(&self) {
        let one = 1_u64;
        // SAFETY: reads a local number. It fails only if the count is at its maximum, and the descriptor readable.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), size_of::<u64>()) };
        self.is_raised.store(true, Ordering::Release);
    }

    /// Makes it unreadable.
    pub(super) fn clear(&self) {
        if !self.is_raised.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut count = 0_u64;
        // SAFETY: writes a local number, and does not block.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

/// The threads that wait for a socket. A thread that is cancelled leaves an entry, which has no thread.
#[derive(Default)]
pub(super) struct Waiters(Mutex<Vec<Weak<Signal>>>);

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Signal>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, once.
    pub(super) fn add(&self, signal: &Arc<Signal>) {
        let mut waiting = self.lock();
        waiting.retain(|known| known.strong_count() > 0);
        if !waiting.iter().any(|known| std::ptr::eq(known.as_ptr(), &raw const **signal)) {
            waiting.push(Arc::downgrade(signal));
        }
    }

    /// Removes a thread.
    pub(super) fn remove(&self, signal: &Arc<Signal>) {
        self.lock().retain(|known| !std::ptr::eq(known.as_ptr(), &raw const **signal));
    }

    /// Wakes all of them.
    pub(super) fn wake(&self) {
        for known in self.lock().iter().filter_map(Weak::upgrade) {
            known.raise();
        }
    }

    /// Wakes all of them but the calling thread, which knows what has changed.
    pub(super) fn wake_others(&self) {
        let own = OWN.try_with(|own| own.borrow().as_ref().map_or(std::ptr::null(), Arc::as_ptr));
        let own = own.unwrap_or(std::ptr::null());
        for known in self.lock().iter().filter(|known| known.as_ptr() != own).filter_map(Weak::upgrade) {
            known.raise();
        }
    }
}
