//! The window of a path, as the queue pairs of the path share it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::congestion::{CongestionFactory, PathFacts};
use super::path_control::PathControl;
use crate::types::{Counters, PathReport, Time};

/// The window where no controller says less.
const NO_CONTROL: u32 = u32::MAX;

/// The part of a path's window that is in use, who waits for more, and the controller. All changes are made
/// under the shard's lock, so none needs a read-modify-write, and the controller's lock is always free.
pub(super) struct WindowShare {
    in_flight: AtomicU32,
    waiters: AtomicU32,
    /// Packets that the controller lets be in flight.
    window: AtomicU32,
    /// Datagrams have taken the path, which have no part in the window.
    carries_datagrams: AtomicBool,
    control: Mutex<Option<PathControl>>,
}

impl Default for WindowShare {
    fn default() -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            window: AtomicU32::new(NO_CONTROL),
            carries_datagrams: AtomicBool::new(false),
            control: Mutex::new(None),
        }
    }
}

impl WindowShare {
    /// Packets in flight, of all of them.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// One of them has more or fewer in flight.
    #[inline]
    pub(super) fn change_in_flight(&self, before: u32, now: u32) {
        let all = self.in_flight();
        self.in_flight.store(all.wrapping_add(now).wrapping_sub(before), Ordering::Relaxed);
    }

    pub(super) fn set_waiters(&self, waiters: usize) {
        self.waiters.store(waiters as u32, Ordering::Relaxed);
    }

    /// Whether a queue pair waits.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Packets that may be in flight, of all queue pairs together, as far as a controller bounds them.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window.load(Ordering::Relaxed)
    }

    /// The same if there is a controller.
    #[inline]
    pub(super) fn controlled_window(&self) -> Option<u32> {
        Some(self.window()).filter(|window| *window != NO_CONTROL)
    }

    /// Whether there is a controller.
    #[inline]
    pub(super) fn is_controlled(&self) -> bool {
        self.controlled_window().is_some()
    }

    /// A queue pair has the path: a controller is made for the first one. If that had none, others have none, although
    /// the factory may see the path differently by now: all must tell of what they send, or none.
    pub(super) fn take_path(&self, facts: &PathFacts, factory: &dyn CongestionFactory, is_first: bool) {
        let mut control = self.lock();
        if control.is_none() && !is_first {
            return;
        }
        if !control.as_mut().is_some_and(|control| control.goes_on(facts)) {
            let before = control.take();
            *control = PathControl::new(facts, factory).map(|control| control.after(before));
        }
        self.renew_window(control.as_ref());
    }

    /// Tells the controller something, if there is one.
    #[cold]
    pub(super) fn tell(&self, tell: impl FnOnce(&mut PathControl)) {
        let mut control = self.lock();
        if let Some(control) = control.as_mut() {
            tell(control);
        }
        self.renew_window(control.as_ref());
    }

    /// When what was sent is paid for, for a queue pair with this lot, and how many packets may leave in one send.
    #[cold]
    pub(super) fn allowance(&self, lot: u32) -> (Time, u32) {
        self.lock().as_ref().map_or((Time::ZERO, u32::MAX), |control| (control.turn(lot), control.burst_packets()))
    }

    /// The same of packets that are never acknowledged; `None`: there is no rate for them.
    #[cold]
    pub(super) fn unacknowledged_allowance(&self, now: Time, lot: u32) -> Option<(Time, u32)> {
        self.lock().as_ref()?.unacknowledged_allowance(now, lot)
    }

    /// Whether datagrams wait for the pace as well, perhaps.
    pub(super) fn carries_datagrams(&self) -> bool {
        self.carries_datagrams.load(Ordering::Relaxed)
    }

    /// Fills in what the controller says and what is measured, if there is one.
    pub(super) fn report(&self, now: Time, report: &mut PathReport) {
        self.lock().iter().for_each(|control| control.report(now, report));
    }

    /// Adds what the counters of a device have of a path.
    pub(super) fn add_to(&self, counters: &mut Counters) {
        self.lock().iter().for_each(|control| control.add_to(counters));
    }

    /// Until when a datagram waits, if it does.
    #[cold]
    pub(super) fn datagram_waits_until(&self, now: Time, lot: u32) -> Option<Time> {
        self.carries_datagrams.store(true, Ordering::Relaxed);
        self.lock().as_mut()?.datagram_waits_until(now, lot)
    }

    /// A controller that has panicked may say anything; what it says is bounded.
    fn lock(&self) -> MutexGuard<'_, Option<PathControl>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_window(&self, control: Option<&PathControl>) {
        self.window.store(control.map_or(NO_CONTROL, PathControl::window_packets), Ordering::Relaxed);
    }
}
