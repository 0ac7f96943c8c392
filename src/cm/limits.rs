//! Bounds of a manager's tables and queues.

/// Bounds of a manager's tables and queues. Peers cannot exceed them, whatever they send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections in all states, also those that the application has destroyed and whose end the peer has not
    /// confirmed.
    pub connections: usize,
    /// Connections that a peer has requested and that are not set up.
    pub half_open: usize,
    /// Connections that have ended and wait for late datagrams. Beyond it the oldest ones wait no longer.
    pub resting: usize,
    /// Listeners.
    pub listeners: usize,
    /// Requests of a listener that the application has not taken. An application may set a smaller number.
    pub backlog: usize,
    /// Requests for ports without a listener that wait for one. Further ones are rejected at once.
    pub held: usize,
    /// Outstanding requests for datagram queue pairs of peers.
    pub resolutions: usize,
    /// Requests of peers for datagram queue pairs: those without a response, and recent ones.
    pub inquiries: usize,
    /// Datagrams that wait to be sent. Responses that need no connection use at most half of them.
    pub outputs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            half_open: 4_096,
            resting: 4_096,
            listeners: 4_096,
            backlog: 1_024,
            held: 64,
            resolutions: 4_096,
            inquiries: 4_096,
            outputs: 4_096,
        }
    }
}
