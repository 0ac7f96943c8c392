//! Streams over links that lose packets keep their rate, and retransmit little more than the losses. Virtual time makes
//! the results the same everywhere.

mod seen;
mod shared;
mod stream;
mod tcp;
mod world;

use std::time::Duration;

use shared::Crowd;
use stream::{Cell, Stream};
use world::{Control, Link, Peers, Trouble};

fn measure(operation: Stream, link: Link, least: Duration) -> Cell {
    stream::measure(operation, link, Control::Default, least)
}

/// Measures a stream on a link of 1 Gbit/s.
fn at_loss(operation: Stream, round_trip: Duration, loss: u32) -> Cell {
    measure(operation, Link::new(1_000, round_trip, loss), Duration::from_secs(1))
}

/// Asserts the least fraction of its rate that a stream keeps, and that it retransmits little besides the losses.
fn keeps(operation: Stream, round_trip: Duration, least: [(u32, f64); 4]) {
    let whole = at_loss(operation, round_trip, 0);
    assert!(!whole.failed && whole.repeated < 0.02, "{operation:?} without losses: {whole:?}");
    for (loss, least) in least {
        let cell = at_loss(operation, round_trip, loss);
        let kept = cell.megabytes_per_second / whole.megabytes_per_second;
        assert!(!cell.failed && kept >= least, "{operation:?}, {loss} of a million lost: {kept:.2} is kept, {cell:?}");
        assert!(loss > 10_000 || cell.repeated < 0.05, "{operation:?}, {loss} of a million lost: {cell:?}");
    }
}

#[test]
fn writes_keep_their_rate() {
    keeps(Stream::Write, Duration::from_micros(50), [(1_000, 0.95), (10_000, 0.95), (50_000, 0.85), (100_000, 0.8)]);
    keeps(Stream::Write, Duration::from_millis(1), [(1_000, 0.95), (10_000, 0.95), (50_000, 0.9), (100_000, 0.75)]);
}

#[test]
fn reads_keep_their_rate() {
    keeps(Stream::Read, Duration::from_micros(50), [(1_000, 0.95), (10_000, 0.95), (50_000, 0.7), (100_000, 0.5)]);
    keeps(Stream::Read, Duration::from_millis(1), [(1_000, 0.95), (10_000, 0.95), (50_000, 0.65), (100_000, 0.5)]);
}

/// One packet of a hundred is late, by up to half of the round trip, which with the queue is some milliseconds longer.
#[test]
fn late_packets_are_not_retransmitted() {
    for (round_trip, lateness) in [(50, 25), (50, 500), (1_000, 50), (1_000, 500)] {
        let [round_trip, lateness] = [round_trip, lateness].map(Duration::from_micros);
        for operation in [Stream::Write, Stream::Read] {
            let [whole, late] = [Trouble::None, Trouble::Reordering(lateness)].map(|trouble| {
                let link = Link { trouble, ..Link::new(1_000, round_trip, 0) };
                measure(operation, link, Duration::from_secs(1))
            });
            let kept = late.megabytes_per_second / whole.megabytes_per_second;
            assert!(!late.failed && kept >= 0.95, "{operation:?}, {round_trip:?}: {kept:.2} is kept, {late:?}");
            assert!(late.repeated <= 0.002, "{operation:?}, late by up to {lateness:?}: {late:?}");
        }
    }
}

/// The link is faster than the window, so a round trip includes no queueing. Outages last for the time of 64 packets:
/// beyond that, a stream pauses for at most three round trips and a probe's wait.
#[test]
fn bursts_of_losses_are_repaired_at_once() {
    let (outage, probe_wait) = (Duration::from_micros(55), Duration::from_millis(2));
    for round_trip in [Duration::from_micros(50), Duration::from_millis(1)] {
        for operation in [Stream::Write, Stream::Read] {
            let link = Link { trouble: Trouble::Outages(outage), ..Link::new(10_000, round_trip, 0) };
            let cell = measure(operation, link, Duration::from_secs(5));
            assert!(!cell.failed, "{operation:?}: {cell:?}");
            assert!(cell.longest_pause <= outage + 3 * round_trip + probe_wait, "{operation:?}: {cell:?}");
            assert!(cell.repeated < 0.001, "{operation:?}: {cell:?}");
        }
    }
}

