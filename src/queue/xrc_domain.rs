//! The shared receive queues of an extended reliable connection domain, by their numbers.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use super::SharedReceiveQueue;
use super::sync::{Mutex, lock};
use crate::types::SharedReceiveQueueNumber;

/// The shared receive queues that messages to the targets of a domain may name.
pub struct XrcDomain {
    queues: Mutex<HashMap<SharedReceiveQueueNumber, Arc<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { queues: Mutex::new(HashMap::new()) })
    }

    /// Adds a queue, which messages may name from now on.
    pub fn add(&self, queue: &Arc<SharedReceiveQueue>) {
        lock(&self.queues).insert(queue.number(), Arc::clone(queue));
    }

    /// Removes a queue, which messages may no longer name.
    pub fn remove(&self, number: SharedReceiveQueueNumber) {
        let removed = lock(&self.queues).remove(&number);
        // Dropped without the lock, because it may be the last reference.
        drop(removed);
    }

    /// The queue with this number.
    pub fn find(&self, number: SharedReceiveQueueNumber) -> Option<Arc<SharedReceiveQueue>> {
        lock(&self.queues).get(&number).map(Arc::clone)
    }
}
