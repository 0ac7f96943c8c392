//! Floods of messages from one source and from thousands: connections carry data, clients connect, memory is bounded,
//! and no source gets more bytes than were sent in its name.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::wire::mad::{
    CommunicationId, DisconnectRequest, Message, MessageReceipt, MessageRetries, ReceivedMessage, RejectReason,
    TimeoutCode,
};

use super::forger::{Forger, Observer, Seen};
use super::victim::{ACCEPT, CLOSED, Client, DATAGRAM, IDLE, IDLE_DATAGRAM, MOST_ACCEPTED, REJECT, Victim};
use crate::world::new_address;
use crate::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("connections/flood_of_requests_without_a_listener", |form| of_requests(CLOSED, form)),
    ("connections/flood_of_requests_that_none_takes", |form| of_requests(IDLE, form)),
    ("connections/flood_of_requests_that_are_rejected", |form| of_requests(REJECT, form)),
    ("connections/flood_of_requests_that_are_accepted", of_accepted_requests),
    ("connections/flood_beyond_the_socket", beyond_the_socket),
    ("connections/flood_of_repeated_requests", of_repeated_requests),
    ("connections/flood_of_datagram_requests", of_inquiries),
    ("connections/flood_of_receipts", of_receipts),
    ("connections/an_accepted_request_has_bounded_responses", |_| accepted_request()),
];

/// Number of addresses that a flood claims.
const SOURCES: u32 = 10_000;
/// Maximum growth of the victim's memory: 4,096 requests that have ended and rest, with the kept REJ, take 5 MiB.
const MOST_MEMORY: u64 = 8 << 20;
/// Maximum time that a client needs to connect during a flood, and after it.
const PATIENT: Duration = Duration::from_secs(10);
/// A flood is sent in bursts, which the victim's socket holds.
const BURST: u32 = 128;
const MARKER_PATIENCE: Duration = Duration::from_millis(200);

/// Returns a forged source.
fn source(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 128, 0, 1)) + number % SOURCES)
}

/// The outcome of a flood.
struct Flooded {
    victim: Victim,
    seen: Vec<Seen>,
}

impl Flooded {
    /// Returns the most responses that one source got beyond its requests.
    fn most_excess(&self, sent_from: impl Fn(Ipv4Addr) -> i64) -> i64 {
        let mut counts: HashMap<Ipv4Addr, i64> = HashMap::new();
        for seen in self.seen.iter().filter(|seen| is_forged(seen)) {
            *counts.entry(seen.destination).or_default() += 1;
        }
        counts.into_iter().map(|(address, count)| count - sent_from(address)).max().unwrap_or(0)
    }

    fn responses(&self) -> usize {
        self.seen.iter().filter(|seen| is_forged(seen)).count()
    }
}

fn is_forged(seen: &Seen) -> bool {
    seen.destination.octets()[1] == 128
}

/// A sender of a flood that the victim handles completely: after each burst it waits for the response to a DREQ.
struct Paced {
    forger: Forger,
    observer: Observer,
    seen: Vec<Seen>,
}

impl Paced {
    fn new(victim: Ipv4Addr) -> Self {
        Self { forger: Forger::new(victim, new_address()), observer: Observer::of(victim), seen: Vec::new() }
    }

    /// Waits until the victim has handled all messages. The marker may get lost.
    fn settle(&mut self, number: u32) {
        let marker = DisconnectRequest { local_id: CommunicationId(number), ..Default::default() };
        let end = Instant::now() + PATIENT;
        'send: loop {
            assert!(Instant::now() < end, "the victim does not respond");
            self.forger.send_message(self.forger.source, marker, u64::from(number));
            while let Some(seen) = self.observer.next(MARKER_PATIENCE) {
                if seen.destination == self.forger.source {
                    break 'send;
                }
                self.seen.push(seen);
            }
        }
    }
}

/// Calls `work` again and again until `stop` is set. Returns how often, and the longest time of one call.
fn repeat(stop: &AtomicBool, work: impl Fn()) -> (u32, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        work();
        longest = longest.max(start.elapsed());
        count += 1;
    }
    (count, longest)
}

