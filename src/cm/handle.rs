//! Handles: how the application names the objects of a manager.

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// The numbers are never reused, so a handle never names a later object.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub(super) u64);
    )* };
}

handles! {
    /// Names a connection. Its communication id on the wire is another number, which may change.
    ConnectionHandle;
    /// Names a listener.
    ListenerHandle;
    /// Names a request for a datagram queue pair of a peer.
    ResolutionHandle;
    /// Names a peer's request for a datagram queue pair.
    InquiryHandle;
}

/// The object of a deadline or an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// A connection.
    Connection(ConnectionHandle),
    /// A request for a datagram queue pair of a peer.
    Resolution(ResolutionHandle),
    /// A peer's request for a datagram queue pair.
    Inquiry(InquiryHandle),
    /// A listener. It has events of its own only until they belong to the connections that they bring.
    Listener(ListenerHandle),
}

macro_rules! owners {
    ($($handle:ident: $kind:ident;)*) => { $(
        impl From<$handle> for Owner {
            fn from(handle: $handle) -> Self {
                Self::$kind(handle)
            }
        }
    )* };
}

owners! {
    ConnectionHandle: Connection;
    ResolutionHandle: Resolution;
    InquiryHandle: Inquiry;
    ListenerHandle: Listener;
}

impl ConnectionHandle {
    /// Returns its number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
impl ConnectionHandle {
    /// Returns a handle that no manager has made.
    pub(crate) const fn for_tests(number: u64) -> Self {
        Self(number)
    }
}

#[cfg(test)]
impl ListenerHandle {
    /// Returns a handle that no manager has made.
    pub(crate) const fn for_tests(number: u64) -> Self {
        Self(number)
    }
}
