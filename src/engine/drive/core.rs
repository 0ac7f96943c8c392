//! The state that a shard's lock guards, and what leaves it.

use std::time::Duration;

use super::connections::Connections;
use crate::cm::{HeldRequest, Outgoing};
use crate::engine::net::{Link, Sent};
use crate::engine::share::Route;
use crate::memory::MemoryView;
use crate::transport::{
    AckRelease, Datagram, Endpoint, MANAGEMENT_BUFFER_BYTES, ManagementPath, Medium, Transmit, UdpSink,
};
use crate::types::{Qpn, QueuePairReport, Time};

/// Delay before retrying after the kernel's send buffer was full.
const SEND_RETRY: Duration = Duration::from_micros(100);
const LONG_PASS_SENDS: usize = 4;

/// Result of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Progress {
    /// Whether something arrived or was sent.
    pub(super) worked: bool,
    /// Whether a WRITE without a completion ended.
    pub(super) wrote: bool,
    /// Whether a bound was reached: there is more to do at once.
    pub(super) has_more: bool,
    /// Whether it may have taken long enough to make the time read before it stale.
    pub(super) was_long: bool,
    /// Time of the next pass that deadlines require.
    pub(super) next_deadline: Option<Time>,
}

/// The next send.
enum Next {
    /// There is none.
    Nothing,
    /// It is in the buffer.
    Written(Transmit),
    /// It has left through shared memory.
    Left,
}

/// State guarded by the lock.
pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    pub(crate) connections: Connections,
    pub(super) link: Link,
    pub(super) buffer: Box<[u8]>,
    /// A packet or burst in the buffer that the kernel had no room for, and the time of the retry.
    pub(super) unsent: Option<(Transmit, Time)>,
    /// When queue pairs that wait for room in rings try again.
    pub(super) ring_retry: Option<Time>,
    /// The last packet was a management datagram.
    pub(super) was_management: bool,
}

impl Core {
    /// Sends until nothing is left, the bound is reached, or the kernel accepts no more. Queue pairs whose ring is full
    /// wait, and hold no others back.
    pub(super) fn transmit(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        max_calls: usize,
        release: AckRelease,
        progress: &mut Progress,
    ) {
        if self.ring_retry.is_some_and(|retry_at| retry_at <= now) {
            self.ring_retry = None;
            self.endpoint.resume_stalled();
        }
        self.transmit_ready(now, memory, max_calls, release, progress);
        if self.ring_retry.is_none() && self.endpoint.has_stalled() {
            self.ring_retry = Some(now + self.link.memory_links().until_retry(now));
        }
    }

    fn transmit_ready(
        &mut self,
        now: Time,
        memory: &MemoryView<'_>,
        max_calls: usize,
        release: AckRelease,
        progress: &mut Progress,
    ) {
        for calls in 0..max_calls {
            progress.was_long |= calls >= LONG_PASS_SENDS;
            let transmit = match self.unsent {
                Some((_, retry_at)) if retry_at > now => return,
                Some((transmit, _)) => transmit,
                None => match self.poll_transmit(now, memory, release) {
                    Next::Written(transmit) => transmit,
                    Next::Left => {
                        progress.worked = true;
                        continue;
                    }
                    Next::Nothing => {
                        progress.has_more |= self.endpoint.has_more_to_send();
                        return;
                    }
                },
            };
            self.unsent = None;
            match self.link.send(&transmit, &self.buffer[..transmit.length]) {
                Sent::Full => {
                    self.unsent = Some((transmit, now + SEND_RETRY));
                    return;
                }
                Sent::Accepted | Sent::Refused => progress.worked = true,
            }
        }
        progress.has_more = true;
    }

    /// Writes the next packet or burst into the buffer, or into shared memory. Management datagrams alternate with the
    /// packets of queue pairs: neither a load nor a flood of requests stops the other.
    #[inline]
    fn poll_transmit(&mut self, now: Time, memory: &MemoryView<'_>, release: AckRelease) -> Next {
        let is_turn = !std::mem::take(&mut self.was_management) && self.connections.has_outputs();
        if is_turn && let Some(transmit) = self.poll_management() {
            self.was_management = true;
            return Next::Written(transmit);
        }
        match self.poll_endpoint(now, memory, release) {
            Next::Nothing if self.connections.has_outputs() => {
                self.poll_management().map_or(Next::Nothing, Next::Written)
            }
            next => next,
        }
    }

