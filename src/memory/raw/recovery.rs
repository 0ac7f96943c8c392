//! Direct accesses to memory whose pages can vanish, where the fault handler ends those that hit a missing page.
//!
//! The program can replace the handler at any time, and any thread can block its signals. Three system calls before an
//! access check that the handler would be called. The result is valid for the thread's accesses for [`SHORTEST`]; each
//! check that finds no change doubles this time, up to [`LONGEST`]. So a change is detected within the time for which
//! there had been none, or within some milliseconds if that is less: programs install handlers when they start, or
//! never.

use std::arch::x86_64::_rdtsc;
use std::cell::Cell;

use super::{AccessError, RecoverError, direct, handler};
use crate::checksum::{self, Sum};

/// Lifetime of a result at first and after a change, in ticks of the time stamp counter: 90 µs at 3 GHz.
const SHORTEST: u64 = 1 << 18;
/// Longest lifetime of a result: 5.6 ms at 3 GHz. A check takes a third of a microsecond, so a busy thread spends less
/// than a ten-thousandth of its time on checks.
const LONGEST: u64 = 1 << 24;

/// The result of a thread's last check.
#[derive(Clone, Copy)]
struct Check {
    at: u64,
    /// Its lifetime.
    ticks: u64,
    ready: bool,
}

impl Check {
    /// Returns the state after a check at this time.
    fn next(last: Option<Self>, at: u64, ready: bool) -> Self {
        let unchanged = last.filter(|last| last.ready == ready);
        Self { at, ticks: unchanged.map_or(SHORTEST, |last| (last.ticks * 2).min(LONGEST)), ready }
    }
}

thread_local! {
    static LAST_CHECK: Cell<Option<Check>> = const { Cell::new(None) };
}

/// Installs the handler.
pub(super) fn install() -> Result<(), RecoverError> {
    let installed = handler::install();
    LAST_CHECK.set(None);
    installed
}

/// Proof that the handler ends faulting accesses of this thread, now and during the next microseconds, unless the
/// program replaces it meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Recovery(());

/// Returns the proof if the calling thread may access missing pages.
#[inline]
pub(super) fn ready() -> Option<Recovery> {
    if !handler::was_installed() {
        return None;
    }
    // SAFETY: every processor of this architecture has the counter. A program that disables reading it (PR_SET_TSC)
    // gets the signal that it requested.
    let now = unsafe { _rdtsc() };
    let ready = match LAST_CHECK.get() {
        // Counters of different processors may differ: a check in the future counts as expired.
        Some(check) if now.wrapping_sub(check.at) < check.ticks => check.ready,
        last => check_now(last, now),
    };
    ready.then_some(Recovery(()))
}

#[cold]
fn check_now(last: Option<Check>, now: u64) -> bool {
    let check = Check::next(last, now, handler::is_ready());
    LAST_CHECK.set(Some(check));
    check.ready
}

impl Recovery {
    /// # Safety
    /// The bytes from `source` on may be read, if they are mapped, and do not overlap `out`.
    pub(super) unsafe fn read(self, source: *const u8, out: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: the caller upholds the same contract, and the handler is in place.
        unsafe { direct::try_copy_out(source, out) }
    }

    /// Copies and sums the bytes as [`checksum::copy`] does.
    ///
    /// # Safety
    /// As [`Recovery::read`].
    pub(super) unsafe fn read_summed(
        self,
        source: *const u8,
        out: &mut [u8],
        ahead: usize,
    ) -> Result<Option<Sum>, AccessError> {
        // SAFETY: the caller upholds the same contract, and the handler is in place.
        unsafe { checksum::try_copy(source, out, ahead) }.map_err(|checksum::Faulted| AccessError::Fault)
    }

    /// # Safety
    /// The bytes from `target` on may be written, if they can be, and do not overlap `data`.
    pub(super) unsafe fn write(self, target: *mut u8, data: &[u8]) -> Result<(), AccessError> {
        // SAFETY: the caller upholds the same contract, and the handler is in place.
        unsafe { direct::try_copy_in(target, data) }
    }

    /// # Safety
    /// The bytes from `source` on may be read, and those from `target` on written, if they can be.
    pub(super) unsafe fn copy_across(
        self,
        target: *mut u8,
        source: *const u8,
        count: usize,
    ) -> Result<(), AccessError> {
        // SAFETY: the caller upholds the same contract, and the handler is in place.
        unsafe { direct::try_copy_across(target, source, count) }
    }

    /// # Safety
    /// The word may be read and written, if it can be, and is aligned.
    pub(super) unsafe fn compare_exchange_u64(
        self,
        word: *mut u64,
        current: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        // SAFETY: the caller upholds the same contract, and the handler is in place.
        unsafe { direct::try_compare_exchange_u64(word, current, new) }
    }

    /// # Safety
    /// As [`Recovery::compare_exchange_u64`].
    pub(super) unsafe fn fetch_add_u64(self, word: *mut u64, add: u64) -> Result<u64, AccessError> {
        // SAFETY: the caller upholds the same contract, and the handler is in place.
        unsafe { direct::try_fetch_add_u64(word, add) }
    }
}

macro_rules! words {
    ($($word:ty, $load:ident, $try_load:ident, $store:ident, $try_store:ident;)*) => {
        impl Recovery {
            $(
                /// # Safety
                /// The word may be read, if its page is present, and is aligned.
                pub(super) unsafe fn $load(self, word: *const $word) -> Result<$word, AccessError> {
                    // SAFETY: the caller upholds the same contract, and the handler is in place.
                    unsafe { direct::$try_load(word) }
                }

                /// # Safety
                /// The word may be written, if it can be, and is aligned.
                pub(super) unsafe fn $store(self, word: *mut $word, value: $word) -> Result<(), AccessError> {
                    // SAFETY: the caller upholds the same contract, and the handler is in place.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_become_rare_while_nothing_changes() {
        let mut last = None;
        let periods = (0..10).map(|at| {
            let check = Check::next(last, at, true);
            last = Some(check);
            check.ticks
        });
        assert_eq!(periods.collect::<Vec<_>>()[..7], [18, 19, 20, 21, 22, 23, 24].map(|power| 1 << power));
        let last = last.unwrap();
        assert_eq!(last.ticks, LONGEST, "and never longer");
        let change = Check::next(Some(last), 10, false);
        assert_eq!(change.ticks, SHORTEST, "what changed once may change again soon");
        assert_eq!(Check::next(Some(change), 11, true).ticks, SHORTEST);
    }
}
