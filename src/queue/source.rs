//! The sources of a completion queue: the send and receive sides of queue pairs that put completions into it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::send::SendQueue;
use crate::types::{CompletionSource, RawCompletion};

/// Identifies a source of a completion queue. It is invalid once the source is detached, even if its slot is reused: a
/// completion queue never issues a token twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceToken {
    index: u32,
    /// Never 0, so that no source is [`CompletionSource::NONE`].
    generation: u32,
}

impl SourceToken {
    /// The source that its completions carry.
    #[inline]
    pub fn source(self) -> CompletionSource {
        CompletionSource::new(u64::from(self.generation) << 32 | u64::from(self.index))
    }

    /// The token of a completion's source.
    #[inline]
    pub(super) fn of(completion: &RawCompletion) -> Self {
        let number = completion.source.number();
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// A slot of the table.
struct Slot {
    generation: u32,
    attached: bool,
    send_queue: Option<Arc<SendQueue>>,
}

/// Generation of the first source of a slot.
const FIRST_GENERATION: u32 = 1;

/// All sources of a completion queue.
#[derive(Default)]
pub(super) struct Sources {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Sources {
    /// Adds a source whose send slots are released as its send completions are polled.
    pub(super) fn attach(&mut self, send_queue: Option<Arc<SendQueue>>) -> SourceToken {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: FIRST_GENERATION, attached: false, send_queue: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.attached = true;
        slot.send_queue = send_queue;
        SourceToken { index, generation: slot.generation }
    }

    /// Removes a source. Returns its send queue, so that the caller decides where to drop it.
    pub(super) fn detach(&mut self, token: SourceToken) -> Option<Arc<SendQueue>> {
        let slot = self.slots.get_mut(token.index as usize)?;
        if !slot.attached || slot.generation != token.generation {
            return None;
        }
        slot.attached = false;
        // A slot that has used up its generations is not reused, so that no token is issued twice.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(token.index);
        }
        slot.send_queue.take()
    }

    /// Whether the source is attached.
    #[inline]
    pub(super) fn contains(&self, token: SourceToken) -> bool {
        self.slot(token).is_some()
    }

    /// The send queue of an attached source.
    #[inline]
    pub(super) fn send_queue(&self, token: SourceToken) -> Option<&SendQueue> {
        self.slot(token)?.send_queue.as_deref()
    }

    #[inline]
    fn slot(&self, token: SourceToken) -> Option<&Slot> {
        let slot = self.slots.get(token.index as usize)?;
        (slot.attached && slot.generation == token.generation).then_some(slot)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn token_dies_with_its_source() {
        let mut sources = Sources::default();
        let first = sources.attach(Some(SendQueue::new(1, 1, 0)));
        let second = sources.attach(None);
        assert!(sources.send_queue(first).is_some() && sources.send_queue(second).is_none());
        assert!(sources.detach(first).is_some());
        assert!(sources.detach(first).is_none());
        assert!(!sources.contains(first) && sources.contains(second));
        let third = sources.attach(None);
        assert_eq!(third.index, first.index);
        assert_ne!(third, first);
        assert!(sources.contains(third) && !sources.contains(first));
        assert!(sources.detach(first).is_none());
        assert!(sources.contains(third));
    }

    #[test]
    fn no_token_comes_twice() {
        let mut sources = Sources::default();
        let first = sources.attach(None);
        sources.detach(first);
        sources.slots[0].generation = u32::MAX;
        let last = sources.attach(None);
        assert_eq!((last.index, last.generation), (0, u32::MAX));
        sources.detach(last);
        let next = sources.attach(None);
        assert_ne!(next.index, 0, "a slot without generations left was reused");
        assert!(sources.contains(next) && !sources.contains(first) && !sources.contains(last));
    }

    #[test]
    fn completion_identifies_its_token() {
        let mut sources = Sources::default();
        for _ in 0..3 {
            let (token, other) = (sources.attach(None), sources.attach(None));
            let completion = RawCompletion { source: token.source(), ..RawCompletion::default() };
            assert_eq!(SourceToken::of(&completion), token);
            assert_ne!(token.source(), other.source());
            assert_ne!(token.source(), CompletionSource::NONE);
            assert!(!sources.contains(SourceToken::of(&RawCompletion::default())));
            sources.detach(token);
        }
    }
}
