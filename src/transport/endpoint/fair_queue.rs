//! The fair queue: queue pairs with a common peer address share the window that its socket allows.
//!
//! As long as all of their packets fit, each sends at any time. A queue pair that finds no room waits, and from then on
//! each gets a grant for one send in turn: none starves, and each send is as full as the queue pair can make it.
//! Without grants a thousand queue pairs take whatever room they find and all send single packets.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use super::Endpoint;
use crate::transport::window_share::WindowShare;
use crate::types::Time;

/// The queue pairs' peers, by address.
#[derive(Default)]
pub(in crate::transport) struct Peers {
    by_address: HashMap<IpAddr, Peer>,
    /// Queue pairs that wait, of all peers.
    waiting: usize,
}

#[derive(Default)]
struct Peer {
    window_share: Arc<WindowShare>,
    /// Slots of the queue pairs that wait, each once.
    waiters: VecDeque<u32>,
}

impl Peers {
    pub(in crate::transport) fn window_share(&mut self, peer: IpAddr) -> Arc<WindowShare> {
        Arc::clone(&self.by_address.entry(peer).or_default().window_share)
    }

    pub(in crate::transport) fn packets_in_flight(&self, peer: IpAddr) -> u32 {
        self.by_address.get(&peer).map_or(0, |peer| peer.window_share.in_flight())
    }

    /// Forgets peers that no queue pair has any more, if they are many.
    pub(in crate::transport) fn tidy(&mut self, queue_pairs: usize) {
        if self.by_address.len() > 2 * queue_pairs + 16 {
            // A queue pair that waits holds a reference.
            self.by_address.retain(|_, peer| Arc::strong_count(&peer.window_share) > 1);
        }
    }

    /// In front: a queue pair whose grant is not used up.
    fn enqueue(&mut self, peer: IpAddr, slot: u32, in_front: bool) {
        let peer = self.by_address.entry(peer).or_default();
        if in_front {
            peer.waiters.push_front(slot);
        } else {
            peer.waiters.push_back(slot);
        }
        peer.window_share.set_waiters(peer.waiters.len());
        self.waiting += 1;
    }

    fn first(&self, peer: IpAddr) -> Option<u32> {
        self.by_address.get(&peer)?.waiters.front().copied()
    }

    /// The queue pair has its grant, is destroyed, or has another peer: it does not wait any more.
    pub(in crate::transport) fn remove(&mut self, peer: IpAddr, slot: u32) {
        let Some(peer) = self.by_address.get_mut(&peer) else { return };
        let before = peer.waiters.len();
        if peer.waiters.front() == Some(&slot) {
            peer.waiters.pop_front();
        } else {
            peer.waiters.retain(|waiting| *waiting != slot);
        }
        peer.window_share.set_waiters(peer.waiters.len());
        self.waiting -= before - peer.waiters.len();
    }
}

impl Endpoint {
    /// After each change to a queue pair: grants others with the same peer the room that there is now.
    #[inline]
    pub(in crate::transport) fn serve_fair_queue(&mut self, now: Time, slot: u32) {
        let Some(queue_pair) = self.enter(slot) else { return };
        if let Some((peer, in_front)) = queue_pair.requester.begins_to_wait(&queue_pair.common, now) {
            self.enqueue(slot, peer, in_front);
        }
        if self.peers.waiting > 0 {
            self.grant_next(slot);
        }
    }

    #[cold]
    fn enqueue(&mut self, slot: u32, peer: IpAddr, in_front: bool) {
        let Some(queue_pair) = self.at(slot) else { return };
        let deadline = queue_pair.next_deadline();
        self.set_deadline(slot, deadline);
        self.peers.enqueue(peer, slot, in_front);
    }

    #[cold]
    fn grant_next(&mut self, slot: u32) {
        let peer = self.at(slot).and_then(|queue_pair| queue_pair.common.peer_address());
        if let Some(peer) = peer {
            self.grant(peer);
        }
    }

    /// Grants the first that waits its send, if there is room. That send leads to the next grant.
    pub(in crate::transport) fn grant(&mut self, peer: IpAddr) {
        let Some(slot) = self.peers.first(peer) else { return };
        let Some(queue_pair) = self.enter(slot) else { return };
        if !queue_pair.requester.has_room(&queue_pair.common) {
            return;
        }
        queue_pair.requester.grant();
        self.peers.remove(peer, slot);
        self.list(slot);
    }
}
