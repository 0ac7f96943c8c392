//! The oracle: what each request must do, at both ends.
//!
//! Every request works on a slot of memory of its own, with a pattern of its own, so that a byte in the wrong place, an
//! execution too many or too few shows. A slot is used again only after the completion of the request before was polled.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rdma_verbs::memory::Region;
use rdma_verbs::sim::{Network, Port, Random};
use rdma_verbs::types::{
    AsyncEvent, CompletionOpcode, CompletionStatus, Data, Operation, QueuePairAttributes, QueuePairState,
    RawCompletion, ReceiveRequest, Rkey, SendFlags, SendRequest, Sge,
};

use super::world::{Outcome, Terms};

/// Slots of each area; a side has at most as many requests outstanding.
pub(crate) const SLOTS: u64 = 16;
const REGION_BASE: u64 = 0x1000_0000;
const COUNTERS: u64 = 64;

/// Where things lie in a region.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    slot_bytes: u64,
}

#[derive(Clone, Copy)]
enum Area {
    Source,
    Written,
    Readable,
    Fetched,
    Received,
}

impl Layout {
    pub(crate) fn new(largest: u64) -> Self {
        Self { slot_bytes: largest.max(8) }
    }

    pub(crate) fn region_bytes(&self) -> usize {
        (COUNTERS + 5 * SLOTS * self.slot_bytes) as usize
    }

    fn offset(&self, area: Area, index: u64) -> u64 {
        COUNTERS + (area as u64 * SLOTS + index % SLOTS) * self.slot_bytes
    }
}

/// What a request is, and what it must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send {
        immediate: Option<u32>,
    },
    Write {
        immediate: Option<u32>,
    },
    Read,
    FetchAndAdd,
    CompareAndSwap {
        fits: bool,
    },
    /// Refused by the other end.
    Wrong,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    index: u64,
    kind: Kind,
    length: u64,
    signaled: bool,
}

/// One end of the connection, as its application and as the oracle.
pub(crate) struct Side {
    pub(crate) at: usize,
    pub(crate) port: Port,
    pub(crate) region: Arc<Region>,
    layout: Layout,
    depth: u32,
    salt: u64,
    posted: u64,
    outstanding: VecDeque<Posted>,
    since_signaled: u32,
    /// Messages that the other end must receive, in order; those received are taken off.
    messages: VecDeque<Posted>,
    receives_posted: u64,
    received: u64,
    adds_done: u64,
    adds_posted: u64,
    swaps_done: u64,
    swap_value: u64,
    failed: bool,
    refused_something: bool,
    harmed_before: u64,
    draining: bool,
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, posted, received, failed, .. } = self;
        let outstanding = &self.outstanding;
        write!(f, "side {at}: posted {posted} received {received} failed {failed} outstanding {outstanding:?}")
    }
}

