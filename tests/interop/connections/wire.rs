//! The wire between both ends: every RoCE packet that passes, seen by a packet socket.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::net::{IpAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::home::{Error, Outcome};

const ROCE_PORT: u16 = 4791;
/// The discard protocol: nothing listens there.
const MARKER_PORT: u16 = 9;
const UD_SEND_ONLY: u8 = 0x64;
/// UDP payload of a packet with a MAD: BTH, DETH, 256 bytes, ICRC.
const MAD_PACKET: usize = 12 + 8 + 256 + 4;
/// More packets than a check exchanges.
const MOST_PACKETS: usize = 100_000;
/// A check that takes the wire's packets fails unless all of them have been noted within this time.
const CATCHING_UP: Duration = Duration::from_secs(10);

pub(crate) const REQ: u16 = 0x10;
pub(crate) const MRA: u16 = 0x11;
pub(crate) const REJ: u16 = 0x12;
pub(crate) const REP: u16 = 0x13;
pub(crate) const RTU: u16 = 0x14;
pub(crate) const DREQ: u16 = 0x15;
pub(crate) const DREP: u16 = 0x16;
pub(crate) const SIDR_REQ: u16 = 0x17;
pub(crate) const SIDR_REP: u16 = 0x18;
const NAMES: [&str; 9] = ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"];

/// A packet to UDP port 4791.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) at: Instant,
    pub(crate) is_ours: bool,
    /// Type of service or traffic class.
    pub(crate) class: u8,
    /// From the BTH to the ICRC.
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    /// Returns whether it is one for queue pair 1.
    pub(crate) fn is_mad(&self) -> bool {
        self.payload.first() == Some(&UD_SEND_ONLY) && self.payload.get(5..8) == Some(&[0, 0, 1])
    }

    /// Returns the attribute of a datagram for queue pair 1.
    pub(crate) fn attribute(&self) -> Option<u16> {
        Mad::of(self).map(|mad| mad.attribute)
    }
}

/// Management classes of vendors: those of the discovery of native peers.
const VENDOR_CLASSES: RangeInclusive<u8> = 0x30..=0x4f;

/// A datagram of the connection manager.
#[derive(Clone)]
pub(crate) struct Mad {
    pub(crate) at: Instant,
    pub(crate) is_ours: bool,
    pub(crate) attribute: u16,
    pub(crate) transaction: u64,
    /// The 232 bytes behind the header.
    pub(crate) body: Vec<u8>,
}

impl Mad {
    fn of(packet: &Packet) -> Option<Self> {
        let mad = packet.payload.get(20..276).filter(|mad| packet.is_mad() && !VENDOR_CLASSES.contains(&mad[1]))?;
        Some(Self {
            at: packet.at,
            is_ours: packet.is_ours,
            attribute: u16::from_be_bytes([mad[16], mad[17]]),
            transaction: u64::from_be_bytes(mad[8..16].try_into().ok()?),
            body: mad[24..].to_vec(),
        })
    }

    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.body[at], self.body[at + 1], self.body[at + 2], self.body[at + 3]])
    }

    /// Returns the reason of a REJ and the message that it rejects.
    pub(crate) fn rejection(&self) -> (u16, u8) {
        (u16::from_be_bytes([self.body[10], self.body[11]]), self.body[8] >> 6)
    }

    fn name(&self) -> String {
        let known = usize::from(self.attribute).checked_sub(usize::from(REQ)).and_then(|index| NAMES.get(index));
        known.map_or_else(|| format!("{:#x}", self.attribute), |name| (*name).to_owned())
    }
}

/// Sees the packets.
pub(crate) struct Wire {
    seen: Arc<Mutex<Seen>>,
    start: Instant,
    markers: UdpSocket,
}

#[derive(Default)]
struct Seen {
    packets: Vec<Packet>,
    /// The transaction ids of the datagrams that were noted in this check, and in earlier ones.
    transactions: HashSet<u64>,
    earlier: HashSet<u64>,
    /// The number of packets beyond the most.
    omitted: usize,
    /// The number of the latest marker.
    marker: u32,
    /// The error that has ended the thread.
    failure: Option<io::Error>,
}

