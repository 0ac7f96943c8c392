//! The oracle: the expected outcome of each request, at both ends.
//!
//! Every request works on its own slot of memory with its own pattern, so a byte at the wrong offset or an execution
//! too many or too few shows. A slot is reused only after the completion of its previous request was polled.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use rdma_verbs::sim::{Host, Network, Port, Random};
use rdma_verbs::types::{
    AccessFlags, AsyncEvent, CompletionFlags, CompletionOpcode, CompletionStatus, Counter, QueuePairCapabilities,
    QueuePairState, RNR_TIMER_MICROSECONDS, RawCompletion, Time,
};

use super::application::{Kind, ONCE_IN_EACH_HALF, POSTED_AFTER_FAILURE, Posted, Wrong};
use super::referee::Flow;
use super::store::{Area, Layout, SLOTS, Store, WORD, pattern};
use super::terms::Terms;
use super::world::Outcome;

/// How a completion queue is armed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Arm {
    No,
    Solicited,
    Any,
}

/// The counts when the application last saw progress.
#[derive(Clone, Copy, Default)]
struct Progress {
    at: Time,
    harmed: u64,
    sequence_naks: u64,
    rnr_naks: u64,
}

/// One end of the connection: its application and its oracle.
pub(crate) struct Side {
    pub(crate) at: usize,
    pub(crate) port: Port,
    pub(crate) store: Store,
    pub(crate) depth: u32,
    pub(crate) max_inline: u64,
    /// The access flags that the other end has.
    pub(crate) grants: AccessFlags,
    pub(crate) salt: u64,
    pub(crate) posted: u64,
    pub(crate) posted_after_failure: u64,
    pub(crate) outstanding: VecDeque<Posted>,
    pub(crate) since_signaled: u32,
    /// Messages that the other end has yet to receive, in order.
    pub(crate) messages: VecDeque<Posted>,
    pub(crate) receives_posted: u64,
    pub(crate) received: u64,
    adds_done: u64,
    pub(crate) adds_posted: u64,
    swaps_done: u64,
    pub(crate) swap_value: u64,
    pub(crate) words_posted: u64,
    /// The last value seen in this end's word.
    word_seen: u64,
    pub(crate) failed: bool,
    refused_something: bool,
    /// The first request that may not begin while the queue drains.
    pub(crate) draining_from: Option<u64>,
    /// Whether a request that revokes the revocable key was posted; and whether it was executed.
    pub(crate) was_revoked: bool,
    pub(crate) is_revoked: bool,
    arm: Arm,
    progress: Progress,
    /// The counts of the last step.
    latest: Progress,
    timeouts: u64,
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, posted, received, failed, .. } = self;
        let outstanding = &self.outstanding;
        write!(f, "side {at}: posted {posted} received {received} failed {failed} outstanding {outstanding:?}")
    }
}

impl Side {
    pub(crate) fn new(at: usize, host: &mut Host, layout: Layout, terms: &Terms, random: &mut Random) -> Self {
        let cap = QueuePairCapabilities {
            max_send_wr: random.between(1, SLOTS) as u32,
            max_recv_wr: SLOTS as u32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: terms.max_inline,
        };
        let store = Store::new(host, layout);
        let port = host.create_queue_pair(cap);
        Self {
            at,
            port,
            store,
            depth: cap.max_send_wr,
            max_inline: terms.max_inline.into(),
            grants: terms.access[at.min(1)],
            salt: random.number(),
            posted: 0,
            posted_after_failure: 0,
            outstanding: VecDeque::new(),
            since_signaled: 0,
            messages: VecDeque::new(),
            receives_posted: 0,
            received: 0,
            adds_done: 0,
            adds_posted: 0,
            swaps_done: 0,
            swap_value: 0,
            words_posted: 0,
            word_seen: 0,
            failed: false,
            refused_something: false,
            draining_from: None,
            was_revoked: false,
            is_revoked: false,
            arm: Arm::No,
            progress: Progress::default(),
            latest: Progress::default(),
            timeouts: 0,
        }
    }

