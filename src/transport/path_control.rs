//! The congestion controller of a path, and its pacing. All queue pairs of an endpoint with common addresses and DSCP
//! share it: together they are one flow, like a TCP connection.

use std::time::Duration;

use super::congestion::{
    Acked, CongestionControl, CongestionEvent, CongestionFactory, PathFacts, Sent, ShortestRoundTrip,
};
use super::pacing::{self, Account, BURST};
use super::path_measures::{Blocked, PathMeasures};
use crate::types::{Counters, PathReport, Time};

/// Time after READs of this end during which the controller's rate does not count as that of the direction to the peer.
const READ_AGE: Duration = Duration::from_secs(1);
/// READ responses wait at most this long for the pace, and other packets wait at most this long for READ responses,
/// because the peer's probe timer, which expires after 2 ms, runs meanwhile. On a path with random losses the probe
/// comes after 500 µs, which may be too early (`Requester`).
pub(super) const LONGEST_DEBT: Duration = Duration::from_millis(2);
/// Queue pairs that wait for the same time are spread over the latest send's cost divided by this.
const SPREAD_DIVISOR: u32 = 8;

/// Time in which a native peer is expected to empty its full socket, so that as much may arrive again. A slower peer
/// loses packets, and is then sent fewer.
const READ_TIME: Duration = Duration::from_millis(1);
/// Maximum number of bytes in flight to a native peer, whose reorder buffer keeps four times as many behind a gap.
pub(super) const MOST_IN_FLIGHT: u64 = 16 << 20;

/// The number of a reduction of a path's window, counted over all controllers of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Reduction(u64);

/// The effect of a loss or a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CongestionOutcome {
    /// A reduction of the window.
    Reduced(Reduction),
    /// No reduction: the controller considers the loss random.
    ConsideredRandom,
    /// No reduction: an earlier one covers it, or the window does not depend on it.
    Unchanged,
}

/// A path's controller with its pacing account and measurements.
pub(super) struct PathControl {
    controller: Box<dyn CongestionControl>,
    /// The facts from the queue pair that connected last.
    facts: PathFacts,
    shortest: ShortestRoundTrip,
    account: Account,
    /// Duration of the latest send at the pacing rate.
    cost: Duration,
    measures: PathMeasures,
    /// Reductions by the path's previous controllers.
    reductions_before: u64,
    /// When SENDs or WRITEs of this end were last acknowledged; `reads_at`: the same for READs.
    data_at: Option<Time>,
    reads_at: Option<Time>,
}

impl PathControl {
    /// Returns `None` if the path needs no control.
    pub(super) fn new(facts: &PathFacts, factory: &dyn CongestionFactory) -> Option<Self> {
        Some(Self {
            controller: factory.build(facts)?,
            facts: *facts,
            shortest: ShortestRoundTrip::default(),
            account: Account::default(),
            cost: Duration::ZERO,
            measures: PathMeasures::default(),
            reductions_before: 0,
            data_at: None,
            reads_at: None,
        })
    }

    /// Handles another queue pair on the path. Returns whether the controller continues: it does not if the peer turns
    /// out to be native instead of standard, or the reverse.
    pub(super) fn continues_with(&mut self, facts: &PathFacts) -> bool {
        let is_same_kind = facts.is_peer_native == self.facts.is_peer_native;
        if is_same_kind {
            self.facts = *facts;
        }
        is_same_kind
    }

    /// Returns the packets that may be in flight, of all queue pairs together.
    pub(super) fn window_packets(&self) -> u32 {
        self.facts.packets_within(self.controller.window(), self.most_in_flight())
    }

    /// Returns the bytes that the peer's socket can take within a round trip.
    fn most_in_flight(&self) -> u64 {
        let socket = self.facts.socket_bytes;
        if !self.facts.is_peer_native {
            return socket;
        }
        let reads = self.shortest.get().map_or(0, |shortest| (shortest.as_nanos() / READ_TIME.as_nanos()) as u64);
        socket.saturating_mul(reads).min(MOST_IN_FLIGHT).max(socket)
    }

    /// Handles sent packets. Those of one send are not spaced, but delay the next send.
    pub(super) fn note_sent(&mut self, sent: &Sent) {
        if self.measures.is_period_over(sent.now) {
            self.measures.begin_period(sent.now, &self.controller.report());
        }
        self.measures.note_sent(sent, u64::from(self.facts.mtu.bytes()));
        self.controller.on_sent(sent);
        if let Some(rate) = self.controller.pacing_rate() {
            self.pay(sent.now, sent.bytes, rate);
        }
    }

    fn pay(&mut self, now: Time, bytes: u64, rate: u64) {
        self.cost = pacing::cost(bytes, rate);
        self.account.pay(now, self.cost);
    }

    /// Charges sent bytes that are never acknowledged.
    pub(super) fn charge(&mut self, now: Time, bytes: u64) {
        if let Some(rate) = self.known_rate(now) {
            self.pay(now, bytes, rate);
        }
    }

