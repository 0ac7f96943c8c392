//! The application at one end, which posts requests and receives.

use rdma_verbs::sim::{Network, Random};
use rdma_verbs::types::{
    AccessFlags, CompletionOpcode, Data, FlushFlags, Operation, QueuePairAttributes, QueuePairState, ReceiveRequest,
    Rkey, SendFlags, SendRequest,
};

use super::oracle::Side;
use super::store::{Area, GRANTABLE, REGION_BASE, SLOTS, WORD, pattern};
use super::terms::Terms;
use super::world::Outcome;

/// Requests posted after the connection failed: they must be flushed like the others.
pub(crate) const POSTED_AFTER_FAILURE: u64 = 2;

/// Multiplies a number so that it stands in both halves of a word.
pub(crate) const ONCE_IN_EACH_HALF: u64 = 0x1_0000_0001;

/// A request and its expected outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send {
        immediate: Option<u32>,
    },
    /// Revokes the other end's revocable key.
    SendInvalidate(Rkey),
    Write {
        immediate: Option<u32>,
    },
    /// A fenced WRITE of the bytes that the READ before it fetches.
    Relay,
    Read,
    FetchAndAdd,
    CompareAndSwap {
        fits: bool,
    },
    /// Atomically writes the number of the other end's word.
    AtomicWrite {
        word: u64,
    },
    /// Like `AtomicWrite`, by an ordinary WRITE.
    WordWrite {
        word: u64,
    },
    Flush {
        whole: bool,
    },
    /// A request that the other end must refuse.
    Wrong(Wrong),
}

/// Reasons for which the other end refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    UnknownKey,
    Tag,
    Bounds,
    NoAccess,
    ForeignDomain,
    Deregistered,
    Invalidated,
    NotGranted(AccessFlags),
    TooLong,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) index: u64,
    pub(crate) kind: Kind,
    pub(crate) length: u64,
    /// The request whose bytes it carries.
    pub(crate) source: u64,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// The packets harmed in transit when it was posted.
    pub(crate) harmed: u64,
    /// The packets that could be overtaken when it was posted.
    pub(crate) late: u64,
}

impl Kind {
    /// Returns whether the other end completes a receive for it.
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Self::Send { .. } | Self::SendInvalidate(_) | Self::Write { immediate: Some(_) })
    }

    fn writes_slot(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Relay)
    }

    /// Returns the opcode of its completion.
    pub(crate) fn completes_as(self) -> CompletionOpcode {
        match self {
            Self::Write { .. } | Self::Relay | Self::WordWrite { .. } => CompletionOpcode::Write,
            Self::Read => CompletionOpcode::Read,
            Self::FetchAndAdd => CompletionOpcode::FetchAndAdd,
            Self::CompareAndSwap { .. } => CompletionOpcode::CompareAndSwap,
            Self::AtomicWrite { .. } => CompletionOpcode::AtomicWrite,
            Self::Flush { .. } => CompletionOpcode::Flush,
            _ => CompletionOpcode::Send,
        }
    }

    /// Returns the value that it writes into the other end's word: a number twice, which exposes a torn write.
    fn word(self) -> Option<u64> {
        match self {
            Self::AtomicWrite { word } | Self::WordWrite { word } => Some(word),
            _ => None,
        }
    }

    /// Returns the access flags that the other end must grant.
    fn needs(self) -> AccessFlags {
        match self {
            Self::Write { .. } | Self::Relay | Self::AtomicWrite { .. } | Self::WordWrite { .. } => {
                AccessFlags::REMOTE_WRITE
            }
            Self::Flush { .. } => AccessFlags::FLUSH_GLOBAL,
            Self::Read => AccessFlags::REMOTE_READ,
            Self::FetchAndAdd | Self::CompareAndSwap { .. } => AccessFlags::REMOTE_ATOMIC,
            _ => AccessFlags::empty(),
        }
    }
}

