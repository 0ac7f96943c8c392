//! Events: what the owner of the queue pairs learns.

use std::collections::{BTreeMap, BTreeSet};

use super::handle::{ConnectionHandle, InquiryHandle, ListenerHandle, Owner, ResolutionHandle};
use super::native::NativePeer;
use crate::wire::mad::{ConnectReply, ConnectRequest, IpHeader, PrivateData, Reject, ServiceIdReply, ServiceIdRequest};

/// Maximum number of events of one object that are not polled. An active end has at most three: its reply, its end, the
/// end of its rest.
#[cfg(test)]
pub(super) const MOST_OF_ONE: usize = 4;

/// The message without a response when its sender gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// The peer does not respond to the REQ.
    ConnectRequest,
    /// The peer does not respond to the REP.
    ConnectReply,
    /// The peer no longer repeats its REQ, to which the application has not responded.
    Answer,
}

/// Why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisconnectCause {
    /// The peer ends it.
    Peer,
    /// The peer confirms this end's DREQ.
    Confirmed,
    /// The peer does not respond to this end's DREQ.
    Timeout,
}

/// An event. Each connection has at most one of `Rejected`, `Unreachable` and `Disconnected`, and after it at most one
/// `TimeWaitExit`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer requests a connection. The application answers with [`Manager::accept`](super::Manager::accept) or
    /// [`Manager::reject`](super::Manager::reject).
    ConnectRequest {
        /// The new connection.
        connection: ConnectionHandle,
        /// The listener.
        listener: ListenerHandle,
        /// The addresses of both ends as their applications see them.
        header: IpHeader,
        /// Data of the peer's application.
        private_data: PrivateData<56>,
        /// The request.
        request: Box<ConnectRequest>,
        /// The key that the peer offers. The connection has it if the application accepts with capabilities.
        native: Option<NativePeer>,
    },
    /// The peer accepts. The owner moves the queue pair to the state "ready to send" and calls
    /// [`Manager::ready`](super::Manager::ready), or [`Manager::reject`](super::Manager::reject).
    Reply {
        /// The connection.
        connection: ConnectionHandle,
        /// The reply.
        reply: Box<ConnectReply>,
        /// The key of the connection, if this end has offered one and the peer confirms it.
        native: Option<NativePeer>,
    },
    /// The peer is ready: the connection that this end has accepted is set up.
    Established {
        /// The connection.
        connection: ConnectionHandle,
    },
    /// The peer rejects the connection, or gives up.
    Rejected {
        /// The connection.
        connection: ConnectionHandle,
        /// The reason and the data of the peer's application.
        rejection: Box<Reject>,
    },
    /// The peer does not respond.
    Unreachable {
        /// The connection.
        connection: ConnectionHandle,
        /// The message without a response.
        unanswered: Unanswered,
    },
    /// The connection has ended. If the peer ends it, the application answers with
    /// [`Manager::disconnect`](super::Manager::disconnect) or [`Manager::destroy`](super::Manager::destroy).
    Disconnected {
        /// The connection.
        connection: ConnectionHandle,
        /// Why.
        cause: DisconnectCause,
    },
    /// No packet of the connection is in flight any more.
    TimeWaitExit {
        /// The connection.
        connection: ConnectionHandle,
    },
    /// A peer requests a datagram queue pair. The application answers with
    /// [`Manager::answer`](super::Manager::answer) or [`Manager::refuse_inquiry`](super::Manager::refuse_inquiry).
    Inquiry {
        /// The request's handle.
        inquiry: InquiryHandle,
        /// The listener.
        listener: ListenerHandle,
        /// The addresses of both ends as their applications see them.
        header: IpHeader,
        /// Data of the peer's application.
        private_data: PrivateData<180>,
        /// The request.
        request: Box<ServiceIdRequest>,
    },
    /// The peer responds to the request for a datagram queue pair. It may refuse: the reply has the status.
    Resolved {
        /// The request's handle, which is no longer valid.
        resolution: ResolutionHandle,
        /// The reply.
        reply: Box<ServiceIdReply>,
    },
    /// The peer does not respond to the request for a datagram queue pair.
    Unresolved {
        /// The request's handle, which is no longer valid.
        resolution: ResolutionHandle,
    },
}

impl Event {
    /// Returns the object that the event belongs to.
    pub fn owner(&self) -> Owner {
        match self {
            Self::ConnectRequest { connection, .. }
            | Self::Reply { connection, .. }
            | Self::Established { connection }
            | Self::Rejected { connection, .. }
            | Self::Unreachable { connection, .. }
            | Self::Disconnected { connection, .. }
            | Self::TimeWaitExit { connection } => Owner::Connection(*connection),
            Self::Inquiry { inquiry, .. } => Owner::Inquiry(*inquiry),
            Self::Resolved { resolution, .. } | Self::Unresolved { resolution } => Owner::Resolution(*resolution),
        }
    }

    /// Returns the listener that a peer's request is for.
    pub fn listener(&self) -> Option<ListenerHandle> {
        match self {
            Self::ConnectRequest { listener, .. } | Self::Inquiry { listener, .. } => Some(*listener),
            _ => None,
        }
    }
}

#[cfg(test)]
impl Event {
    /// Returns the event of a request with default values.
    pub(crate) fn request_for_tests(connection: ConnectionHandle, listener: ListenerHandle) -> Self {
        let any = std::net::IpAddr::from([127, 0, 0, 1]);
        let header = IpHeader::new(std::net::SocketAddr::new(any, 7), any).expect("one IP version");
        let (private_data, request) = (PrivateData::default(), Box::default());
        Self::ConnectRequest { connection, listener, header, private_data, request, native: None }
    }
}

/// Events that wait to be polled, oldest first. An object has a bounded number of events in its life, and destroying it
/// removes them, so the objects bound the queue.
#[derive(Default)]
pub(super) struct Events {
    next: u64,
    waiting: BTreeMap<u64, Event>,
    by_owner: BTreeSet<(Owner, u64)>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.by_owner.insert((event.owner(), self.next));
        self.waiting.insert(self.next, event);
        self.next += 1;
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let (number, event) = self.waiting.pop_first()?;
        self.by_owner.remove(&(event.owner(), number));
        Some(event)
    }

    /// Returns whether an object has events.
    pub(super) fn has(&self, owner: Owner) -> bool {
        self.by_owner.range((owner, 0)..=(owner, u64::MAX)).next().is_some()
    }

    /// Removes all events of an object.
    pub(super) fn cancel(&mut self, owner: Owner) {
        while let Some(entry) = self.by_owner.range((owner, 0)..=(owner, u64::MAX)).next().copied() {
            self.by_owner.remove(&entry);
            self.waiting.remove(&entry.1);
        }
    }

    /// Returns the number of events of the object with the most.
    #[cfg(test)]
    pub(super) fn most_of_one(&self) -> usize {
        let mut counts = BTreeMap::<Owner, usize>::new();
        self.by_owner.iter().for_each(|(owner, _)| *counts.entry(*owner).or_default() += 1);
        counts.into_values().max().unwrap_or(0)
    }
}
