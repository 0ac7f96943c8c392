//! Responses: what they acknowledge, refuse, or report as missing.

use rdma_verbs::types::{Psn, RNR_TIMER_MICROSECONDS};
use rdma_verbs::wire::{Headers, NakCode, Syndrome};

use super::flow::{Arrival, Flow, PeerReport, keep_line, short, tells_of_loss};
use super::request::{Ending, Event, Kind, Request};
use super::sequence::Continuation;
use super::source::Direction;

/// Requests with an acknowledgement behind a READ without one, after which its response is given up.
const MOST_BEHIND: usize = 256;

impl Flow {
    /// Takes a response to a request of this flow: a packet of its partner.
    pub(super) fn response(&mut self, arrival: &Arrival<'_>, ended: &mut Vec<Request>) {
        // The requester knows what arrives, not what was sent to it.
        if arrival.direction == Direction::Outbound && self.has[Direction::Outbound as usize] {
            return;
        }
        let Headers { bth, aeth, .. } = arrival.headers;
        let found = self.find(bth.psn);
        if let Some(index) = found {
            keep_line(&mut self.waiting[index], arrival, false);
            if let Some(comment) = arrival.comment.filter(|comment| tells_of_loss(comment)) {
                let event = Event::Dropped { psn: bth.psn, comment: format!("response {}", short(comment)) };
                self.waiting[index].add(event);
                return;
            }
        } else if self.waiting.is_empty() {
            return;
        }
        if bth.opcode.is_read_response() {
            self.read_response(found, arrival, ended);
            return;
        }
        match aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::Ack { .. }) => {
                // The native extension reports missing packets in the payload.
                let report = (arrival.bytes > 0).then_some(PeerReport::Gap);
                self.acknowledge(bth.psn, arrival, report, ended);
            }
            Some(Syndrome::ReceiverNotReady { timer }) => {
                self.acknowledge(bth.psn.minus(1), arrival, Some(PeerReport::ReceiverNotReady), ended);
                let microseconds = RNR_TIMER_MICROSECONDS[usize::from(timer & 31)];
                self.on(bth.psn, |request| request.add(Event::ReceiverNotReady { microseconds, times: 1 }));
            }
            Some(Syndrome::Nak(NakCode::SequenceError)) => {
                self.acknowledge(bth.psn.minus(1), arrival, Some(PeerReport::Gap), ended);
                self.on(bth.psn, |request| request.add(Event::SequenceNak { psn: bth.psn }));
            }
            Some(Syndrome::Nak(code)) => {
                self.acknowledge(bth.psn.minus(1), arrival, None, ended);
                self.refuse(bth.psn, arrival.time, code, ended);
            }
            Some(Syndrome::Reserved(_)) | None => {}
        }
    }

    /// Changes the request that contains this number.
    fn on(&mut self, psn: Psn, change: impl FnOnce(&mut Request)) {
        if let Some(index) = self.find(psn) {
            change(&mut self.waiting[index]);
        }
    }

    /// Acknowledges everything up to this number.
    fn acknowledge(&mut self, psn: Psn, arrival: &Arrival<'_>, report: Option<PeerReport>, ended: &mut Vec<Request>) {
        let original = arrival.headers.atomic_ack;
        let from = self.passed;
        while let Some(request) = self.waiting.get_mut(self.passed) {
            let Some(end) = request.end.filter(|end| !psn.is_before(*end)) else { break };
            let is_its_result = end == psn && original.is_some();
            if is_its_result {
                request.original = original;
                request.response_packets += 1;
                request.response_bytes = 8;
            }
            if !request.kind.has_result() || is_its_result {
                request.ending.get_or_insert(Ending::Done(arrival.time));
            }
            self.passed += 1;
        }
        if let Some(index) = self.find(psn).filter(|index| *index < from && original.is_some()) {
            // The result of an atomic that an acknowledgement has passed.
            let request = &mut self.waiting[index];
            request.original = original;
            request.ending.get_or_insert(Ending::Done(arrival.time));
        }
        self.report = report.or(if self.passed > from { None } else { self.report });
        self.pop_ended(ended);
    }

    fn pop_ended(&mut self, ended: &mut Vec<Request>) {
        while let Some(front) = self.waiting.front() {
            if front.ending.is_none() && self.passed <= MOST_BEHIND {
                break;
            }
            self.pop(Ending::ResponseIncomplete, ended);
        }
    }

    fn read_response(&mut self, found: Option<usize>, arrival: &Arrival<'_>, ended: &mut Vec<Request>) {
        let bth = arrival.headers.bth;
        if bth.opcode.is_first() || bth.opcode.is_middle() {
            self.learn_mtu(arrival.bytes);
        }
        // It acknowledges all requests before this one (IBTA 9.7.5.1.2).
        if let Some(index) = found {
            let first = self.waiting[index].first;
            let length = self.waiting.len();
            self.acknowledge(first.minus(1), arrival, None, ended);
            let index = index.saturating_sub(length - self.waiting.len());
            let mtu = self.mtu;
            let Some(request) = self.waiting.get_mut(index).filter(|request| request.first == first) else { return };
            let is_new = request.responses.take(bth.psn, 1, false) != Continuation::Again;
            request.response_packets += u32::from(is_new);
            request.response_bytes += if is_new { u64::from(arrival.bytes) } else { 0 };
            // If requests behind it are missing, the beginning of the next one was no sign of its end.
            if request.kind == Kind::Read
                && let (Some(mtu), Some(reth)) = (mtu, request.headers.reth)
            {
                request.end = Some(first.plus(reth.length.div_ceil(mtu).clamp(1, 1 << 23) - 1));
            }
            if bth.opcode.is_last() || bth.opcode.is_only() {
                request.end.get_or_insert(bth.psn);
            }
            if request.end.is_some_and(|end| request.responses.is_complete(end)) {
                request.ending.get_or_insert(Ending::Done(arrival.time));
                self.passed += usize::from(self.passed == index);
                self.report = None;
                self.pop_ended(ended);
            }
        }
    }

    /// Ends the request that contains this number, and all after it: the queue pair enters the error state.
    fn refuse(&mut self, psn: Psn, time: u64, code: NakCode, ended: &mut Vec<Request>) {
        let Some(index) = self.find(psn) else { return };
        for request in self.waiting.range_mut(..index) {
            request.ending.get_or_insert(Ending::ResponseIncomplete);
        }
        self.waiting[index].ending.get_or_insert(Ending::Refused(time, code));
        while !self.waiting.is_empty() {
            self.pop(Ending::AfterRefusal, ended);
        }
    }

    /// Whether the number may be that of a response to one of its requests.
    pub(super) fn expects(&self, psn: Psn) -> bool {
        self.find(psn).is_some()
    }

    /// Whether a sequence ends exactly before this number's successor: the packet that was sent last.
    pub(super) fn sent_last(&self, psn: Psn) -> bool {
        self.sequences.iter().any(|sequence| sequence.next == Some(psn.plus(1)))
    }
}
