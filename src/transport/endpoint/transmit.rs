//! The transmit path of the endpoint: queue pairs with something to send, one after the other.

use super::Endpoint;
use crate::memory::MemoryView;
use crate::transport::burst::BurstSink;
use crate::transport::datagram::{AckRelease, Transmit};
use crate::transport::loop_bound::LoopBound;
use crate::transport::udp_sink::UdpSink;
use crate::types::Time;

/// Maximum number of local requests, for which no packet is sent, in one call.
const MOST_LOCAL_REQUESTS: usize = 1_024;

impl Endpoint {
    /// Returns when [`Endpoint::handle_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Whether acknowledgements wait for the application's reply.
    pub fn has_held_acknowledgements(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether nothing waits to be sent, held acknowledgements included. Only a datagram, a command, a doorbell or a
    /// deadline changes that.
    pub fn has_nothing_to_send(&self) -> bool {
        self.ready.is_empty() && self.held.is_empty() && self.stalled.is_empty()
    }

    /// Whether queue pairs wait for room in the medium to their destinations: each of them once, until
    /// [`Endpoint::resume_stalled`].
    pub(crate) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Lets the queue pairs that wait for room try again.
    pub(crate) fn resume_stalled(&mut self) {
        self.ready.extend(self.stalled.drain(..));
    }

    /// Whether [`Endpoint::poll_transmit`] returned `None` although it may find more: it had executed many local
    /// requests, and other threads may post them as fast.
    pub fn has_more_to_send(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Writes the next datagram, or a send of several to one destination, into `buffer` (at least 4,200 bytes).
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        buffer: &mut [u8],
        release: AckRelease,
    ) -> Option<Transmit> {
        if !self.has_ready(now, release) {
            return None;
        }
        let mut sent = None;
        self.transmit(now, memory, &mut UdpSink::new(buffer, self.config.max_segments, &mut sent));
        sent
    }

    /// Returns the maximum number of datagrams in one segmented send.
    pub fn max_segments(&self) -> usize {
        self.config.max_segments
    }

    /// Gives the sink the next send, if there is one.
    pub fn poll_transmit_into(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        sink: &mut impl BurstSink,
        release: AckRelease,
    ) -> bool {
        self.has_ready(now, release) && self.transmit(now, memory, sink)
    }

    /// Whether queue pairs may have something to send.
    #[inline]
    fn has_ready(&mut self, now: Time, release: AckRelease) -> bool {
        if release == AckRelease::Now {
            // A panic of one queue pair must not hold the acknowledgements of the others.
            while !self.held.is_empty() {
                self.guard(now, Self::release_held);
            }
        }
        !self.ready.is_empty()
    }

    fn transmit(&mut self, now: Time, memory: &MemoryView<'_>, sink: &mut impl BurstSink) -> bool {
        // Each panic ends a queue pair.
        let mut bound = LoopBound::new("panics", self.queue_pairs.len());
        // A send counts even if a panic follows it.
        let mut has_sent = false;
        while !has_sent && !self.ready.is_empty() {
            let is_done =
                self.guard(now, |endpoint| endpoint.transmit_ready(now, memory, sink, &mut has_sent)).is_some();
            if is_done {
                break;
            }
            bound.step();
        }
        has_sent
    }

    fn transmit_ready(&mut self, now: Time, memory: &MemoryView<'_>, sink: &mut impl BurstSink, has_sent: &mut bool) {
        let pass = self.pass(now, memory);
        let mut local_left = MOST_LOCAL_REQUESTS;
        // A queue pair with nothing to send is listed again at most once: when it gets a grant, or when a completion
        // queue has overflowed. One that executes a local request counts against `MOST_LOCAL_REQUESTS`.
        let mut bound = LoopBound::new("transmit", 4 * self.queue_pairs.len() + MOST_LOCAL_REQUESTS);
        while let Some(slot) = self.ready.pop_front() {
            bound.step();
            let path = self.datagram_path(slot);
            let Some(queue_pair) = self.enter(slot) else { continue };
            queue_pair.listed = false;
            let filled = queue_pair.fill(&pass, sink, path.as_deref());
            *has_sent = filled.has_sent;
            self.note_wanted_key(slot);
            self.update_deadlines(now, slot);
            if filled.is_stalled {
                self.stall(slot);
            } else if !filled.is_exhausted {
                self.list_sender(now, slot);
            }
            self.serve_fair_queue(now, slot);
            if filled.has_sent {
                return;
            }
            self.running = None;
            local_left -= usize::from(!filled.is_exhausted);
            if local_left == 0 {
                return;
            }
        }
    }

    /// Sets a queue pair aside that finds no room. It counts as listed meanwhile.
    #[cold]
    fn stall(&mut self, slot: u32) {
        if let Some(queue_pair) = self.at(slot).filter(|queue_pair| !queue_pair.listed) {
            queue_pair.listed = true;
            self.stalled.push(slot);
        }
    }

    fn release_held(&mut self) {
        // Each is listed at most once, and none is added here.
        let mut bound = LoopBound::new("release", self.held.len());
        while let Some(slot) = self.held.pop() {
            bound.step();
            if let Some(queue_pair) = self.enter(slot) {
                queue_pair.held = false;
                queue_pair.responder.release_acknowledgement();
                self.list(slot);
            }
            self.running = None;
        }
    }
}
