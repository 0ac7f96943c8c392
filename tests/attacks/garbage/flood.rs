//! Garbage at a steady rate.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use rdma_verbs::types::{Psn, Qpn};
use rdma_verbs::wire::{Bth, Flow, Headers, ICRC_BYTES, Opcode, icrc};

use super::victim::Victim;

/// Number of packets that are sent together; every socket holds as many.
pub(crate) const BURST: u64 = 30;
/// Number of bursts of one measurement of the processor time.
pub(crate) const BURSTS: u64 = 400;

/// The kinds of garbage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// No queue pair has the number.
    UnknownQueuePair,
    /// The queue pair's number is right, the sender's address is not.
    WrongAddress,
    /// Addresses and queue pair number are right, the check value is not.
    WrongCheck,
    /// Like `WrongCheck`, with the longest payload that fits into a packet.
    WrongCheckLarge,
    /// Not RoCEv2 at all.
    Noise,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Self::UnknownQueuePair, Self::WrongAddress, Self::WrongCheck, Self::WrongCheckLarge, Self::Noise];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UnknownQueuePair => "unknown_qpn",
            Self::WrongAddress => "wrong_address",
            Self::WrongCheck => "wrong_check",
            Self::WrongCheckLarge => "wrong_check_large",
            Self::Noise => "noise",
        }
    }
}

/// A flood of one kind of garbage to one destination.
pub(crate) struct Flood {
    socket: UdpSocket,
    destination: SocketAddr,
    packets: Vec<Vec<u8>>,
    rate: u64,
}

impl Flood {
    pub(crate) fn new(victim: &Victim, kind: Kind, destination: SocketAddr, rate: u64) -> Self {
        let other_address = Ipv4Addr::new(127, 46, 0, 9);
        let source = if kind == Kind::WrongAddress { other_address } else { victim.peer() };
        let socket = UdpSocket::bind((source, 0)).expect("an address of the loopback interface");
        let port = socket.local_addr().expect("bound").port();
        let packets = (0..BURST as u32).map(|number| packet(victim, kind, source, port, number)).collect();
        Self { socket, destination, packets, rate }
    }

    /// Returns the same flood to another socket.
    pub(crate) fn to(&self, destination: SocketAddr) -> Self {
        let socket = self.socket.try_clone().expect("a duplicate");
        Self { socket, destination, packets: self.packets.clone(), rate: self.rate }
    }

    /// Sends one burst.
    pub(crate) fn burst(&self) {
        for packet in &self.packets {
            // The kernel drops packets that do not fit into the receiver's socket.
            let _ = self.socket.send_to(packet, self.destination);
        }
    }

    /// Sends until `stop` is set.
    pub(crate) fn run(&self, stop: &AtomicBool) {
        let begin = Instant::now();
        let pause = Duration::from_nanos(BURST * 1_000_000_000 / self.rate);
        let mut due = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            self.burst();
            due += pause;
            // Late bursts are not made up for: the rate is a maximum.
            let elapsed = begin.elapsed();
            match due.checked_sub(elapsed) {
                Some(early) => std::thread::sleep(early),
                None => due = elapsed,
            }
        }
    }
}

/// Returns the processor time of the calling thread, which does the measured work; the device's own thread sleeps.
pub(crate) fn processor_time() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock that every system has"))
}

fn packet(victim: &Victim, kind: Kind, source: Ipv4Addr, source_port: u16, number: u32) -> Vec<u8> {
    let length = if kind == Kind::WrongCheckLarge { 4_096 } else { 32 };
    let qpn = match kind {
        // A queue pair number of the same block.
        Kind::UnknownQueuePair => Qpn::new(victim.qpn().value() ^ 0x5a5),
        _ => victim.qpn(),
    };
    let psn = Psn::new(number * 0x1_0001);
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, destination: qpn, psn, ack_request: true, ..Bth::default() };
    let headers = Headers { bth, ..Headers::default() };
    let mut bytes = vec![number as u8; headers.length() + length + ICRC_BYTES];
    headers.emit(&mut bytes);
    let destination = victim.address().ip();
    icrc::append(&Flow { source: source.into(), destination, source_port }, 0, &mut bytes);
    let last = bytes.len() - 1;
    match kind {
        Kind::WrongCheck | Kind::WrongCheckLarge => bytes[last] ^= 0x11,
        Kind::Noise => bytes[..12].fill(0xff),
        Kind::UnknownQueuePair | Kind::WrongAddress => {}
    }
    bytes
}
