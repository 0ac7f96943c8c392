//! Regions by key: checks, lifetime and concurrency.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const DOMAIN: DomainId = DomainId(1);
const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

fn assert_shareable<T: Send + Sync>() {}

fn registered(table: &RegionTable, length: usize, access: AccessFlags) -> Arc<Region> {
    table.register(DOMAIN, Backing::from_vec(vec![0; length]), Some(0x1000), access).unwrap()
}

#[test]
fn types_may_be_shared() {
    assert_shareable::<Region>();
    assert_shareable::<Backing>();
    assert_shareable::<RegionTable>();
}

#[test]
fn iova_is_optional() {
    let table = RegionTable::new(10);
    let backing = || Backing::from_vec(vec![0; 8]);
    assert_eq!(table.register(DOMAIN, backing(), 5u64, ALL).unwrap().iova(), 5);
    let region = table.register(DOMAIN, backing(), None, ALL).unwrap();
    assert_eq!(region.iova(), region.as_mut_ptr().addr() as u64);
    assert_eq!(region.lkey().0, region.rkey().0);
    assert_eq!(table.len(), 2);
}

#[test]
fn accesses_are_checked() {
    let table = RegionTable::new(10);
    let region = registered(&table, 16, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
    let key = region.rkey().0;
    let view = table.read();
    let need = AccessFlags::REMOTE_READ;
    assert_eq!(view.check(key, DOMAIN, 0x1000, 16, need), Ok(()));
    assert_eq!(view.check(key, DOMAIN, 0x1010, 0, need), Ok(()));
    for wrong in [key ^ 1, key ^ 0x80, key ^ 0x100, key ^ 0x8000_0000, 0] {
        assert_eq!(view.check(wrong, DOMAIN, 0x1000, 16, need), Err(AccessError::UnknownKey));
    }
    assert_eq!(view.check(key, DomainId(2), 0x1000, 16, need), Err(AccessError::WrongDomain));
    assert_eq!(view.check(key, DOMAIN, 0x1000, 17, need), Err(AccessError::OutOfBounds));
    assert_eq!(view.check(key, DOMAIN, 0xfff, 1, need), Err(AccessError::OutOfBounds));
    assert_eq!(view.check(key, DOMAIN, 0x1001, u64::MAX, need), Err(AccessError::OutOfBounds));
    assert_eq!(view.check(key, DOMAIN, 0x1000, 1, AccessFlags::REMOTE_WRITE), Err(AccessError::NoPermission));
    assert_eq!(view.fetch_and_add(key, DOMAIN, 0x1000, 1), Err(AccessError::NoPermission));
    assert_eq!(view.write(key, DOMAIN, 0x100f, AccessFlags::LOCAL_WRITE, b"!"), Ok(()));
    assert_eq!(view.write(key, DOMAIN, 0x100f, AccessFlags::LOCAL_WRITE, b"!!"), Err(AccessError::OutOfBounds));
    let mut out = [0; 2];
    assert_eq!(view.read(key, DOMAIN, 0x100e, AccessFlags::empty(), &mut out), Ok(()));
    assert_eq!(&out, b"\0!");
}

#[test]
fn every_write_needs_local_write() {
    let table = RegionTable::new(10);
    let region = registered(&table, 8, AccessFlags::REMOTE_READ);
    let result = table.read().write(region.lkey().0, DOMAIN, 0x1000, AccessFlags::empty(), b"x");
    assert_eq!(result, Err(AccessError::NoPermission));
}

#[test]
fn atomics_return_the_previous_value() {
    let table = RegionTable::new(10);
    let region = table.register(DOMAIN, Backing::anonymous(16).unwrap(), Some(0x1000), ALL).unwrap();
    let key = region.rkey().0;
    let view = table.read();
    assert_eq!(view.fetch_and_add(key, DOMAIN, 0x1008, u64::MAX), Ok(0));
    assert_eq!(view.fetch_and_add(key, DOMAIN, 0x1008, 3), Ok(u64::MAX));
    assert_eq!(view.compare_and_swap(key, DOMAIN, 0x1008, 1, 9), Ok(2));
    assert_eq!(view.compare_and_swap(key, DOMAIN, 0x1008, 2, 9), Ok(2));
    assert_eq!(region.load_acquire_u64(8), Ok(9));
    assert_eq!(region.load_acquire_u64(0), Ok(0));
    assert_eq!(view.compare_and_swap(key, DOMAIN, 0x1004, 0, 1), Err(AccessError::Misaligned));
    assert_eq!(view.fetch_and_add(key, DOMAIN, 0x100c, 1), Err(AccessError::OutOfBounds));
}

#[test]
fn atomics_need_an_aligned_host_address() {
    let table = RegionTable::new(10);
    let region = table.register(DOMAIN, Backing::anonymous(24).unwrap(), Some(0x1004), ALL).unwrap();
    let view = table.read();
    assert_eq!(view.fetch_and_add(region.rkey().0, DOMAIN, 0x100c, 1), Ok(0));
    assert_eq!(view.fetch_and_add(region.rkey().0, DOMAIN, 0x1008, 1), Err(AccessError::Misaligned));
}

#[test]
fn deregistered_region_returns_its_memory() {
    let table = RegionTable::new(10);
    let bytes: Vec<u8> = (0..100).collect();
    let pointer = bytes.as_ptr();
    let region = table.register(DOMAIN, Backing::from_vec(bytes), None, ALL).unwrap();
    let key = region.rkey().0;
    let region = Region::into_backing(region).expect_err("it is registered");
    assert!(table.deregister(&region));
    assert!(!table.deregister(&region));
    assert_eq!(table.read().check(key, DOMAIN, region.iova(), 1, ALL), Err(AccessError::UnknownKey));
    region.write_at(0, &[7]).unwrap();
    let bytes = Region::into_backing(region).unwrap().into_vec().unwrap();
    assert_eq!((bytes.as_ptr(), bytes[0], bytes[99]), (pointer, 7, 99));
}

#[test]
fn reregistered_region_may_keep_its_keys() {
    let table = RegionTable::new(10);
    let old = registered(&table, 16, ALL);
    let options = RegionInit { access: AccessFlags::LOCAL_WRITE, ..RegionInit::default() };
    let new = table.reregister(&old, DOMAIN, None, &options, true).unwrap();
    assert_eq!((new.rkey(), table.len()), (old.rkey(), 1));
    let write = AccessFlags::REMOTE_WRITE;
    assert_eq!(table.read().check(new.rkey().0, DOMAIN, 0x1000, 1, write), Err(AccessError::NoPermission));
    assert!(!table.deregister(&old), "the new region replaced it");
    let other = table.reregister(&new, DOMAIN, None, &options, false).unwrap();
    assert_ne!(other.rkey(), new.rkey());
    assert_eq!(table.read().check(new.rkey().0, DOMAIN, 0x1000, 1, write), Err(AccessError::UnknownKey));
    assert!(table.deregister(&other) && table.is_empty());
}

#[test]
fn another_tables_region_is_not_deregistered() {
    let (table, other) = (RegionTable::new(10), RegionTable::new(10));
    let region = registered(&table, 8, ALL);
    assert!(!other.deregister(&region));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_dropped_handle_leaves_the_region_registered() {
    let table = RegionTable::new(10);
    let key = registered(&table, 8, ALL).rkey().0;
    assert_eq!(table.read().write(key, DOMAIN, 0x1000, AccessFlags::REMOTE_WRITE, &[1; 8]), Ok(()));
}

#[test]
fn refused_backing_is_returned() {
    let table = RegionTable::new(1);
    let _region = registered(&table, 8, ALL);
    let options = RegionInit { access: AccessFlags::REMOTE_WRITE, ..Default::default() };
    let refused = table.register_with(DOMAIN, Backing::from_vec(b"kept".to_vec()), &options).unwrap_err();
    assert_eq!(refused.error, RegisterError::MissingLocalWrite { given: AccessFlags::REMOTE_WRITE });
    let refused = table.register_with(DOMAIN, refused.backing, &RegionInit::default()).unwrap_err();
    assert_eq!(refused.error, RegisterError::TooManyRegions { limit: 1 });
    assert_eq!(refused.backing.into_vec().unwrap(), b"kept");
}

#[test]
fn only_marked_regions_are_invalidated_and_only_once() {
    let table = RegionTable::new(10);
    let plain = registered(&table, 8, ALL);
    let options = RegionInit { access: ALL, iova: Some(0), invalidatable: true };
    let marked = table.register_with(DOMAIN, Backing::from_vec(vec![0; 8]), &options).unwrap();
    let key = marked.rkey().0;
    {
        let view = table.read();
        assert_eq!(view.invalidate(plain.rkey().0, DOMAIN), Err(AccessError::NotInvalidatable));
        assert_eq!(view.invalidate(key ^ 1, DOMAIN), Err(AccessError::UnknownKey));
        assert_eq!(view.invalidate(key, DomainId(9)), Err(AccessError::WrongDomain));
        assert_eq!(view.check(key, DOMAIN, 0, 8, ALL), Ok(()));
        assert_eq!(view.invalidate(key, DOMAIN), Ok(()));
        assert_eq!(view.check(key, DOMAIN, 0, 8, ALL), Err(AccessError::UnknownKey));
        assert_eq!(view.invalidate(key, DOMAIN), Err(AccessError::UnknownKey));
    }
    assert!(!marked.is_valid());
    assert!(table.deregister(&marked));
    assert!(Region::into_backing(marked).is_ok());
}

#[test]
fn a_hundred_thousand_regions_have_their_own_indices() {
    let count = if cfg!(miri) { 100 } else { 100_000 };
    let table = RegionTable::new(count);
    let regions: Vec<_> = (0..count).map(|_| registered(&table, 1, ALL)).collect();
    let indices: HashSet<u32> = regions.iter().map(|region| index_of(region.key())).collect();
    assert_eq!(indices.len(), count);
    let refused = table.register(DOMAIN, Backing::from_vec(vec![0]), None, ALL);
    assert_eq!(refused.unwrap_err(), RegisterError::TooManyRegions { limit: count });
    for region in &regions {
        assert_eq!(table.read().check(region.key(), DOMAIN, 0x1000, 1, ALL), Ok(()));
        assert!(table.deregister(region));
    }
    assert!(table.is_empty());
}

#[test]
fn deregistration_waits_for_a_view() {
    let table = RegionTable::new(10);
    let region = registered(&table, 8, ALL);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let view = table.read();
        scope.spawn(|| {
            assert!(table.deregister(&region));
            done.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!done.load(Ordering::SeqCst));
        assert_eq!(view.check(region.key(), DOMAIN, 0x1000, 8, ALL), Ok(()));
        drop(view);
    });
    assert!(done.load(Ordering::SeqCst));
}

/// Once the last byte of a message is visible, all of it is.
fn last_byte_is_last(backing: Backing, rounds: u64) {
    let length = backing.len();
    let table = RegionTable::new(1);
    let region = table.register(DOMAIN, backing, 0u64, ALL).unwrap();
    let seen = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                wait_until(|| seen.load(Ordering::Acquire) == round);
                let (start, end) = range_of(round, length);
                let data = vec![stamp(round); end - start];
                let need = AccessFlags::REMOTE_WRITE;
                table.read().write(region.rkey().0, DOMAIN, start as u64, need, &data).unwrap();
            }
        });
        for round in 1..=rounds {
            let (start, end) = range_of(round, length);
            let last = end as u64 - 1;
            region.store_release_u8(last, 0).unwrap();
            seen.store(round, Ordering::Release);
            wait_until(|| region.load_acquire_u8(last).unwrap() != 0);
            let mut out = vec![0; end - start];
            region.read_at(start as u64, &mut out).unwrap();
            assert!(out.iter().all(|&byte| byte == stamp(round)), "round {round}: {start}..{end}: {out:?}");
        }
    });
}