impl Wire {
    /// Begins to see those of this network namespace.
    pub(crate) fn open(local: IpAddr, remote: IpAddr) -> Result<Self, Error> {
        let every = (libc::ETH_P_ALL as u16).to_be();
        let mut socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from(every))))?;
        socket.set_recv_buffer_size(8 << 20)?;
        let markers = UdpSocket::bind((local, 0))?;
        markers.connect((remote, MARKER_PORT))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 65_536];
            loop {
                let outcome = socket.read(&mut bytes);
                let mut seen = noted.lock().unwrap_or_else(PoisonError::into_inner);
                match outcome {
                    Ok(length) => note(&mut seen, &bytes[..length], local),
                    // An interface that goes down is an error once; the socket receives from all others.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENETDOWN)) => {}
                    Err(error) => {
                        seen.failure = Some(error);
                        break;
                    }
                }
            }
        });
        Ok(Self { seen, start: Instant::now(), markers })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has noted all packets that have passed: sends a marker behind them.
    fn catch_up(&self) -> Result<MutexGuard<'_, Seen>, Error> {
        let (marker, end) = (self.seen().marker.wrapping_add(1), Instant::now() + CATCHING_UP);
        loop {
            let seen = self.seen();
            if let Some(failure) = &seen.failure {
                return Err(format!("the wire is not seen any more: {failure}").into());
            }
            if seen.marker == marker {
                return Ok(seen);
            }
            drop(seen);
            if Instant::now() > end {
                return Err(format!("the wire is not seen: no marker passes within {CATCHING_UP:?}").into());
            }
            // The guest refuses the port, which fails the next call.
            let _ = self.markers.send(&marker.to_be_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets all packets that have passed, and the transactions: a slow machine repeats requests whose responses come
    /// when the next check has begun.
    pub(crate) fn start_check(&self) -> Outcome {
        self.forget()?;
        let mut seen = self.seen();
        let ended = std::mem::take(&mut seen.transactions);
        seen.earlier.extend(ended);
        Ok(())
    }

    /// Forgets all packets that have passed.
    pub(crate) fn forget(&self) -> Outcome {
        let mut seen = self.catch_up()?;
        seen.packets.clear();
        seen.omitted = 0;
        Ok(())
    }

    /// Returns all packets that have passed since the latest `forget`.
    pub(crate) fn packets(&self) -> Result<Vec<Packet>, Error> {
        let seen = self.catch_up()?;
        if seen.omitted > 0 {
            return Err(format!("{} packets beyond {MOST_PACKETS} have passed, and are not noted", seen.omitted).into());
        }
        Ok(seen.packets.clone())
    }

    /// Returns the datagrams of the connection manager, in order, without those of transactions of earlier checks.
    pub(crate) fn mads(&self) -> Result<Vec<Mad>, Error> {
        let packets = self.packets()?;
        let seen = self.seen();
        let mads = packets.iter().filter_map(Mad::of);
        Ok(mads.filter(|mad| !seen.earlier.contains(&mad.transaction)).collect())
    }

    /// Returns those with this attribute from one end.
    pub(crate) fn of(&self, attribute: u16, is_ours: bool) -> Result<Vec<Mad>, Error> {
        let wanted = |mad: &Mad| mad.attribute == attribute && mad.is_ours == is_ours;
        Ok(self.mads()?.into_iter().filter(wanted).collect())
    }

    /// Waits until a datagram with this attribute from one end has passed, and returns the first one.
    pub(crate) fn first(&self, attribute: u16, is_ours: bool) -> Result<Mad, Error> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(mad) = self.of(attribute, is_ours)?.into_iter().next() {
                return Ok(mad);
            }
            if Instant::now() > end {
                return Err(format!("no datagram {attribute:#x}, ours: {is_ours}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks the size of every datagram for queue pair 1, and that a sequence of attributes has passed, nothing else
    /// but repetitions and their confirmations (MRA), which a slow machine makes. `true` stands for this end.
    pub(crate) fn expect_sequence(&self, expected: &[(u16, bool)]) -> Outcome {
        let end = Instant::now() + Duration::from_secs(3);
        loop {
            let mut found: Vec<(u16, bool)> = Vec::new();
            for mad in self.mads()? {
                let kind = (mad.attribute, mad.is_ours);
                if mad.attribute != MRA && !found.contains(&kind) {
                    found.push(kind);
                }
            }
            if found == expected {
                break;
            }
            if Instant::now() > end {
                return Err(format!("the sequence is {found:x?} instead of {expected:x?}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        match self.packets()?.iter().filter(|packet| packet.is_mad()).all(|packet| packet.payload.len() == MAD_PACKET) {
            true => Ok(()),
            false => Err("a datagram has another size than 256 bytes".into()),
        }
    }

    /// Returns the datagrams that have been noted, a line each; of an incomplete list, also the reason.
    pub(crate) fn listing(&self) -> String {
        let mut text = self.packets().err().map_or_else(String::new, |error| format!("incomplete: {error}\n"));
        let mads: Vec<Mad> = self.seen().packets.iter().filter_map(Mad::of).collect();
        for mad in &mads[mads.len().saturating_sub(60)..] {
            let time = mad.at.duration_since(self.start).as_secs_f32();
            let end = if mad.is_ours { "ours" } else { "guest's" };
            let _ = write!(text, "{time:9.3} {end} {} {:08x} {:08x}", mad.name(), mad.u32_at(0), mad.u32_at(4));
            if mad.attribute == REJ {
                let _ = write!(text, " (reason, message) {:?}", mad.rejection());
            }
            text.push('\n');
        }
        text
    }
}

/// Notes an IP packet, if it is RoCE or a marker.
fn note(seen: &mut Seen, bytes: &[u8], local: IpAddr) {
    let Some((source, class, udp)) = parse(bytes) else { return };
    let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let payload = &udp[8..length.clamp(8, udp.len())];
    match u16::from_be_bytes([udp[2], udp[3]]) {
        ROCE_PORT if seen.packets.len() == MOST_PACKETS => seen.omitted += 1,
        ROCE_PORT => {
            let packet = Packet { at: Instant::now(), is_ours: source == local, class, payload: payload.to_vec() };
            if let Some(mad) = Mad::of(&packet)
                && !seen.earlier.contains(&mad.transaction)
            {
                seen.transactions.insert(mad.transaction);
            }
            seen.packets.push(packet);
        }
        MARKER_PORT => {
            if let Ok(marker) = payload.try_into() {
                seen.marker = u32::from_be_bytes(marker);
            }
        }
        _ => {}
    }
}

/// Parses an IP packet: returns the source, the traffic class, and the UDP header with what follows.
fn parse(bytes: &[u8]) -> Option<(IpAddr, u8, &[u8])> {
    let (source, class, udp): (IpAddr, u8, &[u8]) = match bytes.first()? >> 4 {
        4 if bytes.get(9) == Some(&17) => {
            let source: [u8; 4] = bytes.get(12..16)?.try_into().ok()?;
            (source.into(), bytes[1], bytes.get(usize::from(bytes[0] & 15) * 4..)?)
        }
        6 if bytes.get(6) == Some(&17) => {
            let source: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            (source.into(), bytes[0] << 4 | bytes[1] >> 4, bytes.get(40..)?)
        }
        _ => return None,
    };
    (udp.len() >= 8).then_some((source, class, udp))
}
