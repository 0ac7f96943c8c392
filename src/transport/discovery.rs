//! Discovery of native peers: two programs that exchanged only queue pair numbers and addresses find out that both run
//! on this crate (`docs/wire.md`, "Discovery").
//!
//! Each end of a connection asks the other one at its queue pair 1, and learns only from answers to its own question: a
//! question changes nothing at its receiver, so that a forged one has no effect. An answer repeats the random nonce of
//! the question, which only the peer has seen.
//!
//! The two ends learn one after the other, in two steps. An end that has *learned* the peer's capabilities and share
//! takes everything that a native peer sends, but does not send such packets itself: the peer may still take it for a
//! standard one. An answer proves that the peer has learned this end's share of the same connection. Then the peer is
//! *confirmed*: this end sends bursts, and offers the key with each packet ([`super::packet_check`]). If one end
//! connects its queue pair again, the connection therefore never gets two different keys.
//!
//! Without an answer, or after a refusal, the peer counts as a standard one.

use std::time::Duration;

use crate::types::{KeyShare, PeerCapabilities, PeerKey, Qpn, Time};
use crate::wire::mad::{Discovery as Message, DiscoveryAnswer, DiscoveryContent};

/// Number of questions until the peer counts as a standard one, and again until one that has answered proves that it
/// knows the key. With the interval doubled each time, the last one leaves 33 s after the first: the peer's program may
/// connect its queue pair so much later.
const MOST_QUESTIONS: u8 = 16;
/// Time between the first two questions.
const FIRST_INTERVAL: Duration = Duration::from_millis(1);
/// Shortest time between two answers of a queue pair.
const ANSWER_INTERVAL: Duration = Duration::from_micros(500);
/// Mean time between the answers of an endpoint, after [`MOST_ANSWERS_AT_ONCE`].
const ANSWER_PERIOD: Duration = Duration::from_micros(100);
/// Number of answers of an endpoint that may leave without a pause: as many queue pairs may be connected at once.
const MOST_ANSWERS_AT_ONCE: u32 = 1_024;

/// The random numbers of an end of a connection. They must come from a cryptographic random number generator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secrets {
    /// Its share of the key.
    pub(super) share: KeyShare,
    /// The nonce of its questions.
    pub(super) nonce: u64,
}

impl Secrets {
    /// Draws them.
    pub(super) fn draw(random: &mut dyn FnMut() -> u32) -> Self {
        let mut share = [0; KeyShare::BYTES];
        share.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| *bytes = random().to_be_bytes());
        Self { share: KeyShare::new(share), nonce: u64::from(random()) << 32 | u64::from(random()) }
    }
}

/// The knowledge of an end about its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knowledge {
    /// Nothing: it is treated as a standard one.
    None,
    /// It is native, and has this share. It may not know that this end is native.
    Learned(KeyShare),
    /// It has this share, and has learned this end's.
    Confirmed(KeyShare),
}

/// The content of an answer, and its effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    /// The peer's capabilities.
    pub(super) capabilities: PeerCapabilities,
    /// Whether it is the first answer.
    pub(super) is_first: bool,
    /// The key, if the peer is confirmed now.
    pub(super) key: Option<PeerKey>,
}

/// The discovery of one connection's peer, and the answers to that peer.
#[derive(Debug)]
pub(super) struct Discovery {
    secrets: Secrets,
    /// The capabilities that answers state.
    capabilities: PeerCapabilities,
    /// UDP port of the socket for bursts to the peer, once it is confirmed; `None`: none is open.
    segmenting_port: Option<u16>,
    peer: Knowledge,
    questions_left: u8,
    interval: Duration,
    /// When the next question is due.
    ask_at: Option<Time>,
    /// A question is due, and waits to be sent.
    asks: bool,
    /// The nonce of the question that waits for its answer. A later question replaces it.
    owed: Option<u64>,
    answer_from: Time,
    sent: u32,
}

