//! TCP streams between hosts. Their segments are subject to the sending host's faults and the bottlenecks, as RoCE
//! packets are. Sockets, pauses and clocks of hosts do not affect them, and the trace does not contain them.

use std::collections::BTreeMap;

use super::Network;
use super::link::Fate;
use super::tcp::{Ack, Receiver, Sender, TcpConfig};
use crate::types::Time;

/// Identifies a stream of a network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(usize);

/// A TCP stream from one host to another.
#[derive(Clone, Debug)]
pub struct Stream {
    from: usize,
    to: usize,
    config: TcpConfig,
    sender: Sender,
    receiver: Receiver,
    segments: u64,
}

impl Stream {
    fn new(now: Time, from: usize, to: usize, config: TcpConfig) -> Self {
        let (sender, receiver) = (Sender::new(now, &config), Receiver::default());
        Self { from, to, config, sender, receiver, segments: 0 }
    }

    /// Returns the bytes delivered to the receiving application.
    pub fn delivered_bytes(&self) -> u64 {
        self.receiver.delivered() * u64::from(self.config.segment_bytes)
    }

    /// Returns the data segments sent, retransmissions included.
    pub fn sent_segments(&self) -> u64 {
        self.segments
    }

    /// Returns the data segments retransmitted.
    pub fn retransmitted_segments(&self) -> u64 {
        self.sender.retransmissions()
    }

    /// Returns the duplicate data segments received.
    pub fn duplicate_segments(&self) -> u64 {
        self.receiver.duplicates()
    }

    /// Returns how often the retransmission timer expired.
    pub fn timeouts(&self) -> u64 {
        self.sender.timeouts()
    }

    /// Returns the tail loss probes sent.
    pub fn probes(&self) -> u64 {
        self.sender.probes()
    }

    /// Returns the congestion window in segments.
    pub fn window_segments(&self) -> f64 {
        self.sender.window()
    }

    fn next_timeout(&self) -> Option<Time> {
        Time::earliest([self.sender.next_timeout(), self.receiver.next_timeout()])
    }
}

/// A data segment or an acknowledgement in flight.
#[derive(Clone, Debug)]
enum Cargo {
    Segment(u64),
    Ack(Ack),
}

/// All streams of a network.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    /// Segments and acknowledgements in flight by arrival and order of sending, with the stream's index.
    flights: BTreeMap<(Time, u64), (usize, Cargo)>,
    order: u64,
}

impl Streams {
    /// Returns the time of the next arrival or timeout.
    pub(super) fn next_event(&self) -> Option<Time> {
        let arrival = self.flights.first_key_value().map(|((at, _), _)| *at);
        let timeout = self.streams.iter().filter_map(Stream::next_timeout).min();
        Time::earliest([arrival, timeout])
    }

    /// Takes the earliest arrival if it is due by now.
    fn take_arrival(&mut self, now: Time) -> Option<(usize, Cargo)> {
        let entry = self.flights.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}

impl Network {
    /// Starts a TCP stream. Packets of both directions are subject to their sending host's faults.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn add_stream(&mut self, from: usize, to: usize, config: TcpConfig) -> StreamId {
        assert!(from.max(to) < self.hosts.len(), "hosts {from} and {to} of {}", self.hosts.len());
        let index = self.streams.streams.len();
        self.streams.streams.push(Stream::new(self.now, from, to, config));
        self.send_segments(index);
        StreamId(index)
    }

    /// Returns a stream.
    ///
    /// # Panics
    /// If `id` is another network's.
    pub fn stream(&self, id: StreamId) -> &Stream {
        &self.streams.streams[id.0]
    }

    /// Processes all arrivals and timeouts due by now.
    pub(super) fn step_streams(&mut self) {
        while let Some((index, cargo)) = self.streams.take_arrival(self.now) {
            let (now, stream) = (self.now, &mut self.streams.streams[index]);
            match cargo {
                Cargo::Segment(sequence) => {
                    let ack = stream.receiver.handle_segment(now, sequence);
                    self.send_ack(index, ack);
                }
                Cargo::Ack(ack) => {
                    stream.sender.handle_ack(now, &ack);
                    self.send_segments(index);
                }
            }
        }
        for index in 0..self.streams.streams.len() {
            let (now, stream) = (self.now, &mut self.streams.streams[index]);
            if stream.next_timeout().is_none_or(|at| at > now) {
                continue;
            }
            stream.sender.handle_timeout(now);
            let ack = stream.receiver.handle_timeout(now);
            self.send_segments(index);
            self.send_ack(index, ack);
        }
    }

    /// Sends all segments that the windows allow.
    fn send_segments(&mut self, index: usize) {
        let now = self.now;
        while let Some(sequence) = self.streams.streams[index].sender.poll_transmit(now) {
            let stream = &mut self.streams.streams[index];
            stream.segments += 1;
            let (from, to, bytes) = (stream.from, stream.to, stream.config.wire_bytes());
            self.carry((from, to), bytes, index, &Cargo::Segment(sequence));
        }
    }

    fn send_ack(&mut self, index: usize, ack: Option<Ack>) {
        let Some(ack) = ack else { return };
        let Stream { from, to, .. } = self.streams.streams[index];
        self.carry((to, from), ack.wire_bytes(), index, &Cargo::Ack(ack));
    }

