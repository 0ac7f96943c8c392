//! The sources of a completion queue: the queue pairs' sides that put completions into it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::send::SendQueue;

/// Names a source of a completion queue. Worthless after it was detached, also when its place is used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SourceToken {
    index: u32,
    generation: u32,
}

/// One place of the table.
#[derive(Default)]
struct Place {
    generation: u32,
    attached: bool,
    send_queue: Option<Arc<SendQueue>>,
}

/// All sources of a completion queue.
#[derive(Default)]
pub(super) struct Sources {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Sources {
    /// Adds a source whose send slots are released as its send completions are polled.
    pub(super) fn attach(&mut self, send_queue: Option<Arc<SendQueue>>) -> SourceToken {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.attached = true;
        place.send_queue = send_queue;
        SourceToken { index, generation: place.generation }
    }

    /// Removes a source. Its send queue is returned, for the caller to drop where it likes.
    pub(super) fn detach(&mut self, token: SourceToken) -> Option<Arc<SendQueue>> {
        let place = self.places.get_mut(token.index as usize)?;
        if !place.attached || place.generation != token.generation {
            return None;
        }
        place.attached = false;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(token.index);
        place.send_queue.take()
    }

    /// Whether the source is attached.
    #[inline]
    pub(super) fn contains(&self, token: SourceToken) -> bool {
        self.place(token).is_some()
    }

    /// The send queue of an attached source.
    #[inline]
    pub(super) fn send_queue(&self, token: SourceToken) -> Option<&SendQueue> {
        self.place(token)?.send_queue.as_deref()
    }

    #[inline]
    fn place(&self, token: SourceToken) -> Option<&Place> {
        let place = self.places.get(token.index as usize)?;
        (place.attached && place.generation == token.generation).then_some(place)
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
}
