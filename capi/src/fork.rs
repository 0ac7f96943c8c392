//! Forking needs no preparation. Requests access memory through this process's own mapping, so no page must be kept
//! from a child, and verbs on inherited objects fail.

use std::ffi::{c_int, c_void};

use crate::version::exported;

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

/// Does nothing.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Reports that programs may fork without preparation.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    UNNEEDED
}

/// Does nothing.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Does nothing.
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

exported! {
    "IBVERBS_1.1": ibv_fork_init ibv_dontfork_range ibv_dofork_range;
    "IBVERBS_1.13": ibv_is_fork_initialized;
}
