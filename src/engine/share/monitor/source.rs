//! The devices of this process that can be watched.

use std::any::Any;
use std::fs::File;
use std::sync::{Arc, Mutex, Weak};

use super::lock;
use crate::engine::capture::Capture;
use crate::sys::PerGeneration;
use crate::types::{CaptureOptions, DeviceStatistics};

/// Most queue pairs that a snapshot lists.
const MOST_QUEUE_PAIRS: usize = 1_024;
/// Most listeners that a snapshot lists.
const MOST_LISTENERS: usize = 256;

/// A capture that has started, and its share of the device's limit.
pub(crate) type StartedCapture = (Arc<Capture>, Box<dyn Any + Send>);

/// A device that can be watched. It must own nothing whose end waits for the mailbox's thread.
pub(crate) trait Monitored: Send + Sync {
    /// Returns a number that no other device of this process has had.
    fn id(&self) -> u64;

    /// Returns the name of the device.
    fn name(&self) -> &str;

    /// Collects its statistics.
    fn statistics(&self, room: &mut Room) -> DeviceStatistics;

    /// Starts a capture into an open file.
    ///
    /// # Errors
    /// The reason, in words.
    fn start_capture(&self, file: File, options: &CaptureOptions) -> Result<StartedCapture, String>;

    /// Stops recording packets in a capture.
    fn detach_capture(&self, capture: &Arc<Capture>);
}

static DEVICES: PerGeneration<Mutex<Vec<Weak<dyn Monitored>>>> = PerGeneration::new();

/// Makes a device known until it is dropped.
pub(crate) fn register(device: &Arc<dyn Monitored>) {
    if let Some(devices) = DEVICES.get() {
        let mut devices = lock(devices);
        devices.retain(|known| known.strong_count() > 0);
        devices.push(Arc::downgrade(device));
    }
}

/// Returns the devices of this process, in the order in which they were opened.
pub(super) fn devices() -> Vec<Arc<dyn Monitored>> {
    DEVICES.get().map(|devices| lock(devices).iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
}

/// The room for queue pairs and listeners that is left in a snapshot.
pub(crate) struct Room {
    queue_pairs: usize,
    listeners: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { queue_pairs: MOST_QUEUE_PAIRS, listeners: MOST_LISTENERS }
    }
}

impl Room {
    /// Takes the room for a queue pair. Returns false if there is none.
    pub(crate) fn take_queue_pair(&mut self) -> bool {
        let has_room = self.queue_pairs > 0;
        self.queue_pairs -= usize::from(has_room);
        has_room
    }

    /// Returns the number of listeners for which there is room.
    pub(crate) fn listeners(&self) -> usize {
        self.listeners
    }

    /// Takes the room for listeners.
    pub(crate) fn take_listeners(&mut self, count: usize) {
        self.listeners = self.listeners.saturating_sub(count);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded() {
        let mut room = Room::default();
        assert_eq!((0..2_000).filter(|_| room.take_queue_pair()).count(), MOST_QUEUE_PAIRS);
        room.take_listeners(MOST_LISTENERS + 5);
        assert_eq!(room.listeners(), 0);
    }
}
