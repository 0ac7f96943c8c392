//! Addresses that a device gets after a listener on all addresses has begun.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::interface::Interface;
use super::Seat;
use crate::engine::{LinkListener, Shard, steer_requests};
use crate::provider::ListenInit;
use crate::sys::{LinkWatch, LocalAddress};
use crate::wire::mad::ServiceId;

/// Most addresses that a listener serves in its life: an interface may change its addresses without end, and the
/// sockets stay.
const MOST_SERVED: usize = 512;

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

/// Watches the system's addresses, from before the listener reads those that the device has.
pub(super) struct AddressWatch(Arc<LinkWatch>);

impl AddressWatch {
    /// Returns `None` if the device gets no further addresses, or if the system does not report them.
    pub(super) fn open(interface: &Interface) -> Option<Self> {
        if !interface.is_whole() {
            return None;
        }
        let opened = LinkWatch::open().inspect_err(|error| {
            tracing::warn!(%error, "a listener on all addresses does not take those that come later");
        });
        opened.ok().map(|watch| Self(Arc::new(watch)))
    }

    /// Starts the thread that takes requests at later addresses for a listener, until the result is dropped. The
    /// listener has taken the `served` ones.
    pub(super) fn serve(
        self,
        seat: &Seat,
        versions: Versions,
        service: ServiceId,
        served: &[LocalAddress],
    ) -> Option<LinkListener> {
        let Self(watch) = self;
        let interface = seat.device.interface.clone();
        let name = interface.name.clone().unwrap_or_default();
        let later =
            Later { interface, shard: Arc::clone(&seat.shard), versions, service, served: Mutex::new(served.to_vec()) };
        let changes = Arc::clone(&watch);
        let on_change = move || {
            if changes.has_changed() {
                later.serve();
            }
        };
        let started = LinkListener::start(&name, watch, on_change).inspect_err(|error| {
            tracing::warn!(%error, "a listener on all addresses does not take those that come later: no thread");
        });
        started.ok()
    }
}

struct Later {
    interface: Interface,
    shard: Arc<Shard>,
    versions: Versions,
    service: ServiceId,
    /// Those that the device has, and those that it has had.
    served: Mutex<Vec<LocalAddress>>,
}

impl Later {
    /// Serves the addresses that the device has and that are not served yet. An address that was lost stays served: the
    /// socket stays, too.
    fn serve(&self) {
        let now = match self.interface.addresses_now() {
            Ok(now) => now,
            Err(error) => return tracing::warn!(%error, "the addresses of an interface cannot be read"),
        };
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        for address in now {
            if !self.versions.include(address.ip) || served.contains(&address) || served.len() >= MOST_SERVED {
                continue;
            }
            match self.shard.open_management(address) {
                Ok(()) => {
                    steer_requests(address.ip, self.shard.id_block(), self.service);
                    served.push(address);
                }
                // An IPv6 address is usable, and reported again, once no other host is found to have it.
                Err(error) => {
                    let (address, message) = (address.ip, error.message);
                    tracing::debug!(%address, message, error = %error.source, "no connections at this address yet");
                }
            }
        }
    }
}
