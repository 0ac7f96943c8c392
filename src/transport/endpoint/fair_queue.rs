//! The fair queue: queue pairs on a common path share its window.
//!
//! As long as all of their packets fit, each sends at any time. A queue pair that finds no room waits, and from then on
//! each gets a grant for one send in turn: none starves, and each send is as full as the queue pair can make it.
//! Without grants, a thousand queue pairs would take whatever room they find and all send single packets.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Endpoint;
use crate::transport::marks::TrafficClass;
use crate::transport::path::PathKey;
use crate::transport::window_share::WindowShare;
use crate::types::{Counters, Destination, Time};

/// The paths of all queue pairs, by key.
#[derive(Default)]
pub(in crate::transport) struct Paths {
    by_key: HashMap<PathKey, PathUsers>,
    /// Number of waiting queue pairs of all paths.
    waiting: usize,
    /// Counters of forgotten paths.
    counters: Counters,
    /// Whether any path has had a controller.
    has_controlled: bool,
}

#[derive(Default)]
struct PathUsers {
    window_share: Arc<WindowShare>,
    /// Slots of the waiting queue pairs, each once.
    waiters: VecDeque<u32>,
}

impl Paths {
    pub(in crate::transport) fn window_share(&mut self, key: PathKey) -> Arc<WindowShare> {
        Arc::clone(&self.by_key.entry(key).or_default().window_share)
    }

    /// Notes that a queue pair uses this path.
    pub(in crate::transport) fn note_path(&mut self, path: &WindowShare) {
        self.has_controlled |= path.is_controlled();
    }

    /// Returns the path to this destination, if connected queue pairs use it and it has a controller.
    fn controlled(&self, destination: &Destination) -> Option<Arc<WindowShare>> {
        let Destination { source, address, traffic_class, .. } = *destination;
        let key = PathKey::new(source, address, TrafficClass::unmarked(traffic_class));
        let path = &self.by_key.get(&key)?.window_share;
        path.is_controlled().then(|| Arc::clone(path))
    }

    #[cfg(feature = "sim")]
    pub(in crate::transport) fn packets_in_flight(&self, peer: std::net::IpAddr) -> u32 {
        let to_peer = self.by_key.iter().filter(|(key, _)| key.peer == peer);
        to_peer.map(|(_, path)| path.window_share.in_flight()).sum()
    }

    /// Removes unused paths if there are many.
    pub(in crate::transport) fn prune(&mut self, queue_pairs: usize) {
        if self.by_key.len() > 2 * queue_pairs + 16 {
            // A waiting queue pair holds a reference.
            for (_, unused) in self.by_key.extract_if(|_, path| Arc::strong_count(&path.window_share) == 1) {
                unused.window_share.add_to(&mut self.counters);
            }
        }
    }

    /// Adds the paths' share of a device's counters.
    pub(in crate::transport) fn add_to(&self, counters: &mut Counters) {
        counters.merge(&self.counters);
        self.by_key.values().for_each(|path| path.window_share.add_to(counters));
    }

    /// Adds a waiter: in front, if its grant is not used up.
    fn enqueue(&mut self, key: PathKey, slot: u32, in_front: bool) {
        let path = self.by_key.entry(key).or_default();
        if in_front {
            path.waiters.push_front(slot);
        } else {
            path.waiters.push_back(slot);
        }
        path.window_share.set_waiters(path.waiters.len());
        self.waiting += 1;
    }

    fn first(&self, key: &PathKey) -> Option<u32> {
        self.by_key.get(key)?.waiters.front().copied()
    }

    /// Removes a waiter: it gets its grant, is destroyed, or has another path.
    pub(in crate::transport) fn remove(&mut self, key: &PathKey, slot: u32) {
        let Some(path) = self.by_key.get_mut(key) else { return };
        let before = path.waiters.len();
        if path.waiters.front() == Some(&slot) {
            path.waiters.pop_front();
        } else {
            path.waiters.retain(|waiting| *waiting != slot);
        }
        path.window_share.set_waiters(path.waiters.len());
        self.waiting -= before - path.waiters.len();
    }
}

impl Endpoint {
    /// Returns the path of the queue pair's next datagram, if it has a controller.
    #[inline]
    pub(super) fn datagram_path(&mut self, slot: u32) -> Option<Arc<WindowShare>> {
        if self.paths.has_controlled { self.find_datagram_path(slot) } else { None }
    }

    #[cold]
    fn find_datagram_path(&mut self, slot: u32) -> Option<Arc<WindowShare>> {
        let queue_pair = self.at(slot).filter(|queue_pair| queue_pair.common.is_datagram())?;
        let destination = queue_pair.requester.next_destination(&queue_pair.common)?;
        self.paths.controlled(&destination)
    }

    /// Updates the fair queue after a change of a queue pair: enqueues it if it waits, and grants the room of its path
    /// to a waiter.
    #[inline]
    pub(in crate::transport) fn serve_fair_queue(&mut self, now: Time, slot: u32) {
        let Some(queue_pair) = self.enter(slot) else { return };
        if let Some((key, in_front)) = queue_pair.requester.begins_to_wait(&queue_pair.common, now) {
            self.enqueue(slot, key, in_front);
        }
        if self.paths.waiting > 0 {
            self.grant_next(slot);
        }
    }

    #[cold]
    fn enqueue(&mut self, slot: u32, key: PathKey, in_front: bool) {
        let Some(queue_pair) = self.at(slot) else { return };
        let deadline = queue_pair.next_deadline();
        self.set_deadline(slot, deadline);
        self.paths.enqueue(key, slot, in_front);
    }

    #[cold]
    fn grant_next(&mut self, slot: u32) {
        let key = self.at(slot).and_then(|queue_pair| queue_pair.common.path_key());
        if let Some(key) = key {
            self.grant(&key);
        }
    }

    /// Grants the first waiter a send, if there is room. That send leads to the next grant.
    pub(in crate::transport) fn grant(&mut self, key: &PathKey) {
        let Some(slot) = self.paths.first(key) else { return };
        let Some(queue_pair) = self.enter(slot) else { return };
        if !queue_pair.requester.has_room(&queue_pair.common) {
            return;
        }
        queue_pair.requester.grant();
        self.paths.remove(key, slot);
        self.list(slot);
    }
}
