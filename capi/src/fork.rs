//! Forking: nothing has to be prepared for it. Requests touch memory through this process's own mapping, so that no
//! page must be kept from a child, and what a child inherits answers with errors.

use std::ffi::{c_int, c_void};

use crate::version::exported;

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

/// Nothing to be done.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Whether programs may fork.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    UNNEEDED
}

/// Nothing to be done.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Nothing to be done.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

exported! {
    "IBVERBS_1.1": ibv_fork_init ibv_dontfork_range ibv_dofork_range;
    "IBVERBS_1.13": ibv_is_fork_initialized;
}
