//! Addresses that a device gets after listeners on all addresses have begun.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{Shard, steer_requests};
use crate::provider::ListenInit;
use crate::sys::LocalAddress;
use crate::wire::mad::ServiceId;

/// Most addresses that a listener remembers as served, more than the GID table has. Lost ones are remembered as well:
/// their sockets work again when the address returns.
const MOST_SERVED: usize = 512;
/// Most addresses that a device opens for its listeners in its life. The sockets of a lost address stay, because queue
/// pairs may use them, and a network may announce other addresses without end.
const MOST_OPENED: usize = 4_096;

/// Which addresses of a device a listener on all of them serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Versions {
    Both,
    V4,
    V6,
}

impl Versions {
    /// Returns those of a listener on the unspecified address.
    pub(super) fn of(init: &ListenInit<'_>) -> Self {
        match init.address.ip() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) if init.only_v6 == Some(true) => Self::V6,
            IpAddr::V6(_) => Self::Both,
        }
    }

    pub(super) fn include(self, address: IpAddr) -> bool {
        match self {
            Self::Both => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// A listener on all addresses of a device.
pub(super) struct WildcardListener {
    shard: Arc<Shard>,
    versions: Versions,
    service: ServiceId,
    is_closed: AtomicBool,
    /// Those that the device has, and those that it has had. Only the device's thread takes this lock.
    served: Mutex<Vec<LocalAddress>>,
}

impl WildcardListener {
    /// Creates it for a listener that serves the `served` addresses.
    pub(super) fn new(
        shard: &Arc<Shard>,
        versions: Versions,
        service: ServiceId,
        served: Vec<LocalAddress>,
    ) -> Arc<Self> {
        let shard = Arc::clone(shard);
        Arc::new(Self { shard, versions, service, is_closed: AtomicBool::new(false), served: Mutex::new(served) })
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn served(&self) -> MutexGuard<'_, Vec<LocalAddress>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn needs(&self, address: &LocalAddress) -> bool {
        self.versions.include(address.ip) && !self.is_closed() && !self.served().contains(address)
    }

    /// Takes the requests to an address whose sockets are open. `now`: the addresses that the device has.
    fn serve(&self, address: LocalAddress, now: &[LocalAddress]) {
        if self.is_closed() {
            return;
        }
        steer_requests(address.ip, self.shard.id_block(), self.service);
        remember(&mut self.served(), address, now);
    }
}

/// Adds an address. The oldest ones that the device has lost make room for it.
fn remember(served: &mut Vec<LocalAddress>, address: LocalAddress, now: &[LocalAddress]) {
    while served.len() >= MOST_SERVED {
        let Some(lost) = served.iter().position(|known| !now.contains(known)) else { break };
        served.remove(lost);
    }
    served.push(address);
}

/// The listeners on all addresses of a device. The list's lock is held for moments only, so a listener ends without
/// waiting for the thread that opens sockets.
#[derive(Default)]
pub(super) struct WildcardListeners(Mutex<Vec<Arc<WildcardListener>>>);

impl WildcardListeners {
    pub(super) fn add(&self, listener: Arc<WildcardListener>) {
        self.lock().push(listener);
    }

    /// Ends the service of later addresses for a listener.
    pub(super) fn remove(&self, listener: &Arc<WildcardListener>) {
        listener.is_closed.store(true, Ordering::Release);
        self.lock().retain(|other| !Arc::ptr_eq(other, listener));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<WildcardListener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the sockets of later addresses, in the thread that watches the interfaces for a device.
pub(super) struct LaterAddresses {
    listeners: Arc<WildcardListeners>,
    opened: HashSet<IpAddr>,
    /// Addresses that the device has and whose failure was reported.
    reported: Vec<LocalAddress>,
    is_bound_reported: bool,
}

impl LaterAddresses {
    pub(super) fn new(listeners: &Arc<WildcardListeners>) -> Self {
        let listeners = Arc::clone(listeners);
        Self { listeners, opened: HashSet::new(), reported: Vec::new(), is_bound_reported: false }
    }

    /// Has all listeners take requests to the addresses that the device has `now` and that they do not serve yet.
    pub(super) fn serve(&mut self, now: &[LocalAddress]) {
        self.reported.retain(|address| now.contains(address));
        let listeners = self.listeners.lock().clone();
        for address in now {
            let mut needing = listeners.iter().filter(|listener| listener.needs(address)).peekable();
            // Opening an address twice opens nothing: the other listeners, and queue pairs, have the same sockets.
            if needing.peek().is_some_and(|first| self.open(&first.shard, *address)) {
                needing.for_each(|listener| listener.serve(*address, now));
            }
        }
    }

    fn open(&mut self, shard: &Arc<Shard>, address: LocalAddress) -> bool {
        if !self.may_open(address.ip) {
            return false;
        }
        match shard.open_management(address) {
            Ok(()) => {
                self.reported.retain(|failed| *failed != address);
                self.opened.insert(address.ip);
                return true;
            }
            // An IPv6 address is usable, and reported again, once no other host is found to have it.
            Err(error) if error.source.kind() == io::ErrorKind::AddrNotAvailable => {}
            Err(error) if !self.reported.contains(&address) => {
                let (ip, message) = (address.ip, error.message);
                tracing::warn!(
                    target: "rdma_verbs::device",
                    local = %ip, reason = message, error = %error.source, "no connections at a later address"
                );
                self.reported.push(address);
            }
            Err(_) => {}
        }
        false
    }

    /// Returns whether the bound allows the sockets of this address.
    fn may_open(&mut self, ip: IpAddr) -> bool {
        let may_open = self.opened.len() < MOST_OPENED || self.opened.contains(&ip);
        if !may_open && !std::mem::replace(&mut self.is_bound_reported, true) {
            tracing::warn!(
                target: "rdma_verbs::device",
                local = %ip,
                "the device has opened {MOST_OPENED} later addresses, which is the limit: listeners on all addresses \
                 do not serve further ones until the device is opened again"
            );
        }
        may_open
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(number: u32) -> LocalAddress {
        LocalAddress { ip: IpAddr::from((0x0a00_0000 + number).to_be_bytes()), scope: 0 }
    }

    #[test]
    fn lost_addresses_are_forgotten_before_present_ones() {
        let mut served: Vec<_> = (0..MOST_SERVED as u32).map(at).collect();
        let now = [at(0), at(2), at(9_000)];
        remember(&mut served, at(9_000), &now);
        assert_eq!(served.len(), MOST_SERVED);
        assert_eq!(served[..3], [at(0), at(2), at(3)], "the oldest lost one is gone");
        // The device returns to addresses that it has had, which are then remembered again.
        remember(&mut served, at(1), &[at(0), at(1), at(2), at(9_000)]);
        assert!(served.contains(&at(1)) && served.contains(&at(9_000)) && !served.contains(&at(3)));
    }

    #[test]
    fn sockets_of_addresses_are_bounded_and_old_ones_return() {
        let mut later = LaterAddresses::new(&Arc::default());
        let mut fresh = 0;
        while later.may_open(at(fresh).ip) {
            later.opened.insert(at(fresh).ip);
            fresh += 1;
        }
        assert_eq!(fresh as usize, MOST_OPENED);
        assert!(later.is_bound_reported && later.may_open(at(0).ip));
    }
}
