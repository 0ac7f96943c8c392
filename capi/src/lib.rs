//! `libibverbs.so.1` for machines without adapters: unmodified verbs programs, in whatever language, on the software
//! devices of `rdma_verbs`. `docs/drop-in.md` tells how it is installed and used.
//!
//! It is thin: a file for each kind of object, which turns C structures into the provider tier's plain data and back.
//! There is no protocol here, no second queue, and no allocation for a request.
//!
//! # What makes it sound
//!
//! C programs are trusted to do what the manual pages of libibverbs ask. Every `unsafe` block here stands on that, and
//! names the promise it needs:
//!
//! * **Pointers.** An object that is given was made by this library ([`object`]) and is not destroyed, nor destroyed
//!   meanwhile by another thread. A structure that is given may be read, and written where the verb answers in it; a
//!   list has as many entries as it says.
//! * **Memory.** A registered range is the program's, who lets requests read and write it until it is deregistered.
//!   If it is unmapped all the same, requests that need it fail; nothing else happens.
//!
//! What this library promises in turn: objects are shared by reference, never by `&mut`, as all verbs are thread-safe;
//! fields of the C structures are read and written through raw pointers only, because the program does so as well.
//!
//! # Panics
//!
//! A panic is a bug of this library, and aborts the process: `capi/install` builds it with `panic = "abort"` (the
//! profile `drop-in`), which holds in the engine's threads as well. In other builds it never crosses the boundary
//! either: every function that C can call is `extern "C"`, which aborts instead of unwinding into the caller. A program
//! whose library has failed half-way through a verb must not go on as if it had not.
#![warn(missing_docs)]

mod address_handle;
mod async_event;
mod completion_channel;
mod completion_queue;
mod completion_queue_ex;
mod context;
mod device;
mod device_memory;
mod error;
mod error_output;
mod fork;
mod kernel_structures;
mod memory_region;
mod memory_window;
mod modify;
mod object;
mod parent_domain;
mod port;
mod post;
mod private;
mod protection_domain;
mod queue_pair;
mod queue_pair_ex;
mod queue_pair_init;
mod rate;
mod settings;
mod shared_receive;
mod text;
mod usage;
mod version;
mod waiting;
mod xrc;
