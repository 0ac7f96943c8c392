//! The window of a path, shared by its queue pairs.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::congestion::{CongestionFactory, PathFacts};
use super::path_control::PathControl;
use crate::types::{Counters, PathReport, Time};

/// The window without a controller.
const NO_CONTROL: u32 = u32::MAX;

/// The used part of a path's window, the number of waiters, and the controller. All changes are made under the shard's
/// lock, so none needs a read-modify-write, and the controller's lock is always free.
pub(super) struct WindowShare {
    in_flight: AtomicU32,
    waiters: AtomicU32,
    /// Packets in flight that the controller allows.
    window: AtomicU32,
    /// Whether datagrams use the path too; they do not count against the window.
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
    /// Returns the packets in flight of all queue pairs.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Changes one queue pair's packets in flight.
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

    /// Returns the packets that the controller allows in flight, of all queue pairs together; `u32::MAX` without a
    /// controller.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window.load(Ordering::Relaxed)
    }

    /// Returns the window if there is a controller.
    #[inline]
    pub(super) fn controlled_window(&self) -> Option<u32> {
        Some(self.window()).filter(|window| *window != NO_CONTROL)
    }

    /// Whether there is a controller.
    #[inline]
    pub(super) fn is_controlled(&self) -> bool {
        self.controlled_window().is_some()
    }

    /// Adds a queue pair to the path, with a new controller for the first one. If the first one got none, later ones
    /// get none, even if the factory decides differently by now: either all queue pairs report their packets to the
    /// controller, or none does.
    pub(super) fn take_path(&self, facts: &PathFacts, factory: &dyn CongestionFactory, is_first: bool) {
        let mut control = self.lock();
        if control.is_none() && !is_first {
            return;
        }
        if !control.as_mut().is_some_and(|control| control.continues_with(facts)) {
            let before = control.take();
            *control = PathControl::new(facts, factory).map(|control| control.after(before));
        }
        self.renew_window(control.as_ref());
    }

    /// Calls `change` with the controller, if there is one.
    #[cold]
    pub(super) fn with_control<T>(&self, change: impl FnOnce(&mut PathControl) -> T) -> Option<T> {
        let mut control = self.lock();
        let result = control.as_mut().map(change);
        self.renew_window(control.as_ref());
        result
    }

    /// Returns when a queue pair with this order seed may send next, and how many packets may leave in one send.
    #[cold]
    pub(super) fn allowance(&self, order_seed: u32) -> (Time, u32) {
        self.lock()
            .as_ref()
            .map_or((Time::ZERO, u32::MAX), |control| (control.next_send_at(order_seed), control.burst_packets()))
    }

    /// Returns the allowance of packets that are never acknowledged; `None` if there is no rate for them.
    #[cold]
    pub(super) fn unacknowledged_allowance(&self, now: Time, order_seed: u32) -> Option<(Time, u32)> {
        self.lock().as_ref()?.unacknowledged_allowance(now, order_seed)
    }

    /// Whether datagrams may wait for the pace as well.
    pub(super) fn carries_datagrams(&self) -> bool {
        self.carries_datagrams.load(Ordering::Relaxed)
    }

    /// Fills in the controller's report and the measurements, if there is a controller.
    pub(super) fn report(&self, now: Time, report: &mut PathReport) {
        self.lock().iter().for_each(|control| control.report(now, report));
    }

    /// Adds the path's share of a device's counters.
    pub(super) fn add_to(&self, counters: &mut Counters) {
        self.lock().iter().for_each(|control| control.add_to(counters));
    }

    /// Returns the end of a datagram's wait, if it must wait.
    #[cold]
    pub(super) fn datagram_waits_until(&self, now: Time, order_seed: u32) -> Option<Time> {
        self.carries_datagrams.store(true, Ordering::Relaxed);
        self.lock().as_mut()?.datagram_waits_until(now, order_seed)
    }

    /// Locks the controller. Poisoning is ignored: a controller that panicked may return anything, but its results are
    /// bounded.
    fn lock(&self) -> MutexGuard<'_, Option<PathControl>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_window(&self, control: Option<&PathControl>) {
        self.window.store(control.map_or(NO_CONTROL, PathControl::window_packets), Ordering::Relaxed);
    }
}
