//! libibverbs as safe objects: the only place of this provider with `unsafe`.
//!
//! What makes a call into the C library sound, here for all of them:
//!
//! * **Pointers live.** Each object owns the C object that it was created with, and holds what that one depends on (a
//!   queue pair its completion queues, everything its context) by `Arc`. It is destroyed once, by its drop or before by
//!   a verb that takes it out under a lock that every use of the pointer holds for reading.
//! * **Threads.** libibverbs documents every verb as thread-safe; where it asks for exclusion, it is given: between
//!   `ibv_start_poll` and `ibv_end_poll` by a lock of the object, between `ibv_wr_start` and `ibv_wr_complete` by the
//!   stage, of which each queue pair has one. So the objects are `Send` and `Sync`.
//! * **Slots are there.** A function pointer of a table is `Option`, and slots beyond what `verbs_context.sz` says are
//!   never read.
//! * **Memory.** The device is only told of memory by keys and by registration. A registered [`Region`] is held until
//!   `ibv_dereg_mr` returned without an error; if that fails for good, the memory is never freed.
//! * **Forks.** A child shares the parent's descriptors, so that destroying its copy of an object would destroy the
//!   parent's. Whatever is dropped in a child is left alone.
//!
//! [`Region`]: crate::memory::Region

mod completion;
mod context;
#[cfg(all(test, not(loom)))]
pub(super) mod fake;
mod library;
mod memory;
mod post;
mod queue_pair;
mod shared_receive;

use std::ffi::c_int;
use std::io;

use super::super::abi;
pub(super) use abi::{AhAttr, DeviceAttrEx, Gid, GidEntry, PortAttrWithSpeed, QpAttr, QpCap, SrqAttr, Wc};
pub(super) use completion::{Channel, CompletionQueue, CompletionQueueInit};
pub(super) use context::{Context, Event, EventSource, device_list};
pub(super) use library::unavailable;
pub(super) use memory::{AddressHandle, DeviceMemory, MemoryRegion, MemoryWindow, ProtectionDomain};
pub(super) use post::{Alone, Bind, PostFailure, ReceiveStaging, SendStaging, Target};
pub(super) use queue_pair::{QueuePair, QueuePairInit};
pub(super) use shared_receive::{SharedReceiveQueue, XrcDomain};

/// The outcome of a function that returns 0, or an error number, or -1 and `errno`, or a negated error number.
fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// What a missing slot means.
fn not_supported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}
