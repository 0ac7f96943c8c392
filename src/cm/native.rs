//! The key of a connection between native peers: offered in a REQ, confirmed in a REP (`docs/wire.md`, "Keys of
//! connections by address and port").

use super::connection::Connection;
use super::manager::Manager;
use crate::types::{KeyShare, PeerCapabilities, PeerKey};
use crate::wire::mad::{AlternatePath, CommunicationId, ConnectReply, ConnectRequest, NativeOffer};

/// A native peer, and the key that its connection has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativePeer {
    /// Its capabilities.
    pub capabilities: PeerCapabilities,
    /// The key of the connection, which only its two ends know.
    pub key: PeerKey,
}

impl NativePeer {
    /// Returns the sender of a REQ with an offer. The own communication id of the connection is part of the key.
    pub(super) fn of_request(request: &ConnectRequest, local_id: CommunicationId) -> Option<Self> {
        let offer = request.alternate_path.offer()?;
        Some(Self { capabilities: offer.capabilities(), key: offer.passive_key(local_id) })
    }

    /// Returns the sender of a REP that confirms this end's offer. A confirmation without an offer means nothing.
    pub(super) fn of_reply(connection: &Connection, reply: &ConnectReply) -> Option<Self> {
        let offer = connection.active.as_ref()?.request.alternate_path.offer()?;
        Some(Self { capabilities: reply.confirmation()?, key: offer.active_key(reply.local_id) })
    }
}

impl Manager {
    /// Returns the offer in a REQ, with a fresh share; no alternate path without capabilities.
    pub(super) fn draw_offer(&mut self, capabilities: Option<PeerCapabilities>) -> AlternatePath {
        let Some(capabilities) = capabilities.filter(PeerCapabilities::is_native) else {
            return AlternatePath::default();
        };
        let mut bits = [0; KeyShare::BYTES];
        for word in bits.as_chunks_mut::<4>().0 {
            *word = self.draw().to_be_bytes();
        }
        AlternatePath::of_offer(&NativeOffer::new(bits, capabilities))
    }
}
