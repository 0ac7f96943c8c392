//! Request packets that were already executed or refused.

use std::time::Duration;

use super::response_queue::SHORT_RESPONSE_BYTES;
use super::{Common, Pass, Responder};
use crate::transport::marks::Marking;
use crate::transport::requester::timeout_duration;
use crate::types::{Counter, DropReason, Psn, QueuePairState, Time};
use crate::wire::{Opcode, Packet, Syndrome};

/// The usual transport timeout, code 14, for ends that have none because they only respond.
const USUAL_TIMEOUT: Duration = Duration::from_nanos(4_096 << 14);

/// A READ that was repeated because nothing of its response had arrived.
#[derive(Clone, Copy)]
pub(super) struct RepeatedRead {
    psn: Psn,
    /// Times of the first and of the latest repetition.
    first: Time,
    last: Time,
}

impl Responder {
    /// Handles a packet that was already executed: a SEND or WRITE is acknowledged (IBTA C9-105), a READ is read again,
    /// an atomic gets its first result (`rxe_resp.c`, `duplicate_request`).
    pub(in crate::transport) fn handle_duplicate(
        &mut self,
        common: &mut Common,
        pass: &Pass<'_>,
        packet: &Packet<'_>,
        bytes: usize,
    ) -> Result<(), DropReason> {
        common.count(Counter::DuplicateRequest);
        let psn = packet.headers.bth.psn;
        let (opcode, named) = (packet.headers.bth.opcode, packet.headers.xrc_srq);
        if opcode != Opcode::RC_READ_REQUEST {
            self.responses.earn(bytes);
        }
        let found = match (opcode, packet.headers.reth) {
            (Opcode::RC_READ_REQUEST, Some(reth)) => {
                let in_parts = common.accepts_gap_runs();
                if self.responses.is_whole_read(psn, &reth, named) {
                    self.note_repeated_read(common, psn, pass.now);
                }
                self.responses.repeat_read(pass.now, psn, reth, named, common.mtu_bytes(), in_parts)
            }
            (Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD, _) => self.responses.repeat_atomic(psn, named),
            (Opcode::RC_ATOMIC_WRITE | Opcode::RC_FLUSH, _) => {
                self.responses.repeat_empty(psn, self.message_count());
                true
            }
            // A NAK that lists the gaps acknowledges the same packets.
            _ if self.has_gap() && common.sends_gap_runs() => {
                self.report_gap(common);
                true
            }
            _ => {
                self.responses.acknowledge_again(self.message_count(), pass.now);
                true
            }
        };
        if found { Ok(()) } else { Err(DropReason::StaleDuplicate) }
    }

    /// Notes a READ that was repeated because nothing of its response has arrived. If this continues for the transport
    /// timeout, the path seems to lose ECT packets. An earlier repetition is a probe, which may leave before a response
    /// can arrive. Only one of several READs is watched, as long as it is repeated.
    #[cold]
    fn note_repeated_read(&mut self, common: &Common, psn: Psn, now: Time) {
        let Some(path) = common.path.as_ref().filter(|path| path.traffic_class.get().marking() == Marking::Untested)
        else {
            return;
        };
        let timeout = common.attributes.timeout.and_then(timeout_duration).unwrap_or(USUAL_TIMEOUT);
        let begun = RepeatedRead { psn, first: now, last: now };
        let watched = self.repeated_read.get_or_insert_with(|| Box::new(begun));
        if watched.psn == psn {
            watched.last = now;
        } else if now >= watched.last + timeout {
            **watched = begun;
        }
        if now >= watched.first + timeout {
            path.note_marking(Marking::note_silence);
        }
    }

    /// Repeats the refusal. In the error state only the refused packet gets a response, the same one as before. A READ
    /// whose response broke off may be requested again from an earlier packet that the peer lacks (IBTA 9.4.4): then
    /// that packet is refused.
    pub(in crate::transport) fn repeat_refusal(
        &mut self,
        common: &Common,
        packet: &Packet<'_>,
        bytes: usize,
    ) -> Result<(), DropReason> {
        let psn = packet.headers.bth.psn;
        let read = packet.headers.reth.filter(|_| packet.headers.bth.opcode == Opcode::RC_READ_REQUEST);
        let asked_for = read.map_or(0, |reth| reth.length.div_ceil(common.mtu_bytes()));
        match self.refused {
            Some((refused, code)) if !refused.is_before(psn) && common.state == QueuePairState::Error => {
                let refused = if refused.is_within(psn, asked_for) { psn } else { refused };
                // A peer that repeats faster than responses leave does not get one each time.
                self.responses.earn(bytes);
                if self.responses.takes_empty() && self.responses.spend(SHORT_RESPONSE_BYTES) {
                    self.responses.push_nak(refused, Syndrome::Nak(code), self.message_count());
                }
                Ok(())
            }
            _ => Err(DropReason::WrongState),
        }
    }
}
