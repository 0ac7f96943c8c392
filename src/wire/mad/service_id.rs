//! Service ids, and the messages that resolve one to a datagram queue pair: SIDR_REQ, SIDR_REP.

use std::fmt;

use crate::types::{Qkey, Qpn};

use super::contents::{AdditionalInformation, PrivateData, VendorOptions};
use super::field::{Bits, WholeData, at, bits, layout};
use super::{CommunicationId, ServiceIdStatus};

/// Number of a service, by which a listener is found.
///
/// Those of the IP service are a port space and a port (IBTA A11).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ServiceId(pub u64);

/// Port space of the IP service: a port has one listener in each. The numbers are those of `rdma_port_space`. The
/// spaces are separate from the ports of TCP and UDP sockets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams of IP over InfiniBand.
    Ipoib = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Native InfiniBand services. Their private data begins with another header than that of the IP service.
    Ib = 0x013f,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: &[Self] = &[Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];
}

impl ServiceId {
    /// Returns the service id of a port.
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Returns the port space and the port, or `None` for other services.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = PortSpace::ALL.iter().find(|space| **space as u64 == self.0 >> 16)?;
        Some((*space, self.0 as u16))
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

bits! {
    ServiceId: 64, |bits| ServiceId(bits as u64), |id| id.0.into();
}

/// SIDR_REQ: requests a datagram queue pair of a service (`cm_sidr_req_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceIdRequest {
    /// The sender's number of the request. Linux takes a second request with the number of an outstanding one for a
    /// repetition, also from another host.
    pub request_id: CommunicationId,
    /// Partition key.
    pub pkey: u16,
    /// The service.
    pub service_id: ServiceId,
    /// Data of the application. In the IP service it begins with an [`IpHeader`](super::IpHeader).
    pub private_data: PrivateData<216>,
}

layout! { ServiceIdRequest in WholeData {
    request_id: at(0),
    pkey: at(4),
    service_id: at(8),
    private_data: at(16),
} }

/// SIDR_REP: returns a datagram queue pair, or refuses (`cm_sidr_rep_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceIdReply {
    /// The number of the request.
    pub request_id: CommunicationId,
    /// Outcome. The queue pair is valid only with [`ServiceIdStatus::VALID`].
    pub status: ServiceIdStatus,
    /// Details of a refusal.
    pub information: AdditionalInformation<8>,
    /// Options that the sender accepts.
    pub vendor_options: VendorOptions,
    /// The queue pair.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// The Q_Key of the queue pair.
    pub qkey: Qkey,
    /// Data of the application.
    pub private_data: PrivateData<136>,
}

layout! { ServiceIdReply in WholeData {
    request_id: at(0),
    status: at(4),
    information: (5, at(24)),
    vendor_options: [6, 7, 11],
    qpn: at(8),
    service_id: at(12),
    qkey: at(20),
    private_data: at(96),
} }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_are_port_spaces_and_ports() {
        let known = [
            (PortSpace::Tcp, 5001, 0x0106_1389),
            (PortSpace::Udp, 5005, 0x0111_138d),
            (PortSpace::Ipoib, 1, 0x0002_0001),
            (PortSpace::Ib, 0xffff, 0x013f_ffff),
        ];
        for (space, port, number) in known {
            assert_eq!(ServiceId::of_port(space, port), ServiceId(number));
            assert_eq!(ServiceId(number).port(), Some((space, port)));
        }
        for other in [0, 0x0106, 0x0001_0000, 0x0107_0001, 0x1_0106_1389, 0x0100_0000_0106_1389, u64::MAX] {
            assert_eq!(ServiceId(other).port(), None, "{other:#x}");
        }
        assert_eq!(ServiceId(0x0106_1389).to_string(), "0x0000000001061389");
    }
}
