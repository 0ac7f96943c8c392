//! Datagrams with their addresses.

use std::net::IpAddr;

use crate::wire::mad::{FlowLabel, MAD_BYTES, Path};

/// A datagram that arrived at queue pair 1, with the right Q_Key and P_Key.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Address of the sender.
    pub source: IpAddr,
    /// The own address at which it arrived.
    pub destination: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Flow label; 0 over IPv4.
    pub flow_label: FlowLabel,
    /// The datagram.
    pub bytes: &'a [u8],
}

/// A datagram to send from queue pair 1 to queue pair 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The own address from which it is sent.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Flow label, for IPv6.
    pub flow_label: FlowLabel,
    /// The datagram. No datagram has another size: a longer one stops queue pair 1 of Linux 6.1.
    pub bytes: [u8; MAD_BYTES],
}

/// Where the messages of a connection go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) traffic_class: u8,
    pub(super) flow_label: FlowLabel,
}

impl Route {
    /// Returns the route of the REQ's sender.
    pub(super) fn along(path: &Path) -> Self {
        Self {
            source: path.local_gid.to_ip(),
            destination: path.remote_gid.to_ip(),
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
        }
    }

    /// Returns the route of the REQ's receiver. Its messages go to the primary path's local GID, not to the source
    /// address of the REQ (`cm.c`, `cm_init_av_by_path`).
    pub(super) fn against(path: &Path) -> Self {
        let along = Self::along(path);
        Self { source: along.destination, destination: along.source, ..along }
    }

    /// Returns the route of a response that is made from an arrived datagram alone. Over IPv4 Linux sends the traffic
    /// class 0 (`verbs.c`, `ib_init_ah_attr_from_wc`).
    pub(super) fn back(arrival: &Arrival<'_>) -> Self {
        let (traffic_class, flow_label) = match arrival.source {
            IpAddr::V4(_) => Default::default(),
            IpAddr::V6(_) => (arrival.traffic_class, arrival.flow_label),
        };
        Self { source: arrival.destination, destination: arrival.source, traffic_class, flow_label }
    }

    /// Returns the datagram of these bytes.
    pub(super) fn outgoing(self, bytes: [u8; MAD_BYTES]) -> Outgoing {
        let Self { source, destination, traffic_class, flow_label } = self;
        Outgoing { source, destination, traffic_class, flow_label, bytes }
    }
}
