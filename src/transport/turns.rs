//! Whose turn it is: queue pairs with a common peer address share what its socket holds.
//!
//! As long as all of their packets fit, everybody sends when it wants to. Who finds no room waits in line, and from
//! then on all take turns, each for one send: so none starves, and each send is as full as the queue pair can make it,
//! where a thousand queue pairs that take whatever room they find would all send single packets.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::endpoint::Endpoint;
use super::queue_pair::QueuePair;
use crate::mutation::{Mutation, planted};
use crate::types::Time;

/// Room for so many packets that somebody in line is let in.
const ROOM: u32 = 16;

/// What the queue pairs with a common peer address know of each other. All changes are made under the shard's lock, so
/// none needs a read-modify-write.
#[derive(Default, Debug)]
pub(super) struct Shared {
    in_flight: AtomicU32,
    in_line: AtomicU32,
}

impl Shared {
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

    /// Whether somebody waits.
    #[inline]
    pub(super) fn has_line(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0
    }
}

/// The queue pairs' peers, by address.
#[derive(Default)]
pub(super) struct Peers {
    by_address: HashMap<IpAddr, Peer>,
    /// Places in all lines.
    in_line: usize,
}

#[derive(Default)]
struct Peer {
    shared: Arc<Shared>,
    /// Places of the queue pairs that wait, each once.
    line: VecDeque<u32>,
}

impl Peers {
    pub(super) fn shared(&mut self, peer: IpAddr) -> Arc<Shared> {
        Arc::clone(&self.by_address.entry(peer).or_default().shared)
    }

    pub(super) fn packets_in_flight(&self, peer: IpAddr) -> u32 {
        self.by_address.get(&peer).map_or(0, |peer| peer.shared.in_flight())
    }

    /// Forgets peers that no queue pair has any more, if they are many.
    pub(super) fn tidy(&mut self, queue_pairs: usize) {
        if self.by_address.len() > 2 * queue_pairs + 16 {
            // Nobody stands in their lines.
            self.by_address.retain(|_, peer| Arc::strong_count(&peer.shared) > 1);
        }
    }

    /// In front: whoever has not finished its turn.
    fn push(&mut self, peer: IpAddr, place: u32, in_front: bool) {
        let peer = self.by_address.entry(peer).or_default();
        if in_front {
            peer.line.push_front(place);
        } else {
            peer.line.push_back(place);
        }
        peer.shared.in_line.store(peer.line.len() as u32, Ordering::Relaxed);
        self.in_line += 1;
    }

    fn first(&self, peer: IpAddr) -> Option<u32> {
        self.by_address.get(&peer)?.line.front().copied()
    }

    /// Whoever has come to its turn, is destroyed or goes elsewhere stands in line no more.
    pub(super) fn leave(&mut self, peer: IpAddr, place: u32) {
        let Some(peer) = self.by_address.get_mut(&peer) else { return };
        let before = peer.line.len();
        if peer.line.front() == Some(&place) {
            peer.line.pop_front();
        } else {
            peer.line.retain(|waiting| *waiting != place);
        }
        peer.shared.in_line.store(peer.line.len() as u32, Ordering::Relaxed);
        self.in_line -= before - peer.line.len();
    }
}

/// Where a queue pair stands towards the others.
#[derive(Default, Debug)]
pub(super) struct Turn {
    /// It wanted to send, and others had taken the room.
    is_crowded_out: Cell<bool>,
    /// With so many packets of others in flight, or fewer, it was worth while to let it in.
    others_at_most: Cell<u32>,
    /// It stands in line.
    waits: bool,
    /// It may send although others wait.
    is_on: bool,
}

impl QueuePair {
    /// Whether the others leave room for this queue pair to have `end` packets in flight, of a window for all.
    #[inline]
    pub(super) fn others_allow(&self, shared: &Shared, end: u32, window: u32) -> bool {
        let others = self.packets_of_others(shared);
        let has_room = others == 0 || others.saturating_add(end) <= window;
        let allowed = has_room && (self.turn.is_on || !shared.has_line());
        if !allowed {
            // Exactly what it needs at least: who is let in and finds no room would be let in again at once, for ever.
            let needed = end.max(self.requester.counted_in_flight + ROOM.min(window / 4));
            self.turn.others_at_most.set(window.saturating_sub(needed));
        }
        self.turn.is_crowded_out.set(!allowed);
        allowed
    }