/// Spins first, to detect the change early, then yields.
fn wait_until(done: impl Fn() -> bool) {
    while !(0..200).any(|_| done()) {
        thread::yield_now();
    }
}

/// Differs from round to round, and is never 0.
fn stamp(round: u64) -> u8 {
    (round % 255 + 1) as u8
}

/// A range that moves through the region with many lengths and alignments at both ends.
fn range_of(round: u64, length: usize) -> (usize, usize) {
    let start = (round * 7 % 64) as usize;
    let end = start + 1 + (round * round * 13) as usize % (length - start);
    (start, end)
}

#[test]
fn the_last_byte_of_a_message_is_last() {
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    last_byte_is_last(Backing::from_vec(vec![0; 3000]), rounds);
}

#[test]
#[cfg_attr(miri, ignore = "needs process_vm_readv")]
fn the_last_byte_of_a_message_is_last_in_raw_memory() {
    let mut bytes = vec![0u8; 3000];
    // SAFETY: `bytes` lives until the region of `last_byte_is_last` is gone, and nothing else uses it.
    last_byte_is_last(unsafe { Backing::raw(bytes.as_mut_ptr(), bytes.len()) }, 20_000);
}

#[test]
fn memory_is_unused_after_deregistration() {
    let rounds = if cfg!(miri) { 5 } else { 3_000 };
    let table = RegionTable::new(10);
    let (key, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let accesses = AtomicU64::new(0);
    thread::scope(|scope| {
        for pattern in [0x11u8, 0x22] {
            let (table, key, stop, accesses) = (&table, &key, &stop, &accesses);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let key = key.load(Ordering::Relaxed) as u32;
                    let view = table.read();
                    let mut out = [0; 333];
                    if view.write(key, DOMAIN, 3, AccessFlags::REMOTE_WRITE, &[pattern; 777]).is_ok() {
                        view.read(key, DOMAIN, 100, AccessFlags::REMOTE_READ, &mut out).unwrap();
                        assert!(out.iter().all(|byte| [0x11, 0x22].contains(byte)));
                        accesses.fetch_add(1, Ordering::Relaxed);
                    }
                    drop(view);
                    thread::yield_now();
                }
            });
        }
        let mut bytes = vec![0u8; 1000];
        for round in 0..rounds {
            let region = table.register(DOMAIN, Backing::from_vec(bytes), 0u64, ALL).unwrap();
            key.store(u64::from(region.key()), Ordering::Relaxed);
            let mut out = [0; 1000];
            let before = accesses.load(Ordering::Relaxed);
            let patience = Instant::now();
            while accesses.load(Ordering::Relaxed) == before && patience.elapsed() < Duration::from_millis(2) {
                region.read_at(0, &mut out).unwrap();
                thread::yield_now();
            }
            assert!(table.deregister(&region));
            bytes = Region::into_backing(region).unwrap().into_vec().unwrap();
            bytes.fill(0xee);
            thread::yield_now();
            assert!(bytes.iter().all(|&byte| byte == 0xee), "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(accesses.load(Ordering::Relaxed) > 0);
}

#[test]
fn atomics_of_peers_and_program_lose_no_update() {
    let rounds = if cfg!(miri) { 50 } else { 50_000 };
    let table = RegionTable::new(1);
    let region = table.register(DOMAIN, Backing::anonymous(8).unwrap(), 0u64, ALL).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                table.read().fetch_and_add(region.key(), DOMAIN, 0, 1).unwrap();
            }
        });
        for _ in 0..rounds {
            let mut expected = region.load_acquire_u64(0).unwrap();
            loop {
                let found = region.compare_exchange_u64(0, expected, expected + 1).unwrap();
                if found == expected {
                    break;
                }
                expected = found;
            }
        }
    });
    assert_eq!(region.load_acquire_u64(0), Ok(2 * rounds));
}

