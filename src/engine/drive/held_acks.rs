//! Acknowledgements that a polling thread has left to wait for the application's response.
//!
//! They leave with the response, when the thread polls there again, or when the lease ends. But a thread that stays at
//! another shard may wait there for the effect of these acknowledgements, as in a program with one thread that drives
//! both ends of a connection. A thread that polls another shard for the second time, without coming back in between, is
//! assumed to stay there; one that polls several in turn comes back.

use std::cell::RefCell;
use std::ptr;
use std::sync::{Arc, Weak};

use super::shard::Shard;

/// The shard that a thread has left with waiting acknowledgements.
struct Held {
    /// The shard where acknowledgements wait for this thread.
    shard: Weak<Shard>,
    /// The shard that this thread polled next. Only compared.
    elsewhere: *const Shard,
}

thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held { shard: Weak::new(), elsewhere: ptr::null() }) };
}

/// Notes that this thread leaves acknowledgements waiting at the shard.
#[inline]
pub(super) fn note(shard: &Arc<Shard>) {
    // An ending thread no longer has thread-local storage; then the acknowledgements leave at the lease's end.
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        held.elsewhere = ptr::null();
        if held.shard.as_ptr() != Arc::as_ptr(shard) {
            held.shard = Arc::downgrade(shard);
        }
    });
}

/// Notes that this thread polls the shard. Returns the other shard where it has left acknowledgements, if it stays away
/// from that shard.
#[inline]
pub(super) fn take_other(shard: &Arc<Shard>) -> Option<Arc<Shard>> {
    HELD.try_with(|held| held.borrow_mut().take_other(shard)).ok()?
}

impl Held {
    #[inline]
    fn take_other(&mut self, polled: &Arc<Shard>) -> Option<Arc<Shard>> {
        let polled = Arc::as_ptr(polled);
        if self.shard.as_ptr() == polled {
            self.elsewhere = ptr::null();
        } else if self.elsewhere.is_null() {
            self.elsewhere = polled;
        } else if self.elsewhere == polled {
            return std::mem::take(&mut self.shard).upgrade();
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::shard;
    use super::*;

    #[test]
    fn acks_are_released_once_if_the_thread_stays_elsewhere() {
        let [held, other, third] = [(); 3].map(|()| Arc::new(shard()));
        assert!((0..3).all(|_| take_other(&other).is_none()), "nothing waits");
        note(&held);
        assert!(take_other(&other).is_none() && take_other(&third).is_none());
        assert!(take_other(&other).is_some_and(|shard| Arc::ptr_eq(&shard, &held)));
        assert!((0..3).all(|_| take_other(&other).is_none()), "they were sent");
    }

    #[test]
    fn acks_stay_held_if_the_thread_comes_back() {
        let [held, other] = [(); 2].map(|()| Arc::new(shard()));
        note(&held);
        assert!((0..3).all(|_| take_other(&other).is_none() && take_other(&held).is_none()));
        note(&held);
        assert!(take_other(&other).is_none());
        drop(held);
        assert!(take_other(&other).is_none(), "it is gone");
    }
}