    /// Packets that the others have in flight to the same address.
    #[inline]
    fn packets_of_others(&self, shared: &Shared) -> u32 {
        shared.in_flight().saturating_sub(self.requester.counted_in_flight)
    }

    /// Whether others have packets in flight to the same address.
    #[inline]
    pub(super) fn others_have_packets(&self) -> bool {
        self.path.as_ref().is_some_and(|path| self.packets_of_others(&path.shared) > 0)
    }

    /// Whether so much is in flight that somebody may wait for it soon.
    #[inline]
    pub(super) fn room_is_scarce(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.shared.in_flight() > path.window_packets / 2)
    }

    /// Whether it stands in line and has nothing on its way: no response can come, and no clock runs.
    pub(super) fn waits_for_its_turn(&self) -> bool {
        self.turn.waits && self.requester.cursor == self.requester.unacknowledged
    }

    pub(super) fn is_in_line(&self) -> bool {
        self.turn.waits
    }

    /// It has sent requests, or has none to send now. Its turn goes on until it has asked for a response: nobody would
    /// hear of the room that its packets take.
    #[inline]
    pub(super) fn end_turn(&mut self, has_sent_requests: bool, is_exhausted: bool) {
        let is_asked = has_sent_requests && self.requester.has_asked;
        let has_more = !is_exhausted || self.turn.is_crowded_out.get();
        self.turn.is_on &= has_more && !is_asked;
    }

    /// Whether it stands in line, and the peer was not asked to answer what it has sent last: others may wait for that.
    #[inline]
    pub(super) fn waits_unasked(&self) -> bool {
        self.turn.waits && !self.requester.has_asked
    }

    /// Whether it shall be put in line: where, and whether in front.
    fn joins_line(&mut self, now: Time) -> Option<(IpAddr, bool)> {
        if !self.turn.is_crowded_out.get() || self.turn.waits {
            return None;
        }
        let peer = self.peer_address()?;
        self.turn.waits = true;
        // Whoever stands in line sends nothing: it could leave what it was put there for undone, and the line with it.
        let in_front = std::mem::take(&mut self.turn.is_on);
        if self.waits_unasked() && self.requester.counted_in_flight > 0 {
            self.arm_timers(now);
        }
        Some((peer, in_front))
    }

    /// Whether it is worth while to let it in. Who cannot send in any case shall not keep others waiting.
    fn has_room(&self) -> bool {
        let Some(path) = self.path.as_ref().filter(|_| self.may_transmit()) else { return true };
        let others = self.packets_of_others(&path.shared);
        others == 0 || others <= self.turn.others_at_most.get()
    }
}

impl Endpoint {
    /// After each change to a queue pair: lets others with the same peer in, if there is room now.
    #[inline]
    pub(super) fn take_turns(&mut self, now: Time, place: u32) {
        let Some(queue_pair) = self.at(place) else { return };
        if let Some((peer, in_front)) = queue_pair.joins_line(now) {
            self.join(place, peer, in_front);
        }
        if self.peers.in_line > 0 {
            self.let_in(place);
        }
    }

    #[cold]
    fn join(&mut self, place: u32, peer: IpAddr, in_front: bool) {
        let Some(queue_pair) = self.at(place) else { return };
        let deadline = queue_pair.next_deadline();
        self.set_deadline(place, deadline);
        self.peers.push(peer, place, in_front);
    }

    #[cold]
    fn let_in(&mut self, place: u32) {
        let peer = self.at(place).and_then(|queue_pair| queue_pair.peer_address());
        if let Some(peer) = peer.filter(|_| !planted(Mutation::LineNotAdmitted)) {
            self.admit(peer);
        }
    }

    /// Lets the first in line in, if there is room. Its own send lets in the next.
    pub(super) fn admit(&mut self, peer: IpAddr) {
        let Some(place) = self.peers.first(peer) else { return };
        let Some(queue_pair) = self.at(place).filter(|queue_pair| queue_pair.has_room()) else { return };
        queue_pair.turn = Turn { is_on: true, ..Turn::default() };
        let is_listed = std::mem::replace(&mut queue_pair.listed, true);
        self.peers.leave(peer, place);
        if !is_listed {
            self.list(place);
        }
    }
}
