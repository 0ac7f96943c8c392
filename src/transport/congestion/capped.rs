//! A controller whose rate has an upper bound.

use std::time::Duration;

use super::{Acked, CongestionControl, CongestionEvent, Sent};
use crate::types::ControlReport;

/// A controller that bounds the rate of another one, in bytes per second. The bound is always known, so it also holds
/// for traffic that is never acknowledged.
pub struct Capped {
    control: Box<dyn CongestionControl>,
    bytes_per_second: u64,
}

impl Capped {
    /// Bounds the rate of `control`.
    pub fn new(control: Box<dyn CongestionControl>, bytes_per_second: u64) -> Self {
        Self { control, bytes_per_second }
    }

    fn cap(&self, rate: Option<u64>) -> u64 {
        rate.map_or(self.bytes_per_second, |rate| rate.min(self.bytes_per_second))
    }
}

impl CongestionControl for Capped {
    fn on_sent(&mut self, sent: &Sent) {
        self.control.on_sent(sent);
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.control.on_ack(ack);
    }

    fn on_congestion(&mut self, event: &CongestionEvent) {
        self.control.on_congestion(event);
    }

    fn on_spurious_reduction(&mut self) {
        self.control.on_spurious_reduction();
    }

    fn window(&self) -> u64 {
        self.control.window()
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.cap(self.control.pacing_rate()))
    }

    fn known_rate(&self, data_age: Option<Duration>) -> Option<u64> {
        Some(self.cap(self.control.known_rate(data_age)))
    }

    fn report(&self) -> ControlReport {
        self.control.report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Option<u64>);

    impl CongestionControl for Fixed {
        fn on_sent(&mut self, _: &Sent) {}

        fn on_ack(&mut self, _: &Acked) {}

        fn on_congestion(&mut self, _: &CongestionEvent) {}

        fn window(&self) -> u64 {
            4_096
        }

        fn pacing_rate(&self) -> Option<u64> {
            self.0
        }

        fn report(&self) -> ControlReport {
            ControlReport::new("fixed")
        }

        fn known_rate(&self, data_age: Option<Duration>) -> Option<u64> {
            self.0.filter(|_| data_age.is_some())
        }
    }

    #[test]
    fn the_cap_limits_higher_rates_and_keeps_lower_ones() {
        for (rate, capped) in [(None, 1_000), (Some(5_000), 1_000), (Some(300), 300)] {
            let control = Capped::new(Box::new(Fixed(rate)), 1_000);
            assert_eq!((control.pacing_rate(), control.window()), (Some(capped), 4_096));
            assert_eq!(control.report(), control.control.report(), "the report is the controller's");
            assert_eq!(control.known_rate(Some(Duration::ZERO)), Some(capped));
            assert_eq!(control.known_rate(None), Some(1_000), "the cap is the rate where there is no other");
        }
    }
}