    #[inline]
    fn poll_endpoint(&mut self, now: Time, memory: &MemoryView<'_>, release: AckRelease) -> Next {
        let Some(memory_links) = self.link.memory_sinks() else {
            let transmit = self.endpoint.poll_transmit(now, memory, &mut self.buffer, release);
            return transmit.map_or(Next::Nothing, Next::Written);
        };
        let mut written = None;
        let buffer = UdpSink::new(&mut self.buffer, self.endpoint.max_segments(), &mut written);
        let has_sent =
            self.endpoint.poll_transmit_into(now, memory, &mut memory_links.with_buffer(now, buffer), release);
        match written {
            Some(transmit) => Next::Written(transmit),
            None if has_sent => Next::Left,
            None => Next::Nothing,
        }
    }

    #[cold]
    fn poll_management(&mut self) -> Option<Transmit> {
        while let Some(outgoing) = self.connections.poll_output() {
            let Some(source_port) = self.link.port_of(outgoing.source) else {
                self.connections.note_unsendable(outgoing.source, outgoing.destination);
                continue;
            };
            let Outgoing { source, destination, traffic_class, bytes, .. } = outgoing;
            let path = ManagementPath { source, source_port, destination, traffic_class };
            return Some(self.endpoint.management().write(&path, &bytes, &mut self.buffer));
        }
        None
    }

    /// Hands the datagrams of queue pair 1 to the connection manager.
    #[cold]
    pub(super) fn take_management(&mut self, now: Time) {
        while let Some(datagram) = self.endpoint.management().poll_arrival() {
            self.connections.handle_datagram(now, &datagram);
        }
    }

    /// Passes the requests that wait for a listener to the processes that listen by now. Those of this process go to
    /// its connection manager, which knows its listeners and rejects a request whose time is over.
    pub(super) fn search_held(&mut self, now: Time) {
        // Each of them is due later when it is returned.
        while let Some(held) = self.connections.poll_held(now) {
            match self.route_held(&held) {
                Route::Forwarded => {}
                // A response of this process would end a connection that the other one may accept.
                Route::Lost if held.is_over(now) => {}
                _ => self.connections.return_held(now, held),
            }
        }
    }

    #[cold]
    fn route_held(&mut self, held: &HeldRequest) -> Route {
        let HeldRequest { source, destination, traffic_class, bytes, .. } = held;
        let (source, destination, traffic_class) = (*source, *destination, *traffic_class);
        let Some(source_port) = self.link.port_of(destination) else { return Route::Here };
        let mut buffer = [0; MANAGEMENT_BUFFER_BYTES];
        let path = ManagementPath { source, source_port, destination, traffic_class };
        let length = self.endpoint.management().write(&path, bytes, &mut buffer).length;
        self.link.route_held(&Datagram {
            source,
            destination,
            source_port,
            segment_index: 0,
            hop_limit: None,
            traffic_class: Some(traffic_class),
            payload: &buffer[..length],
            medium: Medium::Network,
        })
    }

    pub(super) fn queue_pair_report(&mut self, now: Time, qpn: Qpn) -> Option<(QueuePairReport, Time)> {
        let (mut report, since) = self.endpoint.queue_pair_report(now, qpn)?;
        self.link.take_errors();
        report.device.merge(self.link.counters());
        report.path_error = report.peer_address().and_then(|peer| self.link.path_error(now, peer, since));
        Some((report, since))
    }

    /// Makes a quick poll instead of a pass: returns whether there is nothing to send and nothing has arrived.
    /// Deadlines wait for the next pass.
    #[inline]
    pub(super) fn is_quiet(&mut self) -> bool {
        self.unsent.is_none()
            && self.endpoint.has_nothing_to_send()
            && !self.connections.has_outputs()
            && self.link.is_quiet()
    }

    /// Returns whether a written packet or burst still waits for room in the kernel.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let retry = self.unsent.as_ref().map(|(_, retry_at)| *retry_at);
        let deadlines = self.endpoint.next_timeout().into_iter().chain(self.connections.next_deadline());
        deadlines.chain(retry).chain(self.ring_retry).min()
    }
}