impl Discovery {
    /// Begins: the first question is due at once.
    pub(super) fn new(
        now: Time,
        secrets: Secrets,
        capabilities: PeerCapabilities,
        segmenting_port: Option<u16>,
    ) -> Self {
        Self {
            secrets,
            capabilities,
            segmenting_port,
            peer: Knowledge::None,
            questions_left: MOST_QUESTIONS,
            interval: FIRST_INTERVAL,
            ask_at: Some(now),
            asks: false,
            owed: None,
            answer_from: Time::ZERO,
            sent: 0,
        }
    }

    /// Returns when [`Discovery::handle_timeout`] must be called.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.ask_at
    }

    /// Returns the port of the socket for bursts.
    pub(super) fn segmenting_port(&self) -> Option<u16> {
        self.segmenting_port
    }

    /// Forgets the socket for bursts: the connection's path has changed.
    pub(super) fn forget_segmenting_port(&mut self) {
        self.segmenting_port = None;
    }

    /// Makes a question due.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.ask_at.is_some_and(|at| at <= now) {
            (self.ask_at, self.asks) = (None, true);
        }
    }

    /// Whether a question or an answer waits to be sent.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        self.asks || self.owed.is_some()
    }

    /// Takes the next message from the queue pair `own` to the queue pair `peer`, and the number of messages before it.
    pub(super) fn poll(&mut self, now: Time, own: Qpn, peer: Qpn) -> Option<(Message, u32)> {
        let (nonce, content) = match self.owed.take() {
            Some(nonce) => (nonce, DiscoveryContent::Answer(self.answer(nonce, own, peer))),
            None if std::mem::take(&mut self.asks) => {
                self.plan_next_question(now);
                (self.secrets.nonce, DiscoveryContent::Question)
            }
            None => return None,
        };
        let number = self.sent;
        self.sent = number.wrapping_add(1);
        Some((Message { nonce, receiver: peer, sender: own, content }, number))
    }

    fn answer(&self, nonce: u64, own: Qpn, peer: Qpn) -> DiscoveryAnswer {
        let share = self.secrets.share;
        let proof = match self.peer {
            Knowledge::None => None,
            Knowledge::Learned(theirs) | Knowledge::Confirmed(theirs) => {
                Some(DiscoveryAnswer::proof(nonce, (theirs, peer), (share, own)))
            }
        };
        DiscoveryAnswer { capabilities: self.capabilities, share, proof }
    }

    /// Plans the question after the one that leaves now.
    fn plan_next_question(&mut self, now: Time) {
        self.questions_left = self.questions_left.saturating_sub(1);
        self.ask_at = (self.questions_left > 0).then(|| now + self.interval);
        self.interval *= 2;
    }

    /// Notes a question of the peer. Returns whether it gets an answer: `may_answer` decides for the endpoint.
    pub(super) fn take_question(&mut self, now: Time, nonce: u64, may_answer: impl FnOnce() -> bool) -> bool {
        let is_answered = now >= self.answer_from && may_answer();
        if is_answered {
            self.owed = Some(nonce);
            self.answer_from = now + ANSWER_INTERVAL;
        }
        is_answered
    }

    /// Takes an answer of the queue pair `peer` to the queue pair `own`. Returns `None` if it answers no question of
    /// this end, or the peer is confirmed already.
    pub(super) fn take_answer(
        &mut self,
        now: Time,
        nonce: u64,
        answer: &DiscoveryAnswer,
        own: Qpn,
        peer: Qpn,
    ) -> Option<Finding> {
        let DiscoveryAnswer { capabilities, share, proof } = *answer;
        let is_first = self.peer == Knowledge::None;
        if nonce != self.secrets.nonce || matches!(self.peer, Knowledge::Confirmed(_)) {
            return None;
        }
        let expected = DiscoveryAnswer::proof(nonce, (self.secrets.share, own), (share, peer));
        if proof == Some(expected) {
            self.stop_asking();
            self.peer = Knowledge::Confirmed(share);
            let key = PeerKey { local: self.secrets.share, remote: share, is_agreed: false };
            return Some(Finding { capabilities, is_first, key: Some(key) });
        }
        self.peer = Knowledge::Learned(share);
        if is_first {
            // The peer asks, too, and has this end's share soon.
            (self.questions_left, self.interval) = (MOST_QUESTIONS, FIRST_INTERVAL * 2);
            (self.ask_at, self.asks) = (Some(now + FIRST_INTERVAL), false);
        }
        Some(Finding { capabilities, is_first, key: None })
    }

    /// Takes a refusal: the peer is a standard one. Returns false if it refuses no question of this end.
    pub(super) fn take_refusal(&mut self, nonce: u64) -> bool {
        let is_refused = nonce == self.secrets.nonce && self.peer == Knowledge::None;
        if is_refused {
            self.stop_asking();
        }
        is_refused
    }

    fn stop_asking(&mut self) {
        (self.ask_at, self.asks, self.questions_left) = (None, false, 0);
    }
}

