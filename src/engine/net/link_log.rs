//! The events of links through memory for subscribers of `tracing`. `docs/tracing.md` lists them with their fields.

use crate::engine::share::{DeclinedLink, IncomingLink, OutgoingLink};
use crate::memory::record_ring::Broken;
use crate::queue::{Journal, note_later};

/// Notes that packets to the peer leave through this link from now on.
#[cold]
pub(super) fn begins(journal: &Journal, link: &OutgoingLink) {
    let (local, peer) = (link.own, link.peer);
    note_later!(
        journal, target: "rdma_verbs::path", DEBUG,
        %local, %peer, medium = "memory", "packets to this peer go through shared memory"
    );
}

/// Notes that a requested link will not come.
#[cold]
pub(super) fn declined(journal: &Journal, link: &DeclinedLink) {
    let (local, peer, reason) = (link.own, link.peer, link.problem.to_string());
    note_later!(
        journal, target: "rdma_verbs::path", DEBUG,
        %local, %peer, medium = "udp", reason, "no memory is shared with the peer"
    );
}

/// Notes that the other end of this link is closed.
#[cold]
pub(super) fn ends(journal: &Journal, link: &OutgoingLink) {
    let (local, peer) = (link.own, link.peer);
    note_later!(
        journal, target: "rdma_verbs::path", DEBUG,
        %local, %peer, medium = "udp", "the peer's process has ended the link through memory"
    );
}

/// Notes that the ring of an outgoing link has impossible contents.
#[cold]
pub(super) fn breaks(journal: &Journal, link: &OutgoingLink, error: Broken) {
    let (local, peer) = (link.own, link.peer);
    note_later!(
        journal, target: "rdma_verbs::path", WARN,
        %local, %peer, medium = "udp", %error, "packets to this peer leave through sockets from now on"
    );
}

/// Notes that the ring of an incoming link has impossible contents.
#[cold]
pub(super) fn incoming_breaks(journal: &Journal, link: &IncomingLink, error: Broken) {
    let (local, peer) = (link.destination, link.source);
    note_later!(
        journal, target: "rdma_verbs::path", WARN,
        %local, %peer, medium = "udp", %error, "packets of this peer are received through sockets only"
    );
}
