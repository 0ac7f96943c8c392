//! The messages that end a connection: DREQ, DREP.

use crate::types::Qpn;

use super::CommunicationId;
use super::contents::PrivateData;
use super::field::{WholeData, at, layout};

/// DREQ: ends a connection (`cm_dreq_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DisconnectRequest {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// The receiver's queue pair. A receiver ignores the message if it is another one.
    pub remote_qpn: Qpn,
    /// Data of the application.
    pub private_data: PrivateData<220>,
}

layout! { DisconnectRequest in WholeData {
    local_id: at(0),
    remote_id: at(4),
    remote_qpn: at(8),
    private_data: at(12),
} }

/// DREP: confirms the end of a connection, also of one that the sender does not have (`cm_drep_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DisconnectReply {
    /// The sender's number of the connection.
    pub local_id: CommunicationId,
    /// The receiver's number of the connection.
    pub remote_id: CommunicationId,
    /// Data of the application.
    pub private_data: PrivateData<224>,
}

layout! { DisconnectReply in WholeData {
    local_id: at(0),
    remote_id: at(4),
    private_data: at(8),
} }
