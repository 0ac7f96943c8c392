//! The terms of a seed: the parameters that the hosts agreed on, and the faults of links and hosts.

use std::net::IpAddr;
use std::time::Duration;

use rdma_verbs::sim::{Faults, Random, Socket};
use rdma_verbs::types::{AccessFlags, Mtu, PeerCapabilities, Time};

use super::keys::{Keys, keys_of};
use super::store::GRANTABLE;

/// Number of clients of a crowded server.
const CROWD: u64 = 64;
/// Chance of posting in a step, in permille, of an application that posts as fast as it can, and of a slow one.
const BUSY: u32 = 400;
const SLOW: u32 = 50;
/// Shortest and longest interval between two steps of the applications.
const SHORT_STEP: Duration = Duration::from_micros(200);
const LONG_STEP: Duration = Duration::from_millis(5);

/// The terms of a seed.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) mtu: Mtu,
    pub(crate) peer: PeerCapabilities,
    /// The connection key as known by the server and its clients.
    pub(crate) keys: Keys,
    /// Faults of the packets that each host sends. Host 0 is the one that all others talk to.
    pub(crate) faults: Vec<Faults>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) timeout: u8,
    /// Whether the transport timer waits long enough for several probes.
    pub(crate) is_patient: bool,
    pub(crate) rd_atomic: u8,
    /// Length of the longest message.
    pub(crate) largest: u64,
    /// Length of the longest inline message.
    pub(crate) max_inline: u32,
    /// Number of requests of each side.
    pub(crate) requests: usize,
    /// Access flags that the server grants, and that the clients grant.
    pub(crate) access: [AccessFlags; 2],
    /// Chance that a request is wrong on purpose, in permille.
    pub(crate) wrong: u32,
    /// Longest interval at which the applications act.
    pub(crate) step: Duration,
    /// Chance of posting a request in a step, in permille.
    pub(crate) sends: u32,
    /// Chance of posting a receive in a step, in permille.
    pub(crate) receives: u32,
    /// Chance of releasing held acknowledgements, in permille of the opportunities.
    pub(crate) release: u32,
    /// Whether clocks jump.
    pub(crate) jumps: bool,
    /// Whether hosts stop for a while.
    pub(crate) stops: bool,
    /// Whether the hosts stand for processes of one machine, which share memory.
    pub(crate) shares_memory: bool,
    /// The server's socket, if it is small.
    pub(crate) socket: Option<Socket>,
}

const OURS: PeerCapabilities =
    PeerCapabilities::STANDARD.version(1).segmentation_offload(true).receive_buffer_bytes(8 << 20);

impl Terms {
    pub(crate) fn random(random: &mut Random) -> Self {
        let is_crowded = random.chance(25);
        let hosts = 1 + if is_crowded { CROWD } else { 1 };
        let is_calm = random.chance(150);
        let (jumps, stops) = (random.chance(40), random.chance(40));
        let mut faults: Vec<_> = (0..hosts).map(|_| random_faults(random, is_calm)).collect();
        let has_blackouts = !is_crowded && random.chance(20);
        add_outages(&mut faults, has_blackouts, random);
        let is_v6 = random.chance(500);
        // Over IPv4 a damaged packet of a standard peer passes the ICRC once in 65,536 times; over IPv6 never.
        let is_standard = random.chance(500) && (is_v6 || faults.iter().all(|faults| faults.corruption == 0));
        let peer = if is_standard { PeerCapabilities::STANDARD } else { OURS };
        let mtu = random.choose(Mtu::ALL);
        faults.iter_mut().for_each(|faults| faults.pins_ports = !is_standard);
        let socket = is_crowded.then(|| Socket { packets: 25, wake: Duration::from_micros(random.between(1, 100)) });
        let is_slow = has_blackouts || stops;
        let shortest = shortest_timeout(&faults) + random.below(3) as u8;
        let timeout = if is_slow || random.chance(150) { shortest.max(17) + random.below(2) as u8 } else { shortest };
        let is_timely = !jumps && !stops;
        let round_trip = round_trip(&faults);
        let retry_cnt = random.between(3, 7) as u8;
        // Derived, not drawn, so that the other terms of a seed stay the same.
        let reports_all_gaps = !is_standard && (mtu as u8 + retry_cnt).is_multiple_of(2);
        let peer = peer.extensions(if reports_all_gaps { PeerCapabilities::GAP_RUNS } else { 0 });
        Self {
            mtu,
            peer,
            keys: keys_of(peer, faults[0].delay.as_micros() as u64 + u64::from(retry_cnt)),
            is_patient: is_timely && timeout_of(timeout) > 16 * (2 * round_trip + Duration::from_millis(15)),
            faults,
            addresses: (0..hosts).map(|host| address(host as u8 + 1, is_v6)).collect(),
            retry_cnt,
            rnr_retry: random.choose(&[2, 6, 7, 7, 7]),
            min_rnr_timer: random.between(1, 14) as u8,
            timeout,
            rd_atomic: random.choose(&[1, 2, 3, 8, 16]),
            largest: if is_crowded { 4_000 } else { random.choose(&[64, 500, 2_000, 2_000, 20_000, 100_000]) },
            max_inline: random.choose(&[128, 1_024]),
            requests: if is_crowded { 5 } else { random.between(20, 90) as usize },
            access: [random_access(random), random_access(random)],
            wrong: if random.chance(250) { 25 } else { 0 },
            step: if is_slow { LONG_STEP } else { (round_trip / 20).clamp(SHORT_STEP, LONG_STEP) },
            sends: if is_slow { SLOW } else { BUSY },
            receives: if is_slow { 500 } else { random.choose(&[50, 300, 800]) },
            release: random.choose(&[0, 500, 1_000]),
            jumps,
            stops,
            // Derived, too.
            shares_memory: !is_standard && retry_cnt.is_multiple_of(2),
            socket,
        }
    }

