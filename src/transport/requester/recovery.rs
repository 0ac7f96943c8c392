//! Recovery when responses do not arrive: timers, probes, NAKs, and going back.
//!
//! Three clocks run for the sending half. The *transport timer* has the standard's meaning: each expiry without
//! progress consumes one of `retry_cnt` (IBTA 9.7.6.1.3). The *probe timer* is shorter, follows the measured round trip
//! and consumes no retries: it repeats the last packet, and if that gets no response either, goes back to the oldest
//! unacknowledged one. If a native peer has reported gaps, or the oldest request is a READ, it repeats both
//! alternately. The *receiver-not-ready timer* is the wait that the peer requested (IBTA 9.7.5.2.8).

use std::time::Duration;

use super::{Common, Halt, RequestFailure, Requester};
use crate::transport::common::LOSS_EVIDENCE;
use crate::transport::congestion::CongestionKind;
use crate::types::{Cause, CompletionStatus, Counter, Psn, RNR_TIMER_MICROSECONDS, Time};

/// Value of `rnr_retry` for retries without end (`rxe_comp.c`, `rxe_completer`).
const RNR_RETRY_FOREVER: u8 = 7;
const LARGEST_BACKOFF: u32 = 10;
/// A probe waits at most the transport timeout divided by this, unless the round trip is as long: each try is to
/// consist of several packets, because a full queue does not drop all of them.
const PROBES_OF_A_TRY: u32 = 4;
/// Number of probes that the transport timer waits for if the round trip is that long, within the standard's limit: an
/// expiry after one packet, or before the response can arrive, says little about the peer.
const LEAST_PROBES_OF_A_TRY: u32 = 3;
/// Multiple of the timeout that the timer may take (IBTA 9.7.6.1.3).
const MOST_TIMEOUTS: u32 = 4;
/// How often signs of life restore the retries before anything is acknowledged. Without this bound, a packet that never
/// arrives would keep the connection alive forever if a later one arrives each time that everything is retransmitted.
const MOST_RETRY_RESTORES: u8 = 8;

/// State of the sending half's recovery from a loss.
#[derive(Clone, Default)]
pub(super) struct Recovery {
    retries_spent: u8,
    /// How often the retries were restored since the last progress.
    retry_restores: u8,
    rnr_retries_spent: u8,
    /// When the transport timer expires.
    timeout_at: Option<Time>,
    probe_at: Option<Time>,
    /// Probes since the last sign of life; each doubles the wait.
    probes: u32,
    /// When the last sign of life came.
    heard_at: Time,
    probe: Option<Psn>,
    /// The oldest unacknowledged number when the requester last went back on a NAK or a gap: it goes back once for each
    /// such number.
    went_back_at: Option<Psn>,
    /// Whether it went back on a NAK or a gap, and has not probed in silence since.
    repeats_on_evidence: bool,
    /// Responses that arrived early since the last progress.
    gap_evidence: u32,
    /// The latest number of a response that arrived early and was not used: it must be requested again.
    early_response: Option<Psn>,
    repair_at: Option<Time>,
}

impl Recovery {
    /// Returns whether a response is late by now.
    pub(super) fn response_is_late(&self, now: Time) -> bool {
        [self.timeout_at, self.probe_at].into_iter().flatten().any(|time| time <= now)
    }

    /// Postpones the clocks: responses count as late at this time, not before, and the transport timer restarts then.
    pub(super) fn postpone_clocks(&mut self, restart_at: Time) {
        (self.timeout_at, self.probe_at) = (None, Some(restart_at));
    }

    /// Returns the retries consumed since the last progress, without a response and after RNR NAKs.
    pub(super) fn spent(&self) -> (u8, u8) {
        (self.retries_spent, self.rnr_retries_spent)
    }

    /// Returns whether it probes: no sign of life came since the last probe.
    pub(super) fn is_probing(&self) -> bool {
        self.probes > 0
    }

    /// Returns the probes and retries since the last progress.
    pub(super) fn rounds(&self) -> u32 {
        self.probes + u32::from(self.retries_spent)
    }

    /// Returns whether the requester went back on a NAK or a gap since the last progress, and not in silence.
    pub(super) fn went_back_on_evidence(&self) -> bool {
        self.repeats_on_evidence
    }

    /// Notes that everything is retransmitted, and not because of a NAK or a gap.
    fn forget_evidence(&mut self) {
        (self.went_back_at, self.repeats_on_evidence) = (None, false);
    }

    /// Notes that the requester has gone back on a NAK or a gap, from this number on.
    fn note_went_back(&mut self, psn: Psn) {
        (self.went_back_at, self.repeats_on_evidence) = (Some(psn), true);
    }

