//! The socket interface of librdmacm, which this library does not offer: `rsocket` fails with `EOPNOTSUPP`, so a
//! program has no descriptor for the other calls. `rpoll` and `rselect` wait for ordinary descriptors, which programs
//! without an rsocket pass to them, like `poll` and `select`.

use std::ffi::c_int;

/// Fails with `EOPNOTSUPP`.
fn unsupported() {
    // SAFETY: the C library's location of this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

macro_rules! versioned {
    ($($name:ident)+) => {
        $(
            std::arch::global_asm!(concat!(
                ".symver ", stringify!($name), ", ", stringify!($name), "@@RDMACM_1.0"
            ));
        )+
    };
}

macro_rules! unsupported {
    ($result:ty: $($name:ident)+) => {
        $(
            /// Returns -1, with `errno` set to `EOPNOTSUPP`.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $result {
                unsupported();
                -1
            }
        )+
        versioned! { $($name)+ }
    };
}

unsupported! {
    c_int: rsocket rbind rlisten raccept rconnect rshutdown rclose rgetpeername rgetsockname rsetsockopt rgetsockopt
        rfcntl riounmap
}

unsupported! {
    isize: rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg rread rreadv rwrite rwritev riomap riowrite
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rpoll(entries: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int {
    // SAFETY: the program's entries.
    unsafe { libc::poll(entries, count, milliseconds) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rselect(
    count: c_int,
    readable: *mut libc::fd_set,
    writable: *mut libc::fd_set,
    exceptional: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    // SAFETY: the program's sets and time.
    unsafe { libc::select(count, readable, writable, exceptional, timeout) }
}

versioned! { rpoll rselect }
