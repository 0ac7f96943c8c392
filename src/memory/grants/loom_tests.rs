//! Models of a process that accesses memory, and of its owner, in every order that their accesses allow.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::*;

/// The word of a grant, a gate, and the memory that the grant permits to access.
#[derive(Clone)]
struct Words(Arc<[AtomicU64; 3]>);

const GATE: usize = 8;
const MEMORY: usize = 16;

impl SharedBytes for Words {
    fn load(&self, offset: usize) -> u64 {
        self.0[offset / WORD].load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.0[offset / WORD].store(value, Ordering::Release);
    }

    fn exchange(&self, offset: usize, current: u64, value: u64) -> bool {
        self.0[offset / WORD].compare_exchange(current, value, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let value = u64::from_le_bytes(bytes.try_into().expect("a word"));
        self.0[offset / WORD].store(value, Ordering::Relaxed);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset / WORD].load(Ordering::Relaxed).to_le_bytes());
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Time passes with every look, so that an owner looks twice. Only the model's only owner reads it.
fn clock() -> Time {
    static READ: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let read = READ.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Time::ZERO + PATIENCE / 2 * read as u32
}

/// Once a revocation has ended, nothing changes the memory, unless the owner knows that an access may; then the
/// accessing process knows it, too, unless its access had ended before.
#[test]
fn nothing_is_written_after_a_revocation() {
    loom::model(|| {
        let words = Words(Arc::new([const { () }; 3].map(|()| AtomicU64::new(0))));
        let grants = Grants::new(words.clone(), clock);
        grants.add_gate(WatchedGate::new(words.clone(), GATE));
        let grant = grants.grant().unwrap();
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                let (gate, peer) = (AccessGate::new(words.clone(), GATE), PeerGrants::new(words.clone()));
                let mut is_known = true;
                for value in 1..=2_u64 {
                    gate.enter();
                    if peer.holds(grant) {
                        words.write(MEMORY, &value.to_le_bytes());
                    }
                    is_known &= gate.leave();
                }
                is_known
            })
        };
        let ended = grants.revoke(grant);
        let after = words.load(MEMORY);
        let is_known = writer.join().unwrap();
        match ended {
            Ended::Yes => assert_eq!(words.load(MEMORY), after),
            Ended::Unknown => assert!(!is_known),
        }
    });
}
