//! What may happen to packets on their way, for one direction.

use std::time::Duration;

use super::Random;
use crate::types::Time;

/// Faults of one direction of a link. Rates are in permille of the packets.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Packets that vanish.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplication: u32,
    /// Packets of which 1 to 64 bits flip.
    pub corruption: u32,
    /// Packets that later ones overtake.
    pub reordering: u32,
    /// How long a packet travels.
    pub delay: Duration,
    /// By how much the overtaken are late, at most.
    pub lateness: Duration,
    /// From when until when nothing passes.
    pub partitions: Vec<(Time, Time)>,
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum Fate {
    Lost,
    Arrives { at: Time, corrupt: bool },
}

impl Faults {
    fn is_parted(&self, now: Time) -> bool {
        self.partitions.iter().any(|(from, until)| (*from..*until).contains(&now))
    }

    /// The fate of a packet, and that of its double if it has one.
    pub(super) fn decide(&self, now: Time, random: &mut Random) -> [Option<Fate>; 2] {
        let first = self.decide_one(now, random);
        let doubled = random.chance(self.duplication);
        [Some(first), doubled.then(|| self.decide_one(now, random))]
    }

    fn decide_one(&self, now: Time, random: &mut Random) -> Fate {
        if self.is_parted(now) || random.chance(self.loss) {
            return Fate::Lost;
        }
        let mut at = now + self.delay;
        if random.chance(self.reordering) {
            at = at + Duration::from_nanos(random.below(self.lateness.as_nanos() as u64));
        }
        Fate::Arrives { at, corrupt: random.chance(self.corruption) }
    }
}

/// Flips 1 to 64 bits.
pub(super) fn corrupt(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..random.between(1, 64) {
        let bit = random.below(bytes.len() as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
