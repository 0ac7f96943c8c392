//! States of connections of the connection manager.

use std::fmt;

/// State of a connection of the connection manager (IBTA 12.9.7, which has other names).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ConnectionState {
    /// The REQ is sent.
    RequestSent,
    /// The peer takes the queue pair for that of an older connection, which it is ending. A new REQ follows.
    StalePause,
    /// The REP has arrived; the application moves the queue pair.
    ReplyReceived,
    /// A REQ has arrived; the application decides.
    RequestReceived,
    /// The REP is sent.
    ReplySent,
    /// The connection is set up.
    Established,
    /// The DREQ is sent.
    DisconnectSent,
    /// A DREQ has arrived; the application confirms it.
    DisconnectReceived,
    /// The connection has ended; late packets may be in flight.
    TimeWait,
    /// The connection was not set up; late messages get the same response as before.
    Refused,
    /// Nothing happens any more.
    Idle,
}

impl ConnectionState {
    /// All states.
    pub const ALL: &[Self] = &[
        Self::RequestSent,
        Self::StalePause,
        Self::ReplyReceived,
        Self::RequestReceived,
        Self::ReplySent,
        Self::Established,
        Self::DisconnectSent,
        Self::DisconnectReceived,
        Self::TimeWait,
        Self::Refused,
        Self::Idle,
    ];

    /// Returns the state in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestSent => "REQ sent",
            Self::StalePause => "pause after a stale connection",
            Self::ReplyReceived => "REP received",
            Self::RequestReceived => "REQ received",
            Self::ReplySent => "REP sent",
            Self::Established => "established",
            Self::DisconnectSent => "DREQ sent",
            Self::DisconnectReceived => "DREQ received",
            Self::TimeWait => "time wait",
            Self::Refused => "refused",
            Self::Idle => "idle",
        }
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