    /// Charges sent READ responses. They leave after `LONGEST_DEBT` in any case; debt beyond that is forgiven, so that
    /// other packets need not wait for it.
    pub(super) fn charge_responses(&mut self, now: Time, bytes: u64) {
        let most = self.account.paid_at().max(now + LONGEST_DEBT);
        self.charge(now, bytes);
        self.account.forgive_after(most);
    }

    /// Returns the rate for packets that are never acknowledged.
    fn known_rate(&self, now: Time) -> Option<u64> {
        let age_of = |at: Option<Time>| at.map(|at| now.saturating_since(at));
        // READ data travels in the opposite direction: its rate says nothing about packets sent here.
        let has_read = age_of(self.reads_at).is_some_and(|age| age < READ_AGE);
        self.controller.known_rate(age_of(self.data_at).filter(|_| !has_read))
    }

    /// Handles an acknowledgement. `is_read`: it is for READ responses.
    pub(super) fn note_acknowledged(&mut self, ack: &Acked, is_read: bool) {
        if ack.bytes > 0 {
            let at = if is_read { &mut self.reads_at } else { &mut self.data_at };
            *at = Some(ack.now);
        }
        if let Some(measured) = ack.round_trip {
            self.shortest.note(ack.now, measured);
        }
        self.measures.note_acknowledged(ack);
        self.controller.on_ack(ack);
    }

    /// Handles a congestion event.
    pub(super) fn note_congestion(&mut self, event: &CongestionEvent) -> CongestionOutcome {
        let before = self.controller.report();
        self.controller.on_congestion(event);
        let after = self.controller.report();
        let is_random = self.measures.note_congestion(event.kind, &before, &after);
        match after.congestion_events > before.congestion_events {
            true => CongestionOutcome::Reduced(self.latest_reduction()),
            false if is_random => CongestionOutcome::ConsideredRandom,
            false => CongestionOutcome::Unchanged,
        }
    }

    /// Undoes a reduction that was unnecessary, unless another one followed.
    pub(super) fn undo_reduction(&mut self, reduction: Reduction) {
        if self.latest_reduction() == reduction {
            self.controller.on_spurious_reduction();
        }
    }

    fn latest_reduction(&self) -> Reduction {
        Reduction(self.reductions_before + self.controller.report().congestion_events)
    }

    /// Returns the packets that may leave in one send.
    pub(super) fn burst_packets(&self) -> u32 {
        self.controller.pacing_rate().map_or(u32::MAX, |rate| self.packets_in_a_burst(rate))
    }

    fn packets_in_a_burst(&self, rate: u64) -> u32 {
        pacing::burst_packets(rate, self.facts.mtu.bytes().into()).min(self.window_packets())
    }

    /// Returns when a queue pair may send the next packet. The order seed and the time give the queue pairs that wait
    /// for the same time a pseudorandom order: otherwise the same one would always be first. Seed 0 adds no wait.
    pub(super) fn next_send_at(&self, order_seed: u32) -> Time {
        let paid_at = self.account.paid_at();
        if order_seed == 0 {
            return paid_at;
        }
        let drawn = (u64::from(order_seed) ^ paid_at.as_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        let most = (self.cost / SPREAD_DIVISOR).as_nanos() as u64;
        paid_at + Duration::from_nanos(most.saturating_mul(drawn) >> 16)
    }

    /// Returns when the next packet that is never acknowledged may leave, and how many may leave in one send; `None` if
    /// there is no rate for them.
    pub(super) fn unacknowledged_allowance(&self, now: Time, order_seed: u32) -> Option<(Time, u32)> {
        self.known_rate(now).map(|rate| (self.next_send_at(order_seed), self.packets_in_a_burst(rate)))
    }

    /// Returns the end of a datagram's wait, if it must wait: once the debt exceeds one send, until everything is paid
    /// for.
    pub(super) fn datagram_waits_until(&mut self, now: Time, order_seed: u32) -> Option<Time> {
        let waits = self.known_rate(now).is_some() && self.account.paid_at() > now + BURST;
        waits.then(|| {
            self.note_awaited(now);
            self.next_send_at(order_seed)
        })
    }

    /// Notes that a sender waits until everything is paid for.
    pub(super) fn note_awaited(&mut self, now: Time) {
        self.account.note_awaited(now);
    }
}

/// Measurements of the path.
impl PathControl {
    /// Takes over the measurements of the path's previous controller.
    pub(super) fn after(mut self, before: Option<Self>) -> Self {
        if let Some(before) = before {
            // One more than the latest number, so that the previous controller's last reduction is not taken for this
            // one's.
            self.reductions_before = before.latest_reduction().0 + 1;
            let Self { controller, measures, .. } = before;
            self.measures = measures;
            self.measures.end_controller(&controller.report());
        }
        self
    }

    /// Counts packets that were retransmitted although they were only late.
    pub(super) fn note_spurious(&mut self, packets: u64) {
        self.measures.note_spurious(packets);
    }

    /// Handles a queue pair that must wait to send.
    pub(super) fn note_blocked(&mut self, now: Time, blocked: Blocked) {
        match blocked {
            Blocked::Window => self.account.forget_awaited(),
            Blocked::Pace(_) => self.note_awaited(now),
        }
        self.measures.note_blocked(now, blocked);
    }

