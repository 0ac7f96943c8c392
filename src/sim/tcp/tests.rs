//! Both ends together, on a link whose faults are chosen segment by segment.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ack, Receiver, Sender, TcpConfig};
use crate::types::Time;

const MS: Duration = Duration::from_millis(1);
const ROUND_TRIP: Duration = Duration::from_millis(10);
const SEGMENT_BYTES: u32 = 1_000;

/// A transmission of a segment; `number` counts its retransmissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sent {
    at: Time,
    sequence: u64,
    number: usize,
}

/// Returns the extra delay of a transmission; `None`: it is lost.
type Fault = fn(&Sent) -> Option<Duration>;

#[derive(Debug)]
enum Cargo {
    Segment(u64),
    Ack(Ack),
}

struct Link {
    now: Time,
    sender: Sender,
    receiver: Receiver,
    fault: Fault,
    sent: Vec<Sent>,
    flights: BTreeMap<(Time, usize), Cargo>,
    order: usize,
}

impl Link {
    fn new(window_segments: u32, fault: Fault) -> Self {
        let receive_window_bytes = window_segments * SEGMENT_BYTES;
        let config = TcpConfig { segment_bytes: SEGMENT_BYTES, receive_window_bytes, ..TcpConfig::default() };
        let (sender, receiver) = (Sender::new(Time::ZERO, &config), Receiver::default());
        let (now, sent, flights) = (Time::ZERO, Vec::new(), BTreeMap::new());
        Self { now, sender, receiver, fault, sent, flights, order: 0 }
    }

    fn launch(&mut self, late: Duration, cargo: Cargo) {
        self.order += 1;
        self.flights.insert((self.now + ROUND_TRIP / 2 + late, self.order), cargo);
    }

    fn send(&mut self) {
        while let Some(sequence) = self.sender.poll_transmit(self.now) {
            let number = self.sent.iter().filter(|sent| sent.sequence == sequence).count();
            let sent = Sent { at: self.now, sequence, number };
            self.sent.push(sent);
            if let Some(late) = (self.fault)(&sent) {
                self.launch(late, Cargo::Segment(sequence));
            }
        }
    }

    fn run(&mut self, end: Duration) {
        let end = Time::ZERO + end;
        self.send();
        loop {
            let arrival = self.flights.first_key_value().map(|((at, _), _)| *at);
            let next = Time::earliest([arrival, self.sender.next_timeout(), self.receiver.next_timeout()]);
            let Some(next) = next.filter(|next| *next < end) else { break };
            self.now = next;
            let ack = match self.flights.first_entry().filter(|entry| entry.key().0 <= next).map(|entry| entry.remove())
            {
                Some(Cargo::Segment(sequence)) => self.receiver.handle_segment(next, sequence),
                Some(Cargo::Ack(ack)) => {
                    self.sender.handle_ack(next, &ack);
                    None
                }
                None => {
                    self.sender.handle_timeout(next);
                    self.receiver.handle_timeout(next)
                }
            };
            if let Some(ack) = ack {
                self.launch(Duration::ZERO, Cargo::Ack(ack));
            }
            self.send();
        }
    }

    /// Returns all retransmissions.
    fn again(&self) -> Vec<Sent> {
        self.sent.iter().filter(|sent| sent.number > 0).copied().collect()
    }

    fn first_sent(&self, sequence: u64) -> Time {
        self.sent.iter().find(|sent| sent.sequence == sequence).expect("it was sent").at
    }
}

const ON_TIME: Option<Duration> = Some(Duration::ZERO);

#[test]
fn a_stream_without_losses_fills_the_receive_window() {
    let mut link = Link::new(50, |_| ON_TIME);
    link.run(Duration::from_secs(1));
    assert!(link.again().is_empty());
    // 97 round trips of 50, less what slow start takes.
    let delivered = link.receiver.delivered();
    assert!((4_700..5_000).contains(&delivered), "{delivered}");
    assert_eq!((link.sender.timeouts(), link.sender.probes()), (0, 0));
}

/// The last segment of eight is lost once, and a probe repairs it.
#[test]
fn a_stream_ends_when_all_is_delivered() {
    let config = TcpConfig { segment_bytes: SEGMENT_BYTES, most_bytes: Some(7_500), ..TcpConfig::default() };
    let mut link = Link::new(50, |sent| if sent.sequence == 7 && sent.number == 0 { None } else { ON_TIME });
    link.sender = Sender::new(Time::ZERO, &config);
    link.run(Duration::from_secs(1));
    assert_eq!((link.receiver.delivered(), link.sent.len(), link.sender.probes()), (8, 9, 1));
    assert_eq!(link.sender.next_timeout(), None);
}

#[test]
fn several_losses_are_repaired_in_one_round_trip() {
    let mut link = Link::new(50, |sent| {
        if [1_000, 1_003, 1_010, 1_020].contains(&sent.sequence) && sent.number == 0 { None } else { ON_TIME }
    });
    link.run(Duration::from_secs(1));
    let again = link.again();
    let repaired: Vec<_> = again.iter().map(|sent| sent.sequence).collect();
    assert_eq!(repaired, [1_000, 1_003, 1_010, 1_020]);
    for sent in again {
        let after = sent.at - link.first_sent(sent.sequence);
        assert!((ROUND_TRIP..=2 * ROUND_TRIP).contains(&after), "{} after {after:?}", sent.sequence);
    }
    assert_eq!((link.sender.timeouts(), link.sender.probes()), (0, 0));
}