    /// Sends a packet over a link. `bytes` counts from the Ethernet header.
    fn carry(&mut self, (from, to): (usize, usize), bytes: usize, index: usize, cargo: &Cargo) {
        let fates = self.faults[from].decide(self.now, &mut self.in_burst[from], &mut self.random);
        for fate in fates.into_iter().flatten() {
            let Fate::Arrives { at, corrupt: is_corrupt } = fate else { continue };
            let Some(passage) = self.pass(from, to, bytes as u64, false) else { continue };
            // TCP's checksum detects corruption.
            if !is_corrupt {
                self.streams.order += 1;
                self.streams.flights.insert((at + passage.wait, self.streams.order), (index, cargo.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::{Bottleneck, Discipline, Faults, Host};

    /// Share of a link's rate that is payload of full segments: 1,448 of 1,514 bytes.
    const PAYLOAD: f64 = 1_448.0 / 1_514.0;

    /// Creates two hosts. `rate` is in Mbit/s, `queue` in bandwidth-delay products.
    fn network(rate: u64, queue: f64, faults: Faults, seed: u64) -> Network {
        let hosts = [1, 2].map(|number| Host::new([192, 0, 2, number].into(), number.into()));
        let bytes = rate as f64 * 125_000.0 * 2.0 * faults.delay.as_secs_f64();
        let mut network = Network::new(hosts.into(), vec![faults.clone(), faults], seed);
        let discipline = Discipline::TailDrop { queue_bytes: (queue * bytes) as u64 };
        for pair in [(0, 1), (1, 0)] {
            network.share(Bottleneck::new(rate * 125_000, discipline), &[pair]);
        }
        network
    }

    fn round_trip(milliseconds: u64) -> Faults {
        Faults { delay: Duration::from_millis(milliseconds) / 2, ..Faults::default() }
    }

    fn run(network: &mut Network, seconds: u64) {
        let end = network.now + Duration::from_secs(seconds);
        while network.now < end {
            network.step(end - network.now);
        }
    }

    /// Runs for `seconds` and returns the rates of the streams in Mbit/s.
    fn rates<const COUNT: usize>(network: &mut Network, ids: [StreamId; COUNT], seconds: u64) -> [f64; COUNT] {
        let before = ids.map(|id| network.stream(id).delivered_bytes());
        run(network, seconds);
        let mut index = 0;
        ids.map(|id| {
            index += 1;
            (network.stream(id).delivered_bytes() - before[index - 1]) as f64 * 8e-6 / seconds as f64
        })
    }

    #[test]
    fn one_stream_fills_a_bottleneck() {
        let mut network = network(100, 1.0, round_trip(10), 1);
        let id = network.add_stream(0, 1, TcpConfig::default());
        let [rate] = rates(&mut network, [id], 20);
        assert!((0.96..=1.0).contains(&(rate / (100.0 * PAYLOAD))), "{rate}");
        let stream = network.stream(id);
        assert!(stream.retransmitted_segments() > 0, "the queue has never overflowed");
        assert_eq!((stream.timeouts(), stream.duplicate_segments()), (0, 0));
        let bottleneck = network.bottleneck(0, 1).expect("a bottleneck");
        let passed = stream.sent_segments() - bottleneck.dropped_packets();
        assert_eq!(bottleneck.passed_bytes(), passed * 1_514);
    }

    #[test]
    fn two_streams_share_a_bottleneck() {
        let mut network = network(100, 1.0, round_trip(10), 1);
        let first = network.add_stream(0, 1, TcpConfig::default());
        run(&mut network, 3);
        let second = network.add_stream(0, 1, TcpConfig::default());
        run(&mut network, 10);
        let [one, other] = rates(&mut network, [first, second], 30);
        assert!((0.5..=2.0).contains(&(one / other)), "{one} and {other}");
        assert!(one + other > 96.0 * PAYLOAD, "{one} and {other}");
    }

    /// The Reno-friendly region has Reno's mean window, sqrt(1.5 / p): 12.2 segments in a round trip at 1 %.
    #[test]
    fn random_losses_leave_what_the_formula_says() {
        let faults = Faults { rare_loss: 10_000, ..round_trip(20) };
        let mut network = network(1_000, 1.0, faults, 1);
        let id = network.add_stream(0, 1, TcpConfig::default());
        let [rate] = rates(&mut network, [id], 100);
        let window = rate * 1e6 / 8.0 / 1_448.0 * 0.02;
        assert!((9.0..14.0).contains(&window), "{window} segments in a round trip");
    }

    #[test]
    fn a_stream_survives_all_faults() {
        let faults = Faults {
            loss: 20,
            duplication: 20,
            corruption: 10,
            reordering: 50,
            lateness: Duration::from_millis(3),
            blackouts: Some((Duration::from_secs(4), Duration::from_millis(500))),
            ..round_trip(10)
        };
        let mut network = network(100, 1.0, faults, 1);
        let id = network.add_stream(0, 1, TcpConfig::default());
        run(&mut network, 20);
        let before = network.stream(id).delivered_bytes();
        run(&mut network, 20);
        let stream = network.stream(id);
        assert!(stream.delivered_bytes() > before + 1_000_000, "{before} to {}", stream.delivered_bytes());
        assert!(stream.timeouts() > 0 && stream.duplicate_segments() > 0, "{stream:?}");
    }

    #[test]
    fn a_seed_repeats_itself() {
        let story = |seed| {
            let mut network = network(100, 0.5, Faults { loss: 10, reordering: 10, ..round_trip(10) }, seed);
            let id = network.add_stream(0, 1, TcpConfig::default());
            let at = |network: &mut Network| {
                run(network, 1);
                let stream = network.stream(id);
                (stream.delivered_bytes(), stream.sent_segments(), stream.window_segments().to_bits())
            };
            [(); 5].map(|()| at(&mut network))
        };
        assert_eq!(story(1), story(1));
        assert_ne!(story(1), story(2));
    }
}