    pub(super) fn probe(&self) -> Option<Psn> {
        self.probe
    }

    /// Returns whether a response arrived early that was not kept.
    pub(super) fn has_early_response(&self) -> bool {
        self.early_response.is_some()
    }

    /// Sets when the missing packets are checked.
    pub(super) fn arm_repair(&mut self, at: Option<Time>) {
        self.repair_at = at;
    }

    /// Returns when the last sign of life came.
    pub(super) fn heard_at(&self) -> Time {
        self.heard_at
    }

    /// Forgets the evidence of a gap, because everything is retransmitted.
    pub(super) fn forget_gap(&mut self) {
        (self.gap_evidence, self.early_response, self.repair_at) = (0, None, None);
    }

    /// Makes this packet the next probe.
    pub(super) fn send_probe(&mut self, psn: Psn) {
        self.probe = Some(psn);
    }

    /// Ends the probe, which was sent or cannot be.
    pub(super) fn end_probe(&mut self) {
        self.probe = None;
    }
}

/// Returns the standard's transport timeout (IBTA 9.7.6.1.3): 4.096 µs × 2^code; code 0 is none.
pub(in crate::transport) fn timeout_duration(code: u8) -> Option<Duration> {
    (code > 0).then(|| Duration::from_nanos(4_096 << code.min(31)))
}

/// Returns how long the transport timer runs.
#[inline]
fn wait_of_a_try(timeout: Duration, probe_wait: Duration) -> Duration {
    let wait = probe_wait * LEAST_PROBES_OF_A_TRY;
    if wait <= timeout { timeout } else { wait.min(timeout * MOST_TIMEOUTS) }
}

impl Requester {
    /// Returns how long a response may take; `None`: forever.
    pub(super) fn transport_timeout(&self, common: &Common) -> Option<Duration> {
        timeout_duration(common.attributes.timeout.unwrap_or(0))
    }

    /// Returns when the sending half must be handled again.
    pub(in crate::transport) fn deadline(&self) -> Option<Time> {
        let recovery = &self.recovery;
        let clocks = Time::earliest([recovery.timeout_at, recovery.probe_at, recovery.repair_at]);
        if self.pace.is_free() { clocks } else { self.deadline_of_halt(clocks) }
    }

    /// Returns the deadline while nothing may leave. No clock runs while the peer is not ready.
    #[cold]
    fn deadline_of_halt(&self, clocks: Option<Time>) -> Option<Time> {
        let resume = self.pace.halted_until();
        if self.waits_for_receiver() {
            return resume;
        }
        Time::earliest([resume, clocks])
    }

    /// Starts the clocks, because something is in flight (IBTA o9-85).
    pub(super) fn arm_timers(&mut self, common: &Common, now: Time) {
        let probe_wait = self.round_trip.probe_wait();
        if self.recovery.timeout_at.is_none() {
            let timeout = self.transport_timeout(common);
            self.recovery.timeout_at = timeout.map(|timeout| now + wait_of_a_try(timeout, probe_wait));
        }
        let wait = match self.waits_without_ack_request() {
            true => self.round_trip.response_wait(),
            false if self.is_probed_soon(common, now) => self.round_trip.prompt_probe_wait(),
            false => probe_wait,
        };
        let wait = if self.recovery.probes == 0 { wait } else { self.wait_for_later_probe(common, wait) };
        self.recovery.probe_at = Some(now + wait);
    }

    /// Returns whether the probe comes soon: the path had random losses lately, and the next response is one that a
    /// native peer delays only for the pace. Where a queue overflows, early probes would add to it.
    #[inline]
    fn is_probed_soon(&self, common: &Common, now: Time) -> bool {
        self.reordering.is_lossy(now) && common.is_controlled() && self.request(self.oldest).needs_response()
    }

    /// Returns the wait before a probe other than the first one, which waits for `first`.
    #[cold]
    fn wait_for_later_probe(&self, common: &Common, first: Duration) -> Duration {
        let backoff = self.recovery.probes.min(LARGEST_BACKOFF);
        let timeout = self.transport_timeout(common);
        let longest = timeout.map_or(Duration::MAX, |timeout| first.max(timeout / PROBES_OF_A_TRY));
        self.spread(common, (first * (1 << backoff)).min(longest))
    }

    /// Returns half to one and a half times the wait, depending on the queue pair and the probe: otherwise senders that
    /// lost packets together would probe together, and lose packets again.
    fn spread(&self, common: &Common, wait: Duration) -> Duration {
        let seed = common.qpn.value() ^ self.recovery.rounds() << 24;
        let part = seed.wrapping_mul(0x9e37_79b1) >> 16;
        wait / 2 + wait.mul_f64(f64::from(part) / 65_536.0)
    }

