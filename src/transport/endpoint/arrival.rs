//! The receive path of the endpoint: to the queue pair that a datagram names, or to the members of a group.

use super::Endpoint;
use crate::memory::{MemoryView, SharedPart};
use crate::transport::common::Pass;
use crate::transport::datagram::{CheckField, Datagram, DatagramOutcome, Similar};
use crate::transport::management::{MANAGEMENT_QPN, ManagementQueuePair};
use crate::transport::queue_pair::{HeaderTemplate, QueuePair};
use crate::transport::segments::Bytes;
use crate::types::{Counter, DropReason, Qpn, Time};
use crate::wire::{BTH_BYTES, ICRC_BYTES, Packet};

/// The destination of the last datagram, and the template of those that the fast path takes.
pub(super) struct Arrivals {
    qpn: Qpn,
    slot: u32,
    template: Option<HeaderTemplate>,
}

impl Endpoint {
    /// Handles a datagram that arrived on port 4791.
    pub fn handle_datagram(&mut self, now: Time, memory: &MemoryView<'_>, datagram: &Datagram<'_>) -> DatagramOutcome {
        let outcome = self.handle_arrival(now, memory, datagram);
        self.settle_arrivals(now);
        outcome
    }

    /// Handles one of several datagrams that arrived together. Follow-up work for consecutive datagrams to one queue
    /// pair is done once, when a datagram to another one arrives. [`Endpoint::settle_arrivals`] must follow the last
    /// one, before any other call.
    #[inline]
    pub fn handle_arrival(&mut self, now: Time, memory: &MemoryView<'_>, datagram: &Datagram<'_>) -> DatagramOutcome {
        match self.guard(now, |endpoint| endpoint.take_arrival(now, memory, datagram)) {
            Some(outcome) => outcome,
            None => self.drop_after_panic(),
        }
    }

    #[inline]
    fn take_arrival(&mut self, now: Time, memory: &MemoryView<'_>, datagram: &Datagram<'_>) -> DatagramOutcome {
        if let Some((_, rest)) = datagram.payload.split_first_chunk::<BTH_BYTES>()
            && let Some(outcome) = self.take_by_template(now, memory, datagram, rest)
        {
            return outcome;
        }
        // By reference: a copy would wait for the stores of its fields.
        let parsed = Packet::parse(datagram.payload);
        let packet = match &parsed {
            Ok(packet) => packet,
            Err(reason) => return self.drop_unmatched(now, datagram, None, *reason),
        };
        let bth = &packet.headers.bth;
        if bth.destination == Qpn::MULTICAST && datagram.destination.is_multicast() {
            return self.handle_multicast(now, memory, datagram, packet);
        }
        let slot = match self.arrivals {
            Some(Arrivals { qpn, slot, .. }) if qpn == bth.destination => slot,
            _ => {
                self.settle_arrivals(now);
                let Some(slot) = self.slot_of(bth.destination) else {
                    if bth.destination == MANAGEMENT_QPN && !datagram.destination.is_multicast() {
                        return self.take_management(now, datagram, packet);
                    }
                    return self.drop_unmatched(now, datagram, Some(bth.destination), DropReason::UnknownQueuePair);
                };
                slot
            }
        };
        let pass = self.pass(now, memory);
        let Some(queue_pair) = self.enter(slot) else { return DatagramOutcome::default() };
        let expected = queue_pair.responder.expected();
        let outcome = queue_pair.take(datagram, packet, |queue_pair| queue_pair.handle_packet(&pass, datagram, packet));
        if (datagram.is_marked() || bth.becn) && outcome.dropped.is_none() {
            queue_pair.note_marks(now, datagram, bth.opcode, bth.becn);
        }
        // No template from a duplicate, which is not fully checked.
        let is_executed = queue_pair.responder.expected() != expected;
        let template = if is_executed { queue_pair.header_template(datagram, bth) } else { None };
        let has_overflowed = queue_pair.common.has_overflowed();
        self.arrivals = Some(Arrivals { qpn: bth.destination, slot, template });
        if has_overflowed {
            self.settle_arrivals(now);
        }
        outcome
    }

    /// Takes a datagram whose payload is shared memory but for its first bytes, a private copy of its base transport
    /// header. Returns `None` if it must be copied as a whole, because only the fast path takes it in place.
    #[inline]
    pub(crate) fn take_in_place(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        datagram: &Datagram<'_>,
        rest: SharedPart<'_>,
    ) -> Option<DatagramOutcome> {
        match self.guard(now, |endpoint| endpoint.take_by_template(now, memory, datagram, rest)) {
            Some(outcome) => outcome,
            None => Some(self.drop_after_panic()),
        }
    }

