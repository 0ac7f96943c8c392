//! Window growth in congestion avoidance: CUBIC (RFC 9438). Windows are in segments.

use std::time::Duration;

use crate::types::Time;

/// Speed of the window growth, in segments per second cubed (RFC 9438, 5.1).
const C: f64 = 0.4;
/// Share of the window that a reduction leaves (RFC 9438, 4.6).
pub(crate) const BETA: f64 = 0.7;
/// Growth of the Reno-friendly estimate per window of acknowledged segments, until it reaches the window before the
/// reduction (RFC 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A stage of congestion avoidance.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    began: Time,
    /// Seconds until the window is where it was before the reduction.
    k: f64,
    plateau: f64,
    /// The window before the reduction.
    prior: f64,
    /// The window that Reno would have.
    reno: f64,
}

impl Curve {
    /// Begins a stage at this window. The plateau is the window itself, unless that was reduced from a larger one.
    pub(crate) fn new(began: Time, window: f64, plateau: f64, prior: f64) -> Self {
        let (k, plateau) = if window < plateau { (cube_root((plateau - window) / C), plateau) } else { (0.0, window) };
        Self { began, k, plateau, prior, reno: window }
    }

    /// Adds acknowledged segments to the Reno-friendly estimate.
    pub(crate) fn note_acknowledged(&mut self, segments: f64, window: f64) {
        let alpha = if self.reno < self.prior { ALPHA } else { 1.0 };
        self.reno += alpha * segments / window;
    }

    /// Returns the window that Reno would have.
    pub(crate) fn reno(&self) -> f64 {
        self.reno
    }

    /// Returns the cubic function (RFC 9438, figure 1) at `later` after `now`.
    pub(crate) fn at(&self, now: Time, later: Duration) -> f64 {
        let seconds = (now.saturating_since(self.began) + later).as_secs_f64();
        let distance = seconds - self.k;
        C * distance * distance * distance + self.plateau
    }

    /// Returns the window after these segments were acknowledged and passed to [`Curve::note_acknowledged`].
    pub(crate) fn window_after(&self, now: Time, segments: f64, window: f64, round_trip: Duration) -> f64 {
        if self.at(now, Duration::ZERO) < self.reno() {
            // The Reno-friendly region (RFC 9438, 4.3). The estimate begins at the window and may lag behind it.
            return window.max(self.reno());
        }
        // The concave and the convex region (RFC 9438, 4.4 and 4.5), with the bounds of 4.2.
        let target = self.at(now, round_trip).clamp(window, 1.5 * window);
        window + (target - window) / window * segments
    }
}

/// Returns the plateau after a reduction of this window, given the previous plateau. Fast convergence (RFC 9438, 4.7):
/// a shrinking share leaves room for a new flow.
pub(crate) fn plateau_after(window: f64, plateau: f64) -> f64 {
    if window < plateau { window * (1.0 + BETA) / 2.0 } else { window }
}

/// Computes a cube root by Newton's method: the result of the system's library may differ between systems, and traces
/// would differ with it.
fn cube_root(value: f64) -> f64 {
    let mut root = value.sqrt().max(1.0);
    for _ in 0..40 {
        root -= (root - value / (root * root)) / 3.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_right() {
        for root in [0.01_f64, 0.5, 1.0, 9.086, 1_000.0] {
            let found = cube_root(root.powi(3));
            assert!((found / root - 1.0).abs() < 1e-9, "{found} for {root}");
        }
    }

    #[test]
    fn a_shrinking_window_leaves_room() {
        assert_eq!(plateau_after(1_000.0, 0.0), 1_000.0);
        assert_eq!(plateau_after(800.0, 1_000.0), 680.0);
    }
}