/// The rate of an endpoint's answers: a bucket of [`MOST_ANSWERS_AT_ONCE`], filled every [`ANSWER_PERIOD`].
#[derive(Default)]
pub(super) struct AnswerLimit {
    /// When the bucket is full again.
    full_at: Time,
}

impl AnswerLimit {
    /// Takes an answer out of the bucket. Returns false if there is none.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let full_at = self.full_at.max(now) + ANSWER_PERIOD;
        let has_room = full_at <= now + ANSWER_PERIOD * MOST_ANSWERS_AT_ONCE;
        if has_room {
            self.full_at = full_at;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QPNS: [Qpn; 2] = [Qpn::new(0x11), Qpn::new(0x22)];
    const CAPABILITIES: PeerCapabilities = PeerCapabilities::STANDARD.version(1).receive_buffer_bytes(1 << 20);

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(microseconds * 1_000)
    }

    fn secrets(number: u8) -> Secrets {
        Secrets { share: KeyShare::new([number; 16]), nonce: u64::from(number) }
    }

    fn end(number: u8) -> Discovery {
        Discovery::new(at(0), secrets(number), CAPABILITIES, None)
    }

    /// Lets an end ask at this time, and returns its question's nonce.
    fn ask(asks: &mut Discovery, now: Time) -> u64 {
        asks.handle_timeout(now);
        let (message, _) = asks.poll(now, QPNS[0], QPNS[1]).expect("a question is due");
        assert_eq!(message.content, DiscoveryContent::Question);
        message.nonce
    }

    /// Lets `asks`, whose queue pair is that at index `from`, ask `answers` when it is due, and take the answer.
    fn exchange(asks: &mut Discovery, answers: &mut Discovery, from: usize) -> Option<Finding> {
        let (own, peer) = (QPNS[from], QPNS[1 - from]);
        let now = asks.deadline().expect("a question is planned");
        asks.handle_timeout(now);
        let (question, _) = asks.poll(now, own, peer).expect("a question is due");
        assert_eq!((question.receiver, question.sender, question.content), (peer, own, DiscoveryContent::Question));
        assert!(answers.take_question(now, question.nonce, || true));
        let (answer, _) = answers.poll(now, peer, own).expect("an answer is owed");
        assert_eq!((answer.receiver, answer.sender, answer.nonce), (own, peer, question.nonce));
        let DiscoveryContent::Answer(content) = answer.content else { panic!("{answer}") };
        asks.take_answer(now, answer.nonce, &content, own, peer)
    }

    #[test]
    fn both_ends_get_the_same_key() {
        let (mut first, mut second) = (end(1), end(2));
        let learned = exchange(&mut first, &mut second, 0).unwrap();
        assert_eq!(learned, Finding { capabilities: CAPABILITIES, is_first: true, key: None });
        let confirmed = exchange(&mut second, &mut first, 1).unwrap();
        let key = confirmed.key.expect("the first end knows the share of the second");
        assert!(confirmed.is_first && !key.is_agreed && second.deadline().is_none());
        assert_eq!((key.local, key.remote), (secrets(2).share, secrets(1).share));
        let confirmed = exchange(&mut first, &mut second, 0).unwrap();
        let key = confirmed.key.expect("the second end knows the share of the first");
        assert_eq!((key.local, key.remote), (secrets(1).share, secrets(2).share));
        assert!(!confirmed.is_first && first.deadline().is_none() && !first.has_output());
    }

