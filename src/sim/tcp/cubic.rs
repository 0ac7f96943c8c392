//! The congestion window of CUBIC (RFC 9438), in segments.

use std::time::Duration;

use super::Growth;
use crate::transport::congestion::curve::{BETA, Curve, plateau_after};
use crate::types::Time;

/// The initial window (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Minimum slow start threshold (RFC 5681, equation 4).
const LEAST_THRESHOLD: f64 = 2.0;
/// How long Linux keeps a rate of growth while the window does not change: more than a 32nd of a second, in ticks.
const LINUX_INTERVAL: Duration = Duration::from_millis(32);
/// Linux's bounds of the growth for each delivered segment: the maximum, the minimum times the window, and the minimum
/// after a timeout, in segments.
const LINUX_MOST: f64 = 0.5;
const LINUX_LEAST: f64 = 0.01;
const LINUX_LEAST_AT_FIRST: f64 = 0.05;

/// Linux's rate of growth for one segment, and the time and window of its computation.
#[derive(Clone, Debug, Default)]
struct LinuxRate {
    rate: f64,
    computed: Option<(Time, u64)>,
}

/// State of the window.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    growth: Growth,
    window: f64,
    threshold: f64,
    /// W_max: the window before the latest reduction, reduced further if it shrinks from one reduction to the next
    /// (fast convergence).
    plateau: f64,
    /// Window before the latest reduction.
    prior_window: f64,
    curve: Option<Curve>,
    linux: LinuxRate,
}

