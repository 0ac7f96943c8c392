//! The fast path: packets between the first and the last of a message. Their headers differ only in the PSN and the
//! acknowledgement request, so the rest is checked once for all of them.

use std::net::IpAddr;

use super::QueuePair;
use crate::transport::common::Pass;
use crate::transport::datagram::{Datagram, DatagramOutcome, Similar};
use crate::transport::segments::Bytes;
use crate::types::{Counter, DropReason, Psn};
use crate::wire::{BTH_BYTES, Bth, ICRC_BYTES, Opcode};

/// Bytes of the base transport header before the acknowledgement request and the PSN.
const COMMON_BYTES: usize = 8;

/// The common part of the packets of a message between the first and the last.
#[derive(Clone, Copy)]
pub(in crate::transport) struct HeaderTemplate {
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    length: usize,
    header: [u8; COMMON_BYTES],
}

impl HeaderTemplate {
    fn of(datagram: &Datagram<'_>) -> Option<Self> {
        let Datagram { source, destination, source_port, payload, .. } = *datagram;
        let header = *payload.first_chunk()?;
        Some(Self { source, destination, source_port, length: payload.len(), header })
    }

    /// Whether a datagram of this length differs from the template only in PSN, payload and acknowledgement request.
    #[inline]
    pub(in crate::transport) fn fits(&self, datagram: &Datagram<'_>, length: usize) -> bool {
        datagram.payload.first_chunk() == Some(&self.header)
            && length == self.length
            && datagram.source_port == self.source_port
            && datagram.source == self.source
            && datagram.destination == self.destination
    }

    pub(in crate::transport) fn opcode(&self) -> Opcode {
        Opcode(self.header[0])
    }
}

impl QueuePair {
    /// Returns the template of the packets after one that was just executed; `None` if the fast path does not take
    /// them. It takes full packets between the first and the last of a SEND or WRITE.
    pub(in crate::transport) fn header_template(&self, datagram: &Datagram<'_>, bth: &Bth) -> Option<HeaderTemplate> {
        let is_between = bth.opcode.is_middle() && bth.opcode.is_request();
        let is_plain = self.common.service.is_reliable() && !self.common.is_extended() && bth.pad_count == 0;
        let is_full = datagram.payload.len() == BTH_BYTES + self.common.mtu_bytes() as usize + ICRC_BYTES;
        if is_between && is_plain && is_full { HeaderTemplate::of(datagram) } else { None }
    }

    /// Takes a packet that fits the template, or drops it if its check field is wrong. `rest` are the bytes behind its
    /// base transport header. Returns `None` if it is not the expected one, or cannot be executed here.
    /// Then the general path takes it.
    #[inline]
    pub(in crate::transport) fn take_by_template(
        &mut self,
        pass: &Pass<'_>,
        template: &HeaderTemplate,
        datagram: &Datagram<'_>,
        rest: impl Bytes,
    ) -> Option<DatagramOutcome> {
        let header = datagram.payload.first_chunk::<BTH_BYTES>()?;
        let payload = rest.part(0..rest.count().checked_sub(ICRC_BYTES)?);
        let psn = Psn::new(u32::from_be_bytes([0, header[9], header[10], header[11]]));
        if !self.responder.may_execute_middle(psn) || !self.common.takes_requests() {
            return None;
        }
        let evidence = match self.check_icrc(datagram) {
            Ok(evidence) => evidence,
            Err(reason) => return Some(self.drop_by_template(reason)),
        };
        self.responder.execute_middle(&mut self.common, pass, template.opcode(), payload)?;
        self.learn(evidence);
        self.common.counters.add(Counter::ReceivedPackets, 1);
        self.common.counters.add(Counter::ReceivedBytes, (BTH_BYTES + rest.count()) as u64);
        self.common.history.note_heard_again(pass.now);
        let ack_requested = header[8] & 0x80 != 0;
        self.responder.note_middle(&self.common, pass, psn, ack_requested);
        let check_field = self.check_field(None);
        Some(DatagramOutcome {
            is_from_own_peer: self.common.is_peer_native(),
            check_field,
            ..DatagramOutcome::default()
        })
    }

    /// Takes several packets, the first of which fits the template and has this header; the payloads are those of all.
    /// Returns `None` if the first is not the expected one, or if they cannot be executed here; then nothing has
    /// changed, and each is handled alone.
    pub(in crate::transport) fn take_similar_by_template(
        &mut self,
        pass: &Pass<'_>,
        template: &HeaderTemplate,
        first: &Datagram<'_>,
        packets: Similar,
        payloads: impl Bytes,
    ) -> Option<()> {
        let header = first.payload.first_chunk::<BTH_BYTES>()?;
        let psn = Psn::new(u32::from_be_bytes([0, header[9], header[10], header[11]]));
        if !self.responder.may_execute_middle(psn) || !self.common.takes_requests() {
            return None;
        }
        let evidence = self.check_icrc(first).ok()?;
        let bytes = payloads.count() + packets.count as usize * (BTH_BYTES + ICRC_BYTES);
        self.responder.execute_middle(&mut self.common, pass, template.opcode(), payloads)?;
        self.learn(evidence);
        self.common.counters.add(Counter::ReceivedPackets, packets.count.into());
        self.common.counters.add(Counter::ReceivedBytes, bytes as u64);
        self.common.history.note_heard_again(pass.now);
        for index in 0..packets.count {
            self.responder.note_middle(&self.common, pass, psn.plus(index), packets.requests_ack(index));
        }
        Some(())
    }

    /// Drops a packet with a wrong check field. The general path must not check it again: each check of a standard
    /// peer's packet may count a doubt ([`HiddenFields::Usual`]).
    ///
    /// [`HiddenFields::Usual`]: crate::transport::path::HiddenFields::Usual
    #[cold]
    fn drop_by_template(&mut self, reason: DropReason) -> DatagramOutcome {
        self.common.counters.add_drop(reason);
        DatagramOutcome {
            is_from_own_peer: self.common.is_peer_native(),
            check_field: self.check_field(Some(reason)),
            ..DatagramOutcome::dropped(reason)
        }
    }
}