#[derive(Clone, Debug)]
enum Step {
    Register { length: usize, iova: u64, access: u32, domain: u32 },
    Deregister { which: usize },
    Write { which: usize, twist: u32, domain: u32, before: u64, length: usize, need: u32 },
    Read { which: usize, twist: u32, domain: u32, before: u64, length: usize, need: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let twist = prop_oneof![4 => Just(0u32), 1 => Just(1), 1 => Just(0x80), 1 => Just(0x100)];
    let flags = prop_oneof![Just(0u32), Just(1), Just(2), Just(4)];
    let access = (any::<usize>(), twist, 0..2u32, 0..48u64, 0..40usize, flags);
    prop_oneof![
        2 => (1..40usize, prop_oneof![Just(8u64), Just(1 << 40), Just(u64::MAX - 40)], 0..8u32, 0..2u32)
            .prop_map(|(length, iova, access, domain)| Step::Register { length, iova, access, domain }),
        1 => any::<usize>().prop_map(|which| Step::Deregister { which }),
        4 => access.clone().prop_map(|(which, twist, domain, before, length, need)|
            Step::Write { which, twist, domain, before, length, need }),
        4 => access.prop_map(|(which, twist, domain, before, length, need)|
            Step::Read { which, twist, domain, before, length, need }),
    ]
}

/// A model of the table: plain vectors, and the rules in plain code.
#[derive(Default)]
struct Model {
    regions: HashMap<u32, (DomainId, u64, AccessFlags, Vec<u8>)>,
    made: Vec<Arc<Region>>,
}

impl Model {
    fn find(
        &mut self,
        key: u32,
        domain: DomainId,
        addr: u64,
        length: usize,
        need: AccessFlags,
    ) -> Result<&mut [u8], AccessError> {
        let (owner, iova, access, bytes) = self.regions.get_mut(&key).ok_or(AccessError::UnknownKey)?;
        if *owner != domain {
            return Err(AccessError::WrongDomain);
        }
        if !access.contains(need) {
            return Err(AccessError::NoPermission);
        }
        let start = i128::from(addr) - i128::from(*iova);
        if start < 0 || start + length as i128 > bytes.len() as i128 {
            return Err(AccessError::OutOfBounds);
        }
        Ok(&mut bytes[start as usize..start as usize + length])
    }

