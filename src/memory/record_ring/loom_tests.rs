//! Models of a writer and a reader, in every order that their accesses allow.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::*;

/// Room for two records of a word, and the header of a third.
const CAPACITY: usize = 64;

/// Shared words. The accesses to records are as weak as those of the mapped memory.
#[derive(Clone)]
struct Words(Arc<(AtomicU64, AtomicU64, Vec<AtomicU64>)>);

impl Words {
    fn new() -> Self {
        let records = (0..CAPACITY / WORD).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new((AtomicU64::new(0), AtomicU64::new(0), records)))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        match offset {
            READER_POSITION => &self.0.0,
            BELL_REQUEST => &self.0.1,
            _ => &self.0.2[(offset - RECORDS) / WORD],
        }
    }
}

impl SharedBytes for Words {
    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn exchange(&self, offset: usize, current: u64, value: u64) -> bool {
        self.word(offset).compare_exchange(current, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let value = u64::from_le_bytes(bytes.try_into().expect("a word"));
        self.word(offset).store(value, Ordering::Relaxed);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.word(offset).load(Ordering::Relaxed).to_le_bytes());
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The descriptor that a sleeping reader waits on.
#[derive(Default)]
struct Bell {
    rings: Mutex<u32>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_one();
    }

    fn sleep(&self) {
        let mut rings = self.rings.lock().unwrap();
        while *rings == 0 {
            rings = self.rung.wait(rings).unwrap();
        }
        *rings = 0;
    }
}

/// Takes this many records, and sleeps only after a request for the bell.
fn read(words: Words, bell: &Bell, records: u64) {
    let mut reader = RingReader::new(words, CAPACITY);
    let mut out = [0; WORD];
    let mut next = 0;
    while next < records {
        match reader.take(&mut out).unwrap() {
            Some(Record { tag, length }) => {
                assert_eq!((tag, length, u64::from_le_bytes(out)), (next, WORD, next + 100));
                next += 1;
            }
            None if reader.request_bell() => {}
            None => bell.sleep(),
        }
    }
}

fn write(writer: &mut RingWriter<Words>, bell: &Bell, number: u64) -> bool {
    let placed = writer.push(number, &(number + 100).to_le_bytes()).unwrap();
    if placed && writer.takes_bell() {
        bell.ring();
    }
    placed
}

/// A reader that sleeps is woken for each record; otherwise the model has a deadlock.
#[test]
fn no_record_waits_for_a_sleeping_reader() {
    loom::model(|| {
        let (words, bell) = (Words::new(), Arc::new(Bell::default()));
        let mut writer = RingWriter::new(words.clone(), CAPACITY);
        let reader = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || read(words, &bell, 2))
        };
        assert!((0..2).all(|number| write(&mut writer, &bell, number)));
        reader.join().unwrap();
    });
}

/// The places of records that are read are used again, and never earlier.
#[test]
fn places_are_used_again_only_after_they_were_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (words, bell) = (Words::new(), Arc::new(Bell::default()));
        let mut writer = RingWriter::new(words.clone(), CAPACITY);
        let reader = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || read(words, &bell, 5))
        };
        let mut number = 0;
        while number < 5 {
            if write(&mut writer, &bell, number) {
                number += 1;
            } else {
                thread::yield_now();
            }
        }
        reader.join().unwrap();
    });
}
