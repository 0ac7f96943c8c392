//! Counters of a manager.

use crate::wire::mad::{Attribute, Message};

/// Number of messages of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCounts([u64; Message::ATTRIBUTES.len()]);

impl MessageCounts {
    #[cfg(any(test, feature = "sim"))]
    /// Returns the number of messages with this attribute.
    pub fn of(&self, attribute: Attribute) -> u64 {
        Self::index(attribute).map_or(0, |index| self.0[index])
    }

    /// Returns the number of all messages.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn note(&mut self, attribute: Attribute) {
        if let Some(index) = Self::index(attribute) {
            self.0[index] += 1;
        }
    }

    fn index(attribute: Attribute) -> Option<usize> {
        Message::ATTRIBUTES.iter().position(|known| *known == attribute)
    }
}

/// Counters of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages that arrived.
    pub received: MessageCounts,
    /// Messages sent, repetitions included.
    pub sent: MessageCounts,
    /// Messages sent again, because the peer did not respond or because its message came again.
    pub repeated: MessageCounts,
    /// Messages that arrived again.
    pub duplicates: MessageCounts,
    /// Requests that arrived with a stale connection's queue pair.
    pub stale: u64,
    /// Requests refused with a REJ or SIDR_REP without asking an application.
    pub refused: u64,
    /// Queries of other protocols that got the response "not supported".
    pub unsupported: u64,
    /// Datagrams dropped.
    pub drops: Drops,
}

/// Datagrams dropped, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drops {
    /// The length is not 256 bytes.
    pub length: u64,
    /// The header is not that of a message, and not that of a query with a response.
    pub header: u64,
    /// No connection or request has the ids of the message.
    pub unknown: MessageCounts,
    /// The message has no meaning in the state of its connection.
    pub unexpected: MessageCounts,
    /// A DREQ names another queue pair than the connection's.
    pub wrong_queue_pair: u64,
    /// A request found the listener's backlog full.
    pub backlog_full: u64,
    /// A request found as many requests without an answer as a manager may have.
    pub half_open_full: u64,
    /// A request found as many connections, or requests for datagram queue pairs, as a manager may have.
    pub connections_full: u64,
    /// A LAP or APR: alternate paths are not supported.
    pub alternate_path: u64,
    /// A message to send found the queue full. Its repetition replaces it, as after a loss on the wire.
    pub outputs_full: u64,
}