#[test]
fn a_reduction_happens_once_for_losses_of_one_window() {
    let mut one = Link::new(50, |sent| if sent.sequence == 1_000 && sent.number == 0 { None } else { ON_TIME });
    let mut four =
        Link::new(50, |sent| if (1_000..1_004).contains(&sent.sequence) && sent.number == 0 { None } else { ON_TIME });
    one.run(26 * ROUND_TRIP);
    four.run(26 * ROUND_TRIP);
    let windows = [one.sender.window(), four.sender.window()];
    assert_eq!((one.again().len(), four.again().len()), (1, 4));
    assert!((windows[0] - windows[1]).abs() < 2.0, "{windows:?}");
}

#[test]
fn a_retransmission_that_is_lost_is_sent_again_without_a_timeout() {
    // The receive window leaves room for new segments, which reveal the loss.
    let mut link = Link::new(1_000, |sent| if sent.sequence == 100 && sent.number < 3 { None } else { ON_TIME });
    link.run(20 * ROUND_TRIP);
    let again = link.again();
    assert_eq!(
        again.iter().map(|sent| (sent.sequence, sent.number)).collect::<Vec<_>>(),
        [(100, 1), (100, 2), (100, 3)]
    );
    for pair in again.windows(2) {
        let wait = pair[1].at - pair[0].at;
        assert!((ROUND_TRIP..2 * ROUND_TRIP).contains(&wait), "{wait:?}");
    }
    assert_eq!(link.sender.timeouts(), 0);
}

/// A whole window is lost from segment 1,000 on: no acknowledgement reports it.
#[test]
fn a_lost_tail_is_found_by_a_probe() {
    let mut link =
        Link::new(50, |sent| if (1_000..1_050).contains(&sent.sequence) && sent.number == 0 { None } else { ON_TIME });
    link.run(Duration::from_secs(1));
    let probe = link.again()[0];
    assert_eq!((probe.sequence, link.sender.probes(), link.sender.timeouts()), (1_049, 1, 0));
    // Two round trips and two ticks after the last acknowledgement.
    let wait = probe.at - link.first_sent(1_049);
    assert!((20 * MS..24 * MS).contains(&wait), "{wait:?}");
    let last = link.again().iter().map(|sent| sent.at).max().expect("retransmissions");
    assert!(last - probe.at < 8 * ROUND_TRIP, "{:?}", last - probe.at);
    assert_eq!(link.again().len(), 50, "each once");
}

/// A single segment that is lost at the tail is repaired by the probe itself, and counts as a loss.
#[test]
fn a_loss_that_the_probe_repairs_reduces_the_window() {
    let receive_window_bytes = 10 * SEGMENT_BYTES;
    let config = TcpConfig { segment_bytes: SEGMENT_BYTES, receive_window_bytes, ..TcpConfig::default() };
    let mut sender = Sender::new(Time::ZERO, &config);
    assert_eq!(std::iter::from_fn(|| sender.poll_transmit(Time::ZERO)).count(), 10);
    let at = |milliseconds: u32| Time::ZERO + MS * milliseconds;
    sender.handle_ack(at(10), &Ack { cumulative: 9, ..Ack::default() });
    let mut twin = sender.clone();
    // The receive window has room for nine more; acknowledged, they count as if sent before.
    for (sender, is_lost) in [(&mut sender, true), (&mut twin, false)] {
        assert_eq!(std::iter::from_fn(|| sender.poll_transmit(at(10))).last(), Some(18));
        let due = sender.next_timeout().expect("a timer");
        sender.handle_timeout(due);
        assert_eq!((sender.poll_transmit(due), sender.probes()), (Some(18), 1));
        let mut ack = Ack { cumulative: 19, ..Ack::default() };
        if !is_lost {
            ack.blocks[0] = 18..19;
        }
        let before = sender.window();
        sender.handle_ack(due + ROUND_TRIP, &ack);
        assert_eq!(sender.window() < before, is_lost, "{before} to {}", sender.window());
    }
}

/// Nothing passes for 10 s: a probe, then the timer after at least 200 ms, which doubles.
#[test]
fn the_retransmission_timer_doubles() {
    let dark = |sent: &Sent| {
        let is_dark = (500..10_500).contains(&(sent.at.as_nanos() / 1_000_000));
        if is_dark { None } else { ON_TIME }
    };
    let mut link = Link::new(50, dark);
    link.run(Duration::from_secs(15));
    let tries: Vec<_> = link.again().iter().filter(|sent| sent.at.as_nanos() < 10_500_000_000).copied().collect();
    let waits: Vec<f64> = tries.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
    assert_eq!((link.sender.probes(), waits.len()), (1, 5), "{waits:?}");
    assert!((0.205..0.225).contains(&waits[0]), "{waits:?}");
    for pair in waits.windows(2) {
        assert!((pair[1] / pair[0] - 2.0).abs() < 0.1, "{waits:?}");
    }
    assert!(link.receiver.delivered() > 5_000, "it goes on: {}", link.receiver.delivered());
}

/// One of a hundred segments is late by an eighth of the round trip.
#[test]
fn reordering_within_the_window_is_no_loss() {
    let late = |sent: &Sent| Some(if sent.sequence % 100 == 99 { ROUND_TRIP / 8 } else { Duration::ZERO });
    let mut link = Link::new(50, late);
    link.run(Duration::from_secs(4));
    assert!(link.receiver.delivered() > 15_000, "{}", link.receiver.delivered());
    assert!(link.sender.retransmissions() <= 1, "{:?}", link.again());
}
