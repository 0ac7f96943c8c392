//! Proportional rate reduction (RFC 6937): during recovery the window goes down to the threshold as segments are
//! delivered, instead of at once.

/// Progress of a recovery since it began.
#[derive(Clone, Debug)]
pub(super) struct Prr {
    /// Segments in flight when it began (RecoverFS).
    in_flight: u64,
    delivered: u64,
    sent: u64,
}

impl Prr {
    pub(super) fn new(in_flight: u64) -> Self {
        Self { in_flight: in_flight.max(1), delivered: 0, sent: 0 }
    }

    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// Returns the window after an acknowledgement that delivered `delivered` segments (RFC 6937, section 3).
    /// `is_good`: it moved the left edge, and no more losses were found. As in Linux, good ones allow slow start,
    /// others conserve packets.
    pub(super) fn window(&mut self, delivered: u64, in_flight: u64, threshold: f64, is_good: bool) -> f64 {
        self.delivered += delivered;
        let threshold = threshold as u64;
        let mut count = if in_flight > threshold {
            (self.delivered * threshold).div_ceil(self.in_flight).saturating_sub(self.sent)
        } else {
            let owed = self.delivered.saturating_sub(self.sent);
            let limit = if is_good { owed.max(delivered) + 1 } else { owed };
            limit.min(threshold - in_flight)
        };
        // The first retransmission leaves in any case (RFC 6937, section 3: the fast retransmit).
        if self.sent == 0 {
            count = count.max(1);
        }
        (in_flight + count) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6937, section 4, with another factor: one of 20 segments is lost, the threshold is 14. During
    /// 19 acknowledgements 14 segments leave, evenly spread.
    #[test]
    fn the_reduction_is_spread_over_the_round() {
        let mut prr = Prr::new(20);
        let (mut in_flight, mut sent) = (19, Vec::new());
        for number in 0..19 {
            in_flight -= 1;
            let window = prr.window(1, in_flight, 14.0, false) as u64;
            while in_flight < window {
                prr.on_sent();
                sent.push(number);
                in_flight += 1;
            }
        }
        assert_eq!(in_flight, 14, "{sent:?}");
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] <= 3), "{sent:?}");
    }

    /// After heavy losses the window grows back to the threshold by one segment more than was delivered.
    #[test]
    fn heavy_losses_are_made_up_for_by_slow_start() {
        let mut prr = Prr::new(20);
        prr.on_sent();
        let window = prr.window(1, 4, 14.0, true);
        assert_eq!(window, 6.0);
        assert_eq!(prr.window(1, 4, 14.0, false), 5.0, "other acknowledgements conserve packets");
        assert_eq!(prr.window(40, 13, 14.0, true), 14.0);
    }
}
