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
pub(super) enum Owner {
    Connection(ConnectionHandle),
    Resolution(ResolutionHandle),
    Inquiry(InquiryHandle),
}
