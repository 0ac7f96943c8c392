//! Direct accesses to memory whose pages can vanish, where the handler of faults ends those that meet a missing page.
//!
//! The handler can be replaced by the program at any time, and any thread can block its signals. So that it would be
//! called is found out before an access, by three system calls; what was found serves the thread's accesses for the
//! next [`TICKS_OF_A_LOOK`].

use std::arch::x86_64::_rdtsc;
use std::cell::Cell;

use super::{AccessError, RecoverError, direct, handler};
use crate::checksum::{self, Sum};
use crate::mutation::{Mutation, planted};

/// How long what was found holds, in ticks of the time stamp counter: 90 µs at 3 GHz. A look takes a third of a
/// microsecond, so it costs at most a few thousandths of the time.
const TICKS_OF_A_LOOK: u64 = 1 << 18;

/// What a thread found when it looked last.
#[derive(Clone, Copy)]
struct Look {
    at: u64,
    ready: bool,
}

thread_local! {
    static LAST_LOOK: Cell<Option<Look>> = const { Cell::new(None) };
}

/// Installs the handler.
pub(super) fn install() -> Result<(), RecoverError> {
    let installed = handler::install();
    LAST_LOOK.set(None);
    installed
}

/// Says that the handler ends what faults in this thread, now and within the next microseconds, if the program does not
/// replace it meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Recovery(());

/// Whether the calling thread may access pages that are missing.
#[inline]
pub(super) fn ready() -> Option<Recovery> {
    if !handler::was_installed() {
        return None;
    }
    // SAFETY: every processor of this architecture has the counter. A program that forbids itself to read it
    // (PR_SET_TSC) gets the signal that it asked for.
    let now = unsafe { _rdtsc() };
    let ready = match LAST_LOOK.get() {
        // Counters of different processors may differ: a look in the future is an old one.
        Some(look) if now.wrapping_sub(look.at) < TICKS_OF_A_LOOK => look.ready,
        _ => look_again(now),
    };
    ready.then_some(Recovery(()))
}

#[cold]
fn look_again(now: u64) -> bool {
    let ready = handler::is_ready();
    LAST_LOOK.set(Some(Look { at: now, ready }));
    ready
}

impl Recovery {
    /// # Safety
    /// The bytes from `source` on may be read, if they are mapped, and do not overlap `out`.
    pub(super) unsafe fn read(self, source: *const u8, out: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: the caller's promise; the handler is there.
        unsafe { direct::try_copy_out(source, out) }
    }

    /// [`checksum::copy`].
    ///
    /// # Safety
    /// As [`Recovery::read`].
    pub(super) unsafe fn read_summed(
        self,
        source: *const u8,
        out: &mut [u8],
        ahead: usize,
    ) -> Result<Option<Sum>, AccessError> {
        // SAFETY: the caller's promise; the handler is there.
        match unsafe { checksum::try_copy(source, out, ahead) } {
            Ok(sum) => Ok(sum),
            Err(checksum::Faulted) if planted(Mutation::FaultIgnored) => Ok(None),
            Err(checksum::Faulted) => Err(AccessError::Fault),
        }
    }

    /// # Safety
    /// The bytes from `target` on may be written, if they can be, and do not overlap `data`.
    pub(super) unsafe fn write(self, target: *mut u8, data: &[u8]) -> Result<(), AccessError> {
        // SAFETY: the caller's promise; the handler is there.
        unsafe { direct::try_copy_in(target, data) }
    }

    /// # Safety
    /// The word may be read and written, if it can be, and is aligned.
    pub(super) unsafe fn compare_exchange_u64(
        self,
        word: *mut u64,
        current: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        // SAFETY: the caller's promise; the handler is there.
        unsafe { direct::try_compare_exchange_u64(word, current, new) }
    }

    /// # Safety
    /// As [`Recovery::compare_exchange_u64`].
    pub(super) unsafe fn fetch_add_u64(self, word: *mut u64, add: u64) -> Result<u64, AccessError> {
        // SAFETY: the caller's promise; the handler is there.
        unsafe { direct::try_fetch_add_u64(word, add) }
    }
}

macro_rules! words {
    ($($word:ty, $load:ident, $try_load:ident, $store:ident, $try_store:ident;)*) => {
        impl Recovery {
            $(
                /// # Safety
                /// The word may be read, if its page is there, and is aligned.
                pub(super) unsafe fn $load(self, word: *const $word) -> Result<$word, AccessError> {
                    // SAFETY: the caller's promise; the handler is there.
                    unsafe { direct::$try_load(word) }
                }

                /// # Safety
                /// The word may be written, if it can be, and is aligned.
                pub(super) unsafe fn $store(self, word: *mut $word, value: $word) -> Result<(), AccessError> {
                    // SAFETY: the caller's promise; the handler is there.
                    unsafe { direct::$try_store(word, value) }
                }
            )*
        }
    };
}

words! {
    u8, load_acquire_u8, try_load_acquire_u8, store_release_u8, try_store_release_u8;
    u16, load_acquire_u16, try_load_acquire_u16, store_release_u16, try_store_release_u16;
    u32, load_acquire_u32, try_load_acquire_u32, store_release_u32, try_store_release_u32;
    u64, load_acquire_u64, try_load_acquire_u64, store_release_u64, try_store_release_u64;
}
