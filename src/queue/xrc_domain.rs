//! The shared receive queues of an extended reliable connection domain, by their numbers.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use super::SharedReceiveQueue;
use super::sync::{Mutex, lock};
use crate::types::SharedReceiveQueueNumber;

/// The shared receive queues that the targets of a domain may be told to use.
pub struct XrcDomain {
    queues: Mutex<HashMap<SharedReceiveQueueNumber, Arc<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// A domain without queues.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { queues: Mutex::new(HashMap::new()) })
    }

    /// Messages may name the queue from now on.
    pub fn add(&self, queue: &Arc<SharedReceiveQueue>) {
        lock(&self.queues).insert(queue.number(), Arc::clone(queue));
    }

    /// And no longer.
    pub fn remove(&self, number: SharedReceiveQueueNumber) {
        let removed = lock(&self.queues).remove(&number);
        // Here, without the lock, because it may be the last reference.
        drop(removed);
    }

    /// The queue with this number.
    pub fn find(&self, number: SharedReceiveQueueNumber) -> Option<Arc<SharedReceiveQueue>> {
        lock(&self.queues).get(&number).map(Arc::clone)
    }
}
