//! The device's port: its current addresses and link state, and the events that report changes.
//!
//! The kernel announces changes on a socket. No thread waits for them: the socket is part of the descriptor of the
//! asynchronous events, and every verb that queries events, the port or its addresses reads it first. So no work is
//! done until the application queries, and a query never returns the state before an announced change.
//!
//! An edge-exact descriptor is readable only while an event is pending, so it cannot contain the socket. An application
//! that requests it gets a thread that reads the socket on its behalf. Listeners on all addresses use the same thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::interface::{Interface, USUAL_MTU_BYTES};
use crate::queue::{AsyncEventQueue, Notify};
use crate::sys::{Epoll, EventFd, Interest, LinkState, LinkWatch, LocalAddress};
use crate::types::{AsyncEvent, PortState};

/// Largest number of unread asynchronous events: four for every queue pair of a shard.
const MAX_EVENTS: u32 = 1 << 16;
/// Minimum number of GID table entries. One entry always stays empty, so that programs meet an empty entry wherever
/// they run.
const LEAST_GIDS: usize = 16;
/// Largest number of addresses in the GID table.
const MAX_GIDS: usize = 254;
/// Maximum number of consecutive reads of the interface while changes keep arriving.
const MAX_REREADS: usize = 16;
/// The only port.
const PORT: u8 = 1;

/// The device's asynchronous events, and the descriptors that report them.
pub(super) struct Events {
    pub(super) queue: Arc<AsyncEventQueue>,
    waiting: Arc<Waiting>,
    /// Readable while `waiting` is, and while interface changes are pending.
    set: Epoll,
    watch: Option<Arc<LinkWatch>>,
}

/// A descriptor that is readable only while events are pending.
struct Waiting {
    event: EventFd,
    /// Whether `event` is readable.
    is_readable: Mutex<bool>,
    queue: OnceLock<Weak<AsyncEventQueue>>,
}

impl Waiting {
    /// Applies `change` to the queue and updates the descriptor to match the remaining events.
    fn update_readable<R>(&self, change: impl FnOnce() -> R) -> R {
        let mut is_readable = self.is_readable.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change();
        let waits = self.has_events();
        match (std::mem::replace(&mut *is_readable, waits), waits) {
            (false, true) => {
                self.event.signal();
            }
            (true, false) => self.event.clear(),
            _ => {}
        }
        changed
    }

    /// Reads the queue itself: an event may be taken before the notification of its arrival.
    fn has_events(&self) -> bool {
        self.queue.get().and_then(Weak::upgrade).is_some_and(|queue| !queue.is_empty())
    }
}

impl Notify for Waiting {
    fn notify_within(&self, completion_queue: u32, _: Duration, _: u32) {
        self.notify(completion_queue);
    }

    /// Signals each event as an edge, as adapters do.
    fn notify(&self, _: u32) {
        let mut is_readable = self.is_readable.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_events() {
            *is_readable = true;
            self.event.signal();
        }
    }
}

impl Events {
    pub(super) fn new() -> io::Result<Self> {
        let (set, event) = (Epoll::new()?, EventFd::for_programs()?);
        set.add(event.as_fd(), Interest::Readable)?;
        let watch = LinkWatch::open().and_then(|watch| {
            set.add(watch.as_fd(), Interest::Readable)?;
            Ok(Arc::new(watch))
        });
        let watch = watch.inspect_err(|error| {
            tracing::info!(
                target: "rdma_verbs::device",
                %error, "the system does not report interface changes: no events will report them"
            );
        });
        let waiting = Arc::new(Waiting { event, is_readable: Mutex::new(false), queue: OnceLock::new() });
        let queue = AsyncEventQueue::new(MAX_EVENTS, Some(Arc::clone(&waiting) as Arc<dyn Notify>));
        waiting.queue.get_or_init(|| Arc::downgrade(&queue));
        Ok(Self { queue, waiting, set, watch: watch.ok() })
    }

