//! The fair queue: queue pairs with a common peer address share the window that its socket allows.
//!
//! As long as all of their packets fit, each sends at any time. A queue pair that finds no room waits, and from then on
//! each gets a grant for one send in turn: none starves, and each send is as full as the queue pair can make it.
//! Without grants a thousand queue pairs take whatever room they find and all send single packets.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::endpoint::Endpoint;
use super::queue_pair::QueuePair;
use crate::mutation::{Mutation, planted};
use crate::types::Time;

/// A grant needs room for so many packets.
const ROOM: u32 = 16;

/// The part of a peer address's window that is in use, and who waits for more. All changes are made under the shard's
/// lock, so none needs a read-modify-write.
#[derive(Default, Debug)]
pub(super) struct WindowShare {
    in_flight: AtomicU32,
    waiters: AtomicU32,
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

    /// Whether a queue pair waits.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }
}

/// The queue pairs' peers, by address.
#[derive(Default)]
pub(super) struct Peers {
    by_address: HashMap<IpAddr, Peer>,
    /// Queue pairs that wait, of all peers.
    waiting: usize,
}

#[derive(Default)]
struct Peer {
    window_share: Arc<WindowShare>,
    /// Places of the queue pairs that wait, each once.
    waiters: VecDeque<u32>,
}

impl Peers {
    pub(super) fn window_share(&mut self, peer: IpAddr) -> Arc<WindowShare> {
        Arc::clone(&self.by_address.entry(peer).or_default().window_share)
    }

    pub(super) fn packets_in_flight(&self, peer: IpAddr) -> u32 {
        self.by_address.get(&peer).map_or(0, |peer| peer.window_share.in_flight())
    }

    /// Forgets peers that no queue pair has any more, if they are many.
    pub(super) fn tidy(&mut self, queue_pairs: usize) {
        if self.by_address.len() > 2 * queue_pairs + 16 {
            // A queue pair that waits holds a reference.
            self.by_address.retain(|_, peer| Arc::strong_count(&peer.window_share) > 1);
        }
    }

    /// In front: a queue pair whose grant is not used up.
    fn enqueue(&mut self, peer: IpAddr, place: u32, in_front: bool) {
        let peer = self.by_address.entry(peer).or_default();
        if in_front {
            peer.waiters.push_front(place);
        } else {
            peer.waiters.push_back(place);
        }
        peer.window_share.waiters.store(peer.waiters.len() as u32, Ordering::Relaxed);
        self.waiting += 1;
    }

    fn first(&self, peer: IpAddr) -> Option<u32> {
        self.by_address.get(&peer)?.waiters.front().copied()
    }

    /// The queue pair has its grant, is destroyed, or has another peer: it does not wait any more.
    pub(super) fn remove(&mut self, peer: IpAddr, place: u32) {
        let Some(peer) = self.by_address.get_mut(&peer) else { return };
        let before = peer.waiters.len();
        if peer.waiters.front() == Some(&place) {
            peer.waiters.pop_front();
        } else {
            peer.waiters.retain(|waiting| *waiting != place);
        }
        peer.window_share.waiters.store(peer.waiters.len() as u32, Ordering::Relaxed);
        self.waiting -= before - peer.waiters.len();
    }
}

/// A queue pair's part in the fair queue.
#[derive(Default, Debug)]
pub(super) struct FairShare {
    /// It has packets to send, and others use the window.
    is_blocked: Cell<bool>,
    /// A grant is worth while with at most so many packets of others in flight.
    others_at_most: Cell<u32>,
    /// It waits for a grant.
    is_waiting: bool,
    /// It may send although others wait.
    is_granted: bool,
}

impl QueuePair {
    /// Whether the others leave room for this queue pair to have `end` packets in flight, of a window for all.
    #[inline]
    pub(super) fn share_allows(&self, share: &WindowShare, end: u32, window: u32) -> bool {
        let others = self.packets_of_others(share);
        let has_room = others == 0 || others.saturating_add(end) <= window;
        let allowed = has_room && (self.fair_share.is_granted || !share.has_waiters());
        if !allowed {
            // At least what it needs: a queue pair with a grant and no room would get the next grant at once, for ever.
            let needed = end.max(self.requester.counted_in_flight + ROOM.min(window / 4));
            self.fair_share.others_at_most.set(window.saturating_sub(needed));
        }
        self.fair_share.is_blocked.set(!allowed);
        allowed
    }