    #[test]
    fn a_silent_peer_is_asked_a_bounded_number_of_times() {
        let mut asks = end(1);
        let mut times = Vec::new();
        while let Some(due) = asks.deadline() {
            ask(&mut asks, due);
            times.push(due.as_nanos() / 1_000_000);
        }
        let expected: Vec<u64> = (0..u32::from(MOST_QUESTIONS)).map(|number| (1 << number) - 1).collect();
        assert_eq!(times, expected);
        assert!(!asks.has_output());
    }

    #[test]
    fn only_the_answer_to_the_own_question_counts() {
        let mut asks = end(1);
        let nonce = ask(&mut asks, at(0));
        let answer = DiscoveryAnswer { capabilities: CAPABILITIES, share: secrets(2).share, proof: None };
        for forged in [0, nonce + 1, nonce ^ 1 << 63] {
            assert_eq!(asks.take_answer(at(1), forged, &answer, QPNS[0], QPNS[1]), None);
            assert!(!asks.take_refusal(forged));
        }
        assert!(asks.deadline().is_some());
        assert!(asks.take_answer(at(1), nonce, &answer, QPNS[0], QPNS[1]).is_some());
        // A late refusal of a process that had the queue pair's number before.
        assert!(!asks.take_refusal(nonce) && asks.deadline().is_some());
    }

    #[test]
    fn a_refusal_ends_the_questions() {
        let mut asks = end(1);
        let nonce = ask(&mut asks, at(0));
        assert!(asks.take_refusal(nonce));
        asks.handle_timeout(at(10_000_000));
        assert!(asks.deadline().is_none() && !asks.has_output());
    }

    /// The peer has connected its queue pair again: its share is another one.
    #[test]
    fn a_proof_of_another_connection_confirms_nothing() {
        let (mut first, mut second, mut reconnected) = (end(1), end(2), end(3));
        exchange(&mut second, &mut first, 1);
        // The second end has learned the share of the first; a new first end has another share.
        let finding = exchange(&mut reconnected, &mut second, 0).unwrap();
        assert!(finding.is_first && finding.key.is_none());
        // The second end learns the new share, and its next answer proves that.
        exchange(&mut second, &mut reconnected, 1);
        let finding = exchange(&mut reconnected, &mut second, 0).unwrap();
        assert_eq!(finding.key.map(|key| (key.local, key.remote)), Some((secrets(3).share, secrets(2).share)));
    }

    #[test]
    fn a_question_changes_nothing_but_the_answer() {
        let mut answers = end(2);
        ask(&mut answers, at(0));
        let before = format!("{:?}", Discovery { owed: None, sent: 0, answer_from: at(0), ..end(2) });
        for number in 0..10 {
            assert!(answers.take_question(at(1_000 * number), number, || true));
            answers.poll(at(1_000 * number), QPNS[1], QPNS[0]).expect("an answer");
        }
        let after = Discovery { owed: None, sent: 0, answer_from: at(0), ask_at: Some(at(0)), ..answers };
        let after = Discovery { questions_left: MOST_QUESTIONS, interval: FIRST_INTERVAL, ..after };
        assert_eq!(format!("{after:?}"), before);
    }

    #[test]
    fn answers_are_limited() {
        let mut answers = end(2);
        assert!(answers.take_question(at(10), 1, || true) && answers.has_output());
        assert!(!answers.take_question(at(10), 2, || true) && !answers.take_question(at(509), 3, || true));
        assert!(!answers.take_question(at(510), 4, || false), "the endpoint's limit");
        assert!(answers.take_question(at(510), 5, || true));
        // Only the latest one waits.
        assert_eq!(answers.owed, Some(5));
        let mut limit = AnswerLimit::default();
        assert_eq!((0..5_000).filter(|_| limit.take(at(7))).count(), MOST_ANSWERS_AT_ONCE as usize);
        assert!(!limit.take(at(106)) && limit.take(at(107)) && !limit.take(at(108)));
        assert_eq!((0..5_000).filter(|_| limit.take(at(10_000_000))).count(), MOST_ANSWERS_AT_ONCE as usize);
    }
}
