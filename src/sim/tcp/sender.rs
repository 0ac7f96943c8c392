//! The sending end: transmissions, recovery and timers.

use std::time::Duration;

use super::cubic::Cubic;
use super::prr::Prr;
use super::rack::{Rack, TIMER_RESOLUTION};
use super::rtt::RoundTrip;
use super::scoreboard::{Delivered, Scoreboard};
use super::{Ack, TcpConfig};
use crate::types::Time;

/// How long the probe of a single segment waits for a delayed acknowledgement (RFC 8985, 7.2; Linux's value).
const LONGEST_ACK_DELAY: Duration = Duration::from_millis(200);
/// Timeout of a probe before the first round trip is known (RFC 8985, 7.2).
const INITIAL_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether losses are being repaired. A recovery ends when everything sent before it is acknowledged.
#[derive(Clone, Debug)]
enum Phase {
    Open,
    /// After a loss that an acknowledgement indicated.
    Fast {
        end: u64,
        prr: Prr,
    },
    /// After an expiry of the retransmission timer.
    Timeout {
        end: u64,
    },
}

/// An unacknowledged tail loss probe (RFC 8985, section 7).
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The sequence number after the probe.
    end: u64,
    is_retransmission: bool,
}

/// The sending end of a stream.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Sender {
    window_segments: u64,
    /// Number of segments that the application sends.
    most_segments: u64,
    board: Scoreboard,
    cubic: Cubic,
    rack: Rack,
    round_trip: RoundTrip,
    phase: Phase,
    /// Only the congestion window held the latest segment back.
    is_window_limited: bool,
    /// When the left edge moved, or the first segment was retransmitted: the start of the retransmission timer.
    progress_at: Time,
    /// When a new segment was sent or something was delivered: the start of the probe's timer.
    active_at: Time,
    reordering_timer: Option<Time>,
    probe: Option<Probe>,
    /// A probe is sent next, regardless of the window.
    owes_probe: bool,
    timeouts: u64,
    probes: u64,
}

impl Sender {
    pub(in crate::sim) fn new(now: Time, config: &TcpConfig) -> Self {
        Self {
            window_segments: config.window_segments(),
            most_segments: config.most_segments(),
            board: Scoreboard::default(),
            cubic: Cubic::new(config.growth),
            rack: Rack::new(),
            round_trip: RoundTrip::default(),
            phase: Phase::Open,
            is_window_limited: false,
            progress_at: now,
            active_at: now,
            reordering_timer: None,
            probe: None,
            owes_probe: false,
            timeouts: 0,
            probes: 0,
        }
    }

    /// Returns the congestion window in segments.
    pub(in crate::sim) fn window(&self) -> f64 {
        self.cubic.window()
    }

    /// Returns the number of retransmissions.
    pub(in crate::sim) fn retransmissions(&self) -> u64 {
        self.board.retransmissions()
    }

    /// Returns how often the retransmission timer expired.
    pub(in crate::sim) fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// Returns the tail loss probes sent.
    pub(in crate::sim) fn probes(&self) -> u64 {
        self.probes
    }

    /// Returns the sequence number of the next segment to send.
    pub(in crate::sim) fn poll_transmit(&mut self, now: Time) -> Option<u64> {
        if std::mem::take(&mut self.owes_probe) {
            return Some(self.send_probe(now));
        }
        if self.board.in_flight() >= self.cubic.window() as u64 {
            self.is_window_limited = true;
            return None;
        }
        let sequence = match self.board.first_lost() {
            Some(lost) => {
                self.retransmit(now, lost);
                lost
            }
            None if self.has_room() => self.send_new(now),
            None => {
                self.is_window_limited = false;
                return None;
            }
        };
        if let Phase::Fast { prr, .. } = &mut self.phase {
            prr.on_sent();
        }
        Some(sequence)
    }

    /// Whether there is a new segment that fits into the receive window.
    fn has_room(&self) -> bool {
        self.board.next() < self.most_segments && self.board.next() - self.board.first() < self.window_segments
    }

    fn send_new(&mut self, now: Time) -> u64 {
        self.active_at = now;
        if self.board.first() == self.board.next() {
            self.progress_at = now;
        }
        self.board.send_new(now)
    }

    fn retransmit(&mut self, now: Time, sequence: u64) {
        if sequence == self.board.first() {
            self.progress_at = now;
        }
        self.board.retransmit(now, sequence);
    }

    /// Sends new data if the receive window allows it, else the last segment again (RFC 8985, 7.3). Restarts the
    /// retransmission timer.
    fn send_probe(&mut self, now: Time) -> u64 {
        self.probes += 1;
        self.progress_at = now;
        let is_retransmission = !self.has_room();
        let sequence = if is_retransmission { self.board.next().saturating_sub(1) } else { self.send_new(now) };
        if is_retransmission {
            self.board.retransmit(now, sequence);
        }
        self.probe = Some(Probe { end: self.board.next(), is_retransmission });
        sequence
    }