impl Side {
    /// Runs the application's part of a step: posts, sometimes drains.
    pub(crate) fn act(
        &mut self,
        network: &mut Network,
        terms: &Terms,
        other: &mut Side,
        random: &mut Random,
        outcome: &mut Outcome,
    ) {
        if network.is_stopped(self.at) {
            return;
        }
        let is_finished = self.failed && self.posted_after_failure == POSTED_AFTER_FAILURE;
        if !is_finished && self.receives_posted - self.received < SLOTS && random.chance(terms.receives) {
            self.post_receive(network);
        }
        let may_post = !is_finished && (self.failed || self.posted < terms.requests as u64);
        if may_post && self.outstanding.len() < self.depth as usize && random.chance(terms.sends) {
            self.post(network, terms, other, random);
        }
        let state = network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn);
        if may_post && self.draining_from.is_none() && state == Some(QueuePairState::ReadyToSend) && random.chance(3) {
            self.draining_from = Some(self.posted);
            outcome.count("state SQD", 1);
            let attributes =
                QueuePairAttributes::default().qp_state(QueuePairState::SendQueueDrained).en_sqd_async_notify(true);
            let now = network.time_at(self.at);
            network.hosts[self.at].modify(now, self.port.qpn, &attributes);
        }
    }

    fn post_receive(&mut self, network: &mut Network) {
        let index = self.receives_posted;
        let half = self.store.layout.slot_bytes / 2;
        let rest = self.store.layout.slot_bytes - half;
        let sge = |skip, length| self.store.sge(Area::Received, index, skip, length);
        let request = ReceiveRequest { wr_id: index, sges: &[sge(0, half), sge(half, rest)] };
        let now = network.time_at(self.at);
        assert!(network.hosts[self.at].post_receive(now, &self.port, &request), "no room for a receive at {self:?}");
        self.receives_posted += 1;
    }

    fn random_kind(&self, terms: &Terms, other: &Side, random: &mut Random) -> Kind {
        if random.chance(terms.wrong) {
            return Kind::Wrong(self.random_wrong(other, random));
        }
        let before = self.outstanding.back().filter(|posted| posted.kind == Kind::Read && posted.length > 0);
        let word = (self.words_posted + 1) * ONCE_IN_EACH_HALF;
        let kind = match random.below(15) {
            0 if !other.was_revoked => Kind::SendInvalidate(other.store.keys().revocable),
            0 | 1 => Kind::Send { immediate: None },
            2 => Kind::Send { immediate: Some(random.number() as u32) },
            3..=5 if before.is_some() => Kind::Relay,
            3..=5 => Kind::Write { immediate: None },
            6 => Kind::Write { immediate: Some(random.number() as u32) },
            7..=9 => Kind::Read,
            10 => Kind::FetchAndAdd,
            11 => Kind::AtomicWrite { word },
            12 => Kind::WordWrite { word },
            13 => Kind::Flush { whole: random.chance(300) },
            _ => Kind::CompareAndSwap { fits: random.chance(700) },
        };
        if other.grants.contains(kind.needs()) { kind } else { Kind::Send { immediate: None } }
    }

    fn random_wrong(&self, other: &Side, random: &mut Random) -> Wrong {
        let lacking = GRANTABLE - other.grants;
        match random.below(9) {
            0 => Wrong::UnknownKey,
            1 => Wrong::Tag,
            2 => Wrong::Bounds,
            3 => Wrong::NoAccess,
            4 => Wrong::ForeignDomain,
            5 => Wrong::Deregistered,
            6 | 7 if !lacking.is_empty() => Wrong::NotGranted(lacking),
            6 if other.is_revoked => Wrong::Invalidated,
            _ => Wrong::TooLong,
        }
    }

    fn random_length(&self, kind: Kind, random: &mut Random) -> u64 {
        match kind {
            Kind::Wrong(Wrong::TooLong) => self.store.layout.slot_bytes + 8,
            Kind::FetchAndAdd | Kind::CompareAndSwap { .. } | Kind::Wrong(_) => 8,
            Kind::AtomicWrite { .. } | Kind::WordWrite { .. } => 8,
            Kind::Flush { .. } => 0,
            Kind::Relay => self.outstanding.back().map_or(0, |posted| posted.length),
            _ if random.chance(100) => 0,
            _ if random.chance(200) => random.below(self.max_inline.min(self.store.layout.slot_bytes) + 1),
            _ => random.below(self.store.layout.slot_bytes + 1),
        }
    }

    fn post(&mut self, network: &mut Network, terms: &Terms, other: &mut Side, random: &mut Random) {
        let index = self.posted;
        let kind = self.random_kind(terms, other, random);
        let operation = self.operation(kind, index, other, random);
        let is_flush = matches!(operation, Operation::Flush { .. });
        let length = if is_flush { 0 } else { self.random_length(kind, random) };
        let is_last = index + 1 >= terms.requests as u64;
        let signaled = is_last || self.since_signaled + 1 >= self.depth || random.chance(600);
        let source = if kind == Kind::Relay { index - 1 } else { index };
        let data = kind.word().map_or_else(|| pattern(self.salt, source, length), |word| word.to_ne_bytes().to_vec());
        if kind == Kind::Read {
            other.store.fill(Area::Readable, index, &data);
        }
        if kind.writes_slot() {
            other.store.offer(index);
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, kind == Kind::Relay || random.chance(50));
        flags.set(SendFlags::SOLICITED, random.chance(100));
        let brings_home = operation.is_read_or_atomic();
        let can_be_inline = !brings_home && !is_flush && kind != Kind::Relay && length <= self.max_inline;
        let sges = self.sges(kind, brings_home, index, length, random.below(length + 1));
        let inline = [&data[..]];
        let data = if can_be_inline && random.chance(300) { Data::Inline(&inline) } else { Data::Sges(&sges) };
        if let (Data::Sges(_), false) = (data, brings_home || kind == Kind::Relay) {
            let shown = length.min(self.store.layout.slot_bytes) as usize;
            self.store.fill(Area::Source, index, &inline[0][..shown]);
        }
        let request = SendRequest { wr_id: index, operation, flags, data };
        let now = network.time_at(self.at);
        let is_posted = network.hosts[self.at].post_send(now, &self.port, &request);
        assert!(is_posted, "no room for a request at {self:?}");
        let harmed = network.harmed_between(self.at, other.at);
        let late = network.late_between(self.at, other.at);
        let solicited = flags.contains(SendFlags::SOLICITED);
        self.note_posted(Posted { index, kind, length, source, signaled, solicited, harmed, late });
    }

    /// Returns the two SGEs of a request's bytes.
    fn sges(&self, kind: Kind, brings_home: bool, index: u64, length: u64, cut: u64) -> [rdma_verbs::types::Sge; 2] {
        let (area, slot) = match kind {
            Kind::Relay => (Area::Fetched, index - 1),
            _ if brings_home => (Area::Fetched, index),
            _ => (Area::Source, index),
        };
        let cut = if kind == Kind::Wrong(Wrong::TooLong) { self.store.layout.slot_bytes } else { cut };
        let first = self.store.sge(area, slot, 0, cut);
        match kind {
            Kind::Wrong(Wrong::TooLong) => [first, self.store.sge_at(0, length - cut)],
            _ => [first, self.store.sge(area, slot, cut, length - cut)],
        }
    }

    fn note_posted(&mut self, posted: Posted) {
        self.posted += 1;
        self.posted_after_failure += u64::from(self.failed);
        self.since_signaled = if posted.signaled { 0 } else { self.since_signaled + 1 };
        self.outstanding.push_back(posted);
        match posted.kind {
            kind if kind.is_message() => self.messages.push_back(posted),
            Kind::FetchAndAdd => self.adds_posted += 1,
            Kind::CompareAndSwap { fits: true } => self.swap_value += 1,
            Kind::AtomicWrite { .. } | Kind::WordWrite { .. } => self.words_posted += 1,
            _ => {}
        }
    }

    fn operation(&self, kind: Kind, index: u64, other: &mut Side, random: &mut Random) -> Operation {
        let rkey = other.store.keys().main;
        let remote = |area| REGION_BASE + self.store.layout.offset(area, index);
        match kind {
            Kind::Send { immediate: None } => Operation::Send,
            Kind::Send { immediate: Some(immediate) } => Operation::SendWithImmediate(immediate),
            Kind::SendInvalidate(key) => {
                other.was_revoked = true;
                Operation::SendWithInvalidate(key)
            }
            Kind::Write { immediate: None } | Kind::Relay => {
                Operation::Write { remote_addr: remote(Area::Written), rkey }
            }
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
            Kind::AtomicWrite { .. } => Operation::AtomicWrite { remote_addr: REGION_BASE + WORD, rkey },
            Kind::WordWrite { .. } => Operation::Write { remote_addr: REGION_BASE + WORD, rkey },
            Kind::Flush { whole } => {
                let flags = if whole { FlushFlags::GLOBAL | FlushFlags::WHOLE_REGION } else { FlushFlags::GLOBAL };
                let length = self.store.layout.slot_bytes as u32;
                Operation::Flush { remote_addr: remote(Area::Written), rkey, length, flags }
            }
            Kind::Wrong(wrong) => self.wrong_operation(wrong, other, random),
        }
    }

    fn wrong_operation(&self, wrong: Wrong, other: &Side, random: &mut Random) -> Operation {
        let keys = other.store.keys();
        let mut access = |rkey, remote_addr: u64| {
            let word = remote_addr.next_multiple_of(8);
            let operations = [
                (AccessFlags::REMOTE_WRITE, Operation::Write { remote_addr, rkey }),
                (AccessFlags::REMOTE_READ, Operation::Read { remote_addr, rkey }),
                (AccessFlags::REMOTE_WRITE, Operation::AtomicWrite { remote_addr: word, rkey }),
                (AccessFlags::FLUSH_GLOBAL, flush(remote_addr, rkey)),
            ];
            let granted: Vec<_> = operations.iter().filter(|(needs, _)| other.grants.contains(*needs)).collect();
            granted[random.below(granted.len() as u64) as usize].1
        };
        let end = REGION_BASE + self.store.layout.region_bytes();
        match wrong {
            Wrong::UnknownKey => access(Rkey(keys.main.0 ^ 0x0f00), REGION_BASE),
            Wrong::Tag => access(Rkey(keys.main.0 ^ 1), REGION_BASE),
            Wrong::Bounds => access(keys.main, end - 4),
            Wrong::NoAccess => access(keys.no_access, REGION_BASE),
            Wrong::ForeignDomain => access(keys.foreign, REGION_BASE),
            Wrong::Deregistered => access(keys.gone, REGION_BASE),
            Wrong::Invalidated => access(keys.revocable, REGION_BASE),
            Wrong::NotGranted(AccessFlags::REMOTE_WRITE) => {
                Operation::Write { remote_addr: REGION_BASE, rkey: keys.main }
            }
            Wrong::NotGranted(AccessFlags::REMOTE_READ) => {
                Operation::Read { remote_addr: REGION_BASE, rkey: keys.main }
            }
            Wrong::NotGranted(AccessFlags::FLUSH_GLOBAL) => flush(REGION_BASE, keys.main),
            Wrong::NotGranted(_) => Operation::FetchAndAdd { remote_addr: REGION_BASE, rkey: keys.main, add: 1 },
            Wrong::TooLong => Operation::Send,
        }
    }
}

fn flush(remote_addr: u64, rkey: Rkey) -> Operation {
    Operation::Flush { remote_addr, rkey, length: 8, flags: FlushFlags::GLOBAL }
}
