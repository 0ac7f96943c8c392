//! The file of ports: garbage, removal, a full port, stopped and dead processes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use libc::{EADDRINUSE, EADDRNOTAVAIL};
use proptest::prelude::*;

use super::*;
use crate::sys::check_in_child;

#[test]
fn a_dead_owner_has_no_ports() {
    let folder = Folder::new("dead");
    let (dead, living) = (folder.table(), folder.table());
    let requested = request("10.0.0.1", 5_010);
    // Without releasing it, like a killed process.
    let port = listen(&dead, &requested);
    std::mem::forget(port);
    assert_eq!(errno(Port::bind_in(&living, &requested)).err(), Some(EADDRINUSE));
    assert_eq!(listener_in(&living, 5_010, "10.0.0.1"), Some(0x123));
    dead.close_file();
    assert_eq!(listener_in(&living, 5_010, "10.0.0.1"), None);
    drop(listen(&living, &requested));
    // A process in the slot of the dead one does not own its ports.
    let next = folder.table();
    let _other = listen(&next, &request("10.0.0.1", 5_011));
    assert_eq!(listener_in(&living, 5_010, "10.0.0.1"), None);
    Port::bind_in(&living, &requested).unwrap();
}

/// The child has copies of the parent's ports and descriptors, but none of its locks.
#[test]
fn a_forked_child_owns_no_ports() {
    let folder = Folder::new("forked");
    let (parent, living) = (folder.table(), folder.table());
    let requested = request("10.0.0.1", 5_024);
    let mut port = Some(listen(&parent, &requested));
    let stop = folder.0.join("stop");
    let child = check_in_child(|| {
        let is_refused = port.as_mut().is_some_and(|port| port.listen().is_err());
        port = None;
        let own = folder.table();
        let is_taken = errno(Port::bind_in(&own, &requested)).err() == Some(EADDRINUSE);
        let is_found = listener_in(&own, 5_024, "10.0.0.1") == Some(0x123);
        let end = Instant::now() + Duration::from_secs(20);
        while !stop.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.exists() && is_refused && is_taken && is_found
    });
    // Long enough for the child's checks, and harmless if not.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(errno(Port::bind_in(&living, &requested)).err(), Some(EADDRINUSE));
    parent.close_file();
    let bound = Port::bind_in(&living, &requested);
    std::fs::write(&stop, "").unwrap();
    assert!(child(), "a check in the child failed");
    bound.unwrap();
}

#[test]
fn a_port_has_a_limited_number_of_owners() {
    let folder = Folder::new("owners");
    let (table, other) = (folder.table(), folder.table());
    let at = |index: usize| request(&format!("10.0.1.{index}"), 5_012);
    let mut ports: Vec<Port> = (0..RECORDS).map(|index| Port::bind_in(&table, &at(index)).unwrap()).collect();
    for table in [&table, &other] {
        let error = Port::bind_in(table, &at(RECORDS)).err().unwrap();
        assert!(matches!(error, PortError::TooManyOwners { .. }), "{error}");
        assert_eq!(error.errno(), EADDRNOTAVAIL);
    }
    ports.iter().for_each(|port| port.listen().unwrap());
    ports.remove(7);
    let _port = listen(&other, &at(RECORDS));
    assert_eq!(listener_in(&table, 5_012, "10.0.1.16"), Some(0x123));
}

#[test]
fn a_removed_file_is_made_again_with_the_ports_of_its_processes() {
    let folder = Folder::new("removed");
    let (first, second, observer) = (folder.table(), folder.table(), folder.table());
    let _one = listen(&first, &PortRequest { block: 1, ..request("10.0.0.1", 5_013) });
    let _other = listen(&second, &PortRequest { block: 2, ..request("10.0.0.1", 5_014) });
    assert_eq!(listener_in(&observer, 5_013, "10.0.0.1"), Some(1));
    std::fs::remove_dir_all(&folder.0).unwrap();
    // By binding, and by restoring.
    let _third = listen(&first, &request("10.0.0.1", 5_015));
    second.restore();
    assert!(folder.file().exists());
    for table in [&first, &second, &observer] {
        assert_eq!(listener_in(table, 5_013, "10.0.0.1"), Some(1));
        assert_eq!(listener_in(table, 5_014, "10.0.0.1"), Some(2));
    }
    assert_eq!(errno(Port::bind_in(&second, &request("10.0.0.1", 5_013))).err(), Some(EADDRINUSE));
}

#[test]
fn an_unused_file_is_removed_by_the_sweep() {
    let folder = Folder::new("unused");
    let table = folder.table();
    drop(Port::bind_in(&table, &request("10.0.0.1", 5_016)).unwrap());
    let sweep = || Registry::open_in(&folder.0).unwrap().sweep();
    sweep();
    assert!(folder.file().exists(), "a process has it open");
    table.close_file();
    sweep();
    assert!(!folder.file().exists());
}