    /// Starts over after RESET: nothing is posted, nothing will complete.
    pub(crate) fn start_over(&mut self) {
        let mut rest = Vec::new();
        self.port.poll(&mut rest);
        assert!(rest.is_empty(), "completions survived RESET: {rest:?}");
        assert_eq!((self.port.send.pending(), self.port.receive.pending()), (0, 0), "requests survived RESET");
        while self.port.poll_event().is_some() {}
        if self.port.bell.rung() > 0 {
            self.arm = Arm::No;
        }
        self.store.start_over();
        self.posted = 0;
        self.posted_after_failure = 0;
        self.outstanding.clear();
        self.messages.clear();
        self.since_signaled = 0;
        (self.receives_posted, self.received) = (0, 0);
        (self.adds_done, self.adds_posted, self.swaps_done, self.swap_value) = (0, 0, 0, 0);
        (self.words_posted, self.word_seen) = (0, 0);
        (self.failed, self.refused_something, self.draining_from) = (false, false, None);
        self.salt = self.salt.wrapping_add(0x9e37);
    }

    pub(crate) fn connected(&mut self, network: &Network, now: Time) {
        self.timeouts = self.count_timeouts(network);
        self.progress = Progress { at: now, sequence_naks: 0, rnr_naks: 0, ..self.latest };
        self.latest = self.progress;
    }

    pub(crate) fn is_done(&self, requests: usize) -> bool {
        let is_posted = if self.failed {
            self.posted_after_failure == POSTED_AFTER_FAILURE
        } else {
            self.posted >= requests as u64
        };
        is_posted && self.outstanding.is_empty()
    }