    /// Packets that the others have in flight to the same address.
    #[inline]
    fn packets_of_others(&self, share: &WindowShare) -> u32 {
        share.in_flight().saturating_sub(self.requester.counted_in_flight)
    }

    /// Whether others have packets in flight to the same address.
    #[inline]
    pub(super) fn others_have_packets(&self) -> bool {
        self.common.path.as_ref().is_some_and(|path| self.packets_of_others(&path.window_share) > 0)
    }

    /// Whether so much is in flight that another queue pair may wait soon.
    #[inline]
    pub(super) fn room_is_scarce(&self) -> bool {
        self.common.path.as_ref().is_some_and(|path| path.window_share.in_flight() > path.window_packets / 2)
    }

    /// Whether it waits for a grant with nothing in flight: no response can come, and no timer runs.
    pub(super) fn waits_for_grant(&self) -> bool {
        self.fair_share.is_waiting && self.requester.cursor == self.requester.unacknowledged
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.fair_share.is_waiting
    }

    /// It has sent requests, or has none to send now. Its grant lasts until it has asked for a response: without one
    /// the room that its packets take would not come back.
    #[inline]
    pub(super) fn end_grant(&mut self, has_sent_requests: bool, is_exhausted: bool) {
        let is_asked = has_sent_requests && self.requester.has_asked;
        let has_more = !is_exhausted || self.fair_share.is_blocked.get();
        self.fair_share.is_granted &= has_more && !is_asked;
    }

    /// Whether it waits, and its last packet did not ask for a response: others may wait for the room that this
    /// takes.
    #[inline]
    pub(super) fn waits_unasked(&self) -> bool {
        self.fair_share.is_waiting && !self.requester.has_asked
    }

    /// Whether it waits from now on: for which peer, and whether in front.
    fn begins_to_wait(&mut self, now: Time) -> Option<(IpAddr, bool)> {
        if !self.fair_share.is_blocked.get() || self.fair_share.is_waiting {
            return None;
        }
        let peer = self.common.peer_address()?;
        self.fair_share.is_waiting = true;
        // A queue pair that waits sends nothing. With the grant left on it could stay in the queue without need.
        let in_front = std::mem::take(&mut self.fair_share.is_granted);
        if self.waits_unasked() && self.requester.counted_in_flight > 0 {
            self.arm_timers(now);
        }
        Some((peer, in_front))
    }

    /// Whether a grant is worth while. A queue pair that cannot send in any case must not keep others waiting.
    fn has_room(&self) -> bool {
        let Some(path) = self.common.path.as_ref().filter(|_| self.may_transmit()) else { return true };
        let others = self.packets_of_others(&path.window_share);
        others == 0 || others <= self.fair_share.others_at_most.get()
    }
}

impl Endpoint {
    /// After each change to a queue pair: grants others with the same peer the room that there is now.
    #[inline]
    pub(super) fn serve_fair_queue(&mut self, now: Time, place: u32) {
        let Some(queue_pair) = self.at(place) else { return };
        if let Some((peer, in_front)) = queue_pair.begins_to_wait(now) {
            self.enqueue(place, peer, in_front);
        }
        if self.peers.waiting > 0 {
            self.grant_next(place);
        }
    }

    #[cold]
    fn enqueue(&mut self, place: u32, peer: IpAddr, in_front: bool) {
        let Some(queue_pair) = self.at(place) else { return };
        let deadline = queue_pair.next_deadline();
        self.set_deadline(place, deadline);
        self.peers.enqueue(peer, place, in_front);
    }

    #[cold]
    fn grant_next(&mut self, place: u32) {
        let peer = self.at(place).and_then(|queue_pair| queue_pair.common.peer_address());
        if let Some(peer) = peer.filter(|_| !planted(Mutation::LineNotAdmitted)) {
            self.grant(peer);
        }
    }

    /// Grants the first that waits its send, if there is room. That send leads to the next grant.
    pub(super) fn grant(&mut self, peer: IpAddr) {
        let Some(place) = self.peers.first(peer) else { return };
        let Some(queue_pair) = self.at(place).filter(|queue_pair| queue_pair.has_room()) else { return };
        queue_pair.fair_share = FairShare { is_granted: true, ..FairShare::default() };
        let is_listed = std::mem::replace(&mut queue_pair.listed, true);
        self.peers.remove(peer, place);
        if !is_listed {
            self.list(place);
        }
    }
}