    /// Notes progress, because responses arrived: all timers restart, all retries are restored.
    #[inline]
    pub(super) fn note_progress(&mut self, common: &Common, now: Time) {
        self.round_trip.end_sample(self.unacknowledged, now);
        let unacknowledged = self.unacknowledged;
        let early = self.recovery.early_response.filter(|psn| !psn.is_before(unacknowledged));
        self.recovery = Recovery { early_response: early, heard_at: now, ..Recovery::default() };
        if self.packets_in_flight() > 0 {
            self.arm_timers(common, now);
            if early.is_some() || self.repeats_selectively() {
                self.arm_repair(now);
            }
        }
    }

    /// Handles the clocks of the sending half that have expired.
    pub(in crate::transport) fn handle_timeout(
        &mut self,
        common: &mut Common,
        now: Time,
    ) -> Result<(), RequestFailure> {
        let due = |time: Option<Time>| time.is_some_and(|time| time <= now);
        match self.pace.halt() {
            Halt::Receiver => {
                if due(self.pace.halted_until()) {
                    self.pace.end_wait(now);
                    self.restart_timeout(common, now);
                    self.arm_repair(now);
                }
                return Ok(());
            }
            Halt::Pace => self.handle_pause(common, now),
            Halt::None | Halt::Stopped => {}
        }
        if self.waits_for_grant() && due(self.deadline()) {
            // A wait for the packets of other queue pairs is no silence of the peer: it consumes no retry, and the
            // clocks run from the grant on.
            let restart_at = now + self.round_trip.probe_wait();
            let recovery = &mut self.recovery;
            (recovery.repair_at, recovery.timeout_at, recovery.probe_at) = (None, None, Some(restart_at));
            return Ok(());
        }
        if due(self.recovery.repair_at) {
            self.recovery.repair_at = None;
            if self.waits_for_missing() { self.give_up_missing(common, now) } else { self.repair(common, now) }
        }
        if due(self.recovery.timeout_at) {
            common.count(Counter::LocalAckTimeout);
            self.report_congestion(common, now, CongestionKind::Persistent);
            self.spend_retry(common, now, Cause::NoResponse)?;
        } else if due(self.recovery.probe_at) {
            self.probe(common, now);
        }
        Ok(())
    }

    /// Notes that the peer has packets that it did not have before: its earlier silence does not count.
    pub(super) fn note_sign_of_life(&mut self, common: &Common, now: Time) {
        let recovery = &mut self.recovery;
        (recovery.probes, recovery.heard_at) = (0, now);
        if recovery.retries_spent > 0 && recovery.retry_restores < MOST_RETRY_RESTORES {
            recovery.retries_spent = 0;
            recovery.retry_restores += 1;
        }
        self.restart_timeout(common, now);
    }

    fn restart_timeout(&mut self, common: &Common, now: Time) {
        self.recovery.timeout_at = None;
        self.arm_timers(common, now);
    }

    /// Retries from the oldest unacknowledged number, if a retry is left. 7 means seven retries; in rxe, no limit.
    fn spend_retry(&mut self, common: &mut Common, now: Time, cause: Cause) -> Result<(), RequestFailure> {
        let allowed = common.attributes.retry_cnt.unwrap_or(0);
        if self.recovery.retries_spent >= allowed {
            common.count(Counter::RetryExceeded);
            common.history.note_gave_up(now);
            return Err(RequestFailure::new(CompletionStatus::RetryExceededError, cause));
        }
        self.recovery.retries_spent += 1;
        let reason = if cause == Cause::NoResponse { "timeout" } else { "sequence_nak" };
        common.log_retransmission(now, self.unacknowledged, reason, self.recovery.retries_spent);
        self.recovery.forget_evidence();
        self.go_back();
        self.restart_timeout(common, now);
        Ok(())
    }

    /// Probes for late responses, without consuming a retry.
    fn probe(&mut self, common: &mut Common, now: Time) {
        common.count(Counter::TailProbe);
        common.log_retransmission(now, self.unacknowledged, "probe", self.recovery.retries_spent);
        self.recovery.probes += 1;
        self.recovery.repeats_on_evidence = false;
        self.doubt_samples();
        let first_probe = self.recovery.probes == 1;
        let last_sent = self.limit.minus(1);
        let tail = self.request_with(last_sent).map(|index| *self.request(index));
        // A READ is repeated from its first missing packet to the end of its request packet: a shorter repetition would
        // change what the peer records of it, and the peer would not find a later one (IBTA 9.4.4).
        match tail {
            Some(_) if self.is_selective() => {
                self.recovery.send_probe(self.alternating_probe(self.recovery.probes));
            }
            Some(_) if self.places_early() && self.request(self.oldest).needs_response() => {
                match self.recovery.probes % 2 {
                    1 => self.give_up_oldest_responses(common, now),
                    _ => self.recovery.send_probe(last_sent),
                }
            }
            Some(request) if first_probe && !request.needs_response() => self.recovery.send_probe(last_sent),
            _ => self.go_back(),
        }
        self.arm_timers(common, now);
    }

