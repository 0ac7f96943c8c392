//! Width and speed that a port reports, in the standard's steps, derived from the interface's speed.

use crate::types::{LinkSpeed, LinkWidth};

/// Upper limit, in megabits per second, of the Ethernet links reported with each width and speed. The steps are those
/// of Linux.
const STEPS: [(u32, LinkWidth, LinkSpeed); 9] = [
    (1_000, LinkWidth::X1, LinkSpeed::Sdr),
    (10_000, LinkWidth::X1, LinkSpeed::Fdr10),
    (20_000, LinkWidth::X4, LinkSpeed::Ddr),
    (25_000, LinkWidth::X1, LinkSpeed::Edr),
    (40_000, LinkWidth::X4, LinkSpeed::Fdr10),
    (50_000, LinkWidth::X2, LinkSpeed::Edr),
    (100_000, LinkWidth::X4, LinkSpeed::Edr),
    (200_000, LinkWidth::X4, LinkSpeed::Hdr),
    (400_000, LinkWidth::X4, LinkSpeed::Ndr),
];

/// Returns the width and speed of a link. A link of unknown speed, such as loopback, is reported as the slowest, so
/// that programs that distribute work by speed prefer real links.
pub(super) fn width_and_speed(megabits: Option<u32>) -> (LinkWidth, LinkSpeed) {
    let megabits = megabits.unwrap_or(0);
    let step = STEPS.iter().find(|(limit, ..)| megabits <= *limit);
    step.map_or((LinkWidth::X8, LinkSpeed::Ndr), |(_, width, speed)| (*width, *speed))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn width_and_speed_match_the_link() {
        for (megabits, lanes, lane) in [(25_000, 1, 25_000), (40_000, 4, 10_000), (100_000, 4, 25_000)] {
            let (width, speed) = width_and_speed(Some(megabits));
            assert_eq!((width.lanes(), speed.megabits()), (lanes, lane));
        }
        assert_eq!(width_and_speed(None), (LinkWidth::X1, LinkSpeed::Sdr));
        assert_eq!(width_and_speed(Some(800_000)), (LinkWidth::X8, LinkSpeed::Ndr));
        assert_eq!(width_and_speed(Some(u32::MAX)), width_and_speed(Some(800_000)));
    }
}
