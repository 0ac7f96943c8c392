//! Registered memory: regions, their keys, and every access to their bytes.
//!
//! # Why registered memory is never a slice
//!
//! A `&[u8]` promises the compiler that the bytes do not change while it lives, a `&mut [u8]` that nothing else
//! accesses them. Registered memory keeps neither promise: a peer may write or read any of it at any time, several
//! engine threads may do so at once, and a mapped file may be changed by another process. A slice over such bytes is
//! undefined behavior before the first access. So this module hands out none. Bytes go in and out by copies
//! ([`Region::read_at`], [`Region::write_at`], [`MemoryView::read`], [`MemoryView::write`]) and by atomics on aligned
//! words; both may overlap another party's access without being a data race in Rust's model. Such an overlap yields old
//! bytes, new bytes or a mixture, and never anything worse.
//!
//! # Order within a write
//!
//! Programs poll on the last byte of a message. A write therefore places its body first, in any order, and then the
//! last word, or the part of it that the write covers, in naturally aligned stores at rising addresses: the last byte
//! is visible only when all others are. A write of eight aligned bytes is one store. [`Region::load_acquire_u8`] and
//! its wider variants are the polling side.
//!
//! Where the kernel makes the copies (see below), it also places the body before the last word. How it stores the bytes
//! of that word is its own choice: on the processors tested they become visible at once, but no manual promises it. A
//! program that polls a word of such memory either calls [`recover_from_faults`], or lets its peer use ATOMIC WRITE,
//! which is always one store.
//!
//! # Every access can fail
//!
//! The library's own memory ([`Backing::anonymous`], [`Backing::from_vec`]) is always present. A raw range may be
//! unmapped and a file truncated by others; touching such a page would raise a signal. For these two, the kernel makes
//! the copies and reports [`AccessError::Fault`] instead. If the program opts in with [`recover_from_faults`], a
//! handler of that signal does the same several times as fast; `raw` describes how, and how atomics work.
//!
//! # Lifetime
//!
//! A [`RegionTable`] finds regions by key. The engine takes a [`MemoryView`] for each of its passes and resolves keys
//! at the moment of use. [`RegionTable::deregister`] removes the key and waits for the views that were taken before;
//! when it returns, only the holders of the `Arc` can touch the memory, and [`Region::into_backing`] returns the
//! buffer.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod advise;
mod backing;
mod device_memory;
mod error;
mod exports;
mod grants;
mod key;
mod owners;
mod payloads;
mod peer_memory;
mod raw;
pub(crate) mod record_ring;
mod region;
mod shared_page;
mod shared_part;
mod table;
mod users;
mod window;

pub use backing::Backing;
use device_memory::DevicePart;
pub use device_memory::{DeviceMemory, DeviceMemoryError, DeviceMemoryPool};
pub use error::{AccessError, AdviseError, BindError, RecoverError, RefusedBacking, RegisterError};
pub(crate) use exports::{Exports, GateWatch, Offer, QueuePairGrant};
pub(crate) use grants::Grant;
pub(crate) use payloads::Payloads;
pub(crate) use peer_memory::{Admission, DirectAccess, PeerMemory};
pub use raw::recover_from_faults;
use raw::{OwnedBytes, RawRange};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use record_ring::shared_ring;
pub use region::{Region, RegionInit};
pub(crate) use shared_page::{PageReader, PageWriter};
#[cfg(all(test, not(loom)))]
pub(crate) use shared_part::SharedMemory;
pub use shared_part::SharedPart;
pub use table::{MemoryView, RegionTable};
pub use window::{Window, WindowBind};

/// The locks and atomics that the model checker must see.
mod sync {
    #[cfg(loom)]
    pub(super) use loom::sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard,
        atomic::{AtomicU32, fence},
    };
    #[cfg(loom)]
    pub(super) use loom::thread::yield_now as pause;
    #[cfg(not(loom))]
    pub(super) use std::sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard,
        atomic::{AtomicU32, fence},
    };
    #[cfg(not(loom))]
    pub(super) use std::thread::yield_now as pause;

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