impl Cubic {
    pub(super) fn new(growth: Growth) -> Self {
        let (window, threshold) = (INITIAL_WINDOW, f64::INFINITY);
        let (curve, linux) = (None, LinuxRate::default());
        Self { growth, window, threshold, plateau: 0.0, prior_window: 0.0, curve, linux }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    pub(super) fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Sets the window during recovery, which another rule controls (RFC 6937).
    pub(super) fn set_window(&mut self, window: f64) {
        self.window = window.max(1.0);
    }

    /// Grows the window by newly delivered segments while the window is the limit.
    pub(super) fn on_delivered(&mut self, now: Time, segments: u64, round_trip: Duration) {
        let mut segments = segments as f64;
        if self.window < self.threshold {
            let grown = (self.window + segments).min(self.threshold);
            segments -= grown - self.window;
            self.window = grown;
        }
        if segments > 0.0 {
            self.avoid_congestion(now, segments, round_trip);
        }
    }

    fn avoid_congestion(&mut self, now: Time, segments: f64, round_trip: Duration) {
        let (window, plateau, prior) = (self.window, self.plateau, self.prior_window);
        let curve = self.curve.get_or_insert_with(|| Curve::new(now, window, plateau, prior));
        curve.note_acknowledged(segments, window);
        if self.growth == Growth::Linux {
            self.linux.compute(now, window, curve.at(now, round_trip).max(curve.reno()), plateau == 0.0);
            self.window += self.linux.rate * segments;
        } else {
            self.window = curve.window_after(now, segments, window, round_trip);
        }
    }

    /// Handles the first loss in a window (RFC 9438, 4.6). The recovery sets the window itself.
    pub(super) fn on_congestion(&mut self) {
        self.plateau = plateau_after(self.window, self.plateau);
        self.prior_window = self.window;
        let threshold = (self.window * BETA).max(LEAST_THRESHOLD);
        self.threshold = if self.growth == Growth::Linux { threshold.floor() } else { threshold };
        self.end_stage();
    }

    /// Makes the next acknowledgement begin a new stage of congestion avoidance.
    fn end_stage(&mut self) {
        (self.curve, self.linux) = (None, LinuxRate::default());
    }

    /// Handles an expiry of the retransmission timer (RFC 9438, 4.8). `is_first`: for this segment (RFC 5681, 3.1).
    pub(super) fn on_timeout(&mut self, is_first: bool) {
        if is_first {
            self.on_congestion();
        }
        // The next stage of congestion avoidance has its plateau where it begins.
        self.plateau = 0.0;
        self.end_stage();
        self.window = 1.0;
    }
}

impl LinuxRate {
    /// Recomputes, if due, the rate at which the window reaches the target in a round trip.
    fn compute(&mut self, now: Time, window: f64, target: f64, is_first: bool) {
        let is_old = |at: Time| now.saturating_since(at) >= LINUX_INTERVAL;
        if self.computed.is_some_and(|(at, before)| before == window as u64 && !is_old(at)) {
            return;
        }
        let least = if is_first { LINUX_LEAST_AT_FIRST } else { LINUX_LEAST / window };
        // Linux counts in whole segments: Reno's window is no larger until a whole window has been delivered.
        let growth = target.floor() - window.floor();
        self.rate = (growth / window).clamp(least, LINUX_MOST);
        self.computed = Some((now, window as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(100);

    /// Delivers a window in each round trip, segment by segment.
    fn run(cubic: &mut Cubic, from: Time, seconds: f64) -> Time {
        let end = from + Duration::from_secs_f64(seconds);
        let mut now = from;
        while now < end {
            now = now + ROUND_TRIP.div_f64(cubic.window());
            cubic.on_delivered(now, 1, ROUND_TRIP);
        }
        now
    }

    /// Returns a state after a reduction from 1,000 segments at time 0.
    fn reduced() -> Cubic {
        let mut cubic = Cubic { window: 1_000.0, ..Cubic::new(Growth::Continuous) };
        cubic.on_congestion();
        cubic.set_window(cubic.threshold());
        cubic
    }

    #[test]
    fn slow_start_adds_what_is_delivered_up_to_the_threshold() {
        let mut cubic = Cubic::new(Growth::Continuous);
        cubic.on_delivered(Time::ZERO, 10, ROUND_TRIP);
        assert_eq!(cubic.window(), 20.0);
        cubic.threshold = 24.0;
        cubic.on_delivered(Time::ZERO, 20, ROUND_TRIP);
        assert!(cubic.window() > 24.0 && cubic.window() < 26.0, "{}", cubic.window());
    }

    /// K = cbrt((1,000 - 700) / 0.4) = 9.086 s; W(t) = 0.4 (t - K)^3 + 1,000.
    #[test]
    fn the_window_follows_the_cubic_function() {
        let mut cubic = reduced();
        assert_eq!(cubic.window(), 700.0);
        let mut now = Time::ZERO;
        for (until, expected) in [(3.0, 909.9), (6.0, 988.2), (9.0, 1_000.0), (12.0, 1_009.9), (15.0, 1_082.7)] {
            let left = until - now.saturating_since(Time::ZERO).as_secs_f64();
            now = run(&mut cubic, now, left);
            assert!((cubic.window() / expected - 1.0).abs() < 0.01, "at {until} s {} for {expected}", cubic.window());
        }
    }

    /// With 14 segments Reno is faster: alpha = 0.529 segments for each round trip up to 20, one from there on.
    #[test]
    fn small_windows_grow_as_reno() {
        let mut cubic = Cubic { window: 20.0, ..Cubic::new(Growth::Continuous) };
        cubic.on_congestion();
        cubic.set_window(cubic.threshold());
        let now = run(&mut cubic, Time::ZERO, 0.9);
        assert!((cubic.window() - (14.0 + 9.0 * 0.529)).abs() < 0.6, "{}", cubic.window());
        let now = run(&mut cubic, now, 0.3);
        let before = cubic.window();
        run(&mut cubic, now, 0.8);
        assert!((cubic.window() - before - 8.0).abs() < 0.6, "{before} to {}", cubic.window());
    }

    #[test]
    fn a_timeout_starts_slowly_again() {
        let mut cubic = reduced();
        for is_first in [true, false] {
            cubic.on_timeout(is_first);
            assert_eq!((cubic.window(), cubic.threshold().round()), (1.0, 490.0));
        }
        cubic.on_delivered(Time::ZERO, 489, ROUND_TRIP);
        // The plateau is where congestion avoidance begins: 0.4 * 1^3 after a second.
        let now = run(&mut cubic, Time::ZERO, 0.1);
        run(&mut cubic, now, 1.0);
        assert!(cubic.window() < 505.0, "{}", cubic.window());
    }

    /// At a round trip of 1 ms and 28 segments, Linux waits for 32 ms and then grows faster than the function.
    #[test]
    fn linux_grows_late() {
        let windows = [Growth::Continuous, Growth::Linux].map(|growth| {
            let mut cubic = Cubic { window: 40.0, ..Cubic::new(growth) };
            cubic.on_congestion();
            cubic.set_window(cubic.threshold());
            let mut after = Vec::new();
            for millisecond in 0..60 {
                let now = Time::from_nanos(millisecond * 1_000_000);
                cubic.on_delivered(now, cubic.window() as u64, Duration::from_millis(1));
                after.extend([30, 59].contains(&millisecond).then_some(cubic.window()));
            }
            (after[0], after[1])
        });
        let [(early, late), (linux_early, linux_late)] = windows;
        assert!(early > 42.0 && linux_early < 29.0, "{windows:?}");
        assert!(linux_late / linux_early > late / early && linux_late < late, "{windows:?}");
    }

    /// Over seconds it follows the same function.
    #[test]
    fn linux_follows_the_cubic_function() {
        let mut cubic = Cubic { growth: Growth::Linux, ..reduced() };
        let now = run(&mut cubic, Time::ZERO, 6.0);
        assert!((cubic.window() / 988.2 - 1.0).abs() < 0.01, "{}", cubic.window());
        run(&mut cubic, now, 9.0);
        assert!((cubic.window() / 1_082.7 - 1.0).abs() < 0.01, "{}", cubic.window());
    }
}
