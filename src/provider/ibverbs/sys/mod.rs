//! libibverbs and librdmacm as safe objects: the only module of this provider with `unsafe`.
//!
//! Calls into the C library are sound for these reasons:
//!
//! * **Live pointers.** Each object owns its C object and holds what that depends on (a queue pair its completion
//!   queues, everything its context) by `Arc`. The C object is destroyed once, on drop or earlier by a verb that takes
//!   the pointer out under a lock that every use of the pointer holds too.
//! * **Threads.** libibverbs documents every verb as thread-safe. Where it requires exclusion, this module provides it:
//!   between `ibv_start_poll` and `ibv_end_poll` by a lock of the object, between `ibv_wr_start` and `ibv_wr_complete`
//!   by the stage, one for each queue pair. So the objects are `Send` and `Sync`.
//! * **Existing slots.** A function pointer of a table is `Option`, and slots beyond the size in `verbs_context.sz` are
//!   never read.
//! * **Memory.** The device is given memory only by keys and by registration. A registered [`Region`] is held until
//!   `ibv_dereg_mr` returns without an error; if it never succeeds, the memory is never freed.
//! * **Forks.** A child shares the parent's descriptors, so that destroying its copy of an object would destroy the
//!   parent's. Dropping an object in a child does not touch the C object.
//!
//! [`Region`]: crate::memory::Region

pub(super) mod cm;
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
pub(super) use post::{Bind, PostFailure, ReceiveStaging, SendStaging, Target, UnstagedRequest};
pub(super) use queue_pair::{QueuePair, QueuePairInit};
pub(super) use shared_receive::{SharedReceiveQueue, XrcDomain};

/// Converts the result of a function that returns 0, or an error number, or -1 and `errno`, or a negated error number.
fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// Returns the error for a missing slot.
fn not_supported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}
