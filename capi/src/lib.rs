//! `libibverbs.so.1` for machines without adapters: unmodified verbs programs, in any language, on the software devices
//! of `rdma_verbs`. `docs/drop-in.md` describes how to install and use it.
//!
//! The library is thin: one file for each kind of object converts C structures into the provider tier's plain data and
//! back. It implements no protocol, adds no queues, and allocates nothing for a request.
//!
//! # Soundness
//!
//! C programs are trusted to do what the manual pages of libibverbs require. Every `unsafe` block here relies on that,
//! and names the promise it needs:
//!
//! * **Pointers.** An object passed in was made by this library ([`object`]) and is not destroyed, neither before the
//!   verb nor during it by another thread. A structure passed in may be read, and written if the verb returns results
//!   in it; a list has as many entries as its count says. Comments call these *the program's* objects and structures.
//! * **Memory.** A registered range belongs to the program, which allows requests to read and write it until it is
//!   deregistered. If it is unmapped earlier, requests that need it fail; nothing else happens.
//!
//! In turn, this library uses only shared references to its objects, never `&mut`, because all verbs are thread-safe.
//! It accesses their visible fields through raw pointers only, because the program accesses them as well.
//!
//! # Panics
//!
//! A panic is a bug of this library, and never crosses the boundary: every function that C can call is `extern "C"`,
//! which aborts instead of unwinding into the caller. No profile has `panic = "abort"`: with it the cancellation of a
//! thread, which unwinds, aborts the process. The functions that wait are `extern "C-unwind"`, so that their threads
//! can be cancelled, but do their work in functions that are `extern "C"` (`waiting`). A program must not continue
//! after its library failed half-way through a verb.
#![warn(missing_docs)]

mod address_handle;
mod async_event;
mod completion_channel;
mod completion_queue;
mod completion_queue_ex;
mod connection;
mod context;
mod cursor;
mod device;
mod device_memory;
mod error;
mod error_output;
mod event_objects;
mod fork;
mod function_table;
mod kernel_structures;
mod memory_region;
mod memory_window;
mod modify;
mod object;
mod operations;
mod parent_domain;
mod port;
mod post;
mod private;
mod protection_domain;
mod queue_pair;
mod queue_pair_ex;
mod queue_pair_init;
mod rate;
mod rsocket;
mod settings;
mod shared;
mod shared_receive;
mod stage;
mod text;
mod usage;
mod version;
mod waiting;
mod xrc;
mod xrc_domain;