    /// Returns a descriptor that is readable only while events are pending. An interface change becomes an event only
    /// once it is read.
    pub(super) fn waiting(&self) -> BorrowedFd<'_> {
        self.waiting.event.as_fd()
    }

    /// Returns the source of interface changes, if there is one.
    pub(super) fn watch(&self) -> Option<&Arc<LinkWatch>> {
        self.watch.as_ref()
    }

    /// Returns whether an interface or address of the machine may have changed since the last call.
    fn has_changed(&self) -> io::Result<bool> {
        self.watch.as_ref().map_or(Ok(false), |watch| watch.has_changed())
    }

    /// Takes an event with `take`.
    pub(super) fn next(&self, take: impl FnOnce(&AsyncEventQueue) -> Option<AsyncEvent>) -> Option<AsyncEvent> {
        self.waiting.update_readable(|| take(&self.queue))
    }

    /// Removes the events for which `is_stale` holds.
    pub(super) fn discard(&self, is_stale: impl FnMut(&AsyncEvent) -> bool) {
        self.waiting.update_readable(|| self.queue.discard(is_stale));
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// The part of the port that may change.
pub(super) struct Port {
    now: Mutex<Now>,
    interface: Interface,
    events: Arc<Events>,
}

struct Now {
    /// The GID table. A removed address leaves an empty entry; the others keep their indices.
    gids: Vec<Option<LocalAddress>>,
    state: LinkState,
    /// Whether the state could be read when it was read last.
    is_read: bool,
    megabits: Option<u32>,
}

impl Port {
    pub(super) fn new(interface: &Interface, events: &Arc<Events>) -> Self {
        let gids = interface.addresses.iter().copied().map(Some).take(MAX_GIDS).collect();
        let state = LinkState { mtu_bytes: USUAL_MTU_BYTES, running: true };
        let mut now = Now { gids, state, is_read: false, megabits: interface.megabits() };
        now.read_state(interface);
        Self { now: Mutex::new(now), interface: interface.clone(), events: Arc::clone(events) }
    }

    /// Reads the interface again if changes are pending, and reports them as events. Returns whether there were any.
    ///
    /// # Errors
    /// If changes are not announced any more. The interface has been read nevertheless.
    pub(super) fn refresh(&self) -> io::Result<bool> {
        let mut before = None;
        let refreshed = self.reread_while_changed(&mut before);
        if let Some(before) = before {
            // Without the lock: a subscriber may query the port.
            let after = self.lock().seen();
            before.log_changes(&after, &self.interface.device_name);
        }
        refreshed
    }

    /// As [`Port::refresh`]. Sets the state before the first change.
    fn reread_while_changed(&self, before: &mut Option<Seen>) -> io::Result<bool> {
        // Locked before the check, so that a concurrent caller does not return before the changes found here are
        // applied.
        let mut now = self.lock();
        // A read may miss a change announced during it. An edge-triggered waiter is not woken for announcements that
        // are left in the socket.
        for reads in 0..MAX_REREADS {
            let has_changed = self.events.has_changed();
            if matches!(has_changed, Ok(false)) {
                return Ok(reads > 0);
            }
            before.get_or_insert_with(|| now.seen());
            now.reread(&self.interface, &self.events);
            has_changed?;
        }
        Ok(true)
    }

    /// Returns the state of the interface at the last refresh. Reads it if the system does not report changes, or if it
    /// could not be read then.
    pub(super) fn state(&self) -> LinkState {
        let mut now = self.lock();
        if self.events.watch().is_none() || !now.is_read {
            now.read_state(&self.interface);
        }
        now.state
    }

    /// Returns the entries of the GID table that are not empty.
    pub(super) fn gids(&self) -> Vec<(u8, LocalAddress)> {
        let now = self.lock();
        (0..u8::MAX).zip(&now.gids).filter_map(|(index, address)| Some((index, (*address)?))).collect()
    }

    /// Returns an entry of the GID table, or `None` if it is empty or does not exist.
    pub(super) fn gid(&self, index: u8) -> Option<LocalAddress> {
        self.lock().gids.get(usize::from(index)).copied().flatten()
    }

    /// Returns the number of GID table entries, the empty ones included.
    pub(super) fn gid_tbl_len(&self) -> u32 {
        (self.lock().gids.len() + 1).max(LEAST_GIDS) as u32
    }

    /// Returns the link's speed in megabits per second, if known.
    pub(super) fn megabits(&self) -> Option<u32> {
        self.lock().megabits
    }

    /// Returns whether the port has an IPv6 address.
    pub(super) fn has_v6(&self) -> bool {
        self.lock().gids.iter().flatten().any(|address| address.ip.is_ipv6())
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// Reads the state of the interface. If that fails, for example because no descriptor is left, the last one stays.
    fn read_state(&mut self, interface: &Interface) {
        let read = interface.state();
        self.is_read = read.is_ok();
        self.state = read.unwrap_or(self.state);
    }

    /// Returns the part whose changes subscribers see.
    fn seen(&self) -> Seen {
        Seen { addresses: self.gids.iter().flatten().copied().collect(), running: self.state.running }
    }

    /// Reads the interface and reports changes as events.
    fn reread(&mut self, interface: &Interface, events: &Events) {
        let before = self.state;
        self.read_state(interface);
        self.megabits = interface.megabits();
        if let Ok(addresses) = interface.addresses_now()
            && self.take_addresses(&addresses)
        {
            events.queue.push(AsyncEvent::GidChange(PORT));
        }
        if before.running != self.state.running {
            let event = if self.state.running { AsyncEvent::PortActive(PORT) } else { AsyncEvent::PortError(PORT) };
            events.queue.push(event);
        }
    }

    /// Updates the table to match the addresses and returns whether it changed.
    fn take_addresses(&mut self, addresses: &[LocalAddress]) -> bool {
        let before = self.gids.clone();
        for entry in &mut self.gids {
            *entry = entry.filter(|address| addresses.contains(address));
        }
        for address in addresses {
            if self.gids.contains(&Some(*address)) {
                continue;
            }
            match self.gids.iter().position(Option::is_none) {
                Some(index) => self.gids[index] = Some(*address),
                None if self.gids.len() < MAX_GIDS => self.gids.push(Some(*address)),
                None => break,
            }
        }
        self.gids != before
    }
}

/// The part of a port whose changes subscribers of `tracing` see.
struct Seen {
    addresses: Vec<LocalAddress>,
    running: bool,
}

impl Seen {
    fn log_changes(&self, after: &Self, device: &str) {
        for gone in self.addresses.iter().filter(|address| !after.addresses.contains(address)) {
            tracing::info!(target: "rdma_verbs::device", device, local = %gone.ip, "address removed");
        }
        for new in after.addresses.iter().filter(|address| !self.addresses.contains(address)) {
            tracing::info!(target: "rdma_verbs::device", device, local = %new.ip, "address added");
        }
        if self.running != after.running {
            let state = if after.running { PortState::Active } else { PortState::Down };
            tracing::info!(target: "rdma_verbs::device", device, ?state, "port changed");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::interface::find;
    use super::*;
    use crate::sys::wait_readable;

    #[test]
    fn the_descriptor_is_readable_only_while_events_wait() {
        let events = Events::new().unwrap();
        let is_readable = || wait_readable([events.waiting()], Some(Duration::ZERO)).unwrap()[0];
        assert!(!is_readable());
        (0..3).for_each(|_| assert!(events.queue.push(AsyncEvent::GidChange(PORT))));
        assert!(is_readable() && events.next(AsyncEventQueue::poll).is_some() && is_readable());
        events.discard(|_| true);
        assert!(!is_readable() && events.next(AsyncEventQueue::poll).is_none());
        // Events are taken while others arrive.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2_000).for_each(|_| assert!(events.queue.push(AsyncEvent::PortActive(PORT)))));
            let mut taken = 0;
            while taken < 2_000 {
                taken += u32::from(events.next(AsyncEventQueue::poll).is_some());
            }
        });
        assert!(!is_readable());
    }

    #[test]
    fn addresses_keep_their_indices() {
        let at = |last: u8| LocalAddress { ip: [192, 0, 2, last].into(), scope: 0 };
        let state = LinkState { mtu_bytes: 1_500, running: true };
        let mut now = Now { gids: vec![Some(at(1)), Some(at(2)), Some(at(3))], state, is_read: true, megabits: None };
        assert!(!now.take_addresses(&[at(3), at(1), at(2)]));
        assert!(now.take_addresses(&[at(1), at(3)]));
        assert_eq!(now.gids, [Some(at(1)), None, Some(at(3))]);
        assert!(now.take_addresses(&[at(5), at(3), at(4), at(1)]));
        assert_eq!(now.gids, [Some(at(1)), Some(at(5)), Some(at(3)), Some(at(4))]);
        assert!(now.take_addresses(&[]));
        assert_eq!(now.gids, [None; 4]);
        let many: Vec<LocalAddress> = (0..=255).map(at).collect();
        assert!(now.take_addresses(&many));
        assert_eq!(now.gids.len(), MAX_GIDS);
        assert!(!now.take_addresses(&many));
        let interface = find("soft:127.0.0.1").unwrap().unwrap();
        let port = Port { now: Mutex::new(now), interface, events: Arc::new(Events::new().unwrap()) };
        assert_eq!((port.gid_tbl_len(), port.gid(254)), (255, None), "one entry stays empty");
    }
}