#[test]
fn without_a_file_ports_are_arbitrated_within_the_process() {
    let folder = Folder::new("unusable");
    let table = folder.table();
    // No file can be opened there.
    std::fs::create_dir_all(folder.file()).unwrap();
    let owner = Port::bind_in(&table, &request("10.0.0.1", 5_017)).unwrap();
    assert_eq!(errno(Port::bind_in(&table, &request("10.0.0.1", 5_017))).err(), Some(EADDRINUSE));
    owner.listen().unwrap();
    assert_eq!(listener_in(&table, 5_017, "10.0.0.1"), Some(0x123));
    // A file that appears later has the ports from the next change on.
    std::fs::remove_dir(folder.file()).unwrap();
    let _later = Port::bind_in(&table, &request("10.0.0.1", 5_018)).unwrap();
    assert_eq!(listener_in(&folder.table(), 5_017, "10.0.0.1"), Some(0x123));
}

/// The others wait for a stopped process two seconds, and then enter a binding without the lock.
#[test]
fn a_stopped_process_delays_others_for_a_while() {
    let folder = Folder::new("stopped");
    let (stopped, table) = (folder.table(), folder.table());
    let start = Instant::now();
    stopped.change(|_| {
        let _port = listen(&table, &request("10.0.0.1", 5_019));
        assert_eq!(listener_in(&stopped, 5_019, "10.0.0.1"), Some(0x123));
    });
    assert!(start.elapsed() > Duration::from_secs(2));
}

/// Returns the bytes of a record, with which a file is filled.
fn record_of(folder: &Folder, port: u16) -> Vec<u8> {
    let file = File::open(folder.file()).unwrap();
    let mut bytes = vec![0; 512];
    file.read_at(&mut bytes, 16_384 + (65_536 + u64::from(port)) * 512).unwrap();
    let record = bytes.chunks(32).find(|record| record.iter().any(|byte| *byte != 0)).unwrap();
    record.to_vec()
}

/// A file that another process of this user has filled with copies of a record is full, and nothing worse.
#[test]
fn copied_records_are_owners_like_others() {
    let folder = Folder::new("copied");
    let (owner, table) = (folder.table(), folder.table());
    let _port = listen(&owner, &request("10.0.0.1", 5_020));
    let copies = record_of(&folder, 5_020).repeat(RECORDS * 2);
    let file = File::options().write(true).open(folder.file()).unwrap();
    file.write_all_at(&copies, 16_384 + (65_536 + 5_021) * 512).unwrap();
    assert_eq!(errno(Port::bind_in(&table, &request("10.0.0.1", 5_021))).err(), Some(EADDRINUSE));
    let error = Port::bind_in(&table, &request("10.0.0.2", 5_022)).err().unwrap();
    assert!(matches!(error, PortError::TooManyOwners { .. }), "{error}");
    assert_eq!(listener_in(&table, 5_021, "10.0.0.1"), Some(0x123));
    Port::bind_in(&table, &request("10.0.0.1", 5_023)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any bytes in the entries of processes and in the records of some ports, also parts of genuine records.
    #[test]
    fn any_content_is_survived(
        mut bytes in prop::collection::vec(any::<u8>(), 4 * 512),
        copied in prop::collection::vec((0usize..64, 0usize..33), 0..8),
        processes in prop::collection::vec(any::<u8>(), 0..256),
    ) {
        let folder = Folder::new("garbage");
        let (owner, table) = (folder.table(), folder.table());
        let _port = listen(&owner, &request("10.0.0.1", 7_999));
        let record = record_of(&folder, 7_999);
        for (index, length) in copied {
            bytes[index * 32..index * 32 + length].copy_from_slice(&record[..length]);
        }
        let file = File::options().write(true).open(folder.file()).unwrap();
        file.write_all_at(&processes, 0).unwrap();
        file.write_all_at(&bytes, 16_384 + (65_536 + 8_000) * 512).unwrap();
        for port in 8_000..8_004 {
            let found = listener_in(&table, port, "10.0.0.1");
            prop_assert!(found.is_none_or(|block| block == 0x123));
            let bound = Port::bind_in(&table, &request("10.0.0.2", port));
            if let Ok(port) = bound {
                port.listen().unwrap();
                prop_assert_eq!(listener_in(&owner, port.number(), "10.0.0.2"), Some(0x123));
            }
        }
        Port::bind_in(&table, &request("10.0.0.1", 0)).unwrap();
    }
}