    pub(crate) fn is_in_error(&self, network: &Network) -> bool {
        network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn) == Some(QueuePairState::Error)
    }

    /// Runs the oracle's part of a step: judges completions, notifications and events.
    pub(crate) fn judge_step(
        &mut self,
        network: &mut Network,
        terms: &Terms,
        other: &mut Side,
        flow: &Flow,
        random: &mut Random,
        outcome: &mut Outcome,
    ) {
        let before = self.latest;
        self.latest = Progress {
            at: network.time_at(self.at),
            harmed: network.harmed_between(self.at, other.at),
            sequence_naks: flow.sequence_naks,
            rnr_naks: flow.rnr_naks,
        };
        let mut completions = Vec::new();
        self.port.poll(&mut completions);
        let mut is_solicited = false;
        for completion in &completions {
            assert_eq!(completion.qpn, self.port.qpn, "{completion:?}");
            is_solicited |= !completion.status.is_success();
            if matches!(completion.opcode, CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteWithImmediate) {
                is_solicited |= self.judge_receive(network, completion, other);
            } else {
                self.judge_send(network, terms, completion, other, outcome);
                // Events since the last step may have happened after the completion.
                self.progress = before;
            }
        }
        assert_eq!(self.port.send.pending() as usize, self.outstanding.len(), "slots in use at {self:?}");
        self.judge_word(other);
        self.judge_notification(!completions.is_empty(), is_solicited, random);
        self.judge_timeouts(network, terms, other, flow);
        self.check_events(network, other, outcome);
    }

    /// Checks the word, which is written in the order of the requests, each time as a whole and once: so it only grows.
    fn judge_word(&mut self, other: &Side) {
        let word = self.store.counter(WORD);
        let most = other.words_posted * ONCE_IN_EACH_HALF;
        let is_right = word.is_multiple_of(ONCE_IN_EACH_HALF) && (self.word_seen..=most).contains(&word);
        assert!(is_right, "the word of {self:?} holds {word:#x} after {:#x}", self.word_seen);
        self.word_seen = word;
    }

    fn judge_notification(&mut self, has_completed: bool, is_solicited: bool, random: &mut Random) {
        let is_due = match self.arm {
            Arm::No => false,
            Arm::Solicited => is_solicited,
            Arm::Any => has_completed,
        };
        assert_eq!(self.port.bell.rung(), u32::from(is_due), "notifications, armed for {:?} at {self:?}", self.arm);
        if is_due {
            self.arm = Arm::No;
        }
        if random.chance(if self.arm == Arm::No { 500 } else { 100 }) {
            let solicited_only = random.chance(700);
            self.port.completions.req_notify(solicited_only);
            // A queue that is armed for all completions stays armed for all.
            self.arm = self.arm.max(if solicited_only { Arm::Solicited } else { Arm::Any });
        }
    }

    fn count_timeouts(&self, network: &Network) -> u64 {
        let counters = network.hosts[self.at].endpoint.queue_pair_counters(self.port.qpn);
        counters.map_or(0, |counters| counters.get(Counter::LocalAckTimeout))
    }

    /// Checks that no transport timer expires unless packets were harmed in transit or the other end is gone. If the
    /// timer is long enough for several probes, those must have been harmed as well. Packets that overtake one without
    /// a receive are not kept, and no response reports them.
    fn judge_timeouts(&mut self, network: &Network, terms: &Terms, other: &Side, flow: &Flow) {
        let timeouts = self.count_timeouts(network);
        let expired = timeouts > self.timeouts;
        self.timeouts = timeouts;
        let Some(oldest) = self.outstanding.front().filter(|_| expired && !self.failed) else { return };
        let harmed = self.latest.harmed - oldest.harmed;
        let enough = if terms.is_patient { 3 } else { 1 };
        let is_overtaken = flow.has_lacked_receives && network.late_between(self.at, other.at) > oldest.late;
        let is_justified = harmed >= enough || is_overtaken || self.is_lonely(network, other) || terms.socket.is_some();
        assert!(is_justified, "a timeout, but only {harmed} packets were harmed at {self:?}");
    }

    fn check_events(&mut self, network: &mut Network, other: &Side, outcome: &mut Outcome) {
        while let Some(event) = self.port.poll_event() {
            match event {
                AsyncEvent::SendQueueDrained(_) => self.resume(network),
                AsyncEvent::QueuePairAccessError(_) | AsyncEvent::QueuePairRequestError(_) => {
                    assert!(other.posted_wrong(), "{self:?} refused a correct request");
                    self.refused_something = true;
                    outcome.count("state ERR", 1);
                }
                AsyncEvent::CommunicationEstablished(_) => {}
                other => panic!("unexpected event {other:?} at {self:?}"),
            }
        }
    }

    fn posted_wrong(&self) -> bool {
        self.failed || self.outstanding.iter().any(|posted| matches!(posted.kind, Kind::Wrong(_)))
    }

    fn resume(&mut self, network: &mut Network) {
        assert!(self.draining_from.is_some(), "drained without a request to drain");
        self.draining_from = None;
        let now = network.time_at(self.at);
        let state = network.hosts[self.at].endpoint.queue_pair_state(self.port.qpn);
        if state == Some(QueuePairState::SendQueueDrained) {
            network.hosts[self.at].go_to(now, self.port.qpn, QueuePairState::ReadyToSend);
        }
    }

    /// Judges a receive. Returns whether its message was solicited.
    fn judge_receive(&mut self, network: &Network, completion: &RawCompletion, other: &mut Side) -> bool {
        assert_eq!(completion.wr_id, self.received, "receives complete in the order of posting");
        self.received += 1;
        if !completion.status.is_success() {
            let is_flushed = completion.status == CompletionStatus::WorkRequestFlushedError;
            assert!(self.is_in_error(network) && (is_flushed || other.posted_wrong()), "{completion:?}");
            return false;
        }
        let message = other.messages.pop_front().expect("a message that was sent and not yet received");
        let (flags, value, is_write) = match message.kind {
            Kind::Send { immediate: None } => (CompletionFlags::empty(), 0, false),
            Kind::Send { immediate: Some(value) } => (CompletionFlags::WITH_IMMEDIATE, value, false),
            Kind::Write { immediate: Some(value) } => (CompletionFlags::WITH_IMMEDIATE, value, true),
            Kind::SendInvalidate(key) => (CompletionFlags::WITH_INVALIDATE, key.0, false),
            _ => unreachable!("only these make receive completions"),
        };
        assert_eq!(completion.byte_len, message.length as u32, "{message:?}");
        assert_eq!((completion.flags, completion.immediate_or_key), (flags, value), "{message:?}");
        assert_eq!(completion.opcode == CompletionOpcode::ReceiveWriteWithImmediate, is_write);
        let (area, slot) = if is_write { (Area::Written, message.index) } else { (Area::Received, self.received - 1) };
        self.store.expect_bytes(area, slot, &pattern(other.salt, message.source, message.length));
        self.is_revoked |= matches!(message.kind, Kind::SendInvalidate(_));
        message.solicited
    }

    fn judge_send(
        &mut self,
        network: &Network,
        terms: &Terms,
        completion: &RawCompletion,
        other: &mut Side,
        outcome: &mut Outcome,
    ) {
        loop {
            let posted = self.outstanding.pop_front().expect("a completion of an outstanding request");
            if posted.index != completion.wr_id {
                assert!(!posted.signaled, "{posted:?} was passed by {completion:?}");
                self.judge_success(&posted, other);
                continue;
            }
            if completion.status.is_success() {
                assert!(posted.signaled && !self.failed, "{completion:?} {posted:?}");
                let length = match posted.kind {
                    Kind::Read | Kind::FetchAndAdd | Kind::CompareAndSwap { .. } => posted.length as u32,
                    _ => 0,
                };
                let (opcode, found) = (posted.kind.completes_as(), (completion.opcode, completion.byte_len));
                assert_eq!(found, (opcode, length), "{completion:?} {posted:?}");
                outcome.count_if(opcode == CompletionOpcode::AtomicWrite, "ATOMIC WRITE done");
                outcome.count_if(opcode == CompletionOpcode::Flush, "FLUSH done");
                self.judge_success(&posted, other);
            } else {
                self.judge_failure(network, terms, completion, &posted, other, outcome);
            }
            return;
        }
    }

    fn judge_success(&mut self, posted: &Posted, other: &mut Side) {
        let is_early = self.draining_from.is_some_and(|first| posted.index >= first);
        assert!(!is_early, "{posted:?} began while the queue drained");
        let expected = || pattern(self.salt, posted.source, posted.length);
        match posted.kind {
            Kind::Wrong(_) => panic!("a wrong request succeeded: {posted:?}"),
            Kind::Send { .. } | Kind::SendInvalidate(_) => {
                let is_received = other.messages_received(self).is_none_or(|oldest| oldest > posted.index);
                assert!(is_received, "{posted:?} completed before it was received");
            }
            Kind::Write { immediate } => {
                other.store.expect_bytes(Area::Written, posted.index, &expected());
                if immediate.is_none() {
                    other.store.consume(posted.index, posted.length);
                }
            }
            Kind::Relay => {
                other.store.expect_bytes(Area::Written, posted.index, &expected());
                other.store.consume(posted.index, posted.length);
            }
            Kind::Read => self.store.expect_bytes(Area::Fetched, posted.index, &expected()),
            Kind::FetchAndAdd => {
                self.store.expect_bytes(Area::Fetched, posted.index, &self.adds_done.to_ne_bytes());
                self.adds_done += 1;
            }
            Kind::AtomicWrite { word } | Kind::WordWrite { word } => {
                assert!(other.store.counter(WORD) >= word, "{posted:?} completed before it was written");
            }
            // All requests before it have been judged already.
            Kind::Flush { .. } => {}
            Kind::CompareAndSwap { fits } => {
                self.store.expect_bytes(Area::Fetched, posted.index, &self.swaps_done.to_ne_bytes());
                self.swaps_done += u64::from(fits);
            }
        }
    }

    /// Returns the oldest message of the sender that this end has not received: the messages before it were polled, or
    /// wait in the completion queue.
    fn messages_received(&self, sender: &Side) -> Option<u64> {
        let waiting = self.port.completions.len();
        sender.messages.get(waiting).map(|message| message.index)
    }

    /// Returns whether the other end has left the connection.
    fn is_lonely(&self, network: &Network, other: &Side) -> bool {
        other.is_in_error(network)
    }

    fn judge_failure(
        &mut self,
        network: &Network,
        terms: &Terms,
        completion: &RawCompletion,
        posted: &Posted,
        other: &Side,
        outcome: &mut Outcome,
    ) {
        if self.failed {
            assert_eq!(completion.status, CompletionStatus::WorkRequestFlushedError, "after a failure");
            return;
        }
        self.failed = true;
        outcome.count("state ERR", 1);
        let refusal = match posted.kind {
            Kind::Wrong(Wrong::TooLong | Wrong::NotGranted(_)) => CompletionStatus::RemoteInvalidRequestError,
            Kind::Wrong(_) => CompletionStatus::RemoteAccessError,
            _ => CompletionStatus::Success,
        };
        let is_justified = match completion.status {
            status if status == refusal => true,
            CompletionStatus::WorkRequestFlushedError => self.refused_something || self.is_in_error(network),
            CompletionStatus::RetryExceededError => {
                self.is_lonely(network, other) || self.were_tries_lost(terms, posted)
            }
            CompletionStatus::ReceiverNotReadyRetryExceededError => self.were_tries_refused(terms),
            CompletionStatus::BadResponseError => network.shortened > 0,
            _ => false,
        };
        let harmed = self.latest.harmed - self.progress.harmed;
        assert!(is_justified, "{completion:?} of {posted:?}: {harmed} harmed since the last progress at {self:?}");
    }

    /// Returns whether all agreed tries were made, each for its full time or after a NAK, and all were lost. The first
    /// of them may have been lost before the last progress.
    fn were_tries_lost(&self, terms: &Terms, posted: &Posted) -> bool {
        let tries = u64::from(terms.retry_cnt) + 1;
        let waited = self.latest.at.saturating_since(self.progress.at);
        let naks = self.latest.sequence_naks - self.progress.sequence_naks;
        let made = (waited.as_nanos() / terms.timeout().as_nanos()) as u64 + naks;
        let lost_since_posted = self.latest.harmed - posted.harmed;
        let lost_since_progress = self.latest.harmed - self.progress.harmed;
        made >= tries && lost_since_posted >= tries && lost_since_progress + 1 >= tries
    }

    /// Returns whether the other end lacked a receive for more than the agreed tries, with the waits that it requested.
    fn were_tries_refused(&self, terms: &Terms) -> bool {
        let tries = u64::from(terms.rnr_retry);
        let wait = Duration::from_micros(RNR_TIMER_MICROSECONDS[usize::from(terms.min_rnr_timer)].into());
        let waited = self.latest.at.saturating_since(self.progress.at);
        let naks = self.latest.rnr_naks - self.progress.rnr_naks;
        terms.rnr_retry != 7 && naks > tries && waited >= wait * tries as u32
    }

    /// Checks memory at the end: the counters hold each addition once; no byte was written elsewhere.
    pub(crate) fn check_memory(&self, network: &Network, other: &Side, is_finished: bool) {
        let (adds, swaps) = (other.store.counter(0), other.store.counter(8));
        assert!((self.adds_done..=self.adds_posted).contains(&adds), "{adds} additions at {self:?}");
        assert!((self.swaps_done..=self.swap_value).contains(&swaps), "{swaps} swaps at {self:?}");
        self.store.check();
        if is_finished && !self.failed {
            assert_eq!((adds, swaps), (self.adds_done, self.swaps_done), "{self:?}");
            assert_eq!(other.store.counter(WORD), self.words_posted * ONCE_IN_EACH_HALF, "{self:?}");
            assert!(self.messages.is_empty(), "sent and completed, never received: {:?}", self.messages);
        }
        if is_finished && self.is_in_error(network) {
            assert_eq!(self.received, self.receives_posted, "receives were not flushed at {self:?}");
        }
    }
}