/// Sends a flood while a connection carries data, and another one is set up again and again.
fn flood(name: &str, count: u32, send: impl Fn(&Forger, u32) + Sync) -> Flooded {
    let victim = Victim::start();
    let address = victim.address;
    let client = Client::connect(address);
    // Memory that the process allocates once is not the flood's.
    Client::connect(address).disconnect();
    let (before, stop) = (victim.memory(), AtomicBool::new(false));
    let mut paced = Paced::new(address);
    let (exchanges, connects) = thread::scope(|scope| {
        let exchanging = scope.spawn(|| repeat(&stop, || client.exchange()));
        let connecting = scope.spawn(|| repeat(&stop, || Client::connect_from(client.address, address).disconnect()));
        let flooding = catch_unwind(AssertUnwindSafe(|| {
            for number in 0..count {
                send(&paced.forger, number);
                if number % BURST == BURST - 1 {
                    paced.settle(number);
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        flooding.unwrap_or_else(|panic| resume_unwind(panic));
        (exchanging.join().expect("exchanges"), connecting.join().expect("connects"))
    });
    let growth = victim.memory().saturating_sub(before);
    paced.seen.extend(paced.observer.all(Duration::from_millis(300)));
    let start = Instant::now();
    Client::connect(address).disconnect();
    client.exchange();
    client.disconnect();
    let (flooded, after) = (Flooded { victim, seen: paced.seen }, start.elapsed());
    println!(
        "{name}: {count} messages, {} responses, {} KiB more memory; {} exchanges of {:?} at most, {} connects of \
         {:?} at most, {after:?} afterwards",
        flooded.responses(),
        growth >> 10,
        exchanges.0,
        exchanges.1,
        connects.0,
        connects.1,
    );
    assert!(exchanges.0 > 0 && connects.0 > 0);
    assert!(exchanges.1.max(connects.1).max(after) < PATIENT);
    assert!(growth <= MOST_MEMORY, "{growth} bytes more memory; at most {MOST_MEMORY}");
    flooded
}

/// A sixth of the requests come from one source.
fn claimed(number: u32) -> Ipv4Addr {
    if number.is_multiple_of(6) { source(0) } else { source(number) }
}

fn count_of(address: Ipv4Addr, count: u32) -> i64 {
    (0..count).filter(|number| claimed(*number) == address).count() as i64
}

fn of_requests(port: u16, form: Form) {
    let count = form.tries(12_000, 400_000) as u32;
    let flooded = flood(&format!("port {port}"), count, |forger, number| {
        let source = claimed(number);
        forger.send_message(source, forger.request_from(source, number, port), number.into());
    });
    let excess = flooded.most_excess(|address| count_of(address, count));
    assert!(excess <= 0, "a source gets {excess} responses more than it sent requests");
    let reasons: Vec<RejectReason> = flooded.seen.iter().filter(|seen| is_forged(seen)).map(reason_of).collect();
    let expected = match port {
        CLOSED => RejectReason::INVALID_SERVICE_ID,
        REJECT => RejectReason::CONSUMER,
        // The backlog is full, and requests beyond it are dropped.
        _ => return assert_eq!(reasons, []),
    };
    assert!(!reasons.is_empty(), "no request is rejected");
    assert!(reasons.iter().all(|reason| *reason == expected), "{reasons:?} instead of {expected:?}");
}

fn reason_of(seen: &Seen) -> RejectReason {
    let Message::Reject(reject) = seen.message() else { panic!("{seen:?}") };
    reject.reason
}

/// Each accepted request occupies a queue pair until the REPs end, after a second as these requests ask.
fn of_accepted_requests(form: Form) {
    let count = form.tries(3_000, 60_000) as u32;
    let flooded = flood("accepted", count, |forger, number| {
        let source = claimed(number);
        let mut request = forger.request_from(source, number, ACCEPT);
        request.local_response_timeout = TimeoutCode::saturating(0);
        request.max_cm_retries = MessageRetries::saturating(0);
        forger.send_message(source, request, number.into());
    });
    let accepted: std::collections::HashSet<CommunicationId> = flooded
        .seen
        .iter()
        .filter_map(|seen| match seen.message() {
            Message::ConnectReply(reply) => Some(reply.local_id),
            _ => None,
        })
        .collect();
    println!("{} of {count} requests are accepted", accepted.len());
    assert!(!accepted.is_empty() && accepted.len() <= count as usize);
    // Nothing is left of the first ones: others are accepted.
    thread::sleep(Duration::from_millis(1_500));
    let forger = Forger::new(flooded.victim.address, new_address());
    let observer = Observer::of(flooded.victim.address);
    forger.send_message(forger.source, forger.request(1 << 20, ACCEPT), 77);
    let answer = observer.wait(PATIENT, |seen| seen.destination == forger.source);
    assert!(matches!(answer.message(), Message::ConnectReply(_)), "{answer:?}, with {MOST_ACCEPTED} at most");
}

/// More messages than the victim receives: its socket drops some, and it has no time for others.
fn beyond_the_socket(form: Form) {
    let victim = Victim::start();
    let client = Client::connect(victim.address);
    let (before, stop) = (victim.memory(), AtomicBool::new(false));
    let forger = Forger::new(victim.address, new_address());
    let count = form.tries(20_000, 1_000_000) as u32;
    let (exchanges, longest) = thread::scope(|scope| {
        let exchanging = scope.spawn(|| repeat(&stop, || client.exchange()));
        for number in 0..count {
            let port = [CLOSED, IDLE, REJECT][number as usize % 3];
            forger.send_message(source(number), forger.request_from(source(number), number, port), number.into());
        }
        stop.store(true, Ordering::Relaxed);
        exchanging.join().expect("exchanges")
    });
    let start = Instant::now();
    Client::connect(victim.address).disconnect();
    let growth = victim.memory().saturating_sub(before);
    println!(
        "{count} messages without a pause: {exchanges} exchanges of {longest:?} at most, {:?} to connect afterwards, \
         {} KiB more memory",
        start.elapsed(),
        growth >> 10,
    );
    assert!(exchanges > 0 && start.elapsed() < PATIENT && growth <= MOST_MEMORY);
    client.disconnect();
}

/// One request, again and again: the application takes it once.
fn of_repeated_requests(form: Form) {
    let count = form.tries(12_000, 400_000) as u32;
    for port in [IDLE, REJECT] {
        let flooded = flood(&format!("repeated, port {port}"), count, |forger, _| {
            forger.send_message(source(0), forger.request_from(source(0), 7, port), 7);
        });
        let excess = flooded.most_excess(|_| count.into());
        assert!(excess <= 0, "{excess} responses more than requests");
        let allowed = if port == IDLE { 0..=0 } else { 1..=count as usize };
        assert!(allowed.contains(&flooded.responses()), "{} responses; allowed: {allowed:?}", flooded.responses());
    }
}

fn of_inquiries(form: Form) {
    let count = form.tries(12_000, 400_000) as u32;
    for port in [DATAGRAM, IDLE_DATAGRAM, CLOSED] {
        let flooded = flood(&format!("datagrams, port {port}"), count, |forger, number| {
            let source = claimed(number);
            forger.send_message(source, forger.inquiry_from(source, number, port), number.into());
        });
        let excess = flooded.most_excess(|address| count_of(address, count));
        assert!(excess <= 0, "a source gets {excess} responses more than it sent requests");
        let responds = port != IDLE_DATAGRAM;
        assert_eq!(flooded.responses() > 0, responds, "{} responses of port {port}", flooded.responses());
    }
}

/// MRAs with ids of the victim's block and others.
fn of_receipts(form: Form) {
    let count = form.tries(12_000, 400_000) as u32;
    let flooded = flood("receipts", count, |forger, number| {
        let received =
            if number.is_multiple_of(2) { ReceivedMessage::ConnectRequest } else { ReceivedMessage::ConnectReply };
        let remote_id = CommunicationId(number.wrapping_mul(0x9e37_79b1));
        let service_timeout = TimeoutCode::MAX;
        let receipt = MessageReceipt { remote_id, received, service_timeout, ..Default::default() };
        forger.send_message(claimed(number), receipt, number.into());
    });
    assert_eq!(flooded.responses(), 0);
}

/// A forged REQ that the application accepts, and whose sender does not respond: the documented number of REPs, a REJ,
/// and DREQs. The REQ has the shortest intervals, or it would take 86 s.
fn accepted_request() {
    let victim = Victim::start();
    let client = Client::connect(victim.address);
    let forger = Forger::new(victim.address, source(1));
    let observer = Observer::of(victim.address);
    let mut request = forger.request(1, ACCEPT);
    request.local_response_timeout = TimeoutCode::saturating(0);
    forger.send_message(forger.source, request, 1);
    let end = Instant::now() + Duration::from_millis(6_500);
    let mut counts = [0; 3];
    while let Some(seen) = observer.next(end.saturating_duration_since(Instant::now())) {
        match seen.message() {
            _ if !is_forged(&seen) => {}
            Message::ConnectReply(_) => counts[0] += 1,
            Message::Reject(_) => counts[1] += 1,
            Message::DisconnectRequest(_) => counts[2] += 1,
            other => panic!("{other:?}"),
        }
        client.exchange();
    }
    println!("REPs, REJs and DREQs in 6.5 s to the address of one forged REQ: {counts:?}");
    assert_eq!((counts[0], counts[1]), (16, 1));
    assert!((1..=12).contains(&counts[2]));
    client.disconnect();
}