    /// Handles an acknowledgement.
    pub(in crate::sim) fn handle_ack(&mut self, now: Time, ack: &Ack) {
        let first = self.board.first();
        let delivered = self.board.acknowledge(ack);
        let has_moved = self.board.first() > first;
        self.measure(now, &delivered, has_moved);
        let is_duplicate = ack.reports_duplicate();
        if is_duplicate {
            self.rack.on_duplicate(self.board.first(), self.board.next());
        }
        if has_moved {
            self.progress_at = now;
            self.round_trip.reset_backoff();
        }
        if !delivered.is_empty() {
            self.active_at = now;
        }
        self.end_recovery();
        self.end_probe(is_duplicate);
        let lost = self.detect_losses(now);
        let delivered = delivered.len() as u64;
        match &mut self.phase {
            // As in Linux: an acknowledgement without news leaves the window as it is.
            Phase::Fast { prr, .. } if delivered > 0 || lost > 0 => {
                let (in_flight, threshold) = (self.board.in_flight(), self.cubic.threshold());
                let window = prr.window(delivered, in_flight, threshold, has_moved && lost == 0);
                self.cubic.set_window(window);
            }
            Phase::Open | Phase::Timeout { .. } if self.is_window_limited && delivered > 0 => {
                let round_trip = self.round_trip.smoothed().unwrap_or_default();
                self.cubic.on_delivered(now, delivered, round_trip);
            }
            _ => {}
        }
    }

    /// Samples only segments that were sent once (Karn's algorithm, RFC 6298, section 3): the first that the left edge
    /// has passed, as it includes the acknowledgement's delay, or else the first that was selectively acknowledged.
    fn measure(&mut self, now: Time, delivered: &[Delivered], has_moved: bool) {
        let mut sample = None;
        for segment in delivered {
            let round_trip = now.saturating_since(segment.sent_at);
            if !segment.was_retransmitted {
                self.round_trip.note_least(round_trip);
                let is_passed = segment.sequence < self.board.first();
                sample = sample.or_else(|| (is_passed == has_moved).then_some(round_trip));
            }
            self.rack.on_delivered(now, segment, self.round_trip.least());
        }
        if let Some(sample) = sample {
            self.round_trip.sample(sample);
        }
    }

    fn end_recovery(&mut self) {
        let first = self.board.first();
        match self.phase {
            Phase::Fast { end, .. } if first >= end => self.cubic.set_window(self.cubic.threshold()),
            Phase::Timeout { end } if first >= end => {}
            _ => return,
        }
        self.rack.on_recovered();
        self.phase = Phase::Open;
    }

    /// Ends a probe once everything up to it is acknowledged. If it was a retransmission that the receiver did not
    /// report as a duplicate, it has repaired a loss (RFC 8985, 7.4.2).
    fn end_probe(&mut self, is_duplicate: bool) {
        let Some(probe) = self.probe.filter(|probe| self.board.first() >= probe.end) else { return };
        self.probe = None;
        if probe.is_retransmission && !is_duplicate && matches!(self.phase, Phase::Open) {
            self.reduce();
        }
    }

    /// Finds losses, and begins a recovery on the first ones. Returns the number of new losses.
    fn detect_losses(&mut self, now: Time) -> u64 {
        let is_recovering = !matches!(self.phase, Phase::Open);
        let found = self.rack.detect(now, &mut self.board, is_recovering, &self.round_trip);
        self.reordering_timer = found.again_at;
        if !is_recovering && self.board.first_lost().is_some() {
            self.reduce();
        }
        found.lost
    }

    fn reduce(&mut self) {
        let end = self.board.next();
        self.cubic.on_congestion();
        self.probe = None;
        self.phase = Phase::Fast { end, prr: Prr::new(end - self.board.first()) };
    }

    /// Returns when to call `handle_timeout`.
    pub(in crate::sim) fn next_timeout(&self) -> Option<Time> {
        Time::earliest([self.reordering_timer, self.retransmission_timer(), self.probe_timer()])
    }

    fn retransmission_timer(&self) -> Option<Time> {
        let is_waiting = self.board.first() < self.board.next();
        is_waiting.then(|| self.progress_at + self.round_trip.timeout())
    }

    /// Returns when to probe (RFC 8985, 7.2): one probe at a time, and none while losses are indicated or being
    /// repaired.
    fn probe_timer(&self) -> Option<Time> {
        let is_quiet = matches!(self.phase, Phase::Open) && self.board.kept() == 0;
        if !is_quiet || self.probe.is_some() || self.owes_probe || self.board.in_flight() == 0 {
            return None;
        }
        let margin = if self.board.in_flight() == 1 { LONGEST_ACK_DELAY } else { TIMER_RESOLUTION };
        let wait = self.round_trip.smoothed().map_or(INITIAL_PROBE_TIMEOUT, |smoothed| smoothed * 2 + margin);
        Some(self.active_at + wait)
    }

    /// Handles the timers that have expired.
    pub(in crate::sim) fn handle_timeout(&mut self, now: Time) {
        let is_due = |timer: Option<Time>| timer.is_some_and(|at| at <= now);
        if is_due(self.retransmission_timer()) {
            self.time_out(now);
        } else if is_due(self.probe_timer()) {
            self.owes_probe = true;
        }
        if is_due(self.reordering_timer) {
            let was_open = matches!(self.phase, Phase::Open);
            self.detect_losses(now);
            if was_open && let Phase::Fast { prr, .. } = &mut self.phase {
                let window = prr.window(0, self.board.in_flight(), self.cubic.threshold(), false);
                self.cubic.set_window(window);
            }
        }
    }

    fn time_out(&mut self, now: Time) {
        self.timeouts += 1;
        // As in Linux: the threshold is reduced once for losses of one window, and again only after progress.
        let is_first = match self.phase {
            Phase::Open => true,
            Phase::Fast { .. } => false,
            Phase::Timeout { .. } => !self.round_trip.has_backed_off(),
        };
        self.rack.detect_at_timeout(now, &mut self.board, &self.round_trip);
        self.cubic.on_timeout(is_first);
        self.cubic.set_window(self.board.in_flight() as f64 + 1.0);
        self.round_trip.back_off();
        self.progress_at = now;
        (self.probe, self.owes_probe, self.reordering_timer) = (None, false, None);
        self.phase = Phase::Timeout { end: self.board.next() };
    }
}