    /// Returns whether no host is delayed: no clock jumps, no host stops, and no socket is small.
    pub(crate) fn is_timely(&self) -> bool {
        !self.jumps && !self.stops && self.socket.is_none()
    }

    /// Returns whether the hosts know each other as native peers.
    pub(crate) fn is_native(&self) -> bool {
        self.peer.segmentation_offload
    }

    /// Returns whether the hosts report all gaps at once.
    pub(crate) fn reports_all_gaps(&self) -> bool {
        self.peer.has_extension(PeerCapabilities::GAP_RUNS)
    }

    /// Returns the duration of the transport timer.
    pub(crate) fn timeout(&self) -> Duration {
        timeout_of(self.timeout)
    }

    /// Returns a duration longer than any silence while requests are outstanding.
    pub(crate) fn longest_silence(&self) -> Duration {
        2 * self.timeout() + Duration::from_secs(8)
    }
}

fn timeout_of(code: u8) -> Duration {
    Duration::from_nanos(4_096 << code)
}

fn address(number: u8, is_v6: bool) -> IpAddr {
    if is_v6 { IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()]) } else { IpAddr::from([192, 0, 2, number]) }
}

fn random_access(random: &mut Random) -> AccessFlags {
    let lacking = [
        AccessFlags::REMOTE_READ,
        AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_ATOMIC,
        AccessFlags::FLUSH_GLOBAL,
        AccessFlags::empty(),
    ];
    GRANTABLE - if random.chance(250) { random.choose(&lacking) } else { AccessFlags::empty() }
}

fn random_faults(random: &mut Random, is_calm: bool) -> Faults {
    let delay = Duration::from_nanos(random.choose(&[2_000, 10_000, 50_000, 1_000_000, 20_000_000]));
    let is_calm = is_calm || random.chance(150);
    let rate = |random: &mut Random, limit| if is_calm { 0 } else { random.below(limit) as u32 };
    Faults {
        loss: rate(random, 101),
        bursts: (!is_calm && random.chance(150))
            .then(|| (random.between(1, 10) as u32, random.between(100, 400) as u32)),
        duplication: rate(random, 40),
        corruption: rate(random, 30),
        reordering: rate(random, 150),
        delay,
        lateness: delay * random.between(1, 10) as u32,
        forgery: if random.chance(200) { 20 } else { 0 },
        short_answers: if random.chance(40) { 50 } else { 0 },
        ..Faults::default()
    }
}

fn add_outages(faults: &mut [Faults], has_blackouts: bool, random: &mut Random) {
    let which = random.below(faults.len() as u64) as usize;
    if random.chance(100) {
        // Partitioned for a while or forever.
        let from = Time::from_nanos(random.between(1_000, 5_000_000));
        let length = Duration::from_millis(random.choose(&[1, 20, 100, 100_000_000, 100_000_000]));
        faults[which].partitions.push((from, from + length));
    }
    if random.chance(50) {
        // One direction loses much, the others nothing.
        faults.iter_mut().for_each(|faults| faults.loss = 0);
        faults[which].loss = 300;
    }
    if has_blackouts {
        faults[which].blackouts = Some((Duration::from_secs(5), Duration::from_secs(2)));
    }
}

fn round_trip(faults: &[Faults]) -> Duration {
    let longest = |faults: &Faults| faults.delay + faults.lateness;
    let server = longest(&faults[0]);
    server + faults[1..].iter().map(longest).max().unwrap_or_default()
}

/// Returns the code of a timeout that exceeds every round trip: responses that are merely late are not lost.
fn shortest_timeout(faults: &[Faults]) -> u8 {
    let longest_hold = Duration::from_millis(1);
    (8..31).find(|code| timeout_of(*code) > round_trip(faults) + longest_hold).unwrap_or(31)
}
