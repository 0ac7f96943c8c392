//! Blind packets: the forger knows addresses and queue pair numbers, perhaps the port, and guesses the rest.
//!
//! Between native peers no such packet may pass. A packet that claims a standard peer's address passes all checks but
//! that of the 24 bits of its PSN: the number of PSNs that are plausible at a time bounds the packets that have an
//! effect, and each campaign prints them.

use std::time::{Duration, Instant};

use rdma_verbs::types::{CompletionStatus, Counter, Data, Mtu, Psn, QueuePairState, Rkey};
use rdma_verbs::wire::{NakCode, Opcode, Syndrome};

use super::forge::{Forgery, SOURCE_PORTS};
use super::lab::{DEPTH, HONEST, Lab, REGION_BYTES, VICTIM};
use super::world::Kind;
use super::{Attack, Form};

pub(super) const ATTACKS: &[Attack] = &[
    ("blind/requests_to_a_native_peer", |form| requests(Kind::Native, Port::Unknown, Begins::WithTraffic, form)),
    ("blind/requests_to_a_native_peer_of_known_port", |form| {
        requests(Kind::Native, Port::Known, Begins::WithTraffic, form);
    }),
    ("blind/requests_to_a_fresh_native_peer", |form| requests(Kind::Native, Port::Unknown, Begins::Silent, form)),
    ("blind/requests_to_a_standard_peer", |form| requests(Kind::Standard, Port::Unknown, Begins::WithTraffic, form)),
    ("blind/requests_to_a_fresh_standard_peer", |form| requests(Kind::Standard, Port::Unknown, Begins::Silent, form)),
    ("blind/responses_to_a_native_peer", |form| responses(Kind::Native, Port::Unknown, form)),
    ("blind/responses_to_a_native_peer_of_known_port", |form| responses(Kind::Native, Port::Known, form)),
    ("blind/responses_to_a_standard_peer", |form| responses(Kind::Standard, Port::Unknown, form)),
];

/// Whether the forger knows the port that the peer sends from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Known,
    Unknown,
}

/// The packets that the victim has received from its peer when the forger begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    WithTraffic,
    Silent,
}

const SHORT: u64 = 2_000_000;
const LONG: u64 = 20_000_000;
/// The payload of forged messages.
const MARK: [u8; 32] = [0xee; 32];
/// Number of requests that a standard peer may have in flight, and thus of PSNs that may be plausible.
const STANDARD_WINDOW: u64 = 64;
const PSNS: u64 = 1 << 24;
/// Number of tries of one connection; the next one has other PSNs.
const TRIES_OF_CONNECTION: u64 = 50_000;
const TRIES_BETWEEN_MESSAGES: u64 = 500;

/// The results of a campaign.
#[derive(Default, Debug)]
struct Tally {
    tries: u64,
    connections: u64,
    /// Blind packets that passed the checks of address, port and check field. Toward standard peers these are all.
    passed: u64,
    /// Blind requests kept in the reorder buffer.
    kept: u64,
    /// The first try that was kept.
    first_kept: Option<u64>,
    /// Forged messages that completed a receive.
    delivered: u64,
    /// Messages of the peer that were lost or arrived changed.
    harmed: u64,
    /// Sends of the victim that completed although they never arrived.
    believed: u64,
    killed: u64,
}

impl Tally {
    fn report(&self, name: &str, start: Instant) {
        let rate = self.tries as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{name}: {self:?}; {rate:.2} million tries a second");
    }

    fn assert_nothing_passed(&self) {
        let effects = [self.passed, self.kept, self.delivered, self.harmed, self.believed, self.killed];
        assert_eq!(effects, [0; 6], "passed, kept, delivered, harmed, believed, killed of {} tries", self.tries);
    }

    /// Checks against chance with a window of 64 PSNs: twice the mean and 16 are exceeded once in 10^5 runs.
    fn assert_bounded(&self, hits: u64, what: &str) {
        let bound = 2 * self.tries * STANDARD_WINDOW / PSNS + 16;
        assert!(hits <= bound, "{hits} {what} of {} tries; chance gives at most {bound}", self.tries);
    }
}

