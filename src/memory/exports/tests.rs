//! Revocations while another process is stopped in the middle of an access.

use std::os::fd::AsFd;

use super::*;
use crate::memory::grants::{AccessGate, tests::clock};
use crate::memory::raw::exported;
use crate::types::DomainId;

const DOMAIN: DomainId = DomainId(1);
/// Moving it takes some milliseconds.
const LENGTH: usize = 64 << 20;
const GATE: usize = 256;

/// The second revocation finds the gate abandoned by the first one, which still moves memory.
#[test]
fn no_revocation_ends_before_the_memory_has_moved() {
    let exports = Exports::new(clock).unwrap();
    let table = RegionTable::new(10).exporting(Arc::clone(&exports));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = table.register(DOMAIN, Backing::anonymous(LENGTH).unwrap(), None, access).unwrap();
    region.memory().write(0, &vec![1; LENGTH]).unwrap();
    let words = Memory::new(Backing::anonymous(4_096).unwrap());
    let _watch = exports.watch(WatchedGate::new(Pages::new(words.share()), GATE));
    let stopped = AccessGate::new(Pages::new(words.share()), GATE);
    let (first, second) = (exports.grant().unwrap(), exports.grant().unwrap());
    let offer = table.offer(region.rkey(), DOMAIN.into(), &second, access).unwrap();
    let peer = Memory::new(exported::open(offer.file.as_fd(), LENGTH, true).unwrap());

    stopped.enter();
    std::thread::scope(|scope| {
        for grant in [first, second] {
            scope.spawn(|| {
                drop(grant);
                peer.write(LENGTH - 1, &[9]).unwrap();
                let mut last = [0];
                region.memory().read(LENGTH - 1, &mut last).unwrap();
                assert_eq!(last, [1], "the process that continues changes memory after the queue pair's end");
            });
        }
    });
    assert!(!stopped.leave());
}
