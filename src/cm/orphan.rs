//! Connections whose process has died: another process of the host ends them.

use std::net::IpAddr;

use super::connection::{Connection, ConnectionState};
use super::error::CallError;
use super::handle::ConnectionHandle;
use super::manager::Manager;
use super::repetition::Repetition;
use super::route::Route;
use crate::types::{Qpn, Time};
use crate::wire::mad::{CommunicationId, FlowLabel};

/// The facts of a connection whose process has died, by which another process of the host ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphan {
    /// The own communication id.
    pub local_id: CommunicationId,
    /// The peer's communication id.
    pub remote_id: CommunicationId,
    /// GUID of the peer's device.
    pub remote_guid: u64,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The own address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
}

impl Manager {
    /// Takes the next connection that has been set up or has ended since the last call. The facts are those by which
    /// another process can end the connection if this one dies; `None` if the peer need not learn its end any more.
    pub fn poll_set_up(&mut self) -> Option<(ConnectionHandle, Option<Orphan>)> {
        let handle = self.set_up_changes.pop_front()?;
        Some((handle, self.orphan(handle)))
    }

    /// Returns the facts by which another process can end the connection, or `None` if it is not set up.
    pub fn orphan(&self, handle: ConnectionHandle) -> Option<Orphan> {
        let connection = self.connections.get(&handle).filter(|connection| connection.is_set_up())?;
        let Route { source, destination, traffic_class, flow_label } = connection.route;
        Some(Orphan {
            local_id: connection.local_id,
            remote_id: connection.remote_id?,
            remote_guid: connection.remote_guid,
            remote_qpn: connection.remote_qpn,
            local: source,
            remote: destination,
            traffic_class,
            flow_label,
        })
    }

    /// Ends a connection of a process of this host that has died, in the background: otherwise its peer never learns
    /// it. The kernel sends a DREQ for processes that die. Half of the connections stay for this process's own.
    pub fn end_orphan(&mut self, now: Time, orphan: &Orphan) -> Result<(), CallError> {
        let limit = self.limits.connections / 2;
        if self.connections.len() >= limit || self.by_id.contains_key(&orphan.local_id) {
            return Err(CallError::TooMany { objects: "connections", limit });
        }
        let Orphan { local, remote, traffic_class, flow_label, .. } = *orphan;
        let route = Route { source: local, destination: remote, traffic_class, flow_label };
        let repetition = Repetition::of_disconnect();
        let handle = self.insert(Connection {
            is_detached: true,
            remote_id: Some(orphan.remote_id),
            remote_guid: orphan.remote_guid,
            remote_qpn: orphan.remote_qpn,
            ..Connection::new(now, ConnectionState::Established, orphan.local_id, route, repetition)
        });
        self.start_disconnect(now, handle);
        Ok(())
    }
}