fn requests(kind: Kind, port: Port, begins: Begins, form: Form) {
    let start = Instant::now();
    let tally = Campaign::new(kind, port).requests(form.tries(SHORT, LONG), begins);
    tally.report("requests", start);
    match kind {
        Kind::Native => tally.assert_nothing_passed(),
        Kind::Standard => {
            tally.assert_bounded(tally.kept, "kept");
            tally.assert_bounded(tally.delivered, "delivered");
            tally.assert_bounded(tally.killed + tally.harmed, "killed or harmed");
        }
    }
}

fn responses(kind: Kind, port: Port, form: Form) {
    let start = Instant::now();
    let tally = Campaign::new(kind, port).responses(form.tries(SHORT, LONG));
    tally.report("responses", start);
    match kind {
        Kind::Native => tally.assert_nothing_passed(),
        Kind::Standard => {
            tally.assert_bounded(tally.believed + tally.killed, "believed or killed");
            // Forged responses carry no message, and the peer's message arrives before they begin.
            assert_eq!([tally.delivered, tally.harmed], [0; 2], "delivered, harmed of {} tries", tally.tries);
        }
    }
}

struct Campaign {
    lab: Lab,
    port: Port,
    tally: Tally,
    /// Number of the passed packets of the connection that were the peer's.
    genuine: u64,
    number: u64,
}

impl Campaign {
    fn new(kind: Kind, port: Port) -> Self {
        Self { lab: Lab::new(kind, Mtu::Mtu256, 0x5eed), port, tally: Tally::default(), genuine: 0, number: 0 }
    }

    /// Guesses the unknown fields and sends the packet.
    fn guess(&mut self, packet: &mut Forgery) {
        let random = self.lab.random.number();
        packet.headers.bth.psn = Psn::new(random as u32 & 0xff_ffff);
        if self.port == Port::Unknown {
            packet.source_port = SOURCE_PORTS.start() + (random >> 32) as u16 % (1 << 14);
        }
        self.lab.now = self.lab.now + Duration::from_nanos(500);
        self.lab.forge(packet);
        self.tally.tries += 1;
    }

    fn passed(&self) -> u64 {
        self.lab.count(VICTIM, Counter::ReceivedPackets)
    }

    fn kept(&self) -> u64 {
        self.lab.count(VICTIM, Counter::ReorderedRequest)
    }

    /// Makes a new connection, with receives for all messages that can arrive.
    fn connect(&mut self) {
        self.lab.connect();
        for at in [VICTIM, HONEST] {
            self.lab.completions(at);
            for index in 0..u64::from(DEPTH) {
                self.lab.post_receive(at, index, index * 64, 64);
            }
        }
        self.tally.connections += 1;
    }

    fn is_alive(&self) -> bool {
        [VICTIM, HONEST].iter().all(|at| self.lab.state(*at) == QueuePairState::ReadyToSend)
    }

    /// Sends a message of the honest peer. Returns whether it arrived, alone and unchanged.
    fn message(&mut self) -> bool {
        self.number += 1;
        let bytes = self.number.to_le_bytes();
        self.lab.post_send(HONEST, 1, Data::Inline(&[&bytes]));
        let before = self.passed();
        self.lab.carry();
        self.genuine += self.passed() - before;
        let received = self.lab.completions(VICTIM);
        let mut came = 0;
        for completion in &received {
            let offset = completion.wr_id * 64;
            if completion.status != CompletionStatus::Success {
                continue;
            }
            if self.lab.bytes(VICTIM, offset, MARK.len()) == MARK {
                self.tally.delivered += 1;
            } else {
                came += u64::from(self.lab.bytes(VICTIM, offset, 8) == bytes);
            }
            if self.is_alive() {
                self.lab.post_receive(VICTIM, completion.wr_id, offset, 64);
            }
        }
        let sent = self.lab.completions(HONEST);
        let is_right = came == 1 && received.len() == 1 && sent.len() == 1;
        is_right && sent[0].status == CompletionStatus::Success
    }

