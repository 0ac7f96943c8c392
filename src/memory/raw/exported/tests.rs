use std::sync::atomic::AtomicBool;

use super::*;
use crate::memory::raw::Memory;

const LENGTH: usize = 3 * 4_096 + 5;

fn exported(is_writable_by_peers: bool) -> Memory {
    Memory::new(Backing::exported(LENGTH, is_writable_by_peers).unwrap())
}

fn file_of(memory: &Memory) -> OwnedFd {
    memory.backing().as_exported().unwrap().pass_on().unwrap()
}

fn peer_of(memory: &Memory) -> Memory {
    Memory::new(open(file_of(memory).as_fd(), LENGTH, true).unwrap())
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn both_ends_see_the_same_bytes() {
    let own = exported(true);
    let peer = peer_of(&own);
    own.write(1, b"from the owner").unwrap();
    peer.write(LENGTH - 4, b"peer").unwrap();
    assert!(bytes(&own) == bytes(&peer) && bytes(&own).ends_with(b"peer"));
    assert_eq!(peer.write(LENGTH - 3, b"peer"), Err(super::super::AccessError::OutOfBounds));
}

#[test]
fn a_range_without_remote_writes_is_mapped_read_only() {
    let own = exported(false);
    let file = file_of(&own);
    assert!(open(file.as_fd(), LENGTH, true).is_err());
    let peer = Memory::new(open(file.as_fd(), LENGTH, false).unwrap());
    own.write(0, b"visible").unwrap();
    assert!(bytes(&peer).starts_with(b"visible"));
    assert_eq!(peer.write(0, b"no"), Err(super::super::AccessError::NoPermission));
}

#[test]
fn other_files_are_refused() {
    let own = exported(true);
    let file = file_of(&own);
    for length in [0, 4_096, LENGTH - 5, LENGTH + 4_096, usize::MAX - 8_192] {
        assert!(open(file.as_fd(), length, true).is_err(), "{length} bytes");
    }
    let unsealed = std::fs::File::open("/dev/zero").unwrap();
    assert!(open(unsealed.as_fd(), LENGTH, false).is_err());
}

#[test]
fn private_contents_are_out_of_reach() {
    for is_writable_by_peers in [true, false] {
        let own = exported(is_writable_by_peers);
        let peer = Memory::new(open(file_of(&own).as_fd(), LENGTH, is_writable_by_peers).unwrap());
        own.write(0, &vec![7; LENGTH]).unwrap();
        let range = own.backing().as_exported().unwrap();
        range.make_private().unwrap();
        range.make_private().unwrap();
        assert!(bytes(&own) == vec![7; LENGTH], "the contents are lost");
        if is_writable_by_peers {
            peer.write(0, &vec![9; LENGTH]).unwrap();
        }
        assert!(bytes(&own) == vec![7; LENGTH], "the contents can be changed");
        own.write(5, b"own").unwrap();
        assert!(!bytes(&peer).windows(3).any(|part| part == b"own"), "the contents can be read");
        assert!(range.pass_on().is_err());
    }
}

/// Accesses of this process run while the contents move.
#[test]
fn no_access_is_lost_while_the_contents_move() {
    for _ in 0..50 {
        let own = exported(true);
        let _peer = peer_of(&own);
        let is_over = AtomicBool::new(false);
        let added = std::thread::scope(|scope| {
            let adder = scope.spawn(|| {
                let mut added = 0;
                while !is_over.load(Ordering::Relaxed) {
                    (0..LENGTH - 8).step_by(4_096).for_each(|word| {
                        own.fetch_add_u64(word, 1).unwrap();
                    });
                    added += 1;
                }
                added
            });
            own.backing().as_exported().unwrap().make_private().unwrap();
            is_over.store(true, Ordering::Relaxed);
            adder.join().unwrap()
        });
        for word in (0..LENGTH - 8).step_by(4_096) {
            assert_eq!(own.load_acquire_u64(word), Ok(added));
        }
    }
}

/// Runs code in a forked child, and returns the exit status that it returns; `None` if the child ends otherwise.
fn in_child(code: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child takes no lock of the program, allocates at most from the C library, which supports this, and
    // ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = code();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: waits for the child, and writes its status to a live local variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// A child has the contents, and writes a copy.
#[test]
fn a_child_does_not_write_into_its_parent() {
    let own = exported(true);
    let peer = peer_of(&own);
    own.write(0, b"parent").unwrap();
    let status = in_child(|| {
        let mut seen = [0; 6];
        let was_read = own.read(0, &mut seen).is_ok() && &seen == b"parent";
        let was_written = own.write(0, b"child!").is_ok() && own.read(0, &mut seen).is_ok() && &seen == b"child!";
        i32::from(!(was_read && was_written))
    });
    assert_eq!(status, Some(0));
    assert!(bytes(&own).starts_with(b"parent") && bytes(&peer).starts_with(b"parent"));
    own.write(0, b"later").unwrap();
    assert!(bytes(&peer).starts_with(b"later"), "the parent's memory is still shared");
}

/// Without room for private pages, nothing changes, and the next attempt is a full one.
#[test]
fn contents_that_cannot_move_are_still_shared() {
    let status = in_child(|| {
        let own = exported(true);
        let peer = peer_of(&own);
        let range = own.backing().as_exported().unwrap();
        let set_limit = |bytes| {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the kernel reads one structure.
            (unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }) == 0
        };
        let failed = set_limit(4_096) && range.make_private().is_err() && set_limit(libc::RLIM_INFINITY);
        let mut seen = [0; 4];
        let is_shared = peer.write(0, b"peer").is_ok() && own.read(0, &mut seen).is_ok() && &seen == b"peer";
        let moved = range.make_private().is_ok();
        let is_private = peer.write(0, b"late").is_ok() && own.read(0, &mut seen).is_ok() && &seen == b"peer";
        let steps = [failed, is_shared, moved, is_private];
        steps.iter().take_while(|step| **step).count() as i32
    });
    assert_eq!(status, Some(4), "steps that were as expected");
}

/// A peer that keeps its mapping does not keep the pages.
#[test]
fn the_pages_end_with_their_owner() {
    let own = exported(true);
    let peer = peer_of(&own);
    own.write(0, &vec![7; LENGTH]).unwrap();
    drop(own);
    assert!(bytes(&peer) == vec![0; LENGTH]);
}

#[test]
fn places_are_used_again() {
    assert!((0..4 * MOST_EXPORTED).all(|_| Backing::exported(1, true).is_ok()));
}