    fn key_and_address(&self, which: usize, twist: u32, before: u64) -> Option<(u32, u64)> {
        let region = self.made.get(which % self.made.len().max(1))?;
        Some((region.key() ^ twist, region.iova().wrapping_add(before).wrapping_sub(4)))
    }

    fn run(&mut self, table: &RegionTable, step: Step, fill: u8) {
        match step {
            Step::Register { length, iova, access, domain } => {
                let access = AccessFlags::from_bits_retain(access) | AccessFlags::LOCAL_WRITE;
                let domain = DomainId(domain);
                let backing = Backing::from_vec(vec![fill; length]);
                let region = table.register(domain, backing, iova, access).unwrap();
                self.regions.insert(region.key(), (domain, iova, access, vec![fill; length]));
                self.made.push(region);
            }
            Step::Deregister { which } => {
                let Some(region) = self.made.get(which % self.made.len().max(1)) else { return };
                assert_eq!(table.deregister(region), self.regions.remove(&region.key()).is_some());
            }
            Step::Write { which, twist, domain, before, length, need } => {
                let Some((key, addr)) = self.key_and_address(which, twist, before) else { return };
                let (need, domain) = (AccessFlags::from_bits_retain(need), DomainId(domain));
                let data = vec![fill; length];
                let result = table.read().write(key, domain, addr, need, &data);
                assert_eq!(result, self.find(key, domain, addr, length, need).map(|bytes| bytes.fill(fill)));
            }
            Step::Read { which, twist, domain, before, length, need } => {
                let Some((key, addr)) = self.key_and_address(which, twist, before) else { return };
                let (need, domain) = (AccessFlags::from_bits_retain(need), DomainId(domain));
                let mut out = vec![0; length];
                let result = table.read().read(key, domain, addr, need, &mut out).map(|()| out);
                assert_eq!(result, self.find(key, domain, addr, length, need).map(|bytes| bytes.to_vec()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
    #[test]
    fn the_table_agrees_with_its_model(steps in prop::collection::vec(step(), 1..100)) {
        let table = RegionTable::new(1000);
        let mut model = Model::default();
        for (index, step) in steps.into_iter().enumerate() {
            model.run(&table, step, index as u8 + 1);
        }
        prop_assert_eq!(table.len(), model.regions.len());
    }
}
