//! Faults of the machine under a host: clock jumps, pauses and a small socket buffer.

use std::collections::VecDeque;
use std::time::Duration;

use super::Random;
use super::network::Flight;
use crate::types::Time;

/// A socket's receive buffer and its reader's delay.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// Its capacity in packets; more are lost.
    pub packets: usize,
    /// Mean time from the first packet in the buffer to the read; the actual time is uniform from half to one and a
    /// half of it. Without that jitter, senders that share a queue stay in step and the same ones always find it full.
    pub wake: Duration,
}

/// Capacity of a stopped host's socket if none is configured: a default receive buffer of small packets.
const PACKETS_WHILE_STOPPED: usize = 200;

/// The machine of one host.
#[derive(Default)]
pub(super) struct Machine {
    /// How far its clock is ahead of the simulation's.
    pub(super) ahead: Duration,
    /// End of its pause.
    stopped_until: Time,
    pub(super) socket: Option<Socket>,
    /// Packets in the socket's buffer.
    pub(super) waiting: VecDeque<Flight>,
    /// Time of the next read.
    pub(super) reads_at: Option<Time>,
    /// Its timers expire at multiples of this. Zero: exactly when due, and it may send at any time.
    pub(super) timer_period: Duration,
    /// Time of its last activity.
    pub(super) active_at: Time,
}

impl Machine {
    pub(super) fn is_stopped(&self, now: Time) -> bool {
        now < self.stopped_until
    }

    /// Pauses until then. A due read is postponed too, or time would stand still.
    pub(super) fn stop(&mut self, until: Time) {
        self.stopped_until = until;
        self.reads_at = self.reads_at.map(|at| at.max(until));
    }

    /// Returns the host's own time.
    pub(super) fn clock(&self, now: Time) -> Time {
        now + self.ahead
    }

    /// Converts a deadline of the host to the simulation's time.
    pub(super) fn due(&self, deadline: Time) -> Time {
        let ahead = self.ahead.as_nanos() as u64;
        let due = deadline.as_nanos().saturating_sub(ahead);
        let period = self.timer_period.as_nanos().max(1) as u64;
        Time::from_nanos(due.next_multiple_of(period)).max(self.stopped_until)
    }

    /// Whether it may send now: it is active now, or its timers are exact.
    pub(super) fn may_send(&self, now: Time) -> bool {
        self.timer_period.is_zero() || self.active_at == Time::ZERO || self.active_at == now
    }

    /// Puts an arriving packet into the buffer. Returns it if it can be read at once; `Err` if the buffer is full.
    pub(super) fn arrive(&mut self, now: Time, flight: Flight, random: &mut Random) -> Result<Option<Flight>, ()> {
        let wake = self.socket.map_or(Duration::ZERO, |socket| socket.wake);
        let wake = wake / 2 + Duration::from_nanos(random.below(wake.as_nanos() as u64 + 1));
        let reads_at = (now + wake).max(self.stopped_until);
        if reads_at <= now && self.waiting.is_empty() {
            return Ok(Some(flight));
        }
        let room = self.socket.map_or(PACKETS_WHILE_STOPPED, |socket| socket.packets);
        if self.waiting.len() >= room {
            return Err(());
        }
        self.waiting.push_back(flight);
        let due = self.reads_at.get_or_insert(reads_at);
        *due = (*due).max(self.stopped_until);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::transport::Medium;

    #[test]
    fn coarse_timers_go_off_late_and_nothing_is_sent_in_between() {
        let at = |microseconds: u64| Time::from_nanos(microseconds * 1_000);
        let mut machine = Machine { timer_period: Duration::from_micros(50), ..Machine::default() };
        assert_eq!([49, 50, 51, 100].map(|due| machine.due(at(due))), [50, 50, 100, 100].map(at));
        assert!(machine.may_send(at(1)), "it has not begun");
        machine.active_at = at(50);
        assert!(machine.may_send(at(50)) && !machine.may_send(at(51)));
        let exact = Machine { active_at: at(50), ..Machine::default() };
        assert!(exact.due(at(51)) == at(51) && exact.may_send(at(51)));
    }

    /// Seed 52,788 of the long campaign hung: the reader of a socket was due while its host was stopped.
    #[test]
    fn a_stopped_host_reads_its_socket_when_it_goes_on() {
        let socket = Socket { packets: 25, wake: Duration::from_micros(10) };
        let mut machine = Machine { socket: Some(socket), ..Machine::default() };
        let (now, until) = (Time::from_nanos(1_000), Time::from_nanos(500_000));
        let flight = Flight {
            from: 1,
            to: 0,
            source: IpAddr::from([127, 0, 0, 1]),
            source_port: 50_000,
            segment_index: 0,
            traffic_class: 0,
            bytes: vec![0; 20],
            medium: Medium::Network,
            is_corrupt: false,
            is_forged: false,
        };
        assert!(machine.arrive(now, flight, &mut Random::new(1)).is_ok_and(|at_once| at_once.is_none()));
        machine.stop(until);
        assert_eq!(machine.reads_at, Some(until));
    }
}
