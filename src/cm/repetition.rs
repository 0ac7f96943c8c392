//! When messages are repeated, and when their sender gives up.

use std::time::Duration;

use crate::wire::mad::{MessageRetries, TimeoutCode};

/// The first repetition of a REQ, SIDR_REQ or DREQ. Linux waits 4.6 s, so one lost datagram delays a connection by
/// that.
const FIRST_INTERVAL: Duration = Duration::from_millis(300);
/// The longest interval of repetitions, whatever a peer or its MRA asks.
const LONGEST_INTERVAL: Duration = Duration::from_secs(4);
/// Number of times that a REQ or SIDR_REQ is sent, as by Linux (`cma.c`, `CMA_MAX_CM_RETRIES`).
const REQUEST_SENDS: u32 = 16;
/// The longest interval of repetitions of a DREQ, and number of times that it is sent: 20 s in all.
const DISCONNECT_INTERVAL: Duration = Duration::from_secs(2);
const DISCONNECT_SENDS: u32 = 12;
/// Number of times that the DREQ is sent that probes a connection: within 2.1 s, the time of the attempts of an
/// initiator of this crate whose REQ is refused as stale.
const PROBE_SENDS: u32 = 4;
/// The shortest interval of repetitions of a REP: a peer that asks a shorter one gets this one.
const SHORTEST_REPLY_INTERVAL: Duration = Duration::from_millis(250);
/// The least number of repetitions of a REP.
const LEAST_REPLY_RETRIES: u32 = 3;
/// Number of MRAs that prolong the wait for a response: 4 s each.
const MOST_RECEIPTS: u32 = 64;

/// The repetitions of a message that waits for a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repetition {
    sent: u32,
    /// Number of times that the message may still be sent.
    left: u32,
    interval: Duration,
    longest: Duration,
    receipts: u32,
}

impl Repetition {
    /// Those of a REQ or SIDR_REQ.
    pub(super) fn of_request() -> Self {
        Self::new(REQUEST_SENDS, FIRST_INTERVAL, LONGEST_INTERVAL)
    }

    /// Those of a DREQ.
    pub(super) fn of_disconnect() -> Self {
        Self::new(DISCONNECT_SENDS, FIRST_INTERVAL, DISCONNECT_INTERVAL)
    }

    /// Those of the DREQ that probes a connection.
    pub(super) fn of_probe() -> Self {
        Self::new(PROBE_SENDS, FIRST_INTERVAL, DISCONNECT_INTERVAL)
    }

    /// Those of a REP: the REQ has the interval and the number (`cm.c`, `cm_req_handler`). Both have bounds here, so
    /// that a peer makes this end wait between 1 s and 66 s.
    pub(super) fn of_reply(timeout: TimeoutCode, retries: MessageRetries) -> Self {
        let interval = duration_of(timeout).clamp(SHORTEST_REPLY_INTERVAL, LONGEST_INTERVAL);
        Self::new(1 + u32::from(retries.value()).max(LEAST_REPLY_RETRIES), interval, interval)
    }

    fn new(left: u32, interval: Duration, longest: Duration) -> Self {
        Self { sent: 0, left, interval, longest, receipts: MOST_RECEIPTS }
    }

    /// Counts a send. Returns the time until the next one, or `None` if there was none left. `random` spreads the
    /// repetitions of many messages that were sent at once: the time is up to an eighth longer.
    pub(super) fn send(&mut self, random: u32) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        self.sent += 1;
        let spread = self.interval / 8 * (random & 0xfff) / 0x1000;
        let wait = self.interval + spread;
        self.interval = (2 * self.interval).min(self.longest);
        Some(wait)
    }

    /// Returns whether the message was sent more than once.
    pub(super) fn has_repeated(&self) -> bool {
        self.sent > 1
    }

    /// Notes the peer's receipt (MRA): it has the message and responds later. Returns the time until the next send.
    ///
    /// The peer is alive, so the next send does not count. Linux waits the whole service timeout, with all later
    /// repetitions too (`cm.c`, `cm_mra_handler`), and itself sends 65 s: after that a lost response is missed for a
    /// minute. This end waits 4 s at most. Returns `None` after too many receipts.
    pub(super) fn prolong(&mut self, service_timeout: TimeoutCode) -> Option<Duration> {
        self.receipts = self.receipts.checked_sub(1)?;
        self.left += 1;
        Some(duration_of(service_timeout).clamp(self.interval, LONGEST_INTERVAL.max(self.interval)))
    }
}

/// Returns the time of a code as Linux rounds it (`cm.c`, `cm_convert_to_ms`).
pub(super) fn duration_of(code: TimeoutCode) -> Duration {
    Duration::from_millis(1 << u32::from(code.value()).saturating_sub(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(mut repetition: Repetition) -> Vec<u64> {
        std::iter::from_fn(|| repetition.send(0).map(|wait| wait.as_millis() as u64)).collect()
    }

    #[test]
    fn requests_are_repeated_soon_and_then_every_four_seconds() {
        let expected = [vec![300, 600, 1_200, 2_400], vec![4_000; 12]].concat();
        assert_eq!(waits(Repetition::of_request()), expected);
        assert_eq!(waits(Repetition::of_disconnect()), [vec![300, 600, 1_200], vec![2_000; 9]].concat());
        assert_eq!(waits(Repetition::of_probe()), [300, 600, 1_200, 2_000]);
    }

    #[test]
    fn a_peer_chooses_the_repetitions_of_replies_within_bounds() {
        let reply = |code, retries| {
            waits(Repetition::of_reply(TimeoutCode::saturating(code), MessageRetries::saturating(retries)))
        };
        assert_eq!(reply(0, 0), [250; 4]);
        assert_eq!(reply(17, 7), [512; 8]);
        assert_eq!(reply(31, 15), [4_000; 16]);
    }

    #[test]
    fn a_receipt_prolongs_the_wait_a_bounded_number_of_times() {
        let mut repetition = Repetition::of_request();
        repetition.send(0).unwrap();
        let millis = |wait: Option<Duration>| wait.map(|wait| wait.as_millis());
        assert_eq!(millis(repetition.prolong(TimeoutCode::saturating(18))), Some(1_024));
        assert_eq!(millis(repetition.prolong(TimeoutCode::saturating(0))), Some(600));
        assert_eq!(millis(repetition.prolong(TimeoutCode::saturating(24))), Some(4_000));
        (3..MOST_RECEIPTS).for_each(|_| assert!(repetition.prolong(TimeoutCode::MAX).is_some()));
        assert_eq!(repetition.prolong(TimeoutCode::MAX), None);
        assert_eq!(waits(repetition).len(), 15 + MOST_RECEIPTS as usize);
    }

    #[test]
    fn repetitions_are_spread() {
        let wait = Repetition::of_request().send(u32::MAX).unwrap();
        assert!((Duration::from_millis(337)..Duration::from_micros(337_500)).contains(&wait), "{wait:?}");
    }

    #[test]
    fn codes_are_rounded_as_by_linux() {
        let millis = [0, 8, 9, 16, 17, 18, 20, 31].map(|code| duration_of(TimeoutCode::saturating(code)).as_millis());
        assert_eq!(millis, [1, 1, 2, 256, 512, 1_024, 4_096, 8_388_608]);
    }
}
