//! Faults of packets in flight, for one direction.

use std::time::Duration;

use super::Random;
use crate::types::Time;

/// Faults of one direction of a link. Rates are in permille of the packets unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Packets lost.
    pub loss: u32,
    /// Packets lost, in parts per million.
    pub rare_loss: u32,
    /// Rates at which a burst of losses begins and ends.
    pub bursts: Option<(u32, u32)>,
    /// Packets duplicated.
    pub duplication: u32,
    /// Packets with 1 to 64 flipped bits.
    pub corruption: u32,
    /// Packets that later ones overtake.
    pub reordering: u32,
    /// One-way delay.
    pub delay: Duration,
    /// Maximum extra delay of an overtaken packet.
    pub lateness: Duration,
    /// Intervals in which nothing passes.
    pub partitions: Vec<(Time, Time)>,
    /// A period, and the length of the outage at its end.
    pub blackouts: Option<(Duration, Duration)>,
    /// Packets that another host, or another socket of the sender's host, imitates once they have arrived.
    pub forgery: u32,
    /// Whether the receiver knows the sender's port, so that a packet from another one is a forgery.
    pub pins_ports: bool,
    /// Last packets of READ responses that are too short, with a valid ICRC: the sender violates the protocol.
    pub short_answers: u32,
}

/// The fate of a packet on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum Fate {
    Lost,
    Arrives { at: Time, corrupt: bool },
}

impl Faults {
    fn is_parted(&self, now: Time) -> bool {
        let is_black = self.blackouts.is_some_and(|(period, length)| {
            let place = now.as_nanos() % period.as_nanos().max(1) as u64;
            u128::from(place) >= period.saturating_sub(length).as_nanos()
        });
        is_black || self.partitions.iter().any(|(from, until)| (*from..*until).contains(&now))
    }

    /// Decides the fate of a packet, and of its duplicate if it has one. `in_burst` is the link's state.
    pub(super) fn decide(&self, now: Time, in_burst: &mut bool, random: &mut Random) -> [Option<Fate>; 2] {
        let first = self.decide_one(now, in_burst, random);
        let doubled = random.chance(self.duplication);
        [Some(first), doubled.then(|| self.decide_one(now, in_burst, random))]
    }

    /// Draws no random number if the rate is 0.
    fn is_rare_loss(&self, random: &mut Random) -> bool {
        self.rare_loss > 0 && random.below(1_000_000) < u64::from(self.rare_loss)
    }

    fn decide_one(&self, now: Time, in_burst: &mut bool, random: &mut Random) -> Fate {
        if let Some((begin, end)) = self.bursts {
            let changes = random.chance(if *in_burst { end } else { begin });
            *in_burst ^= changes;
        }
        if *in_burst || self.is_parted(now) || random.chance(self.loss) || self.is_rare_loss(random) {
            return Fate::Lost;
        }
        let mut at = now + self.delay;
        if random.chance(self.reordering) {
            at = at + Duration::from_nanos(random.below(self.lateness.as_nanos() as u64));
        }
        Fate::Arrives { at, corrupt: random.chance(self.corruption) }
    }
}

/// Offset in the base transport header of the byte that routers may change, so the ICRC does not cover it.
const UNCOVERED_BYTE: usize = 4;

/// Flips 1 to 64 bits. False if no byte that the ICRC covers has changed, for example because bits were flipped twice.
pub(super) fn corrupt(bytes: &mut [u8], random: &mut Random) -> bool {
    let before = bytes.to_vec();
    for _ in 0..random.between(1, 64) {
        let bit = random.below(bytes.len() as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let differs = |(place, byte): (usize, &u8)| place != UNCOVERED_BYTE && *byte != before[place];
    bytes.iter().enumerate().any(differs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blackouts_end_each_period() {
        let blackouts = Some((Duration::from_secs(5), Duration::from_secs(2)));
        let faults = Faults { blackouts, ..Faults::default() };
        let dark: Vec<_> =
            (0..12).filter(|second| faults.is_parted(Time::from_nanos(second * 1_000_000_000))).collect();
        assert_eq!(dark, [3, 4, 8, 9]);
    }

    #[test]
    fn rare_losses_are_parts_per_million() {
        let faults = Faults { rare_loss: 1_500, ..Faults::default() };
        let mut random = Random::new(1);
        let fates = (0..1_000_000).map(|_| faults.decide_one(Time::ZERO, &mut false, &mut random));
        let losses = fates.filter(|fate| matches!(fate, Fate::Lost)).count();
        assert!((1_350..1_650).contains(&losses), "{losses}");
    }

    #[test]
    fn bursts_lose_runs() {
        let faults = Faults { bursts: Some((20, 200)), ..Faults::default() };
        let (mut in_burst, mut random) = (false, Random::new(1));
        let lost = |fate| matches!(fate, Fate::Lost);
        let fates: Vec<_> =
            (0..10_000).map(|_| lost(faults.decide_one(Time::ZERO, &mut in_burst, &mut random))).collect();
        let losses = fates.iter().filter(|lost| **lost).count();
        let runs = fates.windows(2).filter(|pair| pair[0] && !pair[1]).count();
        assert!(losses > 500 && losses > 3 * runs, "{losses} losses in {runs} runs");
    }
}