    /// Takes several datagrams that differ in PSN, payload and acknowledgement request: the first has a private copy of
    /// its base transport header, and the payloads, of equal length, are shared memory. Returns false if the first must
    /// be copied as a whole, because only the fast path takes several; then none was taken.
    #[inline]
    pub(crate) fn take_similar(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        first: &Datagram<'_>,
        packets: Similar,
        payloads: SharedPart<'_>,
    ) -> bool {
        let taken =
            self.guard(now, |endpoint| endpoint.take_similar_by_template(now, memory, first, packets, payloads));
        match taken {
            Some(is_taken) => is_taken.is_some(),
            None => {
                self.drop_after_panic();
                true
            }
        }
    }

    #[inline]
    fn take_similar_by_template(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        first: &Datagram<'_>,
        packets: Similar,
        payloads: SharedPart<'_>,
    ) -> Option<()> {
        // Marks are noted packet by packet.
        if first.is_marked() {
            return None;
        }
        let payload = payloads.len() / packets.count as usize;
        let (slot, template) = self.template_for(first, BTH_BYTES + payload + ICRC_BYTES)?;
        let pass = self.pass(now, memory);
        self.enter(slot)?.take_similar_by_template(&pass, &template, first, packets, payloads)
    }

    /// Returns the slot and the template of the last datagram's queue pair, if a packet of this length fits.
    #[inline]
    fn template_for(&self, datagram: &Datagram<'_>, length: usize) -> Option<(u32, HeaderTemplate)> {
        let Some(Arrivals { slot, template: Some(template), .. }) = &self.arrivals else { return None };
        template.fits(datagram, length).then_some((*slot, *template))
    }

    #[inline]
    fn take_by_template(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        datagram: &Datagram<'_>,
        rest: impl Bytes,
    ) -> Option<DatagramOutcome> {
        let (slot, template) = self.template_for(datagram, BTH_BYTES + rest.count())?;
        let pass = self.pass(now, memory);
        let queue_pair = self.enter(slot)?;
        let outcome = queue_pair.take_by_template(&pass, &template, datagram, rest)?;
        if datagram.is_marked() && outcome.dropped.is_none() {
            queue_pair.note_marks(now, datagram, template.opcode(), false);
        }
        Some(outcome)
    }

    #[cold]
    fn take_management(&mut self, now: Time, datagram: &Datagram<'_>, packet: &Packet<'_>) -> DatagramOutcome {
        let bytes = match ManagementQueuePair::check(datagram, packet) {
            Ok(bytes) => bytes,
            Err(reason) => return self.drop_datagram(reason),
        };
        if let Some(message) = self.discovery_in(bytes) {
            return self.take_discovery(now, datagram, &message);
        }
        if let Err(reason) = self.management.take(datagram, bytes) {
            return self.drop_datagram(reason);
        }
        self.counters.add(Counter::ReceivedPackets, 1);
        self.counters.add(Counter::ReceivedBytes, datagram.payload.len() as u64);
        DatagramOutcome::default()
    }

    /// Does the follow-up work for the datagrams that [`Endpoint::handle_arrival`] took.
    #[inline]
    pub fn settle_arrivals(&mut self, now: Time) {
        if let Some(Arrivals { slot, .. }) = self.arrivals.take() {
            self.guard(now, |endpoint| endpoint.follow_up(now, slot));
        }
    }

    /// Hands a packet to a queue pair and does the follow-up work.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        slot: u32,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
        take: impl FnOnce(&mut QueuePair, &Pass<'_>) -> Result<(), DropReason>,
    ) -> DatagramOutcome {
        let pass = self.pass(now, memory);
        let taken = self.guard(now, |endpoint| {
            let queue_pair = endpoint.enter(slot)?;
            Some(queue_pair.take(datagram, packet, |queue_pair| take(queue_pair, &pass)))
        });
        self.guard(now, |endpoint| endpoint.follow_up(now, slot));
        match taken {
            Some(outcome) => outcome.unwrap_or_default(),
            None => self.drop_after_panic(),
        }
    }

    /// Drops a datagram on which its queue pair panicked. Its check field may contain the mask, which a capture must
    /// not show.
    #[cold]
    fn drop_after_panic(&mut self) -> DatagramOutcome {
        let reason = DropReason::WrongState;
        self.counters.add_drop(reason);
        DatagramOutcome { dropped: Some(reason), check_field: CheckField::Withheld, ..DatagramOutcome::default() }
    }

    pub(super) fn drop_datagram(&mut self, reason: DropReason) -> DatagramOutcome {
        self.counters.add_drop(reason);
        DatagramOutcome::dropped(reason)
    }

    /// Drops a datagram that belongs to no queue pair.
    pub(super) fn drop_unmatched(
        &mut self,
        now: Time,
        datagram: &Datagram<'_>,
        qpn: Option<Qpn>,
        reason: DropReason,
    ) -> DatagramOutcome {
        self.unmatched.note(now, datagram.source, qpn, reason);
        self.drop_datagram(reason)
    }
}