    /// Fills in the controller's report and the measurements.
    pub(super) fn report(&self, now: Time, report: &mut PathReport) {
        let control = self.controller.report();
        report.control = Some(control);
        report.pacing_rate = self.controller.pacing_rate();
        self.measures.report(now, &control, self.shortest.get(), report);
    }

    /// Adds the path's share of a device's counters.
    pub(super) fn add_to(&self, counters: &mut Counters) {
        self.measures.add_to(&self.controller.report(), counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Mtu;

    const PACKET: u64 = 1_024;

    /// A controller, and its own factory, whose window counts down and up from its initial value.
    #[derive(Clone, Copy)]
    struct Fixed {
        window: u64,
        rate: Option<u64>,
    }

    impl CongestionControl for Fixed {
        fn on_sent(&mut self, sent: &Sent) {
            self.window -= sent.bytes;
        }

        fn on_ack(&mut self, ack: &Acked) {
            self.window += ack.bytes;
        }

        fn on_congestion(&mut self, _: &CongestionEvent) {
            self.window = 0;
        }

        fn window(&self) -> u64 {
            self.window
        }

        fn pacing_rate(&self) -> Option<u64> {
            self.rate
        }

        fn known_rate(&self, data_age: Option<Duration>) -> Option<u64> {
            self.rate.filter(|_| data_age.is_some_and(|age| age <= Duration::from_millis(500)))
        }
    }

    impl CongestionFactory for Fixed {
        fn build(&self, _: &PathFacts) -> Option<Box<dyn CongestionControl>> {
            Some(Box::new(*self))
        }
    }

    fn facts(is_peer_native: bool) -> PathFacts {
        PathFacts::new([std::net::Ipv4Addr::LOCALHOST.into(); 2], Mtu::Mtu1024, is_peer_native, 64 * PACKET)
    }

    fn at(microseconds: u64) -> Time {
        Time::from_nanos(1_000_000 + microseconds * 1_000)
    }

    fn sent(microseconds: u64, bytes: u64) -> Sent {
        Sent { now: at(microseconds), bytes, lost: 0, in_flight: bytes }
    }

    #[test]
    fn the_next_send_waits_until_sent_packets_are_paid_for() {
        let fixed = Fixed { window: 64 * PACKET, rate: Some(100_000 * PACKET) };
        let mut control = PathControl::new(&facts(true), &fixed).expect("a controller");
        control.note_sent(&sent(0, PACKET));
        control.note_sent(&sent(0, PACKET / 2));
        assert_eq!(control.next_send_at(0), at(15));
        // Idle time accumulates no credit.
        control.note_sent(&sent(100, PACKET));
        assert_eq!(control.next_send_at(0), at(110));
    }

    fn acknowledged(microseconds: u64) -> Acked {
        Acked { now: at(microseconds), bytes: PACKET, round_trip: None, repetition: None, in_flight: 0 }
    }

    #[test]
    fn unacknowledged_packets_have_a_rate_only_after_recent_data_in_their_direction() {
        let fixed = Fixed { window: 64 * PACKET, rate: Some(100_000 * PACKET) };
        let mut control = PathControl::new(&facts(true), &fixed).expect("a controller");
        control.charge(at(0), PACKET);
        assert_eq!((control.next_send_at(0), control.unacknowledged_allowance(at(0), 0)), (Time::ZERO, None));
        control.note_acknowledged(&acknowledged(10), false);
        control.charge(at(20), PACKET);
        assert_eq!(control.unacknowledged_allowance(at(20), 0), Some((at(30), 6)));
        assert_eq!(control.unacknowledged_allowance(at(500_011), 0), None, "it is too old");
        control.note_acknowledged(&acknowledged(600_000), true);
        control.note_acknowledged(&acknowledged(600_000), false);
        assert_eq!(control.unacknowledged_allowance(at(600_000), 0), None, "READs tell of the other direction");
        control.note_acknowledged(&acknowledged(1_600_000), false);
        assert!(control.unacknowledged_allowance(at(1_600_000), 0).is_some());
    }

    #[test]
    fn another_queue_pair_keeps_the_window_unless_the_kind_of_peer_differs() {
        let fixed = Fixed { window: 32 * PACKET, rate: None };
        let mut control = PathControl::new(&facts(false), &fixed).expect("a controller");
        control.note_sent(&sent(0, 8 * PACKET));
        assert!(control.continues_with(&facts(false)));
        assert_eq!(control.window_packets(), 24);
        assert!(!control.continues_with(&facts(true)));
    }

    #[test]
    fn a_window_is_whole_packets_at_least_one_and_no_more_than_the_socket_takes() {
        for (window, packets) in
            [(0, 1), (1, 1), (1_023, 1), (2_047, 1), (2_048, 2), (64 << 10, 64), (65 << 10, 64), (u64::MAX, 64)]
        {
            let control = PathControl::new(&facts(true), &Fixed { window, rate: None });
            assert_eq!(control.map(|control| control.window_packets()), Some(packets), "{window}");
        }
    }
}
