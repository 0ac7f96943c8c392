//! The reorder buffer: early request packets, kept until the gap before them is filled.
//!
//! A ring indexed by PSN. It reaches as far ahead as the peer may have packets in flight, grows with the distance
//! needed, and holds no memory while it is empty, because there may be many idle queue pairs. All queue pairs of a
//! device share one budget of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::types::{Psn, Time};
use crate::wire::GapRun;

/// Default limit of a device. One queue pair may have half of it.
const DEFAULT_BUDGET_BYTES: usize = 64 << 20;
/// Approximate overhead of the allocator for a packet, in bytes.
const OVERHEAD_BYTES: usize = 32;
const SMALLEST_RING: usize = 16;
const WORD_BITS: usize = u64::BITS as usize;
/// How long a packet is kept; the next sweep, at most a quarter of this time later, drops it. By then the peer has sent
/// it again, unless it was forged: with the usual transport timeout (code 14), one to four times.
const KEPT_FOR: Duration = Duration::from_millis(270);
/// How long a packet is kept if only the peer can have sent it. Repairing a whole window may take many round trips, of
/// 500 ms each at 10 Mbit/s with a queue of 500 kB, and the peer has to retransmit dropped packets. Once a quarter of
/// the budget is taken, `KEPT_FOR` applies instead: otherwise a peer could occupy the budget with little effort.
const KEPT_FOR_KEYED: Duration = Duration::from_secs(10);

/// Bytes that the reorder buffers of a device may hold together.
#[derive(Debug)]
pub struct ReorderBudget {
    limit: usize,
    held: AtomicUsize,
}

impl Default for ReorderBudget {
    fn default() -> Self {
        Self::new(DEFAULT_BUDGET_BYTES)
    }
}

impl ReorderBudget {
    /// Creates a budget of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, held: AtomicUsize::new(0) }
    }

    /// Returns the bytes held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Takes bytes for a buffer that has `own` already. A buffer gets no more than it leaves to others, so one queue
    /// pair cannot block the packets of all others.
    fn take(&self, bytes: usize, own: usize) -> bool {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let left = self.limit.saturating_sub(before).saturating_sub(bytes);
        let fits = own.saturating_add(bytes) <= left;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// An early packet.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::transport) struct Early {
    pub(in crate::transport) bytes: Box<[u8]>,
    /// Checked again on execution: the peer's port is known for certain only after an earlier packet was executed.
    pub(in crate::transport) source_port: u16,
    forget_at: Time,
}

impl Early {
    fn charge(&self) -> usize {
        self.bytes.len() + OVERHEAD_BYTES
    }
}

/// An arriving packet.
#[derive(Clone, Copy)]
pub(in crate::transport) struct Arrived<'a> {
    pub(in crate::transport) bytes: &'a [u8],
    pub(in crate::transport) source_port: u16,
    /// Whether only the peer can have sent it.
    pub(in crate::transport) is_keyed: bool,
}

/// The outcome of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// It is kept.
    New,
    /// A packet with its PSN is already kept.
    Duplicate,
    /// The device's budget is exhausted.
    NoRoom,
}

/// Packets by PSN, all of them after `base` and less than the ring's length ahead of it.
struct Ring {
    /// The number of slots is a power of two; a PSN modulo this number is its slot.
    slots: Vec<Option<Early>>,
    /// A bit for each slot that holds a packet. A report of gaps reads these words instead of all slots.
    kept: Vec<u64>,
    base: Psn,
    /// The PSN after the last packet kept.
    end: Psn,
    packets: usize,
    /// Bytes charged to the budget, slots included.
    charged: usize,
    /// Time of the next sweep for packets that waited too long.
    forget_at: Time,
}

impl Ring {
    fn slot(&self, psn: Psn) -> usize {
        psn.value() as usize & (self.slots.len() - 1)
    }

    /// Returns the length of the run of kept (or missing) packets from `psn` on, at most `most`.
    fn run(&self, psn: Psn, most: u32, is_kept: bool) -> u32 {
        let mut run = 0;
        while run < most {
            let slot = self.slot(psn.plus(run));
            let word = self.kept[slot / WORD_BITS] >> (slot % WORD_BITS);
            let same = if is_kept { word.trailing_ones() } else { word.trailing_zeros() };
            let until_wrap = (WORD_BITS - slot % WORD_BITS).min(self.slots.len() - slot) as u32;
            run += same.min(until_wrap);
            if same < until_wrap {
                break;
            }
        }
        run.min(most)
    }

