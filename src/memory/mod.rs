//! Registered memory: regions, their keys, and every access to their bytes.
//!
//! # Why registered memory is never a slice
//!
//! A `&[u8]` promises the compiler that the bytes do not change while it lives, a `&mut [u8]` that nobody else looks
//! at them. Registered memory keeps neither promise: a peer may write or read any of it at any time, several engine
//! threads may do so at once, and a mapped file may be changed by another process. A slice over such bytes is
//! undefined behaviour before the first access. So this module hands out none. Bytes go in and out by copies
//! ([`Region::read_at`], [`Region::write_at`], [`MemoryView::read`], [`MemoryView::write`]) and by atomics on aligned
//! words; both are accesses that may meet another party's without being a data race in Rust's model. What such a
//! meeting yields is old bytes, new bytes or a mixture, and never anything worse.
//!
//! # Order within a write
//!
//! Programs poll on the last byte of a message. A write therefore places its body first, in any order, and then the
//! last word, or what the write covers of it, in naturally aligned pieces with rising addresses: the last byte is
//! visible only when all others are. A write of eight aligned bytes is one store. [`Region::load_acquire_u8`] and its
//! wider sisters are the polling side.
//!
//! # Every access can fail
//!
//! Memory of our own ([`Backing::anonymous`], [`Backing::from_vec`]) is always there. A raw range may be unmapped and a
//! file truncated by others; touching such a page would raise a signal. Copies to and from these two are made by the
//! kernel, which answers [`AccessError::Fault`] instead, or, several times as fast, with a handler of that signal if
//! the program asks for it ([`recover_from_faults`]); `raw` tells how, and what atomics do.
//!
//! # Life
//!
//! A [`RegionTable`] finds regions by key. The engine takes a [`MemoryView`] for each of its passes and resolves keys
//! at the moment of use. [`RegionTable::deregister`] removes the key and waits for the views that were taken before;
//! when it returns, nobody but the holders of the `Arc` can touch the memory, and [`Region::into_backing`] gives the
//! buffer back.

mod advise;
mod backing;
mod device_memory;
mod error;
mod key;
mod owners;
mod raw;
mod region;
mod table;
mod users;
mod window;

pub use backing::{Backing, Mapping};
pub use device_memory::{DeviceMemory, DeviceMemoryError, DeviceMemoryPool, DevicePart};
pub use error::{AccessError, AdviseError, BindError, RecoverError, RefusedBacking, RegisterError};
pub use raw::{OwnedBytes, RawRange, recover_from_faults};
pub use region::{Region, RegisterOptions};
pub(crate) use table::Payloads;
pub use table::{MemoryView, RegionTable};
pub use window::{Window, WindowBind};

/// The locks and the flags that the model checker must see.
mod sync {
    #[cfg(loom)]
    pub(super) use loom::sync::{
        Mutex, RwLock, RwLockReadGuard,
        atomic::{AtomicU32, fence},
    };
    #[cfg(loom)]
    pub(super) use loom::thread::yield_now as pause;
    #[cfg(not(loom))]
    pub(super) use std::sync::{
        Mutex, RwLock, RwLockReadGuard,
        atomic::{AtomicU32, fence},
    };
    #[cfg(not(loom))]
    pub(super) use std::thread::yield_now as pause;
}