    /// Notes that a response with the number `psn` arrived early, or an acknowledgement passed an unfinished READ or
    /// atomic: a response is missing, or late.
    pub(super) fn note_gap(&mut self, common: &mut Common, now: Time, psn: Psn) {
        let waits_for_receiver = self.waits_for_receiver();
        let recovery = &mut self.recovery;
        if recovery.early_response.is_none_or(|early| early.is_before(psn)) {
            recovery.early_response = Some(psn);
        }
        if recovery.went_back_at == Some(self.unacknowledged) || waits_for_receiver {
            return;
        }
        recovery.gap_evidence += 1;
        if recovery.gap_evidence >= LOSS_EVIDENCE {
            self.repair(common, now);
        } else if recovery.repair_at.is_none() {
            recovery.repair_at = Some(now + self.round_trip.reorder_wait());
        }
    }

    /// Requests again what is missing, once for each oldest missing number.
    fn repair(&mut self, common: &mut Common, now: Time) {
        if self.packets_in_flight() == 0 {
            return;
        }
        common.count(Counter::ReadRepair);
        common.log_retransmission(now, self.unacknowledged, "response_missing", self.recovery.retries_spent);
        self.report_congestion(common, now, CongestionKind::Loss);
        self.go_back();
        self.recovery.note_went_back(self.unacknowledged);
        self.arm_timers(common, now);
    }

    /// Handles a NAK: the peer misses the packet that is now the oldest unacknowledged. One retry for each, as in rxe
    /// (`started_retry`).
    pub(super) fn sequence_nak(&mut self, common: &mut Common, now: Time) -> Result<(), RequestFailure> {
        common.count(Counter::ReceivedSequenceNak);
        let unacknowledged = self.unacknowledged;
        if self.recovery.went_back_at == Some(unacknowledged) || self.waits_for_receiver() {
            return Ok(());
        }
        self.report_congestion(common, now, CongestionKind::Loss);
        self.spend_retry(common, now, Cause::SequenceErrorsExceeded)?;
        self.recovery.note_went_back(unacknowledged);
        Ok(())
    }

    /// Handles an RNR NAK (IBTA 9.7.5.2.8): the peer has no receive posted for this packet, and drops those behind it.
    /// Before it, only responses are missing.
    pub(super) fn receiver_not_ready(
        &mut self,
        common: &mut Common,
        now: Time,
        psn: Psn,
        timer_code: u8,
    ) -> Result<(), RequestFailure> {
        common.count(Counter::ReceivedRnr);
        if self.waits_for_receiver() {
            return Ok(());
        }
        let allowed = common.attributes.rnr_retry.unwrap_or(0);
        if allowed != RNR_RETRY_FOREVER && self.recovery.rnr_retries_spent >= allowed {
            common.count(Counter::RnrRetryExceeded);
            let status = CompletionStatus::ReceiverNotReadyRetryExceededError;
            return Err(RequestFailure::new(status, Cause::ReceiverNotReady));
        }
        let wait = Duration::from_micros(u64::from(RNR_TIMER_MICROSECONDS[usize::from(timer_code & 31)]));
        self.pace.wait_for_receiver(now + wait);
        common.log_not_ready(now, psn, wait);
        let recovery = &mut self.recovery;
        recovery.rnr_retries_spent = recovery.rnr_retries_spent.saturating_add(1);
        // The peer is alive: its earlier silence does not count.
        recovery.retries_spent = 0;
        recovery.timeout_at = None;
        recovery.probe_at = None;
        recovery.forget_evidence();
        recovery.probe = None;
        self.forget_missing_requests();
        self.go_back_to(psn);
        // The wait is no part of a round trip.
        self.round_trip.forget_sample();
        self.delays = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_codes_have_the_meaning_of_the_standard() {
        assert_eq!(timeout_duration(0), None);
        assert_eq!(timeout_duration(1), Some(Duration::from_nanos(8_192)));
        assert_eq!(timeout_duration(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(timeout_duration(31), Some(Duration::from_nanos(4_096 << 31)));
    }

    #[test]
    fn the_transport_timer_waits_for_some_probes_within_its_bounds() {
        let wait = |probe: u64| wait_of_a_try(Duration::from_millis(67), Duration::from_millis(probe)).as_millis();
        assert_eq!([2, 22, 30, 68, 200].map(wait), [67, 67, 90, 204, 268]);
    }
}