    /// Grows the ring to `slots` slots.
    fn grow(&mut self, slots: usize) {
        let mut before = std::mem::take(&mut self.slots);
        self.slots.resize_with(slots, || None);
        self.kept = vec![0; slots.div_ceil(WORD_BITS)];
        for ahead in 0..before.len() {
            let psn = self.base.plus(ahead as u32);
            let slot = psn.value() as usize & (before.len() - 1);
            if let Some(early) = before[slot].take() {
                self.put(self.slot(psn), early);
            }
        }
    }

    fn put(&mut self, slot: usize, early: Early) {
        self.slots[slot] = Some(early);
        self.kept[slot / WORD_BITS] |= 1 << (slot % WORD_BITS);
    }

    /// Removes a packet and returns its charge to the budget.
    fn remove(&mut self, slot: usize, budget: &ReorderBudget) -> Option<Early> {
        let early = self.slots[slot].take()?;
        self.kept[slot / WORD_BITS] &= !(1 << (slot % WORD_BITS));
        self.packets -= 1;
        self.charged -= early.charge();
        budget.give_back(early.charge());
        Some(early)
    }
}

/// The early packets of one queue pair.
pub(super) struct ReorderBuffer {
    ring: Option<Box<Ring>>,
    budget: Arc<ReorderBudget>,
}

impl ReorderBuffer {
    pub(super) fn new(budget: Arc<ReorderBudget>) -> Self {
        Self { ring: None, budget }
    }

    /// Whether it keeps no packet, and holds no memory.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_none()
    }

    /// Returns the number of packets kept.
    pub(super) fn len(&self) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.packets)
    }

    /// Keeps a packet that is ahead of `expected`. The caller bounds its distance and length.
    pub(super) fn insert(&mut self, expected: Psn, psn: Psn, packet: Arrived<'_>, now: Time) -> Kept {
        self.advance(expected);
        let charge = packet.bytes.len() + OVERHEAD_BYTES;
        let is_kept_longer = packet.is_keyed && self.budget.held() <= self.budget.limit / 4;
        let forget_at = now + if is_kept_longer { KEPT_FOR_KEYED } else { KEPT_FOR };
        let has_room = self.make_room(expected, psn, forget_at);
        let Some(ring) = self.ring.as_mut().filter(|_| has_room) else { return Kept::NoRoom };
        let slot = ring.slot(psn);
        if ring.slots[slot].is_some() {
            return Kept::Duplicate;
        }
        if !self.budget.take(charge, ring.charged) {
            self.clear_if_empty();
            return Kept::NoRoom;
        }
        ring.forget_at = ring.forget_at.min(forget_at);
        ring.put(slot, Early { bytes: packet.bytes.into(), source_port: packet.source_port, forget_at });
        if ring.end.is_before(psn.plus(1)) {
            ring.end = psn.plus(1);
        }
        ring.packets += 1;
        ring.charged += charge;
        Kept::New
    }

    /// Grows the ring to reach `psn`.
    fn make_room(&mut self, expected: Psn, psn: Psn, forget_at: Time) -> bool {
        let distance = psn.distance_from(expected).max(0) as usize;
        let needed = (distance + 1).next_power_of_two().max(SMALLEST_RING);
        let before = self.ring.as_ref().map_or(0, |ring| ring.slots.len());
        if needed <= before {
            return true;
        }
        let charge = (needed - before) * size_of::<Option<Early>>();
        let own = self.ring.as_ref().map_or(0, |ring| ring.charged);
        if !self.budget.take(charge, own) {
            return false;
        }
        let ring = self.ring.get_or_insert_with(|| {
            let (slots, kept) = (Vec::new(), Vec::new());
            Box::new(Ring { slots, kept, base: expected, end: expected, packets: 0, charged: 0, forget_at })
        });
        ring.charged += charge;
        ring.grow(needed);
        true
    }

    /// Whether a packet with this PSN opens a new gap: it comes after the last kept packet, but not right after it.
    pub(super) fn opens_gap(&self, psn: Psn) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.end.is_before(psn))
    }

    /// Returns the gaps from `expected` on, which is missing, and the number of packets kept behind each.
    pub(super) fn gap_runs(&self, expected: Psn) -> impl Iterator<Item = GapRun> + '_ {
        let mut psn = expected;
        let mut next = move |ring: &Ring, is_kept: bool| {
            let left = ring.end.packets_since(psn);
            let run = ring.run(psn, left, is_kept);
            psn = psn.plus(run);
            u16::try_from(run).ok().filter(|packets| *packets > 0)
        };
        std::iter::from_fn(move || {
            let ring = self.ring.as_ref()?;
            Some(GapRun { missing: next(ring, false)?, kept: next(ring, true)? })
        })
    }

    /// Takes the packet that is expected now.
    pub(super) fn take(&mut self, expected: Psn) -> Option<Early> {
        self.advance(expected);
        let ring = self.ring.as_mut()?;
        let early = ring.remove(ring.slot(expected), &self.budget)?;
        self.clear_if_empty();
        Some(early)
    }

    /// Drops packets before `expected`: other copies of them were executed.
    pub(super) fn advance(&mut self, expected: Psn) {
        let Some(ring) = &mut self.ring else { return };
        // A READ may take so many PSNs that the next one seems to lie before the last one.
        let passed = match expected.distance_from(ring.base) {
            passed @ 0.. => passed as usize,
            _ => ring.slots.len(),
        };
        for ahead in 0..passed.min(ring.slots.len()) {
            let slot = ring.slot(ring.base.plus(ahead as u32));
            ring.remove(slot, &self.budget);
        }
        ring.base = expected;
        self.clear_if_empty();
    }

    /// Returns when [`ReorderBuffer::handle_timeout`] must be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.ring.as_ref().map(|ring| ring.forget_at)
    }

    /// Drops packets that waited too long.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        let Some(ring) = self.ring.as_mut().filter(|ring| ring.forget_at <= now) else { return };
        let mut next = Time::NEVER;
        for slot in 0..ring.slots.len() {
            match ring.slots[slot].as_ref().map(|early| early.forget_at) {
                Some(forget_at) if forget_at <= now => _ = ring.remove(slot, &self.budget),
                Some(forget_at) => next = next.min(forget_at),
                None => {}
            }
        }
        // Not at the time of each packet: each sweep scans the whole ring.
        ring.forget_at = next.max(now + KEPT_FOR / 4);
        self.clear_if_empty();
    }

    fn clear_if_empty(&mut self) {
        if self.ring.as_ref().is_some_and(|ring| ring.packets == 0) {
            self.clear();
        }
    }

    /// Drops everything and frees the memory.
    pub(super) fn clear(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.budget.give_back(ring.charged);
        }
    }
}

