//! The checks of a request, and the answer to each mistake. Those of REQs are as Linux 6.1 and 6.12 answer them, but
//! for the path MTU.

use std::net::IpAddr;

use super::handle::ListenerHandle;
use super::listener::ListenParameters;
use super::manager::Manager;
use super::route::Arrival;
use crate::types::{DEFAULT_PKEY, Gid};
use crate::wire::mad::{
    AdditionalInformation, ConnectRequest, IpHeader, PrivateData, RejectReason, ServiceId, ServiceIdRequest,
    ServiceIdStatus,
};

/// The bit of a P_Key that says whether the port is a full member of the partition.
const MEMBERSHIP: u16 = 0x8000;

/// A request without faults.
pub(super) struct Checked<const N: usize> {
    pub(super) listener: ListenerHandle,
    pub(super) header: IpHeader,
    /// Data of the application.
    pub(super) private_data: PrivateData<N>,
}

/// The refusal of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) reason: RejectReason,
    pub(super) information: AdditionalInformation<7>,
}

impl Refusal {
    pub(super) fn new(reason: RejectReason) -> Self {
        Self { reason, information: AdditionalInformation::default() }
    }

    /// Returns whether there is no listener for the service.
    pub(super) fn is_of_service(&self) -> bool {
        self.reason == RejectReason::INVALID_SERVICE_ID
    }

    /// Returns a refusal of a path, with the right GID (`cm.c`, `cm_req_handler`).
    fn of_path(reason: RejectReason, right: IpAddr) -> Self {
        let information = AdditionalInformation::new(&Gid::from(right).to_bytes()).unwrap_or_default();
        Self { reason, information }
    }
}

impl Manager {
    /// Checks a REQ in the order of Linux (`cm.c`, `cm_req_handler`; `cma.c`, `cma_ib_req_handler`).
    ///
    /// Fields that are not checked have any value: LIDs, hop limit, service level, rate, Q_Key, flow control, shared
    /// receive queue, GUID, communication id, queue pair, resources and depth.
    pub(super) fn check_request(
        &self,
        arrival: &Arrival<'_>,
        request: &ConnectRequest,
    ) -> Result<Checked<56>, Refusal> {
        if !self.has_listener(request.service_id) {
            return Err(Refusal::new(RejectReason::INVALID_SERVICE_ID));
        }
        self.check_path(arrival, request)?;
        let consumer = Refusal::new(RejectReason::CONSUMER);
        let (header, private_data) = split(request.private_data.as_bytes()).ok_or(consumer)?;
        let is_ipv4 = request.primary_path.local_gid.to_ip().is_ipv4();
        if header.destination().is_ipv4() != is_ipv4 || !is_usable_source(arrival, &header) {
            return Err(consumer);
        }
        let listener = self.find_listener(request.service_id, &header, false).ok_or(consumer)?;
        // Linux' consumer compares the types of the queue pairs (`cma.c`, `cma_ib_check_req_qp_type`).
        if request.connection_transport() != self.listeners.transport_of(listener) {
            return Err(consumer);
        }
        // Linux passes the codes 6 to 15 on and its application fails to accept; 0 becomes a queue pair's path MTU.
        if request.path_mtu.mtu().is_none() {
            return Err(Refusal::new(RejectReason::INVALID_MTU));
        }
        Ok(Checked { listener, header, private_data })
    }

    /// Checks the paths of a REQ. The P_Key is part of the path for Linux 6.12; 6.1 drops a REQ with an unknown one.
    fn check_path(&self, arrival: &Arrival<'_>, request: &ConnectRequest) -> Result<(), Refusal> {
        let path = &request.primary_path;
        let (local, remote) = (path.local_gid.to_ip(), path.remote_gid.to_ip());
        let is_reachable = !path.local_gid.is_zero() && is_unicast(local) && local.is_ipv4() == remote.is_ipv4();
        let has_pkey = request.pkey | MEMBERSHIP == DEFAULT_PKEY;
        if !is_reachable || !has_pkey || !self.addresses.contains(&remote) {
            return Err(Refusal::of_path(RejectReason::INVALID_GID, arrival.destination));
        }
        if request.alternate_path.path().is_some() {
            return Err(Refusal::of_path(RejectReason::INVALID_ALTERNATE_GID, arrival.destination));
        }
        Ok(())
    }

    /// Checks a SIDR_REQ (`cm.c`, `cm_sidr_req_handler`; `cma.c`, `cma_ib_req_handler`). Its P_Key is not checked.
    pub(super) fn check_inquiry(
        &self,
        arrival: &Arrival<'_>,
        request: &ServiceIdRequest,
    ) -> Result<Checked<180>, ServiceIdStatus> {
        if !self.has_listener(request.service_id) {
            return Err(ServiceIdStatus::UNSUPPORTED);
        }
        let rejected = ServiceIdStatus::REJECTED;
        let (header, private_data) = split(request.private_data.as_bytes()).ok_or(rejected)?;
        if !is_usable_source(arrival, &header) || header.destination().is_ipv4() != arrival.source.is_ipv4() {
            return Err(rejected);
        }
        let listener = self.find_listener(request.service_id, &header, true).ok_or(rejected)?;
        Ok(Checked { listener, header, private_data })
    }

    pub(super) fn has_listener(&self, service_id: ServiceId) -> bool {
        self.listeners.of(service_id).next().is_some()
    }

    /// Returns the listener of a destination: that of its address, else that of all addresses of its IP version, else
    /// that of all addresses.
    fn find_listener(&self, id: ServiceId, header: &IpHeader, is_datagram: bool) -> Option<ListenerHandle> {
        let destination = header.destination();
        if !self.addresses.contains(&destination) {
            return None;
        }
        let rank = |parameters: &ListenParameters| match parameters.address {
            Some(address) if address == destination => Some(0),
            Some(address) if address.is_unspecified() && address.is_ipv4() == destination.is_ipv4() => Some(1),
            Some(_) => None,
            None => Some(2),
        };
        let listeners = self.listeners.of(id).filter(|(_, parameters)| parameters.is_datagram == is_datagram);
        let ranked = listeners.filter_map(|(handle, parameters)| Some((rank(parameters)?, handle)));
        ranked.min().map(|(_, handle)| handle)
    }
}

/// Splits private data into the header of IP connections and the application's data.
fn split<const N: usize>(private_data: &[u8]) -> Option<(IpHeader, PrivateData<N>)> {
    let (header, rest) = IpHeader::read(private_data).ok()?;
    Some((header, PrivateData::new(rest)?))
}

/// Returns whether a host can have the address.
fn is_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !is_broadcast
}

/// Returns whether the source address of a request's header is one that its sender can have (`cma.c`,
/// `validate_ipv4_net_dev`). Its port may be 0.
fn is_usable_source(arrival: &Arrival<'_>, header: &IpHeader) -> bool {
    let source = header.source().ip();
    is_unicast(source) && (!source.is_loopback() || arrival.destination.is_loopback())
}
