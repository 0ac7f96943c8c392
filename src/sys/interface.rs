//! State and speed of a network interface, as the kernel reports them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// State of a network interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkState {
    /// Largest IP packet that it carries.
    pub(crate) mtu_bytes: u32,
    /// Whether it is up and running.
    pub(crate) running: bool,
}

/// Returns the state of the interface `name`; `socket` may be any socket of the same network namespace.
pub(crate) fn link_state(socket: BorrowedFd<'_>, name: &str) -> io::Result<LinkState> {
    let mut request = request_for(name)?;
    call(socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the kernel completed this request, so it filled in the union's MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    call(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel completed this request, so it filled in the union's flags.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let needed = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(LinkState { mtu_bytes: u32::try_from(mtu).unwrap_or(0), running: flags & needed == needed })
}

/// Returns the speed of the interface `name` in megabits per second; `None` if it is unknown, as for loopback.
pub(crate) fn link_megabits(name: &str) -> Option<u32> {
    if name.contains('/') {
        return None;
    }
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    // Interfaces that are down report -1.
    text.trim().parse().ok()
}

fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all fields are numbers or arrays of numbers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero: the terminator.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

fn call(socket: BorrowedFd<'_>, question: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these requests read and write one `ifreq`, which lives until the call returns. The cast fits the
    // parameter's type, which differs between C libraries.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), question as _, std::ptr::from_mut(request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn loopback_has_a_large_mtu() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let state = link_state(socket.as_fd(), "lo").unwrap();
        assert!(state.mtu_bytes >= 1500 && state.running, "{state:?}");
        assert!(link_state(socket.as_fd(), "no-such-interface").is_err());
    }

    #[test]
    fn interfaces_that_do_not_exist_have_no_speed() {
        assert_eq!(link_megabits("no-such-interface"), None);
        assert_eq!(link_megabits("../net/lo"), None);
    }
}