fn pattern(salt: u64, index: u64, length: u64) -> Vec<u8> {
    let mut random = Random::new(salt ^ index.wrapping_mul(0x1234_5678_9abc_def1));
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        bytes.extend(random.number().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

impl Side {
    pub(crate) fn new(at: usize, port: Port, region: Arc<Region>, layout: Layout, depth: u32, salt: u64) -> Self {
        Self {
            at,
            port,
            region,
            layout,
            depth,
            salt,
            posted: 0,
            outstanding: VecDeque::new(),
            since_signaled: 0,
            messages: VecDeque::new(),
            receives_posted: 0,
            received: 0,
            adds_done: 0,
            adds_posted: 0,
            swaps_done: 0,
            swap_value: 0,
            failed: false,
            refused_something: false,
            harmed_before: 0,
            draining: false,
        }
    }

    /// After RESET: nothing is posted, nothing will complete.
    pub(crate) fn start_over(&mut self) {
        let mut rest = Vec::new();
        self.port.poll(&mut rest);
        assert!(rest.is_empty(), "completions survived RESET: {rest:?}");
        while self.port.poll_event().is_some() {}
        self.region.write_at(0, &[0; COUNTERS as usize]).unwrap();
        self.posted = 0;
        self.outstanding.clear();
        self.messages.clear();
        self.since_signaled = 0;
        (self.receives_posted, self.received) = (0, 0);
        (self.adds_done, self.adds_posted, self.swaps_done, self.swap_value) = (0, 0, 0, 0);
        (self.failed, self.refused_something, self.draining) = (false, false, false);
        self.salt = self.salt.wrapping_add(0x9e37);
    }

    pub(crate) fn is_done(&self, requests: usize) -> bool {
        (self.failed || self.posted >= requests as u64) && self.outstanding.is_empty()
    }

    /// The application's part of a step: posts, sometimes drains.
    pub(crate) fn act(
        &mut self,
        network: &mut Network,
        terms: &Terms,
        peer_key: Rkey,
        other: &mut Side,
        random: &mut Random,
        outcome: &mut Outcome,
    ) {
        if self.receives_posted - self.received < SLOTS && random.chance(terms.receives) {
            self.post_receive(network);
        }
        let may_post = !self.failed && self.posted < terms.requests as u64;
        if may_post && self.outstanding.len() < self.depth as usize && random.chance(400) {
            self.post(network, terms, peer_key, other, random);
        }
        let state = network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn);
        if !self.draining && state == Some(QueuePairState::ReadyToSend) && random.chance(3) {
            self.draining = true;
            outcome.count("state SQD", 1);
            let attributes = QueuePairAttributes {
                qp_state: Some(QueuePairState::SendQueueDrained),
                en_sqd_async_notify: Some(true),
                ..QueuePairAttributes::default()
            };
            let now = network.now;
            network.hosts[self.at].modify(now, self.port.qpn, &attributes);
        }
    }

    fn sge(&self, area: Area, index: u64, skip: u64, length: u64) -> Sge {
        let addr = REGION_BASE + self.layout.offset(area, index) + skip;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    fn post_receive(&mut self, network: &mut Network) {
        let index = self.receives_posted;
        let half = self.layout.slot_bytes / 2;
        let rest = self.layout.slot_bytes - half;
        let sges = [self.sge(Area::Received, index, 0, half), self.sge(Area::Received, index, half, rest)];
        let request = ReceiveRequest { wr_id: index, sges: &sges };
        let now = network.now;
        if network.hosts[self.at].post_receive(now, &self.port, &request) {
            self.receives_posted += 1;
        }
    }

    fn random_kind(&self, terms: &Terms, random: &mut Random) -> Kind {
        if random.chance(terms.wrong) {
            return Kind::Wrong;
        }
        match random.below(12) {
            0 | 1 => Kind::Send { immediate: None },
            2 => Kind::Send { immediate: Some(random.number() as u32) },
            3..=5 => Kind::Write { immediate: None },
            6 => Kind::Write { immediate: Some(random.number() as u32) },
            7..=9 => Kind::Read,
            10 => Kind::FetchAndAdd,
            _ => Kind::CompareAndSwap { fits: random.chance(700) },
        }
    }

    fn post(&mut self, network: &mut Network, terms: &Terms, peer_key: Rkey, other: &mut Side, random: &mut Random) {
        let index = self.posted;
        let kind = self.random_kind(terms, random);
        let length = match kind {
            Kind::FetchAndAdd | Kind::CompareAndSwap { .. } | Kind::Wrong => 8,
            _ if random.chance(100) => 0,
            _ => random.below(self.layout.slot_bytes + 1),
        };
        let is_last = index + 1 >= terms.requests as u64;
        let signaled = is_last || self.since_signaled + 1 >= self.depth || random.chance(600);
        let operation = self.operation(kind, index, peer_key, random);
        let brings_home = operation.is_read_or_atomic();
        let data = pattern(self.salt, index, length);
        if kind == Kind::Read {
            other.region.write_at(self.layout.offset(Area::Readable, index), &data).unwrap();
        } else if !brings_home {
            self.region.write_at(self.layout.offset(Area::Source, index), &data).unwrap();
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, random.chance(50));
        flags.set(SendFlags::SOLICITED, random.chance(100));
        let area = if brings_home { Area::Fetched } else { Area::Source };
        let cut = random.below(length + 1);
        let sges = [self.sge(area, index, 0, cut), self.sge(area, index, cut, length - cut)];
        let is_inline = !brings_home && length <= 128 && random.chance(300);
        let inline = [&data[..]];
        let data = if is_inline { Data::Inline(&inline) } else { Data::Sges(&sges) };
        let request = SendRequest { wr_id: index, operation, flags, data };
        let now = network.now;
        if !network.hosts[self.at].post_send(now, &self.port, &request) {
            return;
        }
        self.note_posted(Posted { index, kind, length, signaled });
    }

    fn note_posted(&mut self, posted: Posted) {
        self.posted += 1;
        self.since_signaled = if posted.signaled { 0 } else { self.since_signaled + 1 };
        self.outstanding.push_back(posted);
        match posted.kind {
            Kind::Send { .. } | Kind::Write { immediate: Some(_) } => self.messages.push_back(posted),
            Kind::FetchAndAdd => self.adds_posted += 1,
            Kind::CompareAndSwap { fits: true } => self.swap_value += 1,
            _ => {}
        }
    }

    fn operation(&self, kind: Kind, index: u64, rkey: Rkey, random: &mut Random) -> Operation {
        let remote = |area| REGION_BASE + self.layout.offset(area, index);
        match kind {
            Kind::Send { immediate: None } => Operation::Send,
            Kind::Send { immediate: Some(immediate) } => Operation::SendWithImmediate(immediate),
            Kind::Write { immediate: None } => Operation::Write { remote_addr: remote(Area::Written), rkey },
            Kind::Write { immediate: Some(immediate) } => {
                Operation::WriteWithImmediate { remote_addr: remote(Area::Written), rkey, immediate }
            }
            Kind::Read => Operation::Read { remote_addr: remote(Area::Readable), rkey },
            Kind::FetchAndAdd => Operation::FetchAndAdd { remote_addr: REGION_BASE, rkey, add: 1 },
            Kind::CompareAndSwap { fits } => {
                let compare = if fits { self.swap_value } else { u64::MAX };
                let swap = self.swap_value + 1;
                Operation::CompareAndSwap { remote_addr: REGION_BASE + 8, rkey, compare, swap }
            }
            Kind::Wrong if random.chance(500) => {
                Operation::Write { remote_addr: REGION_BASE, rkey: Rkey(rkey.0 ^ 0x0f00) }
            }
            Kind::Wrong => {
                let remote_addr = REGION_BASE + self.layout.region_bytes() as u64 - 4;
                Operation::Read { remote_addr, rkey }
            }
        }
    }

    /// The oracle's part of a step: judges completions and events.
    pub(crate) fn look(&mut self, network: &mut Network, terms: &Terms, other: &mut Side, outcome: &mut Outcome) {
        let mut completions = Vec::new();
        self.port.poll(&mut completions);
        for completion in completions {
            if matches!(completion.opcode, CompletionOpcode::Receive | CompletionOpcode::ReceiveRdmaWithImmediate) {
                self.judge_receive(network, &completion, other);
            } else {
                self.judge_send(network, terms, &completion, other, outcome);
            }
        }
        while let Some(event) = self.port.poll_event() {
            match event {
                AsyncEvent::SendQueueDrained(_) => self.resume(network),
                AsyncEvent::QueuePairAccessError(_) => {
                    assert!(other.posted_wrong(), "{self:?} refused a right request");
                    self.refused_something = true;
                    outcome.count("state ERR", 1);
                }
                AsyncEvent::CommunicationEstablished(_) => {}
                other => panic!("unexpected event {other:?} at {self:?}"),
            }
        }
    }

    fn posted_wrong(&self) -> bool {
        self.failed || self.outstanding.iter().any(|posted| posted.kind == Kind::Wrong)
    }

    fn resume(&mut self, network: &mut Network) {
        assert!(self.draining, "drained without having been asked");
        self.draining = false;
        let now = network.now;
        let state = network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn);
        if state == Some(QueuePairState::SendQueueDrained) {
            network.hosts[self.at].go_to(now, self.port.qpn, QueuePairState::ReadyToSend);
        }
    }

    fn judge_receive(&mut self, network: &Network, completion: &RawCompletion, other: &mut Side) {
        assert_eq!(completion.wr_id, self.received, "receives complete in the order of posting");
        self.received += 1;
        if !completion.status.is_success() {
            let state = network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn);
            assert_eq!(state, Some(QueuePairState::Error), "{completion:?}");
            return;
        }
        let message = other.messages.pop_front().expect("a message that was sent and not yet received");
        let (immediate, is_write) = match message.kind {
            Kind::Send { immediate } => (immediate, false),
            Kind::Write { immediate } => (immediate, true),
            _ => unreachable!("only these make receive completions"),
        };
        assert_eq!(completion.byte_len, message.length as u32, "{message:?}");
        assert_eq!(completion.flags.contains(rdma_verbs::types::CompletionFlags::WITH_IMMEDIATE), immediate.is_some());
        assert_eq!(completion.immediate_or_key, immediate.unwrap_or_default());
        assert_eq!(completion.opcode == CompletionOpcode::ReceiveRdmaWithImmediate, is_write);
        let (area, place) = if is_write { (Area::Written, message.index) } else { (Area::Received, self.received - 1) };
        self.expect_bytes(area, place, &pattern(other.salt, message.index, message.length), "received");
    }

    fn expect_bytes(&self, area: Area, index: u64, expected: &[u8], what: &str) {
        let mut found = vec![0; expected.len()];
        self.region.read_at(self.layout.offset(area, index), &mut found).unwrap();
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert!(wrong.is_none(), "{what} {index}: wrong byte at {wrong:?} of {} at {self:?}", expected.len());
    }

    fn judge_send(
        &mut self,
        network: &Network,
        terms: &Terms,
        completion: &RawCompletion,
        other: &mut Side,
        outcome: &mut Outcome,
    ) {
        let harmed: u64 = network.harmed.iter().sum();
        loop {
            let posted = self.outstanding.pop_front().expect("a completion of an outstanding request");
            if posted.index != completion.wr_id {
                assert!(!posted.signaled, "{posted:?} was passed by {completion:?}");
                self.judge_success(&posted, other);
                continue;
            }
            if completion.status.is_success() {
                assert!(posted.signaled && !self.failed, "{completion:?} {posted:?}");
                self.judge_success(&posted, other);
                self.harmed_before = harmed;
            } else {
                self.judge_failure(network, terms, completion, &posted, other, outcome, harmed);
            }
            return;
        }
    }

    fn judge_success(&mut self, posted: &Posted, other: &Side) {
        let expected = || pattern(self.salt, posted.index, posted.length);
        match posted.kind {
            Kind::Wrong => panic!("a wrong request succeeded: {posted:?}"),
            Kind::Send { .. } => {}
            Kind::Write { .. } => other.expect_bytes(Area::Written, posted.index, &expected(), "written"),
            Kind::Read => self.expect_bytes(Area::Fetched, posted.index, &expected(), "read"),
            Kind::FetchAndAdd => {
                self.expect_bytes(Area::Fetched, posted.index, &self.adds_done.to_ne_bytes(), "added");
                self.adds_done += 1;
            }
            Kind::CompareAndSwap { fits } => {
                self.expect_bytes(Area::Fetched, posted.index, &self.swaps_done.to_ne_bytes(), "swapped");
                self.swaps_done += u64::from(fits);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the circumstances of a failure are many")]
    fn judge_failure(
        &mut self,
        network: &Network,
        terms: &Terms,
        completion: &RawCompletion,
        posted: &Posted,
        other: &Side,
        outcome: &mut Outcome,
        harmed: u64,
    ) {
        if self.failed {
            assert_eq!(completion.status, CompletionStatus::WorkRequestFlushedError, "after a failure");
            return;
        }
        self.failed = true;
        outcome.count("state ERR", 1);
        let other_state = network.hosts[other.at].endpoint.queue_pair_state(other.port.qpn);
        let is_lonely = other_state == Some(QueuePairState::Error);
        let tries_lost = harmed - self.harmed_before > u64::from(terms.retry_cnt);
        let justified = match completion.status {
            CompletionStatus::RemoteAccessError => posted.kind == Kind::Wrong,
            CompletionStatus::WorkRequestFlushedError => self.refused_something || self.is_in_error(network),
            CompletionStatus::RetryExceededError => is_lonely || tries_lost,
            CompletionStatus::ReceiverNotReadyRetryExceededError => terms.rnr_retry != 7,
            _ => false,
        };
        assert!(justified, "{completion:?} of {posted:?}: lost {} at {self:?}", harmed - self.harmed_before);
    }

    fn is_in_error(&self, network: &Network) -> bool {
        network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn) == Some(QueuePairState::Error)
    }

    /// At the end: the counters hold what was added, once each.
    pub(crate) fn check_memory(&self, other: &Side) {
        let counter = |offset: u64| {
            let mut bytes = [0; 8];
            other.region.read_at(offset, &mut bytes).unwrap();
            u64::from_ne_bytes(bytes)
        };
        let (adds, swaps) = (counter(0), counter(8));
        assert!((self.adds_done..=self.adds_posted).contains(&adds), "{adds} additions at {self:?}");
        assert!((self.swaps_done..=self.swap_value).contains(&swaps), "{swaps} swaps at {self:?}");
        if !self.failed {
            assert_eq!((adds, swaps), (self.adds_done, self.swaps_done), "{self:?}");
            assert!(self.messages.is_empty(), "sent and completed, never received: {:?}", self.messages);
        }
    }
}
