//! Offers of memory, as raw messages to the socket for links of a process.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv,
    send as send_bytes, sendmsg, socket,
};
use support::process::unix_sockets;

pub(super) const RING_BYTES: usize = 1 << 19;
pub(super) const WHOLE_BYTES: usize = 4_096 + RING_BYTES;
pub(super) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const OFFER_BYTES: usize = 96;
const VERSION: u8 = 3;

/// An offer.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// A block of the recipient.
    pub(super) recipient: u16,
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
    pub(super) name: [u8; 16],
    pub(super) blocks: Vec<u16>,
}

impl Offer {
    pub(super) fn bytes(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        (bytes[0], bytes[1]) = (VERSION, self.blocks.len() as u8);
        bytes[2..4].copy_from_slice(&self.recipient.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.source.to_ipv6_mapped().octets());
        bytes[24..40].copy_from_slice(&self.destination.to_ipv6_mapped().octets());
        bytes[40..56].copy_from_slice(&self.name);
        for (place, block) in bytes[56..88].chunks_exact_mut(2).zip(&self.blocks) {
            place.copy_from_slice(&block.to_le_bytes());
        }
        bytes
    }
}

/// Creates memory that can be sealed.
pub(super) fn memory(length: usize) -> OwnedFd {
    // SAFETY: the name is a string that ends with a zero.
    let created = unsafe { libc::memfd_create(c"offer".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(created >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the call has just returned the descriptor, so nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(created) });
    file.set_len(length as u64).expect("memory");
    OwnedFd::from(file)
}

pub(super) fn seal(memory: &OwnedFd, seals: libc::c_int) {
    // SAFETY: takes no pointers.
    let sealed = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(sealed, 0, "F_ADD_SEALS: {}", std::io::Error::last_os_error());
}

/// Creates memory as a victim expects it.
pub(super) fn sealed(length: usize) -> OwnedFd {
    let memory = memory(length);
    seal(&memory, SEALS);
    memory
}

/// Returns the path of the socket for links of a process.
pub(super) fn path(process: u32) -> String {
    unix_sockets(process, "links-").first().expect("a socket for links").replace("new-", "")
}

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket")
}

/// Connects to the socket for links of a process.
pub(super) fn connect(process: u32) -> OwnedFd {
    let (socket, address) = (seqpacket(), UnixAddr::new(path(process).as_str()).expect("an address"));
    nix::sys::socket::connect(socket.as_raw_fd(), &address).expect("a connection");
    socket
}

/// Sends a message with descriptors.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights };
    let parts = [std::io::IoSlice::new(bytes)];
    // The victim may have closed the connection.
    let _ = sendmsg::<()>(socket.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None);
}

/// Sends a message with descriptors. Returns whether the process closes the connection.
pub(super) fn is_refused(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> bool {
    send(socket, bytes, descriptors);
    matches!(recv(socket.as_raw_fd(), &mut [0; 8], MsgFlags::empty()), Ok(0) | Err(_))
}

/// Wakes the reader of a link.
pub(super) fn ring(socket: &OwnedFd) {
    let _ = send_bytes(socket.as_raw_fd(), &[0], MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT);
}

/// A socket for links of a process that does not exist.
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    pub(super) name: [u8; 16],
}

impl Listener {
    pub(super) fn in_folder(folder: &Path) -> Self {
        let name = [0xa7; 16];
        let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let (socket, path) = (seqpacket(), folder.join(format!("links-{digits}")));
        bind(socket.as_raw_fd(), &UnixAddr::new(&path).expect("an address")).expect("a free name");
        listen(&socket, Backlog::new(16).expect("a number")).expect("a listener");
        Self { socket, path, name }
    }

    /// Returns whether a process has connected.
    pub(super) fn has_guest(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one structure, which lives until the call returns.
        unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
