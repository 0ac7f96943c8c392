//! Maps the numbers in the provider's events to the program's objects.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_verbs::types::EventObject;

/// An object that the program holds; only its address is used here.
#[derive(Clone, Copy)]
pub(crate) struct ObjectPtr(*mut c_void);

// SAFETY: the address is only passed to the program, and never dereferenced here.
unsafe impl Send for ObjectPtr {}

impl ObjectPtr {
    /// Returns the address.
    pub(crate) fn as_ptr(self) -> *mut c_void {
        self.0
    }
}

/// Live objects that events can refer to.
#[derive(Default)]
pub(crate) struct EventObjects(Mutex<HashMap<EventObject, ObjectPtr>>);

impl EventObjects {
    /// Locks the objects, so that none is added or removed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<EventObject, ObjectPtr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an object that the program holds.
    pub(crate) fn add<T>(&self, object: EventObject, pointer: *mut T) {
        self.lock().insert(object, ObjectPtr(pointer.cast()));
    }

    /// Removes an object: its events are no longer delivered.
    pub(crate) fn remove(&self, object: EventObject) {
        self.lock().remove(&object);
    }
}
