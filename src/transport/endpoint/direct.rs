//! Direct accesses between processes of one user: the keys to ask peers for, and the grants to them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use super::Endpoint;
use crate::memory::{Admission, Exports, QueuePairGrant, RegionTable};
use crate::types::{AccessFlags, Accessor, Qpn, QueuePairState, QueuePairType, Rkey, Time};

/// Most keys that wait to be asked for. A queue pair asks again later.
const MOST_WANTED: usize = 64;

/// A key with which a queue pair would access its peer's memory directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WantedKey {
    pub(crate) queue_pair: Qpn,
    pub(crate) own: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) destination: Qpn,
    pub(crate) rkey: Rkey,
}

/// The state of direct accesses.
#[derive(Default)]
pub(super) struct DirectAccesses {
    wanted: VecDeque<WantedKey>,
    /// They are forbidden while packets are captured, because they have none.
    is_forbidden: bool,
}

impl DirectAccesses {
    #[inline]
    pub(super) fn is_allowed(&self) -> bool {
        !self.is_forbidden
    }
}

impl Endpoint {
    /// Lets a queue pair access its peer's memory directly, once the peer has admitted keys.
    pub(crate) fn access_directly(&mut self, qpn: Qpn) {
        if let Some(queue_pair) = self.slot_of(qpn).and_then(|slot| self.at(slot))
            && queue_pair.common.service == QueuePairType::ReliableConnection
        {
            queue_pair.requester.access_directly();
        }
    }

    /// Allows or forbids direct accesses of queue pairs and of their peers.
    pub(crate) fn allow_direct_access(&mut self, is_allowed: bool) {
        self.direct.is_forbidden = !is_allowed;
        if !is_allowed {
            self.queue_pairs.iter_mut().flatten().for_each(|queue_pair| queue_pair.responder.end_direct_access());
        }
    }

    /// Executes the requests that a thread has just posted, if all of them access the peer's memory, and nothing else
    /// waits to be sent. Returns whether nothing is left to do for them; otherwise [`Endpoint::handle_doorbell`] must
    /// follow. No deadline begins or ends, so the time matters only if the queue pair panics.
    #[inline]
    pub(crate) fn execute_posted(&mut self, now: impl FnOnce() -> Time, memory: &RegionTable, qpn: Qpn) -> bool {
        if self.direct.is_forbidden || !self.has_nothing_to_send() {
            return false;
        }
        let Some(slot) = self.slot_of(qpn) else { return false };
        let is_done = self.guard_at(now, |endpoint| {
            let queue_pair = endpoint.enter(slot)?;
            Some(queue_pair.requester.execute_posted(&mut queue_pair.common, memory))
        });
        is_done.flatten().unwrap_or(false)
    }

    /// Notes the key that a queue pair wants, if it wants one.
    #[inline]
    pub(super) fn note_wanted_key(&mut self, slot: u32) {
        let Some(queue_pair) = self.at(slot) else { return };
        let Some(rkey) = queue_pair.requester.take_wanted_key() else { return };
        let Some(path) = &queue_pair.common.path else { return };
        let (own, peer, destination) = (path.source.address, path.peer_address, path.destination);
        let queue_pair = queue_pair.common.qpn;
        if self.direct.wanted.len() < MOST_WANTED {
            self.direct.wanted.push_back(WantedKey { queue_pair, own, peer, destination, rkey });
        }
    }

    /// Whether there are keys to ask peers for.
    #[inline]
    pub(crate) fn wants_keys(&self) -> bool {
        !self.direct.wanted.is_empty()
    }

    /// Returns the next key to ask a peer for.
    #[inline]
    pub(crate) fn poll_wanted_key(&mut self) -> Option<WantedKey> {
        self.direct.wanted.pop_front()
    }

    /// Lets a queue pair use a key that its peer has admitted.
    pub(crate) fn admit(&mut self, qpn: Qpn, rkey: Rkey, admission: Admission) {
        if let Some(queue_pair) = self.slot_of(qpn).and_then(|slot| self.at(slot)) {
            queue_pair.requester.admit(rkey, admission);
        }
    }

    /// Grants the peer of a queue pair direct access. Returns the grant, and what requests of the peer may do. `None`:
    /// the queue pair is not connected to this peer, or cannot take requests.
    pub(crate) fn grant_access(
        &mut self,
        qpn: Qpn,
        (peer, peer_qpn): (IpAddr, Qpn),
        exports: &Arc<Exports>,
    ) -> Option<(&QueuePairGrant, Accessor, AccessFlags)> {
        if !self.direct.is_allowed() {
            return None;
        }
        let slot = self.slot_of(qpn)?;
        let queue_pair = self.at(slot)?;
        let common = &queue_pair.common;
        let path = common.path.as_ref()?;
        let takes_requests = matches!(
            common.state,
            QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained
        );
        let is_reliable = common.service == QueuePairType::ReliableConnection;
        if !takes_requests || !is_reliable || (path.peer_address, path.destination) != (peer, peer_qpn) {
            return None;
        }
        let mut access = common.attributes.qp_access_flags.unwrap_or_default() & AccessFlags::REMOTE;
        if common.attributes.max_dest_rd_atomic.unwrap_or(0) == 0 {
            access -= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        let accessor = queue_pair.accessor();
        Some((queue_pair.responder.grant(exports)?, accessor, access))
    }
}
