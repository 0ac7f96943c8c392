//! Any sequence of posts, completions, forged completions, resets and drops on the ledgers of the owned tier. A short
//! model defines which memory is returned: each once, in order where the queue has one, and only by a completion of its
//! own work queue that names it, or when the queue is reset.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rdma_verbs::owned::{OrderedLedger, UnorderedLedger};
use rdma_verbs::types::CompletionSource;

const LARGEST_INPUT: usize = 4096;
const SOURCE: CompletionSource = CompletionSource::new(1 << 32 | 5);
/// Other sources that an attacker may have on the same completion queue, and none.
const OTHERS: [CompletionSource; 3] =
    [CompletionSource::NONE, CompletionSource::new(2 << 32 | 5), CompletionSource::new(1 << 32 | 6)];

/// Memory that records its drop.
struct Memory {
    id: u32,
    freed: Rc<RefCell<Vec<u32>>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.freed.borrow_mut().push(self.id);
    }
}

/// The memory that was returned to the application, which drops or forgets it.
#[derive(Default)]
struct Outside {
    next: u32,
    freed: Rc<RefCell<Vec<u32>>>,
    forgotten: Vec<u32>,
}

impl Outside {
    fn memory(&mut self) -> Memory {
        self.next += 1;
        Memory { id: self.next, freed: Rc::clone(&self.freed) }
    }

    /// Drops or forgets returned memory.
    fn take(&mut self, memory: Memory, forget: bool) -> u32 {
        let id = memory.id;
        if forget {
            self.forgotten.push(id);
            std::mem::forget(memory);
        }
        id
    }
}

/// The bytes of the input, as choices; zeros after its end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Returns a number that an attacker chooses: near one in use, or any.
    fn number(&mut self, near: u64) -> u64 {
        match self.byte() {
            byte @ 0..128 => near.wrapping_add_signed(i64::from(byte) - 64),
            byte @ 128..160 => near ^ 1 << (byte - 128),
            byte @ 160..192 => near ^ 1 << (byte - 128),
            byte => u64::from_le_bytes([byte; 8]),
        }
    }
}

/// Runs the target.
pub(crate) fn run(data: &[u8]) {
    let mut choices = Choices(&data[..data.len().min(LARGEST_INPUT)]);
    let limit = u32::from(choices.byte() % 9);
    if choices.byte().is_multiple_of(2) { ordered(&mut choices, limit) } else { unordered(&mut choices, limit) }
}

