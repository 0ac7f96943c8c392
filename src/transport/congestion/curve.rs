//! How a window grows in congestion avoidance: CUBIC (RFC 9438). Windows are counted in segments.

use std::time::Duration;

use crate::types::Time;

/// How fast the window grows, in segments for a second cubed (RFC 9438, 5.1).
const C: f64 = 0.4;
/// Share of the window that a reduction leaves (RFC 9438, 4.6).
pub(crate) const BETA: f64 = 0.7;
/// Growth of the Reno-friendly estimate for a window of acknowledged segments, until it reaches the window before the
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
    /// A stage that begins at this window. The plateau lies at the window, unless that was reduced from a greater one.
    pub(crate) fn new(began: Time, window: f64, plateau: f64, prior: f64) -> Self {
        let (k, plateau) = if window < plateau { (cube_root((plateau - window) / C), plateau) } else { (0.0, window) };
        Self { began, k, plateau, prior, reno: window }
    }

    /// So many segments were acknowledged.
    pub(crate) fn note_acknowledged(&mut self, segments: f64, window: f64) {
        let alpha = if self.reno < self.prior { ALPHA } else { 1.0 };
        self.reno += alpha * segments / window;
    }

    /// The window that Reno would have.
    pub(crate) fn reno(&self) -> f64 {
        self.reno
    }

    /// The cubic function (RFC 9438, figure 1), this long after now.
    pub(crate) fn at(&self, now: Time, later: Duration) -> f64 {
        let seconds = (now.saturating_since(self.began) + later).as_secs_f64();
        let distance = seconds - self.k;
        C * distance * distance * distance + self.plateau
    }

    /// The window after so many segments were acknowledged, and [`Curve::note_acknowledged`] was told of them.
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

/// The plateau after a reduction of this window, with the one before. Fast convergence (RFC 9438, 4.7): a shrinking
/// share leaves room for a newcomer.
pub(crate) fn plateau_after(window: f64, plateau: f64) -> f64 {
    if window < plateau { window * (1.0 + BETA) / 2.0 } else { window }
}

/// By Newton's method: that of the system's library may differ from one system to the next, and so would the traces.
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
    fn a_window_that_shrinks_leaves_room() {
        assert_eq!(plateau_after(1_000.0, 0.0), 1_000.0);
        assert_eq!(plateau_after(800.0, 1_000.0), 680.0);
    }
}
