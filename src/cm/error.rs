//! Why a call is refused.

use std::net::IpAddr;

use super::ConnectionState;
use crate::wire::mad::{ServiceId, VendorId};

/// Why a call is refused. It has then changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The state of the connection does not allow the call.
    #[error("{call} needs a connection in the state {allowed}, but it is in the state {state}")]
    State {
        /// The call.
        call: &'static str,
        /// The state of the connection.
        state: ConnectionState,
        /// The states in which the call is allowed.
        allowed: &'static str,
    },
    /// The handle names no object: it is destroyed.
    #[error("{call} needs a {object} that is not destroyed")]
    Destroyed {
        /// The call.
        call: &'static str,
        /// The kind of the object.
        object: &'static str,
    },
    /// The peer's request has its response already.
    #[error("{call} needs a request without a response, but it has one already")]
    Answered {
        /// The call.
        call: &'static str,
    },
    /// There are as many objects of this kind as the manager may have.
    #[error("all {limit} {objects} are in use")]
    TooMany {
        /// The kind of the objects.
        objects: &'static str,
        /// Their maximum number.
        limit: usize,
    },
    /// All communication ids of the process are in use or were recently.
    #[error("no communication id is free")]
    NoFreeId,
    /// The service id has a listener at the same address.
    #[error("service id {service_id} already has a listener at {}", address_name(.address))]
    InUse {
        /// The service id.
        service_id: ServiceId,
        /// The address, or `None` for all.
        address: Option<IpAddr>,
    },
    /// The addresses have different IP versions.
    #[error("the addresses {local} and {remote} have different IP versions")]
    IpVersions {
        /// The own address.
        local: IpAddr,
        /// The peer's address.
        remote: IpAddr,
    },
    /// A reply names a vendor of options that the request does not name.
    #[error("a reply may have options of vendor {requested} only, as the request, not those of vendor {given}")]
    Vendor {
        /// The vendor in the request, 0 for none.
        requested: VendorId,
        /// The vendor given.
        given: VendorId,
    },
}

fn address_name(address: &Option<IpAddr>) -> String {
    address.map_or("all addresses".to_owned(), |address| address.to_string())
}
