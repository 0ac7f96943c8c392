//! A shared receive queue, its posted receives, and the bytes that they received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdma_verbs::memory::{Backing, Region};
use rdma_verbs::queue::{
    AsyncEventQueue, CompletionQueue, SharedReceiveInit, SharedReceiveQueue, SourceToken, XrcDomain,
};
use rdma_verbs::sim::{Host, Random};
use rdma_verbs::types::{AccessFlags, AsyncEvent, RawCompletion, ReceiveRequest, Sge, SharedReceiveQueueNumber};

use super::shared::DOMAIN;
use super::world::Outcome;

pub(crate) const RECEIVE_BYTES: u64 = 2_048;
const BASE: u64 = 0x4000_0000;
const MOST_WAITING: u64 = 24;
/// The byte of receives into which nothing was received.
const UNTOUCHED: u8 = 0xee;

/// A shared receive queue and its memory: each receive has its own slot.
pub(crate) struct Pool {
    pub(crate) queue: Arc<SharedReceiveQueue>,
    completions: Option<Arc<CompletionQueue>>,
    events: Arc<AsyncEventQueue>,
    region: Arc<Region>,
    posted: u64,
    /// Maximum number of posted receives.
    most: u64,
    /// Receives that are posted and not completed.
    open: BTreeSet<u64>,
    /// The expected bytes of each completed receive; `None` for those that were flushed.
    holds: BTreeMap<u64, Option<Vec<u8>>>,
    armed: Option<u32>,
    /// Chance of posting a receive in a step, in permille.
    diligence: u32,
}

impl Pool {
    /// Makes a queue for receives that complete at its own completion queue, or at the queue pair's.
    pub(crate) fn new(host: &Host, number: u32, most: u64, completes_itself: bool, random: &mut Random) -> Self {
        let backing = Backing::from_vec(vec![UNTOUCHED; (most.max(1) * RECEIVE_BYTES) as usize]);
        let region = host.memory.register(DOMAIN, backing, Some(BASE), AccessFlags::LOCAL_WRITE).expect("a region");
        let events = AsyncEventQueue::new(64, None);
        let completions = completes_itself.then(|| CompletionQueue::new(100 + number, 256, None));
        let queue = SharedReceiveQueue::new(SharedReceiveInit {
            number: SharedReceiveQueueNumber::new(0x100 + number),
            domain: DOMAIN,
            max_wr: random.between(1, MOST_WAITING) as u32,
            max_sge: 2,
            srq_limit: 0,
            events: events.clone(),
            completions: completions.as_ref().map(with_token),
        });
        let diligence = random.choose(&[50, 300, 900]);
        let (open, holds) = (BTreeSet::new(), BTreeMap::new());
        Self { queue, completions, events, region, posted: 0, most, open, holds, armed: None, diligence }
    }

    /// Returns whether a message is being placed into a receive.
    pub(crate) fn is_being_filled(&self) -> bool {
        self.open.len() as u32 > self.queue.available()
    }

    /// Returns whether its receives complete at its own completion queue.
    pub(crate) fn completes_itself(&self) -> bool {
        self.completions.is_some()
    }

    /// Runs the application's part of a step: posts receives, changes the size, arms the limit.
    pub(crate) fn act(&mut self, random: &mut Random, outcome: &mut Outcome) {
        let max_wr = self.queue.status().max_wr;
        let mut wanted = if random.chance(self.diligence) { random.between(1, 4) } else { 0 };
        while wanted > 0 && self.queue.available() < max_wr && self.posted < self.most {
            self.post();
            wanted -= 1;
        }
        let least = self.queue.available().max(self.armed.unwrap_or(0)).max(1);
        if random.chance(10) && u64::from(least) <= MOST_WAITING {
            let max_wr = random.between(least.into(), MOST_WAITING) as u32;
            self.queue.resize(max_wr, None).expect("what waits fits");
            outcome.count("shared: resized", 1);
        }
        if self.armed.is_none() && random.chance(100) {
            let limit = random.between(1, self.queue.status().max_wr.into()) as u32;
            self.queue.arm(limit).expect("the queue holds as many");
            self.armed = Some(limit);
        }
    }

