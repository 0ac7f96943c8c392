//! The receiving sockets of a shard: those of its addresses, and those of multicast groups.

use super::inbound::{Batch, Deliver, Delivery, Inbound};
use super::multicast::GroupSockets;
use super::udp::{ReceiveSocket, ReportedFields};
use crate::engine::share::Route;
use crate::sys;
use crate::transport::Datagram;

const MOST_BATCHES_WITHOUT_GROUPS: u32 = 8;

/// The sockets, and the buffers that they share.
pub(super) struct ReceiveSockets {
    receivers: Vec<ReceiveSocket>,
    pub(super) groups: GroupSockets,
    /// Index of the receiver where the next batch begins, so that no socket starves the others.
    next_receiver: usize,
    /// Batches since the groups' sockets were last polled: they come last, but a busy shard must not starve them.
    batches_without_groups: u32,
    inbound: Inbound,
    /// The datagram found by [`ReceiveSockets::find`], whose bytes `inbound` keeps, and the index of its socket.
    found: Option<(usize, sys::Received)>,
}

/// The result of a search for a waiting datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    /// There is none.
    Nothing,
    /// One was received, and is kept for the next batch.
    Found,
    /// The next batch finds out.
    Unknown,
}

impl ReceiveSockets {
    pub(super) fn new() -> Self {
        Self {
            receivers: Vec::new(),
            groups: GroupSockets::default(),
            next_receiver: 0,
            batches_without_groups: 0,
            inbound: Inbound::new(),
            found: None,
        }
    }

    pub(super) fn add(&mut self, socket: ReceiveSocket) {
        self.receivers.push(socket);
    }

    /// Stops receiving on the addresses, and returns the sockets.
    pub(super) fn take(&mut self) -> Vec<ReceiveSocket> {
        self.found = None;
        std::mem::take(&mut self.receivers)
    }

    /// Requests reports of these fields from the kernel.
    pub(super) fn report(&self, fields: ReportedFields) {
        self.receivers.iter().for_each(|socket| socket.report(fields));
    }

    /// Receives a batch, as [`Link::receive`](super::Link::receive). The second result is true if no socket has more.
    pub(super) fn receive(
        &mut self,
        most: usize,
        delivery: &mut Delivery<'_, impl Deliver>,
        is_enough: impl Fn() -> bool,
    ) -> (Batch, bool) {
        let mut batch = Batch::default();
        let Self { receivers, groups, inbound, .. } = self;
        if self.batches_without_groups >= MOST_BATCHES_WITHOUT_GROUPS {
            self.batches_without_groups = 0;
            if groups.may_be_ready() {
                receive_multicasts(groups, inbound, most.div_ceil(4), delivery, &mut batch);
            }
        }
        self.batches_without_groups += 1;
        if let Some((index, found)) = self.found.take() {
            batch.datagrams += inbound.take_found(&mut receivers[index], &found, delivery);
            if is_enough() {
                return (batch, false);
            }
        }
        let mut left = most;
        for turn in 0..receivers.len() {
            let index = self.next_receiver.wrapping_add(turn) % receivers.len();
            loop {
                if left == 0 {
                    self.next_receiver = index;
                    batch.is_full = true;
                    return (batch, false);
                }
                let taken = inbound.take(&mut receivers[index], left, delivery);
                if taken.received == 0 {
                    break;
                }
                left -= taken.received;
                batch.datagrams += taken.datagrams;
                if taken.datagrams > 0 && is_enough() {
                    self.next_receiver = index + 1;
                    return (batch, false);
                }
            }
        }
        self.next_receiver = self.next_receiver.wrapping_add(1);
        self.batches_without_groups = 0;
        if groups.may_be_ready() {
            receive_multicasts(groups, inbound, left, delivery, &mut batch);
        }
        let is_drained = !batch.is_full;
        (batch, is_drained)
    }

    /// Routes a request that waits for a listener, as if it arrived now.
    pub(super) fn route_held(&self, datagram: &Datagram<'_>) -> Route {
        let at = self.receivers.iter().find(|socket| socket.address.ip == datagram.destination);
        at.map_or(Route::Here, |socket| socket.membership.route_held(datagram))
    }

    /// Whether a datagram is kept for the next batch.
    #[inline]
    pub(super) fn has_found(&self) -> bool {
        self.found.is_some()
    }

    /// Searches for a waiting datagram.
    #[inline]
    pub(super) fn find(&mut self) -> Waiting {
        for (index, socket) in self.receivers.iter().enumerate() {
            match self.inbound.find(socket) {
                Ok(Some(found)) => {
                    self.found = Some((index, found));
                    return Waiting::Found;
                }
                Ok(None) => {}
                Err(_) => return Waiting::Unknown,
            }
        }
        if self.groups.may_be_ready() { Waiting::Unknown } else { Waiting::Nothing }
    }
}

#[cold]
fn receive_multicasts(
    groups: &mut GroupSockets,
    inbound: &mut Inbound,
    most: usize,
    delivery: &mut Delivery<'_, impl Deliver>,
    batch: &mut Batch,
) {
    let mut left = most;
    for socket in &mut groups.sockets {
        while left > 0 {
            let taken = inbound.take(socket, left, delivery);
            if taken.received == 0 {
                break;
            }
            left -= taken.received;
            batch.datagrams += taken.datagrams;
        }
    }
    if left == 0 {
        // The next batch begins with another socket, so that the last ones get their turn.
        batch.is_full = true;
        groups.sockets.rotate_left(1);
    }
}