impl Drop for ReorderBuffer {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Psn = Psn::new(0xff_fffa);

    fn packet(bytes: &[u8]) -> Arrived<'_> {
        Arrived { bytes, source_port: 1, is_keyed: false }
    }

    struct Buffer {
        budget: Arc<ReorderBudget>,
        buffer: ReorderBuffer,
    }

    impl Buffer {
        fn new(limit: usize) -> Self {
            let budget = Arc::new(ReorderBudget::new(limit));
            Self { buffer: ReorderBuffer::new(Arc::clone(&budget)), budget }
        }

        fn insert(&mut self, expected: u32, ahead: u32, now: Time) -> Kept {
            let psn = BASE.plus(ahead);
            self.buffer.insert(BASE.plus(expected), psn, packet(&ahead.to_be_bytes()), now)
        }

        fn take(&mut self, expected: u32) -> Option<u32> {
            let early = self.buffer.take(BASE.plus(expected))?;
            Some(u32::from_be_bytes((&*early.bytes).try_into().unwrap()))
        }
    }

    #[test]
    fn packets_are_taken_by_psn_as_the_ring_grows() {
        let mut buffer = Buffer::new(1 << 20);
        for ahead in [3, 1, 15, 16, 4_000, 70] {
            assert_eq!(buffer.insert(0, ahead, Time::ZERO), Kept::New);
            assert_eq!(buffer.insert(0, ahead, Time::ZERO), Kept::Duplicate);
        }
        assert_eq!(buffer.buffer.len(), 6);
        assert_eq!((buffer.take(1), buffer.take(2), buffer.take(3)), (Some(1), None, Some(3)));
        assert_eq!((buffer.take(15), buffer.take(16), buffer.take(71)), (Some(15), Some(16), None));
        assert_eq!((buffer.buffer.len(), buffer.take(4_000)), (1, Some(4_000)));
        assert!(buffer.buffer.is_empty());
        assert_eq!(buffer.budget.held(), 0);
    }

    /// The packets lie around the end of a word, of the ring, and of the PSN space.
    #[test]
    fn gap_runs_list_the_kept_packets() {
        for (expected, kept) in [
            (0, vec![1]),
            (0, (1..16).collect()),
            (50, vec![51, 52, 55, 100, 101, 113, 114, 115, 120]),
            (50, (51..=300).filter(|ahead| ahead % 7 > 1).collect()),
            (4_090, (4_091..=8_000).filter(|ahead| *ahead < 4_200 || *ahead > 7_990).collect::<Vec<u32>>()),
        ] {
            let mut buffer = Buffer::new(1 << 20);
            for ahead in &kept {
                assert_eq!(buffer.insert(expected, *ahead, Time::ZERO), Kept::New);
            }
            let mut listed = Vec::new();
            let mut ahead = expected;
            for run in buffer.buffer.gap_runs(BASE.plus(expected)) {
                ahead += u32::from(run.missing);
                listed.extend(ahead..ahead + u32::from(run.kept));
                ahead += u32::from(run.kept);
            }
            assert_eq!(listed, kept, "from {expected} on");
        }
    }

    /// The responses of a READ of 2 GiB with an MTU of 256 take half of all PSNs.
    #[test]
    fn an_advance_over_half_of_all_psns_empties_the_ring() {
        let mut buffer = Buffer::new(1 << 20);
        assert_eq!(buffer.insert(0, 1, Time::ZERO), Kept::New);
        buffer.buffer.advance(BASE.plus(1 << 23));
        assert!(buffer.buffer.is_empty());
        assert_eq!(buffer.budget.held(), 0);
    }

    #[test]
    fn a_slot_is_reused_after_the_ring_wraps() {
        let mut buffer = Buffer::new(1 << 20);
        for lap in 0..100 {
            let expected = lap * 8;
            assert_eq!(buffer.insert(expected, expected + 15, Time::ZERO), Kept::New);
            let taken = buffer.take(expected + 7);
            assert_eq!(taken, (lap > 0).then_some(expected + 7), "lap {lap}");
        }
    }

    #[test]
    fn the_budget_is_shared_and_given_back() {
        let mut buffer = Buffer::new(9_000);
        let mut other = ReorderBuffer::new(Arc::clone(&buffer.budget));
        let short = packet(&[0; 1_000]);
        let kept = (1..10).filter(|ahead| other.insert(BASE, BASE.plus(*ahead), short, Time::ZERO) == Kept::New);
        assert_eq!(kept.count(), 3, "as much as it leaves to others");
        let long = packet(&[0; 2_300]);
        assert_eq!(buffer.buffer.insert(BASE, BASE.plus(1), long, Time::ZERO), Kept::NoRoom);
        assert!(buffer.buffer.is_empty());
        assert_eq!(buffer.insert(0, 3_000, Time::ZERO), Kept::NoRoom, "nor does a ring of that length fit");
        assert_eq!(buffer.insert(0, 1, Time::ZERO), Kept::New);
        assert!(buffer.budget.held() <= 9_000);
        drop(other);
        assert_eq!(buffer.buffer.insert(BASE, BASE.plus(2), long, Time::ZERO), Kept::New);
        buffer.buffer.clear();
        assert_eq!(buffer.budget.held(), 0);
    }

    #[test]
    fn packets_kept_too_long_are_dropped() {
        let mut buffer = Buffer::new(1 << 20);
        let later = Time::ZERO + KEPT_FOR / 2;
        buffer.insert(0, 1, Time::ZERO);
        buffer.insert(0, 2, later);
        let mut rounds = 0;
        while let Some(deadline) = buffer.buffer.deadline() {
            buffer.buffer.handle_timeout(deadline);
            assert!(deadline >= Time::ZERO + KEPT_FOR && deadline < later + 2 * KEPT_FOR);
            rounds += 1;
        }
        assert!((2..8).contains(&rounds), "{rounds}");
        assert_eq!(buffer.budget.held(), 0);
    }

    #[test]
    fn keyed_packets_are_kept_longer() {
        let mut buffer = Buffer::new(1 << 20);
        buffer.insert(0, 1, Time::ZERO);
        buffer.buffer.insert(BASE, BASE.plus(2), Arrived { is_keyed: true, ..packet(&[2]) }, Time::ZERO);
        buffer.buffer.handle_timeout(Time::ZERO + KEPT_FOR);
        assert_eq!(buffer.buffer.len(), 1);
        assert_eq!(buffer.buffer.deadline(), Some(Time::ZERO + KEPT_FOR_KEYED), "no sweep before");
        buffer.buffer.handle_timeout(Time::ZERO + KEPT_FOR_KEYED);
        assert!(buffer.buffer.is_empty());
    }

    #[test]
    fn keyed_packets_are_not_kept_longer_once_a_quarter_of_the_budget_is_taken() {
        let mut buffer = Buffer::new(1 << 20);
        for ahead in 1..=300 {
            let packet = Arrived { is_keyed: true, ..packet(&[0; 1_000]) };
            buffer.buffer.insert(BASE, BASE.plus(ahead), packet, Time::ZERO);
        }
        assert_eq!((buffer.buffer.len(), buffer.buffer.deadline()), (300, Some(Time::ZERO + KEPT_FOR)));
        buffer.buffer.handle_timeout(Time::ZERO + KEPT_FOR);
        assert!((200..300).contains(&buffer.buffer.len()), "{}", buffer.buffer.len());
    }
}
