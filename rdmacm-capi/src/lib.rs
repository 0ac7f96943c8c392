//! `librdmacm.so.1` for machines without adapters: programs that connect through rdma_cm, in any language, on the
//! software devices of `rdma_verbs`. `docs/drop-in.md` describes how to install and use it.
//!
//! The functions themselves are in `libibverbs.so.1` (`capi/src/connection`), which this library needs: a process has
//! one engine, and the objects of both libraries fit. This library takes a table of them from the loaded libibverbs,
//! and each of its functions jumps through the table. If another libibverbs is loaded, the functions fail with
//! `ENOSYS`, and one line on standard error says why.
//!
//! # Soundness
//!
//! C programs are trusted to do what the manual pages of librdmacm require, as in `capi`. This library passes their
//! arguments on without looking at them.
#![warn(missing_docs)]

#[path = "../../capi/src/connection/functions.rs"]
mod functions;
mod library;
mod types;

use std::ffi::{c_char, c_int};

use functions::{connection_functions, socket_functions};
use types::*;

/// The result of a function that has not done anything. `errno` has the reason.
trait Failed {
    fn failed() -> Self;
}

impl Failed for c_int {
    fn failed() -> Self {
        -1
    }
}

impl Failed for isize {
    fn failed() -> Self {
        -1
    }
}

/// As for signed sizes: `riowrite` returns -1 in this type.
impl Failed for usize {
    fn failed() -> Self {
        Self::MAX
    }
}

impl Failed for i64 {
    fn failed() -> Self {
        -1
    }
}

impl Failed for () {
    fn failed() -> Self {}
}

/// A port.
impl Failed for u16 {
    fn failed() -> Self {
        0
    }
}

impl<T> Failed for *mut T {
    fn failed() -> Self {
        std::ptr::null_mut()
    }
}

/// A text, which programs print.
impl Failed for *const c_char {
    fn failed() -> Self {
        c"UNKNOWN EVENT".as_ptr()
    }
}

macro_rules! exported {
    ($part:ident: $($node:literal $abi:literal fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern $abi fn $name($($argument: $kind),*) -> $result {
                match library::functions() {
                    // SAFETY: the function of this name, with the arguments that its manual page requires.
                    Some(table) => unsafe { (table.$part.$name)($($argument),*) },
                    None => Failed::failed(),
                }
            }

            std::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@", $node));
        )*
    };
}

macro_rules! exported_connections {
    ($($list:tt)*) => { exported! { connections: $($list)* } };
}

macro_rules! exported_sockets {
    ($($list:tt)*) => { exported! { sockets: $($list)* } };
}

connection_functions!(exported_connections);
socket_functions!(exported_sockets);

/// Tells this library from the system's librdmacm, which adapters need.
#[unsafe(no_mangle)]
static rdma_verbs_librdmacm: u8 = 1;

std::arch::global_asm!(".symver rdma_verbs_librdmacm, rdma_verbs_librdmacm@@RDMA_VERBS_PRIVATE");
