//! Shared memory as the path to a queue pair of this host: requesting it, requiring it, and why there is none.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use super::shard::Shard;
use crate::engine::net::{LinkState, leaves_host};
use crate::engine::share::{link_to, other_user_at, registered_peer};
use crate::types::{NoSharedMemory, PacketPath, Qpn, SharedMemory};

/// How long a connection that requires shared memory waits for it, and for the peer's process to announce itself. The
/// threads of both processes take part, and may wait for a processor.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_micros(200);
/// Looks between two requests for a link.
const LOOKS_PER_REQUEST: u32 = 64;

impl Shard {
    /// Requests a link through memory to the process of this user that has a queue pair on an address of this host.
    /// Until it is set up, and without it, packets leave through the sockets. Returns whether there is such a process.
    pub(crate) fn link_memory(&self, own: IpAddr, peer: IpAddr, destination: Qpn) -> bool {
        if self.shared_memory == SharedMemory::Off {
            return false;
        }
        self.command(|core, _| core.link.memory_links().forget_declined(own, peer, destination.block() as u16));
        let blocks = self.blocks.blocks().iter().map(|block| *block as u16).collect();
        link_to(own, blocks, peer, destination.value())
    }

    /// Lets a queue pair access its peer's memory directly, if the peer is on this host and admits its keys.
    pub(crate) fn access_directly(&self, queue_pair: Qpn, own: IpAddr, peer: IpAddr) {
        if self.memory.exports().is_some() && !leaves_host(own, peer) {
            self.command(|core, _| core.endpoint.access_directly(queue_pair));
        }
    }

    /// Returns the path of packets to this queue pair.
    pub(crate) fn memory_path(&self, own: IpAddr, peer: IpAddr, destination: Qpn) -> PacketPath {
        if self.shared_memory == SharedMemory::Off {
            return PacketPath::Sockets(NoSharedMemory::SwitchedOff);
        }
        let state = self.link_state(own, peer, destination);
        if state.writes {
            return PacketPath::SharedMemory;
        }
        PacketPath::Sockets(state.declined.unwrap_or_else(|| absence(own, peer, destination)))
    }

    /// Waits until packets to and from this queue pair go through memory, for a bounded time.
    ///
    /// # Errors
    /// Why they cannot.
    pub(crate) fn require_memory(&self, own: IpAddr, peer: IpAddr, destination: Qpn) -> Result<(), NoSharedMemory> {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            self.link_memory(own, peer, destination);
            let mut problem = absence(own, peer, destination);
            // The peer may not have announced itself yet.
            if !matches!(problem, NoSharedMemory::UnknownPeer | NoSharedMemory::Pending) {
                return Err(problem);
            }
            for _ in 0..LOOKS_PER_REQUEST {
                let state = self.link_state(own, peer, destination);
                match state.declined {
                    _ if state.writes && state.reads => return Ok(()),
                    None => {}
                    // Its process may be starting, or another one may have come in its place.
                    Some(NoSharedMemory::Refused) => problem = NoSharedMemory::Refused,
                    Some(never) => return Err(never),
                }
                sleep(PAUSE);
            }
            if self.clock.now() >= deadline {
                return Err(problem);
            }
        }
    }

    fn link_state(&self, own: IpAddr, peer: IpAddr, destination: Qpn) -> LinkState {
        let mut state = LinkState::default();
        self.command(|core, _| state = core.link.memory_links().state(own, peer, destination.block() as u16));
        state
    }
}

/// Returns why there is no link to this queue pair, and none was declined.
fn absence(own: IpAddr, peer: IpAddr, destination: Qpn) -> NoSharedMemory {
    if leaves_host(own, peer) {
        NoSharedMemory::OtherHost
    } else if registered_peer(peer, destination.value()).is_some() {
        NoSharedMemory::Pending
    } else {
        other_user_at(peer).map_or(NoSharedMemory::UnknownPeer, NoSharedMemory::OtherUser)
    }
}