    fn post(&mut self) {
        let (addr, lkey) = (BASE + self.posted * RECEIVE_BYTES, self.region.lkey());
        let first = 100 + self.posted as u32 % 1_000;
        let second = RECEIVE_BYTES as u32 - first;
        let sges = [Sge { addr, length: first, lkey }, Sge { addr: addr + u64::from(first), length: second, lkey }];
        let request = ReceiveRequest { wr_id: self.posted, sges: &sges };
        assert!(Host::post_shared_receive(&self.queue, &request), "no room for a receive");
        self.open.insert(self.posted);
        self.posted += 1;
    }

    /// Checks that the limit event comes once, when fewer receives are left than the limit, and disarms.
    pub(crate) fn check_limit_event(&mut self, outcome: &mut Outcome) {
        let is_due = self.armed.is_some_and(|limit| self.queue.available() < limit);
        let mut events = 0;
        while let Some(event) = self.events.poll() {
            assert_eq!(event, AsyncEvent::SharedReceiveQueueLimitReached(self.queue.number()));
            events += 1;
        }
        let (armed, left) = (self.armed, self.queue.available());
        assert_eq!(events, u32::from(is_due), "limit events, armed for {armed:?} with {left} left");
        if is_due {
            self.armed = None;
            outcome.count("shared: limit reached", 1);
        }
        assert_eq!(self.queue.status().srq_limit, self.armed.unwrap_or(0), "the limit that is armed");
    }

    /// Polls its own completion queue, if it has one.
    pub(crate) fn poll(&self, out: &mut Vec<RawCompletion>) {
        let mut some = [RawCompletion::default(); 256];
        let count = self.completions.as_ref().map_or(0, |queue| queue.poll(&mut some));
        out.extend_from_slice(&some[..count]);
    }

    /// Records that a receive has completed with these bytes; with any bytes (`None`) if it was flushed.
    pub(crate) fn complete(&mut self, wr_id: u64, bytes: Option<Vec<u8>>) {
        assert!(self.open.remove(&wr_id), "receive {wr_id} completed again, or was never posted");
        let taken = self.posted - u64::from(self.queue.available());
        assert!(wr_id < taken, "receive {wr_id} completed before it was taken");
        if let Some(bytes) = &bytes {
            assert!(self.read(wr_id, bytes.len() as u64) == *bytes, "wrong bytes in receive {wr_id}");
        }
        self.holds.insert(wr_id, bytes);
    }

    fn read(&self, wr_id: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.region.read_at(wr_id * RECEIVE_BYTES, &mut bytes).expect("a receive's own bytes");
        bytes
    }

    /// Checks at the end that every receive has completed or is still posted, and holds exactly its message.
    pub(crate) fn finish(&self) {
        assert_eq!(self.open.len() as u32, self.queue.available(), "receives are lost: {:?}", self.open);
        for number in 0..self.posted {
            let came = match self.holds.get(&number) {
                Some(None) => continue,
                Some(Some(bytes)) => &bytes[..],
                None => &[],
            };
            let found = self.read(number, RECEIVE_BYTES);
            let (message, rest) = found.split_at(came.len());
            assert!(message == came, "receive {number} was written again");
            assert!(rest.iter().all(|byte| *byte == UNTOUCHED), "more was written into receive {number}");
        }
    }
}

fn with_token(queue: &Arc<CompletionQueue>) -> (Arc<CompletionQueue>, SourceToken) {
    (queue.clone(), queue.attach(None))
}

/// Returns a domain whose messages may name these queues.
pub(crate) fn domain_of(pools: &[Pool]) -> Arc<XrcDomain> {
    let domain = XrcDomain::new();
    pools.iter().for_each(|pool| domain.add(&pool.queue));
    domain
}
