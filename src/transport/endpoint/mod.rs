//! The endpoint: all queue pairs of one shard, and the path of packets to and from them.

mod arrival;
mod direct;
mod discovery;
mod fair_queue;
mod multicast;
mod overflow;
mod panic;
mod quarantine;
mod report;
mod statistics;
mod timer;
mod transmit;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::common::Pass;
use super::congestion::CongestionFactory;
use super::datagram::SourceAddress;
use super::discovery::AnswerLimit;
use super::history::UnmatchedHistory;
use super::management::ManagementQueuePair;
use super::queue_pair::{QueuePair, QueuePairInit};
use super::responder::ReorderBudget;
use crate::memory::MemoryView;
use crate::queue::{Journal, note_later};
use crate::types::modify::{ModifyError, ModifyLimits};
use crate::types::{
    Cause, Counters, PeerCapabilities, Qpn, QueuePairAttributes, QueuePairState, QueuePairStatus, QueuePairType,
    RateLimit, Time,
};

use arrival::Arrivals;
use direct::DirectAccesses;
pub(crate) use direct::WantedKey;
use fair_queue::Paths;
use multicast::Groups;
use quarantine::Quarantine;
pub use statistics::QueuePairView;
#[cfg(feature = "sim")]
pub use timer::Deadlines;
use timer::Timers;

/// Maximum number of random draws of a free queue pair number. At most 4,000 of a block's 4,096 numbers are used, and
/// half of the others are in quarantine. If all blocks are that full, all draws miss once in 100,000 times.
const MOST_DRAWS: u32 = 1_000;

/// Options of an endpoint.
pub struct EndpointConfig {
    /// Blocks of queue pair numbers (their top 12 bits) that it may use.
    pub qpn_blocks: Vec<u32>,
    /// Source of random numbers; the engine's is cryptographic, the simulator's is seeded.
    pub random: Box<dyn FnMut() -> u32 + Send>,
    /// Maximum number of queue pairs.
    pub max_queue_pairs: u32,
    /// How long an acknowledgement may wait for the application's reply.
    pub ack_hold: Duration,
    /// Budget of the reorder buffers; all shards of a device share it.
    pub reorder_budget: Arc<ReorderBudget>,
    /// Maximum number of datagrams in one segmented send (Linux: 64 before 6.3, then 128).
    pub max_segments: usize,
    /// Builds the paths' congestion controllers. Without it each connection may have as much in flight as its peer's
    /// socket holds; to a standard peer, less after a loss.
    pub congestion: Option<Arc<dyn CongestionFactory>>,
    /// The capabilities that this endpoint states when it discovers peers and is discovered. Those of a standard peer:
    /// it takes no part.
    pub capabilities: PeerCapabilities,
    /// Events for subscribers of `tracing`.
    pub journal: Arc<Journal>,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            qpn_blocks: vec![1],
            random: Box::new(|| 0),
            max_queue_pairs: 16_384,
            ack_hold: Duration::from_micros(50),
            reorder_budget: Arc::default(),
            max_segments: 64,
            congestion: None,
            capabilities: PeerCapabilities::STANDARD,
            journal: Arc::default(),
        }
    }
}

/// Why a queue pair could not be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// All numbers are in use.
    #[error("all {limit} queue pairs of the device are in use")]
    TooMany {
        /// Maximum number of queue pairs.
        limit: u32,
    },
    /// This transport service is not supported.
    #[error("qp_type {name} ({0:?}) is not supported by this device", name = .0.name())]
    Unsupported(QueuePairType),
}

