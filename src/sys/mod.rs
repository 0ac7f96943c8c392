//! The operating system: system calls that no crate wraps, and the cell behind the shard's lock. An unsafe island that
//! the engine and the providers share.
//!
//! Every exported item is safe to call in any order and from any thread. Linux-specific code lives here, so that
//! another platform can be added beside it.
mod clock;
mod control_message;
mod credentials;
mod descriptors;
mod environment;
mod error_queue;
mod event;
mod file_lock;
mod file_size;
mod fork;
mod guarded;
mod interface;
mod link_watch;
mod local_address;
mod message;
mod open_error;
mod option;
mod per_generation;
mod schedule;
mod signal;
mod steer;
mod thread_end;
mod time;

pub(crate) use clock::{Clock, thread_time, timestamp};
pub(crate) use credentials::{own_group, own_user, peer_credentials, peer_user, receive_with_user, send_as_user};
pub(crate) use descriptors::{
    discard_messages, has_ended, is_writable, receive_with_descriptor, ring, send_with_descriptor,
};
pub(crate) use environment::{is_protected, variable};
pub(crate) use error_queue::{QueuedError, receive_error};
#[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
pub(crate) use event::wait_any_readable;
pub(crate) use event::{Epoll, EventFd, Interest, Timer, wait_readable};
pub(crate) use file_lock::{
    is_byte_locked_by_others, is_range_locked_by_others, try_lock_byte, try_share_byte, unlock_byte,
};
pub(crate) use file_size::{descriptor_limit, file_size_limit};
#[cfg(test)]
pub(crate) use fork::check_in_child;
#[cfg(all(feature = "ibverbs", target_os = "linux", target_pointer_width = "64"))]
pub(crate) use fork::watch_forks;
pub(crate) use fork::{Generation, NotInherited};
pub(crate) use guarded::{Guard, Guarded, Released};
pub(crate) use interface::{LinkState, link_megabits, link_state};
pub(crate) use link_watch::LinkWatch;
pub(crate) use local_address::LocalAddress;
pub(crate) use message::{Received, SEVERAL, SendOptions, receive, receive_several, send};
pub(crate) use open_error::OpenError;
pub(crate) use option::{DEFAULT_HOP_LIMIT, SocketOption, set_option, set_traffic_class};
pub(crate) use per_generation::PerGeneration;
pub(crate) use schedule::{ask_for_short_slices, involuntary_switches};
pub(crate) use signal::with_signals_blocked;
pub(crate) use steer::{Instruction, attach_steering, detach_steering};
pub(crate) use thread_end::end_thread;
