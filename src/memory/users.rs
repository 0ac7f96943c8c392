//! Accesses in progress through a key that can be revoked while the table is only read.
//!
//! A pass of another shard may have found the key valid and still copy while this shard revokes it. A revocation first
//! marks the key and then waits for all earlier accesses to end; an access first counts itself and then checks the key.
//! So one of them sees the other, and once an invalidation has completed, nothing reaches the memory through its key.

use std::sync::atomic::Ordering;

use super::sync::{AtomicU32, fence, pause};

/// Number of accesses in progress.
pub(super) struct Users(AtomicU32);

/// An access in progress, until it is dropped.
pub(super) struct Using<'a>(&'a Users);

impl Users {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Counts an access. The caller checks the key or the binding afterwards.
    #[inline]
    pub(super) fn enter(&self) -> Using<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `wait`: either the count is seen there, or the revocation is seen here.
        fence(Ordering::SeqCst);
        Using(self)
    }

    /// Waits for the accesses that began before the revocation: each lasts for the copy of one packet. Later ones find
    /// the key revoked and leave at once.
    pub(super) fn wait(&self) {
        fence(Ordering::SeqCst);
        while self.0.load(Ordering::Acquire) > 0 {
            pause();
        }
    }
}

impl Drop for Using<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use std::sync::Arc;

    use super::*;
    use loom::sync::atomic::AtomicBool;

    /// One shard uses a key; another one revokes it and then owns the memory.
    #[test]
    fn no_access_continues_after_the_wait() {
        loom::model(|| {
            let key = Arc::new((AtomicBool::new(true), Users::new(), AtomicU32::new(0)));
            let writer = {
                let key = Arc::clone(&key);
                loom::thread::spawn(move || {
                    let (valid, users, byte) = &*key;
                    let _using = users.enter();
                    if valid.load(Ordering::Relaxed) {
                        byte.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            let (valid, users, byte) = &*key;
            valid.store(false, Ordering::Relaxed);
            users.wait();
            let written = byte.load(Ordering::Relaxed);
            writer.join().unwrap();
            assert_eq!(byte.load(Ordering::Relaxed), written);
        });
    }
}
