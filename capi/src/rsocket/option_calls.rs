//! The functions of options, flags and addresses.

use std::ffi::{c_int, c_void};

use super::address;
use super::options::{self, Value};
use super::sockets::{Socket, Sockets};
use super::stream::Stream;
use crate::error::{Errno, INVALID, Result, set_errno, zero_or_minus_one};

/// Largest value of an option that is read.
const MAX_VALUE: usize = 64;
const NOT_SUPPORTED: Errno = Errno(libc::ENOTSUP);

pub(super) unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    let set = || {
        let socket = Sockets::find(socket)?;
        if value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the program's value, which has so many bytes.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), (length as usize).min(MAX_VALUE)) };
        match socket {
            Socket::Stream(stream) => {
                let mut inner = stream.lock();
                let was_kept = inner.options.keepalive.is_some();
                let set = options::set(&mut inner, level, name, value);
                let is_kept = inner.options.keepalive.is_some();
                drop(inner);
                Stream::note_keepalive(was_kept, is_kept);
                set
            }
            Socket::Datagram(datagram) => datagram.set_option(level, name, value),
        }
    };
    zero_or_minus_one(set())
}

/// Copies a value to the program, as much as it has room for.
///
/// # Safety
/// `to` has as many bytes as `length` says; both may be written.
unsafe fn give(bytes: &[u8], to: *mut c_void, length: *mut libc::socklen_t) -> Result<()> {
    if to.is_null() || length.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let given = bytes.len().min(*length as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), given);
        length.write(given as libc::socklen_t);
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> c_int {
    let get = || {
        let found = match Sockets::find(socket)? {
            Socket::Stream(stream) => options::get(&mut stream.lock(), level, name)?,
            // SAFETY: the program's memory for the value.
            Socket::Datagram(datagram) => match unsafe { datagram.option(level, name, value, length)? } {
                Some(found) => found,
                None => return Ok(()),
            },
        };
        // SAFETY: the program's memory for the value.
        unsafe {
            match found {
                Value::Number(number) => give(&number.to_ne_bytes(), value, length),
                Value::Linger(linger) => {
                    let bytes = [linger.l_onoff.to_ne_bytes(), linger.l_linger.to_ne_bytes()].concat();
                    give(&bytes, value, length)
                }
                Value::Info(state, window) => {
                    // `tcpi_state`, and `tcpi_snd_cwnd`.
                    let mut info = [0; 104];
                    info[0] = state;
                    info[80..84].copy_from_slice(&window.to_ne_bytes());
                    give(&info, value, length)
                }
            }
        }
    };
    zero_or_minus_one(get())
}

/// The type of the last argument does not matter for the commands that take a number, or nothing.
pub(super) unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, argument: libc::c_long) -> c_int {
    let control = || {
        let flags = argument as c_int;
        match Sockets::find(socket)? {
            Socket::Stream(stream) => {
                let mut inner = stream.lock();
                match command {
                    libc::F_GETFL => return Ok(inner.file_flags),
                    libc::F_SETFL => inner.file_flags = flags,
                    libc::F_GETFD => return Ok(inner.descriptor_flags),
                    libc::F_SETFD => inner.descriptor_flags = flags,
                    _ => return Err(NOT_SUPPORTED),
                }
            }
            Socket::Datagram(datagram) => return datagram.control(command, flags),
        }
        Ok(0)
    };
    control().unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// # Safety
/// The address and its length are the program's.
unsafe fn name(socket: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t, is_peer: bool) -> Result<()> {
    let found = match Sockets::find(socket)? {
        Socket::Stream(stream) => stream.lock().address(is_peer)?,
        Socket::Datagram(datagram) => datagram.address(is_peer)?,
    };
    if length.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    unsafe { address::write(&found, address, length) }
}

pub(super) unsafe extern "C" fn rgetpeername(
    socket: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the program's address.
    zero_or_minus_one(unsafe { name(socket, address, length, true) })
}

pub(super) unsafe extern "C" fn rgetsockname(
    socket: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the program's address.
    zero_or_minus_one(unsafe { name(socket, address, length, false) })
}
