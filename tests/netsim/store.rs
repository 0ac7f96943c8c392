//! The memory of one end: a region cut into slots, one for each purpose of each request, and regions that must never be
//! written.

use std::sync::Arc;

use rdma_verbs::memory::{Backing, Region, RegionInit};
use rdma_verbs::sim::{Host, Random};
use rdma_verbs::types::{AccessFlags, DomainId, Rkey, Sge};

/// Number of slots of each area, and the maximum number of outstanding requests of a side.
pub(crate) const SLOTS: u64 = 16;
pub(crate) const REGION_BASE: u64 = 0x1000_0000;
/// Length of the atomic counters at the beginning of the region.
pub(crate) const COUNTERS: u64 = 64;
/// Offset of the word among them that is written repeatedly.
pub(crate) const WORD: u64 = 16;
const FORBIDDEN_BYTES: usize = 64;
/// The access flags that one end may grant the other.
pub(crate) const GRANTABLE: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::FLUSH_GLOBAL);
/// The byte with which the application overwrites data that it has read.
const CONSUMED: u8 = 0xc5;

/// The layout of a region.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) slot_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Area {
    Source,
    Written,
    Readable,
    Fetched,
    Received,
}

impl Layout {
    pub(crate) fn new(largest: u64) -> Self {
        Self { slot_bytes: largest.max(8).next_multiple_of(8) }
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        COUNTERS + 5 * SLOTS * self.slot_bytes
    }

    pub(crate) fn offset(&self, area: Area, index: u64) -> u64 {
        COUNTERS + (area as u64 * SLOTS + index % SLOTS) * self.slot_bytes
    }
}

/// The keys that the other end knows.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) main: Rkey,
    /// Key of a region without remote access flags.
    pub(crate) no_access: Rkey,
    /// Key of a region in another protection domain.
    pub(crate) foreign: Rkey,
    /// Key of a region that was deregistered.
    pub(crate) gone: Rkey,
    /// Key of a region whose key may be invalidated.
    pub(crate) revocable: Rkey,
}

/// The registered memory of one end.
pub(crate) struct Store {
    pub(crate) layout: Layout,
    main: Arc<Region>,
    /// Regions that must not change.
    forbidden: [Arc<Region>; 4],
    /// Lengths of the consumed data in the slots that the peer writes to.
    consumed: [Option<u64>; SLOTS as usize],
}

fn zeros(length: usize) -> Backing {
    Backing::from_vec(vec![0; length])
}

impl Store {
    pub(crate) fn new(host: &Host, layout: Layout) -> Self {
        let all = AccessFlags::LOCAL_WRITE | GRANTABLE;
        let register = |domain, access, invalidatable| {
            let mut options = RegionInit::default().access(access).iova(REGION_BASE);
            options.invalidatable = invalidatable;
            host.memory.register_with(DomainId(domain), zeros(FORBIDDEN_BYTES), &options).expect("room for a region")
        };
        let no_access = register(1, AccessFlags::LOCAL_WRITE, false);
        let foreign = register(2, all, false);
        let gone = register(1, all, false);
        let revocable = register(1, all, true);
        assert!(host.memory.deregister(&gone));
        let backing = Backing::anonymous(layout.region_bytes() as usize).expect("memory for a region");
        let main = host.memory.register(DomainId(1), backing, Some(REGION_BASE), all).expect("room for a region");
        Self { layout, main, forbidden: [no_access, foreign, gone, revocable], consumed: [None; SLOTS as usize] }
    }

    pub(crate) fn keys(&self) -> Keys {
        let [no_access, foreign, gone, revocable] = self.forbidden.each_ref().map(|region| region.rkey());
        Keys { main: self.main.rkey(), no_access, foreign, gone, revocable }
    }

    pub(crate) fn start_over(&mut self) {
        self.write(0, &[0; COUNTERS as usize]);
        self.consumed = [None; SLOTS as usize];
    }

    pub(crate) fn sge(&self, area: Area, index: u64, skip: u64, length: u64) -> Sge {
        self.sge_at(self.layout.offset(area, index) + skip, length)
    }

    pub(crate) fn sge_at(&self, offset: u64, length: u64) -> Sge {
        Sge { addr: REGION_BASE + offset, length: length as u32, lkey: self.main.lkey() }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        self.main.write_at(offset, data).expect("the region's own bytes");
    }

    pub(crate) fn fill(&self, area: Area, index: u64, data: &[u8]) {
        self.write(self.layout.offset(area, index), data);
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.main.read_at(offset, &mut bytes).expect("the region's own bytes");
        bytes
    }

    pub(crate) fn counter(&self, offset: u64) -> u64 {
        self.read(offset, 8).try_into().map(u64::from_ne_bytes).expect("eight bytes")
    }

    pub(crate) fn expect_bytes(&self, area: Area, index: u64, expected: &[u8]) {
        let found = self.read(self.layout.offset(area, index), expected.len() as u64);
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        let wrong = wrong.map(|offset| (offset, found[offset]));
        assert!(wrong.is_none(), "{area:?} {index}: wrong byte at {wrong:?} of {}", expected.len());
    }

    /// Consumes data that was written to a slot: the application overwrites it.
    pub(crate) fn consume(&mut self, index: u64, length: u64) {
        self.fill(Area::Written, index, &vec![CONSUMED; length as usize]);
        self.consumed[(index % SLOTS) as usize] = Some(length);
    }

    /// Offers a slot for writing: nothing may have written to it since it was consumed.
    pub(crate) fn offer(&mut self, index: u64) {
        if let Some(length) = self.consumed[(index % SLOTS) as usize].take() {
            self.expect_consumed(index, length);
        }
    }

    fn expect_consumed(&self, index: u64, length: u64) {
        let found = self.read(self.layout.offset(Area::Written, index), length);
        assert!(found.iter().all(|byte| *byte == CONSUMED), "slot {index} was written again after its completion");
    }

    /// Checks that no forbidden region was written.
    pub(crate) fn check(&self) {
        for (slot, length) in self.consumed.iter().enumerate() {
            length.iter().for_each(|length| self.expect_consumed(slot as u64, *length));
        }
        for (number, region) in self.forbidden.iter().enumerate() {
            let mut bytes = [0; FORBIDDEN_BYTES];
            region.read_at(0, &mut bytes).expect("the region's own bytes");
            assert_eq!(bytes, [0; FORBIDDEN_BYTES], "forbidden region {number} was written");
        }
    }
}

/// Returns the bytes of a request.
pub(crate) fn pattern(salt: u64, index: u64, length: u64) -> Vec<u8> {
    let mut random = Random::new(salt ^ index.wrapping_mul(0x1234_5678_9abc_def1));
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        bytes.extend(random.number().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}
