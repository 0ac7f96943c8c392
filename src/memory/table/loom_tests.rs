//! Models of deregistration concurrent with views, in every order that the lock allows.

use loom::thread;

use super::*;

const DOMAIN: DomainId = DomainId(1);
const ALL: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::LOCAL_WRITE);

fn registered(table: &RegionTable, invalidatable: bool) -> Arc<Region> {
    let options = RegionInit { access: ALL, iova: Some(0), invalidatable };
    table.register_with(DOMAIN, Backing::from_vec(vec![1; 8]), &options).unwrap()
}

/// A view that found a region keeps finding it, with the same bytes. Once deregistration has returned, nothing touches
/// the memory, so it may be changed or freed.
fn use_region(table: &RegionTable, key: u32) {
    let view = table.read();
    let mut out = [0; 8];
    let found = view.check(key, DOMAIN, 0, 8, ALL).is_ok();
    thread::yield_now();
    let result = view.read(key, DOMAIN, 0, AccessFlags::REMOTE_READ, &mut out);
    if found {
        assert_eq!((result, out), (Ok(()), [1; 8]));
        thread::yield_now();
        assert_eq!(view.write(key, DOMAIN, 0, AccessFlags::REMOTE_WRITE, &[1; 8]), Ok(()));
    } else {
        assert_eq!(result, Err(AccessError::UnknownKey));
    }
}

#[test]
fn deregistration_against_views() {
    loom::model(|| {
        let table = Arc::new(RegionTable::new(4));
        let region = registered(&table, false);
        let key = region.key();
        let users: Vec<_> = (0..2)
            .map(|_| {
                let table = Arc::clone(&table);
                thread::spawn(move || use_region(&table, key))
            })
            .collect();
        assert!(table.deregister(&region));
        let mut bytes = Region::into_backing(region).expect("there is no other handle").into_vec().unwrap();
        bytes.fill(2);
        thread::yield_now();
        assert_eq!(bytes, [2; 8]);
        for user in users {
            user.join().unwrap();
        }
    });
}

#[test]
fn a_region_is_deregistered_once() {
    loom::model(|| {
        let table = Arc::new(RegionTable::new(4));
        let region = registered(&table, false);
        let other = {
            let (table, region) = (Arc::clone(&table), Arc::clone(&region));
            thread::spawn(move || table.deregister(&region))
        };
        let here = table.deregister(&region);
        assert!(here ^ other.join().unwrap());
    });
}

#[test]
fn a_key_is_invalidated_once() {
    loom::model(|| {
        let table = Arc::new(RegionTable::new(4));
        let key = registered(&table, true).key();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.read().invalidate(key, DOMAIN).is_ok())
        };
        let here = table.read().invalidate(key, DOMAIN).is_ok();
        assert!(here ^ other.join().unwrap());
        assert_eq!(table.read().check(key, DOMAIN, 0, 8, ALL), Err(AccessError::UnknownKey));
    });
}
