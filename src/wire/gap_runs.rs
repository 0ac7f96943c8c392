//! Gaps in a sequence of packets: the payload with which a native responder extends a NAK for a sequence error, if the
//! peer supports it ([`crate::types::PeerCapabilities::GAP_RUNS`]).
//!
//! A list of runs, each of two big-endian counts of 16 bits: packets that are missing, then packets that are kept. The
//! first run begins at the PSN of the NAK, which is missing, and each other one where the previous one ends. Packets
//! after the last run have not arrived, or did not fit.

/// Bytes of a run.
const RUN_BYTES: usize = 4;
/// Most runs in one NAK, if the path MTU has room for them: at 10 % loss they describe 2,500 packets.
const MOST_RUNS: usize = 256;

/// A run: packets that are missing, and the kept ones after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GapRun {
    /// Packets that are missing, at least one.
    pub missing: u16,
    /// Packets after them that are kept, at least one.
    pub kept: u16,
}

impl GapRun {
    /// Most runs in one NAK, if the path MTU has room for them.
    pub const MOST: usize = MOST_RUNS;
    /// Bytes of a run.
    pub const BYTES: usize = RUN_BYTES;

    /// Returns the run as encoded in a packet.
    pub fn to_bytes(self) -> [u8; RUN_BYTES] {
        let ([a, b], [c, d]) = (self.missing.to_be_bytes(), self.kept.to_be_bytes());
        [a, b, c, d]
    }

    /// Number of packets that it describes.
    pub fn packets(self) -> u32 {
        u32::from(self.missing) + u32::from(self.kept)
    }
}

/// The runs of a NAK.
#[derive(Clone, Copy, Debug)]
pub struct GapRuns<'a>(&'a [[u8; RUN_BYTES]]);

impl<'a> GapRuns<'a> {
    /// Parses the runs in a payload. `None`: it is not made of 1 to [`GapRun::MOST`] runs, or one of them has an empty
    /// part.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (chunks, rest) = payload.as_chunks();
        let runs = Self(chunks);
        let is_whole = rest.is_empty() && (1..=MOST_RUNS).contains(&chunks.len());
        (is_whole && runs.iter().all(|run| run.missing > 0 && run.kept > 0)).then_some(runs)
    }

    /// Iterates over the runs, in order.
    pub fn iter(self) -> impl Iterator<Item = GapRun> + Clone + 'a {
        self.0
            .iter()
            .map(|[a, b, c, d]| GapRun { missing: u16::from_be_bytes([*a, *b]), kept: u16::from_be_bytes([*c, *d]) })
    }

    /// Number of packets that all runs describe.
    pub fn packets(self) -> u32 {
        self.iter().map(GapRun::packets).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_runs_round_trip() {
        let runs = [GapRun { missing: 1, kept: 65_535 }, GapRun { missing: 258, kept: 3 }];
        let bytes: Vec<u8> = runs.iter().flat_map(|run| run.to_bytes()).collect();
        assert_eq!(bytes, [0, 1, 0xff, 0xff, 1, 2, 0, 3]);
        let parsed = GapRuns::parse(&bytes).expect("two runs");
        assert_eq!(parsed.iter().collect::<Vec<_>>(), runs);
        assert_eq!(parsed.packets(), 65_536 + 261);
    }

    #[test]
    fn malformed_gap_runs_are_refused() {
        let one = [0, 1, 0, 1];
        for payload in [&[][..], &one[..3], &[0, 0, 0, 1], &[0, 1, 0, 0], &one.repeat(MOST_RUNS + 1)] {
            assert!(GapRuns::parse(payload).is_none(), "{payload:?}");
        }
        assert!(GapRuns::parse(&one.repeat(MOST_RUNS)).is_some());
    }
}