    /// Records whether the connection was harmed since the last call. Returns whether it goes on.
    fn check_connection(&mut self) -> bool {
        let is_right = self.message();
        if !self.is_alive() {
            self.tally.killed += 1;
        } else if !is_right {
            self.tally.harmed += 1;
        }
        is_right && self.is_alive()
    }

    fn requests(mut self, tries: u64, begins: Begins) -> Tally {
        let mut packets = self.request_packets();
        while self.tally.tries < tries {
            self.connect();
            let (passed, kept) = (self.passed(), self.kept());
            self.genuine = 0;
            let mut goes_on = begins == Begins::Silent || self.check_connection();
            let mut left = if begins == Begins::Silent { TRIES_BETWEEN_MESSAGES } else { TRIES_OF_CONNECTION };
            while goes_on && left > 0 {
                for _ in 0..TRIES_BETWEEN_MESSAGES {
                    let which = (self.lab.random.number() % packets.len() as u64) as usize;
                    self.guess(&mut packets[which]);
                    if self.tally.first_kept.is_none() && self.kept() > 0 {
                        self.tally.first_kept = Some(self.tally.tries);
                    }
                }
                left -= TRIES_BETWEEN_MESSAGES;
                goes_on = self.check_connection();
            }
            self.tally.passed += self.passed() - passed - self.genuine;
            self.tally.kept += self.kept() - kept;
        }
        self.tally
    }

    /// Returns packets to forge: mostly messages, and some that end the connection if accepted.
    fn request_packets(&self) -> Vec<Forgery> {
        let (aim, psn) = (self.lab.aim(), Psn::new(0));
        let mut packets = vec![aim.send(psn, &MARK); 13];
        packets.push(aim.request(Opcode::RC_SEND_LAST, psn, &MARK));
        packets.push(aim.write(psn, super::lab::BASE, Rkey(0x1234_5678), &MARK));
        packets.push(aim.request(Opcode::RC_SEND_FIRST, psn, &[0xee; 256]));
        packets
    }

    /// Attacks a victim that has a full window in flight, to a slow peer.
    fn responses(mut self, tries: u64) -> Tally {
        let (aim, psn) = (self.lab.aim(), Psn::new(0));
        let refusals = [NakCode::SequenceError, NakCode::InvalidRequest, NakCode::RemoteAccess];
        let mut packets = refusals.map(|code| aim.response(psn, Syndrome::Nak(code))).to_vec();
        packets.push(aim.response(psn, Syndrome::Ack { credit: 31 }));
        packets.push(aim.response(psn, Syndrome::Ack { credit: 31 }));
        packets.push(aim.response(psn, Syndrome::ReceiverNotReady { timer: 31 }));
        let mut most_in_flight = 0;
        while self.tally.tries < tries {
            self.connect();
            let passed = self.passed();
            self.genuine = 0;
            // The port of a native peer is known from its traffic.
            if !self.check_connection() {
                continue;
            }
            for _ in 0..4 {
                let sges = [self.lab.sge(VICTIM, 0, REGION_BYTES as u32)];
                self.lab.post_send(VICTIM, 7, Data::Sges(&sges));
            }
            self.lab.lose_from(VICTIM);
            most_in_flight = most_in_flight.max(self.lab.in_flight(VICTIM));
            let mut left = TRIES_OF_CONNECTION;
            while left > 0 && self.lab.completions(VICTIM).is_empty() && self.is_alive() {
                for _ in 0..TRIES_BETWEEN_MESSAGES {
                    let which = (self.lab.random.number() % packets.len() as u64) as usize;
                    self.guess(&mut packets[which]);
                }
                left -= TRIES_BETWEEN_MESSAGES;
                // Retransmissions are lost, too.
                self.lab.lose_from(VICTIM);
            }
            let moved = self.lab.in_flight(VICTIM) < most_in_flight;
            self.tally.killed += u64::from(!self.is_alive());
            self.tally.believed += u64::from(moved && self.is_alive());
            self.tally.passed += self.passed() - passed - self.genuine;
        }
        println!("in flight: {most_in_flight} packets");
        self.tally
    }
}