#[test]
fn no_connection_ends_while_the_link_is_down() {
    let outage = Duration::from_millis(300);
    for round_trip in [Duration::from_micros(50), Duration::from_millis(1)] {
        for operation in [Stream::Write, Stream::Read] {
            let link = Link { trouble: Trouble::Outages(outage), ..Link::new(1_000, round_trip, 0) };
            let cell = measure(operation, link, Duration::from_secs(5));
            assert!(!cell.failed && cell.longest_pause >= outage, "{operation:?}: {cell:?}");
            assert!(cell.longest_pause < outage * 5 / 4, "{operation:?}: {cell:?}");
        }
    }
}

/// A window is many times the queue, so most of each is lost. Only congestion control would restore the rate, but no
/// connection ends.
#[test]
fn a_short_queue_ends_no_connection() {
    for (rate, queue_bytes) in [(1_000, 64 << 10), (50, 30 << 10), (10, 8 << 10)] {
        for operation in [Stream::Write, Stream::Read] {
            let link = Link { queue_bytes, ..Link::new(rate, Duration::from_millis(1), 0) };
            let cell = measure(operation, link, Duration::from_secs(1));
            assert!(!cell.failed, "{operation:?} at {rate} Mbit/s: {cell:?}");
        }
    }
}

#[test]
fn writes_keep_at_least_the_rate_of_tcp() {
    for round_trip in [Duration::from_micros(50), Duration::from_millis(1)] {
        let rates =
            |operation| [0, 50_000, 100_000].map(|loss| at_loss(operation, round_trip, loss).megabytes_per_second);
        let ([ours, ours_lossy @ ..], [tcp, tcp_lossy @ ..]) = (rates(Stream::Write), rates(Stream::Tcp));
        assert!(tcp > 110.0, "TCP without losses: {tcp:.1} MB/s");
        for (percent, (lossy, tcp_lossy)) in [5, 10].into_iter().zip(ours_lossy.into_iter().zip(tcp_lossy)) {
            let (kept, tcp_kept) = (lossy / ours, tcp_lossy / tcp);
            assert!(kept >= tcp_kept, "{percent} % lost, {round_trip:?}: {kept:.2} is kept, by TCP {tcp_kept:.2}");
        }
    }
}

/// A slow link, where a whole window is queued. With that window the streams kept 0.65 and repeated 0.5.
#[test]
fn little_is_repeated_for_a_standard_peer() {
    for operation in [Stream::Write, Stream::Read] {
        let [whole, lossy] = [0, 10_000].map(|loss| {
            let link = Link { peers: Peers::Standard, ..Link::new(50, Duration::from_millis(1), loss) };
            measure(operation, link, Duration::from_secs(3))
        });
        let kept = lossy.megabytes_per_second / whole.megabytes_per_second;
        assert!(!lossy.failed && kept >= 0.72, "{operation:?}: {kept:.2} is kept, {lossy:?}");
        assert!(lossy.repeated < 0.35 && whole.repeated < 0.01, "{operation:?}: {lossy:?}, {whole:?}");
    }
}

/// The initial estimate of the probe's wait is shorter than the round trip.
#[test]
fn reads_over_a_long_path_are_made_once() {
    let link = Link { peers: Peers::Standard, ..Link::new(50, Duration::from_millis(20), 0) };
    let cell = measure(Stream::Read, link, Duration::from_secs(3));
    assert!(!cell.failed && cell.repeated < 0.01, "{cell:?}");
}

/// Returns a link of 1 Gbit/s with the queue of a switch, which is a tenth of the streams' windows.
fn short_queue(round_trip: Duration) -> Link {
    Link { queue_bytes: 100_000, ..Link::new(1_000, round_trip, 0) }
}

#[test]
fn streams_that_share_a_short_queue_use_the_link_and_share_it_evenly() {
    for operation in [Stream::Write, Stream::Read] {
        let crowd = Crowd { operation, control: Control::Cubic, streams: 4, tcp: 0 };
        let shares = shared::measure(crowd, short_queue(Duration::from_micros(100)), Duration::from_secs(2));
        assert!(shares.failed == 0 && shares.used >= 0.95 && shares.fairness >= 0.95, "{operation:?}: {shares:?}");
        assert!(shares.repeated.is_some_and(|repeated| repeated < 0.02), "{operation:?}: {shares:?}");
    }
}

#[test]
fn a_stream_beside_tcp_leaves_it_its_share() {
    let crowd = Crowd { operation: Stream::Write, control: Control::Cubic, streams: 1, tcp: 1 };
    let shares = shared::measure(crowd, short_queue(Duration::from_millis(1)), Duration::from_secs(5));
    let part = shares.rates[0] / (shares.rates[0] + shares.tcp[0]);
    assert!(shares.used >= 0.95 && (0.35..0.65).contains(&part), "{part:.2}: {shares:?}");
}