fn ordered(choices: &mut Choices<'_>, limit: u32) {
    let mut outside = Outside::default();
    let mut ledger = OrderedLedger::new(SOURCE, limit);
    // The identifiers in flight, oldest first; the number of the oldest.
    let (mut model, mut first) = (VecDeque::<u32>::new(), 0u64);
    while !choices.is_over() {
        let step = choices.byte();
        let forget = step & 0x80 != 0;
        assert_eq!((ledger.in_flight(), ledger.next_wr_id()), (model.len(), first + model.len() as u64));
        assert_eq!(ledger.has_room(), model.len() < limit as usize);
        match step % 8 {
            0..=2 if ledger.has_room() => {
                let memory = outside.memory();
                model.push_back(memory.id);
                ledger.enter(memory);
            }
            3 => {
                let withdrawn = ledger.withdraw().map(|memory| outside.take(memory, forget));
                assert_eq!(withdrawn, model.pop_back());
            }
            4 if !model.is_empty() => {
                // The device completes one of them, and with it all earlier ones.
                let ahead = u64::from(choices.byte()) % model.len() as u64;
                let (wr_id, retired) = (first + ahead, (first + ahead + 1) as u32);
                for left in (0..=ahead).rev() {
                    let (memory, is_own) = ledger.finish(SOURCE, wr_id, retired).expect("finished by the device");
                    assert_eq!((outside.take(memory, forget), is_own), (model.pop_front().unwrap(), left == 0));
                    first += 1;
                }
                assert!(ledger.finish(SOURCE, wr_id, retired).is_none(), "finished twice");
            }
            5 => {
                let source = OTHERS[usize::from(choices.byte()) % OTHERS.len()];
                let wr_id = choices.number(first);
                assert!(ledger.finish(source, wr_id, choices.number(wr_id.wrapping_add(1)) as u32).is_none());
            }
            6 => {
                // From the queue itself, with a number that is not in flight, or a count beyond the number.
                let wr_id = choices.number(first);
                let retired = choices.number(wr_id.wrapping_add(1)) as u32;
                let ahead = wr_id.wrapping_sub(first);
                let is_in_flight = ahead < model.len() as u64;
                let finishes = u64::from(retired.wrapping_sub(first as u32));
                let expected = is_in_flight && (1..=ahead + 1).contains(&finishes);
                let finished = ledger.finish(SOURCE, wr_id, retired).map(|(memory, _)| outside.take(memory, forget));
                first += u64::from(expected);
                assert_eq!(finished, if expected { model.pop_front() } else { None });
            }
            7 if forget => {
                // RESET.
                while let Some(memory) = ledger.take_oldest() {
                    assert_eq!(Some(outside.take(memory, false)), model.pop_front());
                    first += 1;
                }
            }
            _ => {}
        }
    }
    let in_flight: Vec<u32> = model.into();
    drop(ledger);
    check_ends(&outside, in_flight);
}

fn unordered(choices: &mut Choices<'_>, limit: u32) {
    let mut outside = Outside::default();
    let mut ledger = UnorderedLedger::new(limit);
    let (mut limit, mut model) = (limit as usize, BTreeMap::<u64, u32>::new());
    let mut used = Vec::new();
    while !choices.is_over() {
        let step = choices.byte();
        let forget = step & 0x80 != 0;
        assert_eq!((ledger.in_flight(), ledger.limit()), (model.len(), limit));
        assert_eq!(ledger.next_wr_id().is_some(), model.len() < limit);
        match step % 8 {
            0..=2 => {
                if let Some(wr_id) = ledger.next_wr_id() {
                    let memory = outside.memory();
                    assert_eq!(model.insert(wr_id, memory.id), None, "two in one slot");
                    used.push(wr_id);
                    ledger.enter(memory);
                }
            }
            3 | 4 if !used.is_empty() => {
                // A completion, or a repeated one.
                let wr_id = used[usize::from(choices.byte()) % used.len()];
                assert_eq!(ledger.take(wr_id).map(|memory| outside.take(memory, forget)), model.remove(&wr_id));
            }
            5 => {
                let wr_id = choices.number(used.last().copied().unwrap_or(0));
                assert_eq!(ledger.take(wr_id).map(|memory| outside.take(memory, forget)), model.remove(&wr_id));
            }
            6 => {
                limit = usize::from(choices.byte() % 12);
                ledger.resize(limit as u32);
            }
            7 if forget => {
                let mut taken: Vec<_> =
                    ledger.take_all().into_iter().map(|memory| outside.take(memory, false)).collect();
                taken.sort_unstable();
                let mut expected: Vec<_> = std::mem::take(&mut model).into_values().collect();
                expected.sort_unstable();
                assert_eq!(taken, expected);
            }
            _ => {}
        }
    }
    drop(ledger);
    check_ends(&outside, model.into_values().collect());
}

/// Checks that each memory ended once: dropped by the application, forgotten, or dropped with the ledger.
fn check_ends(outside: &Outside, in_flight: Vec<u32>) {
    let mut ended = outside.freed.borrow().clone();
    assert!(in_flight.iter().all(|id| ended.contains(id)), "memory in flight vanished");
    ended.extend(&outside.forgotten);
    ended.sort_unstable();
    assert_eq!(ended, (1..=outside.next).collect::<Vec<_>>());
}