/// Hasher for queue pair numbers: they are random, so one multiplication spreads them well enough.
#[derive(Default)]
pub(super) struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = u64::from(value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// All queue pairs of one shard.
///
/// Its methods are of four kinds: commands (`create_queue_pair`, `modify_queue_pair`, …), inputs (`handle_*`), outputs
/// (`poll_transmit`, `next_timeout`) and getters. After inputs and commands, call `poll_transmit` until it returns
/// `None`. Time only moves forward. Nothing here does I/O, reads a clock or blocks.
pub struct Endpoint {
    config: EndpointConfig,
    queue_pairs: Vec<Option<Box<QueuePair>>>,
    free: Vec<u32>,
    by_number: HashMap<Qpn, u32, BuildHasherDefault<QpnHasher>>,
    quarantine: Quarantine,
    /// Queue pairs that may have something to send.
    ready: VecDeque<u32>,
    /// Queue pairs whose only packet to send is an acknowledgement that waits for the application's reply.
    held: Vec<u32>,
    /// Queue pairs that wait for room in the medium to their destinations.
    stalled: Vec<u32>,
    timers: Timers,
    pub(super) paths: Paths,
    /// The queue pair whose code runs, or ran last, under the guard; `None` outside.
    running: Option<u32>,
    /// Number of queue pairs that a panic has ended.
    panics: u64,
    /// [`Endpoint::fail_queue_pairs_of_overflowed`] is running.
    fails_overflowed: bool,
    /// The queue pair of the last datagram, until the follow-up work for its datagrams is done.
    arrivals: Option<Arrivals>,
    /// Counters of packets without a queue pair, and of destroyed queue pairs.
    counters: Counters,
    unmatched: UnmatchedHistory,
    pub(super) groups: Groups,
    management: ManagementQueuePair,
    answer_limit: AnswerLimit,
    direct: DirectAccesses,
}

impl Endpoint {
    /// Creates an endpoint without queue pairs.
    pub fn new(config: EndpointConfig) -> Self {
        Self {
            config,
            queue_pairs: Vec::new(),
            free: Vec::new(),
            by_number: HashMap::default(),
            quarantine: Quarantine::default(),
            ready: VecDeque::new(),
            held: Vec::new(),
            stalled: Vec::new(),
            timers: Timers::default(),
            paths: Paths::default(),
            running: None,
            panics: 0,
            fails_overflowed: false,
            arrivals: None,
            counters: Counters::default(),
            unmatched: UnmatchedHistory::default(),
            groups: Groups::default(),
            management: ManagementQueuePair::default(),
            answer_limit: AnswerLimit::default(),
            direct: DirectAccesses::default(),
        }
    }

    // ---- commands ----

    /// Creates a queue pair in RESET, with a random number from the endpoint's blocks.
    pub fn create_queue_pair(&mut self, init: QueuePairInit) -> Result<Qpn, CreateError> {
        if !QueuePair::is_supported(init.service) {
            return Err(CreateError::Unsupported(init.service));
        }
        let limit = self.most_queue_pairs();
        if self.by_number.len() as u32 >= limit {
            return Err(CreateError::TooMany { limit });
        }
        let qpn = self.free_number().ok_or(CreateError::TooMany { limit })?;
        let (budget, journal) = (Arc::clone(&self.config.reorder_budget), Arc::clone(&self.config.journal));
        let service = init.service.name();
        let queue_pair = Box::new(QueuePair::new(qpn, init, budget, journal));
        let slot = self.free.pop().unwrap_or_else(|| {
            self.queue_pairs.push(None);
            self.queue_pairs.len() as u32 - 1
        });
        self.queue_pairs[slot as usize] = Some(queue_pair);
        self.by_number.insert(qpn, slot);
        // Each is listed at most once, so listing never allocates.
        self.ready.reserve(self.by_number.len().saturating_sub(self.ready.len()));
        self.held.reserve(self.by_number.len().saturating_sub(self.held.len()));
        self.stalled.reserve(self.by_number.len().saturating_sub(self.stalled.len()));
        note_later!(self.config.journal, target: "rdma_verbs::queue_pair", DEBUG, %qpn, service, "created");
        Ok(qpn)
    }

    fn most_queue_pairs(&self) -> u32 {
        self.config.max_queue_pairs.min(self.config.qpn_blocks.len() as u32 * 4_000)
    }

    /// Returns a free number: a random one, or the first one if all draws miss.
    fn free_number(&mut self) -> Option<Qpn> {
        for _ in 0..MOST_DRAWS {
            let random = (self.config.random)();
            let block = self.config.qpn_blocks[(random >> 12) as usize % self.config.qpn_blocks.len()];
            let qpn = Qpn::new(block << 12 | random & 0xfff);
            if self.is_free(qpn) {
                return Some(qpn);
            }
        }
        let numbers_of = |block: &u32| (*block << 12..=*block << 12 | 0xfff).map(Qpn::new);
        self.config.qpn_blocks.iter().flat_map(numbers_of).find(|qpn| self.is_free(*qpn))
    }

    fn is_free(&self, qpn: Qpn) -> bool {
        let is_reserved = qpn.value() <= 1 || qpn == Qpn::MULTICAST;
        !is_reserved && !self.by_number.contains_key(&qpn) && !self.quarantine.contains(qpn)
    }

    /// Changes state and attributes, all or nothing. `source` is the local end of the path that `ah_attr` names.
    pub fn modify_queue_pair(
        &mut self,
        now: Time,
        qpn: Qpn,
        attributes: &QueuePairAttributes,
        source: Option<SourceAddress>,
        limits: &ModifyLimits,
    ) -> Result<(), ModifyError> {
        let slot = *self.by_number.get(&qpn).ok_or(ModifyError::UnknownQueuePair)?;
        let (paths, congestion) = (&mut self.paths, self.config.congestion.as_deref());
        let left = self.queue_pairs[slot as usize].as_ref().and_then(|queue_pair| queue_pair.common.path_key());
        let queue_pair = self.queue_pairs[slot as usize].as_mut().ok_or(ModifyError::UnknownQueuePair)?;
        let to = queue_pair.check_modify(attributes, limits)?;
        if to == QueuePairState::ReadyToReceive {
            queue_pair.common.history.connect(now, &queue_pair.common.counters);
        }
        let (from, was_waiting) = (queue_pair.common.state, queue_pair.requester.is_waiting());
        queue_pair.apply_modify(to, attributes, source, |key| paths.window_share(key), congestion);
        // The error state is noted with its reason, where it is entered.
        if to != from && to != QueuePairState::Error {
            queue_pair.common.log_change(from);
        }
        if attributes.ah_attr.is_some() {
            queue_pair.common.log_path();
        }
        queue_pair.common.path.iter().for_each(|path| paths.note_path(&path.window_share));
        let has_left = was_waiting && !queue_pair.requester.is_waiting();
        left.filter(|_| has_left).iter().for_each(|key| paths.remove(key, slot));
        self.paths.prune(self.by_number.len());
        self.follow_up(now, slot);
        left.iter().for_each(|key| self.grant(key));
        self.running = None;
        Ok(())
    }

    /// Checks whether [`Endpoint::modify_queue_pair`] would accept these attributes. Changes nothing.
    pub fn check_modify(
        &self,
        qpn: Qpn,
        attributes: &QueuePairAttributes,
        limits: &ModifyLimits,
    ) -> Result<(), ModifyError> {
        let queue_pair = self.find(qpn).ok_or(ModifyError::UnknownQueuePair)?;
        queue_pair.check_modify(attributes, limits).map(drop)
    }

    /// Sets or removes a limit of the queue pair's send rate. It lasts until RESET.
    pub fn limit_rate(&mut self, now: Time, qpn: Qpn, limit: &RateLimit) -> Result<(), ModifyError> {
        let slot = self.slot_of(qpn).ok_or(ModifyError::UnknownQueuePair)?;
        let queue_pair = self.at(slot).ok_or(ModifyError::UnknownQueuePair)?;
        queue_pair.requester.limit_rate(limit);
        self.follow_up(now, slot);
        self.running = None;
        Ok(())
    }

    /// Returns the current state and attributes.
    pub fn query_queue_pair(&self, qpn: Qpn) -> Option<QueuePairStatus> {
        self.find(qpn).map(QueuePair::status)
    }

    /// Returns the current state.
    pub fn queue_pair_state(&self, qpn: Qpn) -> Option<QueuePairState> {
        self.find(qpn).map(|queue_pair| queue_pair.common.state)
    }

    /// Removes a queue pair without completions for outstanding requests. Returns false if no queue pair has this
    /// number.
    pub fn destroy_queue_pair(&mut self, qpn: Qpn) -> bool {
        let Some(slot) = self.by_number.remove(&qpn) else { return false };
        let Some(mut queue_pair) = self.queue_pairs[slot as usize].take() else { return false };
        let spare = self.config.qpn_blocks.len() * 4_096 - self.most_queue_pairs() as usize;
        self.quarantine.add(qpn, spare);
        queue_pair.requester.stop();
        queue_pair.requester.note_in_flight(&queue_pair.common);
        self.counters.merge(&queue_pair.common.counters);
        self.timers.set(slot, None);
        self.groups.forget(qpn);
        self.ready.retain(|ready| *ready != slot);
        self.held.retain(|held| *held != slot);
        self.stalled.retain(|stalled| *stalled != slot);
        self.free.push(slot);
        if let Some(key) = queue_pair.common.path_key() {
            self.paths.remove(&key, slot);
            self.grant(&key);
            self.running = None;
        }
        self.config.journal.forget(qpn);
        let state = queue_pair.common.state.name();
        note_later!(self.config.journal, target: "rdma_verbs::queue_pair", DEBUG, %qpn, state, "destroyed");
        drop(queue_pair);
        self.paths.prune(self.by_number.len());
        true
    }

    /// Stops a queue pair that is about to be destroyed or reset from taking more receives of its shared queue. Returns
    /// the `wr_id` of the one that a message had begun to fill, which never completes. Existing completions can be
    /// polled before they are purged.
    pub fn stop_receiving(&mut self, qpn: Qpn) -> Option<u64> {
        let slot = self.slot_of(qpn)?;
        self.at(slot)?.stop_receiving()
    }

    /// Returns queue pair 1, for the connection manager.
    #[inline]
    pub fn management(&mut self) -> &mut ManagementQueuePair {
        &mut self.management
    }

    // ---- getters ----

    /// Returns the counters of the whole endpoint, queue pairs included.
    pub fn counters(&self) -> Counters {
        let mut sum = self.counters.clone();
        self.queue_pairs.iter().flatten().for_each(|queue_pair| sum.merge(&queue_pair.common.counters));
        self.paths.add_to(&mut sum);
        sum
    }

    /// Returns the counters of a queue pair.
    pub fn queue_pair_counters(&self, qpn: Qpn) -> Option<&Counters> {
        self.find(qpn).map(|queue_pair| &queue_pair.common.counters)
    }

    /// Whether the queue pair still has an acknowledgement or a NAK to send.
    pub fn owes_acknowledgement(&self, qpn: Qpn) -> bool {
        self.find(qpn).is_some_and(|queue_pair| queue_pair.responder.owes_acknowledgement())
    }

    /// Returns the bytes in the device's reorder buffers.
    #[cfg(feature = "sim")]
    pub fn reorder_bytes(&self) -> usize {
        self.config.reorder_budget.held()
    }

    /// Returns the packets that all queue pairs together have in flight to an address.
    #[cfg(feature = "sim")]
    pub fn packets_in_flight(&self, peer: std::net::IpAddr) -> u32 {
        self.paths.packets_in_flight(peer)
    }

    /// Returns the number of queue pairs.
    pub fn queue_pair_count(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &QueuePair> {
        self.queue_pairs.iter().flatten().map(|queue_pair| &**queue_pair)
    }

    pub(super) fn find(&self, qpn: Qpn) -> Option<&QueuePair> {
        let slot = *self.by_number.get(&qpn)?;
        self.queue_pairs[slot as usize].as_deref()
    }

    pub(super) fn slot_of(&self, qpn: Qpn) -> Option<u32> {
        self.by_number.get(&qpn).copied()
    }

    /// Returns the slots of the queue pairs for which `holds` is true.
    pub(super) fn slots_where(&self, holds: impl Fn(&QueuePair) -> bool) -> Vec<u32> {
        let all = (0..).zip(&self.queue_pairs);
        all.filter(|(_, queue_pair)| queue_pair.as_deref().is_some_and(&holds)).map(|(slot, _)| slot).collect()
    }

    /// Returns the queue pair in this slot.
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut QueuePair> {
        self.queue_pairs.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Returns the queue pair in this slot, whose code runs next: the guard ends the queue pair if this code panics.
    #[inline]
    pub(super) fn enter(&mut self, slot: u32) -> Option<&mut QueuePair> {
        self.running = Some(slot);
        self.at(slot)
    }

    fn pass<'a>(&self, now: Time, memory: &'a MemoryView<'a>) -> Pass<'a> {
        Pass { now, memory, ack_hold: self.config.ack_hold, accesses_directly: self.direct.is_allowed() }
    }

    // ---- inputs ----

    /// Handles new entries in the queue pair's send queue (or, in the error state, its receive queue).
    pub fn handle_doorbell(&mut self, now: Time, qpn: Qpn) {
        let Some(slot) = self.by_number.get(&qpn).copied() else { return };
        let Some(queue_pair) = self.at(slot) else { return };
        match queue_pair.common.state {
            QueuePairState::Error => {
                return self.flush_posted(now, slot, |queue_pair| queue_pair.flush(Cause::QueuePairInError));
            }
            QueuePairState::SendQueueError => {
                return self.flush_posted(now, slot, |queue_pair| queue_pair.flush_sends(Cause::QueuePairInError));
            }
            _ => {}
        }
        // `poll_transmit` finds out what can be sent.
        self.list(slot);
    }

    #[cold]
    fn flush_posted(&mut self, now: Time, slot: u32, flush: impl FnOnce(&mut QueuePair)) {
        self.guard(now, |endpoint| {
            endpoint.enter(slot).map(flush);
            endpoint.follow_up(now, slot);
        });
    }

    /// Handles expired deadlines.
    pub fn handle_timeout(&mut self, now: Time) {
        // At most as many deadlines as there are queue pairs; those due again by then wait for the next call.
        for _ in 0..self.queue_pairs.len() {
            let Some(slot) = self.timers.pop_expired(now) else { break };
            self.guard(now, |endpoint| {
                if let Some(queue_pair) = endpoint.enter(slot) {
                    queue_pair.handle_timeout(now);
                }
                endpoint.follow_up(now, slot);
            });
        }
    }

    /// Does the follow-up work for a change of a queue pair: its deadline, the list of those with something to send,
    /// and the fair queue.
    fn follow_up(&mut self, now: Time, slot: u32) {
        self.update_deadlines(now, slot);
        self.list_sender(now, slot);
        self.serve_fair_queue(now, slot);
    }

    /// Adds a queue pair to the list of those with something to send.
    #[inline]
    pub(super) fn list(&mut self, slot: u32) {
        if let Some(queue_pair) = self.at(slot)
            && !std::mem::replace(&mut queue_pair.listed, true)
        {
            self.ready.push_back(slot);
        }
    }

    pub(super) fn list_sender(&mut self, now: Time, slot: u32) {
        let Some(queue_pair) = self.enter(slot) else { return };
        if !queue_pair.listed && queue_pair.wants_to_send(now) {
            queue_pair.listed = true;
            self.ready.push_back(slot);
        }
    }

    pub(super) fn update_deadlines(&mut self, now: Time, slot: u32) {
        if self.update_deadline(now, slot) {
            self.fail_queue_pairs_of_overflowed(now);
        }
    }

    /// Updates a queue pair's deadline and held acknowledgement. Returns whether a completion queue overflowed.
    pub(super) fn update_deadline(&mut self, now: Time, slot: u32) -> bool {
        let Some(queue_pair) = self.enter(slot) else { return false };
        let overflowed = queue_pair.follow_up();
        let begins_to_hold = !queue_pair.held && queue_pair.responder.holds_acknowledgement(now);
        let deadline = queue_pair.next_deadline();
        if begins_to_hold {
            queue_pair.held = true;
            self.held.push(slot);
        }
        self.set_deadline(slot, deadline);
        overflowed
    }

    pub(super) fn set_deadline(&mut self, slot: u32, deadline: Option<Time>) {
        self.timers.set(slot, deadline);
    }
}
